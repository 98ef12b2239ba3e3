"""Bessel functions: oscillating (j, y), growing and decaying (i, k), and Airy's.

Near zero they are series in x², with a logarithm taken out where there is one; far from it a wave or an
exponential times a series in 1/x.
"""

from __future__ import annotations

import math
from typing import Any

from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, maximum, minimum, where
from morok.tensor.elementwise.functions import cos, exp, log, sin, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import copysign, isnan
from morok.tensor.special import tables
from morok.tensor.special.series import of_one, on_interval

_NEAR = 8.0


# --- growing


def _scaled_i(x: Any, near: Any, far: Any, odd: bool) -> Any:
    """exp(-|x|) times a function, of |x|; over |x| near zero if it is odd."""
    low = on_interval(minimum(x, _NEAR), 0.0, _NEAR, near)
    high = on_interval(_NEAR / maximum(x, _NEAR), 0.0, 1.0, far)
    value = where(x <= _NEAR, low * x if odd else low, high / sqrt(maximum(x, _NEAR)))
    return where(isnan(x), x, value)


def _i0e(x: Any) -> Any:
    return _scaled_i(arithmetic.abs(x), tables.I0E_NEAR, tables.I0E_FAR, False)


def _i1e(x: Any) -> Any:
    return copysign(_scaled_i(arithmetic.abs(x), tables.I1E_NEAR, tables.I1E_FAR, True), x)


def _grown(scaled: Any, x: Any, odd: bool) -> Any:
    """A scaled function without its scale; in two steps, because the exponential overflows first."""
    root = exp(arithmetic.abs(x) * 0.5)
    return where(
        eq(root, math.inf), where(x < 0.0, -math.inf, math.inf) if odd else math.inf, scaled * root * root
    )


def i0(x: T) -> T:
    """The modified Bessel function of the first kind, of order 0.

    >>> round(Tensor([1.0]).i0().item(), 4)
    1.2661
    """
    return of_one(x, "i0", lambda x: _grown(_i0e(x), x, False))


def i0e(x: T) -> T:
    """exp(-|x|) · i0(x).

    >>> Tensor([0.0]).i0e().tolist()
    [1.0]
    """
    return of_one(x, "i0e", _i0e)


def i1(x: T) -> T:
    """The modified Bessel function of the first kind, of order 1.

    >>> round(Tensor([1.0]).i1().item(), 4)
    0.5652
    """
    return of_one(x, "i1", lambda x: _grown(_i1e(x), x, True))


def i1e(x: T) -> T:
    """exp(-|x|) · i1(x).

    >>> Tensor([0.0]).i1e().tolist()
    [0.0]
    """
    return of_one(x, "i1e", _i1e)


# --- decaying


def _scaled_k(x: Any, order: int) -> Any:
    """exp(x) · k(x)."""
    near, far = ((tables.K0_NEAR, tables.K0E_FAR), (tables.K1_NEAR, tables.K1E_FAR))[order]
    low_x = minimum(x, 2.0)
    half = log(low_x * 0.5)
    rest = on_interval(low_x * low_x, 0.0, 4.0, near)
    if order == 0:
        low = rest - half * _i0e(low_x) * exp(low_x)
    else:
        low = rest * low_x + half * _i1e(low_x) * exp(low_x) + 1.0 / low_x
    high = on_interval(2.0 / maximum(x, 2.0), 0.0, 1.0, far) / sqrt(maximum(x, 2.0))
    value = where(x <= 2.0, low * exp(low_x), high)
    value = where(eq(x, 0.0), math.inf, where(x < 0.0, math.nan, value))
    return where(isnan(x), x, value)


def modified_bessel_k0(x: T) -> T:
    """The modified Bessel function of the second kind, of order 0; infinite at 0.

    >>> round(modified_bessel_k0(Tensor([1.0])).item(), 4)
    0.421
    """
    return of_one(x, "k0", lambda x: _scaled_k(x, 0) * exp(-x))


def modified_bessel_k1(x: T) -> T:
    """The modified Bessel function of the second kind, of order 1; infinite at 0.

    >>> round(modified_bessel_k1(Tensor([1.0])).item(), 4)
    0.6019
    """
    return of_one(x, "k1", lambda x: _scaled_k(x, 1) * exp(-x))


def scaled_modified_bessel_k0(x: T) -> T:
    """exp(x) · k0(x).

    >>> round(scaled_modified_bessel_k0(Tensor([1.0])).item(), 4)
    1.1445
    """
    return of_one(x, "k0e", lambda x: _scaled_k(x, 0))


def scaled_modified_bessel_k1(x: T) -> T:
    """exp(x) · k1(x).

    >>> round(scaled_modified_bessel_k1(Tensor([1.0])).item(), 4)
    1.6362
    """
    return of_one(x, "k1e", lambda x: _scaled_k(x, 1))


# --- oscillating


def _wave(x: Any, order: int) -> tuple[Any, Any]:
    """(J, Y) of x ≥ 8: a wave, whose angle is turned by sums of sine and cosine instead of a difference."""
    p, q = ((tables.P0, tables.Q0), (tables.P1, tables.Q1))[order]
    t = _NEAR / x
    amplitude, shift = on_interval(t * t, 0.0, 1.0, p), on_interval(t * t, 0.0, 1.0, q) / x
    finite = where(eq(x, math.inf), 8.0, x)
    s, c = sin(finite), cos(finite)
    # cos(x - π/4) and sin(x - π/4), times √2; a quarter turn further on for order 1
    a, b = (c + s, s - c) if order == 0 else (s - c, -s - c)
    scale = sqrt(1.0 / (x * math.pi))
    return (amplitude * a - shift * b) * scale, (amplitude * b + shift * a) * scale


def _first_kind(x: Any, order: int) -> Any:
    size = arithmetic.abs(x)
    near = minimum(size, _NEAR)
    low = on_interval(near * near, 0.0, 64.0, (tables.J0_NEAR, tables.J1_NEAR)[order])
    high = _wave(maximum(size, _NEAR), order)[0]
    value = where(size <= _NEAR, low * near if order else low, high)
    value = where(isnan(x), x, value)
    return where(x < 0.0, -value, value) if order else value


def _second_kind(x: Any, order: int) -> Any:
    near = minimum(x, _NEAR)
    first = on_interval(near * near, 0.0, 64.0, (tables.J0_NEAR, tables.J1_NEAR)[order])
    rest = on_interval(near * near, 0.0, 64.0, (tables.Y0_NEAR, tables.Y1_NEAR)[order])
    turn = log(near * 0.5) * (2.0 / math.pi)
    low = rest + turn * first if order == 0 else (rest + turn * first) * near - (2.0 / math.pi) / near
    value = where(x <= _NEAR, low, _wave(maximum(x, _NEAR), order)[1])
    value = where(eq(x, 0.0), -math.inf, where(x < 0.0, math.nan, value))
    return where(isnan(x), x, value)


def bessel_j0(x: T) -> T:
    """The Bessel function of the first kind, of order 0.

    >>> round(bessel_j0(Tensor([1.0])).item(), 4)
    0.7652
    """
    return of_one(x, "j0", lambda x: _first_kind(x, 0))


def bessel_j1(x: T) -> T:
    """The Bessel function of the first kind, of order 1.

    >>> round(bessel_j1(Tensor([1.0])).item(), 4)
    0.4401
    """
    return of_one(x, "j1", lambda x: _first_kind(x, 1))


def bessel_y0(x: T) -> T:
    """The Bessel function of the second kind, of order 0; -inf at 0, NaN below.

    >>> round(bessel_y0(Tensor([1.0])).item(), 4)
    0.0883
    """
    return of_one(x, "y0", lambda x: _second_kind(x, 0))


def bessel_y1(x: T) -> T:
    """The Bessel function of the second kind, of order 1; -inf at 0, NaN below.

    >>> round(bessel_y1(Tensor([1.0])).item(), 4)
    -0.7812
    """
    return of_one(x, "y1", lambda x: _second_kind(x, 1))


def spherical_bessel_j0(x: T) -> T:
    """sin(x) / x, 1 at zero.

    >>> spherical_bessel_j0(Tensor([0.0])).tolist()
    [1.0]
    """

    def formula(x: Any) -> Any:
        small = arithmetic.abs(x) < 1e-4
        safe = where(small | eq(arithmetic.abs(x), math.inf), 1.0, x)
        value = where(eq(arithmetic.abs(x), math.inf), 0.0, sin(safe) / safe)
        return where(small, -x * x / 6.0 + 1.0, value)

    return of_one(x, "spherical_j0", formula)


_RIGHT, _LEFT = 2.0 / 3.0 * 2.0**1.5, 2.0 / 3.0 * 4.0**1.5  # ζ where the middle ends


def airy_ai(x: T) -> T:
    """Airy's function Ai.

    >>> round(airy_ai(Tensor([0.0])).item(), 4)
    0.355
    """

    def formula(x: Any) -> Any:
        middle = on_interval(minimum(maximum(x, -4.0), 2.0), -4.0, 2.0, tables.AIRY_MIDDLE)
        right = maximum(x, 2.0)
        root = sqrt(right)
        zeta = right * root * (2.0 / 3.0)
        above = on_interval(_RIGHT / zeta, 0.0, 1.0, tables.AIRY_RIGHT) * exp(-zeta) / sqrt(root)
        left = maximum(-x, 4.0)
        root = sqrt(left)
        zeta = left * root * (2.0 / 3.0)
        t = _LEFT / zeta
        p, q = (on_interval(t * t, 0.0, 1.0, part) for part in (tables.AIRY_P, tables.AIRY_Q))
        angle = where(eq(zeta, math.inf), 0.0, zeta)
        s, c = sin(angle), cos(angle)  # of ζ + π/4, times √2: s + c and c - s
        below = (p * (s + c) - q / zeta * (c - s)) * math.sqrt(0.5 / math.pi) / sqrt(root)
        value = where(x > 2.0, above, where(x < -4.0, below, middle))
        return where(isnan(x), x, value)

    return of_one(x, "airy_ai", formula)
