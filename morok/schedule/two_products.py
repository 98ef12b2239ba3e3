"""Sums of two matrix products: the one that is ready last takes the sum.

A kernel holds one product, so of two that are added up, as at the end of a block with a shortcut of its own,
one is kept in memory and the other one's kernel reads it. Which of them is the same for memory. But where the
longer way takes the sum, its kernel is that of all blocks whose shortcut is plain memory, and what is kept is
what the shortcut gives, not a product with its scale and shift still to come. So nets of such blocks have a
kernel less for every one.
"""

from __future__ import annotations

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.schedule.contraction import GraphContraction, known_contraction
from morok.schedule.costs import STORED

_SAME_ELEMENTS = frozenset((Ops.RESHAPE, Ops.PERMUTE))
_FEW = 32  # steps of a product that other kernels than its own may hold
_REASON = "a matrix product that is ready later takes the sum of both"


def first_of_two(order: list[UOp], products: dict[UOp, GraphContraction | None]) -> dict[UOp, str]:
    """Values to keep: what is made of the product that is ready first, where two are added up.

    `products` are sums' contractions, as far as they are known."""
    found: dict[UOp, str] = {}
    users = _counted(order)
    depth: dict[UOp, int] = {}  # reductions on the longest way to a node, itself among them
    held: dict[UOp, UOp | None] = {}  # whose kernel a node is part of; None: there is more to that
    for node in order:
        is_sum = node.op is Ops.REDUCE_AXIS
        depth[node] = max([depth[s] for s in node.src], default=0) + is_sum
        if is_sum:
            held[node] = node
        if is_sum or node.op in STORED:
            continue
        below = [s for s in dict.fromkeys(node.src) if s in held]
        if not below:
            continue
        inside = [held[s] if users[s] == 1 else None for s in below]
        known = [p for p in inside if p is not None]
        held[node] = None
        if len(known) != len(below):
            continue
        if len(known) == 1:
            held[node] = known[0] if node.op.is_alu or node.op in _SAME_ELEMENTS else None
        elif node.op is Ops.ADD and len({depth[p] for p in known}) == len(known) == 2:
            contractions = [known_contraction(products, p) for p in known]
            if any(c is None or c.steps < _FEW for c in contractions):
                continue
            first = below[depth[known[0]] > depth[known[1]]]
            while first.op in _SAME_ELEMENTS:
                first = first.src[0]
            found[first] = _REASON
            held[node] = max(known, key=lambda p: depth[p])
    return found


def _counted(order: list[UOp]) -> dict[UOp, int]:
    """How many nodes read each."""
    found: dict[UOp, int] = {}
    for node in order:
        for s in dict.fromkeys(node.src):
            found[s] = found.get(s, 0) + 1
    return found
