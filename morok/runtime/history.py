"""How kernels came about: every change from the user's graph to the list of instructions.

    with recording() as history:
        y.realize()
    for kernel in history.kernels:
        for stage in kernel.stages: ...      # what each stage did, and in which steps

`morok trace` prints it. All of it is made of what the observer has heard (`morok/rewrite/observe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from morok.device.dump import watching
from morok.forks import cached_property
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import Origin, line_of
from morok.rewrite.record import Change, Recorder
from morok.schedule.split import CUT


@final
@dataclass(eq=False)
class KernelHistory:
    """One kernel that was compiled."""

    number: int
    name: str
    target: str
    stages: list[Change]  # one after the other; those that change nothing are among them
    codes: list[tuple[str, str]] = field(default_factory=list)
    change: Change | None = None  # from the optimised kernel to its list

    @property
    def first(self) -> UOp:
        """The user's graph."""
        return self.stages[0].before

    @property
    def is_whole(self) -> bool:
        """Whether it got as far as a list of instructions."""
        return bool(self.stages) and self.stages[-1].after is not None

    @property
    def instructions(self) -> UOp:
        """The list that was rendered."""
        last = self.stages[-1].after
        assert last is not None
        return last

    @cached_property
    def origin(self) -> Origin | None:
        """The user's line that the kernel is named after: that of the first value it stores."""
        cut = [s.after.src[:1] for s in self.stages if s.by is CUT and s.after is not None]
        stored = [n for n in toposort(self.stages[-1].before) if n.op is Ops.STORE]
        nodes = (n for n in (*(n for first in cut for n in first), *stored) if line_of(n.origin) is not None)
        return next((n.origin for n in nodes), None)

    @property
    def place(self) -> str:
        return line_of(self.origin) or ""


@final
class History:
    """What a recorder has heard, kernel by kernel."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @property
    def kernels(self) -> list[KernelHistory]:
        """The kernels that were compiled, in order."""
        return self.find(failed=False)

    def find(self, failed: bool) -> list[KernelHistory]:
        """The kernels that were compiled, in order; with `failed` also those that an error has stopped."""
        changes = list(self.recorder.all())
        made: dict[UOp, list[tuple[int, Change]]] = {}
        for position, change in enumerate(changes):
            if change.by.kind == "stage" and change.changed and change.after is not None:
                made.setdefault(change.after, []).append((position, change))
        found: list[KernelHistory] = []
        for position, change in enumerate(changes):
            if change.by.kind == "kernel" and (failed or change.after is not None):
                inside = [c for c in change.inner if c.by.kind == "stage"]
                stages = [*_way_to(change.before, position, made), *inside]
                by = change.by
                found.append(KernelHistory(len(found), by.name, by.target, stages, change.codes, change))
        return found


def _way_to(end: UOp, position: int, made: dict[UOp, list[tuple[int, Change]]]) -> list[Change]:
    """The stages that lead to a graph, wherever they ran.

    A kernel may have been lowered before it was cut out: others have asked what would become of it.
    """
    found: list[Change] = []
    seen: set[int] = set()
    while True:
        candidates = [c for c in made.get(end, ()) if c[0] not in seen]
        if not candidates:
            return found[::-1]
        earlier = [c for c in candidates if c[0] < position]
        position, change = (earlier or candidates)[-1]
        seen.add(position)
        found.append(change)
        end = change.before


@contextmanager
def recording(wants_code: bool = False) -> Iterator[History]:
    """The history of everything that is compiled inside; with `wants_code` also what it was rendered to."""
    recorder = Recorder(wants_code)
    with watching(recorder):
        yield History(recorder)
