"""Kernels that were written instruction by instruction, compiled for this processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from morok import knobs
from morok.codegen.written import Code
from morok.device.compiled import Compiled
from morok.device.cpu.kernel import Kernel
from morok.device.cpu.llvm import compile_object, host
from morok.device.cpu.threads import thread_count
from morok.device.store import kernel_store
from morok.device.version import compiler_version
from morok.ir.digest import hexdigest
from morok.machine.choose import cpu_machine
from morok.machine.machine import Machine
from morok.render.llvm.kernel import render


def here() -> Machine:
    """The processor that such kernels run on."""
    return cpu_machine(host(), thread_count())


def compile_written(write: Callable[[Code, Machine], None], name: str) -> Kernel:
    """The kernel that a function writes: from the disk, or compiled now."""
    from morok.device.lowering import show_code

    machine = here()
    code = Code(machine.fma)
    write(code, machine)
    linear = code.linear()
    digest = hexdigest(linear)
    key = f"{compiler_version()}|written|{digest}|{machine.key}"
    store = kernel_store()
    found = None if store is None else store.get(key)
    if found is not None and not knobs.DEBUG.value:
        return Kernel(found, name, from_disk=True)
    program = render(linear, f"w{digest[:16]}", code.buffers, False, machine.fma, machine.arch)
    show_code(name, "LLVM IR", lambda: program.text)
    facts = Compiled(program.name, b"", program.buffers, program.variables, program.scratch, program.threaded)
    made = replace(facts, code=compile_object(program.text, host()))
    if store is not None:
        store.put(key, made)
    return Kernel(made, name)
