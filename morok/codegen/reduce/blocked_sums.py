"""Blocked summation, part of stage 11: long sums of floats in stretches.

    REDUCE(add, x(k), k)  →  REDUCE(add, REDUCE(add, x(o·n + i), i), o)

An accumulator that has grown loses the low digits of what is added to it, so the error of a sum grows with
the number of additions into one place. In stretches both the stretch and the sum of stretches are short. The
inner loop does not change; the outer accumulators are touched once per stretch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.codegen.reduce.wgmma import unit_of
from morok.codegen.scopes import next_number
from morok.dtype import index
from morok.ir.bounds import vmax
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import substitute
from morok.rewrite.loops import substitute_open
from morok.rewrite.observe import change
from morok.symbolic.sets import simplify

# Additions into one place that make a stretch: few where few accumulators are carried over its end, which
# costs next to nothing; more for the tiles of products, which fill the registers. Very long sums have as many
# stretches as each has additions. Up to twice as many additions are left as they are.
FEW, MANY = 32, 256
HELD = 4  # vector registers of accumulators that count as few
SCALARS = 16  # accumulators that a thread may have twice, where threads have registers of their own


class _Parts(NamedTuple):
    """The loops over stretches, those inside of one, and what a loop that was cut stands for."""

    outer: tuple[UOp, ...]
    inner: tuple[UOp, ...]
    cut: dict[UOp, UOp]


@change
def blocked_summation(root: UOp, machine: Machine) -> UOp:
    """The loops of long sums of floats become two, the inner one for a stretch."""
    first = next_number(root)
    while True:
        for loops, sums in _by_loops(root).items():
            if any(r.arg[0] >= first for r in loops if r.op is Ops.RANGE):
                continue  # made here
            parts = _in_parts(loops, sums, machine, next_number(root))
            if parts is not None:
                # one group at a time: its sums may stand in the values of another's
                root = substitute(root, {n: _nested(n, parts) for n in sums})
                break
        else:
            return root


def _by_loops(root: UOp) -> dict[tuple[UOp, ...], list[UOp]]:
    """Reductions that share their loops."""
    found: dict[tuple[UOp, ...], list[UOp]] = {}
    for node in toposort(root):
        if node.op is Ops.REDUCE and node.src[1:]:
            found.setdefault(node.src[1:], []).append(node)
    return found


def _length(loops: tuple[UOp, ...]) -> int:
    total = 1
    for loop in loops:
        total *= int(vmax(loop)) + 1
    return total


def _steps(node: UOp, machine: Machine) -> int:
    """How often a step of the loops adds into one place; 0 where digits do not get lost, or units add."""
    value, outputs = node.src[0], node.dtype.lanes
    if node.arg != (Ops.ADD,) or not node.dtype.is_float or unit_of(value) is not None:
        return 0
    if any(r.op is not Ops.RANGE or r.arg[1] is AxisKind.WARP for r in node.src[1:]):
        return 0
    if machine.has_grid and (outputs > SCALARS or _is_stored(value, node.src[1:])):
        return 0
    return value.dtype.lanes // outputs if outputs >= machine.lanes(node.dtype) else 1


def _is_stored(value: UOp, loops: tuple[UOp, ...]) -> bool:
    """Whether memory is filled inside of the loops: by these very loops, which must stay what they are."""
    inside = frozenset(loops)
    return any(n.op is Ops.AFTER and not inside.isdisjoint(ranges(n)) for n in toposort(value))


def _in_parts(loops: tuple[UOp, ...], sums: list[UOp], machine: Machine, number: int) -> _Parts | None:
    """The inner loops as far as they make a stretch; one that is too long is cut. None if nothing is long."""
    steps = max(_steps(node, machine) for node in sums)
    held = sum(node.dtype.lanes for node in sums) / machine.lanes(sums[0].dtype)
    length = steps * _length(loops)
    size = FEW if held <= HELD else MANY
    if length <= 2 * size:
        return None
    size = max(size, math.isqrt(length // 2))
    order = sorted(loops, key=lambda r: r.arg)
    inner: list[UOp] = []
    count = steps
    while order and count * _length((order[-1],)) <= size:
        inner.insert(0, order.pop())
        count *= _length((inner[0],))
    if 4 * count >= size or not order:
        return _Parts(tuple(order), tuple(inner), {}) if order and inner else None
    loop = order[-1]
    if any(_is_stored(n.src[0], (loop,)) for n in sums):
        return None
    outer, rest, both = _cut(loop, max(1, size // count), number)
    return _Parts((*order[:-1], outer), (rest, *inner), {loop: both})


def _cut(loop: UOp, most: int, number: int) -> tuple[UOp, UOp, UOp]:
    """Two loops for one, and the place in it that they stand for. The last stretch may be shorter."""
    stop = loop.src[0]
    known = stop.arg if stop.op is Ops.CONST else None
    even = [n for n in range(most, most // 4, -1) if known is not None and known % n == 0]
    size = const(index, even[0] if even else most)
    pieces = alu(Ops.FLOORDIV, alu(Ops.ADD, stop, alu(Ops.SUB, size, const(index, 1))), size)
    outer = make(Ops.RANGE, loop.dtype, (simplify(pieces),), (number, *loop.arg[1:]))
    before = alu(Ops.MUL, outer, size)
    left = size if even else alu(Ops.MIN, alu(Ops.SUB, stop, before), size)
    inner = make(Ops.RANGE, loop.dtype, (left,), (number + 1, *loop.arg[1:]))
    return outer, inner, alu(Ops.ADD, before, inner)


def _nested(node: UOp, parts: _Parts) -> UOp:
    """A reduction of reductions."""
    value = substitute_open(node.src[0], parts.cut) if parts.cut else node.src[0]
    inner = make(Ops.REDUCE, node.dtype, (value, *parts.inner), node.arg)
    return make(Ops.REDUCE, node.dtype, (inner, *parts.outer), node.arg)
