"""Stage 15, index dtype: the unbounded integers of index arithmetic get 32 or 64 bits, by their bounds.

Three steps, sources first:
1. leaves (constants, variables, ranges, hardware indices) take the narrower type that holds their values;
2. an op takes the narrower type that holds its result *and* its operands, so nothing in it can wrap; operands
   of another type are cast;
3. where an index is used (INDEX, END, comparison, conversion) the concrete value stands for it.

The bounds are those of the index expression, which does not wrap, so a sum that needs 64 bits on the way
gets them even if its parts do not.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.vector.vectors import vector_constant
from morok.dtype import DType, int32, int64
from morok.ir.bounds import bounds
from morok.ir.build import cast
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine


def concrete(nodes: tuple[UOp, ...], machine: Machine) -> DType:
    """The scalar type that holds the values of all these index nodes."""
    if machine.wide_index and all(n.dtype.lanes == 1 for n in nodes):
        return int64
    for n in nodes:
        low, high = bounds(n)
        if not (int32.min <= low and high <= int32.max):
            return int64
    return int32


def _convert(x: UOp, dtype: DType) -> UOp:
    """x in a concrete type; constants directly."""
    wide = dtype.vec(x.dtype.lanes)
    if x.dtype is wide:
        return x
    if x.op is Ops.CONST:
        return const(wide, x.arg)
    if x.op is Ops.VCONST:
        return vector_constant(dtype, x.arg)
    if x.op is Ops.CAST and x.src[0].dtype is wide:
        return x.src[0]
    return cast(x, wide)


def lower_index(root: UOp, ctx: Any) -> UOp:
    """The graph without the type `index`."""
    machine: Machine = ctx.machine
    done: dict[UOp, UOp] = {}  # nodes that become others
    changed = done.keys()
    for node in toposort(root):
        is_index = node.dtype.is_index
        if not is_index and changed.isdisjoint(node.src):
            continue
        src = tuple([done.get(s, s) for s in node.src])
        if is_index:
            done[node] = _lower(node, src, machine)
        elif node.op.is_compare and node.src[0].dtype.is_index:
            dtype = concrete(node.src, machine)
            done[node] = make(node.op, node.dtype, tuple(_convert(s, dtype) for s in src))
        elif node.op is Ops.CAST and node.src[0].dtype.is_index:
            done[node] = _convert(src[0], node.dtype.scalar)
        else:
            done[node] = make(node.op, node.dtype, src, node.arg, node.origin)
    return done.get(root, root)


def _lower(node: UOp, src: tuple[UOp, ...], machine: Machine) -> UOp:
    op = node.op
    lanes = node.dtype.lanes
    if op is Ops.CAST:
        source = src[0]
        if source.dtype.is_float:
            return cast(source, int64)
        if source.dtype.is_bool:
            return cast(source, int32)
        return source if source.dtype.scalar in (int32, int64) else cast(source, concrete((node,), machine))
    if op is Ops.SPECIAL:
        return make(op, int32, tuple(_convert(s, int32) for s in src), node.arg, node.origin)
    if op is Ops.RANGE:
        dtype = concrete((node, node.src[0]), machine)
        return make(op, dtype, (_convert(src[0], dtype),), node.arg, node.origin)
    operands = node.src[1:] if op is Ops.WHERE else node.src
    indices = tuple(s for s in operands if s.dtype.is_index)
    dtype = concrete((node, *indices), machine)
    if op is Ops.CONST:
        return const(dtype.vec(lanes), node.arg)
    if op is Ops.VCONST:
        return vector_constant(dtype, node.arg)
    if op is Ops.DEFINE_VAR:
        return make(op, dtype, (), node.arg, node.origin)
    new = tuple(_convert(s, dtype) if old.dtype.is_index else s for s, old in zip(src, node.src, strict=True))
    return make(op, dtype.vec(lanes), new, node.arg, node.origin)
