"""Traces: every match with its rule, place, before and after, on demand.

with tracing() as trace:
    rewrite(graph, symbolic)
print(trace)            # each match
trace.hits()            # how often each rule fired

`EXPLAIN=NAME` prints the matches of all rules with NAME in theirs while a program runs.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from morok import knobs
from morok.ir.node import UOp
from morok.ir.provenance import place
from morok.ir.text import expr
from morok.rewrite.rules import Rule


@final
@dataclass(frozen=True, slots=True)
class Match:
    """One application of a rule."""

    rule: Rule
    before: UOp
    after: UOp
    stage: str

    def __str__(self) -> str:
        where = place(self.before) or "unknown place"
        return f"{self.rule.name:32} {where:24} {expr(self.before, 80)}  →  {expr(self.after, 80)}"


class Trace:
    """The matches of everything rewritten while it is open. It holds the nodes it shows."""

    def __init__(self) -> None:
        self.matches: list[Match] = []
        self.stage = ""

    def record(self, rule: Rule, before: UOp, after: UOp) -> None:
        self.matches.append(Match(rule, before, after, self.stage))

    def hits(self) -> Counter[str]:
        """How often each rule fired."""
        return Counter(m.rule.name for m in self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __str__(self) -> str:
        return "\n".join(map(str, self.matches))


@final
class Teller(Trace):
    """Keeps nothing, and prints the matches of rules whose names contain one of some words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self.words = words
        self.heard: set[str] = set()

    def record(self, rule: Rule, before: UOp, after: UOp) -> None:
        found = [word for word in self.words if word in rule.name]
        if found:
            self.heard.update(found)
            print(Match(rule, before, after, self.stage), file=sys.stderr)

    def finish(self) -> None:
        """Says what was asked for in vain."""
        for word in self.words:
            if word not in self.heard:
                other = f"`morok rules` lists them, and {', '.join(knobs.TOPICS)} are explained as well"
                print(f"morok: EXPLAIN={word}: no rule of such a name has fired; {other}", file=sys.stderr)


class _Open(threading.local):
    trace: Trace | None = None


_open = _Open()
_tellers: dict[tuple[str, ...], Teller] = {}


def current_trace() -> Trace | None:
    """The trace that this thread records into, if any."""
    if _open.trace is None and knobs.EXPLAIN.value:
        return _teller(knobs.explained_rules())
    return _open.trace


def _teller(words: tuple[str, ...]) -> Teller | None:
    if words and words not in _tellers:
        _tellers[words] = Teller(words)
        atexit.register(_tellers[words].finish)
    return _tellers.get(words)


@contextmanager
def tracing() -> Iterator[Trace]:
    """Records every match made inside, in this thread."""
    outer = _open.trace
    _open.trace = trace = Trace()
    try:
        yield trace
    finally:
        _open.trace = outer
