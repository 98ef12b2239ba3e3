"""Derivatives of special functions, by their names; each is made of special functions again."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from morok.errors import MorokError
from morok.ir.call import call_name
from morok.ir.node import UOp
from morok.ir.provenance import place
from morok.tensor.gradient.walk import CALLS
from morok.tensor.special import bessel, errors, gamma

_SLOPE = 2.0 / math.sqrt(math.pi)

# name → the derivative, from the argument and the result
ONE: dict[str, Callable[[Any, Any], Any]] = {
    "erfc": lambda x, y: (-x * x).exp() * -_SLOPE,
    "erfcx": lambda x, y: x * y * 2.0 - _SLOPE,
    "erfinv": lambda x, y: (y * y).exp() / _SLOPE,
    "ndtr": lambda x, y: (x * x * -0.5).exp() * (0.5 * _SLOPE * math.sqrt(0.5)),
    "ndtri": lambda x, y: (y * y * 0.5).exp() * math.sqrt(2.0 * math.pi),
    "log_ndtr": lambda x, y: _SLOPE * math.sqrt(0.5) / errors.erfcx(x * -math.sqrt(0.5)),
    "lgamma": lambda x, y: gamma.digamma(x),
    "digamma": lambda x, y: gamma.polygamma(x, 1),
    "i0": lambda x, y: bessel.i1(x),
    "i0e": lambda x, y: bessel.i1e(x) - x.sign() * y,
    "i1": lambda x, y: bessel.i0(x) - _over(y, x, 0.5),
    "i1e": lambda x, y: bessel.i0e(x) - x.sign() * y - _over(y, x, 0.5),
    "j0": lambda x, y: -bessel.bessel_j1(x),
    "j1": lambda x, y: bessel.bessel_j0(x) - _over(y, x, 0.5),
    "y0": lambda x, y: -bessel.bessel_y1(x),
    "y1": lambda x, y: bessel.bessel_y0(x) - y / x,
    "k0": lambda x, y: -bessel.modified_bessel_k1(x),
    "k1": lambda x, y: -bessel.modified_bessel_k0(x) - y / x,
    "k0e": lambda x, y: y - bessel.scaled_modified_bessel_k1(x),
    "k1e": lambda x, y: y - bessel.scaled_modified_bessel_k0(x) - y / x,
    "spherical_j0": lambda x, y: _over(x.cos() - y, x, 0.0),
}


def _over(y: Any, x: Any, at_zero: float) -> Any:
    """y / x, and its limit at 0."""
    zero = x.eq(0.0)
    return zero.where(at_zero, y / zero.where(1.0, x))


def _density(a: Any, x: Any) -> Any:
    """The derivative of the lower incomplete gamma function."""
    return ((a - 1.0) * x.log() - x - gamma.lgamma(a)).exp()


def _xlog1py(x: Any, y: Any, which: int) -> Any:
    if which == 0:
        nothing = x.eq(0.0) & (y <= -1.0)
        return nothing.where(0.0, nothing.where(0.0, y).log1p())
    return x / (y + 1.0)


TWO: dict[str, Callable[[Any, Any, int], Any]] = {
    "xlog1py": _xlog1py,
    "beta": lambda a, b, which: gamma.beta(a, b) * (gamma.digamma((a, b)[which]) - gamma.digamma(a + b)),
    "betaln": lambda a, b, which: gamma.digamma((a, b)[which]) - gamma.digamma(a + b),
}
_SECOND: dict[str, Callable[[Any, Any], Any]] = {  # of two arguments, the second one's
    "zeta": lambda s, q: -s * gamma.zeta(s + 1.0, q),
    "gammainc": _density,
    "gammaincc": lambda a, x: -_density(a, x),
}


def _pull_one(new: Callable[[UOp], Any], node: UOp, g: UOp, source: int) -> UOp:
    name = call_name(node)
    x, y, slope = new(node.src[1]), new(node), new(g)
    if name.startswith("polygamma"):
        found = gamma.polygamma(x, int(name.removeprefix("polygamma")) + 1)
    else:
        found = ONE[name](x, y)
    result: UOp = (slope * found).uop
    return result


def _pull_two(new: Callable[[UOp], Any], node: UOp, g: UOp, source: int) -> UOp:
    name = call_name(node)
    a, b = new(node.src[1]), new(node.src[2])
    if name in TWO:
        found = TWO[name](a, b, source - 1)
    elif source == 2:
        found = _SECOND[name](a, b)
    else:
        raise MorokError(
            f"{name} has no derivative with respect to its first argument here; detach() it",
            place=place(node),
        )
    result: UOp = (new(g) * found).uop
    return result


def enter_gradients(new: Callable[[UOp], Any]) -> None:
    """The derivatives above become known to the walk; `new` makes a tensor of a node."""
    for name in (*ONE, *(f"polygamma{n}" for n in range(1, 40))):
        CALLS[name] = partial(_pull_one, new)
    for name in (*TWO, *_SECOND):
        CALLS[name] = partial(_pull_two, new)
