"""Numbers in and out of the formats: rounding, wrap-around, bits, and the neutral elements of reductions.

A constant in the IR holds a plain Python number that is exactly a value of its type. Floats narrower than
float64 are rounded here once, directly from the exact input, to the nearest with ties to even, because two
roundings in a row (double → float32 → bfloat16, which is what ml_dtypes does) are sometimes one ulp off.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from ctypes import c_float
from math import copysign, frexp, inf, isfinite, ldexp, nan
from struct import pack, unpack
from typing import Any

import numpy as np

from morok.dtype.types import DType, float32, float64
from morok.errors import DTypeError


def as_value(value: Any, dtype: DType) -> Any:
    """`value` as `dtype` holds it: integers wrap around, floats round, anything becomes a truth for bool.

    A float on its way to an integer loses its fraction first. A tuple gives a tuple, for vectors.
    """
    kind = type(value)
    if kind is int:
        if dtype.is_bounded_int:
            return value if dtype.min <= value <= dtype.max else _wrap(value, dtype)
        if dtype.is_index:
            return value
    elif kind is float:
        if dtype is float64:
            return value
        if dtype.is_float:
            return round_float(value, dtype)
    elif kind is bool:
        if dtype.is_bool:
            return value
    elif kind is tuple:
        return tuple(as_value(lane, dtype) for lane in value)
    number = value if kind is int or kind is float else _plain(value, dtype)
    if dtype.is_float:
        return round_float(number, dtype)
    if dtype.is_bool:
        return bool(number)
    if dtype.is_int:
        return _to_int(number, dtype)
    raise DTypeError(f"{dtype} holds no values, so {value!r} cannot be one")


def _plain(value: Any, dtype: DType) -> int | float:
    """A number of any make as the Python int or float that it equals."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, int | np.bool_):
        return int(value)
    if not isinstance(value, str | bytes | complex):
        for convert in (operator.index, float):
            try:
                return convert(value)
            except (TypeError, ValueError):
                continue
    raise DTypeError(f"{value!r} is not a number, so it cannot be a {dtype}")


def _to_int(number: int | float, dtype: DType) -> int:
    if isinstance(number, float) and not isfinite(number):
        raise DTypeError(f"{number} has no value as {dtype}")
    return int(number) if dtype.is_index else _wrap(int(number), dtype)


def _wrap(value: int, dtype: DType) -> int:
    """Two's complement: keep the low bits."""
    bits = dtype.scalar.bits
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if not dtype.is_unsigned and low >> (bits - 1) else low


def round_float(number: int | float, dtype: DType) -> float:
    """The value of a float type that is nearest, ties to even; too large gives infinity (NaN without one)."""
    wide = number if isinstance(number, float) else _sticky_float(number, dtype)
    scalar = dtype.scalar
    if scalar is float64:
        return wide
    if scalar is float32:
        return c_float(wide).value if wide == wide else wide
    if wide == 0.0 or wide != wide:
        return wide
    beyond = copysign(inf, wide) if scalar.has_inf else nan
    if abs(wide) > 2 * scalar.largest:  # far outside, where the scaling below could overflow
        return beyond
    # One step of the format at this magnitude is 2**step; scaling by it is exact, and round() ties to even.
    step = max(frexp(wide)[1] - 1, 2 - (1 << (scalar.exponent_bits - 1))) - scalar.mantissa_bits
    rounded = ldexp(float(round(ldexp(wide, -step))), step)
    return copysign(rounded, wide) if abs(rounded) <= scalar.largest else beyond


def _sticky_float(number: int, dtype: DType) -> float:
    """An integer as a double that will round to `dtype` just as the integer would.

    What does not fit in a double's 53 bits is remembered in the lowest of them, so that a tie in the narrower
    format stays the near-tie it really is. For float64 itself the one rounding of float() is the right one.
    """
    size = abs(number)
    spare = size.bit_length() - 53
    try:
        if dtype.scalar is not float64 and spare > 0:
            sticky = (size >> spare) | bool(size & ((1 << spare) - 1))
            return ldexp(float(sticky if number > 0 else -sticky), spare)
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def to_bits(value: Any, dtype: DType) -> int:
    """The bit pattern of a value, as an unsigned integer. A NaN keeps its sign and the payload that fits."""
    _require_bits(dtype)
    exact = as_value(value, dtype)
    if not dtype.is_float:
        return int(exact) & ((1 << dtype.bits) - 1)
    wide: int = unpack("<Q", pack("<d", exact))[0]
    if dtype is float64:
        return wide
    mantissa, exponent = dtype.mantissa_bits, dtype.exponent_bits
    sign = wide >> 63 << (dtype.bits - 1)
    top = ((1 << exponent) - 1) << mantissa
    if exact != exact:
        payload = (wide & ((1 << 52) - 1)) >> (52 - mantissa)
        return sign | top | (payload or 1 << (mantissa - 1) if dtype.has_inf else (1 << mantissa) - 1)
    if exact in (inf, -inf):
        return sign | top
    size = abs(exact)
    if size < dtype.smallest_normal:
        return int(sign | int(size / (dtype.smallest_normal * dtype.eps)))
    bias = (1 << (exponent - 1)) - 1
    power = frexp(size)[1] - 1
    return int(sign | (power + bias) << mantissa | int((ldexp(size, -power) - 1.0) / dtype.eps))


def from_bits(bits: int, dtype: DType) -> Any:
    """The value of a bit pattern: the inverse of `to_bits`, NaN payloads included."""
    _require_bits(dtype)
    if not 0 <= bits < 1 << dtype.bits:
        raise DTypeError(f"{bits:#x} is not a pattern of {dtype.bits} bits, so it cannot be a {dtype}")
    if dtype.is_bool:
        return bool(bits)
    if not dtype.is_float:
        return _wrap(bits, dtype)
    if dtype is float64:
        return unpack("<d", pack("<Q", bits))[0]
    mantissa, exponent = dtype.mantissa_bits, dtype.exponent_bits
    sign, low = bits >> (dtype.bits - 1), bits & ((1 << mantissa) - 1)
    power, all_ones = bits >> mantissa & ((1 << exponent) - 1), (1 << exponent) - 1
    if power == all_ones and (dtype.has_inf or low == (1 << mantissa) - 1):
        return unpack("<d", pack("<Q", sign << 63 | 0x7FF << 52 | low << (52 - mantissa)))[0]
    size = low * dtype.eps * dtype.smallest_normal
    if power:
        size = ldexp(1.0 + low * dtype.eps, power - (1 << (exponent - 1)) + 1)
    return -size if sign else size


def _require_bits(dtype: DType) -> None:
    if dtype.lanes != 1 or not (dtype.is_bool or dtype.is_bounded_int or dtype.is_float):
        raise DTypeError(f"{dtype} has no bit pattern: only bool, sized integers and floats have one")


_IDENTITIES: dict[str, Callable[[DType], Any]] = {
    "ADD": lambda dtype: 0,
    "MUL": lambda dtype: 1,
    "MAX": lambda dtype: dtype.min,
    "MIN": lambda dtype: dtype.max,
    "AND": lambda dtype: -1,
    "OR": lambda dtype: 0,
    "XOR": lambda dtype: 0,
}


def identity(op_name: str, dtype: DType) -> Any:
    """The value that a reduction by this op starts from: it changes nothing that it is combined with."""
    if op_name not in _IDENTITIES:
        raise DTypeError(f"{op_name} has no identity element; these have one: {', '.join(_IDENTITIES)}")
    neutral = _IDENTITIES[op_name](dtype)
    bitwise = op_name in ("AND", "OR", "XOR")
    if neutral is None or dtype.is_ptr or dtype.is_void or (dtype.is_float and bitwise):
        raise DTypeError(f"{op_name} has no identity element in {dtype}")
    return as_value(neutral, dtype)
