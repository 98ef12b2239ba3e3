"""Running reductions: where a kernel can hold one, and in which form a device computes it.

A kernel computes a running reduction in a loop over its own outputs, whose steps follow each other. So it
takes part in a kernel that asks for it at every place once, in order or in the reverse of it; others read it
from memory.

Threads cannot share one such loop. A long row is therefore cut into pieces where there are few rows: first
what each piece adds up to, then the pieces side by side, each after what lies before it. A GPU has thousands
of threads and does this at every length, in short runs, and again for the sums of the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.dtype import identity, int64
from morok.ir.infer import Shape
from morok.ir.movement import expand, iota, pad, permute, reduce_axis, reshape, scan_axis, shrink
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.ir.scan import neutral
from morok.schedule.costs import elements
from morok.schedule.indexing import known_shape
from morok.schedule.longreduce import device_kind


@final
@dataclass(frozen=True)
class Pieces:
    """From which length on a row is cut, up to how many rows, and into how many pieces at most."""

    longest: int
    rows: int
    pieces: int


RUN = 4  # elements of a run that is written out
LONG_RUN = 32  # of a run that one thread walks along
CPU_PIECES = Pieces(1 << 15, 8, 64)
IN_RUNS = frozenset(("CUDA",))  # devices that scan short runs side by side, whatever the length


def split_scans(sink: UOp, ctx: object = None) -> UOp:
    """Running reductions of few long rows, and all those of a GPU, become several steps."""
    order = toposort(sink)
    if not any(node.op is Ops.SCAN_AXIS for node in order):
        return sink
    devices: dict[UOp, str] = {}
    done: dict[UOp, UOp] = {}
    for node in order:
        devices[node] = device_kind(node, devices)
        new = node.replace(tuple([done[s] for s in node.src]))
        done[node] = _for_device(new, devices[node]) if node.op is Ops.SCAN_AXIS else new
    return done[sink]


def _for_device(node: UOp, device: str) -> UOp:
    op, axis = node.arg
    sizes = known_shape(node)
    size = sizes[axis]
    if not isinstance(size, int) or not all(isinstance(n, int) for n in sizes) or 0 in sizes:
        return node
    if device in IN_RUNS:
        return in_runs(node)
    limits = CPU_PIECES
    rows = elements(sizes) // size
    if device != "CPU" or op is Ops.MULACC or size < limits.longest or rows > limits.rows:
        return node
    most = limits.pieces // rows
    count = max((d for d in range(2, most + 1) if size % d == 0), default=1)
    return _in_pieces(node, count) if count > 1 else node


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
    order = list(range(len(known_shape(node))))
    order[axis], order[-1] = order[-1], order[axis]
    values = [permute(v, order) for v in node.src]
    return permute(_recurrence(*values) if op is Ops.MULACC else _runs(values[0], op), order)


def _runs(x: UOp, op: Op) -> UOp:
    """As above, along the last axis."""
    *lead, size = known_shape(x)
    assert isinstance(size, int)
    if size <= 4 * RUN:
        return written_out(x, op)
    count = -(-size // RUN)
    whole = _filled(x, op, count * RUN - size)
    rows = reshape(whole, (*lead, count, RUN))
    axis = len(lead)
    totals = _kept(reshape(reduce_axis(rows, op, [axis + 1]), (*lead, count)))
    running = _kept(_runs(totals, op))
    earlier = shrink(running, [*((0, n) for n in lead), (0, count - 1)])
    before = reshape(_after(earlier, axis, identity(op.name, x.dtype)), (*lead, count, 1))
    inside = written_out(rows, op)
    joined = alu(op, expand(before, known_shape(inside)), inside)
    flat = reshape(joined, (*lead, count * RUN))
    return shrink(flat, [*((0, n) for n in lead), (0, size)])


def _recurrence(factor: UOp, added: UOp) -> UOp:
    """h = factor·h + added along the last axis: what was before a run is multiplied by all of its factors."""
    *lead, size = known_shape(added)
    axis = len(lead)
    assert isinstance(size, int)
    if size <= 2 * LONG_RUN:
        return scan_axis(factor, Ops.MULACC, axis, added)
    count = -(-size // LONG_RUN)
    runs = [
        reshape(pad(v, [*((0, 0) for _ in lead), (0, count * LONG_RUN - size)]), (*lead, count, LONG_RUN))
        for v in (factor, added)
    ]
    inside = _kept(scan_axis(runs[0], Ops.MULACC, axis + 1, runs[1]))
    product = _kept(scan_axis(runs[0], Ops.MUL, axis + 1))
    last = [*((0, n) for n in lead), (0, count - 1), (LONG_RUN - 1, LONG_RUN)]
    ends = [_kept(reshape(shrink(v, last), (*lead, count - 1))) for v in (product, inside)]
    before = _after(_kept(_recurrence(*ends)), axis, 0.0 if added.dtype.is_float else 0)
    spread = expand(reshape(before, (*lead, count, 1)), (*lead, count, LONG_RUN))
    whole = reshape(alu(Ops.MULACC, product, spread, inside), (*lead, count * LONG_RUN))
    return shrink(whole, [*((0, n) for n in lead), (0, size)])


def _filled(x: UOp, op: Op, more: int) -> UOp:
    """More elements at the end, which change nothing."""
    if not more:
        return x
    *lead, size = known_shape(x)
    longer = pad(x, [*((0, 0) for _ in lead), (0, more)])
    place = iota(known_shape(longer), len(lead), int64)
    fill = const(x.dtype, identity(op.name, x.dtype))
    return alu(Ops.WHERE, alu(Ops.CMPLT, place, const(int64, size)), longer, fill)


def written_out(x: UOp, op: Op) -> UOp:
    """Along the last axis, a row per place with what comes after it replaced by the neutral element."""
    sizes: Shape = known_shape(x)
    square = (*sizes, sizes[-1])
    axis = len(sizes)
    rows = expand(reshape(x, (*sizes[:-1], 1, sizes[-1])), square)
    here, there = (iota(square, a, int64) for a in (axis - 1, axis))
    fill = const(x.dtype, identity(op.name, x.dtype))
    masked = alu(Ops.WHERE, alu(Ops.CMPLT, here, there), fill, rows)
    return reshape(reduce_axis(masked, op, [axis]), sizes)
