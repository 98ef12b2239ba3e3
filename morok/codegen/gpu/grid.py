"""Stage 8a, the grid: on a device that has one, loops over outputs that nobody has placed go to its blocks.

A kernel that says itself which loops are GLOBAL is taken at its word.
"""

from __future__ import annotations

from typing import Any

from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.grid import grid_loops
from morok.rewrite.engine import substitute


def grid_stage(root: UOp, ctx: Any) -> UOp:
    """Loops over outputs → GLOBAL."""
    machine: Machine = ctx.machine
    if not machine.has_grid or root.op is not Ops.SINK:
        return root
    if any(n.op is Ops.RANGE and n.arg[1] is AxisKind.GLOBAL for n in toposort(root)):
        return root
    chosen = grid_loops(root)
    if any(r.src[0].op is not Ops.CONST for r in chosen):
        # a size that is known later may be 0, and then there are no blocks: for no effect
        chosen = [r for r in chosen if all(r in closed_ranges(effect) for effect in root.src)]
    placed = {r: make(Ops.RANGE, r.dtype, r.src, (r.arg[0], AxisKind.GLOBAL), r.origin) for r in chosen}
    return substitute(root, placed) if placed else root
