"""Gradients against closed forms, at ties, zeros and extremes."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, grad

Function = Callable[[Tensor], Tensor]


def slope(function: Function, *values: float) -> list[float]:
    x = Tensor(list(values))
    return grad(lambda t: function(t).sum())(x).tolist()  # type: ignore[no-any-return]


EXTREMES = (-1e30, -200.0, -50.0, -1e-10, 0.0, 1e-10, 50.0, 200.0, 1e30)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


CLOSED: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda x: _sigmoid(x) * (1 - _sigmoid(x)) if abs(x) < 700 else 0.0,
    "softplus": _sigmoid,
    "logsigmoid": lambda x: _sigmoid(-x),
    "relu": lambda x: float(x > 0),
    "elu": lambda x: 1.0 if x > 0 else math.exp(x),
    "leaky_relu": lambda x: 1.0 if x > 0 else 0.01,
    "tanh": lambda x: 1 / math.cosh(x) ** 2 if abs(x) < 300 else 0.0,
    "asinh": lambda x: 1 / math.sqrt(1 + x * x),
    "abs": lambda x: float(np.sign(x)),
    "erf": lambda x: 2 / math.sqrt(math.pi) * math.exp(-min(x * x, 700.0)),
    "silu": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))) if abs(x) < 700 else float(x > 0),
}


@pytest.mark.parametrize("name", CLOSED)
def test_activations_at_extremes(name: str, device: str) -> None:
    found = slope(lambda x: getattr(x, name)(), *EXTREMES)
    wanted = [CLOSED[name](x) for x in EXTREMES]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["log1p", "expm1", "sinh", "cosh"])
def test_small_arguments_keep_their_precision(name: str) -> None:
    at = (1e-30, 1e-7, 1e-4, 0.5)
    wanted = {"log1p": lambda x: 1 / (1 + x), "expm1": math.exp, "sinh": math.cosh, "cosh": math.sinh}[name]
    np.testing.assert_allclose(slope(lambda x: getattr(x, name)(), *at), [wanted(x) for x in at], rtol=1e-6)
    assert slope(lambda x: x.log1p(), 0.0) == [1.0]


def test_equal_extremes_share_evenly() -> None:
    assert slope(lambda x: x.max(), 2.0, 5.0, 5.0, 5.0, 5.0) == [0.0, 0.25, 0.25, 0.25, 0.25]
    assert slope(lambda x: x.min(), 2.0, 2.0, 5.0) == [0.5, 0.5, 0.0]
    assert slope(lambda x: x.maximum(1.0), 0.0, 1.0, 2.0) == [0.0, 0.5, 1.0]
    assert slope(lambda x: x.minimum(1.0), 0.0, 1.0, 2.0) == [1.0, 0.5, 0.0]


def test_products_with_zeros() -> None:
    assert slope(lambda x: x.prod(), 2.0, 3.0, 4.0) == [12.0, 8.0, 6.0]
    assert slope(lambda x: x.prod(), 2.0, 0.0, 4.0) == [0.0, 8.0, 0.0]
    assert slope(lambda x: x.prod(), 0.0, 0.0, 4.0) == [0.0, 0.0, 0.0]
    long = [1.0] * 100
    assert slope(lambda x: x.prod(), *long) == long
    assert slope(lambda x: x.prod(), 0.0, *long) == [1.0] + [0.0] * 100
    assert slope(lambda x: x.prod(), 0.0, 0.0, *long) == [0.0] * 102
    assert slope(lambda x: x.cumprod(0), 2.0, 0.0, 3.0) == [1.0, 8.0, 0.0]


def test_powers_at_zero() -> None:
    assert slope(lambda x: x**0.0, 0.0, 2.0) == [0.0, 0.0]
    assert slope(lambda x: x**3.0, 0.0, -2.0) == [0.0, 12.0]
    zero = Tensor([0.0])
    assert grad(lambda y: (zero**y).sum())(Tensor([2.0])).tolist() == [0.0]


def test_length_of_nothing() -> None:
    assert slope(lambda x: x.norm(), 0.0, 0.0) == [0.0, 0.0]
    assert slope(lambda x: x.norm(), 3.0, -4.0) == pytest.approx([0.6, -0.8])
    twice = grad(lambda t: grad(lambda u: (u * u).sum(1).sqrt().sum())(t).sum())
    x = Tensor([[3.0, 4.0], [1.0, 2.0]])
    other = grad(lambda t: grad(lambda u: u.norm(axis=1).sum())(t).sum())
    np.testing.assert_allclose(other(x).numpy(), twice(x).numpy(), rtol=1e-5)


def test_choices_do_not_leak_nan() -> None:
    assert slope(lambda x: (x > 0).where(x.log(), 0.0), -1.0, 2.0) == [0.0, 0.5]


def test_matrix_product_and_its_transpose(device: str) -> None:
    rng = np.random.default_rng(0)
    a, b, g = (rng.standard_normal(s).astype(np.float32) for s in ((4, 5), (5, 3), (4, 3)))
    x, y = Tensor(a), Tensor(b)
    dx, dy = (x @ y).gradient(x, y, gradient=Tensor(g))
    np.testing.assert_allclose(dx.numpy(), g @ b.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dy.numpy(), a.T @ g, rtol=1e-5, atol=1e-6)


def test_softmax_cross_entropy_is_probability_minus_target(device: str) -> None:
    logits = np.array([[1.0, 2.0, 0.5], [0.1, -3.0, 100.0]], dtype=np.float32)
    x = Tensor(logits)
    (g,) = x.cross_entropy(Tensor([0, 2]), "sum").gradient(x)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(g.numpy(), p - np.eye(3)[[0, 2]], atol=1e-6)


def test_half_precision_sums_in_single() -> None:
    x = Tensor(np.ones(1, dtype=np.float16))
    (g,) = (x.expand(4096) * 1.0).sum().gradient(x)
    assert g.dtype.name == "float16" and g.item() == 4096.0


def test_gradients_cross_devices() -> None:
    x = Tensor([1.0, 2.0], device="PYTHON")
    (g,) = (x.to("CPU") * 3.0).sum().gradient(x)
    assert g.device == "PYTHON" and g.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "size, kernel, stride, padding, dilation, groups",
    [(5, 3, 1, 1, 1, 1), (6, 3, 2, 1, 1, 1), (7, 3, 2, 0, 1, 2), (7, 2, 1, 2, 2, 1), (5, 2, 1, 4, 1, 1),
     (6, 1, 2, 0, 1, 1), (8, 2, 3, 3, 2, 2)],
)  # fmt: skip
def test_gradients_of_convolutions_are_their_transposes(
    size: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    """A convolution is linear in x and in w: <g, conv(x, w)> is <dx, x> and <dw, w>, for every x and w."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, size, size + 1)), rng.standard_normal((6, 4 // groups, kernel, kernel))
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    a, b = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    y = a.conv2d(b, **how)
    g = rng.standard_normal(y.shape)
    y.backward(Tensor(g))
    assert a.grad is not None and b.grad is not None
    dx, dw = a.grad.numpy(), b.grad.numpy()
    for _ in range(3):
        other, weight = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
        left = (g * Tensor(other).conv2d(Tensor(w), **how).numpy()).sum()
        np.testing.assert_allclose(left, (dx * other).sum(), rtol=1e-9)
        left = (g * Tensor(x).conv2d(Tensor(weight), **how).numpy()).sum()
        np.testing.assert_allclose(left, (dw * weight).sum(), rtol=1e-9)
