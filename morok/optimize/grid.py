"""Which loops over outputs the blocks of a grid can share.

A loop stays a loop where a reduction or a local buffer lies outside of it: every block would compute that
anew, as in a softmax, whose row is reduced once and then walked again. Only where all blocks run at once, and
their threads share the reduction, nobody waits longer for that.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.facts import trips

CHEAP = 16  # steps of a reduction that every block may repeat
AT_ONCE = 128  # blocks that may repeat one that their threads share


def _steps(node: UOp) -> int:
    return math.prod(trips(r) for r in closed_ranges(node) if r.op is Ops.RANGE)


def _is_shared(node: UOp) -> bool:
    """Whether a thread has but a few steps of a reduction, and others have the rest."""
    loops = [r for r in closed_ranges(node) if r.op is Ops.RANGE]
    shared = [r for r in loops if r.arg[1] is AxisKind.GROUP_REDUCE]
    return bool(shared) and math.prod(trips(r) for r in loops if r not in shared) <= CHEAP


def _belongs_to_block(node: UOp) -> bool:
    """A shared tile, which every block fills for itself; or something inside of a reduction's loop."""
    tile = node.op is Ops.BUFFERIZE and len(node.arg) > 2 and node.arg[2].depth > 0
    return tile or any(r.arg[1] is AxisKind.REDUCE for r in ranges(node))


def grid_loops(root: UOp) -> list[UOp]:
    """The plain loops over outputs that blocks can share."""
    found: dict[UOp, bool] = {}
    again: dict[UOp, bool] = {}  # the same where shared reductions are repeated
    for effect in root.src:
        if effect.op is not Ops.END:
            continue
        expensive = [n for n in toposort(effect) if n.op in (Ops.REDUCE, Ops.BUFFERIZE) and _steps(n) > CHEAP]
        expensive = [n for n in expensive if not _belongs_to_block(n)]
        for r in closed_ranges(effect):
            if r.op is Ops.RANGE and r.arg[1] is AxisKind.LOOP:
                outside = [n for n in expensive if r not in ranges(n)]
                free = not ranges(r.src[0])
                found[r] = found.get(r, True) and free and not outside
                fixed = free and r.src[0].op is Ops.CONST
                again[r] = again.get(r, True) and fixed and all(map(_is_shared, outside))
    free_loops = [r for r, free in found.items() if free]
    more = [r for r in found if found[r] or again[r]]
    return more if len(more) > len(free_loops) and math.prod(map(trips, more)) <= AT_ONCE else free_loops
