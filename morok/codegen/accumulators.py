"""Accumulators of reductions: where they start, how a value is added, how lanes are combined at the end."""

from __future__ import annotations

from typing import Any

from morok.codegen.fragments import pick_tiles
from morok.codegen.target import Target
from morok.codegen.vectors import swizzle
from morok.dtype import DType
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops


def identity(op: Op, dtype: DType) -> UOp:
    """The value that changes nothing when combined with another."""
    scalar = dtype.scalar
    if op in (Ops.ADD, Ops.OR, Ops.XOR):
        value: Any = False if scalar.is_bool else 0
    elif op is Ops.MUL:
        value = True if scalar.is_bool else 1
    elif op is Ops.AND:
        value = True if scalar.is_bool else scalar.max if scalar.is_unsigned else -1
    else:
        value = scalar.min if op is Ops.MAX else scalar.max
    return const(dtype, value)


def accumulate(op: Op, total: UOp, value: UOp, fused: bool) -> UOp:
    """total ∘ value; a product is added with one rounding, and a matrix product adds to it by itself."""
    if op is Ops.ADD and value.op is Ops.WMMA:
        a, b, c = value.src
        zero = c.op is Ops.CONST and str(c.arg) in ("0", "0.0")
        return value.replace((a, b, total if zero else alu(Ops.ADD, c, total)))
    if fused and op is Ops.ADD and value.op is Ops.MUL and value.dtype.is_float:
        return alu(Ops.MULACC, *value.src, total)
    return alu(op, total, value)


def pick_lanes(x: UOp, lanes: list[int]) -> UOp:
    """Lanes of a value; of a product, the product of lanes, which can still be added with one rounding."""
    tiles = pick_tiles(x, lanes)
    if tiles is not None:
        return tiles
    if x.op is Ops.MUL:
        return alu(Ops.MUL, *(swizzle(s, lanes) for s in x.src))
    return swizzle(x, lanes)


def fold_lanes(op: Op, x: UOp, outputs: int) -> UOp:
    """Lanes (output, part) with the parts combined: halves first, as a tree, then what is left in order."""
    parts = x.dtype.lanes // outputs
    if outputs == 1 and parts & (parts - 1) == 0:
        return make(Ops.VREDUCE, x.dtype.scalar, (x,), op) if parts > 1 else x
    while parts > 1 and parts % 2 == 0:
        half = parts // 2
        low = [o * parts + p for o in range(outputs) for p in range(half)]
        x = alu(op, swizzle(x, low), swizzle(x, [i + half for i in low]))
        parts = half
    total = swizzle(x, [o * parts for o in range(outputs)])
    for p in range(1, parts):
        total = alu(op, total, swizzle(x, [o * parts + p for o in range(outputs)]))
    return total


class Accumulators:
    """What stage 11 has to remember: the device, and how many accumulators there are."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1
