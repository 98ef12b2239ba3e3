"""Load collapse: reductions whose value does not need the loop."""

from __future__ import annotations

from collections.abc import Sequence

from morok.ir.node import UOp


def collapsible(order: Sequence[UOp]) -> frozenset[UOp]:
    """The reductions over axes that become arithmetic or a gather when they are lowered."""
    return frozenset()
