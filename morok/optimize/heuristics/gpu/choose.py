"""The default choice of actions for a machine with a grid of blocks, for kernels that memory limits.

Whatever stays a loop over outputs goes to the grid in stage 8a, unless a reduction lies outside of it. Here
it is decided which of those loops are threads of a block, who shares a reduction, and how much each does:

- loops over outputs: a thread has a vector of 16 bytes, neighbouring threads have neighbouring vectors
  (coalesced);
- a reduction along contiguous memory is shared by the threads of a block or of a warp (`rows.py`), and
  the loops over the same row that follow are walked by the same threads in the same pieces. Then equal reads
  are one read: the row stays in registers, and softmax or a layer norm reads it once;
- a reduction across contiguous memory: threads along the outputs, and others beside them share the rows
  (`columns.py`);
- windows (`windows.py`), products of few channels and the gradients of a window's weights
  (`register_tiles.py`): a thread has outputs that read the same, in registers;
- a short reduction is written out;
- a transposition goes through shared memory, a square at a time.

Sizes that do not divide are rounded up: reads beyond the end read the last element again, stores are guarded.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.memory import joined_by
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.partition import MOST
from morok.optimize.actions.stage import holders_first
from morok.optimize.facts import access, output_loops, reads_of, store_of, trips
from morok.optimize.grid import CHEAP, grid_loops
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.attention import attention
from morok.optimize.heuristics.gpu.columns import share_columns
from morok.optimize.heuristics.gpu.lanes import share_vectors
from morok.optimize.heuristics.gpu.matmul import matrix_product
from morok.optimize.heuristics.gpu.register_tiles import weights_in_registers
from morok.optimize.heuristics.gpu.rows import goes_along, share_rows
from morok.optimize.heuristics.gpu.segments import segments
from morok.optimize.heuristics.gpu.threads import ceil_power, give_threads, lanes_for, may_join, memory_of
from morok.optimize.heuristics.gpu.windows import windows
from morok.optimize.heuristics.lane_rows import lane_rows_of_blocks
from morok.optimize.loops import divides, size

THREADS = 256  # of a block of independent outputs
FEW = 8  # steps of a reduction that is written out whatever it reads
SHARERS = 1024  # threads of a multiprocessor that walk through the same steps
FEWEST_TURNS = 8  # of a thread: everybody looks at all steps
AT_ONCE = 4  # elements of a thread, where they cannot be a vector
MANY_READS = 16  # of a thread, for one output
SQUARE_BYTES = 256  # of a side of what is transposed at a time
NARROW_SQUARE = 32  # elements of a side, where they have less than four bytes: columns meet in few banks


def choose_gpu(ast: UOp, machine: Machine) -> UOp:
    """The kernel with the actions that the heuristics choose."""
    builder = Builder(ast, machine)
    if (
        segments(builder)
        or attention(builder)
        or matrix_product(builder)
        or lane_rows_of_blocks(builder)
        or share_vectors(builder)
        or windows(builder)
        or weights_in_registers(builder)
    ):
        return builder.ast
    write_out(builder)
    share_rows_of_scatters(builder)
    shared = share_rows(builder) or share_columns(builder)
    if not shared:
        for position, effect in enumerate(builder.ast.src):
            spread(builder, effect, position)
    return builder.ast


def write_out(builder: Builder) -> None:
    """Reductions of a few steps become straight code."""
    for node in [n for n in builder.loops.order if n.op is Ops.REDUCE]:
        loops = [k for k in closed_ranges(node) if k.op is Ops.RANGE]
        steps = math.prod(map(trips, loops))
        # threads that share a row of a few vectors read it side by side, which one thread does not; but then
        # outputs that need the same sum would come one after the other
        shared = steps > FEW and goes_along(node) and not _serves_many(builder, node)
        if all(size(k) is not None for k in loops) and steps <= CHEAP and not shared:
            for k in loops:
                builder.do("UNROLL", int(k.arg[0]))


def _serves_many(builder: Builder, node: UOp) -> bool:
    """Whether many outputs need the same value of a reduction, such as all places of a scaled channel.

    Those of the row itself, as in a softmax, do not count: they have it in registers.
    """
    own, row = ranges(node), {a.buffer for a in reads_of(node)}
    for effect in builder.ast.src:
        if effect.op is not Ops.END or node not in toposort(effect):
            continue
        places = memory_of(store_of(effect))
        for r in output_loops(effect):
            if r not in own and trips(r) > 1 and not any(a.buffer in row and a.moves(r) for a in places):
                return True
    return False


def share_rows_of_scatters(builder: Builder) -> None:
    """Rows that are put in places: at once where memory joins them and no order counts, else one after the
    other, where threads share the places, as many as are free."""
    for effect in builder.ast.src:
        if effect.op is not Ops.END:
            continue
        steps_in_order = [r for r in closed_ranges(effect) if r.arg[1] is AxisKind.ORDERED]
        if steps_in_order and builder.do("ATOMIC", int(steps_in_order[0].arg[0])):
            continue
        ordered = [r for r in closed_ranges(effect) if r.arg[1] is AxisKind.ORDERED and size(r) is not None]
        steps = math.prod(map(trips, ordered))
        beside = math.prod(trips(r) for r in closed_ranges(effect) if r.arg[1] is AxisKind.LOOP)
        wanted = builder.machine.cores * SHARERS // max(1, beside)
        amount = 1 << max(0, min(wanted, steps // FEWEST_TURNS, MOST)).bit_length() >> 1
        if ordered and amount > 1:
            builder.do("PARTITION", int(ordered[0].arg[0]), amount)


def spread(builder: Builder, effect: UOp, position: int) -> None:
    """The outputs of an effect over threads: vectors along contiguous memory, then blocks of threads."""
    free = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP and r in grid_loops(builder.ast)]
    if not free:
        return
    place = access(store_of(effect).src[0])
    ordered = sorted(free, key=lambda r: (place.step(r) != 1, -int(r.arg[0])))
    first = ordered[0]
    room = min(THREADS, builder.machine.block_threads)
    if _reads_each(effect) >= MANY_READS:  # small blocks rather than multiprocessors without one
        loops = builder.loops.by_number.values()
        taken = math.prod(trips(r) for r in loops if r.arg[1] is AxisKind.LOCAL)  # by effects before
        total = taken * math.prod(trips(r) for r in free)
        wanted = ceil_power(-(-total // builder.machine.cores))
        room = max(builder.machine.warp, min(room, wanted)) // taken
    if place.step(first) == 1 and not _has_long_reduction(effect) and joined_by(store_of(effect)) is None:
        if transpose_through_shared(builder, effect, first):
            return
        if _join_short_rows(builder, effect, first, ordered[1:]):
            spread(builder, builder.ast.src[position], position)
            return
        lanes = lanes_for(first, memory_of(store_of(effect)), builder.machine)
        total = math.prod(trips(r) for r in free)
        # a small kernel needs all threads that it can get more than it needs wide accesses
        while lanes > 1 and total // lanes < builder.machine.cores * THREADS:
            lanes //= 2
        if lanes > 1:
            builder.do("UPCAST", int(first.arg[0]), lanes)
        elif trips(first) >= builder.machine.cores * THREADS * AT_ONCE:
            _in_strides(builder, int(first.arg[0]), room)
            return
    give_threads(builder, ordered, room)


def _join_short_rows(builder: Builder, effect: UOp, first: UOp, others: list[UOp]) -> bool:
    """Rows that no whole vectors fit into, behind each other in memory, are one: channels of 7 × 7 places,
    each scaled by its own number. Whether there were any."""
    found = memory_of(builder.ast)
    wanted = max(1, builder.machine.vector_bytes // store_of(effect).src[1].dtype.itemsize)
    count = size(first)
    now = builder.loops.by_number
    if count is None or count % wanted == 0 or now.get(int(first.arg[0])) is not first:
        return False
    for r in [r for r in others if now.get(int(r.arg[0])) is r]:
        moving = [(a.step(r), a.step(first)) for a in found if a.moves(r) or a.moves(first)]
        rows = size(r)
        if rows is None or math.gcd(rows * count, wanted) <= math.gcd(count, wanted):
            continue
        if (count, 1) in moving and all(may_join(*steps, count) for steps in moving):
            return builder.do("JOIN", int(r.arg[0]), int(first.arg[0]))
    return False


def _reads_each(effect: UOp) -> int:
    """Elements that a thread reads for an output, in reductions that are written out."""
    steps = [[r for r in ranges(a.node) if r.arg[1] is AxisKind.UNROLL] for a in reads_of(effect)]
    return sum(math.prod(map(trips, each)) for each in steps)


def _has_long_reduction(effect: UOp) -> bool:
    return any(
        n.op is Ops.REDUCE and any(k.arg[1] is AxisKind.REDUCE for k in closed_ranges(n))
        for n in toposort(effect)
    )


def _in_strides(builder: Builder, number: int, threads: int) -> None:
    """Where vectors do not fit: several elements per thread, a block's width apart, so many are under way."""
    amount = threads * AT_ONCE
    r = builder.loops.by_number[number]
    if not divides(amount, r.src[0]):
        builder.do("PADTO", number, amount)
    inner = builder.loops.next_number()
    if builder.do("TILE", number, threads):
        builder.do("UPCAST", number, AT_ONCE)
        builder.do("LOCAL", inner)


def transpose_through_shared(builder: Builder, effect: UOp, column: UOp) -> bool:
    """A transposition: a square of the memory that is read along another loop goes through shared memory.

    It is read along the rows of the one and written along the rows of the other, whole cache lines each time.
    """
    found = _transposed_read(effect, column)
    if found is None:
        return False
    buffer, row = found
    others = [_transposed_read(e, column) for e in builder.ast.src if column in closed_ranges(e)]
    buffers = dict.fromkeys((buffer, *(b for b, r in filter(None, others) if r is row)))
    wide = max(a.node.src[0].dtype.elem.itemsize for a in memory_of(store_of(effect)))  # type: ignore[attr-defined]
    points = math.prod(trips(r) for r in output_loops(effect))
    short = min(trips(column), trips(row))
    sides = [SQUARE_BYTES // wide // n for n in (1, 2, 4)] if wide >= 4 else [NARROW_SQUARE]
    side = next((n for n in sides if n <= short and points >= builder.machine.cores * n * n), 0)
    if not side:
        return False
    pair = []
    for r in (column, row):
        number = int(r.arg[0])
        if not divides(side, r.src[0]):
            builder.do("PADTO", number, side)
        whole = size(r) == side
        pair.append(number if whole else builder.loops.next_number())
        if not whole and not builder.do("TILE", number, side):
            return False
    across, along = pair
    for number in holders_first(builder.loops, buffers, (across, along)):
        builder.do("STAGE", number, 1, (across, along))
    lanes = max(1, builder.machine.vector_bytes // wide)
    threads = min(side, THREADS // max(1, side // lanes))
    builder.do("LOCAL", along, threads)
    builder.do("UPCAST", along)
    builder.do("UPCAST", across, lanes)
    builder.do("LOCAL", across)
    return True


def _transposed_read(effect: UOp, column: UOp) -> tuple[int, UOp] | None:
    """A buffer that jumps along a loop and is contiguous along another one over outputs, and that loop."""
    for read in reads_of(store_of(effect).src[1]):
        if read.buffer < 0 or read.step(column) in (0, 1, None):
            continue
        for r in output_loops(effect):
            if r is not column and read.step(r) == 1 and r.arg[1] is AxisKind.LOOP:
                return read.buffer, r
    return None
