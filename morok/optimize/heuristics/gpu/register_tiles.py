"""Products of few channels on a grid: grouped convolutions, the gradients of their weights, and their like.

A matrix unit multiplies tiles of 16 by 8 outputs and 16 steps. Where a group has four channels, most of such
a tile is empty, and what windows read is copied once for every offset. There a thread computes some outputs
by itself: places along the way of a window times channels, or the weights of a window times channels. What
several of its products read is one read, which comes from the cache, and stays in registers. Nothing is
staged, and no thread waits for another one, unless there are so few outputs that threads share the steps.

How many outputs and steps along each loop is a matter of time: products, beside them reads, conversions and
guards, for as many threads as there are then. The same price says whether a matrix unit would be faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, final

from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.grid_time import memory_clocks
from morok.machine.machine import Machine
from morok.optimize.actions.matrix import factors
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, touched, trips
from morok.optimize.grid import grid_loops
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.threads import SUMS, cut
from morok.optimize.loops import LOOP_KINDS, gate_of, size

THREADS = 128  # of a block
SHARERS = 256  # of the steps of one output
WAITING = 192  # threads of a multiprocessor that wait for memory at any time
MOST_RESIDENT = 2048  # threads of a multiprocessor
MOST_REGISTERS = 255  # of a thread
OTHER_REGISTERS = 40  # beside sums, and
LIVE = 0.7  # of what is read for them
LONGEST = 16  # outputs or steps of a thread along a loop
WRITTEN_OUT = 512  # products of a thread in straight code
LOAD = 4  # operations that are done while a line of memory comes from the cache
COMBINE = 16  # operations for a sum that threads share
TURN, SHARED_TURN = 12, 30  # operations of a loop's turn; the same where places are divided in it
MEASURED = (1.15, 1.5)  # times that kernels took on an H200: where outputs are places, and offsets in windows
FEWEST_TURNS = 4  # of threads that share steps
SIDE_BY_SIDE = 8  # threads along channels, which read whole cache lines together


@final
class Tile(NamedTuple):
    """What a thread has: outputs and steps by the numbers of their loops, and how many share the steps."""

    clocks: float
    outputs: Mapping[int, int]
    steps: Mapping[int, int]
    sharers: int


@final
class Product(NamedTuple):
    """A sum of products of two reads, and the loops over outputs that move one of them alone, or both."""

    reduce: UOp
    effects: tuple[UOp, ...]
    reads: tuple[Access, Access]
    outputs: list[UOp]
    steps: list[UOp]

    def alone(self, which: int) -> list[UOp]:
        """Loops over outputs that move one of the reads and not the other."""
        mine, other = self.reads[which], self.reads[1 - which]
        return [r for r in self.outputs if mine.moves(r) and not other.moves(r)]


def _product(builder: Builder) -> Product | None:
    ast = builder.ast
    if builder.machine.grid is None or not ast.src or any(effect.op is not Ops.END for effect in ast.src):
        return None
    found = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    if len(found) != 1 or found[0].arg != (Ops.ADD,) or factors(found[0].src[0]) is None:
        return None
    outputs = output_loops(ast.src[0])
    free = set(grid_loops(ast))
    if any(set(output_loops(e)) != set(outputs) for e in ast.src) or any(r not in free for r in outputs):
        return None
    reads = reads_of(found[0].src[0])
    if len(reads) != 2 or not all(any(a.moves(k) for a in reads) for k in closed_ranges(found[0])):
        return None
    # those that move memory furthest first: the last ones are shared by neighbouring threads
    steps = sorted(
        closed_ranges(found[0]), key=lambda k: -min(abs(a.step(k) or 1) for a in reads if a.moves(k))
    )
    if any(size(r) is None or r.arg[1] not in LOOP_KINDS for r in (*steps, *outputs)):
        return None
    return Product(found[0], ast.src, (reads[0], reads[1]), outputs, steps)


def register_tiles(builder: Builder, others: float | None) -> bool:
    """Outputs of a product in registers, from what threads read themselves; False, and nothing done, where
    that takes more than `others` clocks, or where nothing is read twice if there is no other way."""
    product = _product(builder)
    if product is None or not all(product.alone(n) for n in range(2)):
        return False
    planner = _Planner(product, builder.machine)
    if not planner.slides() if others is None else planner.least() >= others:
        return False
    best = planner.best()
    if others is not None and best.clocks >= others:
        return False
    _cut(builder, product, best)
    return True


def weights_in_registers(builder: Builder) -> bool:
    """The gradient of a window's weights, where no channels are shared: places lie side by side, and windows
    beside each other read mostly the same. False, and nothing done, for other kernels."""
    product = _product(builder)
    if product is None or all(product.alone(n) for n in range(2)):
        return False
    if not all(any(read.step(k) == 1 for k in product.steps) for read in product.reads):
        return False
    planner = _Planner(product, builder.machine)
    if not planner.slides():
        return False
    _cut(builder, product, planner.best())
    return True


class _Planner:
    """Prices of tiles."""

    def __init__(self, product: Product, machine: Machine) -> None:
        self.product = product
        self.machine = machine
        self.reads = product.reads
        sides = product.alone(0), product.alone(1)
        places = max(sides, key=lambda loops: math.prod(map(trips, loops)))
        self.places = [int(r.arg[0]) for r in _by_step(product) if r in places]
        self.outputs = {int(r.arg[0]): trips(r) for r in product.outputs}
        self.steps = {int(k.arg[0]): trips(k) for k in product.steps}
        guards = [n for n in toposort(product.reduce.src[0]) if n.op is Ops.WHERE]
        self.guarded = [
            gate_of(read.node) is not None or any(read.node in toposort(n) for n in guards)
            for read in self.reads
        ]
        self.counted: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        # outputs are offsets in windows: the gradient of weights
        self.has_offsets = any(self.outputs[r] < self.steps[k] for r, k in self.slides())

    def slides(self) -> list[tuple[int, int]]:
        """Outputs and steps that come to the same place by different ways: a window."""
        return [
            (r, k)
            for n, read in enumerate(self.reads)
            for r in self.outputs
            for k in self.steps
            if read.strides.get(r) and read.strides.get(k)
            if min(self.outputs[r], self.steps[k]) > 1 and self._overlap(n, r, k)
        ]

    def _overlap(self, which: int, r: int, k: int) -> bool:
        both = {r: min(self.outputs[r], LONGEST), k: min(self.steps[k], LONGEST)}
        return self._count(which, both) < math.prod(both.values())

    def best(self) -> Tile:
        """The fastest tile that is found from some first ones by changing one loop at a time."""
        first = [self._priced({}, {})]
        for r, k in self.slides():
            outputs = {n for n in _amounts(self.outputs[r]) if n >= min(4, self.outputs[r])}
            steps = {n for n in _divisors(self.steps[k]) if n >= min(4, self.steps[k])}
            for high in {min(outputs, default=1), max(outputs, default=1)}:
                first += [
                    self._priced({r: high}, {k: wide})
                    for wide in {min(steps, default=1), max(steps, default=1)}
                ]
        return min((self._descend(tile) for tile in first if tile is not None), key=lambda tile: tile.clocks)

    def least(self) -> float:
        """The time of the products alone."""
        machine = self.machine
        assert machine.grid is not None
        work = math.prod((*self.outputs.values(), *self.steps.values()))
        return work / (machine.grid.operations * machine.cores)

    def _descend(self, now: Tile) -> Tile:
        while True:
            found = min(self._beside(now), key=lambda tile: tile.clocks)
            if found.clocks >= now.clocks * 0.999:
                return now
            now = found

    def _beside(self, tile: Tile) -> Iterator[Tile]:
        yield tile
        for number, count in self.outputs.items():
            if all(read.strides.get(number, 0) != 0 for read in self.reads):
                continue  # nothing that such outputs need is the same
            for amount in _amounts(count):
                found = self._priced({**tile.outputs, number: amount}, tile.steps)
                if found is not None:
                    yield found
        for number, count in self.steps.items():
            for amount in _divisors(count):
                found = self._priced(tile.outputs, {**tile.steps, number: amount})
                if found is not None:
                    yield found

    def _priced(self, outputs: Mapping[int, int], steps: Mapping[int, int]) -> Tile | None:
        machine = self.machine
        assert machine.grid is not None
        sums, once = math.prod(outputs.values()), math.prod(steps.values())
        if sums > SUMS or sums * once > WRITTEN_OUT:
            return None
        inside = {n: each for n, each in (*outputs.items(), *steps.items()) if each > 1}
        counts = [self._count(n, inside) for n in range(2)]
        registers = min(MOST_REGISTERS, sums + LIVE * sum(counts) + OTHER_REGISTERS)
        resident = min(MOST_RESIDENT, machine.register_file / registers)
        points, work = math.prod(self.outputs.values()), math.prod(self.steps.values())
        threads = points / sums
        turns = math.prod(-(-count // steps.get(n, 1)) for n, count in self.steps.items())
        sharers = _sharers(turns, min(SHARERS, machine.cores * resident / threads), machine.warp)
        beside, loads, lines = 0.0, 0.0, 0.0
        neighbour = self._neighbour(outputs, steps, sharers)
        for n, read in enumerate(self.reads):
            narrow = read.node.dtype.itemsize < self.product.reduce.dtype.itemsize
            beside += counts[n] * (int(narrow) + int(self.guarded[n]))
            asked, width = self._loads(n, inside)
            loads += asked
            lines += asked * self._lines(read, neighbour, width)
        filled = math.prod(_filled((self.outputs | self.steps)[n], each) for n, each in inside.items())
        turn = TURN if sharers == 1 else SHARED_TURN
        operations = max(sums * once + beside + 2 * loads + turn, LOAD * lines) / (sums * once) / filled
        operations += COMBINE * sharers / work if sharers > 1 else 0
        resident = min(resident, threads * sharers / machine.cores)
        rate = machine.grid.operations * machine.cores * resident / (resident + WAITING)
        rate /= MEASURED[self.has_offsets]
        return Tile(max(points * work * operations / rate, self._memory()), outputs, steps, sharers)

    def _neighbour(
        self, outputs: Mapping[int, int], steps: Mapping[int, int], sharers: int
    ) -> tuple[int, int]:
        """The loop that threads beside each other are apart by, and how many of its iterations one has."""
        if sharers > 1:
            left = [n for n, count in self.steps.items() if count > steps.get(n, 1)]
            return (left[-1], steps.get(left[-1], 1)) if left else (-1, 0)
        left = [n for n in self.places if self.outputs[n] > outputs.get(n, 1)]
        return (left[-1], outputs.get(left[-1], 1)) if left else (-1, 0)

    def _lines(self, read: Access, neighbour: tuple[int, int], width: int) -> float:
        """Lines of memory that a warp touches for a vector each."""
        number, taken = neighbour
        step = read.strides.get(number, 0)
        if step == 0:
            return 1.0
        size = read.node.dtype.itemsize
        apart = max(width * size, abs(step) * taken * size) if step is not None else self.machine.line_bytes
        warp, line = self.machine.warp, self.machine.line_bytes
        return max(1.0, min(warp, warp * apart / line))

    def _loads(self, which: int, inside: Mapping[int, int]) -> tuple[float, int]:
        """Loads of a thread, and the elements of a vector among them: what lies beyond the ends of a row that
        windows share is loaded element by element."""
        read, count = self.reads[which], self._count(which, inside)
        width = self._lanes(read, inside)
        if width == 1:
            return count, 1
        along = {n: inside[n] for n, step in read.strides.items() if step == 1 and n in inside}
        each = max(along.values())
        row = {n: inside[n] for n, step in read.strides.items() if n in inside and 0 < abs(step or 0) < each}
        run = self._count(which, row)
        return count / run * (each / width + run - each), width

    def _memory(self) -> float:
        nbytes = math.prod(self.outputs.values()) * sum(
            store_of(e).src[1].dtype.itemsize for e in self.product.effects
        )
        nbytes += sum(self._bytes(n) for n in range(2))
        return memory_clocks(nbytes, self.machine.cores, self.machine)

    def _bytes(self, which: int) -> int:
        """Memory that a read goes through, once."""
        steps = sorted((abs(step or 1), number) for number, step in self.reads[which].strides.items())
        sizes = self.outputs | self.steps
        last = sum(step * (sizes[number] - 1) for step, number in steps) + 1
        return (
            min(last, touched(self.reads[which]) // self.reads[which].node.dtype.itemsize)
            * self.reads[which].node.dtype.itemsize
        )

    def _count(self, which: int, inside: Mapping[int, int]) -> int:
        """Different elements that a thread reads for all of its products."""
        read = self.reads[which]
        mine = [(n, inside[n]) for n in read.strides if inside.get(n, 1) > 1]
        key = which, tuple(mine)
        if key not in self.counted:
            places, apart = {0}, 1
            for n, each in mine:
                step = read.strides[n]
                if step is None:
                    apart *= each
                else:
                    places = {p + step * k for p in places for k in range(each)}
            self.counted[key] = len(places) * apart
        return self.counted[key]

    def _lanes(self, read: Access, inside: Mapping[int, int]) -> int:
        """Elements of a vector that a thread loads: as many as lie side by side, and always begin alike."""
        along = [n for n, step in read.strides.items() if step == 1 and inside.get(n, 1) > 1]
        if not along:
            return 1
        main = max(along, key=lambda n: inside[n])
        each = inside[main]
        if (self.outputs | self.steps)[main] % each:
            return 1  # what is beyond the end is guarded element by element
        lanes = math.gcd(self.machine.vector_bytes // read.node.dtype.itemsize, each)
        for n, step in read.strides.items():
            if n == main or step is None:
                lanes = lanes if step is not None else 1
                continue
            taken = inside.get(n, 1)
            if taken < (self.outputs | self.steps)[n]:
                lanes = math.gcd(lanes, step * taken)
            if taken > 1 and abs(step) >= each:
                lanes = math.gcd(lanes, step)
        return lanes


def _amounts(count: int) -> list[int]:
    """How many of a loop's iterations a thread may have."""
    return [n for n in range(1, min(count, LONGEST) + 1) if count % n == 0 or count > LONGEST]


def _divisors(count: int) -> list[int]:
    """The same for steps: those beyond the end would have to be guarded."""
    return [n for n in range(1, min(count, LONGEST) + 1) if count % n == 0]


def _sharers(turns: int, most: float, warp: int) -> int:
    """How many threads share so many turns: all have as many, and warps are full."""
    few = [n for n in range(2, int(min(most, turns // FEWEST_TURNS)) + 1) if turns % n == 0]
    return max(few, key=lambda n: n * n / (-(-n // warp) * warp), default=1)


def _filled(count: int, each: int) -> float:
    return count / (-(-count // each) * each)


def _cut(builder: Builder, product: Product, tile: Tile) -> None:
    for number, amount in sorted(tile.steps.items(), reverse=True):
        if amount > 1:
            cut(builder, "UNROLL", number, amount)
    by_step = _by_step(product)
    for r in by_step:
        amount = tile.outputs.get(int(r.arg[0]), 1)
        if amount > 1:
            cut(builder, "UPCAST", int(r.arg[0]), amount)
    _threads(builder, product, by_step, THREADS // tile.sharers)
    if tile.sharers > 1:  # after the others: the last threads are neighbours in a warp
        _share_steps(builder, product, tile.sharers)


def _by_step(product: Product) -> list[UOp]:
    """Loops over outputs, those that move what is written furthest first."""
    place = access(store_of(product.effects[0]).src[0])
    return sorted(product.outputs, key=lambda r: -abs(place.step(r) or 0))


def _share_steps(builder: Builder, product: Product, sharers: int) -> None:
    """Threads share the steps that are left, as one loop."""
    left = [int(k.arg[0]) for k in product.steps if _is_loop(builder, int(k.arg[0]), AxisKind.REDUCE)]
    if not left:
        return
    *outer, last = left
    for number in reversed(outer):
        builder.do("JOIN", number, last)
    cut(builder, "GROUP", last, sharers)


def _threads(builder: Builder, product: Product, by_step: list[UOp], room: int) -> None:
    """Threads of a block are neighbours along what is written, with the same weights as far as there are
    enough of them."""
    sides = product.alone(0), product.alone(1)
    places = max(sides, key=lambda loops: math.prod(map(trips, loops)))
    left = [int(r.arg[0]) for r in by_step if r in places and _is_loop(builder, int(r.arg[0]))]
    beside = int(by_step[-1].arg[0])
    if beside not in left and _is_loop(builder, beside) and room > 1:
        amount = min(room, SIDE_BY_SIDE, trips(builder.loops.by_number[beside]))
        amount = amount if cut(builder, "LOCAL", beside, amount) else 1
        room //= amount
    if left and room > 1:
        *outer, last = left
        for number in reversed(outer):
            builder.do("JOIN", number, last)
        cut(builder, "LOCAL", last, min(room, trips(builder.loops.by_number[last])))


def _is_loop(builder: Builder, number: int, kind: AxisKind = AxisKind.LOOP) -> bool:
    r = builder.loops.by_number.get(number)
    return r is not None and r.arg[1] is kind and trips(r) > 1
