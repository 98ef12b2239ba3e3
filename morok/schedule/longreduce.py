"""Long reductions in two stages, for devices that want it.

A sum of millions of elements into a few has little to run in parallel. The first stage sums pieces, the
second the pieces' sums. A CPU does better with one kernel whose threads have sums of their own; a GPU cannot
combine the sums of different blocks in one kernel. The knob names a length for all devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok import knobs
from morok.ir.movement import reduce_axis, reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.schedule.costs import elements
from morok.schedule.indexing import known_shape
from morok.schedule.probe import collapsible


@final
@dataclass(frozen=True)
class Limits:
    """From which length on, up to how many outputs, and into how many pieces for all outputs together."""

    longest: int
    outputs: int
    pieces: int


ASKED = Limits(0, 4096, 1024)  # where the knob names the length
# A block per output keeps the machine busy from some hundred outputs on.
DEVICES = {"CUDA": Limits(1 << 15, 256, 2048)}


def split_reductions(sink: UOp, ctx: object = None) -> UOp:
    """Reductions of long axes to few outputs become two."""
    asked = knobs.SPLIT_REDUCE.value
    devices: dict[UOp, str] = {}
    done: dict[UOp, UOp] = {}
    changed = False
    order = toposort(sink)
    gathers: frozenset[UOp] | None = None
    for node in order:
        devices[node] = _device(node, devices)
        new = node.replace(tuple([done[s] for s in node.src])) if changed else node
        if node.op is Ops.REDUCE_AXIS:
            limits = DEVICES.get(devices[node])
            if asked:
                limits = Limits(asked, ASKED.outputs, ASKED.pieces)
            cut = new if limits is None else _in_two(new, limits)
            if cut is not new:
                gathers = collapsible(order) if gathers is None else gathers
            if cut is not new and node not in (gathers or ()):  # what becomes a gather has no loop to split
                changed, new = True, cut
        done[node] = new
    return done[sink]


def _device(node: UOp, known: dict[UOp, str]) -> str:
    """The kind of device that computes a node, as far as its memory says."""
    if node.op is Ops.PARAM:
        return str(node.arg[2]).partition(":")[0]
    if node.op is Ops.COPY:
        return str(node.src[1].arg).partition(":")[0]
    return next((known[s] for s in node.src if known[s]), "")


def _in_two(node: UOp, limits: Limits) -> UOp:
    source, (op, axes) = node.src[0], node.arg
    sizes = known_shape(source)
    outputs = elements(known_shape(node))
    if outputs > limits.outputs:
        return node
    total = 1
    for a in axes:
        size = sizes[a]
        if not isinstance(size, int):
            return node
        total *= size
    if total < limits.longest:
        return node
    most = max(2, limits.pieces // max(1, outputs))
    # as many pieces as there may be, of the outermost axis that allows them: they lie far apart in memory
    pieces, axis = max(((_pieces(sizes[a], most), a) for a in axes), key=lambda found: (found[0], -found[1]))
    if pieces < 2:
        return node
    cut = reshape(source, (*sizes[:axis], pieces, sizes[axis] // pieces, *sizes[axis + 1 :]))
    others = [a if a < axis else a + 1 for a in axes if a != axis]
    first = reduce_axis(cut, op, [axis + 1, *others])
    kept = make(Ops.CONTIGUOUS, first.dtype, (first,), "a long reduction is done in two stages", node.origin)
    return reshape(reduce_axis(kept, op, [axis]), known_shape(node))


def _pieces(size: object, most: int) -> int:
    """The most pieces of equal size that there may be."""
    assert isinstance(size, int)
    return max((d for d in range(2, most + 1) if size % d == 0), default=1)
