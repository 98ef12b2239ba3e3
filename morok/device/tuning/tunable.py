"""What a device has to offer so that its kernels can be searched for: compile a candidate, time a candidate.

Both happen in worker processes, which open the device by its name. What is compiled travels as bytes, because
the worker that compiles and the one that times need not be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Protocol, runtime_checkable

from morok.device.base import Device, Program
from morok.device.buffer import Buffer
from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.optimize.search.race import Stopwatch

Turns = Sequence[Sequence[Buffer]]  # each run takes the next of these, the first again after the last


@runtime_checkable
class Tunable(Protocol):
    """A device that a search can work with."""

    @property
    def machine(self) -> Machine:
        """What the compiler knows of it."""

    def tuning_key(self) -> str:
        """Everything besides the kernel that decides which candidate is the fastest."""

    def build(self, ast: UOp, title: str) -> bytes:
        """A kernel that is optimised already, compiled. Nothing is looked up and nothing is kept."""

    def load(self, code: bytes, title: str) -> Program:
        """What `build` has made, ready to run."""

    def cache_bytes(self) -> int:
        """The size of the largest cache: what was touched so many bytes ago has to be fetched again."""

    def contention_monitor(self) -> Callable[[], bool]:
        """From now on; the function says whether others have used what kernels need to be fast."""

    def stopwatch(self, program: Program, turns: Turns, values: Mapping[str, int]) -> Stopwatch:
        """A clock for a program on these buffers, run the way that a plan runs it."""


def plain_stopwatch(device: Device, program: Program, turns: Turns, values: Mapping[str, int]) -> Stopwatch:
    """A clock for devices whose programs are called one by one."""
    following = cycle(turns)

    def seconds(count: int) -> float:
        def work() -> None:
            for _ in range(count):
                program(next(following), values)

        return device.measure(work)

    return seconds
