"""The action ACCUMULATE_IN_CACHE: accumulators of a strip of columns stay in the cache, and rows are read as
they lie.

Summed column by column, a few columns at a time, every row is visited again and again, each time somewhere
else in memory. With one sum per column kept in the cache the rows are read once, from front to end.
"""

from __future__ import annotations

from morok.ir.build import bufferize
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions import scans
from morok.optimize.loops import LANE_KINDS, Loops, loop, size
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute

STREAMED = "rows"  # where the argument of other buffers says "local": stage 10 fills it row by row


def cached_sum(loops: Loops, k: UOp, c: UOp) -> UOp | None:
    """The reduction over k that has a result for every step of c, if there is just this one."""
    closers = loops.closers[k]
    if len(closers) != 1 or closers[0].op is not Ops.REDUCE or len(closers[0].arg) != 1:
        return None
    node = closers[0]
    others = [r for r in closed_ranges(node) if r is not k]
    plain = all(r.arg[1] is AxisKind.UNROLL for r in others)
    outside = all(r.arg[1] not in LANE_KINDS and loops.closed_by(r) is Ops.END for r in ranges(node))
    return node if plain and outside and c in ranges(node) else None


def can_accumulate_in_cache(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if machine.block_threads:
        return "the sums would be shared by the threads of a block"
    if scans.runs_along(loops, loops.by_number.get(opt.axis)):
        return scans.can_carry_in_cache(loops, opt) or _room(loops, opt, machine)
    for number, kind in ((opt.axis, AxisKind.REDUCE), (opt.amount, AxisKind.LOOP)):
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] is not kind:
            return f"loop {number} is {r.arg[1].value}, not {kind.value}"
    k, c = loops.by_number[opt.axis], loops.by_number[opt.amount]
    node = cached_sum(loops, k, c)
    if node is None:
        return f"loop {opt.axis} is not of one reduction per step of loop {opt.amount}"
    if loops.bounds_another(c) or loops.bounds_another(k) or ranges(c.src[0]):
        return "the end of a loop depends on one of them"
    return _room(loops, opt, machine)


def _room(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    count = size(loops.by_number[opt.amount])
    if count is None or count * 8 > machine.local_bytes:
        return "the sums would not fit the memory for copies"
    return None


def accumulate_in_cache(loops: Loops, opt: Opt) -> UOp:
    """A reduction for every step of a loop is carried row by row, with all its sums in a buffer.

    ACCUMULATE_IN_CACHE(1, 0):   y[r0] = Σ over r1 of x[r1, r0]
        →   for r1: for r2: b[r2] += x[r1, r2];  y[r0] = b[r0]
    """
    if scans.runs_along(loops, loops.by_number[opt.axis]):
        return scans.carry_in_cache(loops, opt)
    k, c = loops.by_number[opt.axis], loops.by_number[opt.amount]
    node = cached_sum(loops, k, c)
    assert node is not None
    number = loops.next_number()
    column = loop(c.src[0], number, AxisKind.LOOP, c)
    sums = bufferize(substitute(node, {c: column}), column, arg=(STREAMED, f"sums{number}"))
    return substitute(loops.ast, {node: make(Ops.INDEX, node.dtype, (sums, c), None, node.origin)})
