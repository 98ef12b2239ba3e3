"""Devices by name. A device is made when it is first asked for.

"PYTHON" is the interpreter. "CPU" is the compiler for the host's own processor; where that part is not
installed the interpreter runs its tensors too, so every program works everywhere.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from threading import RLock

from morok import knobs
from morok.device.base import Device
from morok.errors import DeviceError
from morok.forks import at_fork
from morok.machine.devices import found_by

# name → module with a function `open_device(name)`
_MODULES = {
    "CPU": "morok.device.cpu.device",
    "CUDA": "morok.device.cuda.device",
    "EMULATOR": "morok.device.emulator.device",
    "MESH": "morok.device.mesh.device",
    "PLAN": "morok.device.planned",
}
DEVICES = ("PYTHON", "CPU", "CUDA", "EMULATOR")  # a mesh is made of them
_devices: dict[str, Device] = {}
_lock = RLock()


def _renew_lock() -> None:
    global _lock
    _lock = RLock()


at_fork(child=_renew_lock)


canonical = knobs.canonical_device
default_device = knobs.default_device


def get_device(name: str) -> Device:
    """The device of that name, or an error that says which there are."""
    known = _devices.get(name)
    if known is not None:
        return known
    if (
        own := canonical(name)
    ) != name:  # one GPU is one device, whatever it is called: its work has one order
        return get_device(own)
    with _lock:
        if name.startswith("MESH:"):  # layouts are as many as shapes: their room keeps a few of them
            return _open(name)
        if name not in _devices:
            _devices[name] = _open(name)
        return _devices[name]


def _interpreter(name: str) -> Device:
    from morok.device.interpreter import Interpreter  # few processes need it

    return Interpreter(name)


def _open(name: str) -> Device:
    kind = name.partition(":")[0]
    if kind == "PYTHON":
        return _interpreter(name)
    module = _MODULES.get(kind)
    if kind == "CPU" and find_spec("llvmlite") is None:
        return _interpreter(name)
    if module is not None and find_spec(module) is not None:
        device: Device = import_module(module).open_device(name)
        return device
    if kind == "CPU":
        return _interpreter(name)
    raise DeviceError(f"there is no device {name!r}; there are {', '.join(DEVICES)}")


found_by(lambda name: get_device(name).machine, lambda name: get_device(name).machine_key)
