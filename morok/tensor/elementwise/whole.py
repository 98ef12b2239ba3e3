"""Functions of whole numbers and of the bits of floats: divisors, neighbours, mantissas."""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.errors import DTypeError
from morok.ir.node import alu, make
from morok.ir.ops import Ops
from morok.tensor.elementwise import arithmetic, comparison
from morok.tensor.elementwise.arithmetic import meet
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.conversion import bitcast, cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.functions import exp2
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isnan


def _whole(t: T, other: Any, what: str) -> tuple[T, T]:
    x, y = (t._new(node) for node in meet(t, other))
    if not x.dtype.is_bounded_int:
        raise DTypeError(f"{what} is of whole numbers, not of {x.dtype}")
    return x, y


def gcd(t: T, other: Any) -> T:
    """The greatest common divisor.

    >>> Tensor([12, -8]).gcd(18).tolist()
    [6, 2]
    """
    x, y = _whole(t, other, "gcd")
    a, b = arithmetic.abs(x), arithmetic.abs(y)
    # Euclid's steps; those of neighbouring Fibonacci numbers are the longest: 1.44 for each bit
    for _ in range(math.ceil(x.dtype.bits * 1.4404) + 1):
        done = eq(b, 0)
        rest = t._new(alu(Ops.CMOD, a.uop, where(done, 1, b).uop))
        a, b = where(done, a, b), where(done, 0, rest)
    return a


def lcm(t: T, other: Any) -> T:
    """The least common multiple.

    >>> Tensor([4]).lcm(6).tolist()
    [12]
    """
    x, y = _whole(t, other, "lcm")
    common = gcd(x, y)
    nothing = eq(common, 0)
    return where(nothing, 0, arithmetic.abs(x // where(nothing, 1, common) * y))


_BITS = {16: dt.int16, 32: dt.int32, 64: dt.int64}


def nextafter(t: T, other: Any) -> T:
    """The next float from x toward y.

    >>> Tensor([1.0]).nextafter(2.0).tolist()
    [1.0000001192092896]
    """
    x, y = (t._new(node) for node in meet(t, other, floating=True))
    if x.dtype.bits not in _BITS:
        raise DTypeError(f"nextafter is of floats of 16 bits and more, not of {x.dtype}")
    whole = bitcast(x, _BITS[x.dtype.bits])
    # away from zero the bits count up, on either side
    out = where(x < 0.0, y < x, y > x)
    stepped = bitcast(where(out, whole + 1, whole - 1), x.dtype)
    tiny = bitcast(whole * 0 + 1, x.dtype)
    stepped = where(eq(x, 0.0), where(y < 0.0, -tiny, tiny), stepped)
    return where(isnan(x) | isnan(y), math.nan, where(eq(x, y), y, stepped))


def frexp(t: T) -> tuple[T, T]:
    """(mantissa, exponent): x = mantissa · 2^exponent with a mantissa between ½ and 1.

    >>> [part.tolist() for part in Tensor([6.0, 0.0]).frexp()]
    [[0.75, 0.0], [3, 0]]
    """
    x = floating(t)
    wide = cast(x, dt.float64)
    bits = bitcast(wide, dt.int64)
    small = ((bits >> 52) & 2047) < 1  # a double without a leading 1
    raised = where(small, wide * 2.0**54, wide)
    bits = bitcast(raised, dt.int64)
    power = ((bits >> 52) & 2047) - 1022 - where(small, 54, 0)
    kept = bitcast((bits & ~(2047 << 52)) | (1022 << 52), dt.float64)
    special = eq(x, 0.0) | ~comparison.lt(arithmetic.abs(x), math.inf)
    whole = cast(where(special, 0, power), dt.int32)
    # by the exponent, so that the mantissa has a gradient
    half = whole // 2
    scale = cast(exp2(cast(-half, dt.float64)), dt.float64), exp2(cast(half - whole, dt.float64))
    mantissa = cast(cast(x, dt.float64) * scale[0] * scale[1], x.dtype)
    if x.dtype is dt.float64:  # the bits as they are; the slope by the exponent
        same = mantissa._new(make(Ops.DETACH, mantissa.dtype, (mantissa.uop,)))
        mantissa = kept + (mantissa - same)
    return where(special, x, mantissa), whole


def clamp_min(x: T, min: Any) -> T:
    """x, or a bound where that is larger.

    >>> Tensor([1, 5]).clamp_min(3).tolist()
    [3, 5]
    """
    return comparison.clamp(x, min)


def clamp_max(x: T, max: Any) -> T:
    """x, or a bound where that is smaller.

    >>> Tensor([1, 5]).clamp_max(3).tolist()
    [1, 3]
    """
    return comparison.clamp(x, max=max)


def rsub(x: T, other: Any, alpha: Any = 1) -> T:
    """other - alpha · x.

    >>> Tensor([1, 5]).rsub(10, alpha=2).tolist()
    [8, 0]
    """
    found: T = -(x * alpha if alpha != 1 else x) + other
    return found


def byte(x: T) -> T:
    """As uint8.

    >>> Tensor([1.7]).byte().tolist()
    [1]
    """
    return cast(x, dt.uint8)


def char(x: T) -> T:
    """As int8.

    >>> Tensor([1.7]).char().tolist()
    [1]
    """
    return cast(x, dt.int8)


def short(x: T) -> T:
    """As int16.

    >>> Tensor([1.7]).short().tolist()
    [1]
    """
    return cast(x, dt.int16)
