"""The types of elements as NumPy holds them, where two of them meet, and what rounding to one may cost.

Where types meet is written down here from the documentation, not taken from morok: as NumPy 2, and for the
floats that NumPy does not know the smallest float that holds all values of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

Array = Any

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
TINY = ("float8_e4m3", "float8_e5m2")
FLOATS = ("float16", "bfloat16", "float32", "float64")
ALL = ("bool", *INTS, *FLOATS, *TINY)

NUMPY: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("bool", *INTS, "float16", "float32", "float64")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
NAMES = {dtype: name for name, dtype in NUMPY.items()}


def is_float(name: str) -> bool:
    return name in FLOATS or name in TINY


def is_int(name: str) -> bool:
    return name in INTS


@dataclass(frozen=True)
class Format:
    """What rounding to a float type means: the distance of 1 from the next number, and the ends."""

    eps: float
    step: float  # between subnormal numbers
    largest: float


def _format(name: str) -> Format:
    limits = ml_dtypes.finfo(NUMPY[name])
    return Format(float(limits.eps), float(limits.smallest_subnormal), float(limits.max))


FORMATS = {name: _format(name) for name in (*FLOATS, *TINY)}

_RANK = {"float8_e4m3": 0, "float8_e5m2": 0, "float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


def meet(a: str, b: str) -> str:
    """The type that arrays of two types meet in."""
    if a == b:
        return a
    if "bool" in (a, b):
        return b if a == "bool" else a
    if is_float(a) and is_float(b):
        if _RANK[a] == _RANK[b]:
            return "float16" if _RANK[a] == 0 else "float32"
        return a if _RANK[a] > _RANK[b] else b
    if is_float(a) or is_float(b):
        number, whole = (a, b) if is_float(a) else (b, a)
        bits = NUMPY[whole].itemsize * 8
        return meet(number, number if bits == 8 else "float32" if bits == 16 else "float64")
    return NAMES[np.promote_types(NUMPY[a], NUMPY[b])]


def common(types: Sequence[str]) -> str:
    """The type that arrays of several types meet in: NumPy's, which does not depend on their order. Where it
    does not know one of them, floats meet every type first, as NumPy's do."""
    if not {"bfloat16", *TINY} & {*types}:
        return NAMES[np.result_type(*(NUMPY[t] for t in types))]
    return reduce(meet, [meet(f, t) for f in types if is_float(f) for t in types] or types)


def meet_number(a: str, number: bool | int | float) -> str:
    """The type that an array and a Python number meet in: the array's, unless it has no such numbers."""
    if isinstance(number, bool) or is_float(a):
        return a
    if isinstance(number, float):
        return "float32"
    return "int64" if a == "bool" else a


def float_of(name: str) -> str:
    """The type of exp and its kind: floats keep theirs, the rest become float32."""
    return name if is_float(name) else "float32"


def round_to(name: str, x: Array) -> Array:
    """Doubles rounded to a float type, as doubles."""
    if name == "float64":
        return x
    with np.errstate(all="ignore"):
        return x.astype(NUMPY[name]).astype(np.float64)


# How a type is written where NumPy is asked for it.
_FOREIGN = (*TINY, "bfloat16")
TYPE_TEXT = {
    name: f"{'ml_dtypes' if name in _FOREIGN else 'np'}.{dtype.name}" for name, dtype in NUMPY.items()
}
