"""What a device has to offer so that its kernels can be searched for: compile a candidate, time a candidate.

Both happen in worker processes, which open the device by its name. What is compiled travels as bytes, because
the worker that compiles and the one that times need not be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from morok.device.base import Device, Program
from morok.device.buffer import Buffer
from morok.ir.node import UOp
from morok.optimize.host import Host

Stopwatch = Callable[[int], float]  # runs so many times, and says how many seconds all of it took


@runtime_checkable
class Tunable(Protocol):
    """A device that a search can work with."""

    def facts(self) -> Host:
        """The machine as the optimiser sees it."""

    def tuning_key(self) -> str:
        """Everything besides the kernel that decides which candidate is the fastest."""

    def build(self, ast: UOp, title: str) -> bytes:
        """A kernel that is optimised already, compiled. Nothing is looked up and nothing is kept."""

    def load(self, code: bytes, title: str) -> Program:
        """What `build` has made, ready to run."""

    def stopwatch(self, program: Program, buffers: Sequence[Buffer], values: Mapping[str, int]) -> Stopwatch:
        """A clock for a program on these buffers."""


def plain_stopwatch(
    device: Device, program: Program, buffers: Sequence[Buffer], values: Mapping[str, int]
) -> Stopwatch:
    """A clock for devices whose programs are called one by one."""

    def seconds(count: int) -> float:
        def work() -> None:
            for _ in range(count):
                program(buffers, values)

        return device.measure(work)

    return seconds
