"""NumPy's functions on tensors: `np.exp(t)`, `np.mean(t)`, `array + t`.

What a tensor has a method for is that method: the result is a lazy tensor with a gradient. Anything else is
computed by NumPy itself, on the tensor's values, and its arrays become tensors again. No gradient flows
through those, so tensors that require one are refused; so are functions that would write into a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from morok.errors import DTypeError, MorokError
from morok.tensor.core import Core
from morok.tensor.creation.constructors import from_data
from morok.tensor.dtypes import is_dtype
from morok.tensor.elementwise.named import beside
from morok.tensor.export import numpy
from morok.tensor.gradient.backward import requires_grad

# Ufuncs that are methods by the same name, with the same meaning.
UFUNCS = frozenset((
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "float_power",
    "negative", "positive", "absolute", "rint", "sign", "heaviside", "exp", "exp2", "log", "log2", "log10",
    "expm1", "log1p", "sqrt", "square", "reciprocal", "sin", "cos", "tan", "arcsin", "arccos", "arctan",
    "arctan2", "hypot", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "degrees", "radians",
    "deg2rad", "rad2deg", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift",
    "greater", "greater_equal", "less", "less_equal", "not_equal", "equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "maximum", "minimum", "fmax", "fmin", "isfinite", "isinf", "isnan",
    "signbit", "copysign", "ldexp", "floor", "ceil", "trunc", "logaddexp", "logaddexp2", "matmul",
))  # fmt: skip

# Functions (x, axis=None, dtype=None, keepdims=False) that are methods by the same name.
_REDUCTIONS = frozenset((
    "sum", "prod", "max", "min", "amax", "amin", "any", "all", "mean", "argmax", "argmin", "cumsum",
    "cumprod", "count_nonzero", "nansum", "nanmean", "nanmax", "nanmin", "median",
))  # fmt: skip
_WRITERS = frozenset(("copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"))


def _spread(method: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Any:
        return getattr(x, method)(axis, correction=ddof, keepdims=keepdims)

    return call


# Others, written with the names that NumPy has for their arguments; what they do not take, NumPy computes.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ndim": lambda a: a.ndim,
    "shape": lambda a: a.shape,
    "size": lambda a: a.numel(),
    "var": _spread("var"),
    "std": _spread("std"),
    "reshape": lambda a, shape: a.reshape(shape),
    "ravel": lambda a: a.ravel(),
    "transpose": lambda a, axes=None: a.T if axes is None else a.permute(axes),
    "swapaxes": lambda a, axis1, axis2: a.swapaxes(axis1, axis2),
    "moveaxis": lambda a, source, destination: a.movedim(source, destination),
    "squeeze": lambda a, axis=None: a.squeeze(axis),
    "expand_dims": lambda a, axis: a.unsqueeze(axis),
    "flip": lambda m, axis=None: m.flip(axis),
    "clip": lambda a, a_min=None, a_max=None: a.clamp(a_min, a_max),
    "round": lambda a, decimals=0: a.round(decimals),
    "where": lambda condition, x, y: condition.bool().where(x, y),
    "concatenate": lambda arrays, axis=0: arrays[0].cat(*arrays[1:], dim=axis),
    "stack": lambda arrays, axis=0: arrays[0].stack(*arrays[1:], dim=axis),
    "dot": lambda a, b: a.dot(b),
    "tril": lambda m, k=0: m.tril(k),
    "triu": lambda m, k=0: m.triu(k),
}


def call_ufunc(like: Any, ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`ufunc(*inputs, **kwargs)`, or one of its methods, with a tensor somewhere."""
    name = ufunc.__name__
    whole = name == "reciprocal" and not like.dtype.is_float  # NumPy's is then an integer
    if method == "__call__" and not kwargs and name in (*UFUNCS, "divmod") and not whole:
        first = inputs[0]
        if not isinstance(first, Core):
            number = isinstance(first, bool | int | float) and not isinstance(first, np.generic)
            first = beside(like, first) if number else from_data(like, first)
        return getattr(first, "__divmod__" if name == "divmod" else name)(*inputs[1:])
    target = kwargs.get("out", ())
    if any(isinstance(x, Core) for x in target):
        raise DTypeError(f"np.{name} cannot write into a tensor; assign its result to the tensor instead")
    call = ufunc if method == "__call__" else getattr(ufunc, method)
    return _by_numpy(like, name, call, inputs, kwargs)


def call_function(like: Any, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`function(*args, **kwargs)` of NumPy with a tensor somewhere."""
    name = function.__name__
    if name in _WRITERS and isinstance(args[0] if args else None, Core):
        raise DTypeError(f"np.{name} cannot write into a tensor; assign to a part of it, x[…] = y")
    if function.__module__ == "numpy":
        known = FUNCTIONS.get(name)
        if name in _REDUCTIONS and kwargs.keys() <= {"axis", "keepdims", "dtype"} and len(args) <= 2:
            known = getattr(type(like), name)
        if known is not None and _is_mine(args):
            try:
                return known(*args, **kwargs)
            except TypeError:  # arguments that only NumPy knows
                pass
    return _by_numpy(like, name, function, args, kwargs)


def _is_mine(args: tuple[Any, ...]) -> bool:
    """Whether the first argument is a tensor, or a sequence of tensors."""
    first = args[0] if args else None
    if isinstance(first, tuple | list):
        return bool(first) and all(isinstance(x, Core) for x in first)
    return isinstance(first, Core)


def _by_numpy(
    like: Any, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    plain = [_as_arrays(x, name) for x in args]
    result = call(*plain, **{k: _as_arrays(v, name) for k, v in kwargs.items()})
    return result if kwargs.get("out") is not None else _as_tensors(like, result)


def _as_arrays(value: Any, name: str) -> Any:
    """Tensors, also in lists, as arrays that cannot be written."""
    if isinstance(value, tuple | list):
        return type(value)([_as_arrays(x, name) for x in value])
    if not isinstance(value, Core):
        return value
    if requires_grad(value):
        raise MorokError(
            f"np.{name} is computed by NumPy, through which no gradient flows; detach() the tensor first"
        )
    array = numpy(value).view()
    array.flags.writeable = False
    return array


def _as_tensors(like: Any, value: Any) -> Any:
    """Arrays as tensors; types that tensors do not have stay NumPy's, complex numbers say."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray | np.generic) and is_dtype(value.dtype):
        return from_data(like, value)
    if value.__class__ in (tuple, list):
        return value.__class__([_as_tensors(like, x) for x in value])
    return value
