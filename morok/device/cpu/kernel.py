"""A compiled kernel of the CPU: object code with what is needed to call it, and the call itself."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

from morok.device.background import Future
from morok.device.buffer import Buffer
from morok.device.compiled import Compiled
from morok.device.cpu.llvm import Code
from morok.device.cpu.threads import scratch, thread_pool
from morok.errors import DeviceError, VariableError
from morok.forks import at_fork


class _Locks:
    """Locks that a forked child makes anew: whoever held one has not come along."""

    def __init__(self) -> None:
        self.renew()
        at_fork(child=self.renew)

    def renew(self) -> None:
        self.loading = threading.RLock()


_locks = _Locks()


@final
class Kernel:
    """A kernel that can be called. Its code may still be in the making, and is loaded at the first call."""

    __slots__ = ("_code", "_later", "_whole", "compiled", "from_disk", "name", "starts")

    def __init__(
        self, compiled: Compiled, name: str, later: Future[bytes] | None = None, from_disk: bool = False
    ) -> None:
        self.starts: tuple[int, ...] = ()  # in bytes, for each buffer; () if all begin where they begin
        self._whole: Kernel | None = None  # the same for buffers as they begin, which has the code
        self.compiled = compiled
        self.name = name
        self.from_disk = from_disk  # nothing had to be compiled
        self._later = later
        self._code: Code | None = None

    @property
    def code(self) -> Code:
        """The machine code in this process's memory."""
        return self._code or self.load()

    def beginning_at(self, starts: tuple[int, ...]) -> Kernel:
        """The same kernel for parts of buffers, which begin so many bytes further on."""
        found = Kernel(self.compiled, self.name, None, self.from_disk)
        found.starts, found._whole = starts, self
        return found

    @property
    def is_loaded(self) -> bool:
        """Whether the machine code is in this process's memory already."""
        return (self._whole or self)._code is not None

    def load(self) -> Code:
        """Waits for the code and puts it into memory, unless it is there."""
        if self._whole is not None:
            self._code = self._whole.code
        if self._code is None:
            code = self.compiled.code if self._later is None else self._later.get()
            name = self.compiled.name
            with _locks.loading:  # a second copy would take the first one's memory away from whoever runs it
                if self._code is None:
                    self._code = Code(code, (name, f"{name}.extent"))
        return self._code

    @property
    def function(self) -> int:
        """The address of the kernel."""
        return self.code.addresses[self.compiled.name]

    @property
    def extent(self) -> int:
        """The address of the function that gives the size of the shared axis; 0 if there is none."""
        return self.code.addresses[f"{self.compiled.name}.extent"] if self.compiled.threaded else 0

    def arguments(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> Any:
        """The table of addresses and variables that the kernel reads its arguments from."""
        count = self.compiled.buffers
        if len(buffers) != count:
            raise DeviceError(f"{self.name} takes {count} buffers, got {len(buffers)}")
        table = self.table(values)
        starts = self.starts or (0,) * count
        for i, buffer in enumerate(buffers):
            table[i] = address_of(buffer) + starts[i]
        return table

    def table(self, values: Mapping[str, int]) -> Any:
        """The table with its variables filled in, and no addresses yet."""
        count = self.compiled.buffers
        table = (ctypes.c_int64 * (count + len(self.compiled.variables)))()
        for i, variable in enumerate(self.compiled.variables, count):
            if variable not in values:
                raise VariableError(f"{self.name} needs a value for the variable {variable}")
            table[i] = values[variable]
        return table

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        Steps([(self, self.arguments(buffers, values))])()


def address_of(buffer: Buffer) -> int:
    """Where a buffer's first element lies."""
    address: int = buffer.memory.__array_interface__["data"][0]
    return address + buffer.offset


@final
class Steps:
    """Kernels with their arguments, laid out for the native runner. Calling it runs them all in one call.

    It holds the kernels and the tables, not the memory behind the addresses: that is the caller's business.
    """

    __slots__ = (
        "_bytes", "_count", "_held", "_pool", "_record", "_run", "_shared", "_table", "_where", "run",
    )  # fmt: skip

    def __init__(self, steps: Sequence[tuple[Kernel, Any]]) -> None:
        flat: list[int] = []
        for kernel, arguments in steps:
            flat += (kernel.function, kernel.extent, ctypes.addressof(arguments))
        self._table = (ctypes.c_int64 * len(flat))(*flat)
        self._where = ctypes.addressof(self._table)
        self._count = len(steps)
        self._held = tuple(steps)
        self._bytes = max((kernel.compiled.scratch for kernel, _ in steps), default=0)
        self._pool = thread_pool()
        self._run = self._pool.run
        self._shared = any(kernel.extent for kernel, _ in steps)
        # The shortest way there is, where nothing depends on who calls; None where something does.
        self.run: Callable[[], Any] | None = None
        if not self._shared and not self._bytes:
            self._record = (ctypes.c_int64 * 3)(self._pool.address, self._where, self._count)
            self.run = partial(self._pool.replay, ctypes.addressof(self._record))

    @property
    def held(self) -> tuple[tuple[Kernel, Any], ...]:
        """The kernels with their tables, in order."""
        return self._held

    def __call__(self) -> None:
        state = self._pool.ready() if self._shared else self._pool.address
        space = scratch.get(self._bytes) if self._bytes else None
        self._run(state, self._where, self._count, space, self._bytes)
