"""Which part of a thread's number a parallel range is.

Ranges that are never alive together may use the same threads: the parts of a shared reduction, the loop that
fills a tile, the outputs that are computed from it. Each range is a digit of the flat index t, with a stride
and a size: its value is t // stride % size. Ranges that are alive together have digits that do not overlap.

    sum of 256 in a block, then 256 outputs:   warp lane: stride 1 size 32, part: stride 32 size 8
                                               output: stride 1 size 256, on top of both

A store is made by one of the threads that have computed it: those digits that its place does not use are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from morok.ir.bounds import vmax
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const
from morok.ir.ops import AxisKind, Ops
from morok.rewrite.engine import rewrite
from morok.symbolic.sets import symbolic


def rivals(nodes: Iterable[UOp], kinds: Sequence[AxisKind]) -> dict[UOp, set[UOp]]:
    """For every range of these kinds, those that are alive with it somewhere."""
    found: dict[UOp, set[UOp]] = {}
    meetings: set[frozenset[UOp]] = set()
    for node in nodes:
        alive = ranges(node)
        closed = frozenset(r for r in closed_ranges(node) if r.op is Ops.RANGE)
        meetings.add(alive | closed if closed else alive)
    for alive in meetings:
        mine = {r for r in alive if r.arg[1] in kinds}
        for r in mine:
            found.setdefault(r, set()).update(mine - {r})
    return found


@final
@dataclass(frozen=True)
class Digit:
    """A part of the flat index."""

    stride: int
    size: int

    @property
    def top(self) -> int:
        return self.stride * self.size


def apart(a: Digit, b: Digit) -> bool:
    """Whether every pair of values occurs."""
    return b.stride % a.top == 0 or a.stride % b.top == 0


def assign(found: Sequence[UOp], enemies: Mapping[UOp, set[UOp]]) -> dict[UOp, Digit]:
    """A digit for each range, the first ones at the smallest strides. All sizes are constant."""
    placed: dict[UOp, Digit] = {}
    for r in found:
        size = int(vmax(r)) + 1
        others = [placed[o] for o in enemies.get(r, ()) if o in placed]
        for stride in sorted({1, *(d.top for d in placed.values())}):
            digit = Digit(stride, size)
            if all(apart(digit, other) for other in others):
                placed[r] = digit
                break
        else:  # above everything, at a stride that all of them divide
            stride = 1
            for other in sorted(others, key=lambda d: d.top):
                stride = other.top if other.top % stride == 0 else stride * other.top
            placed[r] = Digit(stride, size)
    return placed


def threads(digits: Mapping[UOp, Digit]) -> int:
    """How many values the flat index needs."""
    return max((d.top for d in digits.values()), default=1)


def value(flat: UOp, digit: Digit, total: int) -> UOp:
    """The digit as an expression."""
    found = flat
    if digit.stride > 1:
        found = alu(Ops.FLOORDIV, found, const(flat.dtype, digit.stride))
    if digit.top < total:
        found = alu(Ops.FLOORMOD, found, const(flat.dtype, digit.size))
    return rewrite(found, symbolic)


def first_only(flat: UOp, used: Iterable[Digit], total: int) -> list[UOp]:
    """Conditions that leave one thread for every combination of these digits."""
    gaps: list[Digit] = []
    below = 1
    for digit in sorted(set(used), key=lambda d: d.stride):
        if digit.stride > below:
            gaps.append(Digit(below, digit.stride // below))
        below = max(below, digit.top)
    if total > below:
        gaps.append(Digit(below, -(-total // below)))
    return [alu(Ops.CMPEQ, value(flat, gap, total), const(flat.dtype, 0)) for gap in gaps]
