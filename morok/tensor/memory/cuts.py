"""Where a very long graph can be computed in pieces.

A loop that nobody looks into until its end,

    for _ in range(200):
        ids = cat(ids, sample(model(ids)))

leaves one graph of all turns. As one plan none of its turns is like another; one after the other they are
what they would have been had somebody asked for each. So a long graph is cut where everything that comes
later sees one value alone of what comes before, and a small one: there a turn ends, while layers, which hand
on values as large as theirs, stay in one plan. What takes no reduction is no obstacle, as it is computed
wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from statistics import median

from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.memory import own_device
from morok.ir.node import UOp
from morok.ir.ops import COLLECTIVES, Ops
from morok.tensor.memory.storage import realized_as

_LONG = 1500  # nodes: a graph of so many is cut
_PIECE = 100  # at least
_SMALL = 8  # such a value has at most this part of the elements that most have
_WORK = frozenset((Ops.REDUCE_AXIS, Ops.SCAN_AXIS, Ops.SCATTER, Ops.WRITTEN, Ops.CONTIGUOUS, Ops.COPY))
_WHOLE = frozenset((Ops.DEFINE_VAR, Ops.BIND, *COLLECTIVES))


def cuts(number: Mapping[UOp, int]) -> list[UOp]:
    """Values to be computed first, one after the other. `number` has the nodes, sources first."""
    if len(number) < _LONG:
        return []
    last: dict[UOp, int] = {}  # the last user of what takes work
    for at, node in enumerate(number):
        if node.op in _WHOLE or (node.op is Ops.BUFFER and is_mesh(own_device(node))):
            return []
        if not node.src or realized_as(node) is not None:
            continue
        works = node.op in _WORK
        for source in node.src:
            if source in last:
                last[source] = at
                works = True
        if works:
            if node.op is Ops.AFTER:
                return []  # what is written has an order of its own
            last[node] = at
    counts = {node: _count(node) for node in last}
    known = [count for count in counts.values() if count is not None]
    small = median(known) / _SMALL if known else 0
    found: list[UOp] = []
    reached = begun = 0
    for at, node in enumerate(number):
        if node not in last:
            continue
        count = counts[node]
        is_waist = reached <= at and count is not None and count <= small
        if is_waist and at - begun >= _PIECE and at < len(number) - _PIECE:
            found.append(node)
            begun = at
        reached = max(reached, last[node])
    return found


def _count(node: UOp) -> int | None:
    """The number of elements, if it is known."""
    sizes = shape(node)
    known = [size for size in sizes or () if isinstance(size, int)]
    return prod(known) if sizes is not None and len(known) == len(sizes) else None
