"""Tiles of a buffer as boxes: what TMA copies by a few coordinates.

The place of a tile's element is a sum with a coefficient for every loop. The loop along the tile's row has
coefficient 1, the loop over its rows some stride; every other term belongs to one of the dimensions, by its
coefficient. Conditions on the read are the ends of dimensions: what lies outside is zero, as the engine
fills it. A condition on a part of a dimension's terms (rows of one matrix out of many) splits it in two.

A row that is longer than what is copied at once is cut into panels, and each of them may lie somewhere else:
columns that are heads of some width are one row of a tile, though not of memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from morok.dtype import PtrDType
from morok.errors import CompileError
from morok.ir.bounds import bounds
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import Box
from morok.rewrite.engine import substitute
from morok.symbolic.quotients import Terms, join_sum, split_sum
from morok.symbolic.sets import simplify
from morok.symbolic.validity import conjuncts

ALIGNED = 16  # bytes that strides of TMA are multiples of
MOST_DIMENSIONS = 5
LONGEST_PART = 256  # elements of a box along a dimension
LARGEST = 1 << 32  # size of a dimension, and 2**40 bytes of a stride
ROW = 128  # bytes of a box's row, which the chunks of a shared tile are exchanged in


@final
@dataclass
class Dimension:
    stride: int
    terms: dict[UOp, int]
    constant: int
    size: int | None = None  # where a condition says it
    is_gated: bool = False  # what lies before the first is zero

    def extent(self) -> tuple[int, int] | None:
        """Smallest and largest value; None where they are not finite."""
        low = high = float(self.constant)
        for term, k in self.terms.items():
            a, b = bounds(term)
            low, high = low + min(k * a, k * b), high + max(k * a, k * b)
        return (int(low), int(high)) if math.isfinite(low) and math.isfinite(high) else None


def sum_of(x: UOp) -> tuple[dict[UOp, int], int]:
    terms, constant = split_sum(simplify(x))
    found: dict[UOp, int] = {}
    for term, k in terms:
        found[term] = found.get(term, 0) + k
    return {t: k for t, k in found.items() if k}, constant


def _coarser(terms: dict[UOp, int], rest: int) -> tuple[dict[UOp, int], int]:
    """The same condition Σ + rest < 0 in larger steps, where the small ones cannot decide it.

    64·h + e < 64·43 for e in 0 … 63   →   h < 43
    """
    ordered = sorted(terms.items(), key=lambda p: abs(p[1]))
    below = 0.0
    for n, (term, k) in enumerate(ordered[:-1]):
        low, high = bounds(term)
        below += k * high
        step = math.gcd(*(k for _, k in ordered[n + 1 :]))
        if low or k < 0:
            break
        if below < step and rest % step == 0:
            return {t: k // step for t, k in ordered[n + 1 :]}, rest // step
    return terms, rest


def condition(c: UOp, dimensions: list[Dimension]) -> bool:
    """Takes a condition as an end of a dimension; False where it is none."""
    if c.op is not Ops.CMPLT or not c.src[0].dtype.is_index:
        return False
    terms, rest = sum_of(alu(Ops.SUB, *c.src))  # Σ + rest < 0
    return _end(terms, rest, dimensions) or _end(*_coarser(terms, rest), dimensions)


def _end(terms: dict[UOp, int], rest: int, dimensions: list[Dimension]) -> bool:
    """Takes Σ + rest < 0 as an end of a dimension, or of one that is split off."""
    negative = {t: -k for t, k in terms.items()}
    for number, d in enumerate(dimensions):
        if terms == d.terms:
            end = d.constant - rest
            d.size = end if d.size is None else min(d.size, end)
            return True
        if negative == d.terms:
            return rest + d.constant == -1  # x > -1: the engine takes what lies before for zeros, too
        if terms and terms.items() < d.terms.items():
            other = {t: k for t, k in d.terms.items() if t not in terms}
            step = math.gcd(*other.values())
            outer = Dimension(d.stride * step, {t: k // step for t, k in other.items()}, 0)
            dimensions[number] = Dimension(d.stride, terms, d.constant, d.constant - rest)
            dimensions.append(outer)
            return True
        step = _times(terms, d.terms)
        if step > 1 and d.size is None:  # a part that moves in larger steps: heads among rows
            other = {t: k for t, k in d.terms.items() if t not in terms}
            dimensions[number] = Dimension(d.stride, other, d.constant)
            dimensions.append(Dimension(d.stride * step, terms, 0, -rest))
            return True
    return False


def _times(terms: dict[UOp, int], all_terms: dict[UOp, int]) -> int:
    """How many times as large the coefficients of some terms are among others; 0 if that differs."""
    found = {all_terms.get(t, 0) / k for t, k in terms.items()}
    step = found.pop() if len(found) == 1 else 0.0
    return int(step) if step == int(step) and len(terms) < len(all_terms) else 0


def dimensions_of(read: UOp, dims: tuple[UOp, ...]) -> list[Dimension] | None:
    """The dimensions of a tile's read, the row's first; None where it is no box."""
    if read.op is not Ops.INDEX or read.src[0].op is not Ops.DEFINE_GLOBAL or len(dims) != 2:
        return None
    rows, row = dims
    terms, constant = sum_of(read.src[1])
    stride = terms.get(rows, 0)
    if terms.get(row) != 1 or stride < 1:
        return None
    if any(t not in dims and not ranges(t).isdisjoint(dims) for t in terms):
        return None
    inner, outer = {row: 1}, {rows: 1}
    for t, k in terms.items():
        if t not in dims:
            (outer if k % stride == 0 else inner)[t] = k // stride if k % stride == 0 else k
    up, along = divmod(constant, stride)
    found = [Dimension(1, inner, along), Dimension(stride, outer, up)]
    gates = [c for g in read.src[2:] for c in conjuncts(simplify(g))]
    # conditions on a whole dimension first: a part is split off only where it has to be
    gates.sort(key=lambda c: len(ranges(c)), reverse=True)
    if not all(condition(c, found) for c in gates):
        return None
    # by stride: conditions come in another order at every stage, and box and coordinates are made at two
    found[2:] = sorted(found[2:], key=lambda d: (d.stride, d.size or 0))
    return found


def in_panels(read: UOp, dims: tuple[UOp, ...]) -> tuple[UOp, tuple[UOp, ...], UOp | None]:
    """A tile's read by panel and place in it, the dimensions of a panel, and its number if it has one."""
    if len(dims) != 2 or read.op is not Ops.INDEX or dims[1].src[0].op is not Ops.CONST:
        return read, dims, None
    rows, row = dims
    part, whole = ROW // read.dtype.itemsize, int(row.src[0].arg)
    if whole <= part or whole % part:
        return read, dims, None
    number, inner = (
        make(Ops.RANGE, row.dtype, (const(row.dtype, n),), (_PANELS + i, AxisKind.LOOP))
        for i, n in enumerate((whole // part, part))
    )
    column = alu(Ops.ADD, alu(Ops.MUL, number, const(row.dtype, part)), inner)
    return substitute(read, {row: column}), (rows, inner), number


_PANELS = 1 << 20  # numbers of loops that no kernel has


def box_of(read: UOp, dims: tuple[UOp, ...]) -> Box | None:
    """The box for a tile with these rows and this row; None where TMA cannot copy it."""
    rows, row = (int(d.src[0].arg) if d.src[0].op is Ops.CONST else 0 for d in dims)
    read, dims, _ = in_panels(read, dims)
    found = dimensions_of(read, dims)
    if found is None or len(found) > MOST_DIMENSIONS:
        return None
    itemsize = read.dtype.itemsize
    pointer = read.src[0].dtype
    assert isinstance(pointer, PtrDType)
    sizes = []
    for d in found:
        extent = d.extent()
        if extent is None or (extent[0] < 0 and d.size is None):
            return None
        sizes.append(extent[1] + 1 if d.size is None else min(d.size, extent[1] + 1))
    if any(d.stride * itemsize % ALIGNED for d in found[1:]) or not all(0 < s < LARGEST for s in sizes):
        return None
    if 1 + sum((s - 1) * d.stride for s, d in zip(sizes, found, strict=True)) > pointer.size:
        return None
    part = ROW // itemsize
    if rows < 1 or rows > LONGEST_PART or row % part:
        return None
    return Box(tuple(sizes), tuple(d.stride for d in found), (part, rows, *(1 for _ in found[2:])))


def _by_strides(read: UOp, box: Box) -> list[Dimension] | None:
    """The dimensions of a box, where a condition that told them apart has turned out to hold always.

    64·k + j < 130 and 12480·b: two dimensions; as k goes no further than 1, b·130 + 64·k + j is one. Each
    term goes to the widest stride that it is a multiple of; None where any would leave its dimension.
    """
    terms, constant = sum_of(read.src[1])
    found = [Dimension(stride, {}, 0, size) for stride, size in zip(box.strides, box.sizes, strict=True)]
    for d in sorted(found, key=lambda d: -d.stride):
        d.terms = {t: k // d.stride for t, k in terms.items() if k % d.stride == 0}
        terms = {t: k for t, k in terms.items() if k % d.stride}
        d.constant, constant = divmod(constant, d.stride)
    for d in found[1:]:  # what lies behind a row is zeros: only whole rows are told apart
        extent = d.extent()
        if extent is None or extent[0] < 0 or d.size is None or extent[1] >= d.size:
            return None
    return found


def coordinates(read: UOp, dims: tuple[UOp, ...], panels: int, box: Box) -> list[list[UOp]]:
    """Where the boxes of a tile's panels begin, each in the order of the box's dimensions."""
    read, dims, number = in_panels(read, dims)
    found = dimensions_of(read, dims)
    if found is None or tuple(d.stride for d in found) != box.strides:
        found = _by_strides(read, box)
    if found is None:
        raise CompileError(f"a copy of boxes with strides {box.strides} reads memory in another order")
    out = []
    for d in found:
        terms: Terms = [(t, k) for t, k in d.terms.items() if t not in dims]
        out.append(join_sum(terms, d.constant, read.src[1]))
    if number is None:
        return [out]
    each = [{number: const(number.dtype, i)} for i in range(panels)]
    return [[simplify(substitute(c, panel)) for c in out] for panel in each]
