"""Plans one after the other, the same one many times among them, as one native call.

    chain = Chain([Link(before, {}), *(Link(step, {old: a, new: b}, {"step": k}) for …), Link(after, {})])
    chain.run({x: memory})

The tables of addresses and variables of all runs are filled in once; a run of the chain patches in what it is
given, and the machine walks from kernel to kernel by itself. Where somebody watches, or a device has no such
calls, each plan runs as it always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """One run of a plan: on which memory, and with which values of its variables.

    A node in place of a buffer is what this node is given.
    """

    plan: ExecutionPlan
    memory: Mapping[UOp, Buffer | UOp]
    values: Mapping[str, int]


@final
class Chain:
    """Runs of plans in order."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._plans = list({id(link.plan): link.plan for link in links}.values())
        self._tables: Tables | None = None  # they hold the memory
        self._call: Runnable | None = None
        self._tried = False

    def run(self, given: Mapping[UOp, Buffer]) -> None:
        """All plans, on what is given besides the memory that each has of its own."""
        if current() is None and not knobs.DEBUG.value:
            if not self._tried:
                self._call, self._tried = self._joined(given), True
            if self._call is not None:
                assert self._tables is not None
                for node, buffer in given.items():
                    for launch, own in self._tables.places[node]:
                        launch.bind(own, buffer)
                self._call()
                for plan in self._plans:
                    plan.hear()
                return
        for link in self._links:
            bound = {n: given[m] if isinstance(m, UOp) else m for n, m in link.memory.items()}
            link.plan.run({**bound, **given}, **link.values)

    @property
    def plans(self) -> list[ExecutionPlan]:
        """The plans, each once."""
        return self._plans

    def _joined(self, given: Mapping[UOp, Buffer]) -> Runnable | None:
        """The tables of all runs as one call; None where a device has no such."""
        self._tables = tables(self._links, given)
        return None if self._tables is None else joined(self._tables.launches)


@final
class Tables:
    """Runs as launches with their memory bound, and who has to be told where what is given lies."""

    def __init__(self, given: Iterable[UOp]) -> None:
        self.launches: list[PlanLaunch] = []
        self.places: dict[UOp, list[tuple[PlanLaunch, UOp]]] = {node: [] for node in given}


def tables(links: Sequence[Link], given: Mapping[UOp, Buffer]) -> Tables | None:
    """All runs in order, for memory that is bound by whoever asks; None where a device has no such calls."""
    made = Tables(given)
    for plan in {id(link.plan): link.plan for link in links}.values():
        plan.compile()
    for link in links:
        plan = link.plan
        pairs = list(zip(plan._programs or (), (i.buffers for i in plan.schedule.items), strict=True))
        launch = plan_launch(pairs, {**plan.values, **link.values})
        if launch is None:
            return None
        for node in launch.nodes:
            memory = link.memory.get(node)
            asked = memory if isinstance(memory, UOp) else node
            if asked in made.places:
                made.places[asked].append((launch, node))
            else:
                launch.bind(node, memory if isinstance(memory, Buffer) else plan._memory(node))
        made.launches.append(launch)
    return made
