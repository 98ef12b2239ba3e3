"""A device that only plans: it gives out no memory, counts what it would have, and runs nothing.

Every number that is read back is 0. With a mesh of such devices a program for machines that are not here goes
its whole way, and whoever watches its plans knows what each would compute, keep and send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from morok import knobs
from morok.device.base import Device, shareable
from morok.device.buffer import Array, Buffer
from morok.dtype import DType
from morok.ir.node import UOp
from morok.machine.cluster import cluster
from morok.machine.files import load
from morok.machine.machine import Machine

PLANNED = "PLAN"
_SHOWN = 1 << 16  # elements that are really zeros when somebody reads them


@final
class NoMemory:
    """What stands for memory."""


@final
class CountingAllocator:
    """Counts bytes."""

    def __init__(self) -> None:
        self.used = self.peak = 0

    def allocate(self, nbytes: int) -> Any:
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        return NoMemory()

    def free(self, memory: Any, nbytes: int) -> None:
        self.used -= nbytes

    def copy_in(self, memory: Any, offset: int, source: Array) -> None:
        return

    def copy_out(self, memory: Any, offset: int, target: Array) -> None:
        if target.size <= _SHOWN:
            target[...] = 0

    def copy_within(self, memory: Any, offset: int, other: Any, source: Any, start: int, nbytes: int) -> None:
        return


@final
class _Nothing:
    """A kernel that is never run."""

    from_disk = True

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        for buffer in buffers:
            _ = buffer.memory  # counted as if it were taken


@final
class PlannedDevice(Device):
    """One device of the machine that is planned for."""

    on_host = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.allocator = CountingAllocator()

    @property
    def machine(self) -> Machine:
        return load(cluster(knobs.PLAN_MACHINE.value).chip)

    def adopt(self, array: Array, dtype: DType, shared: bool = False) -> Buffer:
        """A processor reads arrays where they lie: they take no memory of its own."""
        if self.machine.family == "cpu" and shareable(array, dtype) is not None:
            return Buffer(self.name, array.size, dtype, self.allocator, memory=NoMemory(), shared=shared)
        return self.copied(array, dtype)

    def compile(self, ast: UOp, name: str) -> _Nothing:
        return _Nothing()


def open_device(name: str) -> Device:
    """The device."""
    return PlannedDevice(name)
