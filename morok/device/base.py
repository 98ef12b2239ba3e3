"""What a device has to offer, and how a kernel is handed to it.

A device has an allocator, and it turns a kernel's graph into something that can be called with buffers and
with the values of variables. Everything above this room speaks to devices through these few names.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from morok.device.buffer import ALIGNMENT, Allocator, Array, Buffer, HostAllocator
from morok.device.error_flags import ErrorFlags, host_error_flags
from morok.dtype import DType
from morok.ir.arithmetic.arrays import storage
from morok.ir.node import UOp
from morok.machine.files import load
from morok.machine.machine import Machine


class Program(Protocol):
    """A kernel that a device can run."""

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        """Runs on these buffers, in the order of their numbers in the kernel, and waits for nothing."""


class Device(ABC):
    """One place where tensors live and kernels run."""

    name: str
    allocator: Allocator
    on_host = True  # the host can read its memory without a copy
    waits = True  # a kernel has run when its call returns

    @property
    def machine(self) -> Machine:
        """What the compiler knows of it; kernels run here as they leave the scheduler unless it says more."""
        return load("interpreter")

    @property
    def machine_key(self) -> str:
        """The key of the machine, which another process may have kept."""
        return self.machine.key

    @abstractmethod
    def compile(self, ast: UOp, name: str) -> Program:
        """The kernel `ast`, ready to run; `name` is for messages and profiles."""

    def compile_all(self, kernels: Sequence[tuple[UOp, str]]) -> Mapping[UOp, Program]:
        """Some of several kernels, those that are quicker to have together than one after the other."""
        return {}

    def prepare(self, program: Program) -> None:
        """Waits until the code of a kernel is made and loaded, which its first run would do otherwise."""
        return

    def synchronize(self) -> None:
        """Waits until everything that was started has finished; nothing to do where `run` waits itself."""
        return

    def measure(self, work: Callable[[], None]) -> float:
        """Does some work, waits for it, and says how many seconds it took on the device."""
        self.synchronize()
        started = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - started

    def measure_kernel(self, program: Program | None, work: Callable[[], None]) -> float:
        """The same for a run of a kernel (None: of a copy), where it can be without the time of the host."""
        return self.measure(work)

    def error_flags(self, count: int) -> ErrorFlags:
        """Error flags: words that kernels may write and the host looks at."""
        return host_error_flags(self.name, count, self.allocator)

    def check_later(self, flags: ErrorFlags, look: Callable[[], None]) -> None:
        """Has notes looked at when everything that was started has finished, where running does not wait."""
        raise NotImplementedError

    def buffer(self, size: int, dtype: DType) -> Buffer:
        """New memory; it is taken when it is first touched."""
        return Buffer(self.name, size, dtype, self.allocator)

    def zeros(self, size: int, dtype: DType) -> Buffer | None:
        """New memory that is zero, where that is for nothing; None elsewhere."""
        if not isinstance(self.allocator, HostAllocator):
            return None
        fresh = self.buffer(size, dtype)
        fresh._memory = self.allocator.zeros(fresh.nbytes)
        return fresh

    def adopt(self, array: Array, dtype: DType, shared: bool = False) -> Buffer:
        """A buffer with the elements of a host array: the array's own memory where that is possible.

        The array is kept alive by the buffer. A copy is made if the device has memory of its own, or if the
        array is not contiguous or not aligned to its elements. What is written to a buffer goes into the
        array only if it is `shared`.
        """
        flat = shareable(array, dtype) if self.on_host else None
        if flat is not None:
            return Buffer(self.name, array.size, dtype, self.allocator, memory=flat, shared=shared)
        return self.copied(array, dtype)

    def copied(self, array: Array, dtype: DType) -> Buffer:
        """A buffer of its own with the elements of a host array."""
        fresh = self.buffer(array.size, dtype)
        fresh.copy_in(np.ascontiguousarray(array, dtype=storage(dtype)))
        return fresh


def shareable(array: Array, dtype: DType) -> Array | None:
    fits = array.dtype == storage(dtype) and array.dtype.isnative and array.flags.c_contiguous
    if not fits or array.size == 0:
        return None
    itemsize = min(dtype.itemsize, ALIGNMENT)
    if array.__array_interface__["data"][0] % itemsize:
        return None
    return array.reshape(-1).view(np.uint8)


def as_host(buffer: Buffer) -> Any:
    """The elements of a buffer on the host: its own memory if the host can reach it, else a copy."""
    memory = buffer.memory
    return buffer.lend() if isinstance(memory, np.ndarray) else buffer.copy_out()
