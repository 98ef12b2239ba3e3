"""Conversions of vectors between types of very different sizes, one half or double at a time.

A register of bytes is four of 32-bit numbers. Taken apart into four quarters first, each quarter is moved to
where it can be widened; by halves, the instructions that widen take the lower or the upper half as they are.
The other way round, those that narrow put two registers into one.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.decompose.narrow import to_single
from morok.dtype import DType, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from morok.ir.build import cast
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.machine.machine import Machine

_SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}
_UNSIGNED = {8: uint8, 16: uint16, 32: uint32, 64: uint64}


def cast_in_steps(node: UOp, ctx: Any) -> UOp | None:
    """CAST(bytes to words) → CAST(CAST(bytes to halves), halves to words), where neither fits a register."""
    machine: Machine = ctx.machine
    x = node.src[0]
    s, t, count = x.dtype.scalar, node.dtype.scalar, node.dtype.lanes
    if count == 1 or machine.scalar_alu or any(d.is_bool or d.is_index for d in (s, t)):
        return None
    if count <= machine.lanes(s if s.bits > t.bits else t):
        return None
    if s.is_int and t.bits > 2 * s.bits and (t.is_int or t.bits >= 32):
        return cast(cast(x, _integer(2 * s.bits, s.is_unsigned).vec(count)), node.dtype)
    if s.is_int and t.is_int and s.bits > 2 * t.bits:
        return cast(cast(x, _integer(s.bits // 2, t.is_unsigned).vec(count)), node.dtype)
    long = s is float64 or (s.is_int and s.bits > 16)
    if long and t.is_float and t.bits < 32 and t not in machine.floats:
        return cast(to_single(x, t), node.dtype)  # which is rounded in whole registers
    if s.is_float and t.is_int and s.bits >= 32 and s.bits > t.bits:
        return _saturated(x, t, machine)
    return None


def _integer(bits: int, unsigned: bool) -> DType:
    return (_UNSIGNED if unsigned else _SIGNED)[bits]


def _saturated(x: UOp, target: DType, machine: Machine) -> UOp | None:
    """A float as an integer that has fewer bits: by way of one that has as many, cut to what fits."""
    lanes = x.dtype.lanes
    bits = 32 if x.dtype.scalar is float64 and not machine.wide_conversions else x.dtype.scalar.bits
    if target.bits >= bits:
        return None
    y = cast(x, _integer(bits, False).vec(lanes))
    while bits > target.bits:
        bits //= 2
        smaller = _integer(bits, target.is_unsigned)
        if not y.dtype.scalar.is_unsigned:
            y = alu(Ops.MAX, y, const(y.dtype, smaller.min))
        y = cast(alu(Ops.MIN, y, const(y.dtype, smaller.max)), smaller.vec(lanes))
    return y


__all__ = ["cast_in_steps"]
