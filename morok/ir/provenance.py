"""Where a node comes from: the user's line, and, after rewriting, the parent and the rule.

An `Origin` hangs on the node but is no part of its identity, so provenance never changes a result. The line
is kept as a code object and an instruction offset and is looked up only when somebody asks, which keeps
recording cheap. A parent is held weakly: remembering where a kernel came from must not keep the user's
tensors alive.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar, final

from morok import knobs
from morok.caches import Cache

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMMANDS = os.path.join(_PACKAGE, "cli", "")  # programs like any user's
_internal: Cache[str, bool] = Cache("ir.files", 4096)
_knob = knobs.PROVENANCE


@final
class Origin:
    """One step of a node's history.

    `rule` and `parent` are None for a node that the user's line made directly.
    """

    __slots__ = ("_text", "code", "lasti", "parent", "rule")
    _text: str  # from when somebody asks: long functions have long tables of lines

    def __init__(
        self, code: CodeType | None, lasti: int, rule: Any = None, parent: weakref.ref[Any] | None = None
    ) -> None:
        self.code = code
        self.lasti = lasti
        self.rule = rule
        self.parent = parent

    @property
    def file(self) -> str | None:
        return self.code.co_filename if self.code is not None else None

    @property
    def line(self) -> int | None:
        if self.code is None:
            return None
        best = self.code.co_firstlineno
        for start, stop, line in self.code.co_lines():
            if start <= self.lasti < stop and line is not None:
                best = line
        return best

    def __repr__(self) -> str:
        try:
            return self._text
        except AttributeError:
            self._text = f"{os.path.basename(self.file)}:{self.line}" if self.file else "unknown place"
            return self._text


class Originated(Protocol):
    """A node, as far as this file has to know it: nodes are made above."""

    @property
    def origin(self) -> Origin | None: ...


N = TypeVar("N", bound=Originated)


# What nodes that are made now come from. A pair (node, rule) stands for the origin that `derive` would make
# of them: most rules that are tried make nothing, so the first node that is made asks for it (`settle`).
Pending = tuple[Any, Any]
_current: ContextVar[Origin | Pending | None] = ContextVar("morok.origin", default=None)
here_origin = _current.get
set_origin = _current.set


class _Here:
    """What the nodes that are made now come from; None: look at the call stack.

    Each thread and task has its own.
    """

    __slots__ = ()

    @property
    def origin(self) -> Origin | None:
        found = _current.get()
        return settle(found) if found.__class__ is tuple else found  # type: ignore[return-value]

    @origin.setter
    def origin(self, origin: Origin | None) -> None:
        _current.set(origin)


here = _Here()


def is_internal(filename: str) -> bool:
    """Whether a file belongs to morok itself and so is no user's line."""
    known = _internal.get(filename)
    if known is None:
        inside = filename.startswith((_PACKAGE, "<morok")) and not filename.startswith(_COMMANDS)
        known = _internal[filename] = inside
    return known


# The user's instructions that made nodes lately, by their offset: the nodes of a loop share an Origin, and
# most nodes need no new one.
RECENT = 1023
recent = [Origin(None, -2)] * (RECENT + 1)


def capture(depth: int = 1) -> Origin | None:
    """The nearest frame outside of morok; None when provenance is off.

    Frames closer than `depth` are not looked at.
    """
    return find(_getframe(depth)) if _knob.value else None


def find(start: FrameType) -> Origin | None:
    """The first frame outside of morok from `start` on."""
    frame: FrameType | None = start
    while frame is not None:
        code = frame.f_code
        inside = _internal.recent.get(code.co_filename)
        if inside is None:
            inside = is_internal(code.co_filename)
        if not inside:
            return _at(code, frame.f_lasti)
        frame = frame.f_back
    return None


def _at(code: CodeType, lasti: int) -> Origin:
    origin = recent[lasti & RECENT]
    if origin.lasti != lasti or origin.code is not code:
        origin = recent[lasti & RECENT] = Origin(code, lasti)
    return origin


def derive(parent: Originated, rule: Any) -> Origin | None:
    """The origin of what `rule` makes out of `parent`."""
    if not _knob.value:
        return None
    old = parent.origin
    if old is None:
        return Origin(None, 0, rule, weakref.ref(parent))
    return Origin(old.code, old.lasti, rule, weakref.ref(parent))


def settle(pending: Pending) -> Origin | None:
    """The origin that a pair stands for, which takes its place."""
    origin = derive(*pending)
    _current.set(origin)
    return origin


@contextmanager
def scope(origin: Origin | None) -> Iterator[None]:
    """Nodes made inside come from `origin`."""
    before = here.origin
    here.origin = origin
    try:
        yield
    finally:
        here.origin = before


def instruction_of(origin: Origin | None) -> tuple[int, int] | None:
    """Which of the user's instructions an origin names, as a key; None if it names none."""
    return None if origin is None or origin.code is None else (id(origin.code), origin.lasti)


def numbers_by_instruction(nodes: Iterable[Originated]) -> dict[tuple[int, int] | None, int]:
    """For each of the user's instructions the number of the last node that it has made."""
    return {key: n for n, node in enumerate(nodes) if (key := instruction_of(node.origin)) is not None}


def place(node: Originated) -> str | None:
    """The user's `file:line` for a node, as one would write it; None if it is not known."""
    return line_of(node.origin)


def line_of(origin: Origin | None) -> str | None:
    """The user's `file:line` that something comes from."""
    return repr(origin) if origin is not None and origin.code is not None else None


def caller() -> str | None:
    """The user's `file:line` that is running now."""
    origin = capture(2)
    return repr(origin) if origin is not None else None


def history(node: N) -> list[tuple[str, N]]:
    """The rewrites that led to a node, newest first, as (rule, what it was before)."""
    steps: list[tuple[str, N]] = []
    seen = {node}
    while (origin := node.origin) is not None and origin.parent is not None:
        parent = origin.parent()
        if parent is None or parent in seen:
            break
        steps.append((str(origin.rule), parent))
        seen.add(parent)
        node = parent
    return steps
