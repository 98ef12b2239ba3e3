"""Lists of instructions with something changed in them: what a wrong stage would have made."""

from __future__ import annotations

from collections.abc import Callable

from morok.dtype import void
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops

Change = Callable[[UOp], UOp | None]


def changed(linear: UOp, change: Change) -> UOp:
    """The list with `change` of every node, on changed sources; None leaves an instruction out."""
    done: dict[UOp, UOp] = {}
    gone: set[UOp] = set()
    for node in toposort(linear):
        if node.op is Ops.LINEAR:
            continue
        new = node.replace(tuple(done[s] for s in node.src))
        found = change(new)
        if found is None:
            gone.add(node)
        done[node] = new if found is None else found
    order: dict[UOp, None] = {}
    for node in linear.src:
        if node not in gone:
            # what a change has added stands before what uses it
            order.update(
                dict.fromkeys(n for n in _missing(done[node], order) if n.op.is_alu or n.op is Ops.CONST)
            )
            order[done[node]] = None
    assert list(order) != list(linear.src), "nothing was changed"
    return make(Ops.LINEAR, void, tuple(order))


def _missing(root: UOp, order: dict[UOp, None]) -> list[UOp]:
    return [n for n in toposort(root, stop=order.__contains__) if n not in order and n is not root]


def once(change: Change, matches: Callable[[UOp], bool], number: int = 0) -> Change:
    """The change of the first (or another) node that matches, and of no other."""
    seen: list[UOp] = []

    def apply(node: UOp) -> UOp | None:
        if matches(node):
            seen.append(node)
            if len(seen) == number + 1:
                return change(node)
        return node

    return apply
