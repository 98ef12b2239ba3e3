"""What a backward pass gets from its forward pass, and what it makes again.

torch keeps what is expensive to compute again, or what an operator that it does not fuse reads: a mask of
attention, say. What is made from no argument at all costs nothing to make again, and who makes it knows what
it is: a mask of positions hides whole tiles of the gradient, a tensor of numbers does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from morok.torch.private import OpOverload, min_cut


def partition(joint: Any, inputs: Any, **how: Any) -> tuple[Any, Any]:
    """The forward and the backward graph of a joint one."""
    for node in made_of_nothing(joint.graph):
        node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
    made: tuple[Any, Any] = min_cut(joint, inputs, **how)
    return made


def made_of_nothing(graph: Any) -> Iterator[Any]:
    """Nodes that start from sizes and numbers alone, and are the same each time."""
    known: set[Any] = set()
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), torch.SymInt):
            known.add(node)
        elif node.op == "call_function" and known.issuperset(node.all_input_nodes) and _repeats(node.target):
            known.add(node)
            yield node


def _repeats(target: Any) -> bool:
    """Whether an operator gives the same again, and does nothing else."""
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", "") in ("_operator", "operator")
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
