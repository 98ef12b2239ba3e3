"""Plans one after the other, the same one many times among them, as one native call.

    chain = Chain([Link(before, {}), *(Link(step, {old: a, new: b}, {"step": k}) for …), Link(after, {})])
    chain.run({x: memory})

The tables of addresses and variables of all runs are filled in once; a run of the chain patches in what it is
given, and the machine walks from kernel to kernel by itself. Where somebody watches, or a device has no such
calls, each plan runs as it always does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from morok import knobs
from morok.device.buffer import Buffer
from morok.dtype.records import record
from morok.ir.node import UOp
from morok.runtime.launch import PlanLaunch, Runnable, joined
from morok.runtime.mesh_launch import plan_launch
from morok.runtime.plan import ExecutionPlan
from morok.runtime.profile import current


@final
@record(frozen=True)
class Link:
    """One run of a plan: on which memory, and with which values of its variables."""

    plan: ExecutionPlan
    memory: Mapping[UOp, Buffer]
    values: Mapping[str, int]


@final
class Chain:
    """Runs of plans in order."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._plans = list({id(link.plan): link.plan for link in links}.values())
        self._bound: dict[UOp, list[PlanLaunch]] = {}  # what is given at each run
        self._launches: list[PlanLaunch] = []  # they hold the memory
        self._call: Runnable | None = None
        self._tried = False

    def run(self, given: Mapping[UOp, Buffer]) -> None:
        """All plans, on what is given besides the memory that each has of its own."""
        if current() is None and not knobs.DEBUG.value:
            if not self._tried:
                self._call, self._tried = self._joined(given), True
            if self._call is not None:
                for node, buffer in given.items():
                    for launch in self._bound[node]:
                        launch.bind(node, buffer)
                self._call()
                for plan in self._plans:
                    plan.hear()
                return
        for link in self._links:
            link.plan.run({**link.memory, **given}, **link.values)

    def _joined(self, given: Mapping[UOp, Buffer]) -> Runnable | None:
        """The tables of all runs as one call; None where a device has no such."""
        launches = self._launches
        self._bound = {node: [] for node in given}
        for plan in self._plans:
            plan.compile()
        for link in self._links:
            plan = link.plan
            pairs = list(zip(plan._programs or (), (i.buffers for i in plan.schedule.items), strict=True))
            launch = plan_launch(pairs, {**plan.values, **link.values})
            if launch is None:
                return None
            for node in launch.nodes:
                if node in given:
                    self._bound[node].append(launch)
                else:
                    buffer = link.memory.get(node)
                    launch.bind(node, plan._memory(node) if buffer is None else buffer)
            launches.append(launch)
        return joined(launches)
