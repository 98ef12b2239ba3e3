"""Back-to-back GEMMs on a machine with a grid of blocks: attention, its gradients, statistics of scores.

A block has some rows (of q, in attention), and its warps have 16 or 32 of them each; or warp groups have 64,
or 128. For these rows scores, what is made of them and results lie in registers. Tiles of what the steps go
over (k and v) are prefetched into shared memory, where all warps read them. Units of groups read the rows
there, too; others have them in registers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.dtype import float32
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import ALL_UNITS, FUSED_SIDE, MatrixUnit
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import REGISTERS, WARP_GROUP
from morok.machine.machine import Machine
from morok.machine.rates import Attention
from morok.optimize.actions.back_to_back_gemm import partner
from morok.optimize.actions.pack import same_read
from morok.optimize.actions.stage import PANELS, holders_first, in_panels
from morok.optimize.facts import output_loops, reads_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import divides
from morok.optimize.record import Opt, applied
from morok.rewrite.engine import substitute
from morok.schedule.graph.attention.chain import STEP, Chain, chain_of, in_steps, input_type
from morok.schedule.graph.attention.fused_chain import FusedRows, Tile

BESIDE = 40  # registers of a thread for what is neither scores nor results
OF_ROWS = 4  # registers for maxima and sums of a tile's rows
ALONE = 0.9  # of a multiprocessor's rate that one group of warps reaches: it multiplies or computes powers
OF_COPIES = 0.4  # of the time is that of copies, where all threads ask for them: an estimate, not measured


class Operand(NamedTuple):
    """A factor whose tiles lie in shared memory: its loop beside that of a row, and that."""

    factor: UOp
    outer: UOp
    along: UOp
    is_fixed: bool  # the rows' own; others come anew with every step


class Rows:
    """The products of one kernel and their loops."""

    def __init__(self, ast: UOp, chain: Chain) -> None:
        self.chain = chain
        self.k, self.q, self.d = chain.steps, chain.rows, chain.columns
        mine = (self.q, self.d)
        self.others = math.prod(trips(r) for r in output_loops(ast.src[0]) if r not in mine)
        self.operands = [
            Operand(factor, r, closed_ranges(first)[0], r is self.q)
            for first in chain.firsts
            for r in (self.q, self.k)
            for factor in first.src[0].src
            if r in ranges(factor)
        ]
        self.operands.sort(key=lambda x: not x.is_fixed)
        own = list(self.operands)
        if self.d is not None:
            self.operands += [Operand(values, self.k, self.d, False) for values in chain.values]
        self.doubles = [self._doubled(x, own) for x in self.operands[len(own) :]]
        self.doubled = sum(self.doubles)
        self.beside = self._beside(ast)
        self.widths = [trips(closed_ranges(first)[0]) for first in chain.firsts]
        self.inner = sum(map(in_steps, self.widths))
        self.columns = 0 if self.d is None else trips(self.d)
        self.wide = self.columns * len(chain.seconds)  # of all results

    def _beside(self, ast: UOp) -> list[int]:
        """Memory with a value for every step and none for rows or columns: it comes with the step's tiles."""
        mine = [a for a in reads_of(ast) if a.buffer >= 0 and a.step(self.k)]
        found = [a.buffer for a in mine if not a.step(self.q) and (self.d is None or not a.step(self.d))]
        taken = {a.buffer for x in self.operands for a in reads_of(x.factor)}
        return [n for n in dict.fromkeys(found) if n not in taken]

    def _doubled(self, last: Operand, own: list[Operand]) -> int:
        """Elements of a step of a second product's operand that a first one has as well: one tile."""
        same = [x for x in own if not x.is_fixed and trips(x.along) == trips(last.along)]
        for x in same:
            turned = substitute(last.factor, {last.along: x.along})
            if turned.op is x.factor.op is Ops.CAST and same_read(turned.src[0], x.factor.src[0]):
                return trips(last.along)
        return 0

    def tiles(self, machine: Machine) -> list[Tile]:
        """Tiles that fit, the fastest first."""
        first = self.chain.firsts[0]
        inputs = {input_type(f) for f in first.src[0].src}
        output = first.dtype
        units = [u for u in machine.matrix_units if {u.inputs} == inputs and u.output is output and u.allowed]
        found: list[Tile] = []
        rates = machine.attention
        if rates is None:
            return found
        if inputs == {float32}:
            return FusedRows(self.chain, self.others).tiles(machine)
        for unit in units:
            if self.d is None or partner(unit, self.columns) is not None:
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
        """Units read tiles whose rows are whole panels; the narrowest is as fast as any.

        Shorter rows are filled up with zeros in shared memory alone: units multiply as many steps and columns
        as there are. The engine writes these zeros by itself; other threads have to.
        """
        brought = self._role_tiles(unit, machine, rates)
        if unit.n > min(n for n, _ in rates.group_keys):
            return brought
        return brought + self._own_tiles(unit, machine, rates)

    def _role_tiles(self, unit: MatrixUnit, machine: Machine, rates: Attention) -> list[Tile]:
        """Two groups that multiply, and one that brings tiles: one block to a multiprocessor.

        Weights of a step stay in registers until the scores of the next one have been started.
        """
        wide = sum(self._held(unit, [*self.widths, self.columns])) >= rates.role_width
        if not machine.tma or not wide or not self.chain.online or self.d is None or self.beside:
            return []
        found = [
            Tile(unit, unit.m, 2, n, rates.group_depth, True) for n, _ in rates.role_rates if n == unit.n
        ]
        held = [(t, self.registers(t) + t.keys // 4 + BESIDE) for t in found if len(self.chain.firsts) == 1]
        return [t for t, n in held if n <= rates.role_registers and self.shared(t) <= machine.local_bytes]

    def _own_tiles(self, unit: MatrixUnit, machine: Machine, rates: Attention) -> list[Tile]:
        """All threads ask for tiles, and several blocks share a multiprocessor."""
        found = [
            Tile(unit, unit.m, n, keys, rates.group_depth)
            for n, _ in rates.groups
            for keys, _ in rates.group_keys
        ]
        found = [t for t in found if self.shared(t) <= machine.local_bytes]
        narrow = [t for t in found if self.registers(t) <= rates.group_registers]
        wide = [t for t in found if self.registers(t) <= rates.wide_registers]
        if self.d is None or len(self.chain.firsts) > 1:
            return narrow or wide
        # a group with several tiles of rows weighs one of them while units are at the next
        several = [t._replace(rows=n * unit.m) for t in found for n, _ in rates.group_tiles if n > 1]
        several = [t for t in several if t.teams == 1 and self.registers(t) <= rates.wide_registers]
        return [*(narrow or wide), *(t for t in several if self.shared(t) <= machine.local_bytes)]

    def registers(self, tile: Tile) -> int:
        """What a thread holds: results and scores in 32 bits, rows of operands in 16."""
        scores = len(self.chain.firsts) * tile.keys // 2
        operands = 0 if tile.unit.shared else self.inner // 4
        return tile.rows // tile.unit.m * (self.wide // 2 + operands + scores)

    def _held(self, unit: MatrixUnit, rows: list[int]) -> list[int]:
        """Rows as they lie in the shared tiles of units that read these by themselves."""
        return [in_panels(n, unit.inputs.itemsize) for n in rows]

    def _filled(self, unit: MatrixUnit) -> float:
        """How many times as long rows become by what fills them up."""
        rows = [trips(x.along) for x in self.operands]
        return sum(self._held(unit, rows)) / sum(rows)

    def shared(self, tile: Tile) -> int:
        """Bytes of shared memory."""
        e, d, doubled = self.inner, self.wide, self.doubled
        if tile.unit.shared:
            e = sum(self._held(tile.unit, self.widths))
            d = sum(self._held(tile.unit, [self.columns])) * len(self.chain.seconds)
            doubled = sum(self._held(tile.unit, self.doubles))
        points = tile.rows * tile.teams * e + tile.depth * tile.keys * (e + d - doubled)
        return points * tile.unit.inputs.itemsize

    def time(self, tile: Tile, machine: Machine, rates: Attention) -> float:
        """How long it takes, in units of what a busy core takes for a round of rows."""
        high = tile.rows * tile.teams
        if tile.roles:  # one block after the other
            blocks = self.others * -(-trips(self.q) // high)
            keys = -(-trips(self.k) // tile.keys) * tile.keys / trips(self.k)
            return -(-blocks // max(1, machine.cores)) * high / dict(rates.role_rates)[tile.keys] * keys
        rows = self.others * -(-trips(self.q) // high) * high
        keys = -(-trips(self.k) // tile.keys) * tile.keys / trips(self.k)
        room = machine.local_bytes // self.shared(tile)
        if tile.unit.shared:
            held = self.registers(tile) + tile.rows // tile.unit.m * OF_ROWS + BESIDE
            room = min(room, REGISTERS // (WARP_GROUP * tile.teams * held))
        warps_per_sm = max(1, room) * tile.teams
        cores = max(1, machine.cores)
        if tile.unit.shared:  # while some groups compute powers, others multiply
            width = self.inner / len(self.chain.firsts) + self.columns
            most = ALONE if warps_per_sm == 1 else 1.0
            busy = min(most, 0.4 + 0.2 * warps_per_sm * width / rates.full)
            rounds = rows / (rates.group_rate * busy * cores)
            count = tile.rows // tile.unit.m
            factor = dict(rates.group_keys)[tile.keys] * dict(rates.groups)[tile.teams]
            factor *= 1 + OF_COPIES * (self._filled(tile.unit) - 1)
            return max(0.8 * count, rounds) * keys * factor * dict(rates.group_tiles)[count]
        rounds = rows / (dict(rates.rates)[tile.rows // tile.unit.m] * cores)
        few = max(1.0, rates.fewest_warps / warps_per_sm)
        return max(1.0, rounds) * few * keys * dict(rates.keys)[tile.keys] * dict(rates.warps)[tile.teams]


def rows_of(ast: UOp) -> Rows | None:
    """The chain of products in a kernel; None if there is none."""
    chain = chain_of(ast)
    return None if chain is None else Rows(ast, chain)


def attention(builder: Builder) -> bool:
    """Tiles for the rows of attention; False, and the kernel as it was, if it has none."""
    before = builder.loops
    rows = rows_of(builder.ast)
    if rows is None:
        return False
    for tile in rows.tiles(builder.machine):
        if build(builder, rows, tile):
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
        if build(builder, rows, tile):
            found.append(applied(builder.ast))
    return found


def build(builder: Builder, rows: Rows, tile: Tile) -> bool:
    """The actions for a tile."""
    k, q = int(rows.k.arg[0]), int(rows.q.arg[0])
    inner = [int(r.arg[0]) for r in rows.chain.inner]
    columns = [] if rows.d is None else [int(rows.d.arg[0])]
    high = tile.rows * tile.teams
    if not divides(high, rows.q.src[0]) and not builder.do("PADTO", q, high):
        return False
    if rows.chain.online and not builder.do("ONLINE", k):
        return False
    if not divides(tile.keys, rows.k.src[0]) and not builder.do("PADTO", k, tile.keys):
        return False
    if tile.unit.fused:  # rows of whole panels, with zeros at their ends
        for number in (*inner, *columns):
            if not divides(FUSED_SIDE, builder.loops.by_number[number].src[0]):
                if not builder.do("PADTO", number, FUSED_SIDE):
                    return False
    for number in (n for n in inner if not tile.unit.fused):
        if not divides(STEP, builder.loops.by_number[number].src[0]) and not builder.do(
            "PADTO", number, STEP
        ):
            return False
    ends = []
    for number, amount in ((q, high), (k, tile.keys)):
        new = builder.loops.next_number()
        whole = trips(builder.loops.by_number[number]) == amount
        if not whole and not builder.do("TILE", number, amount):
            return False
        ends.append(number if whole else new)
    high_loop, step = ends
    ring = tile.depth if step != k else 1
    for x in rows.operands:
        depth, outer = (1, high_loop) if x.is_fixed else (ring, step)
        _stage(builder, x, depth, outer, tile.unit)
    for number in rows.beside:
        builder.do("STAGE", number, ring, (step,))
    if not _multiply(builder, tile.unit, (high_loop, step), columns, inner):
        return False
    if tile.teams > 1 and not builder.do("LOCAL", high_loop, tile.teams):
        return False
    outputs, reduced = (high_loop, *columns), (*inner, step)
    for name, numbers in (("UPCAST", outputs), ("UNROLL", reduced)):
        for number in numbers:
            r = builder.loops.by_number.get(number)
            left = r is not None and r.arg[1] in (AxisKind.LOOP, AxisKind.REDUCE) and trips(r) > 1
            if left and not builder.do(name, number):
                return False
    if tile.roles and not builder.do("WARP_SPECIALIZE"):
        return False
    if step != k:
        builder.do("SKIP", k)  # tiles that a mask hides, if it does
    return True


def _multiply(
    builder: Builder, unit: MatrixUnit, tile: tuple[int, int], columns: list[int], inner: list[int]
) -> bool:
    """The products go to units: those of a chain together, or the one whose results are reduced."""
    number = 1 + ALL_UNITS.index(unit)
    if columns:
        return builder.do("TC", tile[1], number, (tile[0], *columns, *inner))
    return builder.do("TC", inner[0], number, tile)


def _stage(builder: Builder, x: Operand, depth: int, outer: int, unit: MatrixUnit) -> None:
    """An operand's tile in shared memory, its rows as they lie in global memory; if it can be."""
    reads, along = reads_of(x.factor), int(x.along.arg[0])
    axes = (along, outer) if any(a.step(x.outer) == 1 for a in reads) else (outer, along)
    row = trips(builder.loops.by_number[axes[-1]])
    if unit.shared and not unit.fused and in_panels(row, unit.inputs.itemsize) != row:
        depth += PANELS
    for number in holders_first(builder.loops, (a.buffer for a in reads if a.buffer >= 0), axes):
        builder.do("STAGE", number, depth, axes)
