"""Scans (running reductions): where a kernel can hold one, and in which form a device computes it.

A kernel computes a running reduction in a loop over its own outputs, whose steps follow each other. So it
takes part in a kernel that asks for it at every place once, in order or in the reverse of it; others read it
from memory.

Threads cannot share one such loop. A long row is therefore cut into pieces where there are few rows: first
what each piece adds up to, then the pieces side by side, each after what lies before it. Along contiguous
memory a processor has a kernel for that which is written by hand (`codegen/written_scans.py`). A GPU has
thousands of threads and does this with all but short rows, in short runs, and again for the sums of the runs.
"""

from __future__ import annotations

from morok.dtype import int64
from morok.ir.infer import Shape, Size
from morok.ir.memory import device_of
from morok.ir.movement import expand, iota, pad, reduce_axis, reshape, scan_axis, shrink
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.ir.scan import neutral
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.schedule.costs import elements
from morok.schedule.graph.boundaries import without_copies
from morok.schedule.indexing import known_shape

RUN = 8  # elements of a run that is written out
WHOLE = 16  # elements of a row that is written out as it is
PAIRS = 1 << 20  # of elements and those up to them, which take less time than one more kernel
SHORT = 64  # elements of a row that one thread of a GPU walks along, if that is soon done or neighbours help
FEW = 1 << 16  # elements that are soon done
FEW_RUNS = 1 << 17  # sums of runs that are taken in longer ones
BESIDE = 32  # threads of a warp: so many rows in neighbouring places are read together
LONG_RUN = 32  # of a run that one thread walks along
LONGER_RUNS = (64, 128)  # of few elements, if so their sums are written out


def split_scans(sink: UOp, ctx: object = None) -> UOp:
    """Running reductions of few long rows, and most of those of a GPU, become several steps."""
    order = toposort(sink)
    if not any(node.op is Ops.SCAN_AXIS for node in order):
        return sink
    devices: dict[UOp, str] = {}
    done: dict[UOp, UOp] = {}
    for node in order:
        devices[node] = device_of(node, devices)
        new = node.replace(tuple([done[s] for s in node.src]))
        splits = node.op is Ops.SCAN_AXIS and devices[node]
        done[node] = _for_machine(new, machine_of(devices[node])) if splits else new
        if node.op is Ops.CONTIGUOUS and node.src[0].op is Ops.SCAN_AXIS and new.src[0].op is Ops.WRITTEN:
            done[node] = new.src[0]  # that is memory by itself
    by_hand = [new for node, new in done.items() if node.op is Ops.SCAN_AXIS and new.op is Ops.WRITTEN]
    return without_copies(done[sink], [new.src[0] for new in by_hand])  # they read memory as it lies


def _for_machine(node: UOp, machine: Machine) -> UOp:
    op, axis = node.arg
    sizes = known_shape(node)
    size = sizes[axis]
    if not isinstance(size, int) or not all(isinstance(n, int) for n in sizes) or 0 in sizes:
        return node
    if machine.splits.scan_runs:
        beside = elements(sizes[axis + 1 :])
        walks = size <= SHORT and (elements(sizes) <= FEW or beside >= BESIDE)
        return node if walks else in_runs(node)
    limits = machine.splits.scan
    rows = elements(sizes) // size
    if limits is None or op is Ops.MULACC or size < limits.longest or rows > limits.rows:
        return node
    own = node.dtype
    if axis == len(sizes) - 1 and own.itemsize in _WIDTHS and (own.is_float or own.is_int):
        return _by_hand(node, rows, size)
    most = limits.pieces // rows
    count = max((d for d in range(2, most + 1) if size % d == 0), default=1)
    return _in_pieces(node, count) if count > 1 else node


_WIDTHS = (4, 8)  # bytes of what a kernel by hand takes


def _by_hand(node: UOp, rows: int, size: int) -> UOp:
    """The kernel for rows as they lie. What they are made of is computed before, and what becomes of them
    after it: that is memory once more, and still less than reading everything twice."""
    own = node.dtype
    given = make(Ops.CONTIGUOUS, own, (node.src[0],), None, node.origin)
    key = (node.arg[0].name, own.name, rows, size)
    return make(Ops.WRITTEN, own, (given,), ("running", key, known_shape(node)), node.origin)


def _cut(x: UOp, axis: int, count: int) -> UOp:
    """An axis as `count` pieces of equal length."""
    sizes = known_shape(x)
    length = sizes[axis]
    assert isinstance(length, int)
    return reshape(x, (*sizes[:axis], count, length // count, *sizes[axis + 1 :]))


def _kept(x: UOp) -> UOp:
    return make(Ops.CONTIGUOUS, x.dtype, (x,), "a running reduction is done in pieces", x.origin)


def _in_pieces(node: UOp, count: int) -> UOp:
    """Sums of the pieces, running sums of those, and each piece by itself after what lies before it."""
    op, axis = node.arg
    cut = _cut(node.src[0], axis, count)
    inside = scan_axis(cut, op, axis + 1)
    sizes = known_shape(cut)
    earlier = shrink(cut, [(0, count - 1 if a == axis else n) for a, n in enumerate(sizes)])
    totals = _kept(reduce_axis(earlier, op, [axis + 1]))
    before = _kept(scan_axis(_after(totals, axis, neutral(op, totals.dtype)), op, axis))
    return reshape(alu(op, expand(before, sizes), inside), known_shape(node))


def _after(x: UOp, axis: int, first: object) -> UOp:
    """Everything one place further on along an axis, after a first value."""
    moved = pad(x, [(1, 0) if a == axis else (0, 0) for a in range(len(known_shape(x)))])
    place = iota(known_shape(moved), axis, int64)
    return alu(Ops.WHERE, alu(Ops.CMPEQ, place, const(int64, 0)), const(x.dtype, first), moved)


def in_runs(node: UOp) -> UOp:
    """Short runs by themselves, each after what the runs before it add up to; those in runs again.

    So the work grows with the length alone, and the rest is done by runs side by side.
    """
    op, axis = node.arg
    if op is Ops.MULACC:
        return _recurrence(node.src[0], node.src[1], axis)
    return _runs(node.src[0], op, axis)


def _resized(sizes: Shape, axis: int, *others: int) -> tuple[Size, ...]:
    """A shape with other sizes instead of one."""
    return (*sizes[:axis], *others, *sizes[axis + 1 :])


def _part(x: UOp, axis: int, start: int, stop: int) -> UOp:
    return shrink(x, [(start, stop) if a == axis else (0, n) for a, n in enumerate(known_shape(x))])


def _runs(x: UOp, op: Op, axis: int) -> UOp:
    """As above, along an axis, which stays where it is: neighbours in memory are neighbours among threads."""
    sizes = known_shape(x)
    size = sizes[axis]
    assert isinstance(size, int)
    walks = elements(sizes[axis + 1 :]) >= BESIDE
    # more steps of a thread take less time than more kernels; a loop loses the sign of sums of -0
    few = elements(sizes) <= FEW_RUNS and not x.dtype.is_float
    if size <= (SHORT if walks else WHOLE) or (few and not walks and _pairs(sizes, axis, 1) <= PAIRS):
        return scan_axis(x, op, axis) if walks else written_out(x, op, axis)
    run = LONG_RUN if walks or few else RUN
    if few and not walks:
        run = next((n for n in (run, *LONGER_RUNS) if _pairs(sizes, axis, n) <= PAIRS), run)
    count = -(-size // run)
    rows = reshape(_filled(x, op, axis, count * run - size), _resized(sizes, axis, count, run))
    totals = _kept(reshape(reduce_axis(rows, op, [axis + 1]), _resized(sizes, axis, count)))
    earlier = _part(_kept(_runs(totals, op, axis)), axis, 0, count - 1)
    before = reshape(_after(earlier, axis, neutral(op, x.dtype)), _resized(sizes, axis, count, 1))
    inside = scan_axis(rows, op, axis + 1) if walks else written_out(rows, op, axis + 1)
    joined = alu(op, expand(before, known_shape(inside)), inside)
    return _part(reshape(joined, _resized(sizes, axis, count * run)), axis, 0, size)


def _pairs(sizes: Shape, axis: int, run: int) -> int:
    """Of sums of runs and all sums up to them."""
    count = -(-elements((sizes[axis],)) // run)
    return elements(_resized(sizes, axis, count)) * count


def _recurrence(factor: UOp, added: UOp, axis: int) -> UOp:
    """h = factor·h + added along an axis: what was before a run is multiplied by all of its factors."""
    sizes = known_shape(added)
    size = sizes[axis]
    assert isinstance(size, int)
    if size <= 2 * LONG_RUN:
        return scan_axis(factor, Ops.MULACC, axis, added)
    count = -(-size // LONG_RUN)
    shape = _resized(sizes, axis, count, LONG_RUN)
    fill = [(0, count * LONG_RUN - size) if a == axis else (0, 0) for a in range(len(sizes))]
    runs = [reshape(pad(v, fill), shape) for v in (factor, added)]
    inside = _kept(scan_axis(runs[0], Ops.MULACC, axis + 1, runs[1]))
    product = _kept(scan_axis(runs[0], Ops.MUL, axis + 1))
    ends = []
    for v in (product, inside):
        last = _part(_part(v, axis, 0, count - 1), axis + 1, LONG_RUN - 1, LONG_RUN)
        ends.append(_kept(reshape(last, _resized(sizes, axis, count - 1))))
    before = _after(_kept(_recurrence(ends[0], ends[1], axis)), axis, 0.0 if added.dtype.is_float else 0)
    spread = expand(reshape(before, _resized(sizes, axis, count, 1)), shape)
    whole = reshape(alu(Ops.MULACC, product, spread, inside), _resized(sizes, axis, count * LONG_RUN))
    return _part(whole, axis, 0, size)


def _filled(x: UOp, op: Op, axis: int, more: int) -> UOp:
    """More elements at the end, which change nothing."""
    if not more:
        return x
    sizes = known_shape(x)
    longer = pad(x, [(0, more) if a == axis else (0, 0) for a in range(len(sizes))])
    place = iota(known_shape(longer), axis, int64)
    fill = const(x.dtype, neutral(op, x.dtype))
    return alu(Ops.WHERE, alu(Ops.CMPLT, place, const(int64, sizes[axis])), longer, fill)


def written_out(x: UOp, op: Op, axis: int) -> UOp:
    """Every place with what comes up to it along an axis, what comes after it replaced by nothing."""
    sizes: Shape = known_shape(x)
    size = sizes[axis]
    assert isinstance(size, int)
    square = _resized(sizes, axis, size, size)
    rows = expand(reshape(x, _resized(sizes, axis, 1, size)), square)
    here, there = (iota(square, a, int64) for a in (axis, axis + 1))
    fill = const(x.dtype, neutral(op, x.dtype))
    masked = alu(Ops.WHERE, alu(Ops.CMPLT, here, there), fill, rows)
    return reshape(reduce_axis(masked, op, [axis + 1]), sizes)
