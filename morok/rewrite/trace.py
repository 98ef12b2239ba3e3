"""Observers of rules: a trace keeps every match, EXPLAIN=NAME and DUMP=STAGE print while a program runs.

with tracing() as trace:
    rewrite(graph, symbolic)
print(trace)            # each match
trace.hits()            # how often each rule fired
"""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from dataclasses import dataclass
from typing import final

from morok import knobs
from morok.ir.node import UOp
from morok.ir.provenance import place
from morok.ir.text import expr, tree
from morok.rewrite.observer import By, Observer, Several
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


class Trace(Observer):
    """The matches of everything rewritten while it is open. It holds the nodes it shows."""

    def __init__(self) -> None:
        self.matches: list[Match] = []
        self._stages = [""]

    def wants(self, root: UOp) -> bool:
        return True

    def begin(self, by: By, before: UOp) -> None:
        if by.kind == "stage":
            self._stages.append(by.name)

    def rule(self, rule: Rule, before: UOp, after: UOp) -> None:
        self.matches.append(Match(rule, before, after, self._stages[-1]))

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        if by.kind == "stage":
            self._stages.pop()

    def hits(self) -> Counter[str]:
        """How often each rule fired."""
        return Counter(m.rule.name for m in self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __str__(self) -> str:
        return "\n".join(map(str, self.matches))


@final
class Teller(Observer):
    """Prints the matches of rules whose names contain one of some words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.heard: set[str] = set()

    def wants(self, root: UOp) -> bool:
        return True

    def rule(self, rule: Rule, before: UOp, after: UOp) -> None:
        found = [word for word in self.words if word in rule.name]
        if found:
            self.heard.update(found)
            print(Match(rule, before, after, ""), file=sys.stderr)

    def finish(self) -> None:
        """Says what was asked for in vain."""
        for word in self.words:
            if word not in self.heard:
                other = f"`morok rules` lists them, and {', '.join(knobs.TOPICS)} are explained as well"
                print(f"morok: EXPLAIN={word}: no rule of such a name has fired; {other}", file=sys.stderr)


@final
class Printer(Observer):
    """Prints the graph after stages of some names or numbers."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        asked = not self.names.isdisjoint(("all", by.name, by.number))
        if by.kind == "stage" and asked and after is not None:
            print(f"--- after stage {by.number}, {by.name}\n{tree(after)}", file=sys.stderr)


_asked: dict[tuple[str, ...], Observer] = {}


def with_knobs(observer: Observer | None) -> Observer | None:
    """An observer together with those that EXPLAIN and DUMP ask for."""
    found = [] if observer is None else [observer]
    if words := knobs.explained_rules():
        found.append(_teller(words))
    if stages := knobs.words(knobs.DUMP.value):
        found.append(_asked.setdefault(("DUMP", *stages), Printer(frozenset(stages))))
    return None if not found else found[0] if len(found) == 1 else Several(tuple(found))


def _teller(words: tuple[str, ...]) -> Observer:
    key = ("EXPLAIN", *words)
    if key not in _asked:
        _asked[key] = teller = Teller(words)
        atexit.register(teller.finish)
    return _asked[key]
