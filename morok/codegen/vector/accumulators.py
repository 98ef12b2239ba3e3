"""Accumulators of reductions: where they start, how a value is added, how lanes are combined at the end."""

from __future__ import annotations

from typing import Any, NamedTuple

from morok.codegen.vector.fragments import pick_tiles
from morok.codegen.vector.vectors import swizzle, vector_constant
from morok.dtype import DType, index, void
from morok.ir.build import after, define_reg
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine


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
    if fused and op is Ops.ADD and _sums_products(value):
        for term in value.src:
            total = accumulate(op, total, term, fused)
        return total
    return alu(op, total, value)


def _sums_products(value: UOp) -> bool:
    """Whether a value is a sum of products of floats and of nothing else."""
    if value.op is not Ops.ADD or not value.dtype.is_float:
        return False
    return all(term.op is Ops.MUL or _sums_products(term) for term in value.src)


def pick_lanes(x: UOp, lanes: list[int]) -> UOp:
    """Lanes of a value; of a product, the product of lanes: one instruction multiplies and adds these."""
    tiles = pick_tiles(x, lanes)
    if tiles is not None:
        return tiles
    if x.op in (Ops.MUL, Ops.DOT4, Ops.DOT2):
        return alu(x.op, *(swizzle(s, lanes) for s in x.src))
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


def fold_parts(op: Op, x: UOp, outputs: int) -> UOp:
    """The same sums as `fold_lanes`, of one vector of outputs for each part: where these lie side by side."""
    count = x.dtype.lanes // outputs
    parts = [pick_lanes(x, [o * count + p for o in range(outputs)]) for p in range(count)]
    while len(parts) > 1 and len(parts) % 2 == 0:
        half = len(parts) // 2
        parts = [alu(op, low, high) for low, high in zip(parts[:half], parts[half:], strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = alu(op, total, part)
    return total


def rescale(online: UOp, old: UOp, new: UOp) -> UOp:
    """The factor by which an online accumulator is rescaled as its maximum rises."""
    op, factor, arg = online.arg
    less = alu(Ops.SUB, old, new)
    if factor != 1.0:
        less = alu(Ops.MUL, less, const(less.dtype, factor))
    return make(op, less.dtype, (less,), arg)


class Register(NamedTuple):
    """An accumulator: its memory where it lives, its places, and how it starts."""

    here: UOp
    lanes: UOp
    dtype: DType
    start: UOp

    def _base(self, loops: tuple[UOp, ...]) -> UOp:
        return after(self.here, self.start, *loops)

    def inside(self, loops: tuple[UOp, ...]) -> UOp:
        """What it holds in a step of its loops."""
        return make(Ops.INDEX, self.dtype, (self._base(loops), self.lanes))

    def write(self, loops: tuple[UOp, ...], value: UOp) -> UOp:
        """What it holds from this step on."""
        place = make(Ops.INDEX, self.start.src[0].dtype, (self._base(loops), self.lanes))
        return make(Ops.STORE, void, (place, value))

    def after(self, end: UOp) -> UOp:
        """What it holds in the end."""
        return make(Ops.INDEX, self.dtype, (after(self.here, end), self.lanes))


class Accumulators:
    """What stage 11 has to remember: the device, and how many accumulators there are."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.count = 0

    def register(self, dtype: DType, op: Op, around: frozenset[UOp]) -> Register:
        """A new one, which begins anew in every step of the loops around it."""
        width = dtype.lanes
        memory = define_reg(dtype.scalar, width, self.count)
        self.count += 1
        here = after(memory, *sorted(around, key=lambda r: r.arg))
        lanes = vector_constant(index, range(width)) if width > 1 else const(index, 0)
        pointer = memory.dtype.vec(width) if width > 1 else memory.dtype
        first = make(Ops.INDEX, pointer, (here, lanes))
        return Register(here, lanes, dtype, make(Ops.STORE, void, (first, identity(op, dtype))))
