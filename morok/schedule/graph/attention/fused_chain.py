"""Tiles of chains of products in float32, which have no matrix unit: a warp computes them by fused products.

A lane has eight rows of every 8th, 16th or 32nd column, so a warp has 32, 16 or 8 rows: the wider a row of
the result, the fewer of them have room. Rows of all operands are whole panels in shared memory, filled up by
zeros. What a tile takes is counted in fused products of a warp, of which a multiprocessor starts four in a
clock.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from morok.forks import cached_property
from morok.ir.bounds import vmax
from morok.ir.matrix import FUSED_ROWS, FUSED_SIDE, MatrixUnit
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import Ops
from morok.machine.grid_time import Problem, product_clocks
from morok.machine.machine import Machine
from morok.machine.rates import Attention
from morok.rewrite.engine import substitute
from morok.schedule.graph.attention.chain import Chain, fused_registers, panels
from morok.symbolic.sets import simplify

SCHEDULERS = 4  # of a multiprocessor
OTHER_REGISTERS = 60
SAMPLES = (16, 17)  # positions along rows and keys to look at a mask: half of them are below a diagonal
WORTH = 1.4  # of the time, that no memory as large as the square of the length is needed
ALONE = 0.97  # of the rate, where a block waits for each of its tiles


class Tile(NamedTuple):
    """A block: rows of q for each of its warps or warp groups, how many these are, keys of a step, and
    tiles of k and v: one is read, others are under way. With roles a group of its own brings them."""

    unit: MatrixUnit
    rows: int
    teams: int
    keys: int
    depth: int
    roles: bool = False


def _reads(columns: int) -> int:
    """Reads of a lane for neighbouring columns of a panel: a vector of four at once, others one by one."""
    return 1 if columns == 4 else columns


def trips(r: UOp) -> int:
    """The most steps of a loop."""
    return max(1, int(vmax(r.src[0])))


class Seen(NamedTuple):
    """What a mask of positions shows: tiles that it hides are skipped."""

    part: float = 1.0  # of the scores
    edges: float = 0.0  # of a row, between what is shown and what is not

    def by_tiles(self, rows: int, keys: int, length: int) -> float:
        """The part of the scores in tiles that are not hidden: half a tile more at each edge."""
        return min(1.0, self.part + self.edges * max(rows, keys) / (2 * length))


def seen_of(chain: Chain) -> Seen:
    """What a mask shows of the scores, by a sample."""
    if chain.weighted is None:
        return Seen()
    found = [
        n.src[0] if n.src[2].op is Ops.CONST else alu(Ops.NOT, n.src[0])
        for n in toposort(chain.weighted.power.scores)
        if n.op is Ops.WHERE and any(s.op is Ops.CONST and s.arg == -math.inf for s in n.src[1:])
    ]
    masks = [mask for mask in found if _is_of_positions(mask, chain)]
    if not masks:
        return Seen()
    lines = [[_is_shown(masks, chain, i, j) for j in range(SAMPLES[1])] for i in range(SAMPLES[0])]
    edges = sum(a != b for line in lines for a, b in pairwise(line))
    shown = sum(map(sum, lines)) / math.prod(SAMPLES)
    return Seen(max(shown, 1 / SAMPLES[1]), edges / SAMPLES[0])


def _is_shown(masks: list[UOp], chain: Chain, row: int, key: int) -> bool:
    """Whether masks show a sample's score, or may do so."""
    pairs = zip((chain.rows, chain.steps), (row, key), SAMPLES, strict=True)
    at = {r: const(r.dtype, (2 * n + 1) * trips(r) // (2 * samples)) for r, n, samples in pairs}
    return not any(_fails(substitute(mask, at)) for mask in masks)


def _is_of_positions(mask: UOp, chain: Chain) -> bool:
    nodes = toposort(mask)
    return chain.steps in nodes and not any(n.op in (Ops.INDEX, Ops.REDUCE) for n in nodes)


def _fails(condition: UOp) -> bool:
    known = simplify(condition)
    return known.op is Ops.CONST and not known.arg


class FusedRows:
    """The products of a chain in float32, and what they cost."""

    def __init__(self, chain: Chain, others: int) -> None:
        self.chain = chain
        self.others = others
        self.widths = [panels(trips(r)) for r in chain.inner]
        self.columns = 0 if chain.columns is None else panels(trips(chain.columns))
        self.rows, self.keys = trips(chain.rows), trips(chain.steps)

    def tiles(self, machine: Machine) -> list[Tile]:
        """Tiles that fit, the fastest first."""
        rates = machine.attention
        if rates is None:
            return []
        found = [
            Tile(unit, unit.m, warps, keys, depth)
            for unit in machine.fused_units
            if "a" in unit.shared
            for warps in rates.fused_warps
            for keys in rates.fused_keys
            for depth in (2, 1)
        ]
        found = [
            t
            for t in found
            if self.registers(t) <= rates.fused_registers and self.shared(t) <= machine.local_bytes
        ]
        return sorted(found, key=lambda t: self.time(t, machine, rates))

    @cached_property
    def seen(self) -> Seen:
        return seen_of(self.chain)

    def registers(self, tile: Tile) -> int:
        """What a thread holds."""
        return fused_registers(self.chain, tile.rows, tile.keys)

    def shared(self, tile: Tile) -> int:
        """Bytes of shared memory: rows, keys and values, and what warps hand around."""
        wide, results = sum(self.widths), self.columns * len(self.chain.seconds)
        floats = tile.rows * tile.teams * wide + tile.depth * tile.keys * (wide + results)
        passed = tile.teams * tile.unit.passed if results else 0
        return 4 * (floats + passed)

    def step(self, tile: Tile, rates: Attention) -> float:
        """Fused products, and what takes as long, of a warp in a step."""
        across = tile.unit.across
        scores = tile.keys // across  # of a row, that a lane has
        results = self.columns * len(self.chain.seconds)
        products = FUSED_ROWS * (scores * sum(self.widths) + results // across * (tile.keys + 1))
        vectors = sum(self.widths) // 4 * (FUSED_ROWS + scores)
        vectors += tile.keys * (2 + results // FUSED_SIDE * _reads(FUSED_SIDE // across)) if results else 0
        turns = FUSED_ROWS * across.bit_length()  # of lanes that have a row together
        others = rates.fused_score * FUSED_ROWS * scores + rates.fused_turn * turns
        return products + rates.fused_read * vectors + others

    def time(self, tile: Tile, machine: Machine, rates: Attention) -> float:
        """Clocks, as blocks come to lie on multiprocessors."""
        cores = max(1, machine.cores)
        held = self.registers(tile) + OTHER_REGISTERS
        room = min(
            machine.local_bytes // self.shared(tile), machine.register_file // (32 * tile.teams * held)
        )
        blocks = self.others * -(-self.rows // (tile.rows * tile.teams))
        rounds = -(-blocks // cores)
        warps = min(max(1, room), rounds) * tile.teams
        busy = math.sqrt(min(1.0, warps / rates.fused_busy)) * (1.0 if tile.depth > 1 else ALONE)
        steps: float = -(-self.keys // tile.keys)
        steps *= self.seen.by_tiles(tile.rows * tile.teams, tile.keys, self.keys)
        work = rounds * tile.teams * steps * self.step(tile, rates)
        return work / (SCHEDULERS * rates.fused_rate * busy)

    def is_faster(self, machine: Machine) -> bool:
        """Whether one kernel is faster than products with their scores in memory."""
        rates, grid = machine.attention, machine.grid
        if rates is None or grid is None or machine.products is None:
            return False
        found = self.tiles(machine)
        if not found:
            return False
        apart = sum(self._product(self.keys, width, machine) for width in self.widths)
        apart += len(self.chain.seconds) * self._product(self.columns, self.keys, machine)
        nbytes = 4.0 * self.others * self.rows * self.keys * len(self.chain.firsts) * rates.score_moves
        apart += nbytes / (grid.memory * max(1, machine.cores)) + 2 * grid.launch
        return self.time(found[0], machine, rates) <= apart * WORTH

    def _product(self, columns: int, steps: int, machine: Machine) -> float:
        """The clocks of a product of its own."""
        dtype = self.chain.firsts[0].dtype
        asked = Problem(self.rows, max(1, columns), self.others, steps, 4, 0.0, 4, 0)
        return product_clocks(asked, dtype, dtype, machine)
