"""Functions of numbers, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, as_operand, elementwise, op, tensor_of
from morok.torch.types import from_torch


def _methods(names: str, floating: bool, prefix: str = "") -> None:
    """Overloads `aten.name.default` that are the method of the same name."""
    for name in names.split():
        method = getattr(Tensor, name, None)
        if method is not None:
            elementwise(f"{prefix}{name}.default", operands=(0,), floating=floating)(_calling(name))


def _calling(name: str) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        return getattr(x, name)()

    function.__doc__ = getattr(Tensor, name).__doc__
    function.__module__ = __name__
    return function


_methods(
    "exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv sigmoid reciprocal lgamma digamma i0 sinc",
    floating=True,
)
_methods("abs neg square frac relu isnan isinf signbit logical_not bitwise_not isposinf isneginf", False)


_methods("i0e i1 i1e ndtri log_ndtr", floating=True, prefix="special_")


@elementwise("sign.default", "sgn.default", operands=(0,))
def sign(x: T) -> T:
    """Of a NaN it is 0 in torch, as it is neither above nor below."""
    return x.isnan().where(0.0, x.sign()) if x.dtype.is_float else x.sign()


@elementwise("floor.default", "ceil.default", "trunc.default", "round.default", operands=(0,))
def rounded(x: T, call: Call) -> T:
    if not x.dtype.is_float:
        return x
    name = str(call.node.target).split(".")[1]
    return getattr(x, name)()


@elementwise("round.decimals", operands=(0,))
def round_decimals(x: T, decimals: int = 0) -> T:
    return x.round(decimals) if x.dtype.is_float else x


# --- arithmetic


@elementwise("add.Tensor", "add.Scalar")
def add(x: Any, y: Any, alpha: Any = 1, *, call: Call) -> T:
    x, y = _pair(x, y, call)
    if x.dtype is dt.bool_:
        return x | (y if alpha else False)
    return x + (y if alpha == 1 else y * alpha)


@elementwise("sub.Tensor", "sub.Scalar")
def sub(x: Any, y: Any, alpha: Any = 1, *, call: Call) -> T:
    x, y = _pair(x, y, call)
    return x - (y if alpha == 1 else y * alpha)


@elementwise("rsub.Tensor", "rsub.Scalar")
def rsub(x: Any, y: Any, alpha: Any = 1, *, call: Call) -> T:
    x, y = _pair(x, y, call)
    return y - (x if alpha == 1 else x * alpha)


@elementwise("mul.Tensor", "mul.Scalar")
def mul(x: Any, y: Any, call: Call) -> T:
    x, y = _pair(x, y, call)
    return x & y if x.dtype is dt.bool_ else x * y


@elementwise("div.Tensor", "div.Scalar", "true_divide.Tensor", floating=True)
def div(x: Any, y: Any, call: Call) -> T:
    x, y = _pair(x, y, call)
    return x / y


@elementwise("div.Tensor_mode", "div.Scalar_mode")
def div_mode(x: Any, y: Any, rounding_mode: str | None = None, *, call: Call) -> T:
    x, y = _pair(x, y, call)
    if rounding_mode is None:
        kind = call.wide
        return x.cast(kind) / y.cast(kind)
    return x.div(y, rounding_mode=rounding_mode)


@elementwise("floor_divide.default", "floor_divide.Scalar")
def floor_divide(x: Any, y: Any, call: Call) -> T:
    x, y = _pair(x, y, call)
    return x.floor_divide(y)


@elementwise("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(x: Any, y: Any, call: Call) -> T:
    x, y = _pair(x, y, call)
    return x.remainder(y)


@elementwise("fmod.Tensor", "fmod.Scalar")
def fmod(x: Any, y: Any, call: Call) -> T:
    x, y = _pair(x, y, call)
    return x.fmod(y)


@elementwise("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(x: Any, y: Any, call: Call) -> T:
    if isinstance(y, int | float) and isinstance(x, Tensor):
        if y == 2:
            return x * x
        if y == 1:
            return x
        if y == 0.5:
            return x.sqrt()
        if y == -0.5:
            return x.rsqrt()
        if y == 3:
            return x * x * x
    x, y = _pair(x, y, call)
    return x**y


def _pair(x: Any, y: Any, call: Call) -> tuple[Any, Any]:
    """Two operands, at least the first of which is a tensor."""
    if isinstance(x, Tensor):
        if isinstance(y, Tensor) or not isinstance(y, int | float):
            return x, y
        return x, tensor_of(y, x.dtype)
    kind = y.dtype
    return tensor_of(x, kind), y


_OF_TWO = {
    "maximum": "maximum.default", "minimum": "minimum.default",
    "fmax": "fmax.default", "fmin": "fmin.default",
    "logaddexp": "logaddexp.default", "logaddexp2": "logaddexp2.default",
    "hypot": "hypot.default", "copysign": "copysign.Tensor copysign.Scalar",
    "lt": "lt.Tensor lt.Scalar", "le": "le.Tensor le.Scalar", "gt": "gt.Tensor gt.Scalar",
    "ge": "ge.Tensor ge.Scalar", "eq": "eq.Tensor eq.Scalar", "ne": "ne.Tensor ne.Scalar",
    "bitwise_and": "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor",
    "bitwise_or": "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor",
    "bitwise_xor": "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor",
    "bitwise_left_shift":
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor "
        "__lshift__.Tensor __lshift__.Scalar",
    "bitwise_right_shift":
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor "
        "__rshift__.Tensor __rshift__.Scalar",
    "gcd": "gcd.default", "lcm": "lcm.default", "nextafter": "nextafter.default",
}  # fmt: skip
_OF_TWO_FLOATS = {
    "atan2": "atan2.default", "xlogy": "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self",
    "igamma": "igamma.default", "igammac": "igammac.default",
}  # fmt: skip


def _of_two(name: str, floating: bool, overloads: str) -> None:
    def function(x: Any, y: Any, call: Call) -> Any:
        x, y = _pair(x, y, call)
        return getattr(x, name)(y)

    function.__doc__ = getattr(Tensor, name).__doc__
    function.__module__ = __name__
    elementwise(*overloads.split(), floating=floating)(function)


for _floating, _names in ((False, _OF_TWO), (True, _OF_TWO_FLOATS)):
    for _name, _overloads in _names.items():
        if hasattr(Tensor, _name):
            _of_two(_name, _floating, _overloads)


for _name in ("logical_and", "logical_or", "logical_xor"):
    _of_two(_name, False, f"{_name}.default")


@elementwise("heaviside.default")
def heaviside(x: T, at_zero: T) -> T:
    """Of a NaN it is 0 in torch."""
    return x.eq(0).where(at_zero, (x > 0).cast(x.dtype))


@op("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(condition: T, x: Any, y: Any, call: Call) -> T:
    kind = call.dtype
    chosen = condition.where(tensor_of(x, kind), tensor_of(y, kind))
    return chosen.expand(*call.shape) if chosen.shape != call.shape else chosen


@elementwise("clamp.default", "clamp.Tensor", "hardtanh.default", operands=(0, 1, 2))
def clamp(x: T, low: Any = None, high: Any = None, *, call: Call, **limits: Any) -> T:
    low, high = limits.get("min", low), limits.get("max", high)
    if low is None and high is None and "hardtanh" in str(call.node.target):
        low, high = -1.0, 1.0
    if low is not None:
        x = x.maximum(tensor_of(low, x.dtype))
    if high is not None:
        x = x.minimum(tensor_of(high, x.dtype))
    return x


@elementwise("clamp_min.default", "clamp_min.Tensor")
def clamp_min(x: T, low: Any) -> T:
    return x.maximum(tensor_of(low, x.dtype))


@elementwise("clamp_max.default", "clamp_max.Tensor")
def clamp_max(x: T, high: Any) -> T:
    return x.minimum(tensor_of(high, x.dtype))


@elementwise("lerp.Scalar", "lerp.Tensor", operands=(0, 1, 2))
def lerp(x: T, end: T, weight: Any) -> T:
    """From x toward `end`, from the nearer side."""
    w = tensor_of(weight, x.dtype)
    return (w.abs() < 0.5).where(x + w * (end - x), end - (end - x) * (1 - w))


@elementwise("addcmul.default", operands=(0, 1, 2))
def addcmul(x: T, a: T, b: T, value: Any = 1) -> T:
    return x + (a * b if value == 1 else a * b * value)


@elementwise("addcdiv.default", operands=(0, 1, 2), floating=True)
def addcdiv(x: T, a: T, b: T, value: Any = 1) -> T:
    return x + (a / b if value == 1 else (a / b) * value)


@elementwise("prims.fma.default", operands=(0, 1, 2))
def fma(x: T, y: Any, z: Any) -> T:
    """What torch's foreach functions of optimisers become."""
    return x * y + z


@elementwise("nan_to_num.default", operands=(0,))
def nan_to_num(
    x: T, nan: float | None = None, posinf: float | None = None, neginf: float | None = None, *, call: Call
) -> T:
    if not x.dtype.is_float:
        return x
    kind = call.dtype  # the largest numbers are those of the result's type
    high = kind.max_finite if hasattr(kind, "max_finite") else torch.finfo(call.val.dtype).max
    low = torch.finfo(call.val.dtype).min
    x = x.isnan().where(0.0 if nan is None else nan, x)
    x = x.eq(math.inf).where(high if posinf is None else posinf, x)
    return x.eq(-math.inf).where(low if neginf is None else neginf, x)


@op("polygamma.default")
def polygamma(order: int, x: T, *, call: Call) -> T:
    return x.cast(call.wide).polygamma(order)


@elementwise("isfinite.default", operands=(0,))
def isfinite(x: T) -> T:
    return x.isfinite()


@elementwise("ldexp.Tensor", floating=True)
def ldexp(x: T, y: T) -> T:
    return x * y.exp2()


# --- activation functions


@elementwise("gelu.default", operands=(0,))
def gelu(x: T, approximate: str = "none") -> T:
    return x.gelu(approximate)


@elementwise("silu.default", operands=(0,))
def silu(x: T) -> T:
    return x * x.sigmoid()


@elementwise("leaky_relu.default", operands=(0,))
def leaky_relu(x: T, slope: float = 0.01) -> T:
    return (x > 0).where(x, x * slope)


@elementwise("elu.default", operands=(0,))
def elu(x: T, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> T:
    return (x > 0).where(x * scale, (x * input_scale).expm1() * (alpha * scale))


@elementwise("softplus.default", operands=(0,))
def softplus(x: T, beta: float = 1, threshold: float = 20) -> T:
    scaled = x * beta
    return (scaled > threshold).where(x, scaled.exp().log1p() / beta)


@elementwise("mish.default", operands=(0,))
def mish(x: T) -> T:
    return x.mish()


@elementwise("hardsigmoid.default", operands=(0,))
def hardsigmoid(x: T) -> T:
    return (x + 3).clamp(0, 6) / 6


@elementwise("hardswish.default", operands=(0,))
def hardswish(x: T) -> T:
    return x * (x + 3).clamp(0, 6) / 6


@op("threshold_backward.default")
def threshold_backward(grad: T, x: T, threshold: Any, call: Call) -> T:
    return (x.cast(call.wide) <= threshold).where(tensor_of(0, grad.dtype), grad)


# --- conversion


@op("_to_copy.default", "to.dtype")
def to_copy(x: T, dtype: Any = None, call: Call = None) -> T:  # type: ignore[assignment]
    return x if dtype is None else converted(x, dtype)


@op("prims.convert_element_type.default")
def convert(x: T, dtype: Any) -> T:
    return converted(x, dtype)


def converted(x: T, dtype: Any) -> T:
    """In another type of torch's."""
    kind = from_torch(dtype)
    return x.ne(0) if kind is dt.bool_ and x.dtype is not dt.bool_ else x.cast(kind)


@op("view.dtype")
def view_dtype(x: T, dtype: Any) -> T:
    kind = from_torch(dtype)
    if x.dtype.itemsize != kind.itemsize and x.ndim == 0:
        raise NotImplementedError("a scalar in a type of another size")
    return x.bitcast(kind)


@op(
    "clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "lift_fresh.default",
    "contiguous.default", "_conj.default", "prims.device_put.default", "positive.default",
)  # fmt: skip
def same(x: T, *_: Any) -> T:
    """The same values: what is a copy and what is not is said by the results' strides and aliases."""
    return x


@op("copy.default")
def copy(x: T, source: Any, non_blocking: bool = False, *, call: Call) -> T:
    return as_operand(source, call.dtype).expand(*call.shape)
