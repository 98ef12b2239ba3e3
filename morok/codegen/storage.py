"""Between stages 14 and 15: how values lie in memory.

Booleans are one byte per element in memory and one bit in registers. Indices of several dimensions become one
offset. Loops that several nodes close are written once (`scopes.py`).
"""

from __future__ import annotations

from typing import Any

from morok.codegen.scopes import merge_sibling_ends
from morok.dtype import AddrSpace, DType, ImageDType, PtrDType, bool_, uint8
from morok.ir.build import cast
from morok.ir.node import UOp, alu, const, make, toposort
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


def bool_storage(root: UOp, ctx: Any) -> UOp:
    """LOAD of a boolean is a byte ≠ 0; STORE of one writes 0 or 1."""
    order = toposort(root)
    if not any(n.dtype.is_ptr and n.dtype.base is bool_ for n in order):
        return root
    done: dict[UOp, UOp] = {}
    for node in order:
        src = tuple(done[s] for s in node.src)
        dtype = _as_bytes(node.dtype)
        if node.op is Ops.LOAD and node.dtype.is_bool and not _in_register(node.src[0]):
            wide = uint8.vec(node.dtype.lanes)
            others = tuple(cast(s, wide) for s in src[1:])
            done[node] = cast(make(Ops.LOAD, wide, (src[0], *others)), node.dtype)
        elif node.op is Ops.STORE and src[1].dtype.is_bool and not _in_register(node.src[0]):
            done[node] = make(Ops.STORE, node.dtype, (src[0], cast(src[1], uint8.vec(src[1].dtype.lanes))))
        elif dtype is node.dtype and src == node.src:
            done[node] = node
        else:
            done[node] = make(node.op, dtype, src, node.arg, node.origin)
    return done[root]


def _in_register(address: UOp) -> bool:
    dtype = address.dtype
    return isinstance(dtype, PtrDType) and dtype.space is AddrSpace.REG


def flatten_index(node: UOp) -> UOp | None:
    """INDEX(p, i, j) with sizes (a, b) in `arg` → INDEX(p, i*b + j). Images keep their two coordinates."""
    if node.arg is None or isinstance(node.src[0].dtype, ImageDType):
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
        unproved("memory"),
    )


def merge_ends(root: UOp, ctx: Any) -> UOp:
    """Sibling ENDs over the same loops → one."""
    return merge_sibling_ends(root)
