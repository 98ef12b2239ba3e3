"""Every element-wise operation with its NumPy oracle, the types it takes, and how near it has to come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.tensor.interface.table_values import ALL, BOOL, FLOATS, INTS, as_floats, wide

Array = Any


@dataclass(frozen=True)
class Entry:
    """One operation: how morok and NumPy compute it. `ulps` 0 means the same bits."""

    call: Callable[..., Any]
    oracle: Callable[..., Any]
    types: tuple[str, ...] = ALL
    ulps: float = 0.0
    domain: Callable[..., Array] | None = None  # where both are defined
    zero_signs: bool = True  # whether 0 and -0 are told apart: NumPy's maximum takes either


def method(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda x, *others: getattr(x, name)(*others, *args, **kwargs)


def exact(name: str, oracle: Any, types: tuple[str, ...] = ALL) -> dict[str, Entry]:
    return {name: Entry(method(name), oracle, types)}


def smooth(
    name: str, oracle: Any, *args: Any, ulps: float = 4.0, types: tuple[str, ...] = ALL, **options: Any
) -> dict[str, Entry]:
    """A function that rounds more than once."""
    return {name: Entry(method(name, *args), as_floats(oracle), types, ulps, **options)}


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _logistic(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + _erf(x * math.sqrt(0.5)))


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x)))


def _sinc(x: Array) -> Array:
    whole = np.rint(x)  # NumPy's own sinc multiplies by π first, which loses the fraction
    wave = np.sin(np.pi * (x - whole)) * np.where(np.fmod(whole, 2) == 0, 1.0, -1.0)
    return np.where(x == 0, 1.0, wave / np.where(x == 0, 1.0, np.pi * x))


def _logit(x: Array) -> Array:
    return np.where(np.abs(x - 0.5) < 0.3, np.log1p((2 * x - 1) / (1 - x)), np.log(x / (1 - x)))


def _sign(x: Array) -> Array:
    return x if x.dtype == bool else np.sign(x)


def _limited(x: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))


def _float_or_same(function: Any) -> Any:
    """Rounding leaves whole numbers as they are."""
    return lambda x: function(x) if x.dtype.kind not in "biu" else x


def _does_not_cancel(x: Array, y: Array) -> Array:
    """Where a logarithm of a sum is not much smaller than its arguments."""
    with np.errstate(all="ignore"):
        a, b = x.astype(np.float64), y.astype(np.float64)
        least = np.minimum(np.abs(np.logaddexp(a, b)), np.abs(np.logaddexp2(a, b)))
        return ~(least < 0.3 * np.maximum(np.abs(np.maximum(a, b)), 0.7))


NUMBERS = INTS + FLOATS
_TRUNC = {
    name: Entry(method(name), _float_or_same(getattr(np, oracle)), NUMBERS)
    for name, oracle in (("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("round", "rint"))
}

UNARY: dict[str, Entry] = {
    # the same bits
    **exact("neg", np.negative, NUMBERS),
    **exact("__neg__", np.negative, NUMBERS),
    **exact("abs", np.abs),
    **exact("__abs__", np.abs),
    **exact("positive", np.positive, NUMBERS),
    **exact("__pos__", lambda x: x),
    **exact("square", np.square, NUMBERS),
    **exact("sign", lambda x: np.sign(wide(x)).astype(x.dtype) if x.dtype.kind not in "biu" else _sign(x)),
    **_TRUNC,
    **exact("signbit", lambda x: np.signbit(x) if x.dtype.kind not in "biu" else x < 0),
    **exact("isnan", lambda x: np.isnan(x) if x.dtype.kind not in "biu" else x != x),
    **exact("isinf", lambda x: np.isinf(x) if x.dtype.kind not in "biu" else x != x),
    **exact("isfinite", lambda x: np.isfinite(x) if x.dtype.kind not in "biu" else x == x),
    **exact("isposinf", lambda x: x.astype(np.float64) == np.inf),
    **exact("isneginf", lambda x: x.astype(np.float64) == -np.inf),
    **exact("logical_not", np.logical_not),
    **exact("bitwise_not", np.invert, BOOL + INTS),
    **exact("__invert__", np.invert, BOOL + INTS),
    **exact("sqrt", as_floats(np.sqrt)),
    **exact("reciprocal", as_floats(np.reciprocal)),
    **exact("frac", lambda x: x - np.trunc(x) if x.dtype.kind not in "biu" else x * x.dtype.type(0), NUMBERS),
    "relu": Entry(method("relu"), lambda x: np.maximum(x, x.dtype.type(0)), NUMBERS, zero_signs=False),
    "relu6": Entry(method("relu6"), lambda x: _limited(x, 0, 6), NUMBERS, zero_signs=False),
    "hardtanh": Entry(method("hardtanh"), lambda x: _limited(x, -1, 1), FLOATS),
    "clamp": Entry(method("clamp", 1, 5), lambda x: _limited(x, 1, 5), NUMBERS),
    "threshold": Entry(method("threshold", 1.0, 2.0), lambda x: np.where(x <= 1, x.dtype.type(2), x), FLOATS),
    "hardshrink": Entry(
        method("hardshrink"), lambda x: np.where(np.abs(x) <= 0.5, x.dtype.type(0), x), FLOATS
    ),
    "nan_to_num": Entry(
        method("nan_to_num", 7.0, 8.0, -9.0),
        lambda x: np.nan_to_num(x.astype(np.float64), nan=7.0, posinf=8.0, neginf=-9.0).astype(x.dtype),
        FLOATS,
    ),
    "bool": Entry(method("bool"), lambda x: x.astype(bool)),
    "float": Entry(method("float"), lambda x: x.astype(np.float32)),
    "double": Entry(method("double"), lambda x: x.astype(np.float64)),
    # functions
    **{
        name: Entry(method(name), as_floats(getattr(np, name)), ALL, 3.0)
        for name in (
            "exp",
            "exp2",
            "log",
            "log2",
            "log10",
            "expm1",
            "log1p",
            "sin",
            "cos",
            "tan",
            "tanh",
            "arctan",
        )
    },
    **{
        name: Entry(method(name), as_floats(getattr(np, oracle)), ALL, 6.0)
        for name, oracle in (
            ("atan", "arctan"),
            ("asin", "arcsin"),
            ("acos", "arccos"),
            ("sinh", "sinh"),
            ("cosh", "cosh"),
            ("asinh", "arcsinh"),
            ("acosh", "arccosh"),
            ("atanh", "arctanh"),
            ("deg2rad", "deg2rad"),
            ("rad2deg", "rad2deg"),
        )
    },
    **smooth("rsqrt", lambda x: 1 / np.sqrt(x)),
    **smooth("erf", _erf),
    # activation functions
    # a logistic function below the smallest normal number may be 0
    **smooth("sigmoid", _logistic),
    **smooth("silu", _silu, types=FLOATS, domain=lambda x: ~(x.astype(np.float64) < -85)),
    **smooth("logsigmoid", lambda x: -_softplus(-x)),
    **smooth("softplus", _softplus),
    **smooth("leaky_relu", lambda x: np.where(x > 0, x, x * 0.01), types=FLOATS),
    **smooth("elu", _elu),
    **smooth("celu", _elu),
    **smooth("selu", lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772)),
    **smooth("softsign", lambda x: x / (1 + np.abs(x))),
    **smooth("hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, types=FLOATS),
    **smooth("hardswish", lambda x: x * (np.clip(x + 3, 0, 6) / 6), types=FLOATS),
    **smooth(
        "softshrink", lambda x: np.where(x > 0.5, x - 0.5, np.where(x < -0.5, x + 0.5, x * 0.0)), types=FLOATS
    ),
}

BINARY: dict[str, Entry] = {
    **exact("add", np.add),
    **exact("__add__", np.add),
    **exact("__radd__", lambda x, y: np.add(y, x)),
    **exact("sub", np.subtract, NUMBERS),
    **exact("__sub__", np.subtract, NUMBERS),
    **exact("__rsub__", lambda x, y: np.subtract(y, x), NUMBERS),
    **exact("mul", np.multiply),
    **exact("__mul__", np.multiply),
    **exact("__rmul__", lambda x, y: np.multiply(y, x)),
    **exact("div", as_floats(np.divide)),
    **exact("__truediv__", as_floats(np.divide)),
    **exact("__rtruediv__", as_floats(lambda x, y: np.divide(y, x))),
    **{
        name: Entry(method(name), getattr(np, name), zero_signs=False)
        for name in ("maximum", "minimum", "fmax", "fmin")
    },
    **exact(
        "copysign",
        lambda x, y: (
            np.copysign(x.astype(np.float32), y.astype(np.float32))
            if x.dtype.kind in "biu"
            else np.copysign(x, y)
        ),
    ),
    **{
        name: Entry(method(name), getattr(np, oracle))
        for names, oracle in (
            (("eq", "__eq__"), "equal"),
            (("ne", "__ne__"), "not_equal"),
            (("lt", "__lt__"), "less"),
            (("le", "__le__"), "less_equal"),
            (("gt", "__gt__"), "greater"),
            (("ge", "__ge__"), "greater_equal"),
        )
        for name in names
    },
    **exact("logical_and", np.logical_and),
    **exact("logical_or", np.logical_or),
    **exact("logical_xor", np.logical_xor),
    **{
        name: Entry(method(name), getattr(np, oracle), BOOL + INTS)
        for names, oracle in (
            (("bitwise_and", "__and__", "__rand__"), "bitwise_and"),
            (("bitwise_or", "__or__", "__ror__"), "bitwise_or"),
            (("bitwise_xor", "__xor__", "__rxor__"), "bitwise_xor"),
        )
        for name in names
    },
    **{
        name: Entry(method(name), getattr(np, oracle), INTS, domain=lambda x, y: y >= 0)
        for names, oracle in (
            (("bitwise_left_shift", "__lshift__"), "left_shift"),
            (("bitwise_right_shift", "__rshift__"), "right_shift"),
        )
        for name in names
    },
    **{
        name: Entry(method(name), getattr(np, oracle), NUMBERS)
        for name, oracle in (
            ("floor_divide", "floor_divide"),
            ("__floordiv__", "floor_divide"),
            ("remainder", "remainder"),
            ("__mod__", "remainder"),
            ("fmod", "fmod"),
        )
    },
    "heaviside": Entry(method("heaviside"), np.heaviside, FLOATS),
    "isclose": Entry(
        method("isclose", 0.1, 0.5),
        lambda x, y: np.isclose(x.astype(np.float64), y.astype(np.float64), 0.1, 0.5),
        ("float32", "float64", "int32", "uint8"),
    ),
    "masked_fill": Entry(
        lambda x, y: x.masked_fill(y > 1, 1), lambda x, y: np.where(y > 1, x.dtype.type(1), x), NUMBERS
    ),
    "where": Entry(lambda x, y: (x < y).where(x, y), lambda x, y: np.where(x < y, x, y)),
    "pow": Entry(method("pow"), as_floats(np.power), FLOATS, 4.0),
    "__pow__": Entry(method("__pow__"), np.power, INTS, domain=lambda x, y: (y >= 0) & (y < 64)),
    "__rpow__": Entry(method("__rpow__"), as_floats(lambda x, y: np.power(y, x)), FLOATS, 4.0),
    "float_power": Entry(
        method("float_power"), lambda x, y: np.float_power(wide(x), wide(y)), ("float32",), 4.0
    ),
    "atan2": Entry(method("atan2"), as_floats(np.arctan2), FLOATS, 6.0),
    "hypot": Entry(method("hypot"), as_floats(np.hypot), FLOATS, 4.0),
    **{
        name: Entry(method(name), as_floats(getattr(np, name)), FLOATS, 6.0, domain=_does_not_cancel)
        for name in ("logaddexp", "logaddexp2")
    },
    "lerp": Entry(
        lambda x, y: x.lerp(y, 0.25),
        as_floats(lambda x, y: x + (y - x) * 0.25),
        ("float64",),
        2.0,
    ),
    "addcmul": Entry(
        lambda x, y: x.addcmul(x, y, 2),
        lambda x, y: x + x * y * x.dtype.type(2),
        ("float64", "int32", "uint8"),
    ),
    "addcdiv": Entry(lambda x, y: x.addcdiv(x, y, 2), lambda x, y: x + x / y * 2, ("float64",)),
    "ldexp": Entry(
        lambda x, y: x.ldexp(y),
        as_floats(lambda x, y: x * np.exp2(y)),
        FLOATS,
        4.0,
        domain=lambda x, y: np.abs(y.astype(np.float64)) < 80,
    ),
    "xlogy": Entry(
        method("xlogy"),
        as_floats(lambda x, y: np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log(y))),
        FLOATS,
        4.0,
    ),
}

# On values of a usual size: an error is relative to the largest term, not to what cancels.
USUAL: dict[str, Entry] = {
    **smooth("gelu", _gelu, ulps=16.0),
    **smooth("quick_gelu", lambda x: x * _logistic(1.702 * x), ulps=16.0),
    **smooth("mish", lambda x: x * np.tanh(_softplus(x)), ulps=8.0),
    **smooth("tanhshrink", lambda x: x - np.tanh(x), ulps=16.0, domain=lambda x: x > 0.4),
    **smooth("sinc", _sinc, ulps=16.0),
    **smooth("logit", _logit),
}
