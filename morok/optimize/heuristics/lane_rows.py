"""Rows of a matrix that lie side by side in memory, a vector of narrow codes at a time: weights in blocks.

Each lane of the sums belongs to one row, so codes are decoded where they are loaded, without shuffles, and no
lanes are added up at the end. Most steps stay loops: written out they would be lanes as well, between which
the codes would have to be moved.
"""

from __future__ import annotations

import math

from morok.dtype import int32
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import ALL_UNITS
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import Loops, size

IN_WORDS = {Ops.DOT4, Ops.DOT2}
FEW_OUTPUTS = 4  # rows on the left that share what was decoded
TWO_OUTPUTS = 2  # of them where bytes are multiplied: each has totals of its own
HALF = 8  # rows at a time where there are many totals
BLOCK_THREADS = 256  # of a block of a grid
STEPS = 8  # of a group, written out there
FEW_STEPS = 4  # of a group inside of a sum of whole numbers
MOST_ROWS = 4  # rows of a thread there: the other factor is read once for them
MANY_OTHERS = 4  # words of the other factor for one of codes
MOST_WORDS = 64  # of codes that a thread has read before it multiplies them
FEWEST_SHARERS = 16  # threads that share the steps of a row; each adds up what all of them have found
BUSY = 1024  # threads that a multiprocessor should have
MOST_TILES = 2  # of a unit's columns, that a warp has
MOST_PRODUCTS = 12  # of a unit in a turn of a loop: what they multiply is read before
FEW_THREADS = 512  # of a multiprocessor, which have 128 registers each
FEWEST_WARPS, MOST_WARPS = 4, 8  # that share the groups of a row: each adds up what all of them have found


def lane_rows(builder: Builder, loops: Loops) -> bool:
    """Makes the loop over rows side by side lanes, all of it; False, and nothing done, if there is none."""
    if len(loops.ast.src) != 1 or loops.ast.src[0].op is not Ops.END:
        return False
    effect = loops.ast.src[0]
    rows = rows_in_lanes(effect, loops, builder.machine.vector_bytes)
    if rows is None:
        return False
    sums, nested = _sums_of_bytes(loops), _sums_of_sums(loops)
    number, lanes = int(rows.arg[0]), size(rows) or 1
    left, most = 1, FEW_OUTPUTS
    plain = not sums and not nested and any(n.op in IN_WORDS for n in loops.order)
    if plain:  # words as they are: nothing but sums asks for registers
        most = max(most, builder.machine.registers // 2 * builder.machine.lanes(int32) // lanes)
    for other in output_loops(effect):
        count = size(other)
        shared = all(not a.moves(other) for a in _narrow(loops) if a.moves(rows))
        if other is rows or not shared or count is None:
            continue
        each = TWO_OUTPUTS if sums else count
        if plain:
            each = next(n for n in range(min(count, max(1, most // left)), 0, -1) if count % n == 0)
        if 2 <= each <= most and count % each == 0 and left * each <= most:
            left *= each if builder.do("UPCAST", int(other.arg[0]), each) else 1
    vectors = max(1, left * len(sums) * lanes // builder.machine.lanes(int32))
    if builder.machine.lane_operands and (nested or vectors <= builder.machine.registers // 2):
        _steps_together(builder, sums, nested)
    # totals of all loops have to stay in registers
    half = max(HALF, builder.machine.lanes(int32))
    if lanes >= 2 * half and (nested or vectors > builder.machine.registers):
        return builder.do("UPCAST", number, half)
    return builder.do("UPCAST", number)


def _sums_of_bytes(loops: Loops) -> list[UOp]:
    """Sums of products of bytes inside of further sums."""
    sums = [n for n in loops.order if n.op is Ops.REDUCE]
    inside = {n: None for node in sums for n in toposort(*node.src[: len(node.arg)]) if n.op is Ops.REDUCE}
    below = {n: {m.op for m in toposort(*n.src[: len(n.arg)])} for n in inside}
    return [n for n, ops in below.items() if ops & IN_WORDS and Ops.REDUCE not in ops]


def _steps_together(builder: Builder, sums: list[UOp], nested: bool) -> None:
    """Products of bytes are added up one after the other, so steps that are written out move nothing: one
    load of the other factor serves two, each with a lane of it. A few steps inside of a further sum of whole
    numbers are written out all."""
    for k in {k: None for n in sums for k in closed_ranges(n)}:
        count = size(k)
        if count is not None and count % 2 == 0 and count <= STEPS:
            builder.do("UNROLL", int(k.arg[0]), count if nested and count <= FEW_STEPS else 2)


def _sums_of_sums(loops: Loops) -> bool:
    """Whether whole numbers are added up in a loop inside of a loop that adds them up further."""
    whole = [n for n in loops.order if n.op is Ops.REDUCE and n.dtype.is_int]
    return any(n in whole for node in whole for n in toposort(*node.src[: len(node.arg)]))


def lane_rows_of_blocks(builder: Builder) -> bool:
    """The same for a grid: neighbouring threads have neighbouring rows, and others share the steps."""
    loops = builder.loops
    if len(loops.ast.src) != 1 or loops.ast.src[0].op is not Ops.END:
        return False
    effect = loops.ast.src[0]
    rows = rows_in_lanes(effect, loops, builder.machine.vector_bytes)
    sums = [n for n in loops.order if n.op is Ops.REDUCE]
    if rows is None or not any(n.op in IN_WORDS for n in loops.order):
        return False
    inside = {n for node in sums for n in toposort(*node.src[: len(node.arg)]) if n.op is Ops.REDUCE}
    outer = {k: None for n in sums if n not in inside for k in closed_ranges(n)}
    tiles = _on_units(
        builder, effect, rows, {k: None for n in _sums_of_bytes(loops) for k in closed_ranges(n)}
    )
    if tiles:
        _share_between_warps(builder, [int(k.arg[0]) for k in outer], tiles)
        return True
    each_row = _rows_each(loops, rows, {k for n in inside for k in closed_ranges(n)})
    for k in {k: None for n in inside for k in closed_ranges(n)}:
        if (size(k) or STEPS + 1) <= STEPS:
            builder.do("UNROLL", int(k.arg[0]))
    for other in output_loops(effect):  # rows on the left: what is read and decoded serves several
        count = size(other)
        shared = all(not a.moves(other) for a in _narrow(loops) if a.moves(rows))
        each = next((n for n in (FEW_OUTPUTS, TWO_OUTPUTS) if count is not None and count % n == 0), 1)
        if _sums_of_sums(loops) or other is rows or not shared or each == 1:
            continue
        if builder.do("UPCAST", int(other.arg[0]), each):
            each_row = MOST_ROWS // 2  # each has totals of its own
            break
    lanes = size(rows)
    assert lanes is not None
    if not _sums_of_sums(loops) and lanes % (4 * each_row) == 0:
        lanes //= each_row if builder.do("UPCAST", int(rows.arg[0]), each_row) else 1
    strips = math.prod(trips(r) for r in output_loops(effect) if r is not rows)
    wanted = max(FEWEST_SHARERS, builder.machine.cores * BUSY // max(1, strips * lanes))
    room = min(wanted, min(BLOCK_THREADS, builder.machine.block_threads) // lanes)
    numbers = [int(k.arg[0]) for k in sorted(outer, key=lambda k: -(size(k) or 0))]
    if len(numbers) > 1 and 2 * trips(builder.loops.by_number[numbers[0]]) <= room:
        if builder.do("JOIN", numbers[0], numbers[1]):  # threads share one loop of a sum
            del numbers[0]
    for k in [found for n in numbers if (found := builder.loops.by_number.get(n)) is not None]:
        count = size(k) or 1
        amount = next(n for n in range(min(room, count), 0, -1) if count % n == 0)
        if amount > 1 and builder.do("GROUP", int(k.arg[0]), amount):
            room //= amount
    builder.do("LOCAL", int(rows.arg[0]))  # the last loop that is cut has the neighbouring threads
    return True


def _rows_each(loops: Loops, rows: UOp, steps: set[UOp]) -> int:
    """Rows of a thread: two, or four where a word of codes meets many of the other factor, which are read
    once for all rows, and the codes of four rows fit the registers in the steps that are written out."""
    words = {a.node: a for a in _narrow(loops) if a.node.dtype.itemsize > 1}
    counts = {n: math.prod(size(k) or 1 for k in steps if a.moves(k)) for n, a in words.items()}
    codes = sum(count for n, count in counts.items() if words[n].step(rows) == 1)
    others = sum(counts.values()) - codes
    return MOST_ROWS if others > MANY_OTHERS * codes and MOST_ROWS * codes <= MOST_WORDS else MOST_ROWS // 2


def _on_units(builder: Builder, effect: UOp, rows: UOp, inner: dict[UOp, None]) -> int:
    """Several rows on the left: matrix units multiply words of bytes, a whole group of them at once. So many
    tiles of rows each warp has; 0 where no unit fits."""
    if len(inner) != 1:
        return 0
    (k,) = inner
    units = [u for u in builder.machine.word_units if u.k == size(k) and u.m == size(rows)]
    for unit in units:
        for other in output_loops(effect):
            count = size(other) or 1
            pair = (int(rows.arg[0]), int(other.arg[0]))
            if (
                other is rows
                or count % unit.n
                or not builder.do("TC", int(k.arg[0]), 1 + ALL_UNITS.index(unit), pair)
            ):
                continue
            tiles = count // unit.n
            each = next(n for n in range(min(tiles, MOST_TILES), 0, -1) if tiles % n == 0)
            if each > 1:  # what was read and decoded serves all of them
                builder.do("UPCAST", pair[1], each)
            return each
    return 0


def _share_between_warps(builder: Builder, numbers: list[int], tiles: int) -> None:
    """Warps share the groups of rows, and each has reads of a few under way."""
    machine = builder.machine
    _two_strips(builder)
    loops = builder.loops
    strips = math.prod(trips(r) for r in loops.closers if r.arg[1] is AxisKind.LOOP)
    wanted = max(FEWEST_WARPS, machine.cores * BUSY // (machine.warp * max(1, strips)))
    number = max(numbers, key=lambda n: size(loops.by_number[n]) or 0)
    count = size(loops.by_number[number]) or 1
    amount = next(n for n in range(min(wanted, MOST_WARPS, count), 0, -1) if count % n == 0)
    if amount > 1:
        builder.do("GROUP", number, amount)
    products = sum(n.op is Ops.WMMA for n in loops.order) * tiles
    # threads that all run at once have registers for twice as much
    alone = strips * amount * machine.warp <= machine.cores * FEW_THREADS
    for n in numbers:
        left = builder.loops.by_number.get(n)
        count = 1 if left is None or left.arg[1] is not AxisKind.REDUCE else size(left) or 1
        for some in (4, 2) if alone else (2,):
            if count % some == 0 and 2 * products <= MOST_PRODUCTS:
                builder.do("UNROLL", n, some)
                return


def _two_strips(builder: Builder) -> None:
    """Rows on the left are read once for two strips of the matrix, where sums are few registers (those of
    floats) and enough warps are left: what is read of the left takes longer than decoding."""
    loops, machine = builder.loops, builder.machine
    if not any(n.op is Ops.WMMA and n.dtype.is_float for n in loops.order):
        return
    own = [r for r in loops.closers if r.arg[1] is AxisKind.LOOP and loops.closed_by(r) is Ops.END]
    count = size(own[0]) if len(own) == 1 else None
    if count is not None and count % 2 == 0 and count // 2 >= machine.cores * FEWEST_WARPS:
        builder.do("UPCAST", int(own[0].arg[0]), 2)


def _narrow(loops: Loops) -> list[Access]:
    """Reads of bytes below reductions, and of words of four bytes that are multiplied as such."""
    reduces = [n for n in loops.order if n.op is Ops.REDUCE]
    words = {id(a.node) for a in reads_of(*(n for n in loops.order if n.op in IN_WORDS))}
    return [a for a in reads_of(*reduces) if a.node.dtype.itemsize == 1 or id(a.node) in words]


def rows_in_lanes(effect: UOp, loops: Loops, vector_bytes: int) -> UOp | None:
    """The loop over outputs that fills a vector with bytes of every array of codes; None if there is none."""
    codes = [a for a in _narrow(loops) if any(r.arg[1] is AxisKind.REDUCE for r in ranges(a.node))]
    if not codes or not closed_ranges(effect):
        return None
    store = access(store_of(effect).src[0])
    for r in output_loops(effect):
        count = size(r)
        if r.arg[1] is not AxisKind.LOOP or store.step(r) != 1 or count is None or count < 4:
            continue
        fits = count <= 2 * vector_bytes and count & (count - 1) == 0
        along = [a.step(r) == 1 or (a.node.dtype.itemsize > 1 and a.step(r) == 0) for a in codes]
        beside = all(along) and any(a.step(r) == 1 for a in codes)  # words of the other factor are the same
        if fits and beside and all(a.step(r) in (0, 1) for a in reads_of(effect)):
            return r
    return None
