"""CUDA: kernels become CUDA C, machine code of the very GPU, and launches on its stream.

"CUDA" is the first GPU, "CUDA:1" the second. What is finished is looked up by the content of the graph before
anything is lowered. Launches and copies to the GPU return at once; whoever reads a value waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, final

from morok import knobs
from morok.device.background import Future
from morok.device.base import Device
from morok.device.base import Program as Runnable
from morok.device.compiled import Compiled, unpack
from morok.device.cuda.clock import GraphStopwatch
from morok.device.cuda.compile import compile_cubin, compile_ptx
from morok.device.cuda.driver import open_driver
from morok.device.cuda.head_start import HeadStart
from morok.device.cuda.interface import Driver
from morok.device.cuda.kernel import CudaKernel
from morok.device.cuda.memory import CudaAllocator
from morok.device.error_flags import ErrorFlags, PinnedWords
from morok.device.prove import proof_key, stored_verdict
from morok.device.store import kernel_store
from morok.device.tuning.tunable import Turns
from morok.device.version import compiler_version
from morok.errors import DeviceError
from morok.ir.checks import count_buffers
from morok.ir.digest import hexdigest
from morok.ir.node import UOp
from morok.machine.choose import named
from morok.machine.machine import Machine
from morok.optimize.search.race import Stopwatch

if TYPE_CHECKING:
    from morok.render.program import Program


def program_of(ast: UOp, machine: Machine, title: str = "") -> Program:
    """A kernel as CUDA C."""
    # Loaded here, because a process that finds its kernels on disk never needs them.
    from morok.device.lowering import instructions, show_code
    from morok.optimize.heuristics.apply import optimize
    from morok.render.cuda.kernel import render

    count = count_buffers(ast)
    linear = instructions(optimize(ast, machine), machine, title)
    program = render(linear, f"k{hexdigest(ast)[:16]}", count, machine.cores)
    show_code(title or program.name, "CUDA C", lambda: program.text)
    return program


def facts_of(program: Program) -> Compiled:
    """What is known of a kernel without its code."""
    return Compiled(
        program.name,
        b"",
        program.buffers,
        program.variables,
        grid=program.grid,
        block=program.block,
        shared=program.shared,
        tensor_maps=program.tensor_maps,
    )


Compiler = Callable[[str, str, str], bytes]


@final
class Cuda(Device):
    """One GPU."""

    on_host = False
    waits = False

    def __init__(self, name: str, driver: Driver, compiler: Compiler = compile_cubin) -> None:
        self.name = name
        self.driver = driver
        self.allocator: CudaAllocator = CudaAllocator(name, driver)
        self._compiler = compiler
        self._words = PinnedWords(driver.pinned)
        self._looks: dict[int, tuple[ErrorFlags, Callable[[], None]]] = {}
        self.allocator.waited = self._look
        self._head_start: HeadStart | None = None  # made for the first kernel that is timed

    @property
    def machine(self) -> Machine:
        """What the driver says of the GPU, and what is known of its kind; or what MACHINE says of it."""
        own = self.driver.facts.machine()
        other = named("gpu")
        if other is not None and other.arch != own.arch:
            raise DeviceError(
                f"MACHINE={knobs.MACHINE.value} is {other.arch}, and {self.name} is {own.arch}; "
                "DEVICE=EMULATOR plans kernels for any GPU"
            )
        return other or own

    def kernel_key(self, ast: UOp) -> str:
        """Everything that decides about the machine code of a kernel."""
        options = ";".join(f"{name}={value}" for name, value in knobs.cache_key())
        return f"{compiler_version()}|{hexdigest(ast)}|{self.machine.key}|{options}{proof_key()}"

    def compile(self, ast: UOp, name: str) -> CudaKernel:
        """The kernel: from the disk, or lowered and compiled now."""
        store = kernel_store()
        key = self.kernel_key(ast)
        found = None if store is None else store.get(key)
        if found is not None:
            stored_verdict()
            return CudaKernel(found, name, self.driver)
        from morok.device.lowering import show_program

        program = program_of(ast, self.machine, name)
        facts, text, arch, compiler = facts_of(program), program.text, self.driver.facts.arch, self._compiler

        def code() -> bytes:
            made = compiler(text, arch, name)
            if store is not None:
                store.put(key, replace(facts, code=made))
            return made

        later = Future(code)
        show_program(program, lambda: compile_ptx(program.text, arch, name), later.get)
        return CudaKernel(facts, name, self.driver, later)

    def prepare(self, program: Runnable) -> None:
        if isinstance(program, CudaKernel):
            program.load()

    def synchronize(self) -> None:
        self.driver.synchronize()
        self._look()

    def error_flags(self, count: int) -> ErrorFlags:
        return self._words.take(self.name, count, self.allocator)

    def check_later(self, flags: ErrorFlags, look: Callable[[], None]) -> None:
        """After the next wait: whoever reads a value hears of what went wrong on the way to it."""
        self._looks[id(flags)] = flags, look

    def _look(self) -> None:
        while self._looks:
            _, (_, look) = self._looks.popitem()
            look()

    def measure(self, work: Callable[[], None]) -> float:
        first, last = self.driver.event(timing=True), self.driver.event(timing=True)
        self.driver.record(first)
        work()
        self.driver.record(last)
        return self.driver.seconds(first, last)

    def measure_kernel(self, program: Runnable | None, work: Callable[[], None]) -> float:
        if program is None:
            return self.measure(work)
        if self._head_start is None:
            self._head_start = HeadStart(self.driver, self.compile_text)
        return self._head_start.measure(program, work)

    def compile_text(self, text: str, title: str) -> bytes:
        """CUDA C as machine code of this GPU."""
        return self._compiler(text, self.driver.facts.arch, title)

    # --- for a search among candidates

    def tuning_key(self) -> str:
        """Everything besides the kernel that decides which candidate is the fastest."""
        options = ";".join(f"{name}={value}" for name, value in knobs.cache_key() if name != "BEAM")
        return f"{compiler_version()}|{self.machine.key}|{options}"

    def build(self, ast: UOp, title: str) -> bytes:
        """A kernel that is optimised already, as bytes."""
        with knobs.override(NOOPT=True):
            program = program_of(ast, self.machine, title)
        code = self._compiler(program.text, self.driver.facts.arch, title)
        return replace(facts_of(program), code=code).pack()

    def load(self, code: bytes, title: str) -> CudaKernel:
        """What `build` has made."""
        return CudaKernel(unpack(code), title, self.driver)

    def cache_bytes(self) -> int:
        """The size of the largest cache."""
        return self.driver.facts.l2_bytes

    def contention_monitor(self) -> Callable[[], bool]:
        """Nobody tells what others do with a GPU."""
        return lambda: False

    def stopwatch(self, program: Runnable, turns: Turns, values: Mapping[str, int]) -> Stopwatch:
        """Launches in a graph, timed by the GPU."""
        assert isinstance(program, CudaKernel)
        return GraphStopwatch(self.driver, self.measure, program, turns, values)


@cache
def _number(name: str) -> int:
    text = name.partition(":")[2]
    if text and not text.isdecimal():
        raise DeviceError(f"there is no device {name!r}; GPUs are CUDA, CUDA:1, CUDA:2, …")
    return int(text or 0)


def open_device(name: str) -> Cuda:
    """The GPU under a name; for the registry."""
    return Cuda(name, open_driver(_number(name), name))
