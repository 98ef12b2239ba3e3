"""Stages and the pipeline driver. A pipeline is a table; one function runs it, and verifies, times, prints,
traces and stops.

Knobs: `DUMP=all` or a comma-separated list of stage names or numbers prints the graph after these stages,
`STOP_AFTER` ends a pipeline early, `SPEC` says how often specs are checked (0 never, 1 after the last stage,
2 after every stage).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from morok import knobs
from morok.errors import KnobError
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op
from morok.ir.text import tree
from morok.rewrite.engine import Strategy, rewrite
from morok.rewrite.ruleset import RuleSet
from morok.rewrite.spec import Spec
from morok.rewrite.trace import current_trace


@final
@dataclass(frozen=True)
class Stage:
    """One row of a pipeline: a rule set with a strategy, or a function of the graph and the context."""

    number: str
    name: str
    meaning: str
    run: RuleSet | Callable[[UOp, Any], UOp]
    strategy: Strategy = "fixpoint"
    spec: Spec | None = None  # what must hold afterwards
    triggers: frozenset[Op] | None = None  # skipped when none of these ops is in the graph

    def apply(self, root: UOp, ctx: Any) -> UOp:
        if isinstance(self.run, RuleSet):
            return rewrite(root, self.run, ctx if self.run.uses_context else None, self.strategy)
        return self.run(root, ctx)


@final
@dataclass
class Report:
    """What one run of a pipeline did, stage by stage: (stage, seconds, graph changed)."""

    rows: list[tuple[Stage, float, bool]] = field(default_factory=list)
    stopped: bool = False

    @property
    def seconds(self) -> float:
        return sum(row[1] for row in self.rows)


Observer = Callable[[Stage, UOp], None]


def run_pipeline(
    stages: Sequence[Stage],
    root: UOp,
    ctx: Any = None,
    report: Report | None = None,
    observer: Observer | None = None,
) -> UOp:
    """Runs the table over a graph. `observer` sees the graph after each stage, for dumps and viewers."""
    dump, stop = _selection(knobs.DUMP.value), _selection(knobs.STOP_AFTER.value)
    level = knobs.SPEC.value
    trace = current_trace()
    for stage in stages:
        if trace is not None:
            trace.stage = stage.name
        started = time.perf_counter()
        before = root
        if stage.triggers is None or any(n.op in stage.triggers for n in toposort(root)):
            root = stage.apply(root, ctx)
        if report is not None:
            report.rows.append((stage, time.perf_counter() - started, root is not before))
        if stage.spec is not None and (level >= 2 or (level == 1 and stage is stages[-1])):
            stage.spec.verify(root, after=f"stage {stage.number} ({stage.name})")
        if dump and _selected(stage, dump):
            print(f"--- after stage {stage.number}, {stage.name}\n{tree(root)}", file=sys.stderr)
        if observer is not None:
            observer(stage, root)
        if stop and _selected(stage, stop):
            if report is not None:
                report.stopped = True
            break
    return root


def _selection(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _selected(stage: Stage, names: tuple[str, ...]) -> bool:
    return "all" in names or stage.name in names or stage.number in names


def check_selection(stages: Sequence[Stage]) -> None:
    """A KnobError if DUMP or STOP_AFTER name a stage that does not exist."""
    known = {"all"} | {s.name for s in stages} | {s.number for s in stages}
    for knob in (knobs.DUMP, knobs.STOP_AFTER):
        for name in _selection(knob.value):
            if name not in known:
                raise KnobError(
                    f"{knob.name}={name} names no stage; there are: {', '.join(s.name for s in stages)}"
                )


def describe(stages: Sequence[Stage]) -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| stage | name | what it does | strategy | spec afterwards |", "|---|---|---|---|---|"]
    for s in stages:
        how = s.strategy if isinstance(s.run, RuleSet) else "function"
        lines.append(f"| {s.number} | {s.name} | {s.meaning} | {how} | {s.spec.name if s.spec else ''} |")
    return "\n".join(lines)
