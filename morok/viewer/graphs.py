"""Graphs as columns of numbers: nodes are written once, in an order in which sources come first.

The page writes expressions, trees and drawings from them. A source is written as the distance to it, so that
equal shapes are equal numbers, which compress well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, final

from morok.ir.args import write_arg
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.viewer.columns import Column
from morok.viewer.sources import Sources, clip

LONGEST_ARG = 300


@final
class Strings:
    """Texts, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._number: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._number.get(text)
        if found is None:
            found = self._number[text] = len(self.texts)
            self.texts.append(text)
        return found


@final
class Graphs:
    """A table of nodes."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.strings = Strings()
        self.numbers: dict[UOp, int] = {}
        self._kinds: dict[tuple[Any, ...], int] = {}  # op, type, argument, place: many nodes are alike
        self._rows: list[list[int]] = []
        self._held: list[Any] = []  # arguments, which are told apart by identity
        self._kind: list[int] = []
        self._counts: list[int] = []
        self._distances: list[int] = []
        self._places: dict[tuple[int, int], int] = {}

    def number(self, root: UOp) -> int:
        """The number of a node, which is added with all that lies below."""
        found = self.numbers.get(root)
        if found is not None:
            return found
        for node in below(root, self.numbers):
            self._add(node)
        return self.numbers[root]

    def _add(self, node: UOp) -> None:
        numbers = self.numbers
        before = numbers[node] = len(self._kind)
        origin = node.origin
        if origin is None or node.op is Ops.CONST:
            key: tuple[Any, ...] = (node.op, node.dtype, id(node.arg))
        else:
            key = (node.op, node.dtype, id(node.arg), origin.code, origin.lasti)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._new_kind(node)
        self._kind.append(kind)
        src = node.src
        self._counts.append(len(src))
        for s in src:  # from the node to its first source, from there to the next one
            number = numbers[s]
            self._distances.append(before - number)
            before = number

    def _new_kind(self, node: UOp) -> int:
        self._held.append(node.arg)
        where = self.sources.of(node)
        place = -1 if where is None else self.place(where)
        number = self.strings.number
        arg = -1 if node.arg is None else number(clip(_written(node), LONGEST_ARG))
        self._rows.append([number(node.op.name), number(str(node.dtype)), arg, place])
        return len(self._rows) - 1

    def place(self, where: tuple[int, int]) -> int:
        """The number of a place."""
        return self._places.setdefault(where, len(self._places))

    def data(self) -> dict[str, Any]:
        """All of it for the page. Distances come one after the other, as many as a node has sources."""
        return {
            "strings": self.strings.texts,
            "places": list(self._places),
            "kinds": [Column(column) for column in zip(*self._rows, strict=True)],
            "kind": Column(self._kind),
            "counts": Column(self._counts),
            "src": Column(self._distances),
        }


def _written(node: UOp) -> str:
    if node.op is Ops.RANGE:
        number, kind = node.arg[:2]
        return f"{number} {kind.name}"
    try:
        return write_arg(node.arg)
    except Exception:  # nothing that a graph holds may keep a page from being written
        return repr(node.arg)


def below(root: UOp, known: dict[UOp, int]) -> Iterator[UOp]:
    """The nodes of a graph that are not known yet, sources first."""
    stack: list[tuple[UOp, Iterable[UOp]]] = [(root, iter(root.src))]
    entered = {root}
    while stack:
        node, left = stack[-1]
        for s in left:
            if s not in known and s not in entered:
                entered.add(s)
                stack.append((s, iter(s.src)))
                break
        else:
            stack.pop()
            yield node
