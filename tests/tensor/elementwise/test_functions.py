"""Functions of one number against NumPy and against their definitions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from tests.tensor.common import same

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-5,
    -1e-5,
    2.5,
    -2.5,
    30.0,
    -30.0,
    3e38,
    math.inf,
    -math.inf,
    math.nan,
]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "expm1": np.expm1,
    "log1p": np.log1p, "sqrt": np.sqrt, "square": np.square, "reciprocal": np.reciprocal, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "sign": np.sign,
    "rsqrt": lambda x: 1 / np.sqrt(x), "erf": np.vectorize(math.erf, otypes=[float]),
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_edge_values(name: str, dtype: str) -> None:
    x = np.array(EDGES, dtype)
    if name in ("sin", "cos", "tan"):
        x = x[np.abs(x) < 1e30]
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](x.astype(np.float64))
        wanted = np.asarray(wanted).astype(bool if name.startswith(("is", "signbit")) else dtype)
    same(getattr(Tensor(x), name)(), wanted, rtol=4e-7 if dtype == "float32" else 1e-14, atol=1e-45)


def test_integers_become_floats() -> None:
    same(Tensor([0, 1]).exp(), np.exp(np.array([0, 1])).astype(np.float32), rtol=1e-7)
    same(Tensor([True, False]).sqrt(), np.array([1, 0], np.float32))
    same(Tensor([1, 2]).floor(), np.array([1, 2]))
    same(Tensor(np.array([1, 4], np.float16)).sqrt(), np.array([1, 2], np.float16))
    same(Tensor([1, -2]).isnan(), np.array([False, False]))
    same(Tensor([1, -2]).isfinite(), np.array([True, True]))
    same(Tensor([3, 0, -2]).sign(), np.array([1, 0, -1]))
    same(Tensor(np.array([3, 0], np.uint8)).sign(), np.array([1, 0], np.uint8))


def test_signs() -> None:
    x = np.array([1.0, -2.0, 0.0, -0.0], np.float32)
    same(Tensor(x).copysign(-1.0), np.copysign(x, np.float32(-1)))
    same(Tensor(x).copysign(Tensor(-x)), np.copysign(x, -x))
    assert np.signbit(Tensor(x).copysign(-1.0).numpy()).all()
    same(Tensor(x).lerp(Tensor(x) + 4, 0.25), x + 1)
    same(round(Tensor([1.234, 2.5])), np.array([1, 2], np.float32))
    same(round(Tensor([1.234]), 1), np.array([1.2], np.float32), rtol=1e-6)
    same(Tensor([1.0]).atan2(Tensor([-1.0])), np.array([3 * math.pi / 4], np.float32), rtol=1e-7)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "sigmoid": _sigmoid,
    "logsigmoid": lambda x: -_softplus(-x),
    "softplus": _softplus,
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + FUNCTIONS["erf"](x / math.sqrt(2))),
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softsign": lambda x: x / (1 + np.abs(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = np.array([-80.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.7, 2.0, 5.0, 80.0])
    same(getattr(Tensor(x), name)(), ACTIVATIONS[name](x), rtol=1e-12, atol=1e-14)
    single = x.astype(np.float32)
    same(getattr(Tensor(single), name)(), ACTIVATIONS[name](x).astype(np.float32), rtol=1e-5, atol=1e-6)


def test_gelu_by_tanh() -> None:
    x = np.linspace(-4, 4, 9)
    wanted = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    # 1 + tanh(x) loses what tanh(x) has in common with -1: an ulp of it is what remains
    same(Tensor(x).gelu("tanh"), wanted, rtol=1e-14, atol=4 * np.finfo(np.float64).eps)
    single = Tensor(x.astype(np.float32)).gelu("tanh")
    same(single, wanted.astype(np.float32), rtol=3e-6, atol=0.0)  # here nothing is lost
    ends = Tensor([-np.inf, -1e30, -0.0, 1e30, np.inf, np.nan]).gelu("tanh")
    same(ends, np.array([np.nan, -0.0, -0.0, 1e30, np.inf, np.nan], np.float32))
    with pytest.raises(ValueError, match="approximate"):
        Tensor(x).gelu("sometimes")


def _sigmoid(x: Any) -> Any:
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


@pytest.mark.parametrize(
    ("name", "exact", "most"),
    [
        ("gelu", lambda x: np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x]), 0.68),
        ("gelu tanh", lambda x: x * _sigmoid((x + 0.044715 * x**3) * math.sqrt(8 / math.pi)), 0.51),
        ("silu", lambda x: x * _sigmoid(x), 0.51),
        ("sigmoid", _sigmoid, 0.51),
        ("quick_gelu", lambda x: x * _sigmoid(1.702 * x), 0.51),
        ("exp", np.exp, 0.51),
        ("exp2", np.exp2, 0.51),
    ],
)
def test_functions_of_half_precision_are_rounded_once(name: str, exact: Any, most: float) -> None:
    """Every number of the type, in units of the last place of what is right."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        want = exact(x.astype(np.float64))
    inside = np.abs(want) < 65504
    x, want = x[inside], want[inside]
    unit = np.spacing(np.abs(want).astype(np.float16)).astype(np.float64)
    got = Tensor(x).gelu("tanh") if name == "gelu tanh" else getattr(Tensor(x), name)()
    assert got.dtype.name == "float16"
    assert float((np.abs(got.numpy().astype(np.float64) - want) / unit).max()) <= most


def test_gelu_of_half_precision_at_the_ends() -> None:
    x = np.array([np.inf, np.nan, -0.0, 6e4, -6e4], dtype=np.float16)
    got = Tensor(x).gelu()
    same(got, np.array([np.inf, np.nan, -0.0, 6e4, -0.0], dtype=np.float16))
    assert np.signbit(got.numpy()[2])
    bf = Tensor([-1e30, 1e30, -20.0]).cast("bfloat16").gelu().cast("float32").numpy()
    assert abs(bf[0]) < 1e-30 and bf[1] > 9e29 and abs(bf[2]) < 1e-8


@pytest.mark.parametrize("name", ["leaky_relu", "elu", "celu", "selu", "softshrink", "hardshrink"])
@pytest.mark.parametrize("kind", ["bool", "int8", "int64", "uint64"])
def test_activations_of_integers_are_float32(name: str, kind: str) -> None:
    assert getattr(Tensor(np.ones(3, kind)), name)().numpy().dtype == np.float32
