"""Functions of one number: exponentials, logarithms, trigonometry.

Where the IR has an op for it, the op is used; the rest are the formulas that keep their accuracy near zero.
Integers and booleans are taken as float32.
"""

from __future__ import annotations

import math
from typing import Any

from morok.dtype import DType
from morok.ir.node import alu
from morok.ir.ops import Op, Ops
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.arithmetic import binary, meet, mul
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.floats import float_node, floating, named
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import copysign

_LN10 = math.log(10.0)
_FAR = 1e9  # from here on x² + 1 is x², and not yet infinite


def _steep(dtype: DType) -> float:
    """From here on a hyperbolic sine is half an exponential, and that is not infinite yet."""
    return 700.0 if dtype.bits == 64 else 80.0


def _function(x: T, op: Op) -> T:
    return x._new(alu(op, float_node(x)))


# --- exponential and logarithm


def exp(x: T) -> T:
    """e to the power x.

    >>> Tensor([0.0, 1.0]).exp().tolist()
    [1.0, 2.7182817459106445]
    """
    return _function(x, Ops.EXP)


def exp2(x: T) -> T:
    """2 to the power x.

    >>> Tensor([0.0, 3.0]).exp2().tolist()
    [1.0, 8.0]
    """
    return _function(x, Ops.EXP2)


def log(x: T) -> T:
    """The natural logarithm; NaN below zero.

    >>> Tensor([1.0, 0.0]).log().tolist()
    [0.0, -inf]
    """
    return _function(x, Ops.LOG)


def log2(x: T) -> T:
    """The logarithm to base 2.

    >>> Tensor([1.0, 8.0]).log2().tolist()
    [0.0, 3.0]
    """
    return _function(x, Ops.LOG2)


@rounded_once
def log10(x: T) -> T:
    """The logarithm to base 10.

    >>> Tensor([1.0, 100.0]).log10().tolist()
    [0.0, 2.0]
    """
    return log(x) / _LN10


@rounded_once
def expm1(x: T) -> T:
    """exp(x) - 1, accurate near zero.

    >>> Tensor([0.0, 1e-8]).expm1().tolist()
    [0.0, 9.99999993922529e-09]
    """
    x = floating(x)
    return named(x, "expm1", tanh(x * 0.5) * (exp(x) + 1.0))


@rounded_once
def log1p(x: T) -> T:
    """log(1 + x), accurate near zero.

    >>> Tensor([0.0, 1e-8]).log1p().tolist()
    [0.0, 9.99999993922529e-09]
    """
    x = floating(x)
    y = x + 1.0
    # The error of 1 + x cancels in x / ((1 + x) - 1).
    value = where(eq(y, 1.0), x, where(eq(y, math.inf), math.inf, log(y) * (x / (y - 1.0))))
    return named(x, "log1p", value)


def sqrt(x: T) -> T:
    """The square root; NaN below zero.

    >>> Tensor([4.0, 9.0]).sqrt().tolist()
    [2.0, 3.0]
    """
    return _function(x, Ops.SQRT)


def rsqrt(x: T) -> T:
    """1 / sqrt(x).

    >>> Tensor([4.0, 0.25]).rsqrt().tolist()
    [0.5, 2.0]
    """
    return _function(x, Ops.RSQRT)


def square(x: T) -> T:
    """x · x.

    >>> Tensor([2.0, -3.0]).square().tolist()
    [4.0, 9.0]
    """
    return x * x


def reciprocal(x: T) -> T:
    """1 / x.

    >>> Tensor([2.0, -4.0]).reciprocal().tolist()
    [0.5, -0.25]
    """
    return _function(x, Ops.RECIP)


# --- trigonometry


def sin(x: T) -> T:
    """The sine of radians.

    >>> Tensor([0.0]).sin().tolist()
    [0.0]
    """
    return _function(x, Ops.SIN)


def cos(x: T) -> T:
    """The cosine of radians.

    >>> Tensor([0.0]).cos().tolist()
    [1.0]
    """
    return _function(x, Ops.COS)


def tan(x: T) -> T:
    """The tangent of radians.

    >>> Tensor([0.0]).tan().tolist()
    [0.0]
    """
    return _function(x, Ops.TAN)


def atan(x: T) -> T:
    """The angle whose tangent is x.

    >>> Tensor([0.0]).atan().tolist()
    [0.0]
    """
    return atan2(x, 1.0)


def atan2(x: T, other: Any) -> T:
    """The angle of the point (other, self).

    >>> Tensor([0.0]).atan2(Tensor([1.0])).tolist()
    [0.0]
    """
    return binary(x, Ops.ATAN2, other, floating=True)


@rounded_once
def asin(x: T) -> T:
    """The angle whose sine is x; NaN outside of -1 … 1.

    >>> Tensor([0.0]).asin().tolist()
    [0.0]
    """
    x = floating(x)
    return named(x, "asin", atan2(x, sqrt((-x + 1.0) * (x + 1.0))))


@rounded_once
def acos(x: T) -> T:
    """The angle whose cosine is x; NaN outside of -1 … 1.

    >>> Tensor([1.0]).acos().tolist()
    [0.0]
    """
    x = floating(x)
    return named(x, "acos", atan2(sqrt((-x + 1.0) * (x + 1.0)), x))


@rounded_once
def sinh(x: T) -> T:
    """The hyperbolic sine.

    >>> Tensor([0.0]).sinh().tolist()
    [0.0]
    """
    x = floating(x)
    size = arithmetic.abs(x)
    e = expm1(size)
    size = where(size > _steep(x.dtype), _half_exponential(size), (e + e / (e + 1.0)) * 0.5)
    return named(x, "sinh", copysign(size, x))


@rounded_once
def cosh(x: T) -> T:
    """The hyperbolic cosine.

    >>> Tensor([0.0]).cosh().tolist()
    [1.0]
    """
    x = floating(x)
    size = arithmetic.abs(x)
    e = exp(size)
    steep = size > _steep(x.dtype)
    return named(x, "cosh", where(steep, _half_exponential(size), (e + reciprocal(e)) * 0.5))


def _half_exponential(x: T) -> T:
    """e^x / 2, which may be a number where e^x is none."""
    root = exp(x * 0.5)
    return root * 0.5 * root


def tanh(x: T) -> T:
    """The hyperbolic tangent.

    >>> Tensor([0.0]).tanh().tolist()
    [0.0]
    """
    return _function(x, Ops.TANH)


@rounded_once
def asinh(x: T) -> T:
    """The number whose hyperbolic sine is x.

    >>> Tensor([0.0]).asinh().tolist()
    [0.0]
    """
    x = floating(x)
    size = arithmetic.abs(x)
    value = log1p(size + size * size / (sqrt(size * size + 1.0) + 1.0))
    big = log(size) + math.log(2.0)  # where the square overflows
    return named(x, "asinh", copysign(where(size > _FAR, big, value), x))


@rounded_once
def acosh(x: T) -> T:
    """The number of 0 or more whose hyperbolic cosine is x; NaN below 1.

    >>> Tensor([1.0]).acosh().tolist()
    [0.0]
    """
    x = floating(x)
    t = x - 1.0
    value = where(x > _FAR, log(x) + math.log(2.0), log1p(t + sqrt(t * (x + 1.0))))
    return named(x, "acosh", where(x < 1.0, math.nan, value))


@rounded_once
def atanh(x: T) -> T:
    """The number whose hyperbolic tangent is x; NaN outside of -1 … 1.

    >>> Tensor([0.0]).atanh().tolist()
    [0.0]
    """
    x = floating(x)
    size = arithmetic.abs(x)  # a quotient near -1 would cancel in log1p
    return named(x, "atanh", copysign(log1p(size * 2.0 / (-size + 1.0)) * 0.5, x))


def erf(x: T) -> T:
    """The error function.

    >>> Tensor([0.0, 10.0]).erf().tolist()
    [0.0, 1.0]
    """
    return _function(x, Ops.ERF)


@rounded_once
def lerp(t: T, end: Any, weight: Any) -> T:
    """From x toward `end` by `weight`.

    >>> Tensor([0.0]).lerp(Tensor([4.0]), 0.25).tolist()
    [1.0]
    """
    start, stop = (t._new(x) for x in meet(t, end, floating=True))
    return start + mul(stop - start, weight)
