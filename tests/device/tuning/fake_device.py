"""A device for tests of searches: candidates crash, hang, fail or run as the actions in their record say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from morok import knobs
from morok.device.base import Device, Program
from morok.device.buffer import Buffer, HostAllocator
from morok.device.interpreter import Interpreter
from morok.device.tuning.tunable import Turns, plain_stopwatch
from morok.ir.node import UOp
from morok.ir.python_form import parse, to_python
from morok.machine.machine import Machine
from morok.optimize.record import Opt, applied
from morok.optimize.search.race import Stopwatch

CRASH_BUILD, HANG_BUILD, FAIL_BUILD = Opt("UPCAST", 0, 2), Opt("UPCAST", 0, 3), Opt("UPCAST", 0, 4)
CRASH_RUN, HANG_RUN, WRONG_RUN = Opt("UPCAST", 1, 2), Opt("UPCAST", 1, 4), Opt("UPCAST", 0, 6)


class FakeDevice(Device):
    """Runs kernels on the interpreter, but for the ones above."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.allocator = HostAllocator(name)
        self.interpreter = Interpreter(name)

    def compile(self, ast: UOp, name: str) -> Program:
        return self.interpreter.compile(ast, name)

    @property
    def machine(self) -> Machine:
        return Machine()

    def tuning_key(self) -> str:
        return "fake"

    def build(self, ast: UOp, title: str) -> bytes:
        if CRASH_BUILD in applied(ast):
            os.abort()
        if HANG_BUILD in applied(ast):
            time.sleep(1000)
        if FAIL_BUILD in applied(ast):
            raise ValueError(f"cannot be compiled with TF32={knobs.TF32.value}")
        return to_python(ast).encode()

    def load(self, code: bytes, title: str) -> Program:
        ast = parse(code.decode())
        run = self.interpreter.compile(ast, title)

        def program(buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
            if CRASH_RUN in applied(ast):
                os.abort()
            if HANG_RUN in applied(ast):
                time.sleep(1000)
            run(buffers, values)
            if WRONG_RUN in applied(ast):
                buffers[0].copy_in(buffers[0].copy_out() + 1)

        return program

    def cache_bytes(self) -> int:
        return 1 << 20

    def contention_monitor(self) -> Callable[[], bool]:
        return lambda: False

    def stopwatch(self, program: Program, turns: Turns, values: Mapping[str, int]) -> Stopwatch:
        return plain_stopwatch(self, program, turns, values)


def open_device(name: str) -> FakeDevice:
    return FakeDevice(name)
