"""A compiled kernel of a GPU, and plans of kernels as one launch.

The arguments of a kernel are 64-bit words: addresses of buffers, then values of variables. They lie in a
table that stays, and a second table holds the addresses of the words, which is what the driver wants to see.
After them come tensor maps, by which TMA knows buffers: 128 bytes each, made anew when a buffer moves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from morok.device.background import Future
from morok.device.buffer import Buffer
from morok.device.compiled import Compiled
from morok.device.cuda.interface import Driver, Function, Launch
from morok.errors import DeviceError, VariableError
from morok.render.program import Extent, extent_value

TENSOR_MAP_BYTES = 128


def address_of(buffer: Buffer) -> int:
    """Where a buffer's first element lies."""
    memory = buffer.memory
    if not isinstance(memory, int):
        raise DeviceError(f"memory of {buffer.device} was given to a kernel of a GPU; copy it there first")
    return memory + buffer.offset


@final
class CudaKernel:
    """A kernel that can be called. Its code may still be in the making, and is loaded at the first call."""

    __slots__ = ("_asked", "_function", "_later", "block", "compiled", "driver", "name", "sizes")

    def __init__(
        self, compiled: Compiled, name: str, driver: Driver, later: Future[bytes] | None = None
    ) -> None:
        self.compiled = compiled
        self.name = name
        self.driver = driver
        self._later = later
        self._function: Function | None = None
        self.block: tuple[int, int, int] = _three(compiled.block)  # threads in each dimension
        self.sizes = tuple(sorted(_variables_of(compiled.grid)))  # the variables that the grid depends on
        self._asked: tuple[tuple[int | None, ...], tuple[int, int, int]] | None = None  # values, their grid

    @property
    def from_disk(self) -> bool:
        """Whether nothing had to be compiled; until it is loaded."""
        return self._later is None

    @property
    def function(self) -> Function:
        """The kernel in the GPU's memory."""
        return self._function or self.load()

    def load(self) -> Function:
        """Waits for the code and puts it into memory, unless it is there."""
        if self._function is None:
            code = self.compiled.code if self._later is None else self._later.get()
            self._function = self.driver.load(code, self.compiled.name, self.compiled.shared, self.name)
            self._later = None
        return self._function

    def grid(self, values: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks in each dimension. One kernel serves many launches of a plan, with the same values."""
        known = tuple([values.get(name) for name in self.sizes])
        if self._asked is None or self._asked[0] != known:
            self._asked = known, _three(_extent(size, values) for size in self.compiled.grid)
        return self._asked[1]

    def step(self, table: Table, values: Mapping[str, int]) -> Launch | None:
        """What the driver has to know to start it; None if there is nothing to do."""
        grid = self.grid(values)
        return None if 0 in grid else (self.function, grid, self.block, table.pointers)

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        count = self.compiled.buffers
        if len(buffers) != count:
            raise DeviceError(f"{self.name} takes {count} buffers, got {len(buffers)}")
        table = Table(self, values)
        for i, buffer in enumerate(buffers):
            table.put(i, address_of(buffer))
        step = self.step(table, values)
        if step is not None:
            self.driver.launch(step)


def _variables_of(grid: Sequence[Extent]) -> set[str]:
    steps = [step for extent in grid for step in extent if isinstance(step, str)]
    return {step[1:] for step in steps if step.startswith("$")}


def _extent(extent: Extent, values: Mapping[str, int]) -> int:
    first = extent[0]
    return first if len(extent) == 1 and isinstance(first, int) else extent_value(extent, values)


def _three(sizes: Any) -> tuple[int, int, int]:
    found = [*sizes, 1, 1, 1]
    return found[0], found[1], found[2]


@final
class Table:
    """The arguments of one kernel in memory."""

    __slots__ = ("_driver", "_places", "_tensor_maps", "_texts", "pointers", "words")

    def __init__(self, kernel: CudaKernel, values: Mapping[str, int]) -> None:
        compiled = kernel.compiled
        count = compiled.buffers + len(compiled.variables)
        self._driver = kernel.driver
        self._tensor_maps = compiled.tensor_maps
        self.words = (ctypes.c_int64 * max(1, count))()
        self._texts = (ctypes.c_char * (TENSOR_MAP_BYTES * len(self._tensor_maps)))()
        base, texts = ctypes.addressof(self.words), ctypes.addressof(self._texts)
        found = [base + 8 * i for i in range(count)]
        found += [texts + TENSOR_MAP_BYTES * i for i in range(len(self._tensor_maps))]
        self._places = (ctypes.c_void_p * max(1, len(found)))(*found)
        self.pointers = ctypes.addressof(self._places)
        for i, variable in enumerate(compiled.variables, compiled.buffers):
            if variable not in values:
                raise VariableError(f"{kernel.name} needs a value for the variable {variable}")
            self.words[i] = values[variable]

    def put(self, number: int, address: int) -> None:
        """Buffer `number` lies there."""
        for i, (buffer, dtype, box) in enumerate(self._tensor_maps):
            if buffer == number:
                made = self._driver.tensor_map(address, dtype, box)
                ctypes.memmove(ctypes.addressof(self._texts) + TENSOR_MAP_BYTES * i, made, TENSOR_MAP_BYTES)
        self.words[number] = address  # last: whoever looks at it knows that the tensor maps fit


@final
class CudaSteps:
    """The launches of a plan. Several are one graph; what has changed since is patched into it first."""

    __slots__ = ("_driver", "_graph", "_kernels", "_live", "_stale", "_tables", "_users", "_values", "run")

    def __init__(self, kernels: Sequence[tuple[CudaKernel, Table]], values: Mapping[str, int]) -> None:
        self._kernels = [kernel for kernel, _ in kernels]
        self._tables = [table for _, table in kernels]
        self._driver = self._kernels[0].driver
        self._values = dict(values)
        self._users: dict[
            str, list[tuple[int, int | None]]
        ] = {}  # launches that take a variable, and which word
        self._graph: Any = None
        self._live: list[Launch | None] = []  # the launches of the graph when it was made
        self._stale: set[int] = set()  # launches whose arguments or grids the graph does not know
        # The shortest way there is: one launch that stays as it is. Its arguments are read when it starts.
        self.run: Callable[[], Any] | None = None
        if len(kernels) == 1 and not self._kernels[0].sizes:
            step = self._kernels[0].step(self._tables[0], values)
            self.run = None if step is None else self._driver.prepared(step)

    def touch(self, number: int) -> None:
        """The arguments of a launch have changed."""
        if self._graph is not None:
            self._stale.add(number)

    def set(self, name: str, value: int) -> None:
        """Another value for a variable: arguments and grids follow."""
        if self._values.get(name) == value:
            return
        self._values[name] = value
        if name not in self._users:
            self._users[name] = [found for i in range(len(self._kernels)) if (found := self._use(i, name))]
        for i, word in self._users[name]:
            if word is not None:
                self._tables[i].words[word] = value
            self.touch(i)

    def _use(self, number: int, name: str) -> tuple[int, int | None] | None:
        """Which argument of a launch a variable is; None in its place where only the grid depends on it."""
        kernel = self._kernels[number]
        compiled = kernel.compiled
        if name in compiled.variables:
            return number, compiled.buffers + compiled.variables.index(name)
        return (number, None) if name in kernel.sizes else None

    def expect(self, name: str, value: int) -> None:
        """A value that a variable will probably have next: the graph is told while it runs, and what runs
        already goes on with the old one."""
        if self._graph is not None and name in self._users:
            self.set(name, value)
            if self._stale:
                self._update()

    def __call__(self) -> None:
        if len(self._kernels) == 1:
            step = self._kernels[0].step(self._tables[0], self._values)
            if step is not None:
                self._driver.launch(step)
            return
        if self._stale:
            self._update()
        if self._graph is None:
            steps = self._steps()
            live = [step for step in steps if step is not None]
            if len(live) < len(steps):  # an empty grid, which a graph cannot hold
                for step in live:
                    self._driver.launch(step)
                return
            self._live = steps
            self._graph = self._driver.graph(live)
        self._driver.replay(self._graph)

    def launch_all(self) -> None:
        """One after the other: for a graph that holds more than these."""
        for step in self._steps():
            if step is not None:
                self._driver.launch(step)

    def _steps(self) -> list[Launch | None]:
        pairs = zip(self._kernels, self._tables, strict=True)
        return [kernel.step(table, self._values) for kernel, table in pairs]

    def _update(self) -> None:
        for number in sorted(self._stale):
            kernel = self._kernels[number]
            step = self._live[number]  # other arguments in the same place
            if kernel.sizes:
                step = kernel.step(self._tables[number], self._values)
            if step is None:
                self._graph = None
                break
            self._driver.patch(self._graph, number, step)
        self._stale.clear()
