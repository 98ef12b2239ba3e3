"""Conversions between types, exact for each: saturating or not, strings, small floats and narrow integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto

from morok import dtype as dt
from morok.errors import UnsupportedModel
from morok.onnx.table import converted, op
from morok.onnx.types import (
    STRING,
    Array,
    code_dtype,
    code_is_value,
    code_values,
    dtype_of_elem,
    is_coded,
    is_float,
    is_known,
    numpy_type,
    type_name,
)
from morok.onnx.values import Coded, Host, Value, elem_of
from morok.tensor.tensor import Tensor

_FLOAT8 = frozenset((TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2,
                     TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ))  # fmt: skip


@op("Cast", since=6)
def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    return cast_value(x, to, bool(saturate), round_mode)


@op("Cast", until=5)
def cast_old(x: Value, *, to: str) -> Value:
    return cast_value(x, TensorProto.DataType.Value(to), True, "up")


@op("CastLike", since=15)
def cast_like(x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return cast_value(x, elem_of(like), bool(saturate), round_mode)


@op("BitCast", since=26)
def bit_cast(x: Value, *, to: int) -> Value:
    codes = x.codes if isinstance(x, Coded) else None
    if isinstance(x, Host):
        held = x.tensor()
        codes = held.codes if isinstance(held, Coded) else held
    elif codes is None:
        codes = converted("T", x, 0)
    assert codes is not None
    target = code_dtype(to) if is_coded(to) else dtype_of_elem(to)
    if target is None:
        raise UnsupportedModel(f"bits cannot be read as {type_name(to)}")
    moved = codes.bitcast(target) if codes.dtype is not target else codes
    if is_coded(to) and code_is_value(to) != (isinstance(x, Coded) and code_is_value(x.elem)):
        raise UnsupportedModel(f"bits of {type_name(elem_of(x))} cannot be read as {type_name(to)}")
    return Coded(moved, to) if is_coded(to) else moved


def cast_value(x: Value, to: int, saturate: bool = True, round_mode: str = "up") -> Value:
    """A value in another type."""
    own = elem_of(x)
    if own == to:
        return x
    if not is_known(to) and to != STRING:
        raise UnsupportedModel(f"nothing is converted to {type_name(to)} here")
    if own == STRING or to == STRING:
        return cast_text(converted("Known", x, 0), to)
    if isinstance(x, Host) and is_coded(own):
        x = x.tensor()
    numbers = decoded(x) if isinstance(x, Coded) else converted("T", x, 0)
    if is_coded(to):
        return encoded(numbers, to, saturate, round_mode)
    target = dtype_of_elem(to)
    assert target is not None
    if to in _FLOAT8:
        return to_float8(numbers, to, saturate)
    if numbers.dtype.is_float and target.is_bool:
        return numbers.ne(0)
    return numbers.cast(target)


# --- strings


def cast_text(x: Host, to: int) -> Host:
    """Numbers from and to strings, as the specification writes them."""
    if to == STRING:
        flat = [_written(v, x.elem) for v in x.array.reshape(-1)]
        made = np.empty(len(flat), object)
        made[:] = flat
        return Host(made.reshape(x.array.shape), STRING)
    kind = numpy_type(to)
    texts = [str(v).strip() for v in x.array.reshape(-1)]
    if to == TensorProto.BOOL:
        numbers: Array = np.array([bool(float(v)) for v in texts])
    elif is_float(to):
        numbers = np.array([float(v) for v in texts]).astype(kind)
    else:
        numbers = np.array([int(v) if v.lstrip("+-").isdecimal() else int(float(v)) for v in texts]).astype(
            kind
        )
    return Host(numbers.reshape(x.array.shape), to)


def _written(v: Any, elem: int) -> str:
    if elem == TensorProto.BOOL:
        return "1" if v else "0"
    if is_float(elem):
        number = float(v)
        if np.isnan(number):
            return "NaN"
        if np.isinf(number):
            return "INF" if number > 0 else "-INF"
        return str(np.float32(v)) if elem != TensorProto.DOUBLE else str(v)
    return str(int(v))


# --- codes


def decoded(x: Coded) -> Tensor:
    """The numbers that codes stand for: narrow integers as they are, small floats as float32."""
    if code_is_value(x.elem):
        return x.codes
    return (
        Tensor(code_values(x.elem)).index_select(0, x.codes.reshape(-1).cast(dt.int32)).reshape(x.codes.shape)
    )


def encoded(x: Tensor, to: int, saturate: bool, round_mode: str = "up") -> Coded:
    """The codes of numbers."""
    if code_is_value(to):
        info = numpy_type(to)
        bits = 4 if "4" in info.name else 2
        whole = x.cast(dt.int32) if x.dtype.bits <= 32 or x.dtype.is_float else x
        mask = whole.cast(dt.int32) & ((1 << bits) - 1)
        if info.name.startswith("int"):
            half = 1 << (bits - 1)
            mask = (mask ^ half) - half
        return Coded(mask.cast(code_dtype(to)), to)
    if to == TensorProto.FLOAT8E8M0:
        return Coded(_e8m0(x, saturate, round_mode), to)
    return Coded(_small_float(x, to, saturate), to)


def to_float8(x: Tensor, to: int, saturate: bool) -> Tensor:
    """The float8 types that tensors have: beyond the largest number either it, or NaN and infinity."""
    target = dtype_of_elem(to)
    assert target is not None
    return _small_float(x, to, saturate).bitcast(target)


@cache
def _steps(elem: int) -> tuple[Array, int]:
    """Where codes of positive numbers begin, in order, and the code of the largest one.

    A number belongs to the last code whose beginning it reaches. Halves go to the even code.
    """
    kind = numpy_type(elem)
    count = 8 if elem == TensorProto.FLOAT4E2M1 else 128
    values = np.arange(count, dtype=np.uint8).view(kind).astype(np.float64)
    finite = values[np.isfinite(values)]
    begins = []
    for code in range(1, len(finite)):
        half = (finite[code - 1] + finite[code]) / 2
        begins.append(
            half if code % 2 == 0 else np.nextafter(np.float32(half), np.float32(np.inf), dtype=np.float32)
        )
    top = len(finite) - 1
    over = finite[top] + (finite[top] - finite[top - 1]) / 2  # from here on it rounds beyond the largest
    begins.append(over if (top + 1) % 2 == 0 else np.nextafter(np.float32(over), np.float32(np.inf)))
    return np.array(begins, np.float32), top


def _small_float(x: Tensor, to: int, saturate: bool) -> Tensor:
    y = x.cast(dt.float32) if x.dtype is not dt.float32 else x
    begins, top = _steps(to)
    size = y.abs()
    code = Tensor(begins).searchsorted(size.reshape(-1), right=True).reshape(size.shape).cast(dt.int32)
    name = numpy_type(to).name
    nan, infinity, zero_sign = _specials(name)
    beyond = code > top
    if saturate or nan is None:
        code = code.minimum(top)
        if infinity is not None and not saturate:
            code = y.isinf().where(infinity, code)
        if nan is not None and infinity is None and not saturate:
            code = beyond.where(nan, code)
    else:
        code = beyond.where(infinity if infinity is not None else nan, code)
    sign = 8 if to == TensorProto.FLOAT4E2M1 else 128
    negative = y.signbit()
    if not zero_sign:  # there is one zero; its negative would be NaN
        negative = negative & code.ne(0)
        if nan == 128:
            made = (negative & code.ne(128)).where(code + sign, code)
            return y.isnan().where(128, made).cast(dt.uint8)
    made = negative.where(code + sign, code)
    if nan is not None:
        made = y.isnan().where(negative.where(nan + sign, nan) if zero_sign else nan, made)
    else:  # the specification leaves open what a NaN becomes where there is none: -0, as in ml_dtypes
        made = y.isnan().where(sign, made)
    return made.cast(dt.uint8)


def _specials(name: str) -> tuple[int | None, int | None, bool]:
    """The codes of NaN and infinity, and whether zero has a sign."""
    if name == "float8_e4m3fn":
        return 0x7F, None, True
    if name == "float8_e5m2":
        return 0x7F, 0x7C, True
    if name.endswith("fnuz"):
        return 0x80, None, False
    return None, None, True


def _e8m0(x: Tensor, saturate: bool, mode: str) -> Tensor:
    """Powers of two from 2^-127 to 2^127, of the size of a number."""
    y = x.cast(dt.float32) if x.dtype is not dt.float32 else x
    bits = y.bitcast(dt.int32) & 0x7FFFFFFF
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    # Below the normal numbers: 2^-127 is one half of the smallest normal one.
    low = exponent.eq(0)
    if mode == "up":
        up = low.where(fraction > 0x400000, fraction > 0)
        base = low.where((fraction > 0x400000).where(1, 0), exponent + up.cast(dt.int32))
    elif mode == "down":
        base = exponent
    else:
        up = low.where(fraction > 0x600000, fraction >= 0x400000)
        base = exponent + up.cast(dt.int32)
    code = base.minimum(254) if saturate else base
    return (y.isnan() | (exponent.eq(255) & (not saturate))).where(255, code).cast(dt.uint8)
