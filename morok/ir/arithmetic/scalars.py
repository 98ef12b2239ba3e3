"""Arithmetic on Python numbers: the functions behind the scalar column of the table in `alu.py`.

Integers are unbounded here and floats are doubles; the table brings the result into the type afterwards.
Nothing in this file raises for a number: division by zero, overflow and domain errors have the values that
the ops promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from struct import pack, unpack
from typing import Any

import numpy as np

from morok.dtype import DType, from_bits, round_float, to_bits

_LOW32 = 0xFFFFFFFF
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
INDEX_MIN, INDEX_MAX = -(1 << 63), (1 << 63) - 1


def floordiv(x: int, y: int) -> int:
    return x // y if y else 0


def floormod(x: int, y: int) -> int:
    return x % y if y else 0


def cdiv(x: int, y: int) -> int:
    if not y:
        return 0
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def cmod(x: int, y: int) -> int:
    return x - cdiv(x, y) * y if y else 0


def int_pow(x: int, y: int, modulus: int | None = None) -> int:
    """x to the y; a negative exponent rounds toward zero. `modulus` keeps bounded powers small."""
    if y >= 0:
        return pow(x, y, modulus)
    if x == 1 or (x == -1 and not y & 1):
        return 1
    return -1 if x == -1 else 0


def fmod(x: float, y: float) -> float:
    try:
        return math.fmod(x, y)
    except ValueError:  # an infinite x, or a y of 0
        return math.nan


def fdiv(x: float, y: float) -> float:
    try:
        return x / y
    except ZeroDivisionError:
        if x == 0.0 or x != x:
            return math.nan
        return math.copysign(math.inf, x) * math.copysign(1.0, y)


def recip(x: float) -> float:
    return 1.0 / x if x else math.copysign(math.inf, x)


def sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0.0 else math.nan


def rsqrt(x: float) -> float:
    return recip(sqrt(x))


def whole(rounding: Callable[[float], int]) -> Callable[[float], float]:
    """A rounding to whole numbers that lets infinities and NaN pass and keeps the sign of zero."""

    def run(x: float) -> float:
        return math.copysign(float(rounding(x)), x) if math.isfinite(x) else x

    return run


def fmax(x: float, y: float) -> float:
    if x != x or y != y:
        return math.nan
    return x + y if x == y == 0.0 else max(x, y)


def fmin(x: float, y: float) -> float:
    if x != x or y != y:
        return math.nan
    return -(-x - y) if x == y == 0.0 else min(x, y)


def by_numpy(function: Callable[..., Any]) -> Callable[..., float]:
    """A float64 function of NumPy on one number: the same code as on arrays, so both agree to the bit."""

    def run(*x: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*x))

    return run


def fpow(x: float, y: float) -> float:
    """C's pow. NumPy's own takes short cuts that depend on the strides of its operands, so it is not used."""
    try:
        return math.pow(x, y)
    except (OverflowError, ValueError):
        if x != 0.0 and math.isfinite(x) and x < 0.0 and y % 1.0:
            return math.nan
        return -math.inf if math.copysign(1.0, x) < 0 and y % 2.0 == 1.0 else math.inf


def where(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


def check(x: Any, n: Any, y: Any) -> Any:
    """The value of a CHECK; that x is outside is noted by whoever runs it."""
    return x if 0 <= x < n else y


def muladd(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def fma(x: float, y: float, z: float) -> float:
    """x * y + z with one rounding to float64, by exact rational arithmetic."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z) or x == 0.0 or y == 0.0:
        return z if x and y else x * y + z
    from fractions import Fraction  # with the decimals that it brings: nobody else needs either

    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def odd_fma(x: float, y: float, z: float) -> float:
    """x * y + z of floats with at most 24 significant bits, rounded to odd in float64.

    The product is exact in a double and the error of the sum is known (Knuth's two-sum). An inexact sum gets
    an odd last bit, which makes the following rounding to a format of 50 bits or fewer the only one that
    counts.
    """
    p = x * y
    s = p + z
    if not math.isfinite(s):
        return s
    v = s - p
    error = (p - (s - v)) + (z - v)
    bits: int = unpack("<q", pack("<d", s))[0]
    if error and not bits & 1:
        # Doubles of one sign are ordered like their bit patterns: toward the exact sum is one step up or
        # down.
        bits += 1 if (error > 0) == (s > 0) else -1
        return unpack("<d", pack("<q", bits))[0]  # type: ignore[no-any-return]
    return s


def dot4(x: int, y: int) -> int:
    """Σ of the products of the bytes at each place, as signed numbers."""
    return sum(((x >> at & 255 ^ 128) - 128) * ((y >> at & 255 ^ 128) - 128) for at in (0, 8, 16, 24))


def dot2(x: float, y: float) -> float:
    """Σ of the products of the two float16 in the bits of each: these are exact in float32."""
    (a, b), (c, d) = (unpack("<ee", pack("<f", v)) for v in (x, y))
    return float(np.float32(a * c) + np.float32(b * d))


def threefry(counter: int, key: int) -> int:
    """Threefry-2x32 with 20 rounds; the low words are the first ones of counter, key and result."""
    k0, k1 = key & _LOW32, key >> 32
    keys = (k0, k1, 0x1BD11BDA ^ k0 ^ k1)
    x0, x1 = ((counter & _LOW32) + k0) & _LOW32, ((counter >> 32) + k1) & _LOW32
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            x0 = (x0 + x1) & _LOW32
            x1 = ((x1 << r) | (x1 >> (32 - r))) & _LOW32 ^ x0
        x0 = (x0 + keys[(group + 1) % 3]) & _LOW32
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & _LOW32
    return x0 | x1 << 32


def wrapper(dtype: DType) -> Callable[[int], int]:
    """Two's complement wrap-around into a bounded integer type."""
    low: int = dtype.min
    mask = (1 << dtype.bits) - 1
    return lambda v: ((v - low) & mask) + low


def caster(source: DType, target: DType) -> Callable[[Any], Any]:
    """Conversion by value between two scalar types."""
    if source is target:
        return lambda v: v
    if target.is_bool:
        return lambda v: v != 0
    if target.is_float:
        return (
            (lambda v: round_float(float(v), target)) if source.is_bool else lambda v: round_float(v, target)
        )
    if source.is_float:
        low, high = (INDEX_MIN, INDEX_MAX) if target.is_index else (target.min, target.max)
        return lambda v: _saturate(v, low, high)
    return int if target.is_index else wrapper(target)


def _saturate(v: float, low: int, high: int) -> int:
    if v != v:
        return 0
    if v >= high:
        return high
    return low if v <= low else int(v)


def bitcaster(source: DType, target: DType) -> Callable[[Any], Any]:
    return lambda v: from_bits(to_bits(v, source), target)
