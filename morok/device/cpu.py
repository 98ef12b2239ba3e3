"""The CPU: kernels become machine code of the host and run on its cores.

A kernel's graph goes through the stages of codegen to LLVM IR and object code. What is finished is looked up
by the content of the graph before anything is lowered: first in this process, then (if a store was given) on
disk.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from morok import knobs
from morok.codegen.pipeline import lower
from morok.codegen.target import Target
from morok.device.base import Device
from morok.device.buffer import Buffer, HostAllocator
from morok.device.cpu_pool import pool, scratch
from morok.device.llvm import Code, Machine, compile_object, host, target_for
from morok.errors import DeviceError, VariableError
from morok.ir.digest import hexdigest
from morok.ir.node import UOp
from morok.render.llvm import render
from morok.render.program import Program

FORMAT = 1  # of compiled kernels: raise it when generated code changes its meaning or its calling convention


@final
@dataclass(frozen=True)
class Compiled:
    """A kernel as object code, and what is needed to call it. Made of plain values, so it can be stored."""

    name: str  # of the entry function
    code: bytes
    sizes: tuple[int, ...]  # elements of each buffer, by number
    itemsizes: tuple[int, ...]
    variables: tuple[str, ...]
    scratch: int
    threaded: bool


class Store(Protocol):
    """Keeps compiled kernels between processes."""

    def get(self, key: str) -> Compiled | None: ...

    def put(self, key: str, compiled: Compiled) -> None: ...


def kernel_key(ast: UOp, target: Target) -> str:
    """What decides about the machine code of a kernel."""
    options = ";".join(f"{name}={value}" for name, value in knobs.cache_key())
    return f"{FORMAT}:{hexdigest(ast)}:{target.key}:{options}"


def compile_kernel(
    ast: UOp, machine: Machine, target: Target, optimise: Callable[[UOp], UOp] | None
) -> Compiled:
    """Lowers, renders and compiles."""
    name = f"k{hexdigest(ast)[:16]}"
    program = render(lower(ast if optimise is None else optimise(ast), target), name)
    return pack(program, compile_object(program.text, machine))


def pack(program: Program, code: bytes) -> Compiled:
    return Compiled(
        program.name,
        code,
        tuple(a.size for a in program.arguments),
        tuple(a.dtype.itemsize for a in program.arguments),
        program.variables,
        program.scratch,
        program.threaded,
    )


@final
class Kernel:
    """A kernel in memory, ready to be called."""

    __slots__ = ("_code", "_names", "compiled", "extent", "function", "name")

    def __init__(self, compiled: Compiled, name: str) -> None:
        self.compiled = compiled
        self.name = name
        symbols = (compiled.name, f"{compiled.name}.extent")
        self._code = Code(compiled.code, symbols)
        self.function = self._code.addresses[symbols[0]]
        self.extent = self._code.addresses[symbols[1]] if compiled.threaded else 0
        self._names = compiled.variables

    def arguments(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> Any:
        """The table of addresses and variables that the kernel reads its arguments from."""
        table: list[int] = []
        if len(buffers) < len(self.compiled.sizes):
            raise DeviceError(f"{self.name} takes {len(self.compiled.sizes)} buffers, got {len(buffers)}")
        for buffer in buffers:
            table.append(address_of(buffer))
        for variable in self._names:
            if variable not in values:
                raise VariableError(f"{self.name} needs a value for the variable {variable}")
            table.append(values[variable])
        return (ctypes.c_int64 * len(table))(*table)

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        run_steps([(self, self.arguments(buffers, values))])


def address_of(buffer: Buffer) -> int:
    """Where a buffer's first element lies."""
    memory = buffer.memory
    address: int = memory.ctypes.data
    return address + buffer.offset


def run_steps(steps: Sequence[tuple[Kernel, Any]]) -> None:
    """Kernels with their arguments, one after the other, in one native call."""
    Steps(steps)()


@final
class Steps:
    """A list of kernels with their arguments, laid out for the native runner. Calling it runs them all."""

    __slots__ = ("_bytes", "_count", "_held", "_run", "_table")

    def __init__(self, steps: Sequence[tuple[Kernel, Any]]) -> None:
        flat: list[int] = []
        for kernel, arguments in steps:
            flat += (kernel.function, kernel.extent, ctypes.addressof(arguments))
        self._table = (ctypes.c_int64 * len(flat))(*flat)
        self._count = len(steps)
        self._held = tuple(steps)
        self._bytes = max((kernel.compiled.scratch for kernel, _ in steps), default=0)
        self._run = pool().run

    def __call__(self) -> None:
        self._run(pool().ready(), self._table, self._count, scratch.get(self._bytes), self._bytes)


@final
class CPU(Device):
    """The host's own processor."""

    def __init__(self, name: str = "CPU") -> None:
        self.name = name
        self.allocator = HostAllocator(name)
        self.store: Store | None = None
        self.optimise: Callable[[UOp], UOp] | None = None
        self._lock = threading.Lock()

    @property
    def machine(self) -> Machine:
        return host()

    @property
    def target(self) -> Target:
        return target_for(host())

    def compile(self, ast: UOp, name: str) -> Kernel:
        """The kernel: from the store, or lowered and compiled now."""
        key = kernel_key(ast, self.target)
        store = self.store
        if store is not None:
            found = store.get(key)
            if found is not None:
                return Kernel(found, name)
        compiled = compile_kernel(ast, self.machine, self.target, self.optimise)
        if store is not None:
            store.put(key, compiled)
        return Kernel(compiled, name)


def open_device(name: str) -> CPU:
    """The CPU under a name; for the registry."""
    return CPU(name)
