"""The gamma function's relatives: logarithm, derivatives, incomplete ones, beta and zeta.

Sums and integrals have an axis of their own, of known length: they are loops in a kernel, not long formulas.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from morok.errors import ArgumentError
from morok.tensor.arrays import reduce
from morok.tensor.arrays.movement import unsqueeze
from morok.tensor.core import Core
from morok.tensor.creation.constructors import from_data
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, maximum, minimum, ne, where
from morok.tensor.elementwise.functions import exp, expm1, log, log1p, sin, sqrt, tan
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import floor, isnan, round
from morok.tensor.special.series import constant, horner, of_one, of_two, on_interval
from morok.tensor.special.tables import LGAMMA_FAR, LGAMMA_MIDDLE

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
    854513 / 138, -236364091 / 2730,
)  # fmt: skip
_TERMS = 40  # of the sum in front of Euler and Maclaurin's formula


@cache
def _gauss() -> tuple[Any, Any]:
    """Where Gauss's rule of 32 points looks between 0 and 1, and with which weights. Few programs ask, and
    NumPy has to be made to load and to solve for them."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    return (nodes + 1.0) * 0.5, weights * 0.5


# --- logarithm and derivatives


def stirling_rest(x: Any) -> Any:
    """What Stirling's formula leaves of lgamma(x), for x ≥ 3."""
    t = 3.0 / x
    return on_interval(t * t, 0.0, 1.0, LGAMMA_FAR) / x


def _above_zero(x: Any) -> Any:
    """lgamma(x) for x ≥ 0."""
    low = x < 1.0
    y = where(low, x + 1.0, x)
    near = minimum(y, 3.0)
    middle = on_interval(near, 1.0, 3.0, LGAMMA_MIDDLE) * (near - 1.0) * (near - 2.0)
    far = where(eq(x, math.inf), 3.0, maximum(x, 3.0))
    large = (far - 0.5) * log(far) - far + _HALF_LOG_TAU + stirling_rest(far)
    large = where(eq(x, math.inf), math.inf, large)
    return where(y <= 3.0, where(low, middle - log(x), middle), large)


def log_gamma(x: Any) -> Any:
    """lgamma in double precision, on both sides of 0."""
    size = arithmetic.abs(x)
    right = _above_zero(size)
    # lgamma(-x) = log(π / (x·|sin πx|)) - lgamma(x)
    whole = round(size)
    wave = arithmetic.abs(sin((size - whole) * math.pi)) * size
    safe = where(eq(wave, 0.0), 1.0, wave)
    left = where(eq(wave, 0.0), math.inf, math.log(math.pi) - log(safe) - right)
    left = where(eq(size, math.inf), math.inf, left)
    return where(isnan(x), x, where(x < 0.0, left, right))


def lgamma(x: T) -> T:
    """The logarithm of |Γ(x)|; infinite at 0, -1, -2 …

    >>> round(Tensor([5.0]).lgamma().exp().item(), 3)
    24.0
    """
    return of_one(x, "lgamma", log_gamma)


def _digamma(x: Any) -> Any:
    size = where(x < 0.5, -x + 1.0, x)  # by reflection on the left
    below: Any = None
    for i in range(8):
        term = 1.0 / (size + float(i))
        below = term if below is None else below + term
    y = where(eq(size, math.inf), 8.0, size + 8.0)
    inverse = 1.0 / (y * y)
    tail = horner(inverse, [b / (2 * k + 2) for k, b in enumerate(_BERNOULLI[:9])]) * inverse
    right = log(y) - 0.5 / y - tail - below
    right = where(eq(size, math.inf), math.inf, right)
    whole = round(x)
    rest = x - whole
    pole = eq(rest, 0.0)
    left = right - math.pi / tan(where(pole, 0.5, rest) * math.pi)
    left = where(pole, math.nan, left)
    left = where(eq(x, 0.0), -1.0 / x, left)  # -inf at 0, inf at -0
    left = where(eq(x, -math.inf), math.nan, left)
    return where(isnan(x), x, where(x < 0.5, left, right))


def digamma(x: T) -> T:
    """The derivative of `lgamma`.

    >>> round(Tensor([1.0]).digamma().item(), 5)
    -0.57722
    """
    return of_one(x, "digamma", _digamma)


def _zeta(s: Any, q: Any) -> Any:
    """Σ (q + k)^-s from k = 0 on: a part of the sum, and Euler and Maclaurin's formula for the rest."""
    k = from_data(q, np.arange(_TERMS, dtype=np.float64))
    base = unsqueeze(q, -1) + k
    size, power = arithmetic.abs(base), -unsqueeze(s, -1)
    odd = ne(floor(s * 0.5) * 2.0, s)  # a negative number to a whole power
    terms = size**power
    terms = where((base < 0.0) & unsqueeze(odd, -1), -terms, terms)
    total = reduce.sum(terms, -1)
    y = q + float(_TERMS)
    rest = y ** (-s)
    total = total + rest * (y / (s - 1.0) + 0.5)
    factor, inverse = s * rest / y, 1.0 / (y * y)
    for j, b in enumerate(_BERNOULLI):
        total = total + factor * (b / math.factorial(2 * j + 2))
        factor = factor * inverse * (s + (2.0 * j + 1.0)) * (s + (2.0 * j + 2.0))
    pole = (q <= 0.0) & eq(floor(q), q)
    total = where(pole, math.inf, where((q < 0.0) & ne(floor(s), s), math.nan, total))
    total = where(eq(s, 1.0), math.inf, where(s < 1.0, math.nan, total))
    return where(isnan(s) | isnan(q), math.nan, total)


def zeta(t: T, other: Any) -> T:
    """The zeta function of Hurwitz: the sum of (q + k)^-x over k = 0, 1, 2 …; x is above 1, q above -40.

    >>> round(zeta(Tensor([2.0]), 1.0).item(), 5)
    1.64493
    """
    return of_two(t, other, "zeta", _zeta)


def polygamma(t: T, order: Any) -> T:
    """The n-th derivative of `digamma`: `x.polygamma(n)`, or `polygamma(n, x)` as in the formula.

    >>> round(Tensor([1.0]).polygamma(1).item(), 5)
    1.64493
    """
    pair: Any = (order, t) if isinstance(order, Core) else (t, order)
    x, n = pair
    if not isinstance(n, int) or n < 0:
        raise ArgumentError(f"polygamma has an order of 0 or more, not {n!r}")
    if n == 0:
        first: T = digamma(x)
        return first
    sign = float(math.factorial(n)) * (1.0 if n % 2 else -1.0)

    def formula(v: Any) -> Any:
        return _zeta(constant(v, n + 1.0), v) * sign

    found: T = of_one(x, f"polygamma{n}", formula)
    return found


def multigammaln(x: T, p: Any) -> T:
    """The logarithm of the gamma function of several dimensions, also `mvlgamma`.

    >>> round(Tensor([3.0]).mvlgamma(1).item(), 5)
    0.69315
    """
    if not isinstance(p, int) or p < 1:
        raise ArgumentError(f"the number of dimensions is 1 or more, not {p!r}")
    total: Any = None
    for j in range(p):
        part = lgamma(x - 0.5 * j)
        total = part if total is None else total + part
    found: T = total + p * (p - 1) / 4.0 * math.log(math.pi)
    return found


# --- beta


def _log_beta(a: Any, b: Any) -> Any:
    large, small = maximum(a, b), minimum(a, b)
    # where both are large lgamma(a) - lgamma(a + b) cancels: Stirling's formulas are subtracted instead
    wide = maximum(large, 3.0)
    total = maximum(large + small, 3.0)
    apart = small * (1.0 - log(total)) - (wide - 0.5) * log1p(small / wide)
    apart = apart + stirling_rest(wide) - stirling_rest(total)
    direct = log_gamma(large) - log_gamma(large + small)
    steady = (large > 10.0) & (small > 0.0)
    return log_gamma(small) + where(steady, apart, direct)


def betaln(t: T, other: Any) -> T:
    """The logarithm of |B(x, y)|.

    >>> round(betaln(Tensor([2.0]), 3.0).exp().item(), 5)
    0.08333
    """
    return of_two(t, other, "betaln", _log_beta)


def _gamma_sign(x: Any) -> Any:
    """The sign of Γ(x), which changes at 0, -1, -2 …"""
    below = floor(x)
    return where((x < 0.0) & ne(below, floor(below * 0.5) * 2.0), -1.0, 1.0)


def beta(t: T, other: Any) -> T:
    """B(x, y) = Γ(x) Γ(y) / Γ(x + y).

    >>> round(beta(Tensor([2.0]), 3.0).item(), 5)
    0.08333
    """
    return of_two(
        t, other, "beta",
        lambda a, b: exp(_log_beta(a, b)) * _gamma_sign(a) * _gamma_sign(b) * _gamma_sign(a + b),
    )  # fmt: skip


# --- incomplete


def _density(a: Any, x: Any) -> Any:
    """x^a · exp(-x) / Γ(a), without large numbers that cancel."""
    big = a >= 3.0
    wide = where(big, a, 3.0)
    ratio = (x - wide) / wide
    phi = ratio - log1p(maximum(ratio, -1.0))
    steady = exp(-wide * phi - stirling_rest(wide)) * sqrt(wide * (0.5 / math.pi))
    narrow = where(big, 1.0, a)
    direct = exp(narrow * log(x) - x - log_gamma(narrow))
    return where(big, steady, direct)


def _lower_series(a: Any, x: Any) -> Any:
    """Σ x^k / ((a + 1) … (a + k)) for small x."""
    total: Any = 1.0
    for k in range(20, 0, -1):
        total = x / (a + float(k)) * total + 1.0
    return total


def _tail_integral(a: Any, x: Any, below: Any) -> Any:
    """∫ exp(-|a - x|·s - x·(e^∓s - 1 ± s)) ds from 0 on, by Gauss's rule up to where nothing is left."""
    c = 40.0 / x
    # where e^-s - 1 + s, or e^s - 1 - s, has grown to c: the one straight for long, the other steep soon
    reach = where(below, (c + sqrt(c * c + c * 8.0)) * 0.5, minimum(sqrt(c * 2.0), log(c + log1p(c) + 2.0)))
    away = arithmetic.abs(a - x)
    reach = minimum(reach, 40.0 / where(eq(away, 0.0), 1e-300, away))
    nodes, weights = (from_data(x, v) for v in _gauss())
    s = unsqueeze(reach, -1) * nodes
    turned = where(unsqueeze(below, -1), -s, s)
    bend = expm1(turned) - turned
    values = exp(-unsqueeze(away, -1) * s - unsqueeze(x, -1) * bend)
    return reduce.sum(values * weights, -1) * reach


def _incomplete(a: Any, x: Any, upper: bool) -> Any:
    fine = (a > 0.0) & (x > 0.0) & (a < math.inf) & (x < math.inf)
    b, y = where(fine, a, 1.0), where(fine, x, 1.0)
    density = _density(b, y)
    small = y < 1.5
    below = (y <= b) | small
    lower = density / b * _lower_series(b, minimum(y, 1.5))
    part = density * _tail_integral(b, maximum(y, 1.5), y <= b)
    part = where(small, lower, part)
    value = where(below, -part + 1.0, part) if upper else where(below, part, -part + 1.0)
    nothing, all_of_it = (1.0, 0.0) if upper else (0.0, 1.0)
    edge = where(eq(x, 0.0), nothing, where(eq(x, math.inf), all_of_it, nothing))
    edge = where(eq(a, 0.0) & (x > 0.0), all_of_it, edge)
    undefined = (a < 0.0) | (x < 0.0) | (eq(a, 0.0) & eq(x, 0.0)) | (eq(a, math.inf) & eq(x, math.inf))
    value = where(fine, value, where(undefined, math.nan, edge))
    return where(isnan(a) | isnan(x), math.nan, value)


def gammainc(t: T, other: Any) -> T:
    """The lower incomplete gamma function over Γ(a): the part of the gamma distribution below x.

    >>> round(Tensor([1.0]).gammainc(1.0).item(), 5)
    0.63212
    """
    return of_two(t, other, "gammainc", lambda a, x: _incomplete(a, x, False))


def gammaincc(t: T, other: Any) -> T:
    """The upper incomplete gamma function over Γ(a): 1 - gammainc(a, x), accurate where that is small.

    >>> round(Tensor([1.0]).gammaincc(1.0).item(), 5)
    0.36788
    """
    return of_two(t, other, "gammaincc", lambda a, x: _incomplete(a, x, True))
