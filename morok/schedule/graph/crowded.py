"""Kernels that would read more buffers than one may have: what is kept for that reason alone."""

from __future__ import annotations

from morok.ir.node import UOp
from morok.schedule.costs import Costs

MAX_BUFFERS = 31  # that one kernel reads


def crowded(order: list[UOp], costs: Costs) -> dict[UOp, str]:
    """Nodes to keep because a kernel would read too many buffers: the source that brings most of them."""
    found: dict[UOp, str] = {}
    leaves: dict[UOp, frozenset[UOp]] = {}
    for node in order:
        if node not in costs.leaves:
            continue
        read = costs.above[node][1]
        if (len(read) == 1 and node in read) or node in found:
            leaves[node] = frozenset((node,))
            continue
        own: frozenset[UOp] = frozenset()
        sources = [s for s in dict.fromkeys(node.src) if s in leaves]
        while True:
            own = (
                leaves[sources[0]] if len(sources) == 1 else frozenset().union(*[leaves[s] for s in sources])
            )
            if len(own) <= MAX_BUFFERS or not sources:
                break
            widest = max(sources, key=lambda s: len(leaves[s]))
            found[widest] = f"one kernel would read more than {MAX_BUFFERS} buffers"
            leaves[widest] = frozenset((widest,))
        leaves[node] = own
    return found
