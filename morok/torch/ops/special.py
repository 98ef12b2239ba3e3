"""Special functions, as `morok.special` has them: Bessel functions, orthogonal polynomials, zeta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.functions import special
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, as_operand, elementwise, op, tensor_of
from morok.torch.types import from_torch, wide

_OF_ONE = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 "
    "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 "
    "spherical_bessel_j0 erfcx"
)
_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l "
    "legendre_polynomial_p"
)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__doc__ = getattr(special, name).__doc__
    function.__module__ = __name__
    return function


def _of_one(name: str) -> Callable[..., Any]:
    def function(x: T) -> Any:
        return getattr(special, name)(x)

    return _named(function, name)


def _of_two(name: str) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        if not isinstance(x, Tensor):
            return getattr(special, name)(tensor_of(x, y.dtype), y)
        return getattr(special, name)(x, tensor_of(y, x.dtype))

    return _named(function, name)


for _name in _OF_ONE.split():
    elementwise(f"special_{_name}.default", operands=(0,), floating=True)(_of_one(_name))
for _name in _POLYNOMIALS.split():
    _overloads = [f"special_{_name}.{kind}" for kind in ("default", "x_scalar", "n_scalar")]
    elementwise(*_overloads, floating=True)(_of_two(_name))
elementwise("special_zeta.default", "special_zeta.self_scalar", "special_zeta.other_scalar", floating=True)(
    _of_two("zeta")
)


@op("frexp.Tensor")
def frexp(x: T, call: Call) -> Any:
    mantissa, exponent = as_operand(x, from_torch(wide(call.val[0].dtype))).frexp()
    return mantissa, exponent.cast(dt.int32)
