"""A plan that runs again and again while pieces of memory take turns.

    turns = Turns(plan)
    turns.begin([{source: a, target: b}, {source: b, target: a}])
    for k in range(n): turns.run(k % 2, {"step": k})
    turns.end()

The tables of addresses are filled in once for each turn, so that a run is the values of variables and one
native call. Where somebody watches, or a device has no such calls, the plan runs as it always does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from morok import knobs
from morok.device.buffer import Buffer
from morok.ir.node import UOp
from morok.runtime.launch import PlanLaunch
from morok.runtime.mesh_launch import plan_launch
from morok.runtime.plan import ExecutionPlan
from morok.runtime.profile import current


@final
class Turns:
    """Launches of one plan, one for each turn."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._launches: list[PlanLaunch] = []
        self._given: Sequence[Mapping[UOp, Buffer]] = ()
        self._ready = False

    def begin(self, given: Sequence[Mapping[UOp, Buffer]]) -> None:
        """The memory of each turn, until the next call of this."""
        self._given = given
        self._ready = self._plan._again and self._bind()

    def run(self, turn: int, values: Mapping[str, int]) -> None:
        """All kernels once; the first run of all is the plan's own, which compiles."""
        if not self._ready:
            self._plan.run(self._given[turn], **values)
            self._ready = self._bind()
            return
        launch = self._launches[turn]
        for name, value in values.items():
            launch.set(name, value)
        launch()

    def end(self) -> None:
        """After the last run: positions that were outside are an error now."""
        if self._ready:
            self._plan.hear()

    def _bind(self) -> bool:
        """Fills the tables in; False where the plan has to run on its own."""
        if current() is not None or knobs.DEBUG.value:
            return False
        plan = self._plan
        steps = list(zip(plan._programs or (), (item.buffers for item in plan.schedule.items), strict=True))
        while len(self._launches) < len(self._given):
            launch = plan_launch(steps, plan.values)
            if launch is None:
                return False
            self._launches.append(launch)
        for launch, memory in zip(self._launches, self._given, strict=False):
            for node in launch.nodes:
                buffer = memory.get(node)
                launch.bind(node, plan._memory(node) if buffer is None else buffer)
        return True
