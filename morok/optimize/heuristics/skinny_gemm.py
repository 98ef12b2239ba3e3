"""Skinny GEMM, products of few rows: the matrix on the right is read once, in the order of memory.

A register tile over all steps would jump from row to row of that matrix, a page at a time. Instead some rows
are taken at a time for a long stretch of columns, and the totals stay in the first caches (SPLIT_K). Where
the rows on the left fill a tile, a block of the matrix is packed on the way, which costs less than its
totals.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.pack import packed_value
from morok.optimize.contraction import Contraction
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, trips, value_bytes
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import divides, size

FEW_ROWS = 128  # rows on the left; more of them pay for packing whole panels
FEW_GEMV_ROWS = 32  # the same where both operands lie along the steps
STREAMS = 4  # rows of the matrix for each of several on the left; a single one takes as many as the machine
ROWS_PACKED = 64  # of the matrix, in a block that is packed; twice as many for more than a few tiles
VECTORS = (3, 2, 4, 1)  # across a tile, the best first
TALL = 8  # rows of a tile
STRETCH = 512  # columns that rows of many steps should have in the second cache at a time
VECTORS_ALONE = (8, 4, 3, 2, 1)  # the same where it has a single row
RANK = 0.03  # of its time that each is better than the next
TURN = 300  # bytes that could be read in the time that it takes to go on in the next row of a stretch
SUMS = 4  # of a single row, at a time
VECTORS_OF_A_SUM = 2  # so that one addition need not wait for the one before


def find_matrix(effect: UOp, reduce: UOp) -> tuple[UOp | None, UOp, Access] | None:
    """The loops over rows (if there are some) and columns, and the read of the matrix; None if it is no such
    product."""
    if effect.op is not Ops.END or reduce.arg != (Ops.ADD,) or len(closed_ranges(reduce)) != 1:
        return None
    (k,) = closed_ranges(reduce)
    store = access(store_of(effect).src[0])
    reads = reads_of(reduce.src[0])
    outputs = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP and r in ranges(reduce)]
    for j in outputs:
        matrix = [a for a in reads if a.moves(j)]
        if store.step(j) != 1 or len(matrix) != 1 or matrix[0].step(j) != 1 or matrix[0].step(k) in (0, 1):
            continue
        rows = [r for r in outputs if r is not j and not matrix[0].moves(r)]
        left = [a for a in reads if a is not matrix[0]]
        if matrix[0].buffer >= 0 and len(rows) <= 1 and any(k in ranges(a.node) for a in left):
            return (rows[0] if rows else None), j, matrix[0]
    return None


def skinny_gemm(builder: Builder, effect: UOp, reduce: UOp) -> bool:
    """Cuts a product of few rows; False, and nothing done, if it is none."""
    found = find_matrix(effect, reduce)
    machine = builder.machine
    if found is None or len(builder.ast.src) != 1:
        return False
    row, column, matrix = found
    if any(n.op is Ops.REDUCE and n is not reduce and column in ranges(n) for n in builder.loops.order):
        return False  # which would still be walked column by column
    (k,) = closed_ranges(reduce)
    rows = 1 if row is None else size(row)
    columns, steps = size(column), trips(k)  # which may be known later: then of the most that there can be
    nbytes, lanes = value_bytes(reduce), max(1, machine.vector_bytes // value_bytes(reduce))
    left = [a for a in reads_of(reduce.src[0]) if a.node is not matrix.node]
    packs = rows is not None and rows >= TALL and len(left) == 1 and left[0].buffer >= 0
    scaled = any(k not in ranges(a.node) for a in left)
    both = [a for a in left if k in ranges(a.node) and row in ranges(a.node)]
    if scaled and (len(both) != 1 or rows is None or rows >= TALL):
        return False
    at_once = machine.streams if row is None else 2 * STREAMS
    if packs:
        at_once = ROWS_PACKED if (rows or 1) < 4 * TALL else 2 * ROWS_PACKED
    if rows is None or columns is None or steps < 4 * at_once:
        return False
    # a panel of so many steps would fill much of the second cache, and is cut into blocks of steps here
    long = VECTORS[0] * machine.vector_bytes * steps > machine.l2_bytes // 8
    if rows > (machine.l2_bytes // 2 // (STRETCH * nbytes) if long and packs else FEW_ROWS):
        return False
    batches = math.prod(trips(r) for r in _batch_loops(effect, reduce, matrix, column))
    if batches * steps * columns * nbytes <= machine.l2_bytes // 2:
        return False  # the matrix stays in the cache, in whatever order it is read
    if batches > 1 and row is None and columns % lanes == 0 and columns <= machine.registers * 3 // 4 * lanes:
        return False  # sums of a whole row are registers: steps one by one are in the order of memory
    shares = _shares(batches, columns * nbytes, machine) if builder.shares else 1
    most = machine.l2_bytes // 2 // (nbytes * max(rows, at_once if packs else 1))  # columns of a stretch
    pieces = shares * -(-columns // (most * shares))
    if columns < 8 * lanes * pieces:
        return False
    choices = VECTORS_ALONE if row is None else VECTORS
    unit = 2 * lanes * pieces
    if machine.masked_memory:  # a few columns for nothing, rather than a rest that one thread has
        ranks = {n: -(-columns // (n * lanes * pieces)) * n * (1 + RANK * k) for k, n in enumerate(choices)}
        unit = min(ranks, key=lambda n: ranks[n]) * lanes * pieces
    i, j = -1 if row is None else int(row.arg[0]), int(column.arg[0])
    before = builder.loops
    if scaled and not _compute_rows(builder, both[0], (i, int(k.arg[0])), lanes):
        return False
    if 0 <= i < j and builder.do("SWAP", i, j):
        i, j = j, i
    remainder = -1
    if columns % unit and machine.masked_memory and builder.do("PADTO", j, unit):
        columns = -(-columns // unit) * unit
    elif columns % unit:
        remainder = builder.loops.next_number()
        builder.do("PEEL", j, unit)
    stretch = columns // unit * unit // pieces
    vectors = next(n for n in choices if stretch % (n * lanes) == 0)
    if not divides(at_once, k.src[0]):
        builder.do("PEEL", int(k.arg[0]), at_once)
    height = _height(rows, vectors, machine)
    if rows % height:
        builder.do("PADTO", i, height)
    inner = builder.loops.next_number()
    inner = inner if builder.do("TILE", j, stretch) else j
    blocks = builder.loops.next_number()
    if not builder.do("SPLIT_K", int(k.arg[0]), at_once, (i, inner) if i >= 0 else (inner,)):
        builder.loops = before
        return False
    fill = [blocks + 1 + n for n in range(1 if i < 0 else 2)]  # the loops of the totals
    packed = [*left, matrix] if packs else []
    _cut_block(builder, int(k.arg[0]), fill, (height, vectors * lanes)[-len(fill) :], packed)
    builder.vectorise("UPCAST", inner, 4 * lanes, lanes)
    if shares > 1 and inner != j and batches == 1:
        builder.do("THREAD", j)
    if remainder in builder.loops.by_number:
        builder.do("PADTO", remainder, lanes)
        builder.do("UPCAST", remainder)
    return True


def _batch_loops(effect: UOp, reduce: UOp, matrix: Access, column: UOp) -> list[UOp]:
    """The loops that have a matrix each."""
    outputs = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP and r in ranges(reduce)]
    return [r for r in outputs if r is not column and matrix.moves(r)]


def _shares(batches: int, row_bytes: int, machine: Machine) -> int:
    """How many stretches the columns are best cut into for threads, which take whole batches otherwise."""
    if batches == 1:
        return machine.cores

    def time(shares: int) -> float:
        turn = 0.0 if shares == 1 else TURN * shares / row_bytes
        return -(-batches * shares // machine.cores) / shares * (1 + turn)

    return min(range(1, machine.cores + 1), key=time)


def _height(rows: int, vectors: int, machine: Machine) -> int:
    """Rows of a tile: its sums fill three quarters of the registers at most, and no tile is much shorter."""
    most = max(1, min(TALL, machine.registers * 3 // 4 // vectors))
    tiles = -(-rows // most)
    return -(-rows // tiles)


def gemv(builder: Builder, product: Contraction) -> bool:
    """GEMV and its like, few rows times many, where both lie along the steps: vectors run along them, and a
    tile of some rows of each is multiplied at a time."""
    machine = builder.machine
    rows, columns = trips(product.i), trips(product.j)  # of rows that are counted later, the most
    steps = closed_ranges(product.reduce)
    lanes = max(1, machine.vector_bytes // value_bytes(product.reduce))
    if rows >= FEW_GEMV_ROWS:
        return False
    if len(steps) != 1 or product.reduce.arg != (Ops.ADD,):
        return False
    (k,) = steps
    row, *scales = product.along_i
    count = size(k)
    if lanes < 2 or count is None or count < 4 * lanes:
        return False
    if any(a.step(k) != 1 for a in (row, *product.along_j)) or any(a.moves(k) for a in scales):
        return False
    height, width = _gemv_tile(rows, columns, machine)
    if height * width < 2:
        return False
    i, j, steps_axis = int(product.i.arg[0]), int(product.j.arg[0]), int(k.arg[0])
    before = builder.loops
    computed = scales or packed_value(before, row.node) is not row.node
    if computed or row.step(product.i) is None:  # once for all columns; or rows that have no plain addresses
        if not _compute_rows(builder, row, (i, steps_axis), lanes):
            return False
    if i < j and builder.do("SWAP", i, j):
        i, j = j, i  # the rows of the matrix stay in the first cache while all others pass
    rest = -1
    if count % lanes:
        rest = builder.loops.next_number()
        builder.do("PEEL", steps_axis, lanes)
    if not divides(width, product.j.src[0]):
        builder.do("PEEL", j, width)
    if not divides(height, product.i.src[0]):
        builder.do("PADTO", i, height)
    for axis, amount in ((i, height), (j, width)):
        if amount > 1 and not builder.do("UPCAST", axis, amount):
            builder.loops = before
            return False
    _unroll_steps(builder, steps_axis, lanes, rest, lanes)
    return True


def _compute_rows(builder: Builder, row: Access, axes: tuple[int, int], lanes: int) -> bool:
    """Rows that are scaled, or that have no plain addresses, are copied as they are multiplied."""
    fill = builder.loops.next_number() + 1
    if not builder.do("PACK", row.buffer, 0, axes):
        return False
    builder.vectorise("UPCAST", fill, 4 * lanes, lanes)
    return True


def single_row(builder: Builder, effect: UOp, reduce: UOp) -> bool:
    """One row times many, where both lie along the steps: a few sums at a time share what is read of the row,
    and one is not waited for at its end."""
    machine, steps = builder.machine, closed_ranges(reduce)
    if effect.op is not Ops.END or len(builder.ast.src) != 1 or len(steps) != 1:
        return False
    (k,) = steps
    reads, count = reads_of(*reduce.src[: len(reduce.arg)]), size(k)
    lanes = max(1, machine.vector_bytes // value_bytes(reduce))
    wide = VECTORS_OF_A_SUM * lanes
    if (
        reduce.arg != (Ops.ADD,)
        or not reduce.dtype.is_float
        or lanes < 2
        or count is None
        or count < 4 * lanes
    ):
        return False
    if len(reads) != 2 or any(a.step(k) != 1 for a in reads):
        return False
    if any(n.op is Ops.REDUCE and n is not reduce for n in builder.loops.order):
        return False
    found = [
        r
        for r in output_loops(effect)
        if r.arg[1] is AxisKind.LOOP and sum(a.moves(r) for a in reads) == 1 and trips(r) >= 4 * SUMS
    ]
    if len(found) != 1:
        return False
    j, axis = int(found[0].arg[0]), int(k.arg[0])
    before = builder.loops
    if count < 4 * wide:
        wide = lanes
    rest = -1
    if count % wide:
        rest = builder.loops.next_number()
        builder.do("PEEL", axis, wide)
    if not divides(SUMS, found[0].src[0]):
        builder.do("PEEL", j, SUMS)
    if not builder.do("UPCAST", j, SUMS):
        builder.loops = before
        return False
    _unroll_steps(builder, axis, wide, rest, lanes)
    return True


def _unroll_steps(builder: Builder, axis: int, amount: int, rest: int, lanes: int) -> None:
    """Steps as lanes, behind all others: vectors of memory. What is left over is vectors under a mask, where
    memory takes masks."""
    builder.do("UNROLL", axis, amount)
    if rest in builder.loops.by_number:
        builder.masked("UNROLL", rest, lanes)


def _gemv_tile(rows: int, columns: int, machine: Machine) -> tuple[int, int]:
    """As square as the registers allow, the rows in few tiles without a rest."""
    height = _height(rows, VECTORS[0], machine)
    return height, max(1, min(columns, 4, machine.registers * 3 // 4 // height))


def _cut_block(
    builder: Builder, k: int, fill: list[int], shape: tuple[int, ...], packed: list[Access]
) -> None:
    """The register tile of a block, with its operands packed on the way, or some steps written out."""
    axes: list[tuple[list[int], int]] = []
    for axis, amount in zip(fill, shape, strict=True):
        number = builder.loops.next_number()
        cut = builder.do("UPCAST", axis, amount)
        axes.append(([axis] if axis in builder.loops.by_number else [], number if cut else axis))
    if not packed:
        builder.do("UNROLL", k, builder.machine.streams if len(fill) == 1 else STREAMS)
        return
    for read, (around, lane_axis) in zip(packed, axes, strict=True):
        first = builder.loops.next_number()
        if not around and read is not packed[-1]:
            continue  # a single tile of rows, which would be packed again for every tile of columns
        if not builder.do("PACK", read.buffer, 0, (*around, k, lane_axis)):
            continue
        steps = first + len(around)
        builder.do("UPCAST", steps + 1)
        builder.do("UPCAST", steps, STREAMS)
        if around and read is packed[-1]:
            builder.do("SWAP", first, steps)  # along the rows of the matrix, some of them at a time
