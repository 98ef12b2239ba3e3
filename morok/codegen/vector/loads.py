"""Stage 13, explicit loads: a read was an INDEX with the element's type; now it is a LOAD from an address."""

from __future__ import annotations

from morok.codegen.vector.indices import places
from morok.codegen.vector.vectors import concat
from morok.dtype import PtrDType, void
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Head, Many, Var


def add_load(node: UOp) -> UOp | None:
    """INDEX with an element's type → LOAD(INDEX with a pointer's type); 0 where the gate is false."""
    base = node.src[0].dtype
    if node.dtype.is_ptr or not isinstance(base, PtrDType):
        return None
    address = make(Ops.INDEX, base.vec(node.dtype.lanes), node.src, node.arg)
    gated = node.src[-1].dtype.is_bool  # a place is a number
    return make(Ops.LOAD, node.dtype, (address, const(node.dtype, 0)) if gated else (address,))


def fragment_address(node: UOp) -> UOp | None:
    """LDMATRIX takes addresses, not what lies there; one for each matrix that a warp loads."""
    read = node.src[0]
    if read.op is not Ops.LOAD:
        return None
    address = read.src[0]
    buffer, place = address.src[:2]
    lanes = place.dtype.lanes
    found = places(place)
    dtype = node.dtype.scalar.vec(node.dtype.lanes // lanes)
    pointer = buffer.dtype
    return concat(
        [
            make(Ops.LDMATRIX, dtype, (make(Ops.INDEX, pointer, (buffer, found.scalar(i, place))),), node.arg)
            for i in range(lanes)
        ]
    )


_MEMORY = unproved("memory")


@rules("codegen.add_loads")
def load_rules(x: Var, y: Var, rest: Many) -> Rules:
    """Addresses and what lies there."""
    # a[i] read is LOAD(&a[i])
    yield "read", Head(Ops.INDEX).any() >> add_load, why("the address has a type of its own")
    yield "fragment", Head(Ops.LDMATRIX).any() >> fragment_address, why("any number of addresses"), _MEMORY
    # a place to write to is an address, not what lies there
    yield "store", HEADS["Store"](HEADS["Load"](x, rest), y) >> HEADS["Store"](x, y, dtype=void), _MEMORY


# --- later: what has become certain


def certain(node: UOp) -> UOp | None:
    """An access under a condition that always holds is a plain one."""
    address = node.src[0]
    if address.op is not Ops.INDEX or len(address.src) < 3:
        return None
    gate = address.src[2]
    if gate.op is not Ops.CONST or not gate.dtype.is_bool or not gate.arg:
        return None
    plain = make(Ops.INDEX, address.dtype, address.src[:2], address.arg, address.origin)
    return node.replace((plain,) if node.op is Ops.LOAD else (plain, *node.src[1:]))


@rules("codegen.certain")
def certain_rules() -> Rules:
    """Gates that concrete sizes have settled."""
    # a[i] if true = a[i]
    yield "gate", Head(Ops.LOAD, Ops.STORE).any() >> certain, why("drops a source")
