"""What an observer hears: who changes which graph into which (`observe.py` says who listens)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from morok.ir.node import UOp

if TYPE_CHECKING:
    from morok.rewrite.rules import Rule

Kind = Literal["kernel", "stage", "rules", "function", "action"]
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@final
@dataclass(frozen=True, slots=True)
class By:
    """Who changes a graph."""

    kind: Kind
    name: str
    number: str = ""  # of a stage
    place: str = ""  # file:line of the code
    target: str = ""  # of a kernel: what it is compiled for


def place_of(function: Callable[..., Any]) -> str:
    """Where a function of the compiler is written."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f"{os.path.relpath(code.co_filename, _ROOT)}:{code.co_firstlineno}"


class Observer:
    """Hears of changes. Whoever derives from it overrides what it wants to hear."""

    wants_code = False  # also of the text that a kernel is rendered to
    wants_programs = False  # and of its lines, and of which of them machine code comes from

    def wants(self, root: UOp) -> bool:
        """Whether it wants to hear of the rules in a rewrite of `root`; then nothing is taken from memory."""
        return False

    def begin(self, by: By, before: UOp) -> None:
        """A change begins; others may come before it ends."""

    def rule(self, rule: Rule, before: UOp, after: UOp) -> None:
        """A rule has fired at a node of the graph that is being rewritten."""

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        """The change is done; None if it has failed."""

    def code(self, language: str, text: str) -> None:
        """What a kernel was rendered to."""

    def rendered(self, program: Any, assemble: Callable[[], str], code: Callable[[], bytes] | None) -> None:
        """The same with its lines (`render/program.py`), what makes assembly with places of it, and what
        gives the machine code that will run, where that is of use."""

    def note(self, topic: str, text: str, node: UOp) -> None:
        """Why something was decided as it was, about a node."""


@final
class Several(Observer):
    """Tells several observers."""

    def __init__(self, parts: tuple[Observer, ...]) -> None:
        self.parts = parts
        self.wants_code = any(p.wants_code for p in parts)
        self.wants_programs = any(p.wants_programs for p in parts)

    def wants(self, root: UOp) -> bool:
        return any(p.wants(root) for p in self.parts)

    def begin(self, by: By, before: UOp) -> None:
        for p in self.parts:
            p.begin(by, before)

    def rule(self, rule: Rule, before: UOp, after: UOp) -> None:
        for p in self.parts:
            p.rule(rule, before, after)

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        for p in self.parts:
            p.end(by, before, after)

    def code(self, language: str, text: str) -> None:
        for p in self.parts:
            if p.wants_code:
                p.code(language, text)

    def rendered(self, program: Any, assemble: Callable[[], str], code: Callable[[], bytes] | None) -> None:
        for p in self.parts:
            if p.wants_programs:
                p.rendered(program, assemble, code)

    def note(self, topic: str, text: str, node: UOp) -> None:
        for p in self.parts:
            p.note(topic, text, node)
