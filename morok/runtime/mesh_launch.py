"""A plan of a mesh as few calls: kernels between two collectives are one native call for each rank here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from morok.device.buffer import Buffer
from morok.errors import DeviceError
from morok.ir.node import UOp
from morok.runtime.launch import PlanLaunch, native_launch

if TYPE_CHECKING:
    from morok.device.mesh.device import Collective, MeshDevice


@final
class _Steps:
    """Stretches of kernels and collectives in turn."""

    __slots__ = ("run", "stretches", "what")

    def __init__(self, stretches: list[Any], what: tuple[Any, str] | None) -> None:
        self.stretches = stretches
        self.what = what  # the engine, and what is run: told before ranks meet
        # One stretch of one rank is as any other plan.
        alone = len(stretches) == 1 and what is None
        self.run: Callable[[], Any] | None = stretches[0].run if alone else None

    def __call__(self) -> None:
        if self.what is not None:
            self.what[0].begin(self.what[1])
        for stretch in self.stretches:
            stretch()


@final
class _Meeting:
    """A collective on its memory."""

    __slots__ = ("buffers", "collective", "nodes")

    run = None

    def __init__(self, collective: Collective, nodes: Sequence[UOp]) -> None:
        self.collective, self.nodes = collective, nodes
        self.buffers: list[Any] = [None] * len(nodes)

    def __call__(self) -> None:
        self.collective(self.buffers, {})


@final
class MeshLaunch(PlanLaunch):
    """All steps of a plan for the ranks of this process."""

    __slots__ = ("_device", "_launches", "_meetings")

    def __init__(
        self,
        device: MeshDevice,
        launches: list[list[PlanLaunch]],
        meetings: list[_Meeting],
        stretches: list[Any],
        what: str,
    ) -> None:
        self._device = device
        self._launches = launches  # of every stretch, one for each rank
        self._meetings = meetings
        self.held = {}
        self.steps = _Steps(stretches, (device.engine, what) if meetings else None)

    @property
    def nodes(self) -> tuple[UOp, ...]:
        found = dict.fromkeys(n for stretch in self._launches for n in stretch[0].nodes)
        found.update(dict.fromkeys(n for meeting in self._meetings for n in meeting.nodes))
        return tuple(found)

    def bind(self, node: UOp, buffer: Buffer) -> None:
        if self.held.get(node) is buffer:
            return
        from morok.device.mesh.memory import shards

        parts = shards(buffer, self._device.base, len(self._device.ranks))
        for stretch in self._launches:
            for launch, part in zip(stretch, parts, strict=True):
                launch.bind(node, part)
        for meeting in self._meetings:
            for n, own in enumerate(meeting.nodes):
                if own is node:
                    meeting.buffers[n] = buffer
        self.held[node] = buffer

    def point(self, node: UOp, address: int) -> None:
        raise DeviceError("memory of a mesh has no one address; give it a buffer of the mesh")

    def set(self, name: str, value: int) -> None:
        for stretch in self._launches:
            for launch in stretch:
                launch.set(name, value)


def plan_launch(
    items: Sequence[tuple[object, Sequence[UOp]]], values: Mapping[str, int]
) -> PlanLaunch | None:
    """Programs with their BUFFER nodes as few calls; None where they are not all of one compiled device."""
    if any(getattr(program, "is_of_mesh", False) for program, _ in items):
        return _mesh_launch(items, values)
    return native_launch(items, values)


def _mesh_launch(
    items: Sequence[tuple[object, Sequence[UOp]]], values: Mapping[str, int]
) -> PlanLaunch | None:
    """The steps of a plan on a mesh; None where a step is neither a compiled kernel nor a collective."""
    from morok.device.mesh.device import Collective, MeshProgram

    device = next(p.device for p, _ in items if isinstance(p, MeshProgram | Collective))
    launches: list[list[PlanLaunch]] = []
    meetings: list[_Meeting] = []
    stretches: list[Any] = []
    waiting: list[tuple[object, Sequence[UOp]]] = []

    def close() -> bool:
        if not waiting:
            return True
        found = [native_launch(waiting, {**values, **ranks}) for ranks in device.rank_values]
        made = [launch for launch in found if launch is not None]
        waiting.clear()
        if len(made) < len(found):
            return False
        launches.append(made)
        stretches.extend(launch.steps for launch in made)
        return True

    for program, nodes in items:
        if isinstance(program, MeshProgram):
            waiting.append((program.inner, nodes))
        elif isinstance(program, Collective) and close():
            meetings.append(_Meeting(program, nodes))
            stretches.append(meetings[-1])
        else:
            return None
    if not close():
        return None
    return MeshLaunch(device, launches, meetings, stretches, _told([p for p, _ in items]))


def meet(programs: Sequence[object]) -> None:
    """Ranks that are about to run another plan find out before one waits for the other."""
    from morok.device.mesh.device import Collective

    first = next((p for p in programs if isinstance(p, Collective)), None)
    if first is not None:
        first.device.engine.begin(_told(programs))


def _told(programs: Sequence[object]) -> str:
    """What a plan is called before ranks meet in it: its collectives."""
    names = [str(name) for p in programs if (name := getattr(p, "name", None)) and hasattr(p, "groups")]
    some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"{len(programs)} steps with {len(names)} collectives ({some})"
