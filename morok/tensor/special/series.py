"""What all special functions share: double precision, Chebyshev series, and a name for the gradient.

A special function of floats is computed in double precision and rounded once: where a formula cancels, what
is left is still good to the last digit of float32. Argument checks are choices between values, not branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from morok.dtype import float64
from morok.ir.call import call
from morok.ir.node import const
from morok.tensor.arrays.movement import expand
from morok.tensor.core import expand_to
from morok.tensor.elementwise.arithmetic import meet
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import broadcast_shapes


def clenshaw(u: T, series: Sequence[float]) -> T:
    """Σ c_k T_k(u) for u between -1 and 1."""
    twice = u + u
    now: Any = series[-1]
    after: Any = 0.0
    for c in reversed(series[1:-1]):
        now, after = twice * now + (c - after), now
    total: T = u * now + (series[0] - after)
    return total


def on_interval(x: T, low: float, high: float, series: Sequence[float]) -> T:
    """A series whose argument runs from -1 to 1 while x goes from `low` to `high`."""
    return clenshaw(x * (2.0 / (high - low)) - (high + low) / (high - low), series)


def horner(x: T, coefficients: Sequence[float]) -> T:
    """Σ c_k x^k."""
    total: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = x * total + c
    found: T = total
    return found


def constant(x: T, value: float) -> T:
    """The same value everywhere, in the shape and type of x."""
    return x._new(expand_to(const(x.dtype, value), x.shape))


def of_one(t: T, name: str, formula: Callable[[T], T]) -> T:
    """A function of one number under its name, computed in double precision."""
    x = floating(t)
    value = cast(formula(cast(x, float64)), x.dtype)
    return t._new(call(name, value.uop, x.uop))


def of_two(t: T, other: Any, name: str, formula: Callable[[T, T], T]) -> T:
    """A function of two numbers under its name, computed in double precision."""
    x, y = (t._new(node) for node in meet(t, other, floating=True))
    sizes = broadcast_shapes(x.shape, y.shape)
    a, b = expand(x, sizes), expand(y, sizes)
    value = cast(formula(cast(a, float64), cast(b, float64)), x.dtype)
    return t._new(call(name, value.uop, a.uop, b.uop))
