"""Losses with weights, probabilities and all reductions. The figures are torch 2.13's of the same calls."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn
from morok.errors import ArgumentError, ShapeError
from morok.nn import losses

X = [[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]]
Y = [2, 0]
W = [1.0, 2.0, 3.0]
P = [[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]]
T = [[0.0, 1.0, 0.5], [1.0, 0.0, 0.2]]
V = [1.0, 2.0, 0.5]


def entropy(reduction: str, target: Any = Y, **more: Any) -> Tensor:
    return losses.cross_entropy(Tensor(X), Tensor(target), reduction, **more)


def divergence(reduction: str, **more: Any) -> Tensor:
    target = (Tensor(P) + 0.1).log() if more else Tensor(P)
    return losses.kl_div(Tensor(X).log_softmax(-1), target, reduction, **more)


TORCH: dict[str, tuple[Callable[[str], Tensor], dict[str, Any]]] = {
    "class weights": (
        lambda r: entropy(r, weight=Tensor(W)),
        {"mean": 0.93788970, "sum": 3.7515588, "none": [3.0137908, 0.73776799]},
    ),
    "class weights, smoothed": (
        lambda r: entropy(r, weight=Tensor(W), label_smoothing=0.1),
        {"mean": 1.0045522, "sum": 4.0182090, "none": [3.0633311, 0.95487809]},
    ),
    "class weights, smoothed, one left out": (
        lambda r: entropy(r, [2, -100], weight=Tensor(W), label_smoothing=0.1, ignore_index=-100),
        {"mean": 1.0211104, "sum": 3.0633311, "none": [3.0633311, 0.0]},
    ),
    "probabilities": (
        lambda r: entropy(r, P),
        {"mean": 1.2361825, "sum": 2.4723649, "none": [1.6545969, 0.81776798]},
    ),
    "probabilities, weights, smoothed": (
        lambda r: entropy(r, P, weight=Tensor(W), label_smoothing=0.1),
        {"mean": 2.5274551, "sum": 5.0549102, "none": [3.6904352, 1.3644747]},
    ),
    "nll, weights": (
        lambda r: losses.nll_loss(Tensor(X), Tensor(Y), r, weight=Tensor(W)),
        {"mean": -0.45, "sum": -1.8, "none": [-1.5, -0.3]},
    ),
    "binary with logits, both weights": (
        lambda r: losses.binary_cross_entropy_with_logits(Tensor(X), Tensor(T), r, Tensor(W), Tensor(V)),
        {
            "mean": 2.4711006,
            "sum": 14.826603,
            "none": [[1.3132617, 8.5077124, 1.8166733], [0.5543552, 1.4887934, 1.1458066]],
        },
    ),
    "binary, weights": (
        lambda r: losses.binary_cross_entropy(Tensor(X).sigmoid(), Tensor(T), r, Tensor(W)),
        {
            "mean": 1.8870472,
            "sum": 11.322283,
            "none": [[1.3132617, 4.2538562, 2.1722310], [0.55435526, 1.4887933, 1.5397850]],
        },
    ),
    "kl": (
        divergence,
        {
            "mean": 0.12828338,
            "batchmean": 0.38485014,
            "sum": 0.76970029,
            "none": [[-0.22096820, 0.69018722, 0.15572488], [0.13616544, 0.00859091, 0.0]],
        },
    ),
    "kl of logarithms": (
        lambda r: divergence(r, log_target=True),
        {
            "mean": 0.24739443,
            "batchmean": 0.74218327,
            "sum": 1.4843665,
            "none": [[-0.20981279, 1.0353225, 0.29626283], [0.26676521, 0.12231040, -0.02648172]],
        },
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_as_torch(name: str) -> None:
    loss, wanted = TORCH[name]
    for reduction, value in wanted.items():
        np.testing.assert_allclose(loss(reduction).numpy(), value, rtol=2e-6, atol=2e-7)
    with pytest.raises(ArgumentError, match="reduction"):
        loss("average")


def test_similarity_of_vectors_that_are_broadcast() -> None:
    a, b = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[1.0], [-2.0]])
    np.testing.assert_allclose(losses.cosine_similarity(a, b).numpy(), [0.94868326, -0.98994952], rtol=1e-6)
    along = losses.cosine_similarity(a, Tensor([2.0, 0.0]), dim=0)
    np.testing.assert_allclose(along.numpy(), [0.89442718, 0.0], rtol=1e-6)
    assert losses.cosine_similarity(Tensor([[1.0, 1.0]]), Tensor([[1.0]])).item() == pytest.approx(1.0)
    with pytest.raises(ShapeError):
        losses.cosine_similarity(Tensor.ones(2, 3), Tensor.ones(2, 2))


def test_distances_that_are_squared_nowhere() -> None:
    a, b = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[1.0, 1.0], [-2.0, -2.0]])
    assert losses.smooth_l1_loss(a, b, beta=0.0).item() == losses.l1_loss(a, b).item() == 3.0
    assert losses.smooth_l1_loss(a, b, beta=2.5).item() == pytest.approx(2.175)
    assert losses.huber_loss(a, b, delta=2.5).item() == 5.4375
    x = Tensor([0.0, 2.0, -3.0], requires_grad=True)
    losses.smooth_l1_loss(x, Tensor([0.0, 0.0, 0.0]), 0.0, "sum").backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, -1.0]
    for wrong in (lambda: losses.huber_loss(a, b, 0.0), lambda: losses.smooth_l1_loss(a, b, -1.0)):
        with pytest.raises(ArgumentError, match="unlike"):
            wrong()


def test_arguments_of_cross_entropy() -> None:
    with pytest.raises(ShapeError, match="one weight for each of 3 classes"):
        entropy("mean", weight=Tensor([1.0, 2.0]))
    with pytest.raises(ShapeError, match="as many probabilities"):
        entropy("mean", [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ArgumentError, match="label_smoothing"):
        entropy("mean", label_smoothing=1.5)


def test_modules_come_with_nn() -> None:
    assert nn.losses is losses and nn.state.load and nn.schedules.cosine
