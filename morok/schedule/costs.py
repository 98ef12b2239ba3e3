"""What computing costs, in units of one simple vector operation on one element.

Bottom-up over the graph, for a given set of nodes that are kept in memory: the work of one element of a node
with everything below it computed on the spot, the memory that it reads, and whether it holds a reduction.
What ops, bytes and launches cost is a matter of the machine (`machine/rates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import final

from morok.ir.bounds import vmax
from morok.ir.infer import Shape, numel, shape
from morok.ir.node import UOp
from morok.ir.ops import TRANSFERS, Op, Ops
from morok.machine.machine import Machine

# A value that one kernel needs again in another loop over the same row; the row is still in the cache.
AGAIN = 0.25
# Operations that an op becomes in a kernel's code where devices lack it; any other one is itself.
_WRITTEN_OUT = {
    Ops.THREEFRY: 200,
    **dict.fromkeys((Ops.SIN, Ops.COS, Ops.TAN, Ops.POW), 125),
    **dict.fromkeys((Ops.ERF, Ops.ATAN2, Ops.FMOD), 50),
    **dict.fromkeys((Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.TANH), 25),
}
_MOST = 1e7  # work beyond this is the same: far too much to repeat
_MANY = 64  # buffers under one node; with more it certainly is not one kernel, and they are not counted on

# Memory, seen from above: what is below has been computed by another kernel.
STORED = TRANSFERS | {
    Ops.PARAM, Ops.BUFFER, Ops.CONTIGUOUS, Ops.ASSIGN, Ops.AFTER, Ops.PLACE, Ops.SCATTER,
    Ops.WRITTEN,
}  # fmt: skip


def code_of(op: Op) -> int:
    """How many operations of a kernel's code an op stands for."""
    return _WRITTEN_OUT.get(op, 1)


def elements(sizes: Shape) -> int:
    """The number of elements, at most."""
    count = numel(sizes)
    return count if isinstance(count, int) else int(vmax(count))


Fact = tuple[float, frozenset[UOp], bool]
Inside = tuple[float, int]  # the work of all of a reduction, and its outputs
_NONE: Inside = (0.0, 0)


@final
@dataclass
class Costs:
    """Facts about every node of a graph under a choice of kept nodes."""

    machine: Machine
    work: dict[UOp, float] = field(default_factory=dict)
    count: dict[UOp, int] = field(default_factory=dict)
    leaves: dict[UOp, frozenset[UOp]] = field(default_factory=dict)
    has_reduce: dict[UOp, bool] = field(default_factory=dict)
    above: dict[UOp, Fact] = field(default_factory=dict)  # as users see it: a kept node is only read
    heaviest: dict[UOp, Inside] = field(default_factory=dict)  # reduction that is computed with a node

    def bytes_read(self, node: UOp) -> int:
        """Memory below a node."""
        return sum(self.count[leaf] * leaf.dtype.itemsize for leaf in self.leaves[node])

    def reuses(self, node: UOp) -> bool:
        """Whether a reduction uses its inputs many times over, as matrix products and convolutions do."""
        read = sum(self.count[leaf] for leaf in self.above[node.src[0]][1])
        return self.count[node.src[0]] > 2 * max(read, 1)


_NOTHING: frozenset[UOp] = frozenset()


def measure(
    order: Iterable[UOp],
    collapsed: Collection[UOp],
    machine: Machine,
    is_kept: Callable[[UOp, Costs], bool] | None = None,
) -> Costs:
    """Costs of all nodes, given the reductions that need no loop.

    `is_kept` is asked about each node, sources first, once its own costs are known.
    """
    costs = Costs(machine)
    work, count, leaves, has_reduce = costs.work, costs.count, costs.leaves, costs.has_reduce
    counted: dict[Shape, int] = {}  # many nodes have one shape
    for node in order:
        sizes = shape(node)
        if sizes is None:
            continue
        known = counted.get(sizes)
        if known is None:
            known = counted[sizes] = max(1, elements(sizes))
        count[node] = known
        fact = _fact(node, costs, collapsed)
        work[node], leaves[node], has_reduce[node] = fact
        costs.heaviest[node] = _heaviest(node, costs, collapsed)
        stored = node.op in STORED or (is_kept is not None and is_kept(node, costs))
        costs.above[node] = (0.0, frozenset((node,)), False) if stored else fact
    return costs


def _fact(node: UOp, costs: Costs, collapsed: Collection[UOp]) -> Fact:
    """Work, memory and reductions of one node, from what its sources look like from above."""
    op, above = node.op, costs.above
    if op in STORED:
        return 0.0, frozenset((node,)), False
    if op is Ops.EXPAND:
        # What is spread over an axis does not depend on it, and is computed outside of its loop.
        return 0.0, above[node.src[0]][1], False
    if op.is_movement:
        return above[node.src[0]]
    if op is Ops.REDUCE_AXIS:
        source = node.src[0]
        work, leaves, reduced = above[source]
        if node in collapsed:
            return work + costs.machine.rates.gather, leaves, reduced
        return min(_MOST, (work + 1.0) * (costs.count[source] / costs.count[node])), leaves, True
    total = costs.machine.op_costs.of(op) if op.is_alu else 2.0 if op is Ops.SCAN_AXIS else 0.0
    below, reduced = _NOTHING, op is Ops.SCAN_AXIS
    for s in dict.fromkeys(node.src):
        fact = above.get(s)
        if fact is None:
            continue
        total += fact[0]
        below = _join(below, fact[1])
        reduced = reduced or fact[2]
    return min(_MOST, total), below, reduced


def _heaviest(node: UOp, costs: Costs, collapsed: Collection[UOp]) -> Inside:
    """The reduction with the most work that is computed where a node is, however often it is read there."""
    if node.op in STORED:
        return _NONE
    found = _NONE
    above, heaviest = costs.above, costs.heaviest
    for s in node.src:
        fact = above.get(s)
        if fact is not None and heaviest[s] > found and not (len(fact[1]) == 1 and s in fact[1]):
            found = heaviest[s]
    if node.op is Ops.REDUCE_AXIS and node not in collapsed:
        found = max(found, (costs.work[node] * costs.count[node], costs.count[node]))
    return found


def _join(a: frozenset[UOp], b: frozenset[UOp]) -> frozenset[UOp]:
    if a is b or b <= a:
        return a
    if a <= b:
        return b
    both = a | b
    return both if len(both) <= _MANY else max(a, b, key=len)
