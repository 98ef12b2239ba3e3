"""What the rest of the device asks of a GPU: facts, functions, launches, and the driver as a protocol.

NVIDIA's own driver is in `driver.py`; the tests have one that is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from morok.device.buffer import Array
from morok.ir.warp_roles import Box
from morok.machine.choose import gpu_machine
from morok.machine.machine import Machine


@final
@dataclass(frozen=True)
class Facts:
    """What a GPU says about itself."""

    name: str
    capability: tuple[int, int]
    memory: int  # bytes
    multiprocessors: int
    block_threads: int
    shared_bytes: int  # of a block, where it asks for it
    l2_bytes: int
    driver: int  # version of CUDA that the driver speaks, as 1000·major + 10·minor

    @property
    def arch(self) -> str:
        """The compiler's name of the GPU, with the features that only this generation has."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    def machine(self) -> Machine:
        """The file of its architecture, with what the driver knows better."""
        return gpu_machine(
            self.arch,
            l1_bytes=self.shared_bytes,
            l2_bytes=self.l2_bytes,
            local_bytes=self.shared_bytes,
            cores=self.multiprocessors,
            block_threads=self.block_threads,
        )


@final
class Function:
    """A kernel that is loaded; keeps its module alive."""

    __slots__ = ("handle", "module", "name", "shared")

    def __init__(self, name: str, module: Any, handle: Any, shared: int) -> None:
        self.name = name
        self.module = module
        self.handle = handle
        self.shared = shared


Launch = tuple[Function, tuple[int, int, int], tuple[int, int, int], int]  # grid, block, address of arguments


class Holder(Protocol):
    """Whoever has most of a GPU's memory."""

    def make_room(self) -> None:
        """Gives back to the driver what can be given back."""

    def told(self) -> str:
        """Who holds how much."""


class Driver(Protocol):
    """What the rest of the device asks of a GPU. The tests have one that is none."""

    facts: Facts
    holder: Holder | None  # asked where something else than its own requests finds no room

    def allocate(self, nbytes: int, managed: bool = False) -> int | None:
        """Memory of the device; None where there is no room."""

    def release(self, address: int) -> None: ...

    def room(self) -> tuple[int, int]:
        """Bytes that are free, and all that there are."""

    def pinned(self, nbytes: int) -> Array:
        """Host memory that the device copies from and to by itself; lives as long as the process."""

    def put(self, address: int, source: int, nbytes: int) -> None: ...

    def fetch(self, target: int, address: int, nbytes: int) -> None: ...

    def move(self, target: int, source: int, nbytes: int) -> None: ...

    def move_from(self, target: int, other: Any, source: int, nbytes: int) -> None:
        """From the memory of another GPU."""

    def event(self, timing: bool = False) -> Any: ...

    def record(self, event: Any) -> None: ...

    def wait(self, event: Any) -> None:
        """The host waits for an event."""

    def seconds(self, first: Any, last: Any) -> float: ...

    def synchronize(self) -> None: ...

    def load(self, code: bytes, name: str, shared: int, title: str = "") -> Function:
        """A function of some code; `title` is what people call it."""

    def tensor_map(self, address: int, dtype: str, box: Box) -> bytes:
        """A buffer as TMA sees it."""

    def launch(self, step: Launch) -> None: ...

    def prepared(self, step: Launch) -> Callable[[], None]:
        """A function that launches a step again and again; its arguments are read each time."""

    def graph(self, steps: Sequence[Launch]) -> Any:
        """Launches in order, as one graph that can be launched again and again."""

    def patch(self, graph: Any, number: int, step: Launch) -> None:
        """Another grid, or other arguments, for one launch of a graph."""

    def replay(self, graph: Any) -> None: ...

    def capture(self, work: Callable[[], None]) -> Any:
        """A graph of everything that some work puts on the stream; nothing of it runs now."""

    def zero(self, address: int, nbytes: int) -> None: ...
