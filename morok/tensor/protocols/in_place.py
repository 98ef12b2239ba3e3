"""Methods that overwrite their tensor, by PyTorch's names: `x.add_(y)` is `x += y`.

Each is made from the method without the underscore, and writes as `assign` does: to the place that the tensor
shows, in whatever storage that is, so that all its views see it. What is no place (`x[[0, 1]].zero_()`) is
refused. The result keeps the tensor's shape and type, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from morok.errors import DTypeError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor import assign as assignment
from morok.tensor import random
from morok.tensor.arrays import reduce, scatter
from morok.tensor.core import Core
from morok.tensor.elementwise import (
    activations,
    arithmetic,
    comparison,
    functions,
    named,
    rounding,
    whole,
)
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg import normalization

Method = Callable[..., Any]


def overwriting(function: Method, arguments: str = "", data: str = "[0.5, 0.25]") -> Method:
    """The method that overwrites its tensor with what a function of it gives; the rest is for the example."""
    name = f"{function.__name__.rstrip('_')}_"

    def method(x: T, *args: Any, **kwargs: Any) -> T:
        return _replace(x, name, function(x, *args, **kwargs))

    method.__name__ = method.__qualname__ = name
    method.__signature__ = signature(function)  # type: ignore[attr-defined]
    method.__doc__ = f"""As `{name[:-1]}`, in place.

    >>> t = Tensor({data})
    >>> t.{name}({arguments}) is t
    True
    """
    return method


def _replace(x: T, name: str, result: Core) -> T:
    if result.dtype.is_float and not x.dtype.is_float:
        raise DTypeError(f"{name} gives {result.dtype} here, which does not fit into {x.dtype}")
    if result.shape != x.shape:
        raise ShapeError(
            f"{name} gives shape {show_shape(result.shape)} here, and the tensor has {show_shape(x.shape)}"
        )
    return assignment.assign(x, result)


def zero_(x: T) -> T:
    """Zeros, in place.

    >>> Tensor([1, 2]).zero_().tolist()
    [0, 0]
    """
    return assignment.assign(x, 0)


def fill_(x: T, value: Any) -> T:
    """The same value everywhere, in place.

    >>> Tensor([1, 2]).fill_(3).tolist()
    [3, 3]
    """
    return assignment.assign(x, value)


def copy_(x: T, src: Any) -> T:
    """As `assign`: another tensor's elements, broadcast and converted, in place.

    >>> Tensor([1, 2]).copy_(Tensor([3.0, 4.5])).tolist()
    [3, 4]
    """
    return assignment.assign(x, src)


def uniform_(x: T, low: float = 0.0, high: float = 1.0, generator: Any = None) -> T:
    """Random numbers between `low` and `high`, in place.

    >>> Tensor.zeros(3).uniform_(2, 3).floor().tolist()
    [2.0, 2.0, 2.0]
    """
    return assignment.assign(x, random.rand_like(x, generator=generator) * (high - low) + low)


def normal_(x: T, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> T:
    """Normal random numbers, in place.

    >>> Tensor.zeros(3).normal_(5.0, 0.0).tolist()
    [5.0, 5.0, 5.0]
    """
    return assignment.assign(x, random.randn_like(x, generator=generator) * std + mean)


add_ = overwriting(arithmetic.add, "2")
sub_ = overwriting(arithmetic.sub, "2")
mul_ = overwriting(arithmetic.mul, "2")
div_ = overwriting(arithmetic.div, "2")
pow_ = overwriting(arithmetic.pow, "2")
floor_divide_ = overwriting(arithmetic.floor_divide, "2")
remainder_ = overwriting(arithmetic.remainder, "2")
fmod_ = overwriting(named.fmod, "2")
neg_ = overwriting(arithmetic.neg)
abs_ = overwriting(arithmetic.abs)
sign_ = overwriting(rounding.sign)
clamp_ = overwriting(comparison.clamp, "0, 1")
clamp_min_ = overwriting(whole.clamp_min, "0")
clamp_max_ = overwriting(whole.clamp_max, "1")
masked_fill_ = overwriting(comparison.masked_fill, "Tensor([True, False]), 0")
addcmul_ = overwriting(named.addcmul, "t, t")
addcdiv_ = overwriting(named.addcdiv, "t, t")
lerp_ = overwriting(functions.lerp, "t, 0.5")
nan_to_num_ = overwriting(named.nan_to_num)
exp_ = overwriting(functions.exp)
log_ = overwriting(functions.log)
sqrt_ = overwriting(functions.sqrt)
rsqrt_ = overwriting(functions.rsqrt)
square_ = overwriting(functions.square)
reciprocal_ = overwriting(functions.reciprocal)
sin_ = overwriting(functions.sin)
cos_ = overwriting(functions.cos)
tanh_ = overwriting(functions.tanh)
sigmoid_ = overwriting(activations.sigmoid)
relu_ = overwriting(activations.relu)
floor_ = overwriting(rounding.floor)
ceil_ = overwriting(rounding.ceil)
round_ = overwriting(rounding.round)
trunc_ = overwriting(rounding.trunc)
tril_ = overwriting(normalization.tril, "", "[[1.0, 2.0], [3.0, 4.0]]")
triu_ = overwriting(normalization.triu, "", "[[1.0, 2.0], [3.0, 4.0]]")
cumsum_ = overwriting(reduce.cumsum, "0")
index_add_ = overwriting(scatter.index_add, "0, Tensor([0]), t[:1]")
index_copy_ = overwriting(scatter.index_copy, "0, Tensor([0]), t[:1]")
index_fill_ = overwriting(scatter.index_fill, "0, Tensor([0]), 1")
index_put_ = overwriting(scatter.index_put, "(Tensor([0]),), t[:1]")
scatter_ = overwriting(scatter.scatter, "0, Tensor([0]), t[:1]")
scatter_add_ = overwriting(scatter.scatter_add, "0, Tensor([0]), t[:1]")
