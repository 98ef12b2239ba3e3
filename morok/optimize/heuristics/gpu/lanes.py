"""Short reductions of vectors: a few threads beside each other have a vector each of what is reduced.

The largest of 32 numbers, and words of four bytes made of all 32 with it: a step of the reduction is a vector
(written out as four reads), and outputs walk along the same memory. Written out, each thread would read all
steps, and compute them anew where they are made of something. Here each has its own vector, is told the
result by its neighbours (shuffles), and has the outputs that are made of that vector. Outputs that differ in
what is made of it alone (the bytes of a number, its scale) are all made by the thread that has it.

A row that is reduced before that, for many of the outputs (the norm of all numbers), is shared by all threads
of a block; each block finds it anew, and has outputs for all of its threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, trips
from morok.optimize.grid import AT_ONCE, CHEAP
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.rows import walk as walk_row
from morok.optimize.heuristics.gpu.threads import ceil_power, cut, lanes_for, memory_of
from morok.optimize.loops import size

MOST_SHARERS = 256  # threads that tell one another
MOST_OUTPUTS = 8  # of a thread, made of its vector
BLOCK = 64  # threads, where there are many: small blocks reach all multiprocessors


@final
@dataclass(frozen=True)
class Walk:
    """Loops of a kernel whose steps are vectors."""

    reductions: list[UOp]
    along: list[UOp]  # loops over outputs that go through the same memory, in the order of their steps
    beside: list[UOp]  # over outputs that are made of the same vector
    outer: list[UOp]  # all others: over what threads share
    row: list[UOp]  # loops of what is reduced before that
    rows: list[UOp]  # those of the outer ones that it moves with

    @property
    def threads(self) -> int:
        """That have a vector each."""
        return math.prod(map(trips, self.along))


def share_vectors(builder: Builder) -> bool:
    """Threads for the steps of short reductions; False, and nothing done, where these are no vectors."""
    walk = _walk_of(builder)
    if walk is None:
        return False
    machine = builder.machine
    count = math.prod(map(trips, walk.outer)) * walk.threads
    if walk.row:  # as many threads as may find it anew in every block
        room = max(machine.warp, walk.threads, *(ceil_power(-(-trips(k) // CHEAP)) for k in walk.row))
        each = count // math.prod(map(trips, walk.rows))
        if room > min(machine.block_threads, each) or count > AT_ONCE * room:
            return False
    else:
        room = max(machine.warp, walk.threads, min(BLOCK, ceil_power(-(-count // machine.cores))))
    for r in walk.beside:
        builder.do("UPCAST", int(r.arg[0]))
    found = memory_of(builder.ast)
    for k in walk.row:
        walk_row(builder, int(k.arg[0]), lanes_for(k, found, machine), room, "GROUP")
    _several(builder, [r for r in walk.outer if r not in walk.rows], room // walk.threads)
    for k in walk.reductions:
        builder.do("GROUP", int(k.arg[0]), trips(k))
    for r in reversed(walk.along):
        builder.do("LOCAL", int(r.arg[0]))
    return True


def _several(builder: Builder, outer: list[UOp], several: int) -> None:
    """So many of what threads share in a block: those whose results lie beside each other first."""
    place = access(store_of(builder.ast.src[0]).src[0])
    parts = []
    for r in sorted(outer, key=lambda r: (place.step(r) or math.inf, -int(r.arg[0]))):
        count = size(r)
        amount = several if count is None else min(several, ceil_power(count))
        if amount > 1:
            parts.append((int(r.arg[0]), amount))
            several //= amount
    for number, amount in reversed(parts):
        cut(builder, "LOCAL", number, amount)


def _walk_of(builder: Builder) -> Walk | None:
    nodes = [n for n in builder.loops.order if n.op is Ops.REDUCE]
    effects = [e for e in builder.ast.src if e.op is Ops.END]
    if not nodes or len(effects) != len(builder.ast.src):
        return None
    loops = output_loops(effects[0])
    plain = all(r.arg[1] is AxisKind.LOOP and size(r) is not None for r in loops)
    known = all(k.arg[1] is AxisKind.REDUCE and size(k) is not None for n in nodes for k in closed_ranges(n))
    if not plain or not known or any(output_loops(e) != loops for e in effects):
        return None
    inside = {n for m in nodes for n in toposort(*m.src) if n.op is Ops.REDUCE}
    short = [n for n in nodes if n not in inside]
    early = [n for n in nodes if n in inside]
    reductions = dict.fromkeys(k for n in short for k in closed_ranges(n))
    row = dict.fromkeys(k for n in early for k in closed_ranges(n))
    outer = frozenset.intersection(*(ranges(n) for n in short))
    rows = frozenset[UOp]().union(*(ranges(n) for n in early))
    if (
        not outer
        or not outer < set(loops)
        or not rows < outer
        or any(len(closed_ranges(n)) > 1 for n in early)
    ):
        return None
    reads = reads_of(*effects)
    wide = _vector(reads, reductions, builder)
    inner = [r for r in loops if r not in outer]
    along = sorted((r for r in inner if any(a.step(r) for a in reads)), key=lambda r: _step(reads, r))
    beside = [r for r in inner if r not in along]
    if not wide or not along or math.prod(map(trips, beside)) > MOST_OUTPUTS:
        return None
    found = Walk(
        list(reductions),
        along,
        beside,
        [r for r in loops if r in outer],
        list(row),
        [r for r in loops if r in rows],
    )
    if found.threads & (found.threads - 1) or found.threads > MOST_SHARERS:
        return None
    return found if _goes_through(found, reads, wide) else None


def _goes_through(walk: Walk, reads: list[Access], wide: int) -> bool:
    """Whether loops over outputs go through what reductions go through, vector by vector: a thread has
    the same vector in all of them."""
    ends = {wide}
    for r in walk.along:
        if any((a.step(r) or 0) not in (0, max(ends)) for a in reads):
            return False
        ends.add(max(ends) * trips(r))
    steps = {k: next(a.step(k) or 0 for a in reads if a.moves(k)) for k in walk.reductions}
    covered = all(step in ends and step * trips(k) in ends for k, step in steps.items())
    return covered and max(step * trips(k) for k, step in steps.items()) == max(ends)


def _step(reads: list[Access], r: UOp) -> int:
    return max(a.step(r) or 0 for a in reads)


def _vector(reads: list[Access], reductions: dict[UOp, None], builder: Builder) -> int:
    """Elements of a step: as many as the innermost reduction moves by, each read by itself, in vectors that a
    thread reads at once; 0 where reductions move otherwise."""
    found: dict[tuple[int, UOp], list[Access]] = {}
    for a in reads:
        for k in reductions:
            if a.moves(k):
                found.setdefault((a.buffer, k), []).append(a)
    steps = [a.step(k) for (_, k), same in found.items() for a in same]
    if not steps or any(step is None for step in steps):
        return 0
    wide = min(step for step in steps if step is not None)
    if wide < 2 or any(len(same) < wide for same in found.values()):
        return 0
    narrowest = min(a.node.dtype.itemsize for same in found.values() for a in same)
    return wide if wide * narrowest >= builder.machine.vector_bytes else 0
