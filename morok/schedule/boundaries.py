"""Boundaries that do not depend on cost: what the user asked to be stored."""

from __future__ import annotations

from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.schedule.split import is_view


def keep_outputs(sink: UOp, ctx: object = None) -> UOp:
    """Every output becomes CONTIGUOUS, unless it shows memory that exists or is about to be written."""
    kept = [
        node if is_view(node) else make(Ops.CONTIGUOUS, node.dtype, (node,), "it is an output", node.origin)
        for node in sink.src
    ]
    return sink.replace(tuple(kept))
