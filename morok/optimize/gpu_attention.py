"""Attention on a machine with a grid of blocks: two products in a chain, in one pass over the keys.

A block has some rows of q. Its warps have 16 or 32 of them each, and for these rows everything lies in
registers: q, a tile of scores, its powers, and the results. Tiles of k and v are brought into shared memory
ahead of their use, and all warps read them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import ALL_UNITS, MatrixUnit
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.builder import Builder
from morok.optimize.chain import continues
from morok.optimize.facts import output_loops, reads_of, trips
from morok.optimize.host import Host
from morok.optimize.loops import divides
from morok.optimize.record import Opt, applied
from morok.schedule.attention import scores_of, suits_units
from morok.schedule.weighted import Weighted, weighted_sum

DEPTH = 3  # tiles of k and v: one is read, two are under way
REGISTERS = 200  # of a thread, for rows, scores and results
# What it takes with so many warps, and with so many keys in a tile, as measured.
WARPS = {4: 1.0, 2: 1.03, 8: 1.03, 1: 1.2}
KEYS = {64: 1.0, 32: 1.12, 16: 1.4}
RATES = {2: 256.0, 1: 219.0}  # rows that a core computes in a unit of time, by units that a warp's rows take
FEWEST_WARPS = 4  # of a core, to be busy


class Tile(NamedTuple):
    """Rows of q for each warp, warps, and keys of a step."""

    rows: int
    warps: int
    keys: int


class Rows:
    """The products of one kernel and their loops."""

    def __init__(self, ast: UOp, found: Weighted, unit: MatrixUnit) -> None:
        scores = scores_of(found)
        assert scores is not None
        self.found = found
        self.unit = unit
        (self.k,), (self.e,) = closed_ranges(found.sum), closed_ranges(scores)
        outer = output_loops(ast.src[0])
        (self.d,) = (r for r in outer if r in ranges(found.sum) and r not in ranges(found.power.top))
        with_keys = frozenset().union(*(ranges(f) for f in scores.src[0].src if self.k in ranges(f)))
        (self.q,) = (r for r in ranges(scores) - with_keys)
        self.others = math.prod(trips(r) for r in outer if r not in (self.q, self.d))
        self.factors = {
            name: factor
            for name, product, r in (("q", scores, self.q), ("k", scores, self.k), ("v", found.sum, self.d))
            for factor in product.src[0].src
            if r in ranges(factor)
        }

    def registers(self, tile: Tile) -> int:
        """What a thread holds: results and scores in 32 bits, q in 16."""
        each = tile.rows // self.unit.m
        return each * (trips(self.d) // 2 + trips(self.e) // 4 + tile.keys // 2)

    def tiles(self, host: Host) -> list[Tile]:
        """Tiles that fit, the fastest first."""
        keys = [n for n in KEYS if divides(n, self.k.src[0])] or list(KEYS)
        found = [
            Tile(rows, warps, n) for rows in (2 * self.unit.m, self.unit.m) for warps in WARPS for n in keys
        ]
        fitting = [t for t in found if self.registers(t) <= REGISTERS] or found[-1:]
        return sorted(fitting, key=lambda t: self.time(t, host))

    def time(self, tile: Tile, host: Host) -> float:
        """How long it takes, in units of what a busy core takes for a round of rows."""
        high = tile.rows * tile.warps
        rows = self.others * -(-trips(self.q) // high) * high
        keys = -(-trips(self.k) // tile.keys) * tile.keys / trips(self.k)
        shared = high * trips(self.e) + DEPTH * tile.keys * (trips(self.e) + trips(self.d))
        together = max(1, host.local_bytes // (shared * self.unit.inputs.itemsize)) * tile.warps
        rounds = rows / (RATES[tile.rows // self.unit.m] * max(1, host.cores))
        few = max(1.0, FEWEST_WARPS / together)
        return max(1.0, rounds) * few * keys * KEYS[tile.keys] * WARPS[tile.warps]


def rows_of(ast: UOp, host: Host) -> Rows | None:
    """The chain of products in a kernel; None if there is none, or no unit for it."""
    if len(ast.src) != 1 or ast.src[0].op is not Ops.END:
        return None
    sums = [found for n in toposort(ast) if n.op is Ops.REDUCE and (found := weighted_sum(n)) is not None]
    if len(sums) != 1 or not suits_units(ast, sums[0]):
        return None
    inputs = {f.src[0].dtype for f in sums[0].sum.src[0].src}
    units = [u for u in host.matrix_units if {u.inputs} == inputs and u.output is sums[0].sum.dtype]
    unit = next((u for u in units if continues(u) and u.allowed), None)
    return None if unit is None else Rows(ast, sums[0], unit)


def attention(builder: Builder) -> bool:
    """Tiles for the rows of attention; False, and the kernel as it was, if it has none."""
    before = builder.loops
    rows = rows_of(builder.ast, builder.host)
    for tile in rows.tiles(builder.host) if rows is not None else ():
        assert rows is not None
        if _build(builder, rows, tile):
            return True
        builder.loops = before
    return False


def row_choices(ast: UOp, host: Host, most: int = 8) -> list[tuple[Opt, ...]]:
    """What other tiles would do, as sequences of actions: where a search may begin."""
    rows = rows_of(ast, host)
    found: list[tuple[Opt, ...]] = []
    for tile in rows.tiles(host)[:most] if rows is not None else ():
        builder = Builder(ast, host)
        if rows is not None and _build(builder, rows, tile):
            found.append(applied(builder.ast))
    return found


def _build(builder: Builder, rows: Rows, tile: Tile) -> bool:
    """The actions for a tile."""
    k, q, d, e = (int(r.arg[0]) for r in (rows.k, rows.q, rows.d, rows.e))
    high = tile.rows * tile.warps
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
    ring = DEPTH if step != k else 1
    for name, depth, outer, along in (("q", 1, high_loop, e), ("k", ring, step, e), ("v", ring, step, d)):
        _stage(builder, rows, name, depth, outer, along)
    if not builder.do("TC", step, 1 + ALL_UNITS.index(rows.unit), (high_loop, d, e)):
        return False
    if tile.warps > 1 and not builder.do("LOCAL", high_loop, tile.warps):
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
