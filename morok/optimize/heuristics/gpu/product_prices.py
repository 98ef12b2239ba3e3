"""Matrix products on a grid of blocks: loops joined into rows and columns, and what tiles of them would cost.

Which units multiply the operands, how operands lie, which shapes of tiles and which shares of the work there
are, the fastest first. `matmul.py` builds what is chosen.
"""

from __future__ import annotations

import math
from dataclasses import replace

from morok.ir.infer import ranges
from morok.ir.matrix import MatrixUnit
from morok.ir.node import UOp
from morok.machine.grid_time import ALONE, UNIFORM, Problem, Sharing, best_sharing, clocks, tiles_of
from morok.machine.machine import Machine
from morok.machine.rates import BlockTile
from morok.optimize.actions.matrix import as_input, factors
from morok.optimize.contraction import Contraction
from morok.optimize.facts import Access, output_loops, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import Loops
from morok.symbolic.validity import conjuncts

FEWEST_POINTS = 16  # of a side of a tile
FEWEST_OUTPUTS = 256  # of one product, for a matrix unit
STEPS = 64  # of a tile that units read
WIDE = 512  # outputs along a side from which no further loop is joined to it


Choice = tuple[float, "MatrixUnit | None", BlockTile, int]  # clocks, unit, tile, roles


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


class PricedProduct:
    """One product with its loops joined, and the prices of its tiles."""

    def __init__(self, builder: Builder, product: Contraction) -> None:
        self.builder = builder
        self.product = product
        self.unit: MatrixUnit | None = None
        self.roles = UNIFORM
        self.sharing = ALONE  # blocks that are a cluster
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
        output = self.product.output_bytes
        steps = math.prod(map(trips, self.steps))
        inputs = max(a.node.dtype.itemsize for a in (*self.product.along_i, *self.product.along_j))
        sides = ((self.product.along_i, self.product.i), (self.product.along_j, self.product.j))
        lines = [self._lines(*side) for side in sides]
        return Problem(
            rows,
            columns,
            self._beside(),
            steps,
            output,
            rate,
            inputs,
            lanes,
            self.product.after(self.builder.machine.op_costs),
            read_bytes=self.product.read_bytes(),
            row_lines=lines[0] if all(lines) else 0.0,
            column_lines=lines[1] if all(lines) else 0.0,
        )

    def _beside(self) -> int:
        """Products side by side."""
        outputs = output_loops(self.loops.ast.src[0])
        return math.prod(trips(r) for r in outputs if int(r.arg[0]) not in (self.i, self.j))

    def choices(self) -> list[Choice]:
        """Units, shapes and roles, the fastest first."""
        machine, reduce = self.builder.machine, self.product.reduce
        rates = machine.products
        assert rates is not None
        found: list[Choice] = []
        units = [u for u in _units(machine, reduce) if self._is_transposed(u) is not None]
        for unit in units:
            problem = self.problem(rates.unit_rate / unit.inputs.itemsize, unit.lanes)
            if not any("a" in u.shared for u in units):
                problem = replace(
                    problem, row_lines=0.0, column_lines=0.0
                )  # no engine copies for any of them
            if self._is_transposed(unit):
                problem = replace(
                    problem,
                    rows=problem.columns,
                    columns=problem.rows,
                    row_lines=problem.column_lines,
                    column_lines=problem.row_lines,
                )
            if problem.rows * problem.columns < FEWEST_OUTPUTS:
                continue  # a warp's smallest tile would be mostly empty
            tiles = tiles_of(unit, machine, not self._singly(unit))
            if self._singly(unit):
                problem = replace(problem, rate=problem.rate * rates.singly)
                tiles = [(s, r) for s, r in tiles if s.columns <= s.rows]  # the columns are what is expensive
            found += [
                (clocks(problem, s, machine, roles, self._sharing(problem, unit, s, roles)), unit, s, roles)
                for s, roles in tiles
            ]
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

    def _sharing(self, problem: Problem, unit: MatrixUnit, shape: BlockTile, roles: int) -> Sharing:
        """Blocks that share tiles."""
        if self._is_transposed(unit):
            return ALONE
        return best_sharing(problem, shape, self.builder.machine, roles)

    def _lines(self, reads: tuple[Access, ...], outer: UOp) -> float:
        """Lines of the second cache for a row of a tile that is as long as one, on average; 0 where
        no engine copies it."""
        machine = self.builder.machine
        for read in reads[:1]:
            along, across = (outer, self.step) if read.step(outer) == 1 else (self.step, outer)
            apart = (read.step(across) or 0) * read.node.dtype.itemsize
            if read.step(along) == 1 and apart and apart % machine.vector_bytes == 0:
                return 2 - math.gcd(apart, machine.line_bytes) / machine.line_bytes
        return 0.0

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


def _meet(read: UOp, r: UOp, k: UOp) -> bool:
    """Whether a condition of a read knows both loops."""
    return any({r, k} <= ranges(c) for gate in read.src[2:] for c in conjuncts(gate))
