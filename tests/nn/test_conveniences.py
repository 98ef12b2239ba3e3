"""What people expect of layers and optimisers beside the mathematics."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn
from morok.errors import ArgumentError, MorokError, ShapeError

X = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)


def normal(x: Any, axes: tuple[int, ...]) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


W, B = np.array([2.0, 3.0, 4.0, 5.0]), np.array([1.0, -1.0, 0.5, 0.0])
NORMS = {
    "group": (lambda: nn.GroupNorm(1, 4), normal(X, (1, 2)), (4, 1)),
    "instance": (lambda: nn.InstanceNorm(4, affine=True), normal(X, (2,)), (4, 1)),
    "batch": (lambda: nn.BatchNorm(4, track_running_stats=False), normal(X, (0, 2)), (4, 1)),
    "layer": (lambda: nn.LayerNorm((4, 3)), normal(X, (1, 2)), (4, 3)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("missing", ["weight", "bias", "both", "none"])
def test_weight_and_bias_may_be_missing(name: str, missing: str) -> None:
    make, exact, sizes = NORMS[name]
    layer: Any = make()
    w, b = (np.broadcast_to(v[:, None], sizes).astype(np.float32) for v in (W, B))
    shape = (4, 3) if name == "layer" else (4,)
    layer.weight = None if missing in ("weight", "both") else Tensor(w[:, : shape[-1]].reshape(shape))
    layer.bias = None if missing in ("bias", "both") else Tensor(b[:, : shape[-1]].reshape(shape))
    wanted = exact * (1 if layer.weight is None else w) + (0 if layer.bias is None else b)
    np.testing.assert_allclose(layer(Tensor(X)).numpy(), wanted, rtol=2e-5, atol=2e-5)


def test_batches_are_counted() -> None:
    norm, mean = nn.BatchNorm(4), nn.BatchNorm(4, momentum=None)
    assert list(norm.state_dict())[-1] == "num_batches_tracked"
    with nn.training():
        for k in range(3):
            norm(Tensor(X + k))
            mean(Tensor(X + k))
    assert norm.num_batches_tracked is not None and norm.num_batches_tracked.item() == 3
    assert mean.running_mean is not None and mean.running_var is not None
    np.testing.assert_allclose(mean.running_mean.numpy(), (X + 1).mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(mean.running_var.numpy(), X.var((0, 2), ddof=1), rtol=1e-5)
    # files that were written without it are read all the same
    old = {name: t for name, t in norm.state_dict().items() if name != "num_batches_tracked"}
    mean.load_state_dict(old)
    np.testing.assert_array_equal(mean.running_mean.numpy(), norm.state_dict()["running_mean"].numpy())


def test_one_value_is_no_batch() -> None:
    norm = nn.BatchNorm(4)
    assert norm(Tensor.ones(1, 4, 1)).shape == (1, 4, 1)
    with nn.training(), pytest.raises(ShapeError, match="one value per channel"):
        norm(Tensor.ones(1, 4, 1))


def test_layers_say_what_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), Tensor.relu, nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)))
    assert repr(model).splitlines() == [
        "Sequential(",
        "  layers:",
        "    0: Conv2d(weight: (2, 1, 3, 3), bias: (2,), stride=1, padding=0, dilation=1, groups=1)",
        "    1: Tensor.relu",
        "    2: Sequential(",
        "      layers:",
        "        0: Linear(weight: (2, 4), bias: (2,))",
        "        1: Dropout(p=0.1)",
        "    )",
        ")",
    ]
    assert [p.shape for p in model.parameters()] == [(2, 1, 3, 3), (2,), (2, 4), (2,)]
    assert list(model.state_dict())[:2] == ["layers.0.weight", "layers.0.bias"]
    other = nn.Linear(4, 2)
    other.load_state_dict(model[2][0].state_dict())
    assert other.weight.tolist() == model[2][0].weight.tolist()
    for call in (model.train, model.eval, nn.BatchNorm(2).eval):
        with pytest.raises(MorokError, match=r"with nn\.training\(\)"):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(1, 1, 3, padding="bogus"),
        lambda: nn.Conv2d(1, 1, 3, stride=2, padding="same"),
        lambda: nn.Conv1d(1, 1, 3, padding=-1),
        lambda: nn.Conv2d(1, 1, 3, stride=0),
        lambda: nn.Conv2d(1, 1, 3, dilation=(1, 2, 3)),
        lambda: nn.Conv2d(2, 2, 3, groups=0),
        lambda: nn.ConvTranspose2d(1, 1, 3, padding="same"),
        lambda: nn.Dropout(1.5),
        lambda: nn.Dropout(-0.1),
        lambda: Tensor([1.0]).dropout(2.0),
    ],
)
def test_layers_refuse_what_they_cannot_do_when_they_are_made(make: Any) -> None:
    with pytest.raises((ArgumentError, ShapeError)):
        make()


def test_padding_by_name() -> None:
    assert nn.Conv2d(1, 2, (3, 5), padding="same", dilation=2)(Tensor.ones(1, 1, 9, 9)).shape == (1, 2, 9, 9)
    assert nn.Conv1d(1, 2, 4, padding="valid")(Tensor.ones(1, 1, 9)).shape == (1, 2, 6)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: nn.SGD(p, lr=-0.1),
        lambda p: nn.SGD(p, lr=float("nan")),
        lambda p: nn.SGD(p, momentum=-0.5),
        lambda p: nn.SGD(p, weight_decay=-1.0),
        lambda p: nn.SGD(p, nesterov=True),
        lambda p: nn.SGD(p, momentum=0.9, nesterov=True, dampening=0.1),
        lambda p: nn.Adam(p, betas=(1.0, 0.999)),
        lambda p: nn.AdamW(p, betas=(0.9, -0.1)),
        lambda p: nn.LAMB(p, eps=-1e-8),
        lambda p: nn.Muon(p, adam_lr=-1.0),
    ],
)
def test_optimisers_refuse_what_makes_no_sense(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make([Tensor([1.0], requires_grad=True)])


def test_a_learning_rate_that_is_set_later_is_looked_at() -> None:
    opt = nn.SGD([Tensor([1.0], requires_grad=True)])
    with pytest.raises(ArgumentError, match="lr must not be negative"):
        opt.lr = -1.0
    assert opt.lr == 1e-3


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_one_sample(dims: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, *(5,) * dims)).astype(np.float32)
    for make in (
        (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ):
        layer: Any = make[dims - 1](2, 3, 3)
        np.testing.assert_array_equal(layer(Tensor(x)).numpy(), layer(Tensor(x[None])).numpy()[0])
