"""Long reductions in two stages, for devices that want it.

A sum of millions of elements into a few has little to run in parallel. The first stage sums pieces, the
second the pieces' sums. A CPU does better with one kernel whose threads have sums of their own, so the stage
is off unless the knob names a length.
"""

from __future__ import annotations

from morok import knobs
from morok.ir.movement import reduce_axis, reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.schedule.costs import elements
from morok.schedule.indexing import known_shape

FEW_OUTPUTS = 4096
PIECES = 1024  # at most, per output


def split_reductions(sink: UOp, ctx: object = None) -> UOp:
    """Reductions of long axes to few outputs become two."""
    longest = knobs.SPLIT_REDUCE.value
    if not longest:
        return sink
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        new = node.replace(tuple([done[s] for s in node.src]))
        done[node] = _in_two(new, longest) if new.op is Ops.REDUCE_AXIS else new
    return done[sink]


def _in_two(node: UOp, longest: int) -> UOp:
    source, (op, axes) = node.src[0], node.arg
    sizes = known_shape(source)
    if elements(known_shape(node)) > FEW_OUTPUTS:
        return node
    axis = max(axes, key=lambda a: size if isinstance(size := sizes[a], int) else 0)
    size = sizes[axis]
    if not isinstance(size, int) or size < longest:
        return node
    pieces = max((d for d in range(2, PIECES + 1) if size % d == 0), default=None)
    if pieces is None:
        return node
    cut = reshape(source, (*sizes[:axis], pieces, size // pieces, *sizes[axis + 1 :]))
    others = [a if a < axis else a + 1 for a in axes if a != axis]
    first = reduce_axis(cut, op, [axis + 1])
    kept = make(Ops.CONTIGUOUS, first.dtype, (first,), "a long reduction is done in two stages", node.origin)
    return reshape(reduce_axis(kept, op, [axis, *others]), known_shape(node))
