"""Gradients of functions that half precision computes by formulas of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor


def _gelu(x: Any) -> Any:
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh((x + 0.044715 * x**3) * math.sqrt(2 / math.pi)))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda x: x.gelu(), _gelu),
        (lambda x: x.gelu("tanh"), _gelu_tanh),
        (lambda x: x.silu(), lambda x: x * _sigmoid(x)),
        (lambda x: x.sigmoid(), _sigmoid),
        (lambda x: x.quick_gelu(), lambda x: x * _sigmoid(1.702 * x)),
        (lambda x: x.mish(), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        (lambda x: x.exp(), np.exp),
        (lambda x: x.exp2(), np.exp2),
    ],
    ids=["gelu", "gelu tanh", "silu", "sigmoid", "quick_gelu", "mish", "exp", "exp2"],
)
@pytest.mark.parametrize(("dtype", "most"), [("float16", 8e-3), ("bfloat16", 6e-2)])
def test_slopes(function: Callable[[Tensor], Tensor], exact: Any, dtype: str, most: float) -> None:
    x = Tensor(np.linspace(-4, 4, 65).astype(np.float32)).cast(dtype).realize().requires_grad_()
    function(x).sum().backward()
    assert x.grad is not None and x.grad.dtype is x.dtype
    at, step = x.cast("float32").numpy().astype(np.float64), 1e-5
    want = (exact(at + step) - exact(at - step)) / (2 * step)
    error = np.abs(x.grad.cast("float32").numpy() - want) / np.maximum(1, np.abs(want))
    assert error.max() <= most
