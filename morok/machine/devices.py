"""The machine behind a device's name, for rooms that know no devices: those above say what they are.

Where nobody has said it, or the device is not there, a name stands for the machine that it is made for, so a
graph on a GPU can be scheduled without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from morok import knobs
from morok.errors import MorokError
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.files import load
from morok.machine.machine import Machine

_MADE_FOR = {"CPU": "generic", "CUDA": "sm_90", "EMULATOR": "emulator"}  # anything else: the interpreter
_finders: list[tuple[Callable[[str], Machine], Callable[[str], str]]] = []


def found_by(finder: Callable[[str], Machine], keys: Callable[[str], str] | None = None) -> None:
    """From now on a function is asked first, which may raise a MorokError where there is no such device.

    `keys` finds the keys of machines, where that is quicker.
    """
    _finders[:] = [(finder, keys or (lambda name: finder(name).key))]


def machine_of(device: str) -> Machine:
    """What runs the kernels of a device."""
    for finder, _ in _finders:
        try:
            return finder(device)
        except MorokError:
            pass
    return load(_MADE_FOR.get(device.partition(":")[0], "interpreter"))


def machine_key(device: str) -> str:
    """The key of what runs the kernels of a device."""
    for _, keys in _finders:
        try:
            return keys(device)
        except MorokError:
            pass
    return machine_of(device).key


def main_machine(order: Iterable[UOp]) -> Machine:
    """What runs most of a graph: the device of its memory, rather one that is not the host's processor."""
    found = dict.fromkeys(str(node.arg[2]) for node in order if node.op is Ops.PARAM)
    other = next((name for name in found if name != "CPU"), None)
    return machine_of(other or next(iter(found), knobs.default_device()))
