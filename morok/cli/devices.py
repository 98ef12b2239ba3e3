"""`morok devices`: what there is to run on, and why the rest is not there."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

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
        from morok.device.cuda_driver import device_count

        names = ["CUDA", *(f"CUDA:{i}" for i in range(1, device_count()))]
    except MorokError as error:
        names = []
        found.append(("CUDA", f"not here: {error.message}"))
    for name in names:  # each for itself: one that somebody has taken, or that is broken, hides no other
        try:
            found.append((name, _cuda(get_device(name))))
        except MorokError as error:
            found.append((name, f"cannot be used: {error.message}"))
    found.append(("EMULATOR", "a GPU in NumPy: slow, finds races and accesses out of bounds"))
    return [(f"{name} *" if name == default_device() else name, text) for name, text in found]


def _cpu() -> str:
    from morok.device.cpu_pool import thread_count
    from morok.device.llvm import host
    from morok.errors import MorokError

    threads = thread_count()
    count = f"{threads} thread{'s' if threads != 1 else ''}"
    try:
        return f"{host().cpu}, {count}"
    except (ImportError, MorokError) as error:
        return f"not here: {error}"


def _cuda(device: object) -> str:
    from morok.device.buffer import show_bytes
    from morok.device.cuda import Cuda

    assert isinstance(device, Cuda)
    facts = device.driver.facts
    free, total = device.driver.room()
    version = f"CUDA {facts.driver // 1000}.{facts.driver % 1000 // 10}"
    memory = f"{show_bytes(free)} of {show_bytes(total)} free"
    return (
        f"{facts.name}, {facts.arch}, {facts.multiprocessors} multiprocessors, {memory}, driver for {version}"
    )


def run(args: Namespace) -> int:
    """Prints a line per device; the star marks where new tensors live."""
    found = rows()
    width = max(len(name) for name, _ in found)
    for name, text in found:
        print(f"{name:<{width}}  {text}")
    print("\n* is where new tensors live; DEVICE=NAME in the environment chooses another.")
    return 0
