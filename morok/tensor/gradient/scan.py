"""Gradients of running reductions: they run the other way, and are running reductions themselves.

With y the result, g its gradient, and all sums along the axis:

    sum          x_i gets   Σ_{j≥i} g_j
    product      x_i gets   y_{i-1} · h_i   where h_i = g_i + x_{i+1}·h_{i+1}; nothing is divided by zeros
    extreme      x_i gets   Σ g_j from i on as long as it stays the extreme; of equals the last one gets it
    recurrence   h = a·h + b:   b_i gets λ_i = g_i + a_{i+1}·λ_{i+1}, and a_i gets λ_i·h_{i-1}
"""

from __future__ import annotations

from morok.dtype import int64
from morok.ir import movement as move
from morok.ir.build import cast
from morok.ir.infer import subtract_sizes
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.memory.storage import beside


def pull_scan(node: UOp, g: UOp, source: int) -> UOp | None:
    """The gradient of a source of SCAN_AXIS."""
    op, axis = node.arg
    x = node.src[0]
    if 0 in require_shape(x):
        return g
    if op is Ops.ADD:
        return _flipped(move.scan_axis(_flipped(g, axis), op, axis), axis)
    if op is Ops.MUL:
        behind = _gathered(_from_next(x, axis), g, axis)
        return alu(Ops.MUL, _from_before(node, axis, 1.0), behind)
    if op is Ops.MULACC:
        slope = _gathered(_from_next(x, axis), g, axis)
        return slope if source == 1 else alu(Ops.MUL, slope, _from_before(node, axis, 0.0))
    # NaN is more extreme than anything, but equal to nothing
    begins = alu(Ops.OR, alu(Ops.CMPEQ, x, beside(node)), alu(Ops.CMPNE, x, x))
    zero, one = const(x.dtype, 0.0), const(x.dtype, 1.0)
    goes_on = alu(Ops.WHERE, begins, zero, one)
    held = _gathered(_from_next(goes_on, axis), g, axis)
    return alu(Ops.WHERE, begins, held, zero)


def _gathered(factor: UOp, g: UOp, axis: int) -> UOp:
    """h_i = g_i + factor_i·h_{i+1}, from the end to the beginning."""
    wide = cast(g, factor.dtype)
    run = move.scan_axis(_flipped(factor, axis), Ops.MULACC, axis, _flipped(wide, axis))
    return _flipped(run, axis)


def _flipped(x: UOp, axis: int) -> UOp:
    return move.flip(x, [a == axis for a in range(len(require_shape(x)))])


def _from_next(x: UOp, axis: int) -> UOp:
    """At each place what lies one further on; 0 at the end."""
    sizes = require_shape(x)
    rest = move.shrink(x, [(1 if a == axis else 0, n) for a, n in enumerate(sizes)])
    return move.reshape(move.pad(rest, [(0, 1 if a == axis else 0) for a in range(len(sizes))]), sizes)


def _from_before(x: UOp, axis: int, first: float) -> UOp:
    """At each place what lies one further back; `first` at the beginning."""
    sizes = require_shape(x)
    rest = move.shrink(x, [(0, subtract_sizes(n, 1) if a == axis else n) for a, n in enumerate(sizes)])
    moved = move.reshape(move.pad(rest, [(1 if a == axis else 0, 0) for a in range(len(sizes))]), sizes)
    begins = alu(Ops.CMPEQ, expand_to(iota(sizes, axis, int64), sizes), const(int64, 0))
    return alu(Ops.WHERE, begins, const(x.dtype, first), moved)
