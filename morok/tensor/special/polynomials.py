"""Orthogonal polynomials of degrees that are numbers, or tensors of whole numbers up to 32.

Those of Chebyshev are waves of an angle. The others follow from the two before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from morok.tensor.core import Core
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import clamp, eq, maximum, ne, where
from morok.tensor.elementwise.functions import acos, cos, cosh, log1p, sin, sinh, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import floor, isnan, trunc
from morok.tensor.special.series import constant, of_two

_MOST = 32  # the highest degree of a polynomial whose degree is a tensor


# --- Chebyshev's


def _chebyshev(x: Any, n: Any, kind: str) -> Any:
    """T, U, V, W: cos nθ, sin (n+1)θ / sin θ, cos (n+½)θ / cos ½θ, sin (n+½)θ / sin ½θ with x = cos θ."""
    n = trunc(n)
    size = arithmetic.abs(x)
    negative = x < 0.0
    odd = ne(floor(n * 0.5) * 2.0, n)
    angle = acos(clamp(size, 0.0, 1.0))
    away = maximum(size, 1.0) - 1.0
    steep = log1p(away + sqrt(away * (away + 2.0)))  # acosh
    swapped = {"V": "W", "W": "V"}
    value = where(size <= 1.0, _wave(angle, n, kind, cos, sin), _wave(steep, n, kind, cosh, sinh))
    if kind in swapped:  # V(-x) = ±W(x)
        other = swapped[kind]
        mirror = where(size <= 1.0, _wave(angle, n, other, cos, sin), _wave(steep, n, other, cosh, sinh))
        value = where(negative, mirror, value)
    value = where(negative & odd, -value, value)
    value = where(eq(n, 0.0), 1.0, where(n < 0.0, 0.0, value))
    return where(isnan(x), x, value)


def _wave(angle: Any, n: Any, kind: str, even: Callable[[Any], Any], odd: Callable[[Any], Any]) -> Any:
    if kind == "T":
        return even(angle * n)
    if kind == "V":
        return even(angle * (n + 0.5)) / even(angle * 0.5)
    factor, step = (n + 1.0, 1.0) if kind == "U" else (n + 0.5, 0.5)
    zero = eq(angle, 0.0)
    safe = where(zero, 1.0, angle)
    return where(zero, factor / step, odd(safe * factor) / odd(safe * step))


def _of(t: T, n: Any, kind: str, shifted: bool) -> T:
    name = f"{'shifted_' if shifted else ''}chebyshev_{kind.lower()}"
    if shifted:
        return of_two(t, n, name, lambda x, m: _chebyshev(x * 2.0 - 1.0, m, kind))
    return of_two(t, n, name, lambda x, m: _chebyshev(x, m, kind))


def chebyshev_polynomial_t(x: T, n: Any) -> T:
    """Chebyshev's polynomial of the first kind and of degree n.

    >>> chebyshev_polynomial_t(Tensor([0.5]), 2).tolist()
    [-0.5]
    """
    return _of(x, n, "T", False)


def chebyshev_polynomial_u(x: T, n: Any) -> T:
    """Chebyshev's polynomial of the second kind and of degree n.

    >>> round(chebyshev_polynomial_u(Tensor([0.5]), 2).item(), 5)
    0.0
    """
    return _of(x, n, "U", False)


def chebyshev_polynomial_v(x: T, n: Any) -> T:
    """Chebyshev's polynomial of the third kind and of degree n.

    >>> round(chebyshev_polynomial_v(Tensor([1.0]), 2).item(), 5)
    1.0
    """
    return _of(x, n, "V", False)


def chebyshev_polynomial_w(x: T, n: Any) -> T:
    """Chebyshev's polynomial of the fourth kind and of degree n.

    >>> round(chebyshev_polynomial_w(Tensor([1.0]), 2).item(), 5)
    5.0
    """
    return _of(x, n, "W", False)


def shifted_chebyshev_polynomial_t(x: T, n: Any) -> T:
    """`chebyshev_polynomial_t` of 2x - 1.

    >>> shifted_chebyshev_polynomial_t(Tensor([0.75]), 2).tolist()
    [-0.5]
    """
    return _of(x, n, "T", True)


def shifted_chebyshev_polynomial_u(x: T, n: Any) -> T:
    """`chebyshev_polynomial_u` of 2x - 1.

    >>> round(shifted_chebyshev_polynomial_u(Tensor([1.0]), 2).item(), 5)
    3.0
    """
    return _of(x, n, "U", True)


def shifted_chebyshev_polynomial_v(x: T, n: Any) -> T:
    """`chebyshev_polynomial_v` of 2x - 1.

    >>> round(shifted_chebyshev_polynomial_v(Tensor([1.0]), 2).item(), 5)
    1.0
    """
    return _of(x, n, "V", True)


def shifted_chebyshev_polynomial_w(x: T, n: Any) -> T:
    """`chebyshev_polynomial_w` of 2x - 1.

    >>> round(shifted_chebyshev_polynomial_w(Tensor([1.0]), 2).item(), 5)
    5.0
    """
    return _of(x, n, "W", True)


# --- by recurrence

Step = Callable[[Any, Any, Any, int], Any]  # x, the one before, the one before that, the degree


def _recurring(t: T, n: Any, name: str, first: Callable[[Any], Any], step: Step) -> T:
    top = int(n) if isinstance(n, int | float) else _MOST

    def formula(x: Any, degree: Any) -> Any:
        m = trunc(degree)
        before, now = constant(x, 1.0), first(x)
        value = where(m < 0.0, 0.0, where(eq(m, 0.0), before, now))
        for k in range(2, top + 1):
            before, now = now, step(x, now, before, k)
            value = where(m >= float(k), now, value)
        if isinstance(n, Core):
            value = where(m > float(_MOST), math.nan, value)
        return where(isnan(x), x, value)

    return of_two(t, n, name, formula)


def hermite_polynomial_h(x: T, n: Any) -> T:
    """Hermite's polynomial of degree n as physicists define it.

    >>> hermite_polynomial_h(Tensor([1.0]), 2).tolist()
    [2.0]
    """
    return _recurring(x, n, "hermite_h", lambda v: v * 2.0, lambda v, p, q, k: (v * p - q * (k - 1.0)) * 2.0)


def hermite_polynomial_he(x: T, n: Any) -> T:
    """Hermite's polynomial of degree n as statisticians define it.

    >>> hermite_polynomial_he(Tensor([2.0]), 2).tolist()
    [3.0]
    """
    return _recurring(x, n, "hermite_he", lambda v: v * 1.0, lambda v, p, q, k: v * p - q * (k - 1.0))


def laguerre_polynomial_l(x: T, n: Any) -> T:
    """Laguerre's polynomial of degree n.

    >>> laguerre_polynomial_l(Tensor([1.0]), 2).tolist()
    [-0.5]
    """
    return _recurring(
        x,
        n,
        "laguerre",
        lambda v: -v + 1.0,
        lambda v, p, q, k: ((-v + (2.0 * k - 1.0)) * p - q * (k - 1.0)) * (1.0 / k),
    )


def legendre_polynomial_p(x: T, n: Any) -> T:
    """Legendre's polynomial of degree n.

    >>> legendre_polynomial_p(Tensor([0.5]), 2).tolist()
    [-0.125]
    """
    return _recurring(
        x,
        n,
        "legendre",
        lambda v: v * 1.0,
        lambda v, p, q, k: (v * p * (2.0 * k - 1.0) - q * (k - 1.0)) * (1.0 / k),
    )
