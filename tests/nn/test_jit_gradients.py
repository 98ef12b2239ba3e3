"""Compiled functions and gradients."""

import numpy as np

import morok
from morok import Tensor, jit, value_and_grad


def test_lazy_and_transposed_arguments(device: str) -> None:
    f = jit(lambda x: x + 1)
    for _ in range(3):
        assert f(Tensor.ones(3)).tolist() == [2.0, 2.0, 2.0]
    g = jit(lambda x: x * 2)
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert [g(x.T).tolist() for _ in range(3)] == [[[2.0, 6.0], [4.0, 8.0]]] * 3


def test_weights_that_require_gradients_are_read_anew(device: str) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    f = jit(lambda x: x * w)
    assert f(Tensor([1.0, 2.0])).tolist() == [1.0, 4.0]
    assert f(Tensor([3.0, 4.0])).tolist() == [3.0, 8.0]
    w.assign(Tensor([10.0, 10.0]))
    assert f(Tensor([3.0, 4.0])).tolist() == [30.0, 40.0]
    half = w * 0.5  # computed from a weight, and realised: it keeps its history
    half.realize()
    g = jit(lambda x: x + half)
    for _ in range(3):
        assert g(Tensor([1.0, 1.0])).tolist() == [6.0, 6.0]


def test_tracked_arguments(device: str) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    f = jit(lambda x: x + 1)
    y = (w * 2).realize()
    for _ in range(3):
        assert f(y).tolist() == [3.0, 5.0]
        assert f(w).tolist() == [2.0, 3.0]


def test_gradients_inside(device: str) -> None:
    f = jit(value_and_grad(lambda x: (x * x * x).sum()))
    for k in range(4):
        at = np.array([k, 2.0], dtype=np.float32)
        value, slope = f(Tensor(at))
        assert value.item() == float((at**3).sum()) and slope.tolist() == (3 * at**2).tolist()


def test_training_as_a_function() -> None:
    """Parameters go in and come out: nothing is assigned to."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], dtype=np.float32)

    def loss(params: dict, data: Tensor, target: Tensor) -> Tensor:
        return (data @ params["w"] + params["b"]).mse_loss(target)

    @jit
    def step(params: dict, data: Tensor, target: Tensor) -> tuple:
        value, slopes = value_and_grad(loss)(params, data, target)
        return value, {name: params[name] - slopes[name] * 0.2 for name in params}

    morok.manual_seed(0)
    params = {"w": Tensor.randn(3).realize(), "b": Tensor.zeros(1).contiguous().realize()}
    for _ in range(60):
        value, params = step(params, Tensor(x), Tensor(y))
    assert value.item() < 1e-3 and step.traces == 1


def test_random_numbers_are_new_at_every_call(device: str) -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + Tensor.rand(3) + Tensor.rand(3)

    compiled = jit(noisy)
    x = Tensor([0.0, 0.0, 0.0])
    morok.manual_seed(3)
    found = [compiled(x).tolist() for _ in range(4)]
    morok.manual_seed(3)
    assert found == [noisy(x).tolist() for _ in range(4)]
    assert len({tuple(row) for row in found}) == 4
