"""Actions that cut a loop in two or change its kind or place: TILE, UPCAST, UNROLL, LOCAL, GROUP, GROUPTOP,
THREAD, SWAP.

A cut loop keeps its number for the part that stays a loop; the other part gets a new number, inside of all
loops there are. Lanes are ordered by number, the last one fastest, so what is upcast last lies side by side.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import shared_layout, shared_tiles
from morok.ir.node import UOp, alu, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.optimize.actions import scans
from morok.optimize.actions.stage_result import is_result
from morok.optimize.loops import LANE_KINDS, LOOP_KINDS, Loops, divides, loop, quotient, size, times
from morok.optimize.record import Opt
from morok.schedule.kernel.ranges import replace_loops

MOST_LANES = 1024  # of one vector before it is cut to registers; more only makes code long


# --- conditions


def cuttable(loops: Loops, opt: Opt) -> str | None:
    """Why a loop cannot be cut into parts of `opt.amount`; None if it can."""
    r = loops.by_number.get(opt.axis)
    if r is None:
        return f"there is no loop {opt.axis}"
    if r.arg[1] not in LOOP_KINDS:
        return f"loop {opt.axis} is {r.arg[1].value} already"
    if loops.closed_by(r) is None:
        return f"loop {opt.axis} is closed by different ops"
    if loops.bounds_another(r):
        return f"the end of another loop depends on loop {opt.axis}"
    if opt.amount and not divides(opt.amount, r.src[0]):
        return f"{opt.amount} does not divide the {size(r) or 'unknown'} iterations of loop {opt.axis}"
    return None


def _closed_by(loops: Loops, opt: Opt, *ops: Op) -> str | None:
    found = loops.closed_by(loops.by_number[opt.axis])
    if found in ops:
        return None
    return f"loop {opt.axis} is closed by {found.name if found else 'different ops'}"


def _lanes(loops: Loops, opt: Opt) -> str | None:
    r = loops.by_number[opt.axis]
    amount = opt.amount or size(r)
    if amount is None:
        return f"the size of loop {opt.axis} is not known, so it needs an amount"
    if amount < 2:
        return f"{amount} lanes are no vector"
    if loops.lanes_with(r) * amount > MOST_LANES:
        return f"vectors would grow beyond {MOST_LANES} lanes"
    return None


_THREADS = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)


def _block(loops: Loops, r: UOp, amount: int, machine: Machine) -> str | None:
    """Why `amount` iterations of a loop cannot be threads of a block.

    Loops that are never alive together use the same threads one after the other, so what counts is the
    largest number of threads that are needed at any one place.
    """
    if not machine.block_threads:
        return None
    for alive in {ranges(n) | frozenset(closed_ranges(n)) for n in loops.order}:
        if r not in alive:
            continue
        threads = amount * math.prod(size(other) or 1 for other in alive if _is_thread(loops, other))
        if threads > machine.block_threads:
            return f"a block would have {threads} threads of at most {machine.block_threads}"
    return None


def _is_thread(loops: Loops, r: UOp) -> bool:
    """Whether a loop is one over threads; lanes that a unit's steps go over are those of its columns."""
    return r.arg[1] in _THREADS and not (r.arg[1] is AxisKind.WARP and loops.closed_by(r) is Ops.REDUCE)


def _concurrent(loops: Loops, opt: Opt) -> str | None:
    """Why iterations of a loop cannot be done at the same time, by what the threads of a block share."""
    r = loops.by_number[opt.axis]
    for node in loops.order:
        if node.op is not Ops.BUFFERIZE or len(node.arg) < 3:
            continue
        if r in ranges(node):
            return f"a tile that all threads share depends on loop {opt.axis}"
        if r in node.src[1:] and node.arg[2].depth:
            return f"loop {opt.axis} fills a tile, which is the work of all threads"
    return None


def fills_tile(loops: Loops, r: UOp) -> bool:
    """Whether a loop is a dimension of a tile that all threads fill together."""
    return bool(shared_tiles(loops.closers[r]))


def can_tile(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if opt.amount < 2:
        return "a tile has at least two iterations"
    reason = cuttable(loops, opt)
    if reason is None and fills_tile(loops, loops.by_number[opt.axis]):
        return f"loop {opt.axis} fills a shared tile, whose rows lie as they are"
    if reason is None and size(loops.by_number[opt.axis]) == opt.amount:
        return f"loop {opt.axis} has {opt.amount} iterations, so there would be one tile"
    return reason


def can_upcast(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if scans.runs_along(loops, loops.by_number.get(opt.axis)):
        return scans.can_be_lanes(loops, opt) or _lanes(loops, opt)
    reason = cuttable(loops, opt) or _closed_by(loops, opt, Ops.END, Ops.BUFFERIZE) or _lanes(loops, opt)
    return reason or _concurrent(loops, opt)


def can_unroll(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    reason = cuttable(loops, opt) or _closed_by(loops, opt, Ops.REDUCE) or _lanes(loops, opt)
    return reason or _concurrent(loops, opt)


def _beyond_result(loops: Loops, r: UOp, amount: int) -> str | None:
    """Why so many threads cannot walk a result that the threads of a matrix unit have staged."""
    results = [n for n in loops.order if (how := shared_layout(n)) is not None and how.depth == 0]
    if not results or is_result(loops, r):
        return None
    mine, theirs = (
        math.prod(size(s) or 1 for s in closed_ranges(n) if s.op is Ops.RANGE and s.arg[1] in _THREADS)
        for n in (loops.closers[r][0], results[0])
    )
    if mine * amount > theirs:
        return f"a result of {theirs} threads would be walked by {mine * amount}"
    return None


def can_local(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    reason = cuttable(loops, opt)
    if reason is None and not is_result(loops, loops.by_number[opt.axis]):
        reason = _closed_by(loops, opt, Ops.END)
    reason = reason or _concurrent(loops, opt)
    if reason is not None:
        return reason
    amount = opt.amount or size(loops.by_number[opt.axis])
    if amount is None:
        return f"the size of loop {opt.axis} is not known, so it needs an amount"
    r = loops.by_number[opt.axis]
    return _beyond_result(loops, r, amount) or _block(loops, r, amount, machine)


def can_group(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    reason = cuttable(loops, opt) or _closed_by(loops, opt, Ops.REDUCE) or _concurrent(loops, opt)
    if reason is not None:
        return reason
    r = loops.by_number[opt.axis]
    amount = opt.amount or size(r)
    if amount is None:
        return f"the size of loop {opt.axis} is not known, so it needs an amount"
    tiles = shared_tiles(loops.order)
    for node in loops.closers[r]:
        if any(other.arg[1] is AxisKind.GROUP_REDUCE for other in node.src[len(node.arg) :]):
            return "the reduction is shared already"
        below = set(toposort(node)) if tiles else set()
        if not below.issuperset(tiles):
            return "the threads would fill a tile that the reduction does not read"
    return _block(loops, r, amount, machine)


def can_thread(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if machine.block_threads:
        return "the machine runs a grid, not threads"
    if any(r.arg[1] is AxisKind.THREAD for r in loops.closers):
        return "another loop is shared by threads already"
    reason = cuttable(loops, opt) or _closed_by(loops, opt, Ops.END)
    if reason is not None:
        return reason
    end = loops.by_number[opt.axis].src[0]
    if not opt.amount and end.op not in (Ops.CONST, Ops.DEFINE_VAR):
        return f"loop {opt.axis} has a computed size, which a kernel cannot tell its threads"
    if opt.amount and size(loops.by_number[opt.axis]) == opt.amount:
        return "an amount of all iterations is no cut; leave it out"
    if opt.axes and not opt.amount:
        return "loops that are shared together need an amount of pieces"
    for axis in opt.axes:
        reason = can_thread(loops, Opt(opt.name, axis, opt.amount), machine)
        if reason is not None:
            return reason
    closers = [n for axis in (opt.axis, *opt.axes) for n in loops.closers[loops.by_number[axis]]]
    if len(closers) != len(set(closers)):
        return "loops that are shared together belong to different effects"
    return None


def can_swap(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    for number in (opt.axis, opt.amount):
        if number not in loops.by_number:
            return f"there is no loop {number}"
    if opt.axis == opt.amount:
        return "a loop cannot change places with itself"
    a, b = loops.by_number[opt.axis], loops.by_number[opt.amount]
    if loops.closers[a] != loops.closers[b]:
        return f"loops {opt.axis} and {opt.amount} are not closed together"
    if loops.bounds_another(a) or loops.bounds_another(b):
        return "the end of a loop depends on one of them"
    ordered = [r for r in loops.closers if r.arg[1] is AxisKind.ORDERED]
    if len(ordered) > 1 and (a in ordered or b in ordered):
        return "loops whose steps follow each other keep their order"
    return None


# --- actions


def _cut(loops: Loops, opt: Opt, kind: AxisKind, top: bool = False) -> UOp:
    """r → r·amount + new (or, from the top, new·rest + r), the new loop of this kind; all of r if it fits."""
    r = loops.by_number[opt.axis]
    number = loops.next_number()
    amount = opt.amount or size(r)
    assert amount is not None
    if size(r) == amount:
        new = loop(r.src[0], number, kind, r)
        return replace_loops(loops.ast, {r: (new, (new,))})
    count = quotient(r.src[0], amount)
    old, new = loop(count, opt.axis, r.arg[1], r), loop(amount, number, kind, r)
    if top:
        assert count.op is Ops.CONST
        expression, pair = alu(Ops.ADD, times(new, int(count.arg)), old), (new, old)
    else:
        expression, pair = alu(Ops.ADD, times(old, amount), new), (old, new)
    return replace_loops(loops.ast, {r: (expression, pair)})


def tile(loops: Loops, opt: Opt) -> UOp:
    """A loop becomes a loop over tiles and one inside a tile.

    TILE(0, 8):   for r0 < 64: f(r0)   →   for r0 < 8: for r1 < 8: f(r0*8 + r1)
    """
    return _cut(loops, opt, loops.by_number[opt.axis].arg[1])


def upcast(loops: Loops, opt: Opt) -> UOp:
    """Neighbouring outputs become lanes of a vector, or registers of a tile.

    UPCAST(0, 4):   for r0 < 64: y[r0] = f(r0)   →   for r0 < 16: y[r0*4 + (0,1,2,3)] = f(r0*4 + (0,1,2,3))
    """
    return _cut(loops, opt, AxisKind.UPCAST)


def unroll(loops: Loops, opt: Opt) -> UOp:
    """Neighbouring steps of a reduction become lanes: several accumulators, combined once after the loop.

    UNROLL(1, 4):   for r1 < 64: a += x[r1]   →   for r1 < 16: a(0,1,2,3) += x[r1*4 + (0,1,2,3)]; then a0+a1+…
    """
    return _cut(loops, opt, AxisKind.UNROLL)


def local(loops: Loops, opt: Opt) -> UOp:
    """Neighbouring outputs go to the threads of a block.

    LOCAL(0, 32):   for r0 < 4096: f(r0)   →   for r0 < 128 in the grid: thread r1 < 32: f(r0*32 + r1)
    """
    return _cut(loops, opt, AxisKind.LOCAL)


def group(loops: Loops, opt: Opt) -> UOp:
    """A reduction in two stages: each thread sums every amount-th element, then the parts are summed.

    GROUP(1, 16):   Σ over r1 < 4096   →   Σ over g < 16 of (Σ over r1 < 256 of x[r1*16 + g])
    """
    return _cut(loops, opt, AxisKind.GROUP_REDUCE)


def group_top(loops: Loops, opt: Opt) -> UOp:
    """A reduction in two stages: each thread sums a stretch of its own, then the parts are summed.

    GROUPTOP(1, 16):   Σ over r1 < 4096   →   Σ over g < 16 of (Σ over r1 < 256 of x[g*256 + r1])
    """
    r = loops.by_number[opt.axis]
    return _cut(loops, opt, AxisKind.GROUP_REDUCE, top=size(r) is not None)


def thread(loops: Loops, opt: Opt) -> UOp:
    """The iterations of a loop are shared by the threads of a processor, all or in `amount` pieces.

    THREAD(0):      for r0 < 64: f(r0)   →   shared r0 < 64: f(r0)
    THREAD(0, 8):   for r0 < 64: f(r0)   →   shared r0 < 8: for r1 < 8: f(r0*8 + r1)

    Loops of other effects, `axes`, are shared in the same pieces; all of them keep their numbers, since
    effects inside of them may have more in common.
    """
    r = loops.by_number[opt.axis]
    if not opt.amount:
        shared = loop(r.src[0], opt.axis, AxisKind.THREAD, r)
        return replace_loops(loops.ast, {r: (shared, (shared,))})
    fresh = loops.next_number()
    shared = loop(opt.amount, fresh if opt.axes else opt.axis, AxisKind.THREAD, r)
    mapping: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
    for axis in (opt.axis, *opt.axes):
        r = loops.by_number[axis]
        step = quotient(r.src[0], opt.amount)
        inner = loop(step, axis if opt.axes else fresh, r.arg[1], r)
        mapping[r] = alu(Ops.ADD, alu(Ops.MUL, shared, step), inner), (shared, inner)
    return replace_loops(loops.ast, mapping)


def swap(loops: Loops, opt: Opt) -> UOp:
    """Two loops change places; the one that was further out is now inside, and has the other's number.

    SWAP(0, 1):   for r0 < 8: for r1 < 5: f(r0, r1)   →   for r0 < 5: for r1 < 8: f(r1, r0)
    """
    a, b = loops.by_number[opt.axis], loops.by_number[opt.amount]
    new_a, new_b = loop(a.src[0], opt.amount, a.arg[1], a), loop(b.src[0], opt.axis, b.arg[1], b)
    return replace_loops(loops.ast, {a: (new_a, (new_a,)), b: (new_b, (new_b,))})


__all__ = ["LANE_KINDS", "MOST_LANES", "cuttable"]
