"""Split reductions: long ones in two stages, for devices that want it (split-K for sums).

A sum of millions of elements into a few has little to run in parallel. The first stage sums pieces, the
second the pieces' sums. A GPU cannot combine the sums of different blocks in one kernel, and threads of a CPU
would have to wait for one another. The knob names a length for all devices. Reductions that need no loop at
all, such as a gather, are left alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from morok import knobs
from morok.ir.memory import device_of
from morok.ir.movement import pad, permute, reduce_axis, reshape, shrink
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import Ops
from morok.machine.core_time import panels_of, product_cycles
from morok.machine.devices import machine_of
from morok.machine.grid_time import least_clocks, memory_clocks, units_for
from morok.machine.machine import Machine
from morok.machine.rates import LongReduce, Splits, TallReduce
from morok.schedule.contraction import GraphContraction, contraction_at, is_whole, memory_axis
from morok.schedule.costs import elements
from morok.schedule.indexing import known_shape
from morok.schedule.kernel.probe import collapsible

NEVER = Splits()
FEWEST_STEPS = 64  # of a piece
FEWEST_ROWS = 32  # the same across rows: 256x4096 in pieces of 16 rows takes three times as long
TILE = 64  # steps of a product that are copied at once
UNEVEN = 4.0  # times fewer pieces than there may be, of equal size, rather than a rest
EVEN = 1.25  # the same where each core has one
EXACT = 1.0  # as many as were asked for, where a rest costs nothing
TILES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 18, 24, 40)  # of a product of few outputs
WORTH = 0.8  # of its time that a split must leave at most, on cores
MANY_WAKES = 2  # and so many times what threads take to wake up less: estimates of short ones say little
OVERFETCHED = 0.5  # of the time of a matrix whose rows threads share in short parts
ASKED = LongReduce(0, 4096, 1024)  # where the knob names the length


def split_reductions(sink: UOp, ctx: object = None) -> UOp:
    """Reductions of long axes to few outputs become two."""
    asked = knobs.SPLIT_REDUCE.value
    devices: dict[UOp, str] = {}
    long: dict[UOp, LongReduce] = {}
    tall: set[UOp] = set()
    order = toposort(sink)
    for node in order:
        devices[node] = device_of(node, devices)
        if node.op is Ops.REDUCE_AXIS:
            splits = machine_of(devices[node]).splits if devices[node] else NEVER
            limits = replace(ASKED, longest=asked) if asked else splits.reduce
            if limits is not None and _is_long(node, limits):
                long[node] = limits
            elif (
                not asked
                and splits.tall is not None
                and _is_tall(node, splits.tall, machine_of(devices[node]))
            ):
                long[node] = LongReduce(0, 0, splits.tall.pieces * elements(known_shape(node)))
                tall.add(node)
            elif not asked and splits.by_time and (pieces := _priced(node, machine_of(devices[node]))) > 1:
                long[node] = LongReduce(0, 0, pieces * elements(known_shape(node)))
                tall.add(node)
    if not long:
        return sink
    for node in collapsible(order):
        long.pop(node, None)
    done: dict[UOp, UOp] = {}
    # the blocks of a grid would each add up the pieces anew
    spread = _spread(order, {n for n in long if n in tall or machine_of(devices[n]).has_grid})
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        if node in long:
            has_grid = machine_of(devices[node]).has_grid
            aligned = has_grid and len(node.arg[1]) == 1 and contraction_at(node) is not None
            cut_by_time = node in tall and not has_grid
            new = _in_two(new, long[node], TILE if aligned else 1, EVEN if cut_by_time else UNEVEN)
        if node in spread:
            new = make(Ops.CONTIGUOUS, new.dtype, (new,), "every row needs it", node.origin)
        done[node] = new
    return done[sink]


def _priced(node: UOp, machine: Machine) -> int:
    """How many pieces a reduction is best cut into, by the time of both stages; 1: it stays whole.

    A product with few tiles, and columns that are few compared to a machine of many multiprocessors, leave
    most of it idle. Pieces are blocks of their own; what they have summed is written, and added up in order.
    """
    sizes = _sizes(node.src[0])
    if len(sizes) < len(known_shape(node)):
        return 1
    if machine.threads:
        return _for_cores(node, machine)
    if machine.grid is None or machine.products is None:
        return 1
    outputs = elements(known_shape(node))
    axes = node.arg[1]
    steps = math.prod(sizes[a] for a in axes)
    found = contraction_at(node)
    whole = _clocks(node, found, 1, machine)
    if whole is None or whole < 2 * machine.grid.launch:
        return 1
    best, clocks = 1, machine.grid.split * whole
    if _least(node, found, machine) >= clocks:
        return 1  # whatever the number of pieces
    for pieces in _counts(machine.cores, found is not None):
        if pieces * FEWEST_STEPS > steps:
            break
        if len(axes) > 1 and 2 * max(_pieces(sizes[a], pieces) for a in axes) < pieces:
            break  # only one of the axes is cut
        parts = pieces * outputs * node.dtype.itemsize
        first = _clocks(node, found, pieces, machine)
        assert first is not None
        total = first + memory_clocks(2 * parts, machine.cores, machine) + machine.grid.launch
        if total < clocks:
            best, clocks = pieces, total
    return best


def _least(node: UOp, found: GraphContraction | None, machine: Machine) -> float:
    """What a product in two or more pieces takes at least; 0 where nobody knows. Most have tiles for all
    multiprocessors anyway, and pieces of them need no prices one by one."""
    if found is None or min(found.rows, found.columns) < 2:
        return 0.0
    assert machine.grid is not None
    parts = 2 * elements(known_shape(node)) * node.dtype.itemsize
    summed = memory_clocks(2 * parts, machine.cores, machine) + machine.grid.launch
    return least_clocks(found.work, found.inputs, found.output, machine) + summed


def _counts(cores: int, tiled: bool) -> list[int]:
    """Counts of pieces that are worth a look: doublings; and for products such that so many tiles of each
    piece, at once, are a block for nearly every multiprocessor."""
    found = {1 << i for i in range(1, 9)}
    return sorted(found | {cores // tiles for tiles in TILES if tiles < cores} if tiled else found)


def _for_cores(node: UOp, machine: Machine) -> int:
    """The same for a product that has no more panels than there are cores: pieces are products side by side.

    What they have summed goes through memory, and is added up in a kernel of its own.
    """
    found = contraction_at(node)
    if found is None or machine.cores < 2:
        return 1
    if min(found.rows, found.columns) == 1:
        return _for_single_row(node, found, machine)
    nbytes = found.output.itemsize
    if panels_of(found.columns, nbytes, machine) * found.batch > machine.cores:
        return 1  # who shares them reads all of it once
    if units_for(found.inputs, found.output, machine):
        return 1  # these times are those of vectors
    if not all(is_whole(factor) for factor in found.factors):
        return 1  # what computes them is better done once
    rows, columns, rates = found.rows, found.columns, machine.rates
    whole = product_cycles(rows, columns, found.batch, found.steps, nbytes, machine)
    best, cycles = 1, WORTH * whole - MANY_WAKES * rates.wake
    for pieces in range(2, min(2 * machine.cores, found.steps // FEWEST_STEPS) + 1):
        steps = -(-found.steps // pieces)
        parts = pieces * rows * columns * found.batch * nbytes
        total = product_cycles(rows, columns, found.batch * pieces, steps, nbytes, machine)
        total += 2 * parts * rates.memory_byte + rates.wake
        if total < cycles:
            best, cycles = pieces, total
    return best


def _for_single_row(node: UOp, found: GraphContraction, machine: Machine) -> int:
    """The same for one row times a matrix as it lies, whose columns threads would share otherwise.

    Where a thread's part of a row is short, what the processor fetches ahead of it is somebody else's: twice
    as much goes through the caches, and each part no longer stays in its core's own.
    """
    nbytes, rates, axis = found.inputs.itemsize, machine.rates, memory_axis(node.src[0])
    stretch = max(found.rows, found.columns) * nbytes / machine.cores
    if found.batch > 1 or axis is None or axis in node.arg[1] or stretch >= machine.splits.stretch:
        return 1
    if found.steps < machine.cores * FEWEST_STEPS or not all(is_whole(factor) for factor in found.factors):
        return 1
    saved = OVERFETCHED * found.work * nbytes / machine.cores * rates.memory_byte
    return machine.cores if saved > MANY_WAKES * rates.wake else 1


def _clocks(node: UOp, found: GraphContraction | None, pieces: int, machine: Machine) -> float | None:
    """The time of a reduction in so many pieces; None where rows are reduced, which threads share."""
    outputs = elements(known_shape(node))
    if found is not None and min(found.rows, found.columns) > 1:
        read = memory_clocks(found.operand_bytes, machine.cores, machine)
        return max(found.clocks(machine, pieces), read)
    axis = memory_axis(node.src[0])
    if axis is None or axis in node.arg[1]:
        return None
    below = [n for n in toposort(node.src[0], stop=is_whole) if is_whole(n)]
    read = sum(elements(known_shape(n)) * n.dtype.itemsize for n in below)
    narrow = min((n.dtype.itemsize for n in below), default=4)
    # a block has a line of memory of every row at least, and as many rows as it has threads
    blocks = max(1, outputs * narrow // machine.line_bytes) * pieces
    return memory_clocks(read, blocks, machine)


def _spread(order: list[UOp], tall: set[UOp]) -> set[UOp]:
    """What is made of reductions across rows and then repeated for each row: it is added up once."""
    found: set[UOp] = set()
    made = set(tall)
    for node in order:
        if node.op is Ops.EXPAND and node.src[0] in made:
            found.add(_narrowest(node.src[0]))
        elif node.op in (Ops.RESHAPE, Ops.PERMUTE) or node.op.is_alu:
            if any(s in made for s in node.src):
                made.add(node)
    return found


def _narrowest(node: UOp) -> UOp:
    """What a value shows, or is the same in a wider type: units multiply what is narrow."""
    kept = below = node
    while below.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.CAST):
        below = below.src[0]
        if below.dtype.itemsize < node.dtype.itemsize and below.dtype.itemsize <= kept.dtype.itemsize:
            kept = below
    return kept


def _sizes(node: UOp) -> list[int]:
    """The sizes of the axes, as far as they are known."""
    return [n for n in known_shape(node) if isinstance(n, int)]


def _is_long(node: UOp, limits: LongReduce) -> bool:
    sizes = _sizes(node.src[0])
    if len(sizes) < len(known_shape(node)) or elements(known_shape(node)) > limits.outputs:
        return False
    total: int = math.prod([sizes[a] for a in node.arg[1]])
    return total >= limits.longest


def _is_tall(node: UOp, limits: TallReduce, machine: Machine) -> bool:
    """Whether many rows are reduced to one, or to a few, read for nothing else, and threads that share them
    save more than what waking them, and the pieces' way through memory, take."""
    sizes, axes, rates = _sizes(node.src[0]), node.arg[1], machine.rates
    if len(sizes) < len(known_shape(node)) or len(axes) != 1 or sizes[axes[0]] < limits.pieces * FEWEST_ROWS:
        return False
    lead, inner = math.prod(sizes[: axes[0]]), math.prod(sizes[axes[0] + 1 :])
    total, outputs = math.prod(sizes), elements(known_shape(node))
    if inner == 1 or lead >= limits.blocks:
        return False
    nbytes = total * node.dtype.itemsize
    # the sums lie in the first cache, and a row of them is read and written again for a few rows
    whole = nbytes * (2 * rates.l2_byte if nbytes < machine.l2_bytes else rates.memory_byte)
    parts = 2 * limits.pieces * outputs * node.dtype.itemsize * rates.memory_byte
    shared = whole / min(machine.cores, limits.pieces) + parts + rates.wake
    if whole - shared < MANY_WAKES * rates.wake:
        return False
    below = toposort(node.src[0], stop=is_whole)
    return 2 * max((elements(known_shape(n)) for n in below if is_whole(n)), default=0) >= total


def _in_two(node: UOp, limits: LongReduce, step: int = 1, slack: float = UNEVEN) -> UOp:
    """The reduction in pieces whose length is a multiple of a step, so that each begins where a tile may."""
    source, (op, axes) = node.src[0], node.arg
    sizes = _sizes(source)
    most = max(2, limits.pieces // max(1, elements(known_shape(node))))
    # as many pieces as there may be, of the outermost axis that allows them: they lie far apart in memory
    choices = ((_pieces(sizes[a] // step if sizes[a] % step == 0 else 1, most), a) for a in axes)
    pieces, axis = max(choices, key=lambda found: (found[0], -found[1]))
    fills_up = step > 1 and source.op is Ops.MUL
    if pieces > 1 and (EXACT if fills_up else slack) * pieces >= most:
        return _by_pieces(node, source, axis, pieces)
    axis = max(axes, key=lambda a: sizes[a])
    if fills_up:
        length = -(-sizes[axis] // (most * step)) * step
        filled = -(-sizes[axis] // length)
        if filled > 1:
            return _by_pieces(node, _filled_up(source, axis, filled * length), axis, filled)
    whole = sizes[axis] // (most * step) * most * step
    if not whole:
        return _in_two(node, limits) if step > 1 else node
    main = _by_pieces(node, _part(source, axis, 0, whole), axis, most)
    rest = reduce_axis(_part(source, axis, whole, sizes[axis]), op, axes)
    return alu(op, main, reshape(rest, known_shape(node)))


def _filled_up(source: UOp, axis: int, size: int) -> UOp:
    """Products of which an axis goes on with zeros, so that it can be cut into equal pieces of whole tiles.

    Both factors are 0 there: the engine that copies tiles fills in zeros beyond memory's end, and for others
    it is one more condition. What is left over would be a kernel of its own, with few blocks.
    """
    more = [(0, size - n if a == axis else 0) for a, n in enumerate(_sizes(source))]
    return source.replace(tuple([pad(factor, more) for factor in source.src]))


def _by_pieces(node: UOp, source: UOp, axis: int, pieces: int) -> UOp:
    """The reduction of a source, an axis of which is cut."""
    op, axes = node.arg
    sizes = _sizes(source)
    cut = reshape(source, (*sizes[:axis], pieces, sizes[axis] // pieces, *sizes[axis + 1 :]))
    others = [a if a < axis else a + 1 for a in axes if a != axis]
    # pieces are outermost in memory, so that what they have summed lies as the results will
    ahead = permute(cut, [axis, *(a for a in range(len(sizes) + 1) if a != axis)])
    inner = [a + 1 if a < axis else a for a in (axis + 1, *others)]
    first = reduce_axis(ahead, op, inner)
    kept = make(Ops.CONTIGUOUS, first.dtype, (first,), "a long reduction is done in two stages", node.origin)
    return reshape(reduce_axis(kept, op, [0]), known_shape(node))


def _part(source: UOp, axis: int, start: int, end: int) -> UOp:
    """A stretch of an axis."""
    return shrink(source, [(start, end) if a == axis else (0, n) for a, n in enumerate(_sizes(source))])


def _pieces(size: int, most: int) -> int:
    """The most pieces of equal size that there may be."""
    return max((d for d in range(2, most + 1) if size % d == 0), default=1)
