"""Arithmetic on NumPy arrays: the functions behind the array column of the table in `alu.py`.

Integer functions get arrays of the operands' own type and wrap as NumPy does. Float functions get float32 or
float64. Warnings are off while they run. Arrays may be of any shape, also (), where NumPy likes to hand out
scalars instead; that is why nothing here is written in place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from morok.dtype import DType, float32, float64
from morok.ir.arithmetic.scalars import INDEX_MAX, INDEX_MIN, ROTATIONS, fma, fpow

Array = npt.NDArray[Any]
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def storage(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of a scalar; `index` values are kept as int64."""
    if dtype.numpy is not None:
        return dtype.numpy
    return np.dtype(np.int64)


def _bits(x: Array) -> int:
    return x.dtype.itemsize * 8


def cdiv(x: Array, y: Array) -> Array:
    q = np.floor_divide(x, y)
    inexact = (q * y != x) & ((x < 0) != (y < 0)) & (y != 0)
    return np.asarray(q + inexact.astype(x.dtype))


def cmod(x: Array, y: Array) -> Array:
    return np.where(y == 0, np.zeros_like(x), x - cdiv(x, y) * y)


def shl(x: Array, y: Array) -> Array:
    inside = (y >= 0) & (y < _bits(x))
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0).astype(x.dtype)), np.zeros_like(x))


def shr(x: Array, y: Array) -> Array:
    last = _bits(x) - 1
    inside = (y >= 0) & (y <= last)
    # Past the end every bit is a copy of the sign, and an unsigned value is gone altogether.
    far = np.right_shift(x, x.dtype.type(last)) if x.dtype.kind == "i" else np.zeros_like(x)
    return np.where(inside, np.right_shift(x, np.where(inside, y, 0).astype(x.dtype)), far)


def popcount(x: Array) -> Array:
    return np.asarray(np.bitwise_count(x.view(_UNSIGNED[x.dtype.itemsize])), dtype=x.dtype)


def mulhi(x: Array, y: Array) -> Array:
    width = _bits(x)
    if width < 64:
        wide = np.int64 if x.dtype.kind == "i" else np.uint64
        return np.right_shift(x.astype(wide) * y.astype(wide), wide(width)).astype(x.dtype)
    a, b = x.view(np.uint64), y.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    high = a1 * b1 + (middle >> half) + ((middle & low) + a0 * b1 >> half)
    if x.dtype.kind == "i":  # a negative factor counts 2^64 too much in the unsigned product
        high = high - np.where(x < 0, b, 0).astype(np.uint64) - np.where(y < 0, a, 0).astype(np.uint64)
    return np.asarray(high).view(x.dtype)


def dot4(x: Array, y: Array) -> Array:
    a, b = np.broadcast_arrays(x, y)
    products = (_bytes_of(a).astype(np.int32)) * _bytes_of(b)
    return np.asarray(products.sum(-1, dtype=np.int32))


def dot2(x: Array, y: Array) -> Array:
    """Products of two float16 are exact in float32, so that their sum is rounded once. It is written as one
    sum: `sum` begins with 0, which takes the sign of -0."""
    a, b = np.broadcast_arrays(np.asarray(x, np.float32), np.asarray(y, np.float32))
    products = _halves_of(a) * _halves_of(b)
    return np.asarray(products[..., 0] + products[..., 1])


def _halves_of(x: Array) -> Array:
    return np.ascontiguousarray(x)[..., np.newaxis].view(np.float16).astype(np.float32)


def _bytes_of(x: Array) -> Array:
    return np.ascontiguousarray(x)[..., np.newaxis].view(np.int8)


def int_pow(x: Array, y: Array) -> Array:
    one = np.ones_like(x)
    result, square, exponent = one, x, np.where(y > 0, y, 0).astype(x.dtype)
    while np.any(exponent != 0):
        result = np.where(exponent & 1 != 0, result * square, result)
        square = square * square
        exponent = exponent >> x.dtype.type(1)
    if x.dtype.kind == "u":
        return result
    unit = np.where(y & 1 != 0, x, one)  # 1 and -1 are their own inverses
    return np.where(y < 0, np.where(np.abs(x) == 1, unit, 0).astype(x.dtype), result)


def fmax(x: Array, y: Array) -> Array:
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y))


def fmin(x: Array, y: Array) -> Array:
    return np.where((x == 0) & (y == 0), -(-x - y), np.minimum(x, y))


def recip(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / x)


def rsqrt(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / np.sqrt(x))


_erf = np.frompyfunc(math.erf, 1, 1)
_fma = np.frompyfunc(fma, 3, 1)
_fpow = np.frompyfunc(fpow, 2, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(np.float64)


def float_pow(x: Array, y: Array) -> Array:
    return np.asarray(_fpow(x, y)).astype(np.float64)


def check(x: Array, n: Array, y: Array) -> Array:
    return np.where((x >= 0) & (x < n), x, y)


def muladd(x: Array, y: Array, z: Array) -> Array:
    return x * y + z


def float_muladd(dtype: DType, x: Array, y: Array, z: Array) -> Array:
    """x * y + z with one rounding; the operands are float64, the result is of `dtype`."""
    if dtype is float64:
        return _double_muladd(*np.broadcast_arrays(x, y, z))
    p = x * y
    s = p + z
    v = s - p
    error = (p - (s - v)) + (z - v)
    bits = np.asarray(s).view(np.int64)
    nudge = np.isfinite(s) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (s > 0), 1, -1)
    return narrow(np.where(nudge, bits + step, bits).view(np.float64), dtype)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as a rounded sum and what the rounding has lost."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """x * y as a rounded product and what the rounding has lost, by halves of 26 bits."""

    def halves(v: Array) -> tuple[Array, Array]:
        t = v * 134217729.0
        high = t - (t - v)
        return high, v - high

    p = x * y
    (a, b), (c, d) = halves(x), halves(y)
    return p, ((a * c - p) + a * d + b * c) + b * d


def _double_muladd(x: Array, y: Array, z: Array) -> Array:
    """x * y + z of doubles with one rounding: the parts that get lost are added up and rounded to odd first.

    Where a part would leave the range of normal numbers, and for infinities, the slow way is taken.
    """
    p, low = _two_product(x, y)
    t, t_low = _two_sum(z, low)
    v, v_low = _two_sum(p, t)
    rest, lost = _two_sum(t_low, v_low)
    even = np.asarray(rest).view(np.int64) & 1 == 0
    odd = np.where((lost != 0) & even, np.nextafter(rest, np.where(lost > 0, np.inf, -np.inf)), rest)
    result = np.where((x == 0) | (y == 0), p + z, v + odd)
    size = np.abs(p)
    plain = (size > 1e-270) & (size < 1e300) & (np.abs(z) < 1e300) & (np.abs(x) < 1e290) & (np.abs(y) < 1e290)
    slow = ~(plain | (x == 0) | (y == 0))
    if slow.any():
        result[slow] = np.asarray(_fma(x[slow], y[slow], z[slow])).astype(np.float64)
    return result


def threefry(counter: Array, key: Array) -> Array:
    word = np.uint32
    k0, k1 = key.astype(word), (key >> np.uint64(32)).astype(word)
    keys = (k0, k1, word(0x1BD11BDA) ^ k0 ^ k1)
    x0, x1 = counter.astype(word) + k0, (counter >> np.uint64(32)).astype(word) + k1
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            x0 = x0 + x1
            x1 = (x1 << word(r) | x1 >> word(32 - r)) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + word(group + 1)
    return x0.astype(np.uint64) | x1.astype(np.uint64) << np.uint64(32)


def narrow(x: Array, dtype: DType) -> Array:
    """float64 to any float type with one rounding, ties to even.

    ml_dtypes goes through float32, which rounds twice; rounding to odd there makes its own rounding the only
    one.
    """
    target = storage(dtype)
    if dtype.bits >= 32 or target == np.float16:
        return x.astype(target)
    single = np.asarray(x.astype(np.float32))
    back = single.astype(np.float64)
    inexact = np.isfinite(x) & (back != x)
    toward_zero = single.view(np.uint32) - (inexact & (np.abs(back) > np.abs(x))).astype(np.uint32)
    odd = np.asarray(toward_zero | inexact.astype(np.uint32)).view(np.float32)
    return odd.astype(target)


def cast(x: Array, source: DType, target: DType) -> Array:
    """Conversion by value."""
    if source is target:
        return x
    if target.is_bool:
        return np.asarray(x != 0)
    if source.is_float:
        wide = x.astype(np.float64)
        return narrow(wide, target) if target.is_float else _truncate(wide, target)
    if not target.is_float:
        return x.astype(storage(target))
    if target in (float32, float64) or source.is_bool:
        return x.astype(storage(target))
    return narrow(_sticky(x), target)


def _truncate(x: Array, target: DType) -> Array:
    low, high = (INDEX_MIN, INDEX_MAX) if target.is_index else (target.min, target.max)
    kind = storage(target)
    below, above = x <= float(low), x >= float(high)
    middle = np.where(below | above | np.isnan(x), 0.0, x)
    result = np.trunc(middle).astype(kind)
    return np.where(above, kind.type(high), np.where(below, kind.type(low), result))


def _sticky(x: Array) -> Array:
    """Integers as doubles, rounded to odd where 53 bits do not suffice."""
    wide = x.astype(np.int64) if x.dtype.kind == "i" else x
    size = np.where(x < 0, np.negative(wide), wide).astype(np.uint64)
    spare = np.where(size >> np.uint64(53) != 0, np.uint64(11), np.uint64(0))
    top = size >> spare
    sticky = top | (top << spare != size).astype(np.uint64)
    result = np.ldexp(sticky.astype(np.float64), spare.astype(np.int32))
    return np.asarray(np.where(x < 0, -result, result))


def bitcast(x: Array, target: DType) -> Array:
    same_bits: Array = x.view(storage(target))
    return same_bits
