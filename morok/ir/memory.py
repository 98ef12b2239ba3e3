"""Memory in a graph of tensors: which one a view shows, and on which device a node is computed."""

from __future__ import annotations

from collections.abc import Mapping

from morok.errors import IRError
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.provenance import place

MEMORY = frozenset((Ops.BUFFER, Ops.PARAM))
_SHOWS_FIRST = frozenset((Ops.AFTER, Ops.ASSIGN, Ops.PLACE, Ops.DETACH, Ops.IDENTITY, Ops.CONTIGUOUS))


def base_of(view: UOp) -> UOp:
    """The memory that a view, a state of it or a part of one shows: a BUFFER, or a PARAM of a schedule."""
    node = view
    while node.op not in MEMORY:
        if not node.op.is_movement and node.op not in _SHOWS_FIRST:
            raise IRError(
                f"only a tensor or a part of one can be assigned to, not {node.op.name}", place=place(node)
            )
        node = node.src[0]
    return node


def own_device(node: UOp) -> str:
    """The device that a node itself names: memory, and copies to somewhere; empty for others."""
    if node.op is Ops.PARAM:
        return str(node.arg[2])
    return str(node.src[1].arg) if node.op in (Ops.BUFFER, Ops.COPY) else ""


def device_of(node: UOp, known: Mapping[UOp, str]) -> str:
    """Where a node is computed, as far as memory says, given the devices of its sources.

    Empty where nothing below it is memory: it is computed wherever it is needed.
    """
    return own_device(node) or next((known[s] for s in node.src if known[s]), "")
