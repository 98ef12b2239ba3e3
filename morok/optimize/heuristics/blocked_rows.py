"""Products whose left rows lie in memory in blocks, a few vectors wide, one step after the other.

    y[o, p] = Σ over k of w[o, k] · x[k, p],   w kept as [o / width][k][o % width]

Whoever has weights that stay the same, a model's convolutions say, may keep them so. A tile then has its
vectors along a block: they come from memory as they lie, in order, and each element of x is loaded once for
all of them. Nothing is packed at a call, windows of a picture included, and no lane is computed for nothing,
however long a row of the picture is. The price is that results are turned when they are stored, so short sums
are better off with vectors along p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.contraction import FEWEST_STEPS
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, touched, trips, value_bytes
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.packing import join_steps, steps_of
from morok.optimize.loops import size

STRETCH = 256  # additions into one place, between which sums of floats are put aside
PANELS = (3, 2)  # vectors of a panel of a matrix on the right: 8x48 with 32 registers
MOST_ROWS = 128  # two cores of a Cascade Lake, as it lies: 16 rows 1.4 of the time, 128 1.1, 256 0.95
MANY_REGISTERS = 32
FEWEST_ROWS = 16  # with less (AVX2), as they lie: 4 rows 0.65 of the time, 16 and 64 1.4, 128 1.6
WIDTHS = (2, 3, 1)  # vectors of a block, the best first
# Cycles, fitted to windows of 3x3 on two cores of a Sapphire Rapids: rows of 14 to 80, 64 to 512 channels.
TURN = 1.0  # to store an output whose neighbours in a vector do not lie beside it
LOAD = 1.15  # instructions that a load is worth
FURTHER = 2.5  # and a line of a block besides, which comes from the second cache
FAR = 0.3  # of a byte of weights, which the first tile of a block waits for if nobody has asked for it before
BESIDE = 1.25  # what a tile with vectors along p takes longer: its panels, and weights that come again
JOINED = 1.1  # and again, where vectors are put together from two rows


def block_width(rows: int, row: int, places: int, steps: int, itemsize: int, machine: Machine) -> int | None:
    """How wide the blocks should be for so many rows on the left and `places` on the right, of which `row`
    lie side by side, for sums over so many steps; None where weights had better stay as they are."""
    lanes = machine.vector_bytes // itemsize
    if not _takes_blocks(machine) or lanes < 2:
        return None
    fitting = [n for n in WIDTHS if rows % (n * lanes) == 0]
    if not fitting:
        return None
    vectors = min(fitting, key=lambda n: _of_vector(n, lanes, row, places, steps, machine))
    return vectors * lanes if _is_faster(vectors, lanes, row, places, steps, machine) else None


def panel_width(rows: int, columns: int, itemsize: int, machine: Machine) -> int | None:
    """How wide panels of a matrix on the right should be that are laid out once, for so many rows on the
    left; None where the matrix had better stay as it is."""
    lanes = machine.vector_bytes // itemsize
    few = machine.registers < MANY_REGISTERS
    if not _takes_blocks(machine) or not (FEWEST_ROWS if few else 2) <= rows <= MOST_ROWS or lanes < 2:
        return None
    return next((n * lanes for n in PANELS[: 1 if few else None] if columns % (n * lanes) == 0), None)


def _takes_blocks(machine: Machine) -> bool:
    """Where instructions multiply by one lane of a vector, the left side is cheap as it is."""
    return machine.masked_memory and not machine.lane_operands and not machine.block_threads


def _is_faster(vectors: int, lanes: int, row: int, places: int, steps: int, machine: Machine) -> bool:
    """Whether a step of a place and a vector takes less time with vectors along blocks than along rows."""
    if steps < FEWEST_STEPS or row < 2:
        return False
    joined = row < lanes  # short rows are put together
    count = places if joined else row
    beside = BESIDE * (JOINED if joined else 1.0) * (-(-count // lanes) * lanes / count) * machine.rates.issue
    return _of_vector(vectors, lanes, row, places, steps, machine) < beside


def _of_vector(vectors: int, lanes: int, row: int, places: int, steps: int, machine: Machine) -> float:
    """Cycles of a step of a place and a vector of a block: its part of a tile, of what the first tile waits
    for, and of the stores."""
    height = tile_height(row, vectors, machine)
    waits = max(0.0, machine.vector_bytes * FAR - height * machine.rates.issue) / places
    waits *= not machine.prefetch_blocks
    return _cycles(height, vectors, machine) / (height * vectors) + waits + TURN * lanes / steps


def tile_height(count: int, vectors: int, machine: Machine) -> int:
    """Rows of a tile of so many vectors. They divide the places: an edge would give each row of a tile an
    address of its own."""
    most = min(count, max(1, (machine.registers - vectors - 1) // vectors))
    even = [n for n in range(1, most + 1) if count % n == 0]
    return min(even, key=lambda n: _cycles(n, vectors, machine) / n)


def _cycles(height: int, vectors: int, machine: Machine) -> float:
    """Of a step of a tile: products, or loads if these take longer, and a block that comes from further."""
    busy = max(height * vectors, LOAD * (height + vectors), machine.rates.latency / machine.rates.issue)
    return (busy + FURTHER * vectors * machine.vector_bytes / machine.line_bytes) * machine.rates.issue


@final
@dataclass(frozen=True, eq=False)
class Blocked:
    """A sum with a factor that lies in blocks."""

    block: UOp  # the loop inside of a block
    row: UOp  # the loop over outputs that lie side by side
    weights: Access
    other: Access


def blocked_rows(builder: Builder, effects: Sequence[UOp], reduce: UOp) -> bool:
    """Cuts the tile; False, and nothing done, where no factor lies in blocks."""
    found = find_blocked(effects, reduce, builder.machine)
    if found is None:
        return False
    before = builder.loops
    vectors = trips(found.block) * value_bytes(reduce) // builder.machine.vector_bytes
    _order(builder, effects[0], found)
    height = tile_height(trips(found.row), vectors, builder.machine)
    axes = []
    for r, amount in ((found.row, height), (found.block, trips(found.block))):
        number, inner = int(r.arg[0]), builder.loops.next_number()
        if not builder.do("UPCAST", number, amount):
            builder.loops = before
            return False
        axes.append(inner if inner in builder.loops.by_number else number)
    builder.do("CACHE_RESULT", -1, 1, (axes[0], axes[1]))
    steps = [int(k.arg[0]) for k in steps_of(reduce)]
    join_steps(builder, steps)
    _in_stretches(builder, steps)
    return True


def _in_stretches(builder: Builder, steps: list[int]) -> None:
    """Cuts the outermost loop of a long sum into the stretches that it will be added up in, so that blocks
    are read in order there as well: what is cut off later is the innermost loop."""
    first, *inside = steps
    each = math.prod(trips(builder.loops.by_number[k]) for k in inside)
    count = trips(builder.loops.by_number[first])
    if not inside or each * count <= 2 * STRETCH or 2 * each > STRETCH:
        return
    amount = max(n for n in range(1, STRETCH // each + 1) if count % n == 0)
    part = builder.loops.next_number()
    if amount > 1 and builder.do("TILE", first, amount):
        for k in inside:  # behind the outer part, before the others
            builder.do("SWAP", k, part)


def _order(builder: Builder, effect: UOp, found: Blocked) -> None:
    """Has each block pass over all places, a batch included, before the next one comes, or all blocks over a
    row of places: whichever is less memory stays near."""
    outputs = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP]
    blocks = [int(r.arg[0]) for r in outputs if found.weights.moves(r) and r is not found.block]
    places = [int(r.arg[0]) for r in outputs if not found.weights.moves(r) and r is not found.row]
    if not blocks or not places:
        return
    if touched(found.weights) > touched(found.other):
        if places[0] < blocks[-1]:
            builder.do("SWAP", places[0], blocks[-1])
    elif blocks[0] < places[-1]:
        builder.do("SWAP", blocks[0], places[-1])


def find_blocked(effects: Sequence[UOp], reduce: UOp, machine: Machine) -> Blocked | None:
    """The factor of a sum that lies in blocks of whole vectors, and what it is multiplied by along a row."""
    if not _takes_blocks(machine) or reduce.arg != (Ops.ADD,) or any(e.op is not Ops.END for e in effects):
        return None
    steps = closed_ranges(reduce)
    if any(size(k) is None for k in steps):
        return None
    outputs = [r for r in output_loops(effects[0]) if r.arg[1] is AxisKind.LOOP and r in ranges(reduce)]
    stores, reads = [access(store_of(effect).src[0]) for effect in effects], reads_of(reduce.src[0])
    lanes = max(1, machine.vector_bytes // value_bytes(reduce))
    rows = [r for r in outputs if size(r) is not None and all(s.step(r) == 1 for s in stores)]
    for block in outputs:
        along = [a for a in reads if a.moves(block)]
        if size(block) not in [n * lanes for n in WIDTHS] or len(along) != 1 or len(reads) != 2 or not rows:
            continue
        (weights,), (other,) = along, [a for a in reads if a is not along[0]]
        if block in rows or not _lies_in_order(weights, block, steps):
            continue
        if weights.moves(rows[0]) or not other.moves(rows[0]):
            continue
        places = math.prod(trips(r) for r in outputs if not weights.moves(r))
        count = math.prod(map(trips, steps))
        if _is_faster(trips(block) // lanes, lanes, trips(rows[0]), places, count, machine):
            return Blocked(block, rows[0], weights, other)
    return None


def _lies_in_order(read: Access, block: UOp, steps: tuple[UOp, ...]) -> bool:
    """Whether a block lies in memory from its first step to its last without a gap."""
    if read.buffer < 0 or read.step(block) != 1:
        return False
    reached = trips(block)
    for k in sorted(steps, key=lambda k: read.step(k) or 0):
        if read.step(k) != reached:
            return False
        reached *= trips(k)
    return True


__all__ = ["block_width", "blocked_rows", "tile_height"]
