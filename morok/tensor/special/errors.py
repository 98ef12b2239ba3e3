"""The error function's relatives, and the normal distribution's."""

from __future__ import annotations

import math
from typing import Any

from morok.tensor.elementwise import arithmetic, functions
from morok.tensor.elementwise.activations import sigmoid
from morok.tensor.elementwise.comparison import clamp, eq, maximum, minimum, where
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.functions import exp, log, log1p, sqrt
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isnan
from morok.tensor.special.series import clenshaw, of_one, of_two, on_interval
from morok.tensor.special.tables import ERFCX, NDTRI_FAR, NDTRI_MIDDLE, NDTRI_TAIL

_ROOT_HALF = math.sqrt(0.5)
_MIDDLE = 0.375  # how far from 1/2 the middle of the normal quantile goes


def _scaled_complement(x: Any) -> Any:
    """exp(x²)·erfc(x) for x ≥ 0."""
    u = where(eq(x, math.inf), 1.0, (x - 2.0) / (x + 2.0))
    return clenshaw(u, ERFCX) / (x * 2.0 + 1.0)


def _complement(x: Any) -> Any:
    """1 - erf(x), on both sides of 0."""
    size = arithmetic.abs(x)
    tail = _scaled_complement(size) * exp(-size * size)
    tail = where(size > 40.0, 0.0, tail)
    far = where(x < 0.0, -tail + 2.0, tail)
    return where(isnan(x), x, where(size < 0.5, -functions.erf(x) + 1.0, far))


def erfc(x: T) -> T:
    """1 - erf(x), accurate where that is small.

    >>> Tensor([0.0]).erfc().tolist()
    [1.0]
    """
    return of_one(x, "erfc", _complement)


def erfcx(x: T) -> T:
    """exp(x²) · erfc(x), which does not underflow.

    >>> round(erfcx(Tensor([100.0])).item(), 6)
    0.005642
    """

    def formula(x: Any) -> Any:
        size = arithmetic.abs(x)
        right = _scaled_complement(size)
        return where(x < 0.0, exp(x * x) * 2.0 - right, right)

    return of_one(x, "erfcx", formula)


def _quantile(lower: Any, y: Any) -> Any:
    """The normal quantile, from the smaller of p and 1 - p, and from y = p - 1/2."""
    middle = on_interval(minimum(y * y, _MIDDLE**2), 0.0, _MIDDLE**2, NDTRI_MIDDLE) * y
    z = sqrt(log(maximum(lower, 1e-320)) * -2.0)
    z = maximum(z, 1.6)
    near = on_interval(1.0 / minimum(z, 6.0), 1.0 / 6.0, 1.0 / 1.6, NDTRI_TAIL)
    far = on_interval(1.0 / maximum(z, 6.0), 1.0 / 39.0, 1.0 / 6.0, NDTRI_FAR)
    tail = z - (where(z > 6.0, far, near) + log(z)) / z
    tail = where(eq(lower, 0.0), math.inf, tail)
    return where(arithmetic.abs(y) <= _MIDDLE, middle, where(y < 0.0, -tail, tail))


def erfinv(x: T) -> T:
    """The number whose error function is x; infinite at ±1, NaN beyond.

    >>> round(Tensor([0.5]).erfinv().item(), 6)
    0.476936
    """

    def formula(x: Any) -> Any:
        size = arithmetic.abs(x)
        inside = _quantile((-size + 1.0) * 0.5, x * 0.5) * _ROOT_HALF
        return where(size <= 1.0, inside, math.nan)

    return of_one(x, "erfinv", formula)


def ndtr(x: T) -> T:
    """The part of the normal distribution that lies below x.

    >>> Tensor([0.0]).ndtr().tolist()
    [0.5]
    """
    return of_one(x, "ndtr", lambda x: _complement(x * -_ROOT_HALF) * 0.5)


def ndtri(x: T) -> T:
    """The number below which a part x of the normal distribution lies: the opposite of `ndtr`.

    >>> round(Tensor([0.975]).ndtri().item(), 4)
    1.96
    """

    def formula(p: Any) -> Any:
        lower = where(p < 0.5, p, -p + 1.0)
        inside = _quantile(clamp(lower, 0.0, 1.0), p - 0.5)
        return where((p >= 0.0) & (p <= 1.0), inside, math.nan)

    return of_one(x, "ndtri", formula)


def log_ndtr(x: T) -> T:
    """The logarithm of `ndtr`, accurate where that underflows.

    >>> round(Tensor([-100.0]).log_ndtr().item(), 3)
    -5005.524
    """

    def formula(x: Any) -> Any:
        low = log(_scaled_complement(maximum(-x * _ROOT_HALF, 0.0)) * 0.5) - x * x * 0.5
        high = log1p(_complement(maximum(x, -1.0) * _ROOT_HALF) * -0.5)
        return where(isnan(x), x, where(x < -1.0, low, high))

    return of_one(x, "log_ndtr", formula)


# --- of probabilities


def xlog1py(t: T, other: Any) -> T:
    """x · log(1 + y), 0 where x is 0.

    >>> Tensor([0.0, 2.0]).xlog1py(Tensor([-1.0, 0.0])).tolist()
    [0.0, 0.0]
    """

    def formula(x: Any, y: Any) -> Any:
        nothing = eq(x, 0.0) & ~isnan(y)
        return where(nothing, 0.0, x * log1p(where(nothing, 0.0, y)))

    return of_two(t, other, "xlog1py", formula)


@rounded_once
def entr(t: T) -> T:
    """-x · log(x): 0 at 0, -inf below.

    >>> Tensor([0.0, 1.0, -1.0]).entr().tolist()
    [0.0, 0.0, -inf]
    """
    x = floating(t)
    inside = x > 0.0
    value = -(x * log(where(inside, x, 1.0))) + 0.0
    return where(isnan(x), x, where(inside, value, where(eq(x, 0.0), 0.0, -math.inf)))


def expit(x: T) -> T:
    """As `sigmoid`, under SciPy's name.

    >>> Tensor([0.0]).expit().tolist()
    [0.5]
    """
    return sigmoid(x)
