"""The CPU: kernels become machine code of the host and run on its cores.

A kernel's graph goes through the stages of codegen to LLVM IR and object code. What is finished is looked up
by the content of the graph before anything is lowered, so a second process neither rewrites nor compiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from struct import Struct
from typing import TYPE_CHECKING, final

from morok import knobs
from morok.device.background import Future
from morok.device.base import Device
from morok.device.base import Program as Runnable
from morok.device.buffer import HostAllocator
from morok.device.compiled import Compiled, unpack
from morok.device.cpu.kernel import Kernel, Steps
from morok.device.cpu.llvm import assemble, binding, compile_assembly, compile_object, host
from morok.device.cpu.threads import available_cores, thread_count, thread_pool
from morok.device.processes import can_fork, shared_out
from morok.device.prove import proof_key, stored_verdict
from morok.device.store import disk_store, kernel_store
from morok.device.version import compiler_version, is_settled
from morok.ir.checks import count_buffers
from morok.ir.digest import blake2b, hexdigest
from morok.ir.memory import written_in
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.choose import cpu_machine, machine_files, named, named_processor
from morok.machine.machine import Machine
from morok.machine.processor import Processor, cache_bytes
from morok.rewrite.keep import drop_nodes, keep_nodes
from morok.rewrite.observe import current

if TYPE_CHECKING:
    from morok.device.tuning.tunable import Turns
    from morok.optimize.search.race import Stopwatch
    from morok.render.program import Program

Optimiser = Callable[[UOp, Machine], UOp]
_SIZE = Struct("<q")  # of a kernel as bytes
_LOOKED_AT = 16  # groups of kernels of about the same size
_FEW = 3  # kernels that are not worth another process


def kernel_key(ast: UOp, machine: str) -> str:
    """Everything that decides about the machine code of a kernel. `machine` is the key of the machine."""
    options = ";".join(f"{name}={value}" for name, value in knobs.cache_key())
    return f"{compiler_version()}|{hexdigest(ast)}|{machine}|{options}{proof_key()}"


def program_of(ast: UOp, machine: Machine, optimise: Optimiser | None = None, title: str = "") -> Program:
    """A kernel as LLVM IR; with codes of its own for values of a variable that are worth them."""
    # Loaded here, because a process that finds its kernels on disk never needs them.
    import morok.codegen.written_scans  # noqa: F401 - enters its writer
    from morok.codegen.written import instructions_of
    from morok.device.lowering import instructions
    from morok.optimize.heuristics.specialize import special_values, with_values
    from morok.render.llvm.choice import chosen
    from morok.render.llvm.kernel import render

    name, count = f"k{hexdigest(ast)[:16]}", count_buffers(ast)
    written = written_in(ast)
    if written is not None:
        return render(instructions_of(written, machine), name, count, False, machine.fma, machine.arch)
    optimises = optimise is not None and not knobs.NOOPT.value
    variable, few = special_values(ast, machine) if optimises else (None, [])
    passed = sorted({str(n.arg[0]) for n in toposort(ast) if n.op is Ops.DEFINE_VAR}) if few else None

    def rendered(kernel: UOp, called: str, shown: str) -> Program:
        kernel = optimise(kernel, machine) if optimise is not None and optimises else kernel
        linear = instructions(kernel, machine, shown)
        fma, arch, cores = machine.fma, machine.arch, machine.cores
        return render(linear, called, count, machine.fma_in_place, fma, arch, passed, cores, machine.ranges)

    if variable is None or not few:
        return rendered(ast, name, title)
    known = str(variable.arg[0])
    cases = {}
    for first, last in few:
        shown = f"{title}, {known} = {first}" + (f" to {last}" if last > first else "")
        cases[first, last] = rendered(with_values(ast, variable, (first, last)), f"{name}.{first}", shown)
    return chosen(name, rendered(ast, f"{name}.any", title), known, cases)


def lower_kernel(
    ast: UOp, processor: Processor, machine: Machine, optimise: Optimiser | None = None, title: str = ""
) -> tuple[Compiled, Callable[[], bytes]]:
    """Lowers and renders: what is known of the kernel without its code, and what makes that."""
    program, facts, shown = lower_program(ast, processor, machine, optimise, title)
    return facts, partial(compile_object, program.text, processor) if shown is None else shown.code


def lower_program(
    ast: UOp, processor: Processor, machine: Machine, optimise: Optimiser | None = None, title: str = ""
) -> tuple[Program, Compiled, Shown | None]:
    """A kernel as LLVM IR, what is known of it without its code, and what somebody who looks on has seen."""
    from morok.device.lowering import show_code, show_program

    program = program_of(ast, machine, optimise, title)
    shown = Shown(program.text, processor)
    is_shown = show_program(program, shown.assembly)
    show_code(title or program.name, "LLVM IR", lambda: program.text)
    show_code(title or program.name, "assembly", lambda: compile_assembly(program.text, processor))
    facts = Compiled(program.name, b"", program.buffers, program.variables, program.scratch, program.threaded)
    return program, facts, shown if is_shown else None


@final
class Shown:
    """The code of a kernel that somebody looks at. LLVM chooses its instructions once: what is shown runs."""

    def __init__(self, text: str, processor: Processor) -> None:
        self.text, self.processor = text, processor
        self._assembly = ""

    def assembly(self) -> str:
        """With the lines of the text that instructions come from."""
        from morok.render.locations import with_locations

        if not self._assembly:
            self._assembly = compile_assembly(with_locations(self.text), self.processor)
        return self._assembly

    def code(self) -> bytes:
        """Object code."""
        from morok.render.locations import without_locations

        return assemble(without_locations(self.assembly()), self.processor)


def compile_kernel(
    ast: UOp, processor: Processor, machine: Machine, optimise: Optimiser | None = None, title: str = ""
) -> Compiled:
    """Lowers, renders and compiles."""
    facts, code = lower_kernel(ast, processor, machine, optimise, title)
    return replace(facts, code=code())


@final
class CPU(Device):
    """The host's own processor. `optimise`, where it is given, transforms kernels before they are lowered."""

    def __init__(self, name: str = "CPU", optimise: Optimiser | None = None) -> None:
        self.name = name
        self.allocator = HostAllocator(name)
        self.optimise = optimise

    @property
    def machine(self) -> Machine:
        """This processor and its file; or the one that MACHINE names."""
        other = named("cpu")
        return cpu_machine(host(), thread_count()) if other is None else replace(other, cores=thread_count())

    @property
    def machine_key(self) -> str:
        """The machine's key: a process that finds its kernels needs to know nothing else of it."""
        return self.machine.key if named("cpu") is not None else cpu_machine_key(host(), thread_count())

    @property
    def processor(self) -> Processor:
        """What LLVM makes code for."""
        return named_processor() or host()

    def compile(self, ast: UOp, name: str) -> Kernel:
        """The kernel: from the disk, or lowered and compiled now."""
        processor = self.processor
        if not runs_here(processor):
            return self._elsewhere(ast, name)
        store = kernel_store()
        key = kernel_key(ast, self.machine_key)
        found = None if store is None else store.get(key)
        if found is not None:
            stored_verdict()
            return Kernel(found, name, from_disk=True)
        machine = self.machine
        key = kernel_key(ast, machine.key)  # a file of it may have been written meanwhile
        facts, make = lower_kernel(ast, processor, machine, self.optimise, name)

        def code() -> bytes:
            made = make()
            if store is not None:
                store.put(key, replace(facts, code=made))
            return made

        return Kernel(facts, name, Future(code))

    def compile_all(self, kernels: Sequence[tuple[UOp, str]]) -> dict[UOp, Kernel]:
        """Kernels that are not on disk, on all cores; none if there are few of them."""
        processor = self.processor
        asked = knobs.COMPILE_PROCESSES.value or available_cores()
        if asked < 2 or len(kernels) < _FEW or not can_fork() or not runs_here(processor) or _is_watched():
            return {}
        store = kernel_store()
        key = self.machine_key
        keys = {ast: kernel_key(ast, key) for ast, _ in kernels}
        missing = [(ast, name) for ast, name in kernels if store is None or not store.has(keys[ast])]
        if len(missing) < _FEW:
            return {}
        machine = self.machine
        if machine.key != key:
            return {}
        load_compiler()  # once, instead of in each of them
        pieces = alike(missing, -(-len(missing) // asked))

        def made(number: int) -> bytes:
            done = [
                compile_kernel(ast, processor, machine, self.optimise, name).pack()
                for ast, name in pieces[number]
            ]
            return b"".join([_SIZE.pack(len(packed)) + packed for packed in done])

        keep_nodes()
        try:
            shared = shared_out(len(pieces), made, asked, drop_nodes)
        finally:
            drop_nodes()
        found: dict[UOp, Kernel] = {}
        for number, packed in shared.items():
            start = 0
            for ast, name in pieces[number]:
                (size,) = _SIZE.unpack_from(packed, start)
                start += _SIZE.size + size
                compiled = unpack(packed[start - size : start])
                found[ast] = Kernel(compiled, name)
                if store is not None:
                    store.put(keys[ast], compiled)
        return found

    def _elsewhere(self, ast: UOp, name: str) -> Kernel:
        """A kernel for another machine is shown as that one would run it. What runs is the same text, so its
        plan is judged here too; only LLVM's instructions are this machine's."""
        from morok.render.llvm.dot import portable
        from morok.render.llvm.extremes import portable_extremes
        from morok.render.llvm.tiles import portable_tiles

        program, facts, _ = lower_program(ast, self.processor, self.machine, self.optimise, name)
        text = portable_extremes(portable(portable_tiles(program.text)))
        return Kernel(facts, name, Future(partial(compile_object, text, host())))

    def prepare(self, program: Runnable) -> None:
        if isinstance(program, Kernel):
            program.load()
            thread_pool()

    # --- for a search among candidates

    def tuning_key(self) -> str:
        """Everything besides the kernel that decides which candidate is the fastest."""
        options = ";".join(f"{name}={value}" for name, value in knobs.cache_key() if name != "BEAM")
        return f"{compiler_version()}|{self.machine.key}|{options}"

    def build(self, ast: UOp, title: str) -> bytes:
        """A kernel that is optimised already, as bytes."""
        return compile_kernel(ast, self.processor, self.machine, None, title).pack()

    def load(self, code: bytes, title: str) -> Kernel:
        """What `build` has made."""
        return Kernel(unpack(code), title)

    def cache_bytes(self) -> int:
        """The size of the largest cache."""
        return cache_bytes(3, cache_bytes(2, 512 << 10))

    def contention_monitor(self) -> Callable[[], bool]:
        """Whether other processes have taken cores."""
        from morok.device.tuning import contention  # only searches ask

        return contention.monitor(self.machine.cores)

    def stopwatch(self, program: Runnable, turns: Turns, values: Mapping[str, int]) -> Stopwatch:
        """Runs the kernel without looking anything up in between."""
        assert isinstance(program, Kernel)
        steps = [Steps([(program, program.arguments(buffers, values))]) for buffers in turns]
        following = cycle(
            [(step.run or step, step) for step in steps]
        )  # the short way does not hold its step

        def seconds(count: int) -> float:
            chosen = list(islice(following, count))
            started = time.perf_counter()
            for run, _ in chosen:
                run()
            return time.perf_counter() - started

        return seconds


def alike(kernels: Sequence[tuple[UOp, str]], most: int) -> list[list[tuple[UOp, str]]]:
    """Kernels in groups that are nearly the same, up to so many in one: who has lowered one of them has most
    of the others. The largest groups come first, so that nobody waits for a long one at the end.
    """
    groups: list[list[tuple[UOp, str]]] = []
    nodes: list[frozenset[UOp]] = []  # of the first of each
    work: list[int] = []
    for kernel in sorted(kernels, key=lambda kernel: -len(toposort(kernel[0]))):
        own = frozenset(toposort(kernel[0]))
        number = next(
            (
                i
                for i in range(max(0, len(groups) - _LOOKED_AT), len(groups))
                if len(groups[i]) < most and len(own & nodes[i]) * 8 >= len(nodes[i]) * 7
            ),
            len(groups),
        )
        if number == len(groups):
            groups.append([])
            nodes.append(own)
            work.append(0)
        groups[number].append(kernel)
        work[number] += len(own)
    return [groups[i] for i in sorted(range(len(groups)), key=lambda i: -work[i])]


@cache
def cpu_machine_key(processor: Processor, cores: int) -> str:
    """`cpu_machine(…).key`: kept beside all that it can depend on, or found by making the machine."""
    store = disk_store()
    files, last = machine_files(processor)
    said = f"{compiler_version()} {processor.triple} {processor.cpu} {processor.features} {cores} {files}"
    known = f"machine|{blake2b(said.encode(), digest_size=16).hexdigest()}"
    found = None if store is None else store.get_version(known)
    if found is None:
        found = cpu_machine(processor, cores).key
        if store is not None and is_settled(last):
            store.put_version(known, found)
    return found


def _is_watched() -> bool:
    """Whether somebody wants to hear or see how kernels are made, which happens in this process alone."""
    return current() is not None or bool(knobs.PROVE.value or knobs.DEBUG.value or knobs.EXPLAIN.value)


def load_compiler() -> None:
    """Loads what a process needs that compiles kernels."""
    import morok.device.lowering
    import morok.optimize.heuristics.apply
    import morok.render.llvm.kernel  # noqa: F401

    binding()


def runs_here(processor: Processor) -> bool:
    """Whether code for a processor runs on this one."""
    here = host()
    return processor is here or (processor.arch == here.arch and processor.flags <= here.flags)


def optimise(ast: UOp, machine: Machine) -> UOp:
    """Stage 7 for the host's processor."""
    from morok.optimize.heuristics.apply import (
        optimize,  # a process that finds its kernels on disk never needs it
    )

    return optimize(ast, machine)


def open_device(name: str) -> CPU:
    """The CPU under a name, with the optimiser; for the registry."""
    return CPU(name, optimise)
