"""A GPU that is none: memory, a stream that waits until somebody asks, and kernels of the interpreter.

Whatever is put on the stream runs as late as possible, so host memory that is used again too early, or a
value that is read without waiting, shows.
"""

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from morok.device import registry
from morok.device.cuda import device
from morok.device.cuda.interface import Facts, Function, Launch
from morok.device.interpreter import run_kernel
from morok.errors import DeviceError
from morok.ir.arithmetic.arrays import storage
from morok.ir.checks import count_buffers, memory_of
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.warp_roles import Box
from morok.render.program import Program
from morok.runtime import plan

FACTS = Facts("Fake GPU", (9, 0), 64 << 20, 4, 1024, 227 << 10, 1 << 20, 13000)
_BASE = 1 << 40


class FakeDriver:
    """One GPU with 64 MB."""

    def __init__(self, memory: int = FACTS.memory) -> None:
        self.facts = replace(FACTS, memory=memory)
        self.memory = np.full(memory, 0xA5, np.uint8)
        self.taken: dict[int, int] = {}
        self.queue: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.fault: str | None = None  # the next kernel raises it
        self.lost: str | None = None
        self.held: list[Any] = []
        self.host: list[Any] = []  # pinned memory, which kernels reach too

    # --- the stream

    def later(self, work: Callable[[], None]) -> None:
        if self.lost is not None:
            raise DeviceError(self.lost)
        self.queue.append(work)

    def drain(self, count: int | None = None) -> None:
        for _ in range(len(self.queue) if count is None else count):
            self.queue.pop(0)()

    def synchronize(self) -> None:
        if self.lost is not None:
            raise DeviceError(self.lost)
        self.drain()

    def event(self, timing: bool = False) -> Any:
        return {"left": None}

    def record(self, event: Any) -> None:
        mark = object()
        event["left"] = mark

        def passed() -> None:
            if event["left"] is mark:
                event["left"] = None

        self.later(passed)

    def wait(self, event: Any) -> None:
        while event["left"] is not None:
            self.drain(1)

    def seconds(self, first: Any, last: Any) -> float:
        self.wait(last)
        return 1e-6

    # --- memory

    def _view(self, address: int, nbytes: int) -> Any:
        for pinned in self.host:
            start = address - pinned.ctypes.data
            if 0 <= start and start + nbytes <= pinned.size:
                return pinned[start : start + nbytes]
        start = address - _BASE
        assert any(a <= address and address + nbytes <= a + n for a, n in self.taken.items()), (
            "not our memory"
        )
        return self.memory[start : start + nbytes]

    def allocate(self, nbytes: int, managed: bool = False) -> int | None:
        self.log.append(f"{'managed' if managed else 'allocate'} {nbytes}")
        start = _BASE
        for address in sorted(self.taken):
            if address - start >= nbytes:
                break
            start = address + self.taken[address]
        if start + nbytes > _BASE + self.memory.size:
            return None
        self.taken[start] = nbytes
        return start

    def release(self, address: int) -> None:
        if self.lost is not None:
            return
        self.drain()
        self.memory[address - _BASE : address - _BASE + self.taken.pop(address)] = 0xA5
        self.log.append("release")

    def room(self) -> tuple[int, int]:
        return self.memory.size - sum(self.taken.values()), self.memory.size

    def pinned(self, nbytes: int) -> Any:
        self.host.append(np.full(nbytes, 0x5A, np.uint8))
        return self.host[-1]

    def put(self, address: int, source: int, nbytes: int) -> None:
        self.later(lambda: ctypes.memmove(self._view(address, nbytes).ctypes.data, source, nbytes) and None)

    def fetch(self, target: int, address: int, nbytes: int) -> None:
        self.later(lambda: ctypes.memmove(target, self._view(address, nbytes).ctypes.data, nbytes) and None)

    def move(self, target: int, source: int, nbytes: int) -> None:
        self.log.append("move")

        def work() -> None:
            self._view(target, nbytes)[...] = self._view(source, nbytes)

        self.later(work)

    def move_from(self, target: int, other: Any, source: int, nbytes: int) -> None:
        self.log.append("move from another")
        other.drain()

        def work() -> None:
            self._view(target, nbytes)[...] = other._view(source, nbytes)

        self.later(work)
        other.later(self.drain)  # its later work waits for the copy

    # --- kernels

    def load(self, code: bytes, name: str, shared: int, title: str = "") -> Function:
        self.log.append(f"load {name}")
        return Function(title or name, None, code.decode(), shared)

    def tensor_map(self, address: int, dtype: str, box: Box) -> bytes:
        return address.to_bytes(8, "little").ljust(128, b"\0")

    def launch(self, step: Launch) -> None:
        self.log.append("launch")
        self._start(step)

    def prepared(self, step: Launch) -> Callable[[], None]:
        return lambda: self.launch(step)

    def _start(self, step: Launch) -> None:
        function, _, _, pointers = step
        if "globaltimer" in str(function.handle):  # it only waits
            return
        ast = KERNELS[function.handle]
        arguments = memory_of(ast)
        names = variables_of(ast)
        count = buffers_of(ast)
        words = [
            ctypes.cast(
                (ctypes.c_void_p * (count + len(names))).from_address(pointers)[i],
                ctypes.POINTER(ctypes.c_int64),
            )[0]
            for i in range(count + len(names))
        ]  # read when it starts, as the driver does

        def work() -> None:
            if self.fault is not None:
                self.lost = self.fault
                raise DeviceError(self.fault)
            buffers: list[Any] = [None] * count
            for n, (dtype, size) in arguments.items():
                buffers[n] = self._view(words[n], size * dtype.itemsize).view(storage(dtype))
            run_kernel(ast, buffers, dict(zip(names, words[count:], strict=True)))

        self.later(work)

    def graph(self, steps: Sequence[Launch]) -> Any:
        self.log.append(f"graph {len(steps)}")
        return [self._frozen(step) for step in steps]

    def _frozen(self, step: Launch) -> Launch:
        """With the arguments as they are now, which is what a graph keeps."""
        function, grid, block, pointers = step
        ast = KERNELS[function.handle]
        count = buffers_of(ast) + len(variables_of(ast))
        found = (ctypes.c_void_p * max(1, count)).from_address(pointers)
        words = (ctypes.c_int64 * max(1, count))(
            *(ctypes.c_int64.from_address(found[i]).value for i in range(count))
        )
        base = ctypes.addressof(words)
        table = (ctypes.c_void_p * max(1, count))(*(base + 8 * i for i in range(count)))
        self.held += [words, table]
        return function, grid, block, ctypes.addressof(table)

    def patch(self, graph: Any, number: int, step: Launch) -> None:
        self.log.append(f"patch {number}")
        graph[number] = self._frozen(step)

    def replay(self, graph: Any) -> None:
        self.log.append("replay")
        for step in graph:
            if callable(step):
                self.later(step)
            else:
                self._start(step)

    def capture(self, work: Callable[[], None]) -> Any:
        self.log.append("capture")
        before, self.queue = self.queue, []
        try:
            work()
        finally:
            made, self.queue = self.queue, before
        return made

    def zero(self, address: int, nbytes: int) -> None:
        def clear() -> None:
            self._view(address, nbytes)[...] = 0

        self.later(clear)


KERNELS: dict[str, UOp] = {}
_numbers = itertools.count()


def variables_of(ast: UOp) -> tuple[str, ...]:
    return tuple(sorted({n.arg[0] for n in toposort(ast) if n.op is Ops.DEFINE_VAR}))


def buffers_of(ast: UOp) -> int:
    return count_buffers(ast)


def fake_program(ast: UOp, target: object, host: object, title: str = "") -> Program:
    """Its text says which graph to interpret."""
    key = f"graph {next(_numbers)}"
    KERNELS[key] = ast
    return Program(
        title or "kernel", key, (), variables_of(ast), buffers=buffers_of(ast), grid=((1,),), block=(1,)
    )


@contextmanager
def fake_gpus(*drivers: FakeDriver) -> Iterator[list[device.Cuda]]:
    """CUDA, CUDA:1 … are these, inside."""
    names = ["CUDA" if i == 0 else f"CUDA:{i}" for i in range(len(drivers))]
    with (
        mock.patch.object(device, "program_of", fake_program),
        mock.patch.object(device, "kernel_store", lambda: None),
    ):
        devices = [
            device.Cuda(name, driver, lambda text, arch, title: text.encode())
            for name, driver in zip(names, drivers, strict=True)
        ]
        with (
            mock.patch.dict(registry._devices, dict(zip(names, devices, strict=True))),
            mock.patch.object(plan, "_programs", {}),
        ):
            yield devices
