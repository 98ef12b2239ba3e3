"""What the tables of operations are tried on: edge values of every type, and the comparison with NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = Any

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
FLOATS = ("float16", "bfloat16", "float32", "float64")
TINY = ("float8_e4m3", "float8_e5m2")
ALL = BOOL + INTS + FLOATS

_KINDS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(_KINDS.get(name, name))


def is_float(name: str) -> bool:
    return name in FLOATS or name in TINY


def edges(name: str) -> Array:
    """The values that go wrong first."""
    kind = numpy_type(name)
    if name == "bool":
        return np.array([False, True])
    if name in INTS:
        info = np.iinfo(kind)
        powers = [1 << k for k in (4, info.bits // 2, info.bits - 2, info.bits - 1)]
        values = [info.min, info.min + 1, -7, -3, -1, 0, 1, 2, 3, 7, 100, info.max - 1, info.max, *powers]
        values += [-powers[-2], info.bits - 1, info.bits, info.bits + 1]  # shifts end there
        return np.array(sorted({v for v in values if info.min <= v <= info.max}), kind)
    limits = ml_dtypes.finfo(kind)
    plain = [0.0, 1.0, 0.5, 2.5, 3.0, 7.0, 0.1, 1.5, 0.001, 0.75]
    large = [20.0, 88.0, 100.5, 1000.0, 3e4, math.pi / 2]
    ends = [float(limits.max), float(limits.tiny), float(limits.smallest_subnormal), math.inf]
    # powers of two near overflow, and where squares begin to overflow and to underflow
    top = math.frexp(float(limits.max))[1] - 1
    ends += [2.0**top, 2.0 ** (top - 1), 2.0 ** (top // 2 + 1), 2.0 ** -(top // 2 + 4)]
    sizes = np.array([*plain, *large, *ends])
    with np.errstate(all="ignore"):
        found = np.concatenate((sizes, -sizes, [math.nan])).astype(kind)
    return found


def pairs(name: str) -> tuple[Array, Array]:
    """Every edge value with every other."""
    values = edges(name)
    first, second = zip(*itertools.product(values, values), strict=True)
    return np.array(first, values.dtype), np.array(second, values.dtype)


def wide(x: Array) -> Array:
    """In double precision, where that is wider."""
    return x.astype(np.float64) if x.dtype.kind != "b" else x


def narrowed(values: Array, name: str) -> Array:
    """A result of double precision in the type that morok gives it: floats keep theirs, the rest float32."""
    kind = numpy_type(name) if is_float(name) else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(kind)


def as_floats(function: Callable[..., Array]) -> Callable[..., Array]:
    """An oracle that computes in double precision and rounds once."""

    def oracle(*arrays: Array) -> Array:
        name = str(arrays[0].dtype)
        kind = {"float8_e4m3fn": "float8_e4m3"}.get(name, name)
        floats = [x if x.dtype.kind not in "biu" else x.astype(np.float32) for x in arrays]
        return narrowed(function(*(x.astype(np.float64) for x in floats)), kind)

    return oracle


def difference(got: Array, wanted: Array, ulps: float, zero_signs: bool = True) -> str | None:
    """What is wrong with a result; None if nothing is."""
    wanted = np.asarray(wanted)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} {got.shape} instead of {wanted.dtype} {wanted.shape}"
    if wanted.dtype.kind in "biu":
        bad = got != wanted
    else:
        bad = _apart(got, wanted, ulps, zero_signs)
    if not bad.any():
        return None
    where = tuple(int(i) for i in np.argwhere(bad)[0]) if got.ndim else ()
    return f"{int(bad.sum())} of {got.size} differ, at {where}: {got[where]!r} instead of {wanted[where]!r}"


def _apart(got: Array, wanted: Array, ulps: float, zero_signs: bool) -> Array:
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        bad = ~same
        if ulps:
            limits = ml_dtypes.finfo(wanted.dtype)
            spacing = np.maximum(np.abs(b) * float(limits.eps), float(limits.smallest_subnormal))
            # A finite result one step beyond the largest number may be infinite, and the other way round.
            top = float(limits.max)
            a, b = (np.clip(x, -top, top) if np.isfinite(top) else x for x in (a, b))
            near = np.abs(a - b) <= ulps * spacing
            bad &= ~(near & np.isfinite(a) & np.isfinite(b))
        if zero_signs:
            bad |= (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    return np.asarray(bad)
