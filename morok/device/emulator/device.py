"""The emulator: a GPU in NumPy, for machines without one, and for finding out what a kernel does wrong.

It runs the very list of instructions that the CUDA renderer gets, all threads in lock-step, and checks what
no GPU checks: races on shared memory, places outside of buffers, misaligned vectors, memory that nobody has
written. It has memory of its own, as a GPU has: what is on the host must be copied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from morok import knobs
from morok.device.base import Device
from morok.device.buffer import Array, Buffer
from morok.device.emulator.memory import Block, GlobalMemory
from morok.device.emulator.run import Code, Run, run_cluster
from morok.device.error_flags import ErrorFlags
from morok.dtype import int64
from morok.errors import DeviceError
from morok.forks import renewed
from morok.ir.digest import hexdigest
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.choose import emulated
from morok.machine.machine import Machine
from morok.rewrite.observe import current

THREADS_AT_ONCE = 1 << 15  # threads that run at once; more only takes memory


@final
class EmulatorAllocator:
    """Memory that remembers which of its bytes have been written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = 0
        self.peak = 0
        self._lock = renewed(self, "_lock", threading.Lock)

    def allocate(self, nbytes: int) -> Block:
        with self._lock:
            self.used += nbytes
            self.peak = max(self.peak, self.used)
        return Block(nbytes)

    def free(self, memory: Block, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes

    def copy_in(self, memory: Block, offset: int, source: Array) -> None:
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        memory.data[offset : offset + data.size] = data
        memory.known[offset : offset + data.size] = True

    def copy_out(self, memory: Block, offset: int, target: Array) -> None:
        data = target.reshape(-1).view(np.uint8)
        data[...] = memory.data[offset : offset + data.size]

    def copy_within(
        self, memory: Block, offset: int, other: Any, source: Block, start: int, nbytes: int
    ) -> None:
        memory.data[offset : offset + nbytes] = source.data[start : start + nbytes]
        memory.known[offset : offset + nbytes] = source.known[start : start + nbytes]


def launch_sizes(code: Code, values: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Blocks and threads of a launch, by dimension."""
    from morok.render.program import extent_of, extent_value

    grid = [1 if end is None else extent_value(extent_of(end), values) for end in code.sizes("gidx")]
    block = [1 if end is None else int(end.arg) for end in code.sizes("lidx")]
    return grid or [1], block or [1]


@final
class EmulatedKernel:
    """A list of instructions that can be called."""

    def __init__(self, linear: UOp, name: str) -> None:
        self.name = name
        self.linear = linear
        self.code = Code(linear, name)

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        arrays: dict[int, GlobalMemory] = {}
        for node in self.linear.src:
            if node.op is not Ops.DEFINE_GLOBAL:
                continue
            if node.arg >= len(buffers):
                raise DeviceError(f"{self.name} wants buffer {node.arg} of {len(buffers)}")
            buffer = buffers[node.arg]
            elem = node.dtype.base
            memory = GlobalMemory(f"buffer {node.arg}", buffer.memory, buffer.offset, buffer.nbytes, elem)
            arrays[node.arg] = memory
        grid, block = launch_sizes(self.code, values)
        count = math.prod(grid)
        # roles wait for one another, which is between the threads of one block
        at_once = 1 if self.code.roles or self.code.uneven else max(1, THREADS_AT_ONCE // math.prod(block))
        if self.code.cluster > 1:
            self._clusters(arrays, values, grid, block)
            return
        for first in range(0, count, at_once):
            few = min(at_once, count - first)
            for memory in arrays.values():
                memory.start = first * math.prod(block)
            Run(self.code, arrays, values, grid, block, first, few).run()

    def _clusters(
        self, arrays: dict[int, GlobalMemory], values: Mapping[str, int], grid: list[int], block: list[int]
    ) -> None:
        """Cluster after cluster."""
        size, threads = self.code.cluster, math.prod(block)
        if grid[0] % size:
            raise DeviceError(f"{self.name} has {grid[0]} blocks in a row, which are no clusters of {size}")

        def switch(run: Run) -> None:
            for memory in arrays.values():
                memory.start = run.first * threads

        for first in range(0, math.prod(grid), size):
            blocks = range(first, first + size)
            run_cluster([Run(self.code, arrays, values, grid, block, b, 1) for b in blocks], switch)


def lower_for(ast: UOp, machine: Machine, title: str = "") -> UOp:
    """The kernel as the list that a GPU gets."""
    from morok.device.cuda.compile import compile_ptx
    from morok.device.lowering import instructions, show_code, show_program
    from morok.optimize.heuristics.apply import optimize
    from morok.render.cuda.kernel import render

    linear = instructions(optimize(ast, machine), machine, title)
    if current() is not None or knobs.DEBUG.value >= 4:  # what a GPU would get
        program = render(linear, f"k{hexdigest(ast)[:16]}", cores=machine.cores)
        show_code(title, "CUDA C", lambda: program.text)
        show_program(program, lambda: compile_ptx(program.text, machine.arch, title))
    return linear


@final
class Emulator(Device):
    """A GPU that is none."""

    on_host = False

    def __init__(self, name: str = "EMULATOR", machine: Machine | None = None) -> None:
        self.name = name
        self.allocator: EmulatorAllocator = EmulatorAllocator(name)
        self._machine = machine

    @property
    def machine(self) -> Machine:
        return self._machine or emulated()

    def error_flags(self, count: int) -> ErrorFlags:
        block = Block(8 * count)
        block.data[:], block.known[:] = 0, True
        return ErrorFlags(
            Buffer(self.name, count, int64, self.allocator, memory=block), block.data.view(np.int64)
        )

    def compile(self, ast: UOp, name: str) -> EmulatedKernel:
        return EmulatedKernel(lower_for(ast, self.machine, name), name)


def open_device(name: str) -> Emulator:
    """The emulator under a name; for the registry."""
    return Emulator(name)
