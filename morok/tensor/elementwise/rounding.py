"""Rounding, signs, and what is no number."""

from __future__ import annotations

import math
from typing import Any

from morok.dtype import int64, uint64
from morok.ir.node import alu
from morok.ir.ops import Op, Ops
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.arithmetic import meet
from morok.tensor.elementwise.comparison import eq, ne, where
from morok.tensor.elementwise.conversion import bitcast, cast
from morok.tensor.elementwise.floats import rounded_to, widen
from morok.tensor.elementwise.operators import T


def _whole(x: T, op: Op) -> T:
    return x._new(alu(op, x.uop)) if x.dtype.is_float else x


def floor(x: T) -> T:
    """Down to a whole number.

    >>> Tensor([1.5, -1.5]).floor().tolist()
    [1.0, -2.0]
    """
    return _whole(x, Ops.FLOOR)


def ceil(x: T) -> T:
    """Up to a whole number.

    >>> Tensor([1.5, -1.5]).ceil().tolist()
    [2.0, -1.0]
    """
    return _whole(x, Ops.CEIL)


def trunc(x: T) -> T:
    """Toward zero to a whole number.

    >>> Tensor([1.5, -1.5]).trunc().tolist()
    [1.0, -1.0]
    """
    return _whole(x, Ops.TRUNC)


def round(x: T, decimals: int = 0) -> T:
    """To the nearest whole number, or number with so many decimals (tens for -1), halves to even.

    >>> Tensor([0.5, 1.5, 2.4]).round().tolist()
    [0.0, 2.0, 2.0]
    >>> Tensor([15, 25, -7]).round(decimals=-1).tolist()
    [20, 20, -10]
    """
    return _rounded(x, decimals) if decimals else _whole(x, Ops.RINT)


def sign(x: T) -> T:
    """-1, 0 or 1; NaN stays NaN.

    >>> Tensor([-2.0, 0.0, 3.0]).sign().tolist()
    [-1.0, 0.0, 1.0]
    """
    if x.dtype.is_bool:
        return x
    one = cast(x > 0, x.dtype)
    if x.dtype.is_unsigned:
        return one
    value = one - cast(x < 0, x.dtype)
    return where(isnan(x), x, value) if x.dtype.is_float else value


def signbit(x: T) -> T:
    """Whether the sign is negative, of zeros and NaNs too.

    >>> Tensor([-0.0, 0.0]).signbit().tolist()
    [True, False]
    """
    if not x.dtype.is_float:
        return x < 0 if not x.dtype.is_bool else x & False
    return bitcast(x, f"int{x.dtype.bits}") < 0


def copysign(t: T, other: Any) -> T:
    """The size of x with the sign of `other`.

    >>> Tensor([1.0, 2.0]).copysign(-1.0).tolist()
    [-1.0, -2.0]
    """
    x, y = meet(t, other, floating=True)
    size = arithmetic.abs(t._new(x))
    return where(signbit(t._new(y)), -size, size)


def isnan(x: T) -> T:
    """Where x is not a number.

    >>> Tensor([1.0, float("nan")]).isnan().tolist()
    [False, True]
    """
    return ne(x, x)


def isinf(x: T) -> T:
    """Where x is infinite.

    >>> Tensor([1.0, float("-inf")]).isinf().tolist()
    [False, True]
    """
    return eq(arithmetic.abs(x), math.inf) if x.dtype.is_float else ne(x, x)


def isfinite(x: T) -> T:
    """Where x is neither infinite nor NaN.

    >>> Tensor([1.0, float("nan")]).isfinite().tolist()
    [True, False]
    """
    bounded = not x.dtype.is_float or x.dtype.max == x.dtype.largest  # some have no infinity
    return eq(x, x) if bounded else arithmetic.abs(x) < math.inf


def _rounded(x: T, decimals: int) -> T:
    """x with so many decimals, halves to even; tens for -1, hundreds for -2."""
    if not x.dtype.is_float:
        return x if decimals >= 0 else _to_multiples(x, 10**-decimals)
    wide = widen(x)
    scale = 10.0 ** abs(decimals)
    y = round(wide * scale) / scale if decimals > 0 else round(wide / scale) * scale
    # What overflows when it is scaled has no decimals.
    return rounded_to(where(isfinite(wide) & ~isfinite(y), wide, y), x)


def _to_multiples(x: T, unit: int) -> T:
    """Integers to the nearest multiples of a power of ten; beyond the type's range they wrap around."""
    wide = cast(x, uint64 if x.dtype.is_unsigned else int64)
    if unit > wide.dtype.max // 2:
        return x * 0
    down = wide // unit
    rest = (wide - down * unit) * 2
    up = (rest > unit) | (eq(rest, unit) & ne(down % 2, 0))
    return cast((down + cast(up, wide.dtype)) * unit, x.dtype)
