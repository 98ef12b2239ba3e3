"""Products whose panels leave the first cache, some steps at a time (what BLIS calls K blocking).

A panel of many steps is fetched from the second cache again for every tile of rows, and so are the rows. In
blocks of steps a part of a panel stays in the first cache while all rows pass, packed in the second one; the
totals of all outputs are kept there as well, and what follows the product is done to them at the end.
"""

from __future__ import annotations

import math

from morok.machine.machine import Machine
from morok.optimize.contraction import Contraction
from morok.optimize.facts import Access, trips, value_bytes
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.packing import fitting, join_steps, pack, steps_of
from morok.optimize.heuristics.sharing import share_with_others

FEWEST = 64  # steps of a block, beside which moving a tile's totals is little
LONG = 1.6  # a panel, in sizes of the first cache: shorter ones come from the second cache in time
FOR_PANEL = 5 / 8  # of the first cache
FOR_ROWS = 1 / 4  # of the second cache, and as much for totals
PACKED = 0.5  # packing the rows again takes as long as multiplying them by half a panel, or the reverse
WORTH_TOTALS = 0.1  # of the time of a product: less is not worth totals in memory
WASTE = 1.1  # outputs that are computed for nothing cost more than panels that each thread packs


def tile_k_blocks(
    builder: Builder,
    product: Contraction,
    shape: tuple[int, int],
    packed: tuple[Access, Access],
    axes: tuple[int, int],
    shares: int,
) -> bool:
    """Cuts the tile in blocks of steps; False, and nothing done, where all steps are few enough."""
    machine, (height, width) = builder.machine, shape
    nbytes = value_bytes(product.reduce)
    first, *others = steps_of(product.reduce)
    inside = math.prod(map(trips, others))
    panels, tiles = -(-trips(product.j) // width), -(-trips(product.i) // height)
    by_rows = _by_rows(product, shape, shares)
    own_panels = panels if by_rows else -(-panels // shares)
    own_tiles = -(-tiles // shares) if by_rows else tiles
    step_bytes = inside * nbytes
    most = min(
        machine.l1_bytes * FOR_PANEL / (width * step_bytes),
        max(FEWEST / inside, machine.l2_bytes * FOR_ROWS / (own_tiles * height * step_bytes)),
    )
    amount = max(n for n in range(1, max(1, min(int(most), trips(first))) + 1) if trips(first) % n == 0)
    if own_panels < 2 or amount == trips(first) or amount * inside < FEWEST:
        return False
    if trips(first) * width * step_bytes <= LONG * machine.l1_bytes:
        return False
    block = fitting(own_tiles, int(machine.l2_bytes * FOR_ROWS) // (height * amount * step_bytes), PACKED)
    stretch = fitting(
        own_panels, int(machine.l2_bytes * FOR_ROWS) // (block * height * width * nbytes), PACKED
    )
    return _cut(builder, product, shape, packed, axes, shares, (stretch, block, amount), by_rows, False)


def tile_far_blocks(
    builder: Builder,
    product: Contraction,
    shape: tuple[int, int],
    packed: tuple[Access, Access],
    axes: tuple[int, int],
    shares: int,
    stretch: int,
) -> bool:
    """Cuts the tile in blocks of steps where panels come from behind the second cache too often otherwise.

    So many rows stay in half of the second cache, and each panel comes once for all of them. Rows of fewer
    steps are more rows, but totals come and go once for each block of steps. The panels of a stretch are
    packed for all blocks before.
    """
    machine, height = builder.machine, shape[0]
    nbytes = value_bytes(product.reduce)
    first, *others = steps_of(product.reduce)
    inside = math.prod(map(trips, others))
    count = trips(first)
    held = machine.l2_bytes // 2 // nbytes

    def far(amount: int) -> float:
        """Elements from behind the second cache for a step of an output."""
        steps = amount * inside
        totals = 0.0 if amount == count else 2 / steps + 2 / (count * inside)
        return 1 / min(trips(product.i), max(height, held // steps // height * height)) + totals

    most = min(count, held // (height * inside)) if machine.rates.far_byte else 0
    amount = min((count, *(n for n in range(1, most + 1) if count % n == 0)), key=far)
    step = step_cycles(machine, nbytes)
    saved = (far(count) - far(amount)) * nbytes * machine.rates.far_byte
    if amount == count or saved < WORTH_TOTALS * step:
        return False
    by_rows = shares > 1 and trips(product.i) > 2 * trips(product.j)
    tiles = -(-trips(product.i) // height)
    own = -(-tiles // shares) if by_rows else tiles
    block = fitting(own, max(1, held // (amount * inside * height)), panel_tiles(machine, height, nbytes))
    cut = stretch, block, amount
    return _cut(builder, product, shape, packed, axes, shares, cut, by_rows, block < own)


def step_cycles(machine: Machine, nbytes: int) -> float:
    """Cycles of one step of one output."""
    return machine.rates.issue * nbytes / machine.vector_bytes


def panel_tiles(machine: Machine, height: int, nbytes: int) -> float:
    """What a panel costs that comes from behind the second cache, in tiles of rows that pass over it."""
    return max(0.01, machine.rates.far_byte * nbytes / (height * step_cycles(machine, nbytes)))


def _cut(
    builder: Builder,
    product: Contraction,
    shape: tuple[int, int],
    packed: tuple[Access, Access],
    axes: tuple[int, int],
    shares: int,
    blocks: tuple[int, int, int],
    by_rows: bool,
    ahead: bool,
) -> bool:
    """Blocks of so many panels, tiles of rows and steps; `ahead`: the panels are packed for all steps before
    the rows pass, and not for each block of them."""
    machine, (height, width), (i, j) = builder.machine, shape, axes
    stretch, block, amount = blocks
    first = steps_of(product.reduce)[0]
    before = builder.loops
    if trips(product.j) % (stretch * width):
        builder.do("PADTO", j, stretch * width)
    whole = block * height * (shares if by_rows else 1)
    if trips(product.i) % whole:
        builder.do("PADTO", i, whole)
    if by_rows and j < i and builder.do("SWAP", j, i):  # what threads share is around all others
        i, j = j, i
    number = builder.loops.next_number()
    if by_rows and builder.do("THREAD", i, shares):
        i, number = number, number + 1
    inner_j, inner_i = j, i
    if builder.do("TILE", j, stretch * width):
        inner_j, number = number, number + 1
    if builder.do("TILE", i, block * height):
        inner_i = number
        if inner_j == j and j < i and builder.do("SWAP", j, i):
            i, j, inner_j = j, i, i
    cut = builder.loops.next_number()
    row, column = cut + 1, cut + 2
    if not builder.do("SPLIT_K", int(first.arg[0]), amount, (inner_i, inner_j)):
        builder.loops = before
        return False
    if builder.do("SWAP", row, column):  # each panel is used up as soon as it is packed
        row, column = column, row
    row_axis = builder.loops.next_number()
    row_axis = row_axis if builder.do("UPCAST", row, height) else row
    lane_axis = builder.loops.next_number()
    if not builder.do("UPCAST", column, width):
        builder.loops = before
        return False
    steps = [int(k.arg[0]) for k in steps_of(product.reduce)]
    around = [row] if row in builder.loops.by_number and row != row_axis else []
    panels = [cut, column] if ahead and column in builder.loops.by_number and column != lane_axis else []
    pack(builder, packed[0], [*panels, *steps], lane_axis)
    pack(builder, packed[1], [*around, *steps], row_axis)
    join_steps(builder, steps)
    lanes = machine.lanes(product.reduce.dtype)
    vectors = max(n for n in (1, 2, 3, 4) if stretch * width % (n * lanes) == 0)
    builder.do("UPCAST", inner_j, vectors * lanes)
    if shares > 1 and not by_rows and inner_j != j:
        share_with_others(builder, product, j)
    return True


def _by_rows(product: Contraction, shape: tuple[int, int], shares: int) -> bool:
    """Whether threads share the rows rather than the columns."""
    rows, columns = trips(product.i), trips(product.j)
    for_rows, for_columns = (
        -(-count // (unit * shares)) * unit * shares / count
        for count, unit in ((rows, shape[0]), (columns, shape[1]))
    )
    return shares > 1 and (rows > 2 * columns or for_columns > WASTE * for_rows)
