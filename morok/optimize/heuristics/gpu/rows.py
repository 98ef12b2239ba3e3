"""Reductions along rows of memory: a block, or a warp, or a part of one, per row.

A row of n elements is cut into n = m · (threads · vector): every thread has a vector of 16 bytes in each of m
pieces. Where m is small all pieces are written out, so that the reads of the loops over the same row (the
maximum, the sum and the result of a softmax) are the same reads, and the row stays in registers. Longer rows
are walked, a few pieces at a time so that enough reads are under way.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.facts import Access, access, bytes_along, output_loops, store_of, trips
from morok.optimize.grid import grid_loops
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.threads import ceil_power, cut, lanes_for, may_join, memory_of, power
from morok.optimize.loops import divides, size

KEPT = 32  # elements of a row that a thread may keep in registers
WANTED = 8  # elements that a thread should have, where the row is long enough
WANTED_AGAIN = 32  # the same where the row is walked several times: fewer threads wait for one another
FEWEST = 16  # elements of a thread that is one of many for a row: all of them wait for one another
BLOCK = 256  # threads of a block of several rows
LONG_BLOCK = 1024
AT_ONCE = 4  # vectors under way in a loop over a long row
GEMV_ROWS = 2  # rows of a thread in a product of a matrix and a vector: it reads the vector once for them
FEW_OUTPUTS = 4  # that share what a thread reads
WAITING = 16  # elements' worth of work that the end of a reduction costs the threads that share it
TURN = 1  # elements' worth of work that a turn of such a loop costs besides


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """The loops that walk along a row, and those that count rows."""

    reductions: list[UOp]  # loops of reductions along memory
    outputs: list[UOp]  # loops over outputs inside of the rows
    outer: list[UOp]


def own_reads(node: UOp) -> list[Access]:
    """What a reduction reads by itself; what others inside of it read is theirs."""
    return _reads_below(*node.src[: len(node.arg)])


def _reads_below(*terms: UOp) -> list[Access]:
    inside = toposort(*terms, stop=lambda n: n.op in (Ops.BUFFERIZE, Ops.REDUCE))
    return [access(n) for n in inside if n.op is Ops.INDEX and not n.dtype.is_ptr]


def goes_along(node: UOp) -> bool:
    """Whether a reduction walks along contiguous memory rather than across it, in most of what it reads."""
    reads = own_reads(node)
    along = max(bytes_along(reads, k) for k in closed_ranges(node))
    beside = max((bytes_along(reads, r) for r in ranges(node)), default=0)
    return along > beside


def find_rows(builder: Builder) -> Rows | None:
    """The rows of a kernel; None where most of what is reduced goes across memory, or nothing is reduced."""
    loops = builder.loops
    reductions: dict[UOp, None] = {}
    outer: dict[UOp, None] = {}
    across = all_along = 0
    rows: dict[UOp, list[UOp]] = {}  # reductions that are rows, and what counts these
    for node in loops.order:
        own = [k for k in closed_ranges(node) if k.arg[1] is AxisKind.REDUCE] if node.op is Ops.REDUCE else []
        if not own:
            continue
        reads = own_reads(node)
        around = [r for r in ranges(node) if r.arg[1] is AxisKind.LOOP]
        if _is_for_threads(node, around, rows, builder.machine):
            continue
        rows[node] = around
        along = [bytes_along(reads, k) for k in own]
        all_along += max(along)
        across += max((bytes_along(reads, r) for r in around), default=0)
        few = math.prod(map(trips, around)) < builder.machine.cores * BLOCK
        if not max(along) and not few and not all_along:
            return None  # nothing is contiguous, and there are outputs enough for threads
        reductions[own[along.index(max(along))] if max(along) else max(own, key=trips)] = None
        outer.update(dict.fromkeys(around))
    if across > all_along:
        return None
    if not reductions:
        return None
    ends = {r: None for effect in loops.ast.src for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP}
    lengths = {k.src[0] for k in reductions}
    across_outputs = {r for effect in loops.ast.src for r in _across(effect, outer)}
    outputs = [r for r in ends if r not in outer and r.src[0] in lengths and r not in across_outputs]
    return Rows(list(reductions), outputs, [r for r in ends if r in outer])


def _across(effect: UOp, outer: Collection[UOp]) -> list[UOp]:
    """Loops over outputs that lie apart, where others lie in order: they are not what was reduced."""
    own = [r for r in output_loops(effect) if r not in outer]
    place = access(store_of(effect).src[0])
    return [r for r in own if place.step(r) != 1] if any(place.step(r) == 1 for r in own) else []


def _is_for_threads(node: UOp, around: list[UOp], rows: dict[UOp, list[UOp]], machine: Machine) -> bool:
    """Whether a reduction of what rows have given belongs to single threads: a block that has its row finds
    all of its outputs sooner than as many blocks, each of which needs the row for one (the mean of each
    channel of a picture whose channels are normalised together)."""
    inside = toposort(*node.src) if any(set(b) < set(around) for b in rows.values()) else ()
    below = [n for n in inside if n in rows and set(rows[n]) < set(around)]
    if not below:
        return False
    outer = max((rows[n] for n in below), key=len)
    row, own = (
        sum(math.prod(map(trips, closed_ranges(n))) for n in below),
        math.prod(map(trips, closed_ranges(node))),
    )
    count, each = math.prod(map(trips, outer)), math.prod(trips(r) for r in around if r not in outer)
    threads = min(LONG_BLOCK, ceil_power(-(-row // WANTED_AGAIN)))
    at_once = machine.cores * LONG_BLOCK // threads
    apart = -(-count * each // at_once) * ((row + own) / threads + WAITING)
    together = -(-count // at_once) * (row / threads + -(-each // threads) * own + WAITING)
    return together < apart


def join_steps(builder: Builder, rows: Rows) -> Rows:
    """Loops of a reduction that make one row in what it reads are one loop: a group of channels whose memory
    has them last is a row as well. What has one value for many of its steps does not matter."""
    while any(builder.do("JOIN", int(a.arg[0]), int(b.arg[0])) for a, b in _behind_each_other(builder)):
        rows = find_rows(builder) or rows
    return rows


def _behind_each_other(builder: Builder) -> list[tuple[UOp, UOp]]:
    found = []
    for node in [n for n in builder.loops.order if n.op is Ops.REDUCE]:
        own = [k for k in closed_ranges(node) if k.arg[1] is AxisKind.REDUCE and size(k)]
        reads = [a for a in own_reads(node) if any(map(a.moves, own))]
        steps = [[a.step(k) for a in reads] for k in own]
        for a, far in zip(own, steps, strict=True):
            for b, near in zip(own, steps, strict=True):
                both = list(zip(far, near, strict=True))
                if (trips(b), 1) in both and all(may_join(*s, trips(b)) for s in both):
                    found.append((a, b))
    return found


def share_rows(builder: Builder) -> bool:
    """Threads for every loop along the rows; False where the kernel has no rows."""
    rows = find_rows(builder)
    if rows is None:
        return False
    rows = join_steps(builder, rows)
    machine = builder.machine
    walks = [*rows.reductions, *rows.outputs]
    found = memory_of(builder.ast)
    lanes = min(lanes_for(k, found, machine) for k in walks)
    longest = max(trips(k) for k in walks)
    vectors = max(1, longest // lanes)
    count = math.prod(map(trips, rows.outer))
    threads = row_threads(longest, vectors, count, len(walks), machine)
    if _is_one_row(builder, rows):
        threads = min(threads, ceil_power(-(-machine.cores * LONG_BLOCK // max(1, count))))
    matrices = matrices_of_gemv(builder, rows)
    if matrices:
        lanes = lanes_for(walks[0], matrices, machine)
        needed = ceil_power(-(-machine.cores * LONG_BLOCK // max(1, count)))
        threads = max(machine.warp, min(needed, power(longest // (AT_ONCE * lanes)), LONG_BLOCK // 2))
        _rows_each(builder, rows.outer, count, threads, max(1, GEMV_ROWS // len(matrices)))
    elif _share_reads(builder, rows, count * threads):
        rows = find_rows(builder)
        assert rows is not None
        walks = [*rows.reductions, *rows.outputs]
    sharers = 1 if rows.outputs else _sharers(_other_steps(builder, rows), longest, threads, count, machine)
    threads = threads if sharers == 1 else 1  # of a row: a reduction is shared along one of its loops
    each = math.prod(map(trips, _left_over(builder, rows)))
    room = max(threads, min(BLOCK, ceil_power(each), power(machine.block_threads)))
    alone = _is_better_alone(longest / threads, each, count, threads, room, machine)
    several = 1 if alone else BLOCK // threads
    if sharers > 1:  # and blocks enough
        several = min(several // sharers, ceil_power(max(1, count // machine.cores)))
    if longest > KEPT * threads and in_one_pass(builder, rows.reductions):
        rows = find_rows(builder)
        assert rows is not None
        walks = [*rows.reductions, *rows.outputs]
    if several > 1 and rows.outer:
        _several_rows(builder, rows.outer, several)
    for k in walks:
        walk(builder, int(k.arg[0]), lanes, threads, "GROUP" if k in rows.reductions else "LOCAL")
    if sharers > 1:
        for k in _other_steps(builder, rows):
            cut(builder, "GROUP", int(k.arg[0]), sharers)
    _share_rest(builder, room)
    return True


def _other_steps(builder: Builder, rows: Rows) -> list[UOp]:
    """The longest loop of each reduction across its rows."""
    found: dict[UOp, None] = {}
    walked = {int(k.arg[0]) for k in rows.reductions}
    for node in [n for n in builder.loops.order if n.op is Ops.REDUCE]:
        own = [k for k in closed_ranges(node) if k.arg[1] is AxisKind.REDUCE and size(k)]
        others = [k for k in own if int(k.arg[0]) not in walked]
        if others:
            found[max(others, key=trips)] = None
    return list(found)


def _sharers(others: list[UOp], length: int, threads: int, rows: int, machine: Machine) -> int:
    """How many threads share the steps across rows, each with whole rows; one where so many threads that
    share each row are as good. They are for few rows, which have to keep the machine busy."""
    steps = max(map(trips, others), default=1)
    most = min(ceil_power(steps), power(machine.block_threads))

    def time(along: int, across: int) -> float:
        busy = max(1.0, rows * along * across / (machine.cores * 2 * BLOCK))
        wait = WAITING if along * across > 1 else 0
        return busy * (-(-steps // across) * -(-length // along) + wait)

    best = min((1 << i for i in range(most.bit_length())), key=lambda n: time(1, n))
    return best if time(1, best) < time(threads, 1) else 1


def _left_over(builder: Builder, rows: Rows) -> list[UOp]:
    """Loops over outputs that need whole rows and walk along none; blocks cannot share them."""
    placed = {*rows.outer, *rows.outputs, *grid_loops(builder.ast)}
    found = {r: None for effect in builder.ast.src for r in output_loops(effect)}
    return [r for r in found if r.arg[1] is AxisKind.LOOP and r not in placed and size(r)]


def _is_better_alone(steps: float, each: int, count: int, threads: int, room: int, machine: Machine) -> bool:
    """Whether a row has a block for itself: then its threads share the outputs that need all of it, which
    they compute one after the other where a block has several rows."""
    if each == 1:
        return False
    held = 2 * LONG_BLOCK  # threads of a multiprocessor
    blocks = machine.cores * min(32, held // max(room, machine.warp))
    alone = max(1.0, count / blocks) * (steps + WAITING + -(-each // room))
    return alone < max(1.0, count * threads / (machine.cores * held)) * (steps + each)


def _share_rest(builder: Builder, threads: int) -> None:
    """Outputs that need a whole row and are of another length: threads and, where they may, blocks.

    Not where a block has several rows: its threads are not told apart by their own row alone.
    """
    if any(r.arg[1] is AxisKind.LOCAL for r in builder.loops.by_number.values()):
        return
    for effect in builder.ast.src:
        room = threads
        for r in sorted(output_loops(effect), key=lambda r: -int(r.arg[0])):
            now = builder.loops.by_number.get(int(r.arg[0]))
            count = None if now is None or now.arg[1] is not AxisKind.LOOP else size(now)
            if now is None or count is None or count < 2 or now in grid_loops(builder.ast):
                continue
            fits = (n for n in range(min(room, count), 1, -1) if count % n == 0)
            room //= next((n for n in fits if builder.do("LOCAL", int(now.arg[0]), n)), 1)


def _share_reads(builder: Builder, rows: Rows, threads: int) -> bool:
    """A loop over a few outputs along which the largest memory stays where it is: what a thread reads of it
    serves all of them, where enough threads are left for the whole machine."""
    if len(rows.reductions) != 1 or rows.outputs:
        return False
    reads = [a for a in _reads_of_rows(builder, rows) if a.node.src[0].op is Ops.DEFINE_GLOBAL]
    loops = [*rows.reductions, *rows.outer]
    largest = max(reads, key=lambda a: math.prod(trips(r) for r in loops if a.moves(r)), default=None)
    for r in rows.outer:
        few = size(r)
        stays = largest is not None and not largest.moves(r)
        if (
            few is not None
            and 1 < few <= FEW_OUTPUTS
            and stays
            and threads // few >= builder.machine.cores * BLOCK
        ):
            return builder.do("UPCAST", int(r.arg[0]))
    return False


def _is_one_row(builder: Builder, rows: Rows) -> bool:
    """Whether all outputs walk along one row, which lies in the cache: then threads that share it for one
    output would rather have outputs of their own."""
    if len(rows.reductions) != 1 or rows.outputs:
        return False
    along = [a for a in _reads_of_rows(builder, rows) if a.moves(rows.reductions[0])]
    return bool(along) and not any(a.moves(r) for a in along for r in rows.outer)


def _reads_of_rows(builder: Builder, rows: Rows) -> list[Access]:
    nodes = [n for n in builder.loops.order if n.op is Ops.REDUCE]
    return [a for n in nodes if rows.reductions[0] in closed_ranges(n) for a in own_reads(n)]


def matrices_of_gemv(builder: Builder, rows: Rows) -> list[Access]:
    """Matrices that are multiplied with vectors, in no wider a type, in one walk: a thread takes 16 bytes of
    each at a time, and a few threads share a row. None if anything else is summed up beside them."""
    if len(rows.reductions) != 1 or rows.outputs or not rows.outer:
        return []
    (k,) = rows.reductions
    nodes = [n for n in builder.loops.order if n.op is Ops.REDUCE and k in closed_ranges(n)]
    terms = [(op, term) for n in nodes for op, term in zip(n.arg, n.src, strict=False)]
    found = [_matrix_of_gemv(builder, term, k, rows.outer) if op is Ops.ADD else None for op, term in terms]
    matrices = [m for m in found if m is not None]
    return matrices if len(matrices) == len(found) else []


def _matrix_of_gemv(builder: Builder, term: UOp, k: UOp, outer: list[UOp]) -> Access | None:
    if term.op is not Ops.MUL:
        return None
    reads = [a for a in _reads_below(term) if a.node.src[0].op is Ops.DEFINE_GLOBAL]
    matrix = [a for a in reads if any(a.moves(r) for r in outer)]
    vector = [a for a in reads if a not in matrix]
    along = all(a.step(k) == 1 for a in reads)
    if len(matrix) != 1 or not vector or not along:
        return None
    lanes = machine_lanes(builder, matrix[0])
    if lanes_for(k, reads, builder.machine) < 2 or trips(k) < lanes * builder.machine.warp:
        return None
    narrow = all(matrix[0].node.dtype.itemsize <= a.node.dtype.itemsize for a in vector)
    return matrix[0] if narrow else None


def machine_lanes(builder: Builder, found: Access) -> int:
    """Elements of an access of 16 bytes."""
    return max(1, builder.machine.vector_bytes // found.node.dtype.itemsize)


def in_one_pass(builder: Builder, reductions: list[UOp]) -> bool:
    """Long rows: a maximum and the sums of powers below it are found together; whether there are any."""
    done = [builder.do("ONLINE", int(k.arg[0])) for k in reductions]
    return any(done)


def row_threads(length: int, vectors: int, rows: int, walks: int, machine: Machine) -> int:
    """Threads for one row: some elements each; more threads where few rows have to fill the machine."""
    wanted = ceil_power(-(-length // (WANTED if walks == 1 else WANTED_AGAIN)))
    needed = ceil_power(-(-machine.cores * LONG_BLOCK // max(1, rows)))
    most = ceil_power(-(-length // FEWEST))
    threads = max(min(wanted, LONG_BLOCK // 2), min(needed, most, LONG_BLOCK))
    if walks > 1 and length > KEPT * LONG_BLOCK // 2:
        threads = LONG_BLOCK  # few rows at a time, so that the second walk finds its row in the cache
    return min(threads, ceil_power(vectors), power(machine.block_threads))


def _several_rows(builder: Builder, outer: list[UOp], several: int) -> None:
    """Rows that share a block: neighbouring ones."""
    r = max(outer, key=lambda r: int(r.arg[0]))
    count = size(r)
    if count is None or count >= several:
        cut(builder, "LOCAL", int(r.arg[0]), several)
    elif count > 1:
        builder.do("LOCAL", int(r.arg[0]))


def _rows_each(builder: Builder, outer: list[UOp], count: int, threads: int, each: int) -> None:
    """Several rows for every thread, where enough threads are left for the whole machine."""
    r = max(outer, key=lambda r: int(r.arg[0]))
    while each > 1 and (
        not divides(each, r.src[0]) or count // each * threads < builder.machine.cores * LONG_BLOCK
    ):
        each //= 2
    if each > 1:
        builder.do("UPCAST", int(r.arg[0]), each)


def at_once(length: int, threads: int, lanes: int) -> int:
    """Pieces under way in a loop over a long row: many, but not so many that they go far beyond its end."""
    most = AT_ONCE * max(1, 4 // lanes)
    choices = [n for n in (most, most // 2, most // 4) if n >= min(most, AT_ONCE)]

    def work(steps: int) -> float:
        return -(-length // (threads * steps)) * threads * (steps + TURN)

    return min(choices, key=work)


def walk(builder: Builder, number: int, lanes: int, threads: int, name: str) -> None:
    """Vectors, threads and pieces of one loop along a row."""
    wide = "UNROLL" if name == "GROUP" else "UPCAST"
    if lanes > 1:
        builder.do(wide, number, lanes)
    whole = builder.loops.by_number.get(number)
    steps = at_once(trips(whole), threads, lanes) if whole is not None else AT_ONCE
    if whole is not None and trips(whole) * lanes > threads * max(KEPT, 2 * steps * lanes):
        if not divides(threads * steps, whole.src[0]):
            builder.do("PADTO", number, threads * steps)
    if threads > 1 and not cut(builder, name, number, threads):
        return
    left = builder.loops.by_number.get(number)
    if left is None or left.arg[1] not in (AxisKind.LOOP, AxisKind.REDUCE):
        return
    pieces = size(left)
    if pieces is not None and pieces * lanes <= KEPT:
        if pieces > 1:
            builder.do(wide, number)
        return
    builder.do(wide, number, steps)


__all__ = ["find_rows", "share_rows"]
