"""Matrix products, convolutions and their like on a machine with a grid of blocks.

A block computes a tile of outputs. The operands' tiles of a few steps lie in shared memory, in a ring that
is filled ahead (multistage double buffering); each thread keeps its part of the result in registers over the
whole reduction. Where a matrix unit multiplies the operands' type, warps use it (TC); otherwise threads have
register tiles.

Edges cost nothing inside: loops are rounded up, the tiles are filled up with zeros or with the last row,
and only the stores are guarded. Several loops that one operand moves with (rows and columns of an image:
implicit im2col) are joined, so that a tile is cut out of all of them.
"""

from __future__ import annotations

import math

from morok.ir.matrix import ALL_UNITS, MatrixUnit
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import WARP_GROUP
from morok.machine.grid_time import (
    ALONE,
    EPILOGUE,
    PRODUCER,
    UNIFORM,
)
from morok.machine.machine import Machine
from morok.machine.rates import BlockTile
from morok.optimize.actions.stage import holders_first
from morok.optimize.actions.stage_result import staged_value
from morok.optimize.actions.warp_specialize import BARRIERS, all_walked
from morok.optimize.contraction import Contraction, find_contraction
from morok.optimize.facts import Access, output_loops, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.product_prices import PricedProduct
from morok.optimize.heuristics.gpu.register_tiles import register_tiles
from morok.optimize.loops import divides, size
from morok.optimize.record import Opt, applied

FEWEST_STEPS = 8
LEAST_WORK = 1 << 17  # multiplications
WHOLE = 4  # bytes of an output from which on a unit's registers are whole sectors of memory
COLLECTED = 64 * 64  # outputs of a tile from which on it is worth collecting them in shared memory
SHALLOWEST, DEEPEST = 3, 6  # tiles of a ring with roles
FEW_ROWS = 64  # of a tile that is multiplied with a deep ring,
DEEPEST_ALONE, MOST_BESIDE = 8, 2  # of so many tiles where so few blocks share room
WRITTEN_OUT = 512  # operations on all sums of a thread from which on they are a loop: they leave the cache
BESIDE = 8  # sums that such a loop has at once, so that what is done to one need not wait for itself
AHEAD = 4  # rows of a result's tile whose other operands a thread asks for at once
MOST_EMPTY = 1.05  # rows of tiles of those that there are, so that they make whole groups
GROUPS = (16, 8, 4, 2)  # rows of tiles that are walked together, so that they share the cache


def matrix_product(builder: Builder) -> bool:
    """Tiles for the product of a kernel, or registers; False, and the kernel as it was, if there is none."""
    before = builder.loops
    plan = _plan(builder)
    ready = builder.loops
    choices = [] if plan is None else plan.choices()
    expected = plan.clocks(choices[0]) if plan is not None and choices else None
    builder.loops = before
    if register_tiles(builder, expected):
        return True
    builder.loops = ready
    if plan is None:
        return False
    for _, unit, shape, roles in choices:
        if plan.build(unit, shape, roles):
            return True
        builder.loops = ready
    builder.loops = before
    return False


def tile_choices(ast: UOp, machine: Machine, most: int = 8) -> list[tuple[Opt, ...]]:
    """What the best shapes of tiles would do, as sequences of actions: where a search may begin."""
    builder = Builder(ast, machine)
    plan = _plan(builder)
    ready = builder.loops
    found: list[tuple[Opt, ...]] = []
    for _, unit, shape, roles in plan.choices()[:most] if plan is not None else ():
        if plan is not None and plan.build(unit, shape, roles):
            found.append(applied(builder.ast))
        builder.loops = ready
    return found


def _plan(builder: Builder) -> _Plan | None:
    """The plan for a kernel that is a product, with its loops joined; None if it is not."""
    product = find_contraction(builder.ast)
    if product is None or not _worth_it(product) or not builder.machine.products:
        return None
    return _Plan(builder, product)


def _worth_it(product: Contraction) -> bool:
    return math.prod(map(trips, product.steps)) >= FEWEST_STEPS and product.work >= LEAST_WORK


class _Plan(PricedProduct):
    """The actions for one product. Making it joins loops; `build` cuts the tile of a shape."""

    def build(self, unit: MatrixUnit | None, shape: BlockTile, roles: int = UNIFORM) -> bool:
        self.unit = unit
        self.roles = roles
        self.transposed = unit is not None and bool(self._is_transposed(unit))
        self.sharing = ALONE
        if unit is not None and (rates := self.builder.machine.products) is not None:
            problem = self.problem(rates.unit_rate / unit.inputs.itemsize, unit.lanes)
            self.sharing = self._sharing(problem, unit, shape, roles)
        reads = (self.product.along_i[0], self.product.along_j[0])
        inputs = max(a.node.dtype.itemsize for a in reads) if unit is None else unit.inputs.itemsize
        return self._tiles(self.i, self.j, int(self.step.arg[0]), shape, shape.bytes // inputs)

    def _cut(self, number: int, amount: int) -> int | None:
        """Rounds a loop up and cuts a tile off; the number of the loop inside of the tile."""
        if not divides(amount, self.loops.by_number[number].src[0]) and not self.do("PADTO", number, amount):
            return None
        if size(self.loops.by_number[number]) == amount:
            return number
        inner = self.loops.next_number()
        return inner if self.do("TILE", number, amount) else None

    def _tiles(self, i: int, j: int, k: int, shape: BlockTile, steps: int) -> bool:
        least = 4 if self.unit is None else self.unit.k
        while steps > least and steps >= 2 * self._trips(k):
            steps //= 2
        high, wide = self._sides(shape)
        if self.roles != UNIFORM:
            self._round_up(i, j, shape)
        rows, columns, step = (self._cut(n, a) for n, a in ((i, high), (j, wide), (k, steps)))
        if rows is None or columns is None or step is None:
            return False
        around = math.prod(trips(r) for r in self.steps) // max(1, trips(_named(self.steps, k)))
        rounds = around * (1 if step == k else self._trips(k))
        depth = min(self._depth(shape, steps, (rows, columns)), rounds) if rounds > 1 else 1
        if self.roles != UNIFORM and depth < min(SHALLOWEST, rounds):
            return False
        right_runs = self.right_runs and not self._singly(self.unit)
        if not self._stage(self.product.along_i, rows, step, depth, self.left_runs):
            return False
        if not self._stage(self.product.along_j, columns, step, depth, right_runs):
            return False
        if not self._inside(rows, columns, step, shape):
            return False
        rank = self._neighbours(i, rows, j, columns)
        high = self.sharing.high
        if rows != i:
            for group in self._groups(shape):
                if group > high and self._trips(i) > group // high and self.do("TILE", i, group // high):
                    break
        return self.roles == UNIFORM or self._specialize(rank)

    def _round_up(self, i: int, j: int, shape: BlockTile) -> None:
        """Rows of tiles that whole groups, or clusters, can be made of, if that takes no turn more."""
        high, wide = self._sides(shape)
        blocks, least = self.sharing.blocks, self.sharing.high
        cores = max(1, self.builder.machine.cores // blocks) * blocks
        if self.sharing.wide > 1:
            self.do("PADTO", j, self.sharing.wide * wide)
        tiles = -(-self._trips(i) // high)
        beside = self._beside() * -(-self._trips(j) // wide)
        turns = -(-(-(-tiles // least) * least * beside) // cores)
        if tiles < 2:
            return
        for group in (*self._groups(shape), least):
            whole = -(-tiles // group) * group
            if group < least or tiles <= group or whole > tiles * MOST_EMPTY:
                continue
            if -(-whole * beside // cores) <= turns:
                if whole != tiles:
                    self.do("PADTO", i, group * high)
                return
        self.do("PADTO", i, least * high)

    def _neighbours(self, i: int, rows: int, j: int, columns: int) -> int | None:
        """The loop over tiles that the blocks of a cluster have, along the side that they do not share."""
        outer, inner = (j, columns) if self.sharing.rows else (i, rows)
        if self.sharing.blocks < 2 or inner == outer:
            return None
        if self._trips(outer) == self.sharing.blocks:
            return outer
        rank = self.loops.next_number()
        return rank if self.do("TILE", outer, self.sharing.blocks) else None

    def _specialize(self, rank: int | None) -> bool:
        """Producer and epilogue warp groups, in persistent blocks; clusters of them where that is faster."""
        if not self.do("WARP_SPECIALIZE", amount=self.roles):
            return False
        blocks = self.builder.machine.cores
        if rank is not None and self.do("CLUSTER", rank):
            blocks //= self.sharing.blocks
        self.do("PERSISTENT", amount=blocks)
        return all_walked(self.loops.ast)

    def _stages_result(self, shape: BlockTile) -> bool:
        """Whether the result goes through shared memory: with roles, only what would be written in pieces;
        of threads, what would be more code than is kept at hand."""
        if self.unit is None:
            sums = shape.rows * shape.columns // (shape.across * shape.along)
            return self.product.after(self.builder.machine.op_costs) * sums >= WRITTEN_OUT
        whole = self.product.widest >= WHOLE
        if shape.rows * shape.columns < COLLECTED or (
            whole and not divides(self._vector(), self.product.j.src[0])
        ):
            return False
        return self.roles != PRODUCER or not whole

    def _vector(self) -> int:
        """Outputs of a row that a thread writes at once: 16 bytes of the widest; less where rows end between.

        Narrow outputs in rows of an odd length are written one by one, but neighbours by neighbours: a unit's
        registers are pieces of eight rows, and every piece would be a sector of its own.
        """
        most = self._whole_vector()
        if self.product.widest >= WHOLE:
            return most
        return next(
            n for n in (most, most // 2, most // 4, most // 8, 1) if n and divides(n, self.product.j.src[0])
        )

    def _whole_vector(self) -> int:
        return max(1, 16 // self.product.widest)

    def _staged_bytes(self, tile: tuple[int, int]) -> int:
        """Bytes of one output in shared memory, for the loops of a tile."""
        (total,) = (n for n in self.loops.order if n.op is Ops.REDUCE)
        return staged_value(self.loops, total, [self.loops.by_number[n] for n in tile]).dtype.itemsize

    def _depth(self, shape: BlockTile, steps: int, tile: tuple[int, int]) -> int:
        """Tiles of a ring, where the result has a place of its own. Without roles they are those of the
        shape, and more where few rows are multiplied, which is as fast as memory is read: as much as fits is
        under way, if all blocks run at once."""
        if self.unit is None:
            return shape.depth
        taken = BARRIERS
        if self._stages_result(shape):
            taken += shape.rows * shape.columns * self._staged_bytes(tile)
        each = (shape.rows + shape.columns) * steps * self.unit.inputs.itemsize
        machine = self.builder.machine
        if self.roles != UNIFORM:
            return max(0, min(DEEPEST, (machine.local_bytes - taken) // each))
        outputs = [r for r in output_loops(self.loops.ast.src[0]) if int(r.arg[0]) not in tile]
        beside = -(-math.prod(map(trips, outputs)) // machine.cores)  # blocks of a multiprocessor
        sizes = [size(r) for r in (*outputs, *(self.loops.by_number[n] for n in tile))]
        if None in sizes or min(self._trips(n) for n in tile) > FEW_ROWS or beside > MOST_BESIDE:
            return shape.depth
        return max(shape.depth, min(DEEPEST_ALONE, (machine.local_bytes // beside - taken) // each))

    def _groups(self, shape: BlockTile) -> list[int]:
        """How many rows of tiles are walked together, the best number first.

        All multiprocessors together then read about as many rows as columns: the least for their tiles.
        """
        high, wide = self._sides(shape)
        best = math.log2(max(1, self.builder.machine.cores) * wide / high) / 2
        return sorted(GROUPS, key=lambda n: (abs(math.log2(n) - best), -n))

    def _sides(self, shape: BlockTile) -> tuple[int, int]:
        """Rows and columns of the outputs in a tile."""
        return (shape.columns, shape.rows) if self.transposed else (shape.rows, shape.columns)

    def _stage(self, reads: tuple[Access, ...], outer: int, step: int, depth: int, runs: bool) -> bool:
        """One operand's tile in shared memory, its rows as they lie in global memory."""
        axes = (step, outer) if runs else (outer, step)
        done = False
        for number in holders_first(self.loops, (a.buffer for a in reads if a.buffer >= 0), axes):
            done |= self.do("STAGE", number, depth, axes)
        return done

    def _inside(self, rows: int, columns: int, step: int, shape: BlockTile) -> bool:
        """The tile's own loops: units or threads, and who writes the result."""
        first = self.loops.next_number()
        vector = self._vector()
        tile = self._thread_tile if self.unit is None else self._unit_tile
        if not self._stages_result(shape) or not self.do("STAGE_RESULT", axes=(rows, columns)):
            return tile(rows, columns, step, shape)
        if not tile(first, first + 1, step, shape):
            return False
        lanes = 1 if self.unit is None else self.unit.lanes
        threads = WARP_GROUP if self.roles == EPILOGUE else shape.across * shape.along * lanes
        along = min(threads, self._sides(shape)[1] // vector)
        self.do("UPCAST", columns, vector)
        # loads that a thread has under way at once: those of a vector, or of several rows
        ahead = self._whole_vector() // vector
        if self.product.reads_per_output():
            ahead = max(ahead, AHEAD)
        if self.unit is None:
            ahead = max(ahead, BESIDE // vector)
        if ahead > 1 and self._trips(rows) * along // threads >= 2 * ahead:
            self.do("UPCAST", rows, ahead)
        # neighbouring threads have neighbouring columns: the last loop is the fastest
        if threads > along and not self.do("LOCAL", rows, threads // along):
            return False
        return self.do("LOCAL", columns, along)

    def _unit_tile(self, rows: int, columns: int, step: int, shape: BlockTile) -> bool:
        unit = self.unit
        assert unit is not None
        if self.transposed:
            rows, columns = columns, rows
        if not self.do("TC", step, 1 + ALL_UNITS.index(unit), (rows, columns)):
            return False
        for number, warps in ((rows, shape.across), (columns, shape.along)):
            if warps > 1 and not self.do("LOCAL", number, warps):
                return False
        for number in (rows, columns):
            if self._left(number) and not self.do("UPCAST", number):
                return False
        return not self._left(step) or self.do("UNROLL", step)

    def _left(self, number: int) -> bool:
        r = self.loops.by_number.get(number)
        return r is not None and r.arg[1] in (AxisKind.LOOP, AxisKind.REDUCE) and trips(r) > 1

    def _thread_tile(self, rows: int, columns: int, step: int, shape: BlockTile) -> bool:
        for number, threads, runs in (
            (rows, shape.across, self.left_runs),
            (columns, shape.along, self.right_runs),
        ):
            vector = min(4, self._trips(number) // threads)
            if runs and vector > 1 and not self.do("UPCAST", number, vector):
                return False
            if not self.do("LOCAL", number, threads):
                return False
            if self._left(number) and not self.do("UPCAST", number):
                return False
        return self.do("UNROLL", step, min(4, self._trips(step)))


def _named(loops: list[UOp], number: int) -> UOp:
    return next(r for r in loops if int(r.arg[0]) == number)
