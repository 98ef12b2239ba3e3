"""Which loops over outputs the blocks of a grid can share.

A loop stays a loop where a reduction or a local buffer lies outside of it: every block would compute that
anew, as in a softmax, whose row is reduced once and then walked again.
"""

from __future__ import annotations

import math

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.facts import trips

CHEAP = 16  # steps of a reduction that every block may repeat


def _steps(node: UOp) -> int:
    return math.prod(trips(r) for r in closed_ranges(node) if r.op is Ops.RANGE)


def _belongs_to_block(node: UOp) -> bool:
    """A shared tile, which every block fills for itself; or something inside of a reduction's loop."""
    tile = node.op is Ops.BUFFERIZE and len(node.arg) > 2 and node.arg[2].depth > 0
    return tile or any(r.arg[1] is AxisKind.REDUCE for r in ranges(node))


def grid_loops(root: UOp) -> list[UOp]:
    """The plain loops over outputs that blocks can share."""
    found: dict[UOp, bool] = {}
    for effect in root.src:
        if effect.op is not Ops.END:
            continue
        expensive = [n for n in toposort(effect) if n.op in (Ops.REDUCE, Ops.BUFFERIZE) and _steps(n) > CHEAP]
        expensive = [n for n in expensive if not _belongs_to_block(n)]
        for r in closed_ranges(effect):
            if r.op is Ops.RANGE and r.arg[1] is AxisKind.LOOP:
                free = not ranges(r.src[0]) and all(r in ranges(n) for n in expensive)
                found[r] = found.get(r, True) and free
    return [r for r, free in found.items() if free]
