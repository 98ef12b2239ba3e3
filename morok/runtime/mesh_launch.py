"""A plan of a mesh as few calls: kernels between two collectives are one native call for each rank here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from morok.device.buffer import Buffer
from morok.errors import DeviceError
from morok.ir.digest import blake2b
from morok.ir.node import UOp
from morok.runtime.launch import PlanLaunch, native_launch

if TYPE_CHECKING:
    from morok.device.mesh.device import Collective, MeshDevice
    from morok.device.mesh.engine import Pending


@final
class _Steps:
    """Stretches of kernels and collectives in turn.

    A collective is started and left alone until something touches its memory: kernels in between run while
    values are on their way. Where the engine works on the GPU's stream all of it becomes one graph.
    """

    __slots__ = ("_graph", "_waits", "device", "run", "stretches", "what")

    def __init__(self, device: MeshDevice, stretches: list[_Stretch | _Meeting], what: str) -> None:
        self.device = device
        self.stretches = stretches
        self.what = (
            what if any(isinstance(s, _Meeting) for s in stretches) else None
        )  # told before ranks meet
        self._waits: dict[int, list[_Meeting]] | None = None
        self._graph: Any = None
        # One stretch of one rank is as any other plan.
        alone = len(stretches) == 1 and self.what is None and len(device.ranks) == 1
        first = stretches[0] if stretches else None
        self.run: Callable[[], Any] | None = None
        if alone and isinstance(first, _Stretch):
            self.run = first.launches[0].steps.run

    def moved(self, of_collectives: bool) -> None:
        """Memory is somewhere else."""
        self._graph = None
        if of_collectives:
            self._waits = None

    def __call__(self) -> None:
        if self.what is None:
            for stretch in self.stretches:
                stretch()
            return
        engine = self.device.engine
        engine.begin(self.what)
        if engine.on_stream:
            self._on_stream()
            return
        if self._waits is None:
            self._waits = _first_touches(self.stretches)
        under_way: list[_Meeting] = []
        for n, stretch in enumerate(self.stretches):
            for meeting in self._waits.get(n, ()):
                meeting.wait()
            stretch()
            if isinstance(stretch, _Meeting):
                under_way.append(stretch)
            else:
                under_way = [m for m in under_way if not m.is_done()]
        for meeting in under_way:
            meeting.wait()

    def _on_stream(self) -> None:
        """Kernels and collectives as one graph, from the second run with the same memory on."""
        base: Any = self.device.base  # a GPU: engines of others have no stream
        driver = base.driver
        if self._graph is None:
            for stretch in self.stretches:
                stretch()
            self._graph = False
            return
        if self._graph is False:
            self._graph = driver.capture(self._launch_all)
        driver.replay(self._graph)

    def _launch_all(self) -> None:
        for stretch in self.stretches:
            if isinstance(stretch, _Stretch):
                for launch in stretch.launches:
                    steps: Any = launch.steps  # a GPU's
                    steps.launch_all()
            else:
                stretch()


@final
class _Stretch:
    """Kernels between two collectives, a launch for each rank of this process."""

    __slots__ = ("launches",)

    def __init__(self, launches: list[PlanLaunch]) -> None:
        self.launches = launches

    @property
    def buffers(self) -> list[Buffer]:
        """What they touch; the ranks' parts lie alike."""
        return list(self.launches[0].held.values())

    def __call__(self) -> None:
        for launch in self.launches:
            launch.steps()


@final
class _Meeting:
    """A collective on its memory."""

    __slots__ = ("_parts", "_pending", "collective", "held", "nodes")

    def __init__(self, collective: Collective, nodes: Sequence[UOp]) -> None:
        self.collective, self.nodes = collective, nodes
        self.held: list[Any] = [None] * len(nodes)
        self._parts: dict[UOp, Buffer] = {}  # of the first rank here
        self._pending: Pending = None

    @property
    def buffers(self) -> list[Buffer]:
        return list(self._parts.values())

    def bind(self, node: UOp, buffer: Buffer, part: Buffer) -> bool:
        """Whether that is about its memory."""
        if node in self.nodes:
            for n, own in enumerate(self.nodes):
                if own is node:
                    self.held[n] = buffer
            self._parts[node] = part
            return True
        memory = part.memory
        return any(memory is own.memory for own in self._parts.values())

    def __call__(self) -> None:
        self._pending = self.collective.start(self.held)

    def is_done(self) -> bool:
        if self._pending is not None and self._pending(False):
            self._pending = None
        return self._pending is None

    def wait(self) -> None:
        if self._pending is not None:
            self._pending(True)
            self._pending = None


def _first_touches(stretches: Sequence[_Stretch | _Meeting]) -> dict[int, list[_Meeting]]:
    """For each stretch the collectives that have to be over before it: it first touches their memory."""
    touched = [[_room(buffer) for buffer in stretch.buffers] for stretch in stretches]
    found: dict[int, list[_Meeting]] = {}
    for i, meeting in enumerate(stretches):
        if not isinstance(meeting, _Meeting):
            continue
        for j in range(i + 1, len(stretches)):
            if any(_overlap(a, b) for a in touched[i] for b in touched[j]):
                found.setdefault(j, []).append(meeting)
                break
    return found


_Room = tuple[int, int, int]  # whose memory, from, to


def _room(buffer: Buffer) -> _Room:
    return id(buffer.memory), buffer.offset, buffer.offset + buffer.nbytes


def _overlap(a: _Room, b: _Room) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


@final
class MeshLaunch(PlanLaunch):
    """All steps of a plan for the ranks of this process."""

    __slots__ = ("_device", "_meetings", "_stretches")

    def __init__(self, device: MeshDevice, stretches: list[_Stretch | _Meeting], what: str) -> None:
        self._device = device
        self._stretches = [s for s in stretches if isinstance(s, _Stretch)]
        self._meetings = [s for s in stretches if isinstance(s, _Meeting)]
        self.held = {}
        self.steps: _Steps = _Steps(device, stretches, what)

    @property
    def nodes(self) -> tuple[UOp, ...]:
        found = dict.fromkeys(n for stretch in self._stretches for n in stretch.launches[0].nodes)
        found.update(dict.fromkeys(n for meeting in self._meetings for n in meeting.nodes))
        return tuple(found)

    def bind(self, node: UOp, buffer: Buffer) -> None:
        if self.held.get(node) is buffer:
            return
        from morok.device.mesh.memory import shards

        parts = shards(buffer, self._device.base, len(self._device.ranks))
        for stretch in self._stretches:
            for launch, part in zip(stretch.launches, parts, strict=True):
                launch.bind(node, part)
        if self._meetings:
            own = [meeting.bind(node, buffer, parts[0]) for meeting in self._meetings]
            self.steps.moved(any(own))
        self.held[node] = buffer

    def point(self, node: UOp, address: int) -> None:
        raise DeviceError("memory of a mesh has no one address; give it a buffer of the mesh")

    def set(self, name: str, value: int) -> None:
        for stretch in self._stretches:
            for launch in stretch.launches:
                launch.set(name, value)
        self.steps._graph = None


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
    stretches: list[_Stretch | _Meeting] = []
    waiting: list[tuple[object, Sequence[UOp]]] = []
    on_the_way: set[UOp] = set()  # memory of collectives that nobody has touched since

    def close() -> bool:
        if not waiting:
            return True
        found = [native_launch(waiting, {**values, **ranks}) for ranks in device.rank_values]
        made = [launch for launch in found if launch is not None]
        waiting.clear()
        if len(made) < len(found):
            return False
        stretches.append(_Stretch(made))
        return True

    for program, nodes in items:
        if not on_the_way.isdisjoint(nodes):  # here a collective is waited for: not by the kernels before
            on_the_way.clear()
            if not close():
                return None
        if isinstance(program, MeshProgram):
            waiting.append((program.inner, nodes))
        elif isinstance(program, Collective) and close():
            stretches.append(_Meeting(program, nodes))
            on_the_way.update(nodes)
        else:
            return None
    if not close():
        return None
    return MeshLaunch(device, stretches, _told(items))


def meet(items: Sequence[tuple[object, Sequence[UOp]]]) -> None:
    """Ranks that are about to run another plan find out before one waits for the other."""
    from morok.device.mesh.device import Collective

    first = next((p for p, _ in items if isinstance(p, Collective)), None)
    if first is not None:
        first.device.engine.begin(_told(items))


def _told(items: Sequence[tuple[object, Sequence[UOp]]]) -> str:
    """What a plan is called before ranks meet in it: its collectives, and a digest of all, in their order.

    Memory has numbers in the order in which steps touch it, so equal collectives of other tensors differ.
    """
    from morok.device.mesh.device import Collective

    numbers: dict[UOp, int] = {}
    found, told = [], []
    for program, nodes in items:
        touched = [numbers.setdefault(node, len(numbers)) for node in nodes]
        if isinstance(program, Collective):
            found.append(program.name)
            told.append(f"{program.name}:{program.dtype}{touched}")
    digest = blake2b(" ".join(told).encode(), digest_size=4).hexdigest()
    some = ", ".join(found[:3]) + (" …" if len(found) > 3 else "")
    return f"{len(items)} steps with {len(found)} collectives ({some}; {digest})"
