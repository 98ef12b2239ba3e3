"""`morok devices`: what there is to run on, and why the rest is not there."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from morok.machine.machine import Machine

NAME = "devices"
HELP = "the devices of this machine"


def add_arguments(parser: ArgumentParser) -> None:
    """None."""


def rows() -> list[tuple[str, str]]:
    """Name and description of every device, or what is missing."""
    from morok.device.registry import default_device, get_device
    from morok.errors import MorokError

    found = [("CPU", _cpu()), ("PYTHON", "the interpreter, slow and exact")]
    try:
        from morok.device.cuda.driver import device_count

        names = ["CUDA", *(f"CUDA:{i}" for i in range(1, device_count()))]
    except MorokError as error:
        names = []
        found.append(("CUDA", f"not here: {error.message}"))
    for name in names:  # each for itself: one that somebody has taken, or that is broken, hides no other
        try:
            found.append((name, _cuda(get_device(name))))
        except MorokError as error:
            found.append((name, f"cannot be used: {error.message}"))
    emulated = "a GPU in NumPy: slow, finds races and accesses out of bounds"
    try:
        found.append(("EMULATOR", f"{emulated}; {_facts(get_device('EMULATOR').machine)}"))
    except MorokError as error:
        found.append(("EMULATOR", f"cannot be used: {error.message}"))
    return [(f"{name} *" if name == default_device() else name, text) for name, text in found]


def _cpu() -> str:
    from morok.device.cpu.device import CPU
    from morok.device.cpu.threads import thread_count
    from morok.errors import MorokError

    threads = thread_count()
    count = f"{threads} thread{'s' if threads != 1 else ''}"
    try:
        device = CPU()
        return f"{device.processor.cpu}, {count}; {_facts(device.machine)}"
    except (ImportError, MorokError) as error:
        return f"not here: {error}"


def _cuda(device: object) -> str:
    from morok.device.buffer import show_bytes
    from morok.device.cuda.device import Cuda

    assert isinstance(device, Cuda)
    facts = device.driver.facts
    free, total = device.driver.room()
    version = f"CUDA {facts.driver // 1000}.{facts.driver % 1000 // 10}"
    memory = f"{show_bytes(free)} of {show_bytes(total)} free"
    about = (
        f"{facts.name}, {facts.arch}, {facts.multiprocessors} multiprocessors, {memory}, driver for {version}"
    )
    return f"{about}; {_facts(device.machine)}"


def _facts(machine: Machine) -> str:
    """What the compiler knows of it, in a line."""
    from morok.device.buffer import show_bytes

    units = sorted({unit.name.removesuffix(".register_a") for unit in machine.matrix_units})
    found = [
        f"machine {machine.name}",
        f"vectors of {machine.vector_bytes} bytes",
        f"{machine.registers} registers",
        f"caches of {show_bytes(machine.l1_bytes)} and {show_bytes(machine.l2_bytes)}",
        f"units {' '.join(units)}" if units else "",
    ]
    return ", ".join(filter(None, found))


def run(args: Namespace) -> int:
    """Prints a line per device; the star marks where new tensors live."""
    found = rows()
    width = max(len(name) for name, _ in found)
    for name, text in found:
        print(f"{name:<{width}}  {text}")
    from morok.machine.files import names

    print(f"\nMACHINE=NAME plans kernels for another one: {', '.join(names())}, or a .toml file.")
    print("* is where new tensors live; DEVICE=NAME in the environment chooses another.")
    return 0
