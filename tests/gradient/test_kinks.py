"""Gradients where a function has a corner or a formula divides by zero: the values that PyTorch gives."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn


def slopes(function: Callable[[Tensor], Tensor], values: Any) -> list[Any]:
    x = Tensor(np.asarray(values, np.float32), requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None
    found: list[Any] = x.grad.tolist()
    return found


ENDS = [-2.0, -1.0, 0.0, 1.0, 2.0]
CORNERS = {
    # a bound leaves what lies at it alone
    "clamp": (lambda x: x.clamp(-1, 1), ENDS, [0, 1, 1, 1, 0]),
    "clamp from below": (lambda x: x.clamp(min=0.0), ENDS, [0, 0, 1, 1, 1]),
    "clamp_max": (lambda x: x.clamp_max(1), ENDS, [1, 1, 1, 1, 0]),
    # functions with flat pieces are flat at their ends
    "hardtanh": (lambda x: x.hardtanh(), ENDS, [0, 0, 1, 0, 0]),
    "relu6": (lambda x: x.relu6(), [-1.0, 0.0, 1.0, 6.0, 7.0], [0, 0, 1, 0, 0]),
    "hardsigmoid": (lambda x: x.hardsigmoid() * 6.0, [-4.0, -3.0, 0.0, 3.0, 4.0], [0, 0, 1, 0, 0]),
    "hardswish": (lambda x: x.hardswish(), [-4.0, -3.0, 0.0, 3.0, 4.0], [0, 0, 0.5, 1, 1]),
    # neither is a bound
    "maximum": (lambda x: x.maximum(Tensor([0.0] * 5)), ENDS, [0, 0, 0.5, 1, 1]),
    # roots of nothing
    "std": (lambda x: x.std(1), [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [[0, 0, 0], [0, 0, 0]]),
    "std_mean": (lambda x: x.std_mean(1)[0], [[3.0, 3.0]], [[0, 0]]),
    "norm 3": (lambda x: x.norm(3), [0.0, 0.0], [0, 0]),
    "norm 1.5": (lambda x: x.norm(1.5, 1), [[0.0, 0.0], [0.0, 2.0]], [[0, 0], [0, 1]]),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corner(name: str) -> None:
    function, values, wanted = CORNERS[name]
    np.testing.assert_allclose(slopes(function, values), wanted, rtol=1e-6)


def test_bounds_that_are_tensors() -> None:
    x, low, high = (Tensor(v, requires_grad=True) for v in ([0.0, 1.0, 2.0], [1.0] * 3, [1.5] * 3))
    x.clamp(low, high).sum().backward()
    for tensor, wanted in ((x, [0, 1, 0]), (low, [1, 0, 0]), (high, [0, 0, 1])):
        assert tensor.grad is not None and tensor.grad.tolist() == wanted


def test_cross_entropy_of_certain_probabilities() -> None:
    """Where a logarithm is cut off the chain rule multiplies 0 by infinity."""
    p, t = np.array([0.0, 1.0, 0.0, 1.0, 0.25], np.float32), np.array([0.0, 1.0, 1.0, 0.0, 0.5], np.float32)
    found = slopes(lambda x: nn.losses.binary_cross_entropy(x, Tensor(t), "sum"), p)
    np.testing.assert_allclose(found, (p - t) / np.maximum((1 - p) * p, 1e-12), rtol=1e-6)
    z = [-200.0, 200.0, 0.0]  # rounded to 0 and 1 on the way
    found = slopes(lambda x: nn.losses.binary_cross_entropy(x.sigmoid(), Tensor([1.0, 1.0, 1.0])), z)
    np.testing.assert_allclose(found, [0.0, 0.0, -0.5 / 3], rtol=1e-6)


def test_slopes_of_slopes() -> None:
    x = Tensor([2.0, 4.0], requires_grad=True)
    (g,) = x.std().gradient(x)  # |x₀ - x₁| / √2
    np.testing.assert_allclose(g.tolist(), [-math.sqrt(0.5), math.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_allclose((g * g).sum().gradient(x)[0].tolist(), [0.0, 0.0], atol=1e-6)
