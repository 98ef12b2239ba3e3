"""A plan whose kernels were searched for, before it runs for the first time: which of them it will run with.

The race is on the plan's real inputs and on copies of what it writes, so it leaves no traces. What was
decided is remembered, in the process and on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from morok.device.base import Program
from morok.device.buffer import Buffer
from morok.device.registry import get_device
from morok.device.tuning.tunable import Tunable
from morok.errors import OutOfMemory
from morok.ir.digest import hexdigest
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.optimize.search.race import Stopwatch
from morok.optimize.strategy import Beam
from morok.runtime.beginnings import for_item
from morok.runtime.launch import native_launch
from morok.runtime.plan_ab_test import ABResult, plan_ab_test
from morok.runtime.tuning import PLANS, tuner, tuning_key
from morok.schedule.schedule import ScheduleItem


@final
@dataclass(frozen=True)
class Raced:
    """A plan that may be raced: its steps are kernels of one device."""

    device: str
    items: Sequence[ScheduleItem]
    programs: Sequence[Program]  # as they were found
    plain: Callable[[ScheduleItem], Program]  # as the heuristics have it
    memory: Callable[[UOp], Buffer]
    written: Sequence[UOp]  # memory that others see
    values: Mapping[str, int]


def pick_winners(plan: Raced, beam: Beam) -> tuple[Program, ...]:
    """The programs that the plan runs from now on: those that a search has found, or the heuristics'."""
    machine = get_device(plan.device)
    if not isinstance(machine, Tunable):
        return tuple(plan.programs)
    names = [hexdigest(item.ast) for item in plan.items]
    found = [tuner.result(plan.device, item.ast) for item in plan.items]
    promises: dict[str, float] = {}
    for name, result in zip(names, found, strict=True):
        if result is not None and result.race:
            promises[name] = promises.get(name, 0.0) + max(0.0, result.before - result.after)
    if not promises:
        return tuple(plan.programs)
    plain = {name: plan.plain(i) for name, i in zip(names, plan.items, strict=True) if name in promises}

    def chosen(kept: frozenset[str]) -> tuple[Program, ...]:
        rows = zip(names, plan.programs, plan.items, strict=True)
        return tuple(
            new if name in kept or name not in plain else for_item(plain[name], item)
            for name, new, item in rows
        )

    def race() -> ABResult | None:
        try:
            track = _Track(plan)
            until = time.perf_counter() + PLANS * beam.seconds * len(promises)
            clock, now = (lambda kept: track.clock(chosen(kept))), time.perf_counter
            return plan_ab_test(promises, clock, now, until, machine.contention_monitor, time.sleep)
        except OutOfMemory:  # for a second copy of the results
            return None

    opts = ";".join(f"{n}:{'' if r is None else r.opts}" for n, r in zip(names, found, strict=True))
    ab_result = tuner.decide(f"plan|{opts}|{tuning_key(plan.device)}", race)
    return tuple(plan.programs) if ab_result is None else chosen(ab_result.kept)


@final
class _Track:
    """Memory to race a plan on: its inputs as they are, and copies of what it writes."""

    def __init__(self, plan: Raced) -> None:
        self.plan = plan
        self.memory = {node: plan.memory(node) for item in plan.items for node in item.buffers}
        # A plan that changes its own inputs starts from the same ones every time.
        read = _read(plan.items)
        self.renewed: list[tuple[Buffer, Buffer]] = []
        for node in plan.written:
            original = self.memory[node]
            self.memory[node] = copy = original.clone()
            if node in read and original.is_allocated:
                self.renewed.append((copy, original))

    def clock(self, programs: Sequence[Program]) -> Stopwatch:
        """A stopwatch for the plan with these programs, which runs it as a replay does."""
        measure = get_device(self.plan.device).measure
        items, values = self.plan.items, self.plan.values
        launch = native_launch(list(zip(programs, (item.buffers for item in items), strict=True)), values)
        if launch is None:
            run = _one_by_one(programs, [[self.memory[n] for n in i.buffers] for i in items], values)
        else:
            for node in launch.nodes:
                launch.bind(node, self.memory[node])
            run = launch

        def burst(count: int) -> None:
            for _ in range(count):
                run()

        def seconds(count: int) -> float:
            if not self.renewed:
                return measure(lambda: burst(count))
            total = 0.0
            for _ in range(count):
                for copy, original in self.renewed:
                    copy.copy_from(original)
                total += measure(lambda: burst(1))
            return total

        return seconds


def _read(items: Sequence[ScheduleItem]) -> set[UOp]:
    """The memory that some kernel reads."""
    found: set[UOp] = set()
    for item in items:
        for node in toposort(item.ast):
            values = node.src[1:] if node.op is Ops.STORE else node.src
            found.update(
                item.buffers[int(place.src[0].arg)]
                for place in values
                if place.op is Ops.INDEX and place.src[0].op is Ops.DEFINE_GLOBAL
            )
    return found


def _one_by_one(
    programs: Sequence[Program], buffers: Sequence[Sequence[Buffer]], values: Mapping[str, int]
) -> Callable[[], None]:
    """Kernels of devices that know no replay."""

    def run() -> None:
        for program, memory in zip(programs, buffers, strict=True):
            program(memory, values)

    return run
