"""Attention on a machine with a grid of blocks: back-to-back GEMMs, in one pass over the keys.

A block has some rows of q, and its warps have 16 or 32 of them each; or warp groups have 64. For
these rows scores, powers and results lie in registers. Tiles of k and v are prefetched into shared
memory, where all warps read them. Units of groups read q there, too; others have it in registers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import ALL_UNITS, PANEL, MatrixUnit
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.machine.rates import Attention
from morok.optimize.actions.back_to_back_gemm import partner
from morok.optimize.facts import output_loops, reads_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import divides
from morok.optimize.record import Opt, applied
from morok.schedule.graph.attention import rows_and_columns, scores_of, suits_units
from morok.schedule.graph.online_softmax import Weighted, weighted_sum


class Tile(NamedTuple):
    """A block: rows of q for each of its warps or warp groups, how many these are, keys of a step, and
    tiles of k and v: one is read, others are under way."""

    unit: MatrixUnit
    rows: int
    teams: int
    keys: int
    depth: int


class Rows:
    """The products of one kernel and their loops."""

    def __init__(self, ast: UOp, found: Weighted) -> None:
        scores = scores_of(found)
        assert scores is not None
        self.found = found
        (self.k,), (self.e,) = closed_ranges(found.sum), closed_ranges(scores)
        outer = output_loops(ast.src[0])
        loops = rows_and_columns(ast, found)
        assert loops is not None
        self.q, self.d = loops
        self.others = math.prod(trips(r) for r in outer if r not in (self.q, self.d))
        self.factors = {
            name: factor
            for name, product, r in (("q", scores, self.q), ("k", scores, self.k), ("v", found.sum, self.d))
            for factor in product.src[0].src
            if r in ranges(factor)
        }

    def tiles(self, machine: Machine) -> list[Tile]:
        """Tiles that fit, the fastest first."""
        inputs = {f.src[0].dtype for f in self.found.sum.src[0].src}
        output = self.found.sum.dtype
        units = [u for u in machine.matrix_units if {u.inputs} == inputs and u.output is output and u.allowed]
        found: list[Tile] = []
        rates = machine.attention
        if rates is None:
            return found
        for unit in units:
            if partner(unit, trips(self.d)) is not None:
                make = self._group_tiles if unit.shared else self._warp_tiles
                found += make(unit, machine, rates)
        return sorted(found, key=lambda t: self.time(t, machine, rates))

    def _warp_tiles(self, unit: MatrixUnit, machine: Machine, rates: Attention) -> list[Tile]:
        every = [n for n, _ in rates.keys]
        keys = [n for n in every if divides(n, self.k.src[0])] or every
        found = [
            Tile(unit, rows, warps, n, rates.warp_depth)
            for rows in (2 * unit.m, unit.m)
            for warps, _ in rates.warps
            for n in keys
        ]
        room = machine.local_bytes
        return [t for t in found if self.registers(t) <= rates.registers and self.shared(t) <= room] or found[
            -1:
        ]

    def _group_tiles(self, unit: MatrixUnit, machine: Machine, rates: Attention) -> list[Tile]:
        """Units read tiles whose rows are whole panels; the narrowest is as fast as any."""
        panel = PANEL // unit.inputs.itemsize
        if unit.n > min(n for n, _ in rates.group_keys) or trips(self.e) % panel or trips(self.d) % panel:
            return []
        found = [
            Tile(unit, unit.m, n, keys, rates.group_depth)
            for n, _ in rates.groups
            for keys, _ in rates.group_keys
        ]
        return [
            t
            for t in found
            if self.registers(t) <= rates.group_registers and self.shared(t) <= machine.local_bytes
        ]

    def registers(self, tile: Tile) -> int:
        """What a thread holds: results and scores in 32 bits, q in 16."""
        if tile.unit.shared:
            return trips(self.d) // 2 + tile.keys // 2
        return tile.rows // tile.unit.m * (trips(self.d) // 2 + trips(self.e) // 4 + tile.keys // 2)

    def shared(self, tile: Tile) -> int:
        """Bytes of shared memory."""
        e, d = trips(self.e), trips(self.d)
        points = tile.rows * tile.teams * e + tile.depth * tile.keys * (e + d)
        return points * tile.unit.inputs.itemsize

    def time(self, tile: Tile, machine: Machine, rates: Attention) -> float:
        """How long it takes, in units of what a busy core takes for a round of rows."""
        high = tile.rows * tile.teams
        rows = self.others * -(-trips(self.q) // high) * high
        keys = -(-trips(self.k) // tile.keys) * tile.keys / trips(self.k)
        warps_per_sm = max(1, machine.local_bytes // self.shared(tile)) * tile.teams
        cores = max(1, machine.cores)
        if tile.unit.shared:  # while some groups compute powers, others multiply
            busy = min(1.0, 0.4 + 0.2 * warps_per_sm * (trips(self.e) + trips(self.d)) / rates.full)
            rounds = rows / (rates.group_rate * busy * cores)
            return (
                max(0.8, rounds) * keys * dict(rates.group_keys)[tile.keys] * dict(rates.groups)[tile.teams]
            )
        rounds = rows / (dict(rates.rates)[tile.rows // tile.unit.m] * cores)
        few = max(1.0, rates.fewest_warps / warps_per_sm)
        return max(1.0, rounds) * few * keys * dict(rates.keys)[tile.keys] * dict(rates.warps)[tile.teams]


def rows_of(ast: UOp) -> Rows | None:
    """The chain of products in a kernel; None if there is none."""
    if len(ast.src) != 1 or ast.src[0].op is not Ops.END:
        return None
    sums = [found for n in toposort(ast) if n.op is Ops.REDUCE and (found := weighted_sum(n)) is not None]
    return Rows(ast, sums[0]) if len(sums) == 1 and suits_units(ast, sums[0]) else None


def attention(builder: Builder) -> bool:
    """Tiles for the rows of attention; False, and the kernel as it was, if it has none."""
    before = builder.loops
    rows = rows_of(builder.ast)
    if rows is None:
        return False
    for tile in rows.tiles(builder.machine):
        if _build(builder, rows, tile):
            return True
        builder.loops = before
    return False


def row_choices(ast: UOp, machine: Machine, most: int = 8) -> list[tuple[Opt, ...]]:
    """What other tiles would do, as sequences of actions: where a search may begin."""
    rows = rows_of(ast)
    if rows is None:
        return []
    found: list[tuple[Opt, ...]] = []
    for tile in rows.tiles(machine)[:most]:
        builder = Builder(ast, machine)
        if _build(builder, rows, tile):
            found.append(applied(builder.ast))
    return found


def _build(builder: Builder, rows: Rows, tile: Tile) -> bool:
    """The actions for a tile."""
    k, q, d, e = (int(r.arg[0]) for r in (rows.k, rows.q, rows.d, rows.e))
    high = tile.rows * tile.teams
    if not divides(high, rows.q.src[0]) and not builder.do("PADTO", q, high):
        return False
    if not builder.do("ONLINE", k):
        return False
    if not divides(tile.keys, rows.k.src[0]) and not builder.do("PADTO", k, tile.keys):
        return False
    ends = []
    for number, amount in ((q, high), (k, tile.keys)):
        inner = builder.loops.next_number()
        whole = trips(builder.loops.by_number[number]) == amount
        if not whole and not builder.do("TILE", number, amount):
            return False
        ends.append(number if whole else inner)
    high_loop, step = ends
    ring = tile.depth if step != k else 1
    for name, depth, outer, along in (("q", 1, high_loop, e), ("k", ring, step, e), ("v", ring, step, d)):
        _stage(builder, rows, name, depth, outer, along)
    if not builder.do("TC", step, 1 + ALL_UNITS.index(tile.unit), (high_loop, d, e)):
        return False
    if tile.teams > 1 and not builder.do("LOCAL", high_loop, tile.teams):
        return False
    for name, number in (("UPCAST", high_loop), ("UPCAST", d), ("UNROLL", e), ("UNROLL", step)):
        r = builder.loops.by_number.get(number)
        left = r is not None and r.arg[1] in (AxisKind.LOOP, AxisKind.REDUCE) and trips(r) > 1
        if left and not builder.do(name, number):
            return False
    return True


def _stage(builder: Builder, rows: Rows, name: str, depth: int, outer: int, along: int) -> None:
    """An operand's tile in shared memory, its rows as they lie in global memory; if it can be."""
    reads = reads_of(rows.factors[name])
    inner = {"q": rows.q, "k": rows.k, "v": rows.k}[name]
    axes = (along, outer) if any(a.step(inner) == 1 for a in reads) else (outer, along)
    for number in dict.fromkeys(a.buffer for a in reads if a.buffer >= 0):
        builder.do("STAGE", number, depth, axes)
