"""Register tiles and packed panels: matrix products, convolutions and whatever reuses its inputs like them.

A reduction reuses its inputs if there are two loops over outputs, i and j, such that one read moves with i
only and another with j only. Then a tile of MR × NR outputs needs MR + NR elements per step instead of
2·MR·NR: the accumulators stay in registers, the reads along j are vectors, those along i are spread over one.

The reads along j come out of a panel that has been packed once, contiguous and aligned, and is used by all
tiles along i, which therefore is the innermost loop over outputs. Edges cost nothing inside: the panel is
filled up with zeros, rows beyond the end read the last row again, and only the stores are guarded.

Rows that are far apart in memory, are computed first (a norm in front of a product), or are too many for the
second cache, are packed as well. Then a stretch of panels is packed first, and passes over blocks of rows.
Of rows that are counted later those that are computed first or lie apart are packed all at once, with room
for as many as there may be: a block of them would be computed whole for the first of its rows.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.pack import packed_value
from morok.optimize.contraction import FEWEST_STEPS, Contraction, contraction_of
from morok.optimize.facts import Access, access, functions, output_loops, store_of, trips, value_bytes, weight
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.k_blocks import panel_tiles, tile_far_blocks, tile_k_blocks
from morok.optimize.heuristics.packing import fitting, follows, join_steps, pack, steps_of
from morok.optimize.heuristics.sharing import (
    PRODUCT,
    WORTH,
    operations_to_copy,
    share_loops,
    share_with_others,
)
from morok.optimize.loops import size

FEWEST_REUSES = 2  # of a panel that is worth packing
WORTH_PACKING = 128  # columns that share the packed rows, where rows need not be packed
ANY_ROWS = 8  # of a tile where their number is known later: one such tile serves the last few rows as well
SUMS_OF_REST = 8  # keep two units busy, each with four steps on their way; more is code that few columns use
GATHER = 3  # cycles of an element of a panel that is no part of a vector in memory
TWO_ROWS = 1  # the same where vectors are put together from two rows
STEPS_OF_SUM = 240  # beside which moving a sum through the cache is nothing
WORTH_STEPS = 12  # an operation on a sum: it wants registers that all sums of a tile have
FEWEST_DONE = 4  # operations on a sum: fewer are not more code than moving it
AT_ONCE = 6  # vectors that functions are evaluated of
WORTH_ROWS = 0.97  # of the time where threads share panels, for them to share rows
FEWEST_ROWS = 4  # of a tile: with fewer, loads take longer than products
FAR_BYTE = (
    0.2  # cycles of a byte of rows from behind the second cache, fitted on two cores of a Sapphire Rapids
)
NARROW = 8  # vectors of a row that is too short to be cut into tiles alone


def tile_shape(
    rows: int, columns: int, lanes: int, machine: Machine, spread: bool = True, sums: int | None = None
) -> tuple[int, int]:
    """(MR, NR) for so many rows and columns: the most work per loaded element that fits the registers.

    Elements along the rows are loaded one by one and spread; or, where they lie side by side and instructions
    take one lane of a vector, in whole vectors.

    Accumulators take three quarters of the registers; the rest is for what is being loaded. What a vector
    that is loaded weighs in elements that are spread, the machine knows. Columns beyond the last whole tile
    are whole vectors of a second nest, or guarded ones of the first; rows beyond the last whole tile are
    computed for nothing.
    `sums` is the most accumulators, if there shall be fewer.
    """
    best, shape = 0.0, (1, lanes)
    sums = machine.registers * 3 // 4 if sums is None else min(sums, machine.registers * 3 // 4)
    for vectors in range(1, 7):
        width = vectors * lanes
        for height in range(1, 17):
            if height * vectors > sums or height > max(1, rows):
                continue
            if not spread and height % lanes:
                continue
            one = machine.rates.vector_load
            reuse = height * vectors / ((height if spread else one * height / lanes) + one * vectors)
            unit = width if machine.masked_memory or columns < width else lanes
            filled = columns / (-(-columns // unit) * unit) * rows / (-(-rows // height) * height)
            score = reuse * filled * (1.0 if columns % width == 0 else 0.97)
            if score > best + 1e-9:
                best, shape = score, (height, width)
    return shape


def tile(builder: Builder, product: Contraction, is_remainder: bool = False) -> bool:
    """Cuts the register tile and packs the panel.

    Where vectors have no masks, columns beyond the last whole tile become a nest of their own, with a tile
    that fits them, so that the stores of the whole tiles need no guards.
    """
    machine = builder.machine
    if not is_remainder:
        product = _with_joined_columns(builder, product)
    known, rows, columns = size(product.i), trips(product.i), trips(product.j)
    any_columns = size(product.j) is None
    if any_columns and (is_remainder or columns < NARROW * machine.vector_bytes):
        return False
    lanes = max(1, machine.vector_bytes // value_bytes(product.reduce))
    packs_rows = None if is_remainder or any_columns else _packs_rows(builder, product)
    beside = all(a.step(product.i) == 1 for a in product.along_i)
    spread = not (machine.lane_operands and (beside or packs_rows) and rows >= lanes)
    planned = rows if known is not None else min(rows, ANY_ROWS)
    shape = tile_shape(planned, columns, lanes, machine, spread, SUMS_OF_REST if is_remainder else None)
    height, width = shape if packs_rows else _for_far_rows(builder, product, shape, lanes)
    i, j = int(product.i.arg[0]), int(product.j.arg[0])
    panel = _panel(
        builder, product, -(-height // 2) if is_remainder else height, width, machine
    )  # a rest is packed like the others
    if panel is None and any(a.step(product.j) != 1 for a in product.along_j):
        return False  # vectors along j would be gathered at every step
    if panel and packs_rows and (known is not None or not _lies_apart(builder, product, packs_rows)):
        return _tile_blocks(builder, product, (height, width), panel, packs_rows)
    if panel is not None:
        i, j = _innermost(builder, product, i, j)
    if known is None:
        builder.do("PADTO", i, height)
    peeled = False
    single = len(builder.ast.src) == 1  # the rests of several effects would not share their loops
    peels = columns % width and not machine.masked_memory and not is_remainder and columns > width and single
    shared: list[int] = []
    pieces = 1
    if known is not None and panel is not None and not is_remainder and builder.shares:
        pieces = _row_pieces(builder, product, (height, width), panel, bool(peels))
    if pieces > 1:
        own = -(-rows // (height * pieces)) * height
        if rows % (own * pieces):
            builder.do("PADTO", i, own * pieces)
        inner = builder.loops.next_number()
        if peels or any_columns:  # the rest of the columns is shared by rows as well
            i = inner if builder.do("THREAD", i, pieces) else i
        elif builder.do("TILE", i, own):
            others = [int(r.arg[0]) for r in product.outputs if r not in (product.i, product.j)]
            shared, i = [*others, i, j], inner
    elif known is not None and rows % height:
        builder.do("PADTO", i, height)
    if any_columns:
        builder.do("PADTO", j, width)
    if peels and not any_columns:
        builder.do("PADTO", j, lanes)  # a rest of whole vectors; the guards of all others fold
        peeled = builder.do("PEEL", j, width)
    if columns % width and not peeled and not any_columns:
        builder.do("PADTO", j, width)
    row_axis = builder.loops.next_number()
    if height == 1 or not builder.do("UPCAST", i, height):
        row_axis = i
    lane_axis = builder.loops.next_number()
    if not builder.do("UPCAST", j, width):
        return False
    if row_axis != i:
        _cache_result(builder, product, (row_axis, height), (lane_axis, width // lanes))
    steps = [int(k.arg[0]) for k in steps_of(product.reduce)]
    if panel is not None:
        pack(builder, panel, steps, lane_axis)
    if packs_rows is not None and row_axis != i:
        pack(builder, packs_rows, [i, *steps], row_axis)
        join_steps(builder, steps)
    else:
        _walk(builder, product, steps)
    if peeled:
        _tile_remainder(builder)
    if shared:
        share_loops(builder, [axis for axis in shared if axis in builder.loops.by_number])
    return True


def _cache_result(
    builder: Builder, product: Contraction, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """Has the rows of a tile walked one after the other where much is done to each sum: the code is that of
    one row, and moving a sum through the cache is little beside its steps.

    Where functions are evaluated, a few vectors at a time fill the gaps in their chains.
    """
    done, chains = 0.0, 0
    for effect in product.effects:
        value = store_of(effect).src[1]
        if value is product.reduce:
            continue
        after = toposort(value, stop=lambda n: n.op in (Ops.REDUCE, Ops.BUFFERIZE))
        if any(n.op in (Ops.REDUCE, Ops.BUFFERIZE) and n is not product.reduce for n in after):
            return  # what is computed of whole rows would be computed one by one as well
        done += weight(value, product.j, builder.machine.op_costs)
        chains += functions(value, product.j)
    steps = math.prod(map(trips, closed_ranges(product.reduce)))
    if done < FEWEST_DONE or steps + done * WORTH_STEPS < STEPS_OF_SUM:
        return
    (row_axis, height), (lane_axis, vectors) = rows, columns
    most = max(1, AT_ONCE // vectors) if chains else 1
    some = max(n for n in range(1, most + 1) if height % n == 0)
    if height >= max(3, 2 * some):
        builder.do("CACHE_RESULT", -1, some, (row_axis, lane_axis))


def _packs_rows(builder: Builder, product: Contraction) -> Access | None:
    """The read along i that is packed too: it jumps in memory, something is computed of it first, or all rows
    together do not stay in the second cache while the panels pass."""
    machine = builder.machine
    if product.along_j[0].buffer < 0 or any(size(k) is None for k in closed_ranges(product.reduce)):
        return None
    steps = frozenset(closed_ranges(product.reduce))
    reads = [a for a in product.along_i if steps <= ranges(a.node) and a.buffer >= 0]
    if trips(product.j) < FEWEST_REUSES * machine.lanes(product.reduce.dtype):
        return None
    if len({packed_value(builder.loops, a.node) for a in reads}) != 1:
        return None  # what is computed of several reads is one value, wherever it is begun with
    read = reads[0]
    one = math.prod(map(trips, steps)) * value_bytes(product.reduce)
    if size(product.i) is None and trips(product.i) * one > machine.local_bytes * 3 // 4:
        return None  # all rows at once, as many as there may be: where blocks end nobody knows
    if _lies_apart(builder, product, read):
        return read
    fits = trips(product.i) * one <= machine.l2_bytes // 2
    reuses = trips(product.j) // (builder.machine.cores if builder.shares else 1)
    return None if fits or reuses < WORTH_PACKING else read


def _lies_apart(builder: Builder, product: Contraction, read: Access) -> bool:
    """Whether rows jump in memory, or are computed first."""
    steps = closed_ranges(product.reduce)
    return all(read.step(k) != 1 for k in steps) or packed_value(builder.loops, read.node) is not read.node


def _tile_blocks(
    builder: Builder, product: Contraction, shape: tuple[int, int], panel: Access, rows: Access
) -> bool:
    """Cuts the tile and packs both operands.

    A stretch of panels is packed at once. Then come blocks of rows: as many tiles as fit the second cache are
    packed, and all panels of the stretch pass over them; where all rows fit, one panel after the other.
    Threads share the stretches, or the rows if these are more, since what is not shared is packed by each.
    """
    height, width = shape
    machine, apart = builder.machine, _lies_apart(builder, product, rows)
    packed = panel, rows
    j, i = _innermost(builder, product, int(product.j.arg[0]), int(product.i.arg[0]))
    i, j = _innermost(builder, product, i, j)
    panels, tiles = -(-trips(product.j) // width), -(-trips(product.i) // height)
    shares = _shares(builder, product)
    by_rows = (
        shares > 1
        and size(product.i) is not None
        and _rows_are_shared(builder, product, shape, packed, shares)
    )
    step_bytes = math.prod(map(trips, closed_ranges(product.reduce))) * value_bytes(product.reduce)
    pieces = -(-panels * width * step_bytes // (machine.local_bytes // 2))
    if not by_rows:
        pieces = shares * -(-pieces // shares)
    stretch = -(-panels // min(panels, pieces))
    own = -(-tiles // shares) if by_rows else tiles
    again = panel_tiles(machine, height, value_bytes(product.reduce))
    block = fitting(own, machine.l2_bytes // 2 // (height * step_bytes), again)
    if size(product.i) is None:
        block = 1  # no more than a tile is computed for nothing
    if apart and tile_k_blocks(builder, product, shape, packed, (i, j), shares):
        return True
    known = size(product.i) is not None and size(product.j) is not None
    if known and tile_far_blocks(builder, product, shape, packed, (i, j), shares, stretch):
        return True
    if block == own:  # all rows stay in the cache: panels need not be packed before others are used
        stretch = min(stretch, max(1, machine.ahead_of_use // (width * step_bytes)))
    whole = block * height * (shares if by_rows else 1)
    if trips(product.j) % (stretch * width):
        builder.do("PADTO", j, stretch * width)
    if size(product.i) is None or trips(product.i) % whole:
        builder.do("PADTO", i, whole)
    number = builder.loops.next_number()
    if by_rows and builder.do("THREAD", i, shares):
        i, number = number, number + 1
    inner_j, inner_i = j, i
    if builder.do("TILE", j, stretch * width):
        inner_j, number = number, number + 1
    if builder.do("TILE", i, block * height):
        inner_i = number
        if inner_j == j and j < i and builder.do("SWAP", j, i):  # one stretch passes over each block
            inner_j = i
    row_axis = builder.loops.next_number()
    if not builder.do("UPCAST", inner_i, height):
        row_axis = inner_i
    lane_axis = builder.loops.next_number()
    if not builder.do("UPCAST", inner_j, width):
        return False
    if row_axis != inner_i:
        vectors = width * value_bytes(product.reduce) // machine.vector_bytes
        _cache_result(builder, product, (row_axis, height), (lane_axis, vectors))
    steps = [int(k.arg[0]) for k in steps_of(product.reduce)]
    for read, outer, axis in ((panel, inner_j, lane_axis), (rows, inner_i, row_axis)):
        around = [outer] if outer in builder.loops.by_number and outer != axis else []
        pack(builder, read, [*around, *steps], axis)
    join_steps(builder, steps)
    if shares > 1 and inner_j != j:
        share_with_others(builder, product, j)
    return True


def _rows_are_shared(
    builder: Builder, product: Contraction, shape: tuple[int, int], packed: tuple[Access, Access], shares: int
) -> bool:
    """Whether threads share tiles of rows rather than panels: by what one of them multiplies, all whole tiles
    that it has, and packs, its part of one operand and all of the other."""
    (height, width), (panel, rows) = shape, packed
    panels, tiles = -(-trips(product.j) // width), -(-trips(product.i) // height)
    steps = closed_ranges(product.reduce)
    column = operations_to_copy(panel.step(product.j) == 1, builder.machine) * width
    row = operations_to_copy(any(rows.step(k) == 1 for k in steps), builder.machine) * height

    def time(panels: int, tiles: int) -> float:
        return panels * tiles * width * height * PRODUCT + panels * column + tiles * row

    mine = time(panels, -(-tiles // shares)), time(-(-panels // shares), tiles)
    return trips(product.i) > 2 * trips(product.j) or mine[0] < WORTH_ROWS * mine[1]


def _tile_remainder(builder: Builder) -> None:
    """The same for the columns that were left over."""
    effect = builder.ast.src[-1]
    for node in toposort(effect):
        product = contraction_of((effect,), node) if node.op is Ops.REDUCE else None
        if product is not None:
            tile(builder, product, is_remainder=True)
            return


def _with_joined_columns(builder: Builder, product: Contraction) -> Contraction:
    """The product over a longer row of outputs, where one row is short and the next follows it in memory.

    A picture of 7 × 7 is 49 outputs rather than seven times 7 of 8: whole vectors, fewer panels, each used
    by all rows of the tile. Only the panel is gathered in another order, which is done once. Where its rows
    would no longer be vectors, as in windows that move by two, it may take longer than a tile with a rest.
    """
    gather = TWO_ROWS if product.along_j[0].step(product.j) == 1 else GATHER
    while True:
        j, machine = product.j, builder.machine
        lanes = max(1, machine.vector_bytes // value_bytes(product.reduce))
        columns = trips(j)
        if (
            size(j) is None
            or columns >= NARROW * lanes
            or _panel(builder, product, 1, NARROW, machine) is None
        ):
            return product
        panel = product.along_j[0].node
        width = tile_shape(trips(product.i), columns, lanes, machine)[1]
        unfilled = -(-columns // width) * width / columns - 1  # of the steps of a tile, two at a time
        cheaper = (
            unfilled * trips(product.i) > gather * 2 * lanes or _row_bytes(product) > machine.l2_bytes // 2
        )
        others = [access(n) for n in builder.loops.order if n.op is Ops.INDEX and n is not panel]
        found = [
            y
            for y in output_loops(product.effects[0])
            if y.arg[1] is AxisKind.LOOP and y is not j and y is not product.i and size(y) is not None
            if all(follows(a, y, j, columns) for a in others) and y in ranges(panel)
            if cheaper or follows(product.along_j[0], y, j, columns)
        ]
        if not found or not builder.do("JOIN", int(found[0].arg[0]), int(j.arg[0])):
            return product
        effect = builder.ast.src[0]
        again = [contraction_of((effect,), n) for n in toposort(effect) if n.op is Ops.REDUCE]
        product = next((p for p in again if p is not None), product)


def _for_far_rows(
    builder: Builder, product: Contraction, shape: tuple[int, int], lanes: int
) -> tuple[int, int]:
    """The tile, or a wider one that has all columns, where rows come from behind the second cache: they come
    once for each panel, or once in all if there is one and threads share the rows.

    A panel is read again for every tile, so it has to stay in the second cache.
    """
    machine, rows, columns = builder.machine, trips(product.i), trips(product.j)
    vectors, nbytes = -(-columns // lanes), _row_bytes(product)
    height = min(machine.registers * 3 // 4 // vectors, rows)
    steps_bytes = nbytes // rows
    if not machine.masked_memory or height < FEWEST_ROWS or vectors * lanes <= shape[1]:
        return shape
    if size(product.i) is None or size(product.j) is None:
        return shape
    if nbytes <= machine.l2_bytes // 16 or vectors * lanes * steps_bytes > machine.l2_bytes // 2:
        return shape
    threads = machine.cores if builder.shares else 1
    steps = steps_bytes // value_bytes(product.reduce)

    def time(height: int, width: int) -> float:
        panels = -(-columns // width)
        products = (
            -(-rows // height) * height * panels * width // lanes * steps * machine.rates.issue / threads
        )
        return products + nbytes * (-(-panels // threads) if panels > 1 else 1 / threads) * FAR_BYTE

    return min(shape, (height, vectors * lanes), key=lambda s: time(*s))


def _row_bytes(product: Contraction) -> int:
    """What all rows of the left factor have, which pass by each panel."""
    steps = math.prod(map(trips, closed_ranges(product.reduce)))
    return trips(product.i) * steps * value_bytes(product.reduce)


def _shares(builder: Builder, product: Contraction) -> int:
    """Threads that share rows or columns; one where there are enough other loops."""
    others = math.prod(trips(r) for r in product.outputs if r not in (product.i, product.j))
    return builder.machine.cores if builder.shares and others < builder.machine.cores else 1


def _row_pieces(
    builder: Builder, product: Contraction, shape: tuple[int, int], panel: Access, has_rest: bool
) -> int:
    """Pieces of the rows that threads share beside the panels, each of which packs the panel for itself.

    A rest of the columns, which is no panel, is shared by rows only.
    """
    (height, width), cores = shape, builder.machine.cores
    panels = -(-trips(product.j) // width)
    for r in output_loops(product.effects[0]):
        if r not in (product.i, product.j):
            panels *= trips(r)
    tiles = -(-trips(product.i) // height)
    if has_rest:
        even = panels >= 4 * cores or panels % cores == 0
        return 1 if even or trips(product.i) < 2 * height * cores else cores
    packing = operations_to_copy(panel.step(product.j) == 1, builder.machine)  # for a step of a column
    times = {
        pieces: -(-panels * pieces // cores) * (packing + -(-tiles // pieces) * height * PRODUCT)
        for pieces in range(1, min(tiles, cores) + 1)
    }
    best = min(times, key=lambda pieces: (times[pieces], pieces))
    return best if times[best] < WORTH * times[1] else 1


def _walk(builder: Builder, product: Contraction, steps: list[int]) -> None:
    """Makes one plain loop of the steps where all reads allow it, and takes two of them at a time."""
    loops = steps_of(product.reduce)
    join_steps(builder, steps)
    last = builder.loops.by_number.get(steps[-1])
    if last is None or not builder.machine.lane_operands:
        return
    along_i = [a for a in product.along_i if loops[-1] in ranges(a.node)]
    if not along_i or any(a.step(loops[-1]) != 1 for a in along_i):
        return
    if size(last) is None or trips(last) > FEWEST_STEPS:
        builder.do("PEEL", steps[-1], 2)
    builder.do("UNROLL", steps[-1], 2)


def _panel(
    builder: Builder, product: Contraction, height: int, width: int, machine: Machine
) -> Access | None:
    """The read along j that is worth packing, with what scales it.

    Steps whose number is known later are packed up to their bound, if they are one loop.
    """
    read, *scales = product.along_j
    # what lies apart in memory is gathered: once for a panel, or again for every tile of rows
    reuses = FEWEST_REUSES * (height if read.step(product.j) == 1 else 1)
    if read.buffer < 0 or trips(product.i) < reuses:
        return None
    if scales and not {a.node for a in scales} <= set(toposort(packed_value(builder.loops, read.node))):
        return None
    loops = closed_ranges(product.reduce)
    steps = math.prod(trips(k) for k in loops if k in ranges(read.node))
    if any(size(k) is None for k in loops) and len(loops) > 1:
        return None
    return read if steps * width * value_bytes(product.reduce) <= machine.local_bytes // 4 else None


def _innermost(builder: Builder, product: Contraction, i: int, j: int) -> tuple[int, int]:
    """Moves loop i inside all other output loops, so that what is packed outside of it serves all of it."""
    for other in sorted(int(r.arg[0]) for r in output_loops(product.effects[0])):
        if other <= i or not builder.do("SWAP", i, other):
            continue
        j = i if j == other else j
        i = other
    return i, j
