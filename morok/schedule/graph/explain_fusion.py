"""What EXPLAIN=fusion says: which values are kept in memory and why, and what is computed more than once."""

from __future__ import annotations

import sys

from morok.ir.node import UOp
from morok.ir.provenance import place
from morok.ir.text import expr
from morok.schedule.costs import Costs


def explain(kept: dict[UOp, str], repeated: dict[UOp, float], costs: Costs) -> None:
    """In the order in which they are computed; both are given from the outputs down."""
    if not kept:
        print("nothing between inputs and results is kept: all of it is fused", file=sys.stderr)
    for node, reason in reversed(kept.items()):
        size = _amount(costs.count[node] * node.dtype.itemsize)
        where = place(node) or "an unknown place"
        print(f"kept a buffer at {where} because {reason}, {size}: {expr(node, 60, 2)}", file=sys.stderr)
    for node, times in reversed(repeated.items()):
        where = place(node) or "an unknown place"
        print(f"computed {times:.3g} times at {where}: {expr(node, 60, 2)}", file=sys.stderr)


def _amount(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"
