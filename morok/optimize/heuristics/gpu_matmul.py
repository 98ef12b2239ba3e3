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
from dataclasses import replace

from morok.ir.infer import ranges
from morok.ir.matrix import ALL_UNITS, MatrixUnit
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import WARP_GROUP
from morok.machine.grid_time import EPILOGUE, PRODUCER, UNIFORM, Problem, clocks, tiles_of
from morok.machine.machine import Machine
from morok.machine.rates import BlockTile
from morok.optimize.actions.matrix import as_input, factors
from morok.optimize.actions.stage_result import staged_value
from morok.optimize.actions.warp_specialize import BARRIERS, all_walked
from morok.optimize.contraction import Contraction, find_contraction
from morok.optimize.facts import Access, output_loops, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu_register_tiles import register_tiles
from morok.optimize.loops import Loops, divides, size
from morok.optimize.record import Opt, applied
from morok.symbolic.validity import conjuncts

FEWEST_STEPS = 8
FEWEST_POINTS = 16  # of a side of a tile
FEWEST_OUTPUTS = 256  # of one product, for a matrix unit
LEAST_WORK = 1 << 17  # multiplications
STEPS = 64  # of a tile that units read
WIDE = 512  # outputs along a side from which no further loop is joined to it
WHOLE = 4  # bytes of an output from which on a unit's registers are whole sectors of memory
COLLECTED = 64 * 64  # outputs of a tile from which on it is worth collecting them in shared memory
SHALLOWEST, DEEPEST = 3, 6  # tiles of a ring with roles
FEW_ROWS = 64  # of a tile that is multiplied with a deep ring,
DEEPEST_ALONE, MOST_BESIDE = 8, 2  # of so many tiles where so few blocks share room
AHEAD = 4  # rows of a result's tile whose other operands a thread asks for at once
GROUPS = (16, 8, 4, 2)  # rows of tiles that are walked together, so that they share the cache


Choice = tuple[float, "MatrixUnit | None", BlockTile, int]  # clocks, unit, tile, roles


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


def _units(machine: Machine, reduce: UOp) -> list[MatrixUnit]:
    """Units that multiply the factors as they are."""
    found = factors(reduce.src[0])
    if found is None:
        return []
    return [
        unit
        for unit in machine.matrix_units
        if unit.output is reduce.dtype and unit.allowed and all(as_input(f, unit) is not None for f in found)
    ]


class _Plan:
    """The actions for one product. Making it joins loops; `build` cuts the tile of a shape."""

    def __init__(self, builder: Builder, product: Contraction) -> None:
        self.builder = builder
        self.product = product
        self.unit: MatrixUnit | None = None
        self.roles = UNIFORM
        self.transposed = False  # whether the unit's rows are columns of the outputs
        self.steps = product.steps
        left = product.along_i[0]
        self.step = max(self.steps, key=lambda k: (-self._scattered(k), trips(k), left.step(k) == 1))
        self.left_runs = self._runs(product.along_i, product.i, self.step)
        self.right_runs = self._runs(product.along_j, product.j, self.step)
        self._join_steps()
        self.i = self._joined(product.i, product.along_i, product.along_j)
        self.j = self._joined(product.j, product.along_j, product.along_i)

    @property
    def loops(self) -> Loops:
        return self.builder.loops

    def do(self, name: str, axis: int = -1, amount: int = 0, axes: tuple[int, ...] = ()) -> bool:
        return self.builder.do(name, axis, amount, axes)

    def problem(self, rate: float, lanes: int) -> Problem:
        rows, columns = self._trips(self.i), self._trips(self.j)
        beside = [r for r in output_loops(self.loops.ast.src[0]) if int(r.arg[0]) not in (self.i, self.j)]
        output = self.product.output_bytes
        steps = math.prod(map(trips, self.steps))
        inputs = max(a.node.dtype.itemsize for a in (*self.product.along_i, *self.product.along_j))
        others = math.prod(map(trips, beside))
        return Problem(
            rows,
            columns,
            others,
            steps,
            output,
            rate,
            inputs,
            lanes,
            self.product.after(self.builder.machine.op_costs),
            read_bytes=self.product.read_bytes(),
        )

    def choices(self) -> list[Choice]:
        """Units, shapes and roles, the fastest first."""
        machine, reduce = self.builder.machine, self.product.reduce
        rates = machine.products
        assert rates is not None
        found: list[Choice] = []
        for unit in _units(machine, reduce):
            if self._is_transposed(unit) is None:
                continue
            problem = self.problem(rates.unit_rate / unit.inputs.itemsize, unit.lanes)
            if self._is_transposed(unit):
                problem = replace(problem, rows=problem.columns, columns=problem.rows)
            if problem.rows * problem.columns < FEWEST_OUTPUTS:
                continue  # a warp's smallest tile would be mostly empty
            tiles = tiles_of(unit, machine, not self._singly(unit))
            if self._singly(unit):
                problem = replace(problem, rate=problem.rate * rates.singly)
                tiles = [(s, r) for s, r in tiles if s.columns <= s.rows]  # the columns are what is expensive
            found += [(clocks(problem, s, machine, roles), unit, s, roles) for s, roles in tiles]
        problem = self.problem(rates.thread_rate, 1)
        if not found and min(problem.rows, problem.columns) >= FEWEST_POINTS and reduce.dtype.itemsize >= 4:
            wide = reduce.dtype.itemsize > 4
            shapes = [s for s in rates.thread_tiles if not wide or s.rows * s.columns <= 64 * 64]
            found += [(clocks(problem, s, machine), None, s, UNIFORM) for s in shapes]
        return sorted(found, key=lambda choice: choice[0])

    def clocks(self, choice: Choice) -> float:
        """The time of a choice beside other ways: with steps that a unit does for nothing, rounds that bring
        little, and operands that are copied element by element."""
        expected, unit, shape, roles = choice
        machine = self.builder.machine
        rates = machine.products
        assert rates is not None
        if unit is None:
            return expected
        line, plain = -(-trips(self.step) // unit.k) * unit.k, self.problem(1.0, unit.lanes)
        steps = plain.steps // trips(self.step) * line
        whole, now = (
            clocks(
                replace(plain, rate=rates.unit_rate / unit.inputs.itemsize, steps=n, line=m),
                shape,
                machine,
                roles,
            )
            for n, m in ((steps, line), (plain.steps, 0))
        )
        alone = sum(
            points * self._alone(reads, outer, unit.inputs.itemsize)
            for points, reads, outer in (
                (shape.rows, self.product.along_i, self.product.i),
                (shape.columns, self.product.along_j, self.product.j),
            )
        )
        tiles = -(-plain.rows // shape.rows) * -(-plain.columns // shape.columns) * plain.others
        rate = rates.alone[bool(unit.shared)]
        return expected + whole - now + tiles / machine.cores * plain.steps * alone * rate

    def _alone(self, reads: tuple[Access, ...], outer: UOp, itemsize: int) -> float:
        """Copies for an element of an operand's tile, beyond those of whole vectors."""
        lanes = most = self.builder.machine.vector_bytes // itemsize
        for read in reads[:1]:
            lanes = max((read.width(r, most) for r in (self.step, outer)), default=1)
        return 1 / lanes - 1 / most

    def _is_transposed(self, unit: MatrixUnit) -> bool | None:
        """Whether a unit's rows are columns of the outputs; None where it cannot read the operands.

        A unit reads tiles by itself if their rows run along the steps (16 bits: any), and if they hold its
        type. One operand that is otherwise may be gathered into registers: it is the unit's left one.
        """
        if not unit.shared or self._singly(unit):
            return False
        left, right = (
            (crosswise and unit.inputs.itemsize != 2) or any(a.node.dtype is not unit.inputs for a in reads)
            for crosswise, reads in (
                (self.left_runs, self.product.along_i),
                (self.right_runs, self.product.along_j),
            )
        )
        if "a" in unit.shared:
            return None if left or right else False
        return right if left != right else None

    def _singly(self, unit: MatrixUnit | None) -> bool:
        """Whether a unit's right operand is turned while it is copied, element by element.

        That is for elements of 4 bytes, the least that is copied, where the left one is gathered already.
        """
        if unit is None or unit.shared != "b" or unit.inputs.itemsize != 4:
            return False
        reads = (*self.product.along_i, *self.product.along_j)
        return self.left_runs and self.right_runs and all(a.node.dtype is unit.inputs for a in reads)

    def build(self, unit: MatrixUnit | None, shape: BlockTile, roles: int = UNIFORM) -> bool:
        self.unit = unit
        self.roles = roles
        self.transposed = unit is not None and bool(self._is_transposed(unit))
        reads = (self.product.along_i[0], self.product.along_j[0])
        inputs = max(a.node.dtype.itemsize for a in reads) if unit is None else unit.inputs.itemsize
        return self._tiles(self.i, self.j, int(self.step.arg[0]), shape, shape.bytes // inputs)

    def _trips(self, number: int) -> int:
        return trips(self.loops.by_number[number])

    def _scattered(self, step: UOp) -> int:
        """How many operands lie neither along a step nor along their own loop: each element is far away."""
        sides = ((self.product.along_i, self.product.i), (self.product.along_j, self.product.j))
        return sum(not any(1 in (a.step(r), a.step(step)) for a in reads) for reads, r in sides)

    def _runs(self, reads: tuple[Access, ...], outer: UOp, step: UOp) -> bool:
        """Whether an operand lies in memory along its own loop rather than along the steps."""
        return any(a.step(outer) == 1 for a in reads) and not any(a.step(step) == 1 for a in reads)

    def _join_steps(self) -> None:
        """Steps in lines that fill no tile become one loop, where neither operand lies along them.

        That is the gradient of a convolution's weights: its steps are the places of all images.
        """
        short = trips(self.step) < WIDE and trips(self.step) % STEPS
        if len(self.steps) < 2 or not short or not (self.left_runs and self.right_runs):
            return
        left = self.product.along_i[0]
        *outer, last = sorted(self.steps, key=lambda k: -abs(left.step(k) or 0))
        if all(self.do("JOIN", int(r.arg[0]), int(last.arg[0])) for r in reversed(outer)):
            self.step = self.loops.by_number[int(last.arg[0])]
            self.steps = [self.step]

    def _joined(self, seed: UOp, mine: tuple[Access, ...], others: tuple[Access, ...]) -> int:
        """The loop of one side of the tile, joined with its neighbours where it is short.

        Where places are divided anyway, all are joined: lines of an image and then the images, so that no
        tile ends with one of them, and an engine can walk through all.
        """
        number = int(seed.arg[0])
        total = trips(seed)
        joined = False
        beside = [
            r
            for r in self.product.outputs
            if r is not seed and any(a.moves(r) for a in mine) and not any(a.moves(r) for a in others)
            if total < STEPS or self.builder.machine.tma or not self._in_window(r, mine)
        ]
        for r in sorted(beside, key=lambda r: -int(r.arg[0])):
            if total >= WIDE and not joined:
                break
            if self.do("JOIN", int(r.arg[0]), number):
                total *= trips(r)
                joined = True
        return number

    def _in_window(self, r: UOp, mine: tuple[Access, ...]) -> bool:
        """Whether a loop over outputs moves a read where a step of the sum does: an offset in a window."""
        return any(
            a.moves(r) and (a.step(r) == a.step(k) or _meet(a.node, r, k))
            for a in mine
            for k in self.product.steps
        )

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
        if rows != i:
            for group in self._groups(shape):
                if self._trips(i) > group and self.do("TILE", i, group):
                    break
        return self.roles == UNIFORM or self._specialize()

    def _specialize(self) -> bool:
        """Producer and epilogue warp groups, in persistent blocks."""
        if not self.do("WARP_SPECIALIZE", amount=self.roles):
            return False
        self.do("PERSISTENT", amount=self.builder.machine.cores)
        return all_walked(self.loops.ast)

    def _stages_result(self, shape: BlockTile) -> bool:
        """Whether the result goes through shared memory: with roles, only what would be written in pieces."""
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
        for number in dict.fromkeys(a.buffer for a in reads):
            done |= number >= 0 and self.do("STAGE", number, depth, axes)
        return done

    def _inside(self, rows: int, columns: int, step: int, shape: BlockTile) -> bool:
        """The tile's own loops: units or threads, and who writes the result."""
        if self.unit is None:
            return self._thread_tile(rows, columns, step, shape)
        first = self.loops.next_number()
        vector = self._vector()
        if not self._stages_result(shape) or not self.do("STAGE_RESULT", axes=(rows, columns)):
            return self._unit_tile(rows, columns, step, shape)
        if not self._unit_tile(first, first + 1, step, shape):
            return False
        threads = WARP_GROUP if self.roles == EPILOGUE else shape.across * shape.along * self.unit.lanes
        along = min(threads, self._sides(shape)[1] // vector)
        self.do("UPCAST", columns, vector)
        # loads that a thread has under way at once: those of a vector, or of several rows
        ahead = self._whole_vector() // vector
        if self.product.reads_per_output():
            ahead = max(ahead, AHEAD)
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


def _meet(read: UOp, r: UOp, k: UOp) -> bool:
    """Whether a condition of a read knows both loops."""
    return any({r, k} <= ranges(c) for gate in read.src[2:] for c in conjuncts(gate))


def _named(loops: list[UOp], number: int) -> UOp:
    return next(r for r in loops if int(r.arg[0]) == number)
