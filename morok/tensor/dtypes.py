"""Types as users write them: morok's own, NumPy's, Python's, or a name."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import DTypeError

_PYTHON: dict[Any, DType] = {bool: dt.bool_, int: dt.default_int, float: dt.default_float}
_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in dt.ALL_SCALARS if d.numpy is not None}
_NAMES = {
    "bool": dt.bool_, "half": dt.float16, "float": dt.float32, "double": dt.float64, "int": dt.int32,
    "long": dt.int64, "short": dt.int16, "char": dt.int8,
}  # fmt: skip


def as_dtype(value: Any) -> DType:
    """The type of tensors' elements that `value` names."""
    found = _lookup(value)
    if found is None or found.is_index or found.is_void or found.is_ptr or found.lanes != 1:
        names = ", ".join(d.name for d in dt.ALL_SCALARS if not d.is_index)
        raise DTypeError(f"{value!r} is not a type of elements; these are: {names}")
    return found


def _lookup(value: Any) -> DType | None:
    if isinstance(value, DType):
        return value
    if value in _PYTHON:
        return _PYTHON[value]
    if isinstance(value, str):
        known = _NAMES.get(value)
        if known is not None:
            return known
    try:
        found = _NUMPY.get(np.dtype(value))
    except TypeError:
        found = None
    if found is not None:
        return found
    # A name that NumPy does not know, or knows as another type: its float8_e4m3 has infinities.
    if not isinstance(value, str):
        return None
    try:
        return dt.parse(value)
    except DTypeError:
        return None


def is_dtype(value: Any) -> bool:
    """Whether `value` names a type of elements."""
    return _lookup(value) is not None


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The type of an array's elements, whatever their byte order."""
    found = _NUMPY.get(dtype.newbyteorder("="))
    if found is None:
        raise DTypeError(f"NumPy's {dtype} has no counterpart in morok; convert the array first")
    return found


def require_range(value: Any, dtype: DType) -> None:
    """An integer that a type cannot hold is an error, not another integer."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and dtype.is_int and not dtype.min <= value <= dtype.max:
        raise DTypeError(f"Python integer {value} is out of range for {dtype}")


def accumulator(dtype: DType) -> DType:
    """The type in which many values of `dtype` are added up: wide enough for NumPy's results."""
    if dtype.is_float:
        return dtype if dtype.bits >= 32 else dt.float32
    return dt.uint64 if dtype.is_unsigned else dt.int64


def float_of(dtype: DType) -> DType:
    """The type of a function such as exp on `dtype`: floats keep theirs, the rest become float32."""
    return dtype if dtype.is_float else dt.default_float
