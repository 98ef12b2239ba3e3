"""Sums over segments: each output adds up some rows that follow one another, from where to where is read.

The loop goes over these rows only. Neighbouring threads have neighbouring columns, a vector each, so rows are
read in whole lines; a block has one row of outputs or several.
"""

from __future__ import annotations

from morok.ir.infer import ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.facts import access, output_loops, store_of
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.threads import give_threads, lanes_for

THREADS = 256  # of a block


def segments(builder: Builder) -> bool:
    """Threads for sums over segments; False where the kernel has none."""
    found = False
    for k in [r for r in builder.loops.closers if r.arg[1] is AxisKind.REDUCE]:
        if _is_segment(builder, k):
            found = builder.do("SKIP", int(k.arg[0]), 1) or found
    if not found:
        return False
    for effect in builder.ast.src:
        _spread(builder, effect)
    return True


def _is_segment(builder: Builder, k: UOp) -> bool:
    """Whether rows along a loop begin where data say, and end there."""
    over = [n for n in builder.loops.order if k in ranges(n)]
    compared = [s for n in over if n.op is Ops.CMPLT for s in n.src]
    return any(_is_read(s, k) for s in compared) and any(
        _is_read(n.src[1], k) for n in over if n.op is Ops.INDEX
    )


def _is_read(x: UOp, k: UOp) -> bool:
    """Whether something is made of what is read for all steps of a loop."""
    return any(n.op is Ops.INDEX and k not in ranges(n) for n in toposort(x))


def _spread(builder: Builder, effect: UOp) -> None:
    free = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP]
    if not free:
        return
    place = access(store_of(effect).src[0])
    ordered = sorted(free, key=lambda r: (place.step(r) != 1, -int(r.arg[0])))
    first, room = ordered[0], min(THREADS, builder.machine.block_threads)
    if place.step(first) == 1 and not builder.loops.bounds_another(first):
        lanes = lanes_for(first, [place], builder.machine)
        if lanes > 1:
            builder.do("UPCAST", int(first.arg[0]), lanes)
    give_threads(builder, ordered, room)
