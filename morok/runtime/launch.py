"""A plan as one native call: the kernels of a plan with their tables of addresses, filled in once.

What changes from run to run (inputs, results, values of variables) is patched into the tables; the rest
stays. Nothing is looked up and nothing is allocated while it runs, so replaying a plan costs a call. On a GPU
the call launches a graph, and returns before the graph has run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

from morok.device.buffer import Buffer
from morok.device.cpu.kernel import Kernel, Steps, address_of
from morok.ir.node import UOp

if TYPE_CHECKING:
    from morok.device.cuda.kernel import CudaKernel


class Runnable(Protocol):
    """All kernels of a plan. `run`, where there is one, does the same as a call on a shorter way."""

    run: Callable[[], Any] | None

    def __call__(self) -> None: ...


class PlanLaunch(ABC):
    """Kernels in order on BUFFER nodes. Every node gets its memory with `bind` before the first call."""

    __slots__ = ("held", "steps")

    held: dict[UOp, Buffer]  # what each node is bound to
    steps: Runnable  # calling it runs the plan

    @property
    @abstractmethod
    def nodes(self) -> tuple[UOp, ...]:
        """The memory that has to be bound."""

    @abstractmethod
    def bind(self, node: UOp, buffer: Buffer) -> None:
        """From now on the node's memory is this buffer's. A node that no kernel touches is ignored."""

    @abstractmethod
    def point(self, node: UOp, address: int) -> None:
        """As `bind`, with an address in memory that the caller keeps until the plan has run."""

    @abstractmethod
    def set(self, name: str, value: int) -> None:
        """Another value for a variable."""

    def expect(self, name: str, value: int) -> None:
        """What a variable will probably be set to next, for whoever can prepare something."""
        return None

    def __call__(self) -> None:
        self.steps()


@final
class NativeLaunch(PlanLaunch):
    """Kernels of the CPU."""

    __slots__ = ("_places", "_values")

    def __init__(self, items: Sequence[tuple[Kernel, Sequence[UOp]]], values: Mapping[str, int]) -> None:
        self._places: dict[UOp, list[tuple[Any, int, int]]] = {}  # tables, places in them, bytes to go on
        self._values: dict[str, list[tuple[Any, int]]] = {}
        self.held = {}
        steps = []
        for kernel, nodes in items:
            table = kernel.table(values)
            starts = kernel.starts or (0,) * len(nodes)
            for i, node in enumerate(nodes):
                self._places.setdefault(node, []).append((table, i, starts[i]))
            for i, name in enumerate(kernel.compiled.variables, kernel.compiled.buffers):
                self._values.setdefault(name, []).append((table, i))
            steps.append((kernel, table))
        self.steps = Steps(steps)

    @property
    def nodes(self) -> tuple[UOp, ...]:
        return tuple(self._places)

    def bind(self, node: UOp, buffer: Buffer) -> None:
        if self.held.get(node) is buffer:
            return
        places = self._places.get(node)
        if places is not None:  # else perhaps memory of another device: a plan may have no kernels at all
            address = address_of(buffer)
            for table, i, start in places:
                table[i] = address + start
        self.held[node] = buffer  # last: there may be no room for it

    def point(self, node: UOp, address: int) -> None:
        for table, i, start in self._places.get(node, ()):
            table[i] = address + start

    def set(self, name: str, value: int) -> None:
        for table, i in self._values.get(name, ()):
            table[i] = value


@final
class GraphLaunch(PlanLaunch):
    """Kernels of one GPU."""

    __slots__ = ("_address_of", "_cuda", "_places", "_tables")

    def __init__(self, items: Sequence[tuple[CudaKernel, Sequence[UOp]]], values: Mapping[str, int]) -> None:
        from morok.device.cuda.kernel import CudaSteps, Table, address_of

        self._address_of = address_of
        self._places: dict[UOp, list[tuple[int, int]]] = {}  # number of the launch, place in its table
        self.held = {}
        self._tables = [Table(kernel, values) for kernel, _ in items]
        for number, (_, nodes) in enumerate(items):
            for i, node in enumerate(nodes):
                self._places.setdefault(node, []).append((number, i))
        kernels = [kernel for kernel, _ in items]
        self._cuda = CudaSteps(list(zip(kernels, self._tables, strict=True)), values)
        self.steps = self._cuda

    @property
    def nodes(self) -> tuple[UOp, ...]:
        return tuple(self._places)

    def bind(self, node: UOp, buffer: Buffer) -> None:
        if self.held.get(node) is buffer:
            return
        places = self._places.get(node)
        if places is None:
            return
        address = self._address_of(buffer)
        for number, i in places:
            table = self._tables[number]
            if table.words[i] != address:  # a new view of an old place costs nothing
                table.put(i, address)
                self._cuda.touch(number)
        self.held[node] = buffer  # last: there may be no room for it

    def point(self, node: UOp, address: int) -> None:
        for number, i in self._places.get(node, ()):
            table = self._tables[number]
            if table.words[i] != address:
                table.put(i, address)
                self._cuda.touch(number)

    def set(self, name: str, value: int) -> None:
        self._cuda.set(name, value)

    def expect(self, name: str, value: int) -> None:
        self._cuda.expect(name, value)


def are_loaded(programs: Sequence[object]) -> bool:
    """Whether programs are several kernels of a processor, and the code of all is in memory."""
    return len(programs) > 1 and all(isinstance(p, Kernel) and p.is_loaded for p in programs)


def joined(launches: Sequence[PlanLaunch]) -> Runnable | None:
    """Launches one after the other as one call; None where a device has no such. What they are bound to, and
    their values, may change later."""
    steps = [launch.steps for launch in launches]
    if not all(isinstance(s, Steps) for s in steps):
        return None
    return Steps([pair for s in steps if isinstance(s, Steps) for pair in s.held])


def native_launch(
    items: Sequence[tuple[object, Sequence[UOp]]], values: Mapping[str, int]
) -> PlanLaunch | None:
    """Programs with their BUFFER nodes as one call; None where they are not all of one compiled device."""
    native = [(program, nodes) for program, nodes in items if isinstance(program, Kernel)]
    if len(native) == len(items):
        return NativeLaunch(native, values)
    from morok.device.cuda.kernel import CudaKernel  # what else is compiled is for a GPU

    gpu = [(program, nodes) for program, nodes in items if isinstance(program, CudaKernel)]
    if len(gpu) == len(items) and len({id(program.driver) for program, _ in gpu}) == 1:
        return GraphLaunch(gpu, values)
    return None
