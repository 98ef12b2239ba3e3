"""What a viewer listens to while a program runs: changes of graphs, code, runs of kernels, plans, reasons.

Everything that takes long is left to the end. The user's own nodes are not kept,
for their results would be found again and never computed twice, nor is memory: of plans only numbers are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from morok.ir.memory import own_device
from morok.ir.node import UOp
from morok.rewrite.observer import By
from morok.rewrite.record import Recorder
from morok.runtime.plan import ExecutionPlan, written_by
from morok.runtime.profile import Profile
from morok.schedule.indexing import forget_indices
from morok.schedule.schedule import NORMALISED

Data = dict[str, Any]
WRITES_INDICES = "2.1"  # the stage
MOST_MATCHES = 50_000  # of one rewrite that is kept: one that never ends is not kept whole


@final
class RunRecorder(Recorder):
    """The history of kernels, and their code with its lines."""

    wants_programs = True

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, str, UOp]] = []

    def wants(self, root: UOp) -> bool:
        """Also expressions of the stage that writes indices: most remainders come and go there."""
        open_ = self._open.changes
        return super().wants(root) or (bool(open_) and open_[-1].by.number == WRITES_INDICES)

    def begin(self, by: By, before: UOp) -> None:
        if by.kind == "kernel":
            self._open.kernel = None  # what an error leaves unfinished has no code
        elif by.number == WRITES_INDICES:
            forget_indices()  # those of other kernels: what is taken from memory is not seen
        super().begin(by, before)

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        if by is NORMALISED:  # only memory gets numbers there, and a page would hold two graphs for one
            self._open.changes.pop()
        else:
            super().end(by, before, after)

    def rule(self, rule: Any, before: UOp, after: UOp) -> None:
        matches = self._open.changes[-1].matches
        if len(matches) < MOST_MATCHES:
            matches.append((rule, before, after))

    def rendered(self, program: Any, assemble: Callable[[], str], code: Callable[[], bytes] | None) -> None:
        kernel = self._open.kernel
        if kernel is not None:
            kernel.program = program, assemble, code

    def note(self, topic: str, text: str, node: UOp) -> None:
        self.notes.append((topic, text, node))


@final
class RunProfile(Profile):
    """The runs of kernels, and of each plan which kernels it has and where their memory lies."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[Data] = []
        self._seen: dict[
            tuple[UOp, ...], Data
        ] = {}  # equal graphs have plans of their own, of the same kernels

    def runs(self, plan: ExecutionPlan) -> None:
        key = tuple([item.ast for item in plan.schedule.items])
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = describe(plan)
            self.plans.append(found)
        found["runs"] += 1


def describe(plan: ExecutionPlan) -> Data:
    """A plan as numbers: kernels in order, which of them each reads from, live ranges in the arena."""
    items = plan.schedule.items
    writer: dict[UOp, int] = {}
    uses: dict[UOp, list[int]] = {}
    steps = []
    for i, item in enumerate(items):
        reads = {writer[b] for b in item.buffers if b in writer}
        steps.append({"ast": item.ast, "name": item.name, "place": item.place, "reads": sorted(reads)})
        steps[-1]["device"] = own_device(item.buffers[0])
        for node in item.buffers:
            uses.setdefault(node, []).append(i)
        for node in written_by(item):
            writer.setdefault(node, i)
    memory = plan.memory
    placed = [
        [p.offset, p.nbytes, uses[n][0], uses[n][-1], writer.get(n, -1)]
        for n, p in memory.placements.items()
        if n in uses
    ]
    return {
        "steps": steps,
        "arena": memory.arena_bytes,
        "outputs": memory.output_bytes,
        "live": memory.live_bytes,
        "placed": sorted(placed),
        "values": dict(plan.values),
        "runs": 0,
    }
