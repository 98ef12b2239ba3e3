"""Between stages 14 and 15: how values lie in memory.

Booleans are one byte per element in memory and one bit in registers. Indices of several dimensions become one
offset. Loops that several nodes close are written once (`scopes.py`).
"""

from __future__ import annotations

from typing import Any

from morok.codegen.scopes import merge_sibling_ends
from morok.dtype import AddrSpace, DType, PtrDType, uint8
from morok.ir.build import cast
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head


def _as_bytes(dtype: DType) -> DType:
    """Pointers to booleans in memory as pointers to bytes."""
    if not isinstance(dtype, PtrDType) or not dtype.elem.is_bool or dtype.space is AddrSpace.REG:
        return dtype
    pointer = uint8.vec(dtype.elem.lanes).ptr(dtype.size, dtype.space)
    return pointer.vec(dtype.lanes) if dtype.lanes > 1 else pointer


def as_bytes(node: UOp) -> UOp | None:
    """Memory of booleans, and places in it, hold bytes."""
    dtype = _as_bytes(node.dtype)
    return None if dtype is node.dtype else make(node.op, dtype, node.src, node.arg, node.origin)


def _holds_bytes(address: UOp) -> bool:
    dtype = address.dtype
    return isinstance(dtype, PtrDType) and dtype.elem.scalar is uint8


def load_byte(node: UOp) -> UOp | None:
    """LOAD of a boolean → whether a byte is not 0."""
    if not node.dtype.is_bool or not _holds_bytes(node.src[0]):
        return None
    wide = uint8.vec(node.dtype.lanes)
    others = tuple(cast(s, wide) for s in node.src[1:])
    return cast(make(Ops.LOAD, wide, (node.src[0], *others)), node.dtype)


def store_byte(node: UOp) -> UOp | None:
    """STORE of a boolean → a byte, 0 or 1."""
    address, value = node.src
    if not value.dtype.is_bool or not _holds_bytes(address):
        return None
    return make(Ops.STORE, node.dtype, (address, cast(value, uint8.vec(value.dtype.lanes))))


_MEMORY = unproved("memory")
_POINTERS = Head(Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.INDEX, Ops.AFTER)


@rules("codegen.bool_storage")
def bool_rules() -> Rules:
    """A boolean is one bit in registers and one byte in memory."""
    yield "memory", _POINTERS.any() >> as_bytes, why("pointers of any size"), _MEMORY
    # p[i] read = byte[i] ≠ 0
    yield "load", Head(Ops.LOAD).any() >> load_byte, why("any number of lanes"), _MEMORY
    # p[i] ← x is byte[i] ← (x ? 1 : 0)
    yield "store", Head(Ops.STORE).any() >> store_byte, why("any number of lanes"), _MEMORY


def flatten_index(node: UOp) -> UOp | None:
    """INDEX(p, i, j) with sizes (a, b) in `arg` → INDEX(p, i*b + j)."""
    if node.arg is None:
        return None
    sizes: tuple[int, ...] = node.arg
    indices, rest = node.src[1 : 1 + len(sizes)], node.src[1 + len(sizes) :]
    flat = indices[0]
    for i, n in zip(indices[1:], sizes[1:], strict=True):
        flat = alu(Ops.ADD, alu(Ops.MUL, flat, const(i.dtype, n)), i)
    return make(Ops.INDEX, node.dtype, (node.src[0], flat, *rest))


@rules("codegen.flatten_index")
def flatten_rules() -> Rules:
    """Several dimensions, row-major."""
    # p[i, j] = p[i*b + j]
    yield (
        "row-major",
        Head(Ops.INDEX).any() >> flatten_index,
        why("any number of dimensions"),
        _MEMORY,
    )


def merge_ends(root: UOp, ctx: Any) -> UOp:
    """Sibling ENDs over the same loops → one."""
    return merge_sibling_ends(root)
