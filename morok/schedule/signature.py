"""The signature of a computation, as a key that costs one pass over the graph.

The nodes are numbered in the order of a walk, which follows from the graph's structure alone; ops, types,
arguments and the edges of the walk then say everything about the graph except which memory it reads. Graphs
with variables have no such key: their values are part of the graph, but not of its signature.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, final

from morok.ir.args import LOOSE, arg_key
from morok.ir.node import UOp
from morok.ir.ops import Ops

_VARIABLES = frozenset((Ops.BIND, Ops.DEFINE_VAR))
_NOTHING: frozenset[UOp] = frozenset()


@final
class Walk:
    """All nodes that the roots reach, numbered as by `toposort`, and the edges in the order they were met.

    Of an edge to a node that was met before, or that has no sources, its number is noted; of any other one
    minus the count of its sources, whose edges come next. That, and what each node is by itself, says all
    about a graph. Who numbers nodes after a `toposort` looks every source up for a second time.
    """

    __slots__ = ("edges", "number")

    def __init__(self, roots: Iterable[UOp], ends: Container[int] = ()) -> None:
        self.number: dict[UOp, int] = {}
        self.edges: list[int] = []
        self.extend(roots, ends)

    def extend(self, roots: Iterable[UOp], ends: Container[int] = ()) -> None:
        """Goes on: the same walk as one from the roots before and then these.

        Of nodes whose identity is among the `ends` no sources are looked at, roots excepted.
        """
        number, met = self.number, self.edges.append
        known, count = number.get, len(number)
        for root in roots:
            if root in number:
                continue
            met(-len(root.src))
            node, rest = root, iter(root.src)
            waiting: list[tuple[UOp, Iterator[UOp]]] = []
            push, pop = waiting.append, waiting.pop
            while True:
                for s in rest:
                    at = known(s)
                    if at is None:
                        src = s.src
                        if src and id(s) not in ends:
                            met(-len(src))
                            push((node, rest))
                            node, rest = s, iter(src)
                            break
                        number[s] = at = count
                        count += 1
                    met(at)
                else:
                    number[node] = count
                    count += 1
                    if not waiting:
                        break
                    node, rest = pop()


def graph_signature(outputs: Sequence[UOp], walk: Walk) -> tuple[Any, ...] | None:
    """The signature of a graph by a walk from its outputs; None if it holds variables."""
    if not _VARIABLES.isdisjoint([node.op for node in walk.number]):
        return None
    return graph_form(outputs, walk, _NOTHING)


def graph_form(outputs: Sequence[UOp], walk: Walk, unsaid: frozenset[UOp]) -> tuple[Any, ...]:
    """All about a graph but which memory it reads, and but some nodes without sources."""
    number = walk.number
    return (
        tuple([node.op for node in number]),
        tuple([node.dtype for node in number]),
        tuple([None if node.arg is None or node in unsaid else argument(node) for node in number]),
        tuple(walk.edges),
        tuple([number[node] for node in outputs]),
    )


def argument(node: UOp) -> Any:
    """What a node is beside its op, its type and its sources."""
    if not node.src:  # all graphs share constants as they are; a number that tells buffers apart says nothing
        return None if node.op is Ops.UNIQUE else node
    arg = node.arg
    kind = arg.__class__
    if node.op is Ops.IDENTITY or node.op is Ops.CALL:
        return None  # a number that tells values apart says as little, and so does the name of a formula
    return kind, arg_key(arg) if kind in LOOSE else arg
