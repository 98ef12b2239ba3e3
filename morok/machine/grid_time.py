"""How long kernels take on a grid of blocks, in clocks of the busiest multiprocessor, from their sizes alone:
tiles, occupancy, waves of blocks.

The planner of products chooses among tiles by it. Fusion and the splitting of reductions ask the same before
there is a kernel: what a product would take if its operands were memory, or computed on the way; what a
reduction would take if it were cut in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, final

from morok.caches import Cache
from morok.dtype import DType
from morok.ir.matrix import MatrixUnit
from morok.machine.machine import Machine
from morok.machine.rates import BlockTile


def blocks_per_sm(
    tile: BlockTile, threads: int, bytes_per_step: int, depth: int, machine: Machine, beside: int
) -> int:
    """Occupancy: how many such blocks one multiprocessor holds, by shared memory and by registers."""
    shared = (tile.rows + tile.columns) * bytes_per_step * depth
    registers = tile.rows * tile.columns // threads + beside
    held = machine.register_file // (threads * registers)
    return max(1, min(machine.local_bytes // max(1, shared), held))


@final
@dataclass(frozen=True)
class Problem:
    """What the choice of a tile depends on."""

    rows: int
    columns: int
    others: int  # products side by side
    steps: int
    output_bytes: int
    rate: float  # products per clock
    step_bytes: int  # of one step of an operand's row
    lanes: int  # threads that one of the shape's parts has
    after: float = 0.0  # simple operations on every sum before it is written
    line: int = 0  # steps of one loop, of which tiles are cut, where there are others around it; 0: all
    read_bytes: int = 0  # of an output, beside the sum
    row_lines: float = 0.0  # lines of the second cache for a row of the left operand's tile, as far as known,
    column_lines: float = 0.0  # and of the right one's

    def at_rate(self, rate: float, lanes: int) -> Problem:
        return replace(self, rate=rate, lanes=lanes)


# How threads share the work: all do everything; a producer warp group copies the tiles; and another one has
# the epilogue.
UNIFORM, PRODUCER, EPILOGUE = -1, 0, 1
NARROW = 128  # columns of a tile below which it is slower if others write


class Sharing(NamedTuple):
    """Neighbouring blocks that are a cluster, and what they share: tiles of columns, or of rows."""

    blocks: int = 1
    rows: bool = False

    @property
    def high(self) -> int:
        """Of the blocks, those with rows of their own."""
        return 1 if self.rows else self.blocks

    @property
    def wide(self) -> int:
        """And those with columns of their own."""
        return self.blocks if self.rows else 1


ALONE = Sharing()


def best_sharing(problem: Problem, shape: BlockTile, machine: Machine, roles: int = UNIFORM) -> Sharing:
    """What neighbouring blocks had best share, if anything."""
    if roles == UNIFORM or machine.cluster < 2:
        return ALONE
    found = [ALONE]
    found += [Sharing(machine.cluster)] if problem.rows > shape.rows else []
    found += [Sharing(machine.cluster, True)] if problem.columns > shape.columns else []
    return min(found, key=lambda sharing: clocks(problem, shape, machine, roles, sharing))


def clocks(
    problem: Problem, shape: BlockTile, machine: Machine, roles: int = UNIFORM, sharing: Sharing = ALONE
) -> float:
    """How long the busiest multiprocessor takes."""
    rates = machine.products
    assert rates is not None
    worth, beside = {PRODUCER: rates.bring, EPILOGUE: rates.write}.get(roles, (1.0, 1.0))
    threads = shape.across * shape.along * problem.lanes
    bytes_per_step = max(1, min(shape.bytes, (problem.line or problem.steps) * problem.step_bytes))
    rounds = -(-problem.steps * problem.step_bytes // bytes_per_step)
    blocks = blocks_per_sm(
        shape, threads, bytes_per_step, min(shape.depth, rounds), machine, rates.other_registers
    )
    tiles = -(-problem.rows // (shape.rows * sharing.high)) * sharing.high
    tiles *= -(-problem.columns // (shape.columns * sharing.wide)) * sharing.wide * problem.others
    points = shape.rows * shape.columns
    inside = points * problem.steps / (problem.rate * shape.worth * worth)
    if problem.lanes > 1:  # units are fast enough to wait for the second cache
        lines = (
            shape.rows * problem.row_lines / sharing.wide
            + shape.columns * problem.column_lines / sharing.high
        )
        lines *= bytes_per_step / shape.bytes  # short loops have short rows
        inside = max(inside, rounds * lines / rates.line_rates[roles != UNIFORM])
    if problem.lanes == 1:  # threads that multiply by themselves hide what others of them wait for
        present = min(blocks, -(-tiles // max(1, machine.cores))) * threads
        inside *= max(1.0, rates.busy_threads / present) ** 0.5
    if rounds > 1:  # threads wait for one another as often as for whole tiles
        inside += rounds * rates.round * (1 - bytes_per_step / shape.bytes)
    moved = problem.output_bytes + problem.read_bytes
    outside = points * moved / rates.store_rate + rates.latency
    after = points * problem.after / rates.other_rate
    if sharing.blocks > 1:  # blocks go in step: what one does beside multiplying, the others wait for
        inside, outside, after = (
            inside * rates.together[0],
            outside * rates.together[1],
            after * rates.together[1],
        )
    if roles != UNIFORM:  # one block, which has a multiprocessor for itself
        blocks = 1
    turns = -(-tiles // max(1, machine.cores // sharing.blocks * sharing.blocks))
    if roles == EPILOGUE:  # nothing hides the last tile of a block
        return turns * max(inside + outside * beside, outside + after / rates.writers) + after
    return turns * (inside + outside * beside / blocks + after)


def units_for(inputs: DType, output: DType, machine: Machine) -> list[MatrixUnit]:
    """The units that multiply a type and add up in another one, as far as they may be used."""
    return [u for u in machine.matrix_units if u.inputs is inputs and u.output is output and u.allowed]


def tiles_of(unit: MatrixUnit, machine: Machine, boxes: bool = True) -> list[tuple[BlockTile, int]]:
    """Tiles for a unit, and how threads share the work; `boxes`: an engine may copy the operands' tiles."""
    rates = machine.products
    assert rates is not None
    if not unit.shared:
        return [(s, UNIFORM) for s in rates.unit_tiles]
    found = [(s, UNIFORM) for s in rates.group_tiles if s.columns == unit.n]
    if machine.tma and boxes:
        found += [
            (s, roles)
            for s in rates.group_tiles
            for roles in (PRODUCER, EPILOGUE)
            if s.across > 1 and s.columns in (unit.n, roles * 2 * unit.n)
            if roles != EPILOGUE or s.columns >= NARROW
        ]
    return found


_Asked = tuple[Problem, tuple[MatrixUnit, ...], Machine, bool]
_product_clocks: Cache[_Asked, float] = Cache("machine.product_clocks", 4096)


def product_clocks(
    problem: Problem, inputs: DType, output: DType, machine: Machine, plain: bool = True
) -> float:
    """The best tile's time for a product; `plain`: both operands are memory, as a unit takes them.

    `rate` and `lanes` of the problem are filled in here.
    """
    asked = problem, tuple(units_for(inputs, output, machine)), machine, plain
    found = _product_clocks.get(asked)
    if found is None:
        found = _product_clocks[asked] = _best_clocks(*asked)
    return found


def _best_clocks(problem: Problem, units: tuple[MatrixUnit, ...], machine: Machine, plain: bool) -> float:
    rates = machine.products
    assert rates is not None
    found: list[float] = []
    for unit in units:
        rate = rates.unit_rate / unit.inputs.itemsize * (1.0 if plain else rates.computed)
        asked = problem.at_rate(rate, unit.lanes)
        found += [clocks(asked, s, machine, roles) for s, roles in tiles_of(unit, machine, plain)]
    if not found:
        rate = rates.thread_rate * (1.0 if plain else rates.computed_by_threads)
        asked = problem.at_rate(rate, 1)
        found = [clocks(asked, s, machine) for s in rates.thread_tiles]
    return min(found)


def least_clocks(work: int, inputs: DType, output: DType, machine: Machine) -> float:
    """What so many products take at least, however they are cut: all multiprocessors at the rate of the best
    tile. `product_clocks` is never less."""
    rates = machine.products
    assert rates is not None
    best = 0.0
    for unit in units_for(inputs, output, machine):
        worth = max(s.worth * _worth(roles, machine) for s, roles in tiles_of(unit, machine))
        best = max(best, rates.unit_rate / unit.inputs.itemsize * worth)
    best = best or rates.thread_rate * max(s.worth for s in rates.thread_tiles)
    return work / (best * max(1, machine.cores))


def _worth(roles: int, machine: Machine) -> float:
    """What a tile's rate is multiplied by where threads share the work so."""
    rates = machine.products
    assert rates is not None
    return {PRODUCER: rates.bring, EPILOGUE: rates.write}.get(roles, (1.0, 1.0))[0]


def memory_clocks(nbytes: float, blocks: float, machine: Machine) -> float:
    """The time to move so many bytes by so many blocks: a multiprocessor has its share of the bandwidth."""
    assert machine.grid is not None
    busy = max(1.0, min(blocks, machine.cores))
    return nbytes / (machine.grid.memory * busy)


# Operations for a product whose operands threads read themselves, reads among them: where outputs are places,
# and where they are offsets in windows, as weights are.
REGISTERS = (2.2, 3.5)


def register_clocks(work: float, nbytes: float, machine: Machine, offsets: bool) -> float:
    """The time of so many products that threads have in registers, with nothing staged for a unit."""
    assert machine.grid is not None
    products = work * REGISTERS[offsets] / (machine.grid.operations * machine.cores)
    return max(products, memory_clocks(nbytes, machine.cores, machine))
