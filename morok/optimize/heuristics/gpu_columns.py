"""Reductions across rows of memory: neighbouring threads have neighbouring outputs, other threads other rows.

A block is a few threads wide, so that it reads whole cache lines of a row, and many rows high; the parts that
its threads have summed are summed through shared memory. Blocks are narrow where there are few columns, so
that all of the machine has something to do.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.optimize.facts import bytes_along, reads_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu_threads import cut, lanes_for, memory_of, power
from morok.optimize.loops import divides, size

WIDEST = 32  # threads along the columns
TALLEST = 32  # threads along the rows
THREADS = 1024  # of a multiprocessor, that should be busy
AT_ONCE = 8  # rows under way per thread
TURN = 2  # rows' worth of waiting that a turn of the loop costs besides
LEAST = 64  # rows that are worth sharing


def share_columns(builder: Builder) -> bool:
    """Threads for a reduction across memory; False where the kernel has none."""
    found = _find(builder)
    if found is None:
        return False
    column, steps = found
    machine = builder.machine
    memory = memory_of(builder.ast)
    lanes = lanes_for(column, memory, machine)
    others = math.prod(
        trips(r) for r in _around(builder, steps[0]) if r is not column and r.arg[1] is AxisKind.LOOP
    )
    width = max(
        a.node.dtype.scalar.itemsize for a in memory if a.step(column) == 1 and not a.node.dtype.is_ptr
    )
    while lanes > 1 and trips(column) * others // lanes < machine.cores * 8:
        lanes //= 2
    narrow = max(1, machine.line_bytes // (lanes * width))
    wide = WIDEST
    while wide > narrow and trips(column) * others < machine.cores * 2 * wide * lanes:
        wide //= 2
    count = size(column)
    while wide > 1 and count is not None and count // lanes < wide:
        wide //= 2
    blocks = max(1, trips(column) * others // (wide * lanes))
    k = max(steps, key=trips)
    tall = power(min(TALLEST, max(1, trips(k) // 4), max(1, machine.cores * THREADS // (blocks * wide))))
    amount = _at_once(k, tall)
    if amount > 1 and not divides(tall * amount, k.src[0]):
        builder.do("PADTO", int(k.arg[0]), tall * amount)
    if tall > 1:
        cut(builder, "GROUP", int(k.arg[0]), tall)
    if amount > 1:
        builder.do("UNROLL", int(k.arg[0]), amount)
    if lanes > 1:
        builder.do("UPCAST", int(column.arg[0]), lanes)
    # after the rows: the last threads are neighbours in a warp
    if wide > 1:
        cut(builder, "LOCAL", int(column.arg[0]), wide)
    return True


def _at_once(k: UOp, tall: int) -> int:
    """Rows under way per thread: many, but not so many that they go far beyond the last one."""
    count = size(k)
    if count is None:
        return next((n for n in (AT_ONCE, AT_ONCE // 2, AT_ONCE // 4) if divides(n * tall, k.src[0])), 1)

    def turns(amount: int) -> float:
        return -(-count // (tall * amount)) * (amount + TURN)

    return min((AT_ONCE, AT_ONCE // 2, AT_ONCE // 4, 1), key=turns)


def _around(builder: Builder, k: UOp) -> frozenset[UOp]:
    return ranges(builder.loops.closers[k][0])


def _find(builder: Builder) -> tuple[UOp, list[UOp]] | None:
    """The loop over outputs that is contiguous in what a long reduction reads, and the reduction's loops."""
    best: tuple[int, UOp, list[UOp]] | None = None
    for node in builder.loops.order:
        if node.op is not Ops.REDUCE:
            continue
        steps = [k for k in closed_ranges(node) if k.arg[1] is AxisKind.REDUCE]
        if not steps or math.prod(map(trips, steps)) < LEAST:
            continue
        reads = reads_of(*node.src[: len(node.arg)])
        for r in ranges(node):
            beside = bytes_along(reads, r)
            if beside and r.arg[1] is AxisKind.LOOP and (best is None or beside > best[0]):
                best = beside, r, steps
    return None if best is None else best[1:]
