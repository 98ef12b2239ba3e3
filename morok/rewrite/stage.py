"""Stages and the pipeline driver. A pipeline is a table; one function runs it, verifies, times and stops, and
tells whoever listens (`observe.py`).

Knobs: `STOP_AFTER` ends a pipeline early, `SPEC` says how often specs are checked (0 never, 1 after the last
stage, 2 after every stage), `DUMP` prints the graph after stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from morok import knobs
from morok.errors import KnobError
from morok.forks import cached_property
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op
from morok.rewrite.engine import Strategy, rewrite
from morok.rewrite.observe import current, observed
from morok.rewrite.observer import By, place_of
from morok.rewrite.ruleset import RuleSet
from morok.rewrite.spec import Spec


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
    because: str = ""  # what a function asks for that no rule sees
    is_local: bool = False  # its rules ask the context for the machine and for nothing of the kernel

    def apply(self, root: UOp, ctx: Any) -> UOp:
        if isinstance(self.run, RuleSet):
            if self.is_local:
                return rewrite(root, self.run, ctx, about=ctx.machine)
            return rewrite(root, self.run, ctx if self.run.uses_context else None, self.strategy)
        return self.run(root, ctx)

    @cached_property
    def by(self) -> By:
        """Who it is, to an observer."""
        return By(
            "stage", self.name, self.number, "" if isinstance(self.run, RuleSet) else place_of(self.run)
        )

    def observed(self, root: UOp, ctx: Any) -> UOp:
        """The same as `apply`, and whoever listens is told."""
        return observed(self.by, root, lambda: self.apply(root, ctx))


def leaving(spec: Spec, *stages: Stage) -> tuple[Stage, ...]:
    """The rows of a table after which the graph is what a spec says."""
    return tuple(replace(stage, spec=spec) for stage in stages)


@final
@dataclass
class Report:
    """What one run of a pipeline did, stage by stage: (stage, seconds, graph changed)."""

    rows: list[tuple[Stage, float, bool]] = field(default_factory=list)
    stopped: bool = False

    @property
    def seconds(self) -> float:
        return sum(row[1] for row in self.rows)


def run_pipeline(stages: Sequence[Stage], root: UOp, ctx: Any = None, report: Report | None = None) -> UOp:
    """Runs the table over a graph."""
    stop = knobs.words(knobs.STOP_AFTER.value)
    level = knobs.SPEC.value
    observer = current()
    for stage in stages:
        started = time.perf_counter()
        before = root
        if stage.triggers is None or any(n.op in stage.triggers for n in toposort(root)):
            root = stage.apply(root, ctx) if observer is None else stage.observed(root, ctx)
        if report is not None:
            report.rows.append((stage, time.perf_counter() - started, root is not before))
        if stage.spec is not None and (level >= 2 or (level == 1 and stage is stages[-1])):
            stage.spec.verify(root, after=f"stage {stage.number} ({stage.name})")
        if stop and _selected(stage, stop):
            if report is not None:
                report.stopped = True
            break
    return root


def _selected(stage: Stage, names: tuple[str, ...]) -> bool:
    return "all" in names or stage.name in names or stage.number in names


def check_selection(stages: Sequence[Stage]) -> None:
    """A KnobError if DUMP or STOP_AFTER name a stage that does not exist."""
    known = {"all"} | {s.name for s in stages} | {s.number for s in stages}
    for knob in (knobs.DUMP, knobs.STOP_AFTER):
        for name in knobs.words(knob.value):
            if name not in known:
                raise KnobError(
                    f"{knob.name}={name} names no stage; there are: {', '.join(s.name for s in stages)}"
                )


def count_rules(stages: Sequence[Stage]) -> tuple[int, int]:
    """How many stages are sets of rules, and how many are functions."""
    by_rules = sum(isinstance(stage.run, RuleSet) for stage in stages)
    return by_rules, len(stages) - by_rules


def describe(stages: Sequence[Stage]) -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| stage | name | what it does | strategy | spec afterwards |", "|---|---|---|---|---|"]
    for s in stages:
        how = s.strategy if isinstance(s.run, RuleSet) else "function"
        lines.append(f"| {s.number} | {s.name} | {s.meaning} | {how} | {s.spec.name if s.spec else ''} |")
    reasons = [f"- {s.number} {s.name}: {s.because}" for s in stages if s.because]
    if reasons:
        lines += [
            "",
            "What the functions ask for that a rule, which sees one node and its sources, does not:",
            "",
        ]
    return "\n".join(lines + reasons)
