"""Operators by name, and functions of two numbers and more."""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.errors import DTypeError
from morok.ir.call import call
from morok.ir.node import alu
from morok.ir.ops import Op, Ops
from morok.tensor.core import Core, expand_to
from morok.tensor.elementwise import arithmetic, rounding
from morok.tensor.elementwise.arithmetic import binary, div, divmod_nodes, meet, mul
from morok.tensor.elementwise.comparison import eq, maximum, ne, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.functions import exp, exp2, log, log1p, sin, sqrt
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.remainders import named_remainder, remainder_toward_zero
from morok.tensor.elementwise.rounding import isfinite, isnan, trunc

_LN2 = math.log(2.0)


def beside(x: T, other: Any) -> T:
    """The other operand as a tensor; a Python number takes this tensor's type."""
    return x._new(meet(x, other)[1])


@rounded_once
def isclose(t: T, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> T:
    """Where |x - y| <= atol + rtol · |y|; infinities are close to themselves only.

    >>> Tensor([1.0, 2.0]).isclose(Tensor([1.000001, 2.1])).tolist()
    [True, False]
    """
    x, y = (t._new(node) for node in meet(t, other))
    same = eq(x, y)
    if not x.dtype.is_float:
        wide = cast(x, dt.float64), cast(y, dt.float64)
        return same | (arithmetic.abs(wide[0] - wide[1]) <= arithmetic.abs(wide[1]) * rtol + atol)
    near = isfinite(y) & (arithmetic.abs(x - y) <= arithmetic.abs(y) * rtol + atol)
    return same | near | (isnan(x) & isnan(y)) if equal_nan else same | near


# --- truths and bits


def _truths(x: T, op: Op, other: Any) -> T:
    y = other if isinstance(other, Core) else beside(x, other)
    return binary(cast(x, dt.bool_), op, cast(y, dt.bool_))


def logical_and(x: T, other: Any) -> T:
    """Where neither is zero.

    >>> Tensor([0, 2]).logical_and(Tensor([1, 1])).tolist()
    [False, True]
    """
    return _truths(x, Ops.AND, other)


def logical_or(x: T, other: Any) -> T:
    """Where one is not zero.

    >>> Tensor([0, 2]).logical_or(Tensor([0, 0])).tolist()
    [False, True]
    """
    return _truths(x, Ops.OR, other)


def logical_xor(x: T, other: Any) -> T:
    """Where exactly one is not zero.

    >>> Tensor([0, 2]).logical_xor(Tensor([1, 1])).tolist()
    [True, False]
    """
    return _truths(x, Ops.XOR, other)


# --- remainders


def divmod_(x: T, other: Any) -> tuple[T, T]:
    quotient, rest = divmod_nodes(x, other, False)
    return x._new(quotient), x._new(rest)


def fmod(t: T, other: Any) -> T:
    """What is left of x after taking whole y away, with the sign of x (as C's).

    >>> Tensor([7.0, -7.0]).fmod(3.0).tolist()
    [1.0, -1.0]
    """
    x, y = (t._new(node) for node in meet(t, other))
    if x.dtype.is_float:
        return t._new(named_remainder(remainder_toward_zero(x.uop, y.uop), x.uop, y.uop))
    if x.dtype.is_bool:
        x, y = cast(x, dt.int8), cast(y, dt.int8)
    return t._new(alu(Ops.CMOD, x.uop, y.uop))


def frac(x: T) -> T:
    """What is left of x without its whole part, with the sign of x.

    >>> Tensor([1.5, -2.25]).frac().tolist()
    [0.5, -0.25]
    """
    return x - trunc(x) if x.dtype.is_float else x * 0


# --- NaN and infinity


def fmax(x: T, other: Any) -> T:
    """The larger of two; a NaN gives way to the other.

    >>> Tensor([1.0, float("nan")]).fmax(Tensor([3.0, 2.0])).tolist()
    [3.0, 2.0]
    """
    return _rather(x, Ops.MAX, other)


def fmin(x: T, other: Any) -> T:
    """The smaller of two; a NaN gives way to the other.

    >>> Tensor([1.0, float("nan")]).fmin(Tensor([3.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return _rather(x, Ops.MIN, other)


def _rather(t: T, op: Op, other: Any) -> T:
    x, y = (t._new(node) for node in meet(t, other))
    best = binary(x, op, y)
    return where(isnan(x), y, where(isnan(y), x, best)) if x.dtype.is_float else best


def nan_to_num(x: T, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> T:
    """NaN and infinities replaced by numbers, infinities by the largest ones unless said otherwise.

    >>> Tensor([float("nan"), 1.0]).nan_to_num(7.0).tolist()
    [7.0, 1.0]
    """
    if not x.dtype.is_float:
        return x
    top = float(x.dtype.largest)
    high, low = (top if posinf is None else posinf), (-top if neginf is None else neginf)
    limited = where(eq(x, math.inf), high, where(eq(x, -math.inf), low, x))
    return where(isnan(x), nan, limited)


def isposinf(x: T) -> T:
    """Where x is infinite and positive.

    >>> Tensor([1.0, float("inf")]).isposinf().tolist()
    [False, True]
    """
    return eq(x, math.inf) if x.dtype.is_float else ne(x, x)


def isneginf(x: T) -> T:
    """Where x is infinite and negative.

    >>> Tensor([1.0, float("-inf")]).isneginf().tolist()
    [False, True]
    """
    return eq(x, -math.inf) if x.dtype.is_float else ne(x, x)


# --- of two numbers


@rounded_once
def hypot(t: T, other: Any) -> T:
    """sqrt(x² + y²) without overflow.

    >>> Tensor([3.0]).hypot(4.0).tolist()
    [5.0]
    """
    x, y = (arithmetic.abs(t._new(node)) for node in meet(t, other, floating=True))
    high, low = _rather(x, Ops.MAX, y), _rather(x, Ops.MIN, y)
    flat = eq(high, 0.0) | eq(high, math.inf)
    ratio = low / where(flat, 1.0, high)
    length = high * sqrt(ratio * ratio + 1.0)
    broken = (isnan(x) | isnan(y)) & ne(high, math.inf)
    return where(broken, math.nan, where(flat, high, length))


@rounded_once
def logaddexp(t: T, other: Any) -> T:
    """log(exp(x) + exp(y)) without overflow.

    >>> round(Tensor([1000.0]).logaddexp(1000.0).item(), 2)
    1000.69
    """
    x, y = (t._new(node) for node in meet(t, other, floating=True))
    value = where(eq(x, y), x + _LN2, maximum(x, y) + log1p(exp(-arithmetic.abs(x - y))))
    return _of_two(t, "logaddexp", value, x, y)


def _of_two(t: T, name: str, value: T, x: T, y: T) -> T:
    """As `_named`, of a function of two numbers."""
    sizes = value.shape
    return t._new(call(name, value.uop, expand_to(x.uop, sizes), expand_to(y.uop, sizes)))


@rounded_once
def logaddexp2(t: T, other: Any) -> T:
    """log2(2^x + 2^y) without overflow.

    >>> Tensor([10.0]).logaddexp2(10.0).tolist()
    [11.0]
    """
    x, y = (t._new(node) for node in meet(t, other, floating=True))
    small = log1p(exp2(-arithmetic.abs(x - y))) * (1.0 / _LN2)
    value = where(eq(x, y), x + 1.0, maximum(x, y) + small)
    return _of_two(t, "logaddexp2", value, x, y)


@rounded_once
def xlogy(t: T, other: Any) -> T:
    """x · log(y), 0 where x is 0.

    >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    x, y = (t._new(node) for node in meet(t, other, floating=True))
    nothing = eq(x, 0.0) & ~isnan(y)
    return where(nothing, 0.0, x * log(where(nothing, 1.0, y)))


def heaviside(t: T, values: Any) -> T:
    """0 below zero, 1 above, `values` at zero; NaN stays NaN.

    >>> Tensor([-1.0, 0.0, 2.0]).heaviside(0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    x, v = (t._new(node) for node in meet(t, values))
    step = where(eq(x, 0), v, cast(x > 0, x.dtype))
    return where(isnan(x), x, step) if x.dtype.is_float else step


def ldexp(x: T, other: Any) -> T:
    """x · 2^y.

    >>> Tensor([1.0, 3.0]).ldexp(Tensor([2, -1])).tolist()
    [4.0, 1.5]
    """
    y = floating(x._new((other if isinstance(other, Core) else beside(x, other)).uop))
    x = floating(x)
    wide = dt.float32 if x.dtype.bits < 32 else x.dtype
    y = cast(y, wide)
    half = trunc(y * 0.5)  # in two steps, because 2^y may overflow where the product does not
    return cast(cast(x, wide) * exp2(half) * exp2(y - half), x.dtype)


def float_power(x: T, other: Any) -> T:
    """x to the power y in double precision.

    >>> Tensor([2, 3]).float_power(0.5).dtype.name
    'float64'
    """
    y = cast(other, dt.float64) if isinstance(other, Core) else other
    return arithmetic.pow(cast(x, dt.float64), y)


def _factor(x: T, first: Any) -> T:
    return x._new(first.uop) if isinstance(first, Core) else beside(x, first)


@rounded_once
def addcmul(x: T, first: Any, second: Any, value: float = 1) -> T:
    """x + value · first · second.

    >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), 0.5).tolist()
    [4.0]
    """
    product = mul(_factor(x, first), second) * value
    return x + product


@rounded_once
def addcdiv(x: T, first: Any, second: Any, value: float = 1) -> T:
    """x + value · first / second.

    >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0]), 0.5).tolist()
    [2.0]
    """
    quotient = div(_factor(x, first), second) * value
    return x + quotient


# --- of one number


@rounded_once
def deg2rad(x: T) -> T:
    """Degrees as radians.

    >>> round(Tensor([180.0]).deg2rad().item(), 4)
    3.1416
    """
    return floating(x) * (math.pi / 180.0)


@rounded_once
def rad2deg(x: T) -> T:
    """Radians as degrees.

    >>> round(Tensor([3.14159265]).rad2deg().item(), 2)
    180.0
    """
    return floating(x) * (180.0 / math.pi)


@rounded_once
def sinc(x: T) -> T:
    """sin(πx) / (πx), 1 at zero.

    >>> Tensor([0.0]).sinc().tolist()
    [1.0]
    """
    x = floating(x)
    zero = eq(x, 0.0)
    # sin(π(n + f)) = ±sin(πf), where f is exact and small: πx itself would be rounded, or overflow
    whole = rounding.round(x)
    half = whole * 0.5
    wave = sin((x - whole) * math.pi)
    wave = where(ne(half, rounding.round(half)), -wave, wave)
    return where(zero, 1.0, wave / (where(zero, 1.0, x) * math.pi))


@rounded_once
def logit(x: T, eps: float | None = None) -> T:
    """log(x / (1 - x)), the opposite of sigmoid; with eps, x is kept between eps and 1 - eps.

    >>> Tensor([0.5]).logit().tolist()
    [0.0]
    """
    x = floating(x)
    if eps is not None:  # the lower bound goes first, also where it is above the other
        x = where(x < eps, eps, where(x > 1.0 - eps, 1.0 - eps, x))
    # where the quotient is near 1 its logarithm is taken of what it differs by, which is exact
    middle = (x > 0.25) & (x < 0.75)
    apart = (where(middle, x, 0.5) * 2.0 - 1.0) / where(middle, -x + 1.0, 0.5)
    return where(middle, log1p(apart), log(x / (-x + 1.0)))


def positive(x: T) -> T:
    """`+x`: the tensor itself.

    >>> Tensor([-1]).positive().tolist()
    [-1]
    """
    if x.dtype.is_bool:
        raise DTypeError("booleans have no +; cast them first")
    return x
