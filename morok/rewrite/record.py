"""An observer that keeps everything: the changes of graphs, in order, with what lies inside of each.

Which of them led to a graph is found from its end: the change that made it, the one that made what that one
began with, and so on. What was tried and dropped (a tile that did not fit, a reduction lowered only to be
looked at) is on no such path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.rewrite.observer import By, Observer
from morok.rewrite.rules import Rule

_WHOLE = frozenset((Ops.SINK, Ops.LINEAR))  # roots of graphs; all else is a helper's expression


@final
@dataclass(eq=False, slots=True)
class Change:
    """One change of a graph, and the changes that it consists of."""

    by: By
    before: UOp
    after: UOp | None = None  # None until it is done, and if it failed
    seconds: float = 0.0
    inner: list[Change] = field(default_factory=list)
    matches: list[tuple[Rule, UOp, UOp]] = field(default_factory=list)
    codes: list[tuple[str, str]] = field(default_factory=list)  # of a kernel: language and text
    program: Any = None  # of a kernel: what it was rendered to, for who keeps that

    @property
    def changed(self) -> bool:
        return self.after is not None and self.after is not self.before

    def steps(self) -> list[Change]:
        """The inner changes that lead from before to after, one after the other.

        What the code did itself, before the first of them, comes first as a change of its own.
        """
        found = path(self.inner, self.after)
        start = found[0].before if found else self.after
        if start is not None and start is not self.before:
            found.insert(0, Change(self.by, self.before, start))
        return found


def path(changes: Sequence[Change], end: UOp | None) -> list[Change]:
    """The changes that lead to a graph, the last one last."""
    found: list[Change] = []
    for change in reversed(changes):
        if change.after is end and change.changed:
            found.append(change)
            end = change.before
    return found[::-1]


class Recorder(Observer):
    """Keeps the changes of all threads. It holds the graphs that it has seen."""

    def __init__(self, wants_code: bool = False) -> None:
        self.wants_code = wants_code
        self.changes: list[Change] = []  # the outermost ones, as they ended
        self._open = _Open()

    def wants(self, root: UOp) -> bool:
        return root.op in _WHOLE

    def begin(self, by: By, before: UOp) -> None:
        self._open.changes.append(Change(by, before, seconds=-time.perf_counter()))

    def rule(self, rule: Rule, before: UOp, after: UOp) -> None:
        self._open.changes[-1].matches.append((rule, before, after))

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        open_ = self._open.changes
        change = open_.pop()
        change.after = after
        change.seconds += time.perf_counter()
        (open_[-1].inner if open_ else self.changes).append(change)
        if by.kind == "kernel":
            self._open.kernel = change

    def code(self, language: str, text: str) -> None:
        if self._open.kernel is not None:
            self._open.kernel.codes.append((language, text))

    def all(self) -> Iterator[Change]:
        """Every change, inner ones before what they are part of: in the order in which they ended."""
        stack: list[tuple[Change, bool]] = [(c, False) for c in reversed(self.changes)]
        while stack:
            change, is_seen = stack.pop()
            if is_seen or not change.inner:
                yield change
            else:
                stack.append((change, True))
                stack += [(c, False) for c in reversed(change.inner)]


class _Open(threading.local):
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.kernel: Change | None = None  # the last one, whose code is still to come


def differences(before: UOp, after: UOp) -> list[tuple[UOp, UOp]]:
    """Where two graphs differ: pairs of nodes at the same place, of which one has become the other.

    Both are walked side by side as long as the nodes are alike in everything but their sources. A loop that
    was split is one pair, although every index above it is another node.
    """
    found: dict[tuple[UOp, UOp], None] = {}
    seen: set[tuple[UOp, UOp]] = set()
    stack = [(before, after)]
    while stack:
        pair = stack.pop()
        old, new = pair
        if old is new or pair in seen:
            continue
        seen.add(pair)
        alike = old.op is new.op and old.dtype is new.dtype and len(old.src) == len(new.src)
        if alike and (old.arg == new.arg or old.op is Ops.SINK):
            stack += reversed(list(zip(old.src, new.src, strict=True)))
        else:
            found[pair] = None
    return list(found)


def size(root: UOp) -> int:
    """How many nodes a graph has."""
    return len(toposort(root))
