"""Windows on a machine with a grid: depthwise convolutions, pooling and whatever slides along its input.

Neighbouring outputs read mostly the same. One thread therefore has several outputs along the way that the
window moves: a row of the window is written out, and what two of these outputs read is one read. Where
channels lie side by side, it has a vector of them besides, and threads beside each other have neighbouring
vectors. Memory is so read in order, and each element comes from the cache a few times rather than once for
every element of the window.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions.halo import Pair
from morok.optimize.actions.splits import MOST_LANES
from morok.optimize.facts import access, output_loops, reads_of, store_of, trips
from morok.optimize.grid import grid_loops
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.threads import SUMS, cut, lanes_for, memory_of, slide_of, threads_for
from morok.optimize.loops import divides, size

THREADS = 128  # of a block
MOST_STEPS = 256  # of a window
SIDE_BY_SIDE = 8  # threads along channels, which read whole cache lines together
BUSY = 256  # threads of a multiprocessor
LONGEST = 16  # outputs of a thread along the way
FIXED = 1  # reads' worth of work for an output, whatever its neighbours are


@final
class Window(NamedTuple):
    """A reduction over a window: which way it slides, and what else it walks through."""

    slide: Pair
    steps: list[UOp]


def windows(builder: Builder) -> bool:
    """Cuts a kernel whose reductions slide along what they read; False, and nothing done, if one does not."""
    found: dict[UOp, Window] = {}
    for effect in builder.ast.src:
        window = _find(builder, effect)
        if window is None:
            return False
        found[effect] = window
    for effect, window in found.items():
        _cut(builder, effect, window)
    return True


def _find(builder: Builder, effect: UOp) -> Window | None:
    """The window of an effect; all its reductions must have the same loops."""
    reductions = [n for n in toposort(effect) if n.op is Ops.REDUCE]
    if not reductions or effect.op is not Ops.END or any(n.op is Ops.BUFFERIZE for n in toposort(effect)):
        return None
    steps = closed_ranges(reductions[0])
    if any(closed_ranges(n) != steps or size(k) is None for n in reductions for k in closed_ranges(n)):
        return None
    if any(k.arg[1] is not AxisKind.REDUCE for k in steps) or math.prod(map(trips, steps)) > MOST_STEPS:
        return None
    free = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP and r in grid_loops(builder.ast)]
    reads = reads_of(*(s for n in reductions for s in n.src[: len(n.arg)]))
    best = slide_of(reads, free, list(steps))
    return None if best is None else Window(best, sorted(steps, key=lambda k: int(k.arg[0])))


def _cut(builder: Builder, effect: UOp, window: Window) -> None:
    machine, slide = builder.machine, window.slide
    store = store_of(effect)
    place = access(store.src[0])
    free = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP and r in grid_loops(builder.ast)]
    beside = next((r for r in free if place.step(r) == 1 and r is not slide.place), None)
    lanes = 1 if beside is None else lanes_for(beside, memory_of(store), machine)
    points = math.prod(map(trips, free))
    while lanes > 1 and points // lanes < machine.cores * BUSY:
        lanes //= 2
    each = _outputs(slide, lanes, points // (machine.cores * BUSY * lanes))
    short = math.prod(map(trips, window.steps)) * lanes * each <= MOST_LANES
    for k in reversed(window.steps):
        if short or k is slide.offset:
            builder.do("UNROLL", int(k.arg[0]))
    if lanes > 1 and beside is not None:
        builder.do("UPCAST", int(beside.arg[0]), lanes)
    if each > 1:
        if not divides(each, slide.place.src[0]):
            builder.do("PADTO", int(slide.place.arg[0]), each)
        builder.do("UPCAST", int(slide.place.arg[0]), each)
    room = THREADS
    ordered = sorted(free, key=lambda r: (place.step(r) != 1, -int(r.arg[0])))
    for r in ordered:
        number = int(r.arg[0])
        now = builder.loops.by_number.get(number)
        if room < 2 or now is None or now.arg[1] is not AxisKind.LOOP:
            continue
        most = min(room, SIDE_BY_SIDE) if r is beside and lanes > 1 else room
        amount = threads_for(now, most, machine)
        if amount > 1 and cut(builder, "LOCAL", number, amount):
            room //= amount


def _outputs(slide: Pair, lanes: int, most: int) -> int:
    """Outputs of a thread along the way of its window: few reads for each, and none computed for nothing."""
    count, taps = trips(slide.place), trips(slide.offset)
    best, chosen = 0.0, 1
    most = min(most, count, LONGEST, SUMS // lanes, MOST_LANES // (lanes * taps))
    for each in range(1, max(1, most) + 1):
        reads = (each - 1) * slide.step + taps
        filled = count / (-(-count // each) * each)
        known = 1.1 if each == count else 1.0  # what is outside, so that nothing needs a guard
        score = each / (reads + each * FIXED) * filled * known
        if score > best * 1.02:
            best, chosen = score, each
    return chosen
