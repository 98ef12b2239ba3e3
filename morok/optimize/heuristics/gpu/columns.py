"""Reductions across rows of memory: neighbouring threads have neighbouring outputs, other threads other rows.

A block is a few threads wide, so that it reads whole cache lines of a row, and many rows high; the parts that
its threads have summed are summed through shared memory. How wide is a matter of time: narrow blocks read
parts of lines, wide ones leave multiprocessors idle where there are few columns.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.halo import Pair
from morok.optimize.facts import bytes_along, reads_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.threads import SUMS, cut, lanes_for, memory_of, power, slide_of
from morok.optimize.loops import divides, size

WIDEST = 32  # threads along the columns
TALLEST = 64  # threads along the rows
THREADS = 1024  # of a multiprocessor, that should be busy
BLOCK = 512  # threads of a block at most: more wait for one another when they are done
UNDER_WAY = 32768  # bytes that a multiprocessor waits for at a time, to get its share of the memory's rate
# Bytes of a row that a block reads side by side, and what of the memory's rate is left: sectors have 32.
PIECES = (
    (256, 1.0), (128, 0.985), (64, 0.9), (32, 0.7), (16, 0.35), (8, 0.18), (4, 0.09), (2, 0.05), (1, 0.03),
)  # fmt: skip
FEWEST = 4  # rows of a block in a long sum, where there may be more
LONG = 4  # turns of a thread, from which a sum is a long one
BUSY = 1.5  # times its share of the memory's rate that a multiprocessor gets if a third of them has no work
ALONE = 3  # the same if nearly all have none: a guess
AT_ONCE = 8  # rows under way per thread
TURN = 2  # rows' worth of waiting that a turn of the loop costs besides
LEAST = 64  # rows that are worth sharing
LEAST_TURNS = 4  # of a thread, at most, in a loop of unknown length whose rows are read several at a time


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
    slide = _slide(builder, column, steps)
    if slide is not None:
        others //= trips(slide.offset)
        while lanes > 1 and lanes * trips(slide.offset) > SUMS:
            lanes //= 2
        steps = [k for k in steps if k is not slide.place]
    steps = _joined(builder, steps, trips(column) * others // lanes)
    width = max(
        a.node.dtype.scalar.itemsize for a in memory if a.step(column) == 1 and not a.node.dtype.is_ptr
    )
    k = max(steps, key=trips)
    count = size(column)
    room = power(min(BLOCK, machine.block_threads))
    best: tuple[float, int, int, int] | None = None
    for each in _halves(lanes):
        for wide in _halves(WIDEST):
            if wide > 1 and count is not None and count // each < wide:
                continue
            blocks = max(1, trips(column) * others // (wide * each))
            most = min(TALLEST, max(1, trips(k) // 4), room // wide)
            tallest = power(min(most, max(1, machine.cores * THREADS // (blocks * wide))))
            long = slide is None and trips(k) >= LONG * tallest * AT_ONCE
            # threads of fewer rows first: there is less to add up when they are done
            for tall in (tallest // 2, tallest) if long and tallest > FEWEST else (tallest,):
                amount = _at_once(k, tall) if long else AT_ONCE
                asked, piece = wide * tall * each * width * amount, wide * each * width
                share = _share(blocks, wide * tall, asked, piece, machine, long)
                share *= _filled(k, tall * amount) if long else 1.0
                if best is None or share > best[0] * 1.02:
                    best = share, each, wide, tall
    assert best is not None
    _, lanes, wide, tall = best
    amount = _at_once(k, tall) if slide is None else 1
    if amount > 1 and not divides(tall * amount, k.src[0]):
        builder.do("PADTO", int(k.arg[0]), tall * amount)
    if tall > 1:
        cut(builder, "GROUP", int(k.arg[0]), tall)
    if amount > 1:
        builder.do("UNROLL", int(k.arg[0]), amount)
    if slide is not None:
        builder.do("UPCAST", int(slide.offset.arg[0]))
        builder.do("UNROLL", int(slide.place.arg[0]), _turns(slide))
    if lanes > 1:
        builder.do("UPCAST", int(column.arg[0]), lanes)
    # after the rows: the last threads are neighbours in a warp
    if wide > 1:
        cut(builder, "LOCAL", int(column.arg[0]), wide)
    return True


def _slide(builder: Builder, column: UOp, steps: list[UOp]) -> Pair | None:
    """The loop of a reduction, and one over outputs, whose sum a read knows: outputs beside each other read
    mostly the same, such as the gradients of a window's weights. Other loops remain to be shared by threads.
    """
    node = builder.loops.closers[steps[0]][0]
    few = [r for r in ranges(node) if r is not column and r.arg[1] is AxisKind.LOOP and trips(r) <= AT_ONCE]
    return slide_of(reads_of(*node.src[: len(node.arg)]), steps, few) if len(steps) > 1 else None


def _turns(slide: Pair) -> int:
    """Steps along the way that a thread takes at a time: as many as divide it."""
    return max(n for n in range(1, AT_ONCE + 1) if divides(n, slide.place.src[0]))


def _joined(builder: Builder, steps: list[UOp], threads: int) -> list[UOp]:
    """The loops of a reduction, the outer two as one where the longest has too few rows for all threads."""
    wanted = builder.machine.cores * THREADS
    steps = sorted(steps, key=lambda k: int(k.arg[0]))
    while len(steps) > 1 and threads * max(map(trips, steps)) // LEAST_TURNS < wanted:
        outer, inner = (int(k.arg[0]) for k in steps[:2])
        if size(steps[1]) is None or not builder.do("JOIN", outer, inner):
            break
        steps = [builder.loops.by_number[inner], *steps[2:]]
    return steps


def _halves(n: int) -> list[int]:
    """A power of two, and all smaller ones."""
    return [n >> i for i in range(max(1, n).bit_length())]


def _share(blocks: int, threads: int, asked: int, piece: int, machine: Machine, long: bool) -> float:
    """The share of the memory's rate that blocks get: by how many multiprocessors have one, by the bytes that
    each has asked for, and by how much of what comes along with these it uses. In long sums some
    multiprocessors may go without one; in short ones the first bytes are what everybody waits for."""
    cores = machine.cores
    together = min(blocks / cores, max(1, 2 * THREADS // threads))  # of a multiprocessor
    if long:
        share = min(1.0, BUSY * together, together * asked / UNDER_WAY)
    else:
        share = min(1.0, together) * min(1.0, max(1.0, together) * asked / UNDER_WAY)
    worth = next(worth for n, worth in PIECES if piece >= n) if long or piece < machine.line_bytes else 1.0
    return share * worth * _balance(blocks, cores)


def _filled(k: UOp, rows: int) -> float:
    """The part of what is asked for in turns of so many rows that is there: the last turn has fewer."""
    count = size(k)
    return 1.0 if count is None else count / (-(-count // rows) * rows)


def _balance(blocks: int, cores: int) -> float:
    """The part of the memory's rate that is left where some multiprocessors have one block more than others:
    the last ones have it for themselves, and cannot take all of it."""
    whole, rest = divmod(blocks, cores)
    return blocks / cores / (whole + max(rest / cores, 1 / ALONE)) if whole and rest else 1.0


def _at_once(k: UOp, tall: int) -> int:
    """Rows under way per thread: many, but not so many that they go far beyond the last one."""
    count = size(k)
    if count is None:
        # as many as divide it, or some: of a loop that may be long, one read would wait for another; and
        # where few threads share it, each turn would take few rows
        divisors = (n for n in (AT_ONCE, AT_ONCE // 2, AT_ONCE // 4) if divides(n * tall, k.src[0]))
        some = AT_ONCE if AT_ONCE * tall <= LEAST else AT_ONCE // 2
        return next(divisors, some if trips(k) >= LEAST_TURNS * some * tall else 1)

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
