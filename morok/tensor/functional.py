"""Assignments taken out of a graph: what a traced function assigns becomes one of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.tensor.gradient_track import mark
from morok.tensor.states import base_of


def without_states(roots: Sequence[UOp]) -> list[UOp]:
    """Graphs in which memory that was overwritten as a whole is the value that it was overwritten with."""
    done: dict[UOp, UOp] = {}
    for node in toposort(*roots):
        if node.op is Ops.AFTER and len(node.src) == 2 and node.src[1].op is Ops.ASSIGN:
            part, value = node.src[1].src[:2]
            if part is node.src[0] or part.op is Ops.AFTER:
                done[node] = done[value]
                continue
        done[node] = node.replace(tuple([done[s] for s in node.src]))
    return [done[root] for root in roots]


def show_memory(tensor: Any, node: UOp) -> None:
    """The tensor shows other memory from now on; gradients are wanted for that, if they were before."""
    tensor._uop = node
    if tensor.is_leaf:
        mark(base_of(node), fresh=True)
