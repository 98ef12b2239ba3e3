"""The default choice of actions: deterministic, without measuring, the same code for every machine.

Each loop is looked at for itself, because a kernel is a sequence of nests rather than a shape:
- a reduction that reuses its inputs becomes a register tile (`tiles.py`);
- a reduction along contiguous memory gets several vector accumulators, combined once after the loop;
- a reduction across contiguous memory is vectorised along the outputs;
- a short reduction is written out;
- a loop over outputs that is contiguous in memory becomes vectors, a few at a time;
- the outermost loop with enough work goes to the threads, or several as one (`sharing.py`).
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.cache_row import shared_value
from morok.optimize.actions.halo import copy_bytes, find_pair, is_guarded
from morok.optimize.actions.scans import runs_along
from morok.optimize.contraction import contraction_of
from morok.optimize.facts import (
    Access,
    access,
    functions,
    output_loops,
    reads_of,
    store_of,
    trips,
    value_bytes,
    weight,
    work,
)
from morok.optimize.heuristics.blocked_rows import blocked_rows
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.cpu_attention import attention
from morok.optimize.heuristics.lane_rows import lane_rows
from morok.optimize.heuristics.pieces import cut_at_guards
from morok.optimize.heuristics.sharing import share
from morok.optimize.heuristics.skinny_gemm import gemv, single_row, skinny_gemm
from morok.optimize.heuristics.specialize import pad_rows
from morok.optimize.heuristics.tables import tables_in_lanes
from morok.optimize.heuristics.tile_units import tile_units
from morok.optimize.heuristics.tiles import tile
from morok.optimize.loops import Loops, divides, size

EXPENSIVE = 10  # operations of a value that is kept rather than computed twice
SHORT = 16  # steps of a reduction that is written out
LIGHT = 3  # operations of a body that leaves most registers free
HEAVY = 32  # operations of a body, more than one exponential, that keeps the pipelines busy by itself
FEWEST_BESIDE = 4  # outputs of a window that are worth a vector with a mask
MOST_STRIDE = 4  # of windows side by side: their elements come from few vectors of memory
LONG = 32  # steps of a loop, compared to which a rest is nothing
ROWS_AT_ONCE = 4
WINDOW_ROWS = 4  # at once, of windows side by side that fill a vector at most
WRITTEN_OUT = 1024  # steps of all their elements: beyond that, vectors are taken apart
STREAMED_PART = 4  # of the second cache: so much of it may be sums while rows pass by
VECTORS_OF_ALL = 64  # in the bodies of all nests of a kernel together
FEWEST_SHARING = 8  # outputs that read the same window, for a copy of it to pay


def choose(ast: UOp, machine: Machine) -> UOp:
    """The kernel with the actions that the heuristics choose."""
    builder = Builder(ast, machine)
    cache_rows(builder)
    if machine.vector_bytes and not machine.block_threads:
        pad_rows(builder)
        copy_halos(builder)
        cut_at_guards(builder)
    loops = builder.loops
    enough = work(loops, machine.op_costs) >= machine.rates.shared_work
    builder.shares = machine.cores > 1 and not machine.block_threads and enough
    if machine.scores_in_cache and attention(builder):
        return builder.ast
    if machine.vector_bytes:
        lanes_of_kernel(builder, loops)
    if builder.shares:
        share(builder)
    return builder.ast


def cache_rows(builder: Builder) -> None:
    """Expensive values that a reduction and the loop over outputs both compute are kept in a row."""
    loops = builder.loops
    for k in [r for r in loops.closers if r.arg[1] is AxisKind.REDUCE]:
        for c in [r for r in loops.closers if r.arg[1] is AxisKind.LOOP and r.src[0] is k.src[0]]:
            found = shared_value(builder.loops, k, c)
            if found is None or weight(found[0], k, builder.machine.op_costs) < EXPENSIVE:
                continue
            if trips(k) * found[0].dtype.itemsize * 2 > builder.machine.l1_bytes:
                continue
            numbers = int(k.arg[0]), int(c.arg[0])
            lanes = builder.machine.lanes(found[0].dtype)
            step = lanes * vectors_at_once(weight(found[0], k, builder.machine.op_costs), builder.machine)
            if not divides(lanes, k.src[0]) and trips(k) >= 8 * step:
                # the loop that fills a row has no rest: whole steps are kept, and the last few computed twice
                for number in numbers:
                    builder.do("PEEL", number, step)
            if divides(lanes, builder.loops.by_number[numbers[0]].src[0]):
                builder.do("CACHE_ROW", *numbers)


def copy_halos(builder: Builder) -> None:
    """What the windows of a convolution read under a guard is copied, if some outputs share it.

    Where many do, they are rows of a tile, and a panel is packed for them instead.
    """
    loops = builder.loops
    many = builder.machine.registers
    if len(loops.ast.src) != 1 or loops.ast.src[0].op is not Ops.END:
        return
    effect = loops.ast.src[0]
    places = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP]
    for read in reads_of(store_of(effect).src[1]):
        others = [r for r in places if r not in ranges(read.node)]
        if read.buffer < 0 or math.prod(map(trips, others)) >= many:
            continue
        offsets = [k for k in ranges(read.node) if loops.closed_by(k) is Ops.REDUCE]
        pairs = [
            pair
            for p in places
            for k in sorted(offsets, key=lambda k: int(k.arg[0]))
            if is_guarded(read.node, p) and (pair := find_pair(read.node, p, k)) and pair.step == 1
        ]
        if not pairs or len({r for pair in pairs for r in (pair.place, pair.offset)}) != 2 * len(pairs):
            continue
        sharing = math.prod(map(trips, others)) * math.prod(trips(pair.offset) for pair in pairs)
        left = [r for r in places if r in ranges(read.node) and all(r is not pair.place for pair in pairs)]
        whole = builder.machine.lanes(read.node.dtype) if builder.machine.masked_memory else 0
        nbytes = copy_bytes(loops, read.node, pairs, whole)
        enough = math.prod(map(trips, left)) >= 4 * builder.machine.cores
        if not enough or sharing < FEWEST_SHARING or nbytes is None or nbytes > builder.machine.l2_bytes // 4:
            continue
        axes = tuple(int(r.arg[0]) for pair in pairs for r in (pair.place, pair.offset))
        if builder.do("HALO", read.buffer, whole, axes):
            _move_outside(builder, [int(r.arg[0]) for r in left], places)
            return


def _move_outside(builder: Builder, left: list[int], places: list[UOp]) -> None:
    """The loops that a copy is filled in become the outermost ones, so that it is not filled again inside."""
    numbers = sorted(int(r.arg[0]) for r in places)
    for target, number in zip(numbers, sorted(left), strict=False):
        for other in reversed([n for n in numbers if target <= n < number]):
            builder.do("SWAP", other, other + 1 if other + 1 in numbers else number)


def lanes_of_kernel(builder: Builder, loops: Loops) -> None:
    """Vectors for every nest of the kernel. Facts come from the kernel as it was."""
    if lane_rows(builder, loops):
        return
    tiled: set[UOp] = set()
    across: set[UOp] = set()  # output loops that reductions across memory want as vectors
    seen: set[UOp] = set()
    walked: set[frozenset[UOp]] = set()  # loops of reductions that become vectors
    plain: list[tuple[UOp, UOp]] = []  # those, and what they are part of
    for effect in loops.ast.src:
        for node in toposort(effect):
            if node.op is not Ops.REDUCE or node in seen:
                continue
            seen.add(node)
            heavy = not tiled and not outputs_outweigh(effect, node)
            whole = builder.machine.tile_units and heavy and shared_by_all(loops, node)
            product = contraction_of((effect,), node) if whole else None
            if product is not None and tile_units(builder, product):
                tiled |= {product.i, product.j}
                continue
            if heavy and skinny_gemm(builder, effect, node):
                tiled |= ranges(node)
                continue
            shared = heavy and shared_by_all(loops, node)
            if shared and blocked_rows(builder, loops.ast.src, node):
                tiled |= ranges(node)
                continue
            product = contraction_of((effect,), node) if shared else None
            if product is not None and (gemv(builder, product) or tile(builder, product)):
                tiled |= {product.i, product.j}
            elif heavy and product is None and single_row(builder, effect, node):
                tiled |= ranges(node)
            elif not tiled and frozenset(closed_ranges(node)) not in walked:
                walked.add(frozenset(closed_ranges(node)))
                plain.append((node, effect))
    # After the tile, whose rows some of them compute: the axis that is cut last lies side by side in lanes.
    for node, effect in plain:
        across |= reduction(builder, node, effect, ROWS_AT_ONCE if tiled & ranges(node) else 1)
    if tiled:
        return
    for node in loops.order:
        if node.op is Ops.BUFFERIZE:
            lanes = max(1, builder.machine.vector_bytes // value_bytes(node.src[0]))
            last = node.src[-1]
            full = lanes * vectors_at_once(
                weight(node.src[0], last, builder.machine.op_costs), builder.machine
            )
            builder.vectorise("UPCAST", int(last.arg[0]), full, lanes)
    done: set[int] = set()
    for effect in loops.ast.src:
        outputs(builder, effect, across, done)


def outputs_outweigh(effect: UOp, reduce: UOp) -> bool:
    """Whether outputs that share a sum have more to do than the sum has: those get the vectors."""
    shared = [r for r in output_loops(effect) if r not in ranges(reduce)]
    steps = math.prod(trips(k) for k in closed_ranges(reduce) if k.op is Ops.RANGE)
    return math.prod(map(trips, shared)) > steps


def shared_by_all(loops: Loops, reduce: UOp) -> bool:
    """Whether all effects run over the same loops and need this reduction: a tile of it serves them all."""
    first, *others = loops.ast.src
    same = all(closed_ranges(effect) == closed_ranges(first) for effect in others)
    return same and all(reduce in toposort(effect) for effect in others)


def vectors_at_once(cost: float, machine: Machine) -> int:
    """How many vectors a loop body handles together: many if it is light, few if it fills the registers."""
    most = max(1, machine.registers // 4)
    return min(most, 8 if cost <= LIGHT else 4 if cost <= HEAVY else 2)


def vectors_of_chains(chains: int, count: int | None, lanes: int, machine: Machine) -> int:
    """How many vectors fill the gaps in the chains of so many functions before they fill the registers.

    The constants of a polynomial need no registers of their own, so one function leaves room for six vectors.
    That is no power of two: a short loop would be mostly rest.
    """
    most = max(1, machine.registers // 4)
    if chains == 1 and (count is None or count >= LONG * most * lanes):
        return min(most, 6)
    return min(most, 4 if chains <= 2 else 2)


def reduction(builder: Builder, node: UOp, effect: UOp, rows: int = 1) -> set[UOp]:
    """Vectorises a plain reduction along its own loop; or names the output loop to do it along.

    So many `rows` are reduced side by side, and need the fewer vectors each to keep the pipelines busy.
    """
    machine = builder.machine
    loops = [k for k in closed_ranges(node) if k.op is Ops.RANGE]
    if all(k.src[0].op is Ops.CONST for k in loops) and math.prod(map(trips, loops)) <= SHORT:
        for k in loops:
            builder.do("UNROLL", int(k.arg[0]))
        return set()
    all_reads = reads_of(*node.src[: len(node.arg)])
    # what stays the same for all of a sum is read outside of its loop
    moving = [a for a in all_reads if not ranges(a.node).isdisjoint(loops)]
    reads = moving or all_reads
    lanes = max(1, machine.vector_bytes // value_bytes(node))
    cost = max(
        weight(value, k, builder.machine.op_costs) for value in node.src[: len(node.arg)] for k in loops
    )
    outer = [r for r in output_loops(effect) if r in ranges(node)]
    fewest = min(lanes, FEWEST_BESIDE) if machine.masked_memory else lanes
    near = [r for r in outer if any(1 <= (a.step(r) or 0) <= MOST_STRIDE for a in reads)]
    window = _window_column(loops, effect, near, fewest)
    if window is not None:  # each element is read at many places, and each place sums a few
        whole = _rows_of_windows(builder, window, outer, reads, loops)
        for k in loops if whole else [max(loops, key=lambda k: int(k.arg[0]))]:
            builder.do("UNROLL", int(k.arg[0]))
        return {window}
    # a loop shorter than a vector cannot become one, such as the width of a small window
    along = [sum(a.step(k) == 1 for a in reads) if trips(k) >= lanes else 0 for k in loops]
    beside = [sum(a.step(r) == 1 for a in reads) for r in outer]
    if not moving:  # nothing is read step by step: along the loop, unless outputs lie beside each other
        place = access(store_of(effect).src[0])
        beside = [count if place.step(r) == 1 else 0 for r, count in zip(outer, beside, strict=True)]
        along = [int(trips(k) >= lanes) for k in loops]
    jumps = min(sum(a.step(k) not in (0, 1) for a in reads) for k in loops)
    if beside and max(beside) > max(0, max(along, default=0) - jumps if moving else 0):
        # rows are far apart in memory: several of them at a time keep more loads under way
        builder.vectorise("UNROLL", max(int(k.arg[0]) for k in loops), ROWS_AT_ONCE, ROWS_AT_ONCE)
        column = outer[beside.index(max(beside))]
        return set() if accumulate_rows_in_cache(builder, effect, loops, column, lanes, cost) else {column}
    if along and max(along) > 0:
        chosen = loops[along.index(max(along))]
        full = lanes * max(1, vectors_at_once(cost * len(node.arg), machine) // rows)
        builder.vectorise("UNROLL", int(chosen.arg[0]), full, lanes)
    return set()


def _window_column(loops: list[UOp], effect: UOp, outer: list[UOp], fewest: int) -> UOp | None:
    """The loop along which a window's outputs lie, and its inputs, or every second of them: a sum of so few
    elements is no vector itself.

    A convolution of each channel for itself, say.
    """
    if any(size(k) is None or trips(k) >= SHORT for k in loops) or len(loops) < 2:
        return None
    store = access(store_of(effect).src[0])
    found = [r for r in outer if r.arg[1] is AxisKind.LOOP and store.step(r) == 1 and trips(r) >= fewest]
    return found[0] if found else None


def _rows_of_windows(
    builder: Builder, window: UOp, outer: list[UOp], reads: list[Access], loops: list[UOp]
) -> bool:
    """Takes a few rows of windows at once where a row is no more than a vector: each sum waits for itself,
    and rows of the picture that several windows read are loaded once."""
    lanes = max(1, builder.machine.vector_bytes // max(1, value_bytes(reads[0].node)))
    near = [a for a in reads if a.step(window) == 1]
    rows = [r for r in outer if r is not window and size(r) is not None and _overlap(r, near, loops)]
    if not rows or not builder.machine.masked_memory or trips(window) > lanes:
        return False
    most = min(WINDOW_ROWS, WRITTEN_OUT // (lanes * math.prod(map(trips, loops))))
    count = max(n for n in range(1, max(1, most) + 1) if trips(rows[-1]) % n == 0)
    return count > 1 and builder.do("UPCAST", int(rows[-1].arg[0]), count)


def _overlap(row: UOp, reads: list[Access], loops: list[UOp]) -> bool:
    """Whether an output reads on where some steps of the sum of the one before it have been."""
    return any(
        a.step(row) == (a.step(k) or 0) * n
        for a in reads
        for k in loops
        for n in range(1, trips(k))
        if a.step(row)
    )


def accumulate_rows_in_cache(
    builder: Builder, effect: UOp, loops: list[UOp], c: UOp, lanes: int, cost: float
) -> bool:
    """Sums of more columns than registers hold are kept in the cache, and rows are read as they lie.

    The loop is that of a reduction, or one that something runs along. Where nothing else is left for the
    threads, each has columns of its own.
    """
    machine, count, number = builder.machine, size(c), int(c.arg[0])
    strip = lanes * max(1, machine.registers // 2)
    if (
        machine.block_threads
        or len(loops) != 1
        or count is None
        or count <= strip
        or trips(loops[0]) <= SHORT
    ):
        return False
    row = int(loops[0].arg[0])
    left = builder.loops.by_number
    if row not in left or left.get(number) is not c:  # another reduction has cut it already
        return False
    if _repeated_by_row(builder.loops, row, number):
        return False
    wide = lanes * min(4, vectors_at_once(cost, machine))
    beside = math.prod(trips(r) for r in output_loops(effect) if r is not c and r is not loops[0])
    pieces = -(-count * lanes_bytes(machine, lanes) * STREAMED_PART // machine.l2_bytes)
    if builder.shares and beside < machine.cores and count >= 4 * wide * machine.cores:
        pieces = -(-pieces // machine.cores) * machine.cores
    stretch = max(1, count // pieces // wide) * wide
    remainder = builder.loops.next_number()
    if count % stretch and not builder.do("PEEL", number, stretch):
        return False
    if count % stretch:
        builder.vectorise("UPCAST", remainder, strip, lanes)
    inner = builder.loops.next_number() if count >= 2 * stretch else number
    if inner != number:
        builder.do("TILE", number, stretch)
    column = builder.loops.next_number()
    if builder.do("ACCUMULATE_IN_CACHE", int(loops[0].arg[0]), inner):
        builder.do("UPCAST", column, wide)
        builder.do("UPCAST", inner, wide)
    else:
        builder.vectorise("UPCAST", inner, strip, lanes)
    return True


def _repeated_by_row(loops: Loops, row: int, column: int) -> bool:
    """Whether a loop around the columns would compute reductions again that do not depend on it."""
    k, c = loops.by_number[row], loops.by_number[column]
    inside = [n for closer in loops.closers[k] for n in toposort(closer) if n is not closer]
    expensive = (n for n in inside if n.op in (Ops.REDUCE, Ops.BUFFERIZE))
    return any(c in ranges(n) and k not in ranges(n) for n in expensive)


def lanes_bytes(machine: Machine, lanes: int) -> int:
    """The size of an element of which a register holds so many."""
    return max(1, machine.vector_bytes // lanes)


def outputs(builder: Builder, effect: UOp, across: set[UOp], done: set[int]) -> None:
    """Vectors along the loop in which the store is contiguous."""
    machine = builder.machine
    store = store_of(effect)
    place = access(store.src[0])
    beside = [r for r in output_loops(effect) if place.step(r) == 1]
    found = [r for r in beside if r.arg[1] is AxisKind.LOOP]
    if not found:
        if beside and runs_along(builder.loops, beside[0]):
            run_in_lanes(builder, store, beside[0], done)
        elif not beside:
            tables_in_lanes(builder, effect, SHORT)
        return
    c = found[0]
    number = int(c.arg[0])
    if number in done or (c in across and builder.loops.by_number.get(number) is not c):
        return  # also by a reduction that accumulates in the cache
    done.add(number)
    value = store.src[1]
    inner = [n for n in toposort(value) if n.op is Ops.REDUCE and c in ranges(n)]
    short = all(math.prod(trips(k) for k in closed_ranges(n)) <= SHORT for n in inner)
    if c not in across and not short:
        return  # the reductions inside are vectors already
    lanes = max(1, machine.vector_bytes // value_bytes(store))
    transposed = _transposed_loop(effect, c)
    if transposed is not None:
        # the inner loop walks along the rows that are read, and every step writes whole cache lines
        other = int(transposed.arg[0])
        if other < number and builder.do("SWAP", other, number):
            other, number = number, other
        if (size(c) or lanes) < lanes:  # few rows that are interleaved
            builder.vectorise("UPCAST", other, lanes, lanes)
            builder.do("UPCAST", number)
            return
        builder.do("UPCAST", other, lanes)
        builder.vectorise("UPCAST", number, max(lanes, machine.line_bytes // value_bytes(store)), lanes)
        return
    cost = weight(value, c, builder.machine.op_costs)
    along = [r for r in output_loops(effect) if runs_along(builder.loops, r)]
    if along and accumulate_rows_in_cache(builder, effect, along, c, lanes, cost):
        return
    for n in inner:
        cost += weight(n, c, builder.machine.op_costs) * (
            math.prod(map(trips, closed_ranges(n))) if c not in across else 1
        )
    vectors = vectors_at_once(cost, machine)
    chains = 0 if inner else functions(value, c)
    if chains:
        vectors = vectors_of_chains(chains, size(c), lanes, machine)
    if inner and short and c not in across and 1 < (size(c) or 0) <= SHORT:
        # what a written-out reduction does depends on the place: it folds
        whole = machine.masked_memory and builder.vectorise("UPCAST", number, 2 * lanes, lanes)
        if not whole:
            builder.do("UPCAST", number)
        return
    vectors = min(vectors, _vectors_of_nests(builder.loops))
    if c in across and cost <= LIGHT:
        vectors = max(1, machine.registers // 2)  # whole cache lines of each row
    count = size(c) or 0
    whole = not inner and count % lanes == 0 and 0 < count <= lanes * max(vectors, machine.registers // 4)
    if whole and builder.do("UPCAST", number, count):
        return
    if not builder.vectorise("UPCAST", number, lanes * vectors, lanes):
        _few_of_a_vector(builder, effect, c, lanes, done)


def _vectors_of_nests(loops: Loops) -> int:
    """How many vectors a body has where a kernel is many nests of loops, each with a body of its own: all of
    them together should stay short, as the nests of many parts that are joined."""
    nests = len({closed_ranges(effect) for effect in loops.ast.src})
    if nests == 1:
        return VECTORS_OF_ALL
    return 1 << max(2, VECTORS_OF_ALL // nests).bit_length() - 1


def _few_of_a_vector(builder: Builder, effect: UOp, c: UOp, lanes: int, done: set[int]) -> None:
    """A contiguous loop of fewer steps than lanes is written out, inside of lanes along the loop that goes on
    where it ends: what the steps compute lies interleaved, as pairs do.
    """
    count = size(c)
    if count is None or not 1 < count < lanes:
        return
    place = access(store_of(effect).src[0])
    around = [r for r in output_loops(effect) if place.step(r) == count and r.arg[1] is AxisKind.LOOP]
    if around and builder.vectorise("UPCAST", int(around[0].arg[0]), lanes, lanes):
        done.add(int(around[0].arg[0]))
    builder.do("UPCAST", int(c.arg[0]))


def run_in_lanes(builder: Builder, store: UOp, r: UOp, done: set[int]) -> None:
    """Vectors along a loop that something runs along: they are combined inside, a few at a time."""
    number = int(r.arg[0])
    if number in done:
        return
    done.add(number)
    lanes = max(1, builder.machine.vector_bytes // value_bytes(store))
    vectors = min(4, vectors_at_once(weight(store.src[1], r, builder.machine.op_costs), builder.machine))
    builder.vectorise("UPCAST", number, lanes * vectors, lanes)


def _transposed_loop(effect: UOp, c: UOp) -> UOp | None:
    """Another output loop along which a read is contiguous that jumps along c: a transposition."""
    for read in reads_of(store_of(effect).src[1]):
        if read.step(c) in (0, 1, None):
            continue
        for r in output_loops(effect):
            if r is not c and read.step(r) == 1 and r.arg[1] is AxisKind.LOOP:
                return r
    return None


__all__ = ["choose"]
