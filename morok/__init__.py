"""morok: an ML compiler. Importing it is cheap; each public name loads its room when it is first used."""

import gc
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see; at run time `__getattr__` below loads it
    from morok.tensor.sizes import Variable as Variable
    from morok.tensor.tensor import Tensor as Tensor

__version__ = "0.1.0"

# public name → the module that defines it
_EXPORTS: dict[str, str] = {
    "Tensor": "morok.tensor.tensor",
    "Variable": "morok.tensor.sizes",
    "jit": "morok.tensor.jit.jit",
    "profile": "morok.runtime.profile",
    "view": "morok.viewer.view",
    "MorokError": "morok.errors",
    **dict.fromkeys(("Config", "Beam", "Heuristic", "Plain"), "morok.optimize.strategy"),
    **dict.fromkeys(("mesh", "P"), "morok.tensor.sharding"),
    "no_grad": "morok.tensor.gradient_track",
    **dict.fromkeys(("manual_seed", "Generator"), "morok.tensor.random"),
    **dict.fromkeys(("grad", "value_and_grad", "custom_gradient", "checkpoint"), "morok.tensor.transforms"),
    **dict.fromkeys(
        ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "morok.dtype"
    ),
    **dict.fromkeys(
        ("float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "float64"), "morok.dtype"
    ),
}

# namespaces of functions, which are modules
_SPACES: dict[str, str] = {
    name: f"morok.functions.{name}" for name in ("fft", "linalg", "random", "signal", "special")
} | {"nn": "morok.nn", "distributed": "morok.nn.distributed"}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    if name in _SPACES:
        return import_module(_SPACES[name])
    if name not in _EXPORTS:
        raise AttributeError(f"module 'morok' has no attribute {name!r}")
    collecting = gc.isenabled()
    gc.disable()  # modules stay: the collector would go through them again and again, a tenth of the time
    try:
        value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
    finally:
        if collecting:
            if not gc.get_freeze_count():
                gc.freeze()  # and they count as old: it need not go through them once to find out
                gc.unfreeze()
            gc.enable()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_SPACES})
