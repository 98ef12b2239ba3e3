"""Layers against their definitions in NumPy."""

import doctest
import importlib
import itertools
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, nn
from morok.errors import ShapeError

Array = Any


def data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found: Tensor, wanted: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_linear(device: str) -> None:
    layer, x = nn.Linear(3, 4), data(5, 3)
    close(layer(Tensor(x)), x @ layer.weight.numpy().T + layer.bias.numpy())
    assert nn.Linear(3, 4, bias=False).bias is None
    bound = 1 / np.sqrt(3)
    assert np.abs(layer.weight.numpy()).max() <= bound


def test_bilinear() -> None:
    layer, x, y = nn.Bilinear(3, 2, 4), data(5, 3), data(5, 2, seed=1)
    close(
        layer(Tensor(x), Tensor(y)),
        np.einsum("ni,oij,nj->no", x, layer.weight.numpy(), y) + layer.bias.numpy(),
    )


def test_embedding() -> None:
    layer = nn.Embedding(7, 3, padding=2)
    index = np.array([[1, 2], [6, 0]])
    table = layer.weight.numpy()
    assert (table[2] == 0).all() and (table[1] != 0).all()
    close(layer(Tensor(index)), table[index], 0)
    layer(Tensor(index)).sum().backward()
    counts = np.array([1, 1, 0, 0, 0, 0, 1], dtype=np.float32)
    close(layer.weight.grad, np.repeat(counts[:, None], 3, 1), 0)


def convolve(x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """The definition, one output after the other."""
    dims = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    sizes = [(x.shape[2 + i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(dims)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    per_out, per_in = w.shape[0] // groups, w.shape[1]
    for o in range(w.shape[0]):
        group = o // per_out
        part = x[:, group * per_in : (group + 1) * per_in]
        for at in itertools.product(*map(range, sizes)):
            window = tuple(
                slice(a * s, a * s + d * (k - 1) + 1, d)
                for a, s, d, k in zip(at, stride, dilation, w.shape[2:], strict=True)
            )
            out[(slice(None), o, *at)] = (part[(slice(None), slice(None), *window)] * w[o]).sum(
                axis=tuple(range(1, dims + 2))
            )
    return out


CONVS = [
    (nn.Conv1d, (2, 4, 9), 3, {"stride": 2, "padding": 1, "groups": 2}),
    (nn.Conv2d, (2, 2, 6, 5), (3, 2), {"padding": (1, 0), "dilation": (1, 2)}),
    (nn.Conv3d, (1, 2, 4, 4, 4), 2, {"stride": (1, 2, 1)}),
]


@pytest.mark.parametrize("kind, shape, kernel, options", CONVS)
def test_convolutions(kind: Any, shape: Any, kernel: Any, options: Any, device: str) -> None:
    layer = kind(shape[1], 4, kernel, **options)
    dims = len(shape) - 2
    each = {k: v if isinstance(v, tuple) else (v,) * dims for k, v in options.items() if k != "groups"}
    full = {"stride": (1,) * dims, "padding": (0,) * dims, "dilation": (1,) * dims, **each}
    x = data(*shape)
    wanted = convolve(x, layer.weight.numpy(), **full, groups=options.get("groups", 1))
    close(layer(Tensor(x)), wanted + layer.bias.numpy().reshape(1, -1, *(1,) * dims))


@pytest.mark.parametrize(
    "kind, shape, options",
    [
        (nn.ConvTranspose1d, (2, 4, 5), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
        (nn.ConvTranspose2d, (1, 3, 4, 3), {"stride": (2, 1), "dilation": (1, 2)}),
        (nn.ConvTranspose3d, (1, 2, 2, 3, 2), {"padding": 1}),
    ],
)
def test_transposed_convolutions_are_gradients_of_convolutions(kind: Any, shape: Any, options: Any) -> None:
    layer = kind(shape[1], 4, 3, bias=False, **options)
    x = Tensor(data(*shape))
    y = layer(x)
    image = Tensor(data(*y.shape))
    plain = {k: v for k, v in options.items() if k != "output_padding"}
    (wanted,) = image.conv2d(layer.weight, **plain).gradient(image, gradient=x)
    close(y, wanted.numpy())


def test_batch_norm(device: str) -> None:
    layer, x = nn.BatchNorm(3), data(4, 3, 5)
    close(layer(Tensor(x)), x / np.sqrt(1 + 1e-5))
    mean, var = x.mean((0, 2)), x.var((0, 2))
    with nn.training():
        y = layer(Tensor(x))
    close(y, (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None], 1e-4)
    close(layer.running_mean, 0.1 * mean)
    close(layer.running_var, 0.9 + 0.1 * var * 20 / 19)
    with pytest.raises(ShapeError, match=r"takes \(N, 3, …\), not \(2, 4\)"):
        layer(Tensor.ones(2, 4))


def test_layer_norm_and_rms_norm() -> None:
    x = data(2, 3, 4)
    layer = nn.LayerNorm((3, 4))
    layer.weight.assign(Tensor(data(3, 4, seed=1)))
    mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    close(layer(Tensor(x)), (x - mean) / np.sqrt(var + 1e-5) * data(3, 4, seed=1), 1e-4)
    close(nn.RMSNorm(4)(Tensor(x)), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), 1e-5)
    with pytest.raises(ShapeError, match=r"takes \(…, 5\), not \(2, 3, 4\)"):
        nn.LayerNorm(5)(Tensor(x))


def test_group_and_instance_norm() -> None:
    x = data(2, 6, 5)
    layer = nn.GroupNorm(2, 6)
    layer.bias.assign(Tensor.arange(6).cast("float32"))
    groups = x.reshape(2, 2, 15)
    wanted = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    close(layer(Tensor(x)), wanted.reshape(x.shape) + np.arange(6)[:, None], 1e-4)
    each = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    close(nn.InstanceNorm(6)(Tensor(x)), each, 1e-4)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("cross, causal", [(False, False), (False, True), (True, False)])
def test_attention(cross: bool, causal: bool) -> None:
    layer = nn.MultiHeadAttention(8, 2)
    x, m = data(2, 5, 8), data(2, 4, 8, seed=1)
    y = layer(Tensor(x), Tensor(m)) if cross else layer(Tensor(x), is_causal=causal)
    w, b = layer.in_proj_weight.numpy(), layer.in_proj_bias.numpy()
    other = m if cross else x
    q, k, v = (s @ w[i * 8 : i * 8 + 8].T + b[i * 8 : i * 8 + 8] for i, s in enumerate((x, other, other)))
    heads = [t.reshape(2, -1, 2, 4).transpose(0, 2, 1, 3) for t in (q, k, v)]
    scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) / 2.0
    if causal:
        scores = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    z = (softmax(scores) @ heads[2]).transpose(0, 2, 1, 3).reshape(2, 5, 8)
    close(y, z @ layer.out_proj.weight.numpy().T + layer.out_proj.bias.numpy())


def test_attention_with_dropout_and_mask() -> None:
    morok.manual_seed(0)
    layer = nn.MultiHeadAttention(4, 2, dropout=0.5)
    x = Tensor(data(1, 3, 4))
    mask = Tensor(np.tri(3, dtype=bool))
    still = layer(x, mask=mask).numpy()
    close(layer(x, is_causal=True), still)
    with nn.training():
        assert not np.allclose(layer(x, mask=mask).numpy(), still)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(x: Array, h: Array, c: Array, p: dict[str, Array], end: str) -> tuple[list[Array], Array, Array]:
    rows = []
    for step in x:
        gates = (
            step @ p["weight_ih" + end].T
            + p["bias_ih" + end]
            + h @ p["weight_hh" + end].T
            + p["bias_hh" + end]
        )
        i, f, g, o = np.split(gates, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        rows.append(h)
    return rows, h, c


def test_lstm() -> None:
    layer = nn.LSTM(3, 4, layers=2, bidirectional=True, batch_first=True)
    x = data(2, 3, 3)
    y, (h, c) = layer(Tensor(x))
    p = {name: t.numpy() for name, t in nn.named_tensors(layer).items()}
    rows, zero = x.transpose(1, 0, 2), np.zeros((2, 4))
    last = []
    for number in range(2):
        there, h1, c1 = lstm(rows, zero, zero, p, f"_l{number}")
        back, h2, c2 = lstm(rows[::-1], zero, zero, p, f"_l{number}_reverse")
        last += [(h1, c1), (h2, c2)]
        rows = np.concatenate([there, back[::-1]], -1)
    close(y, rows.transpose(1, 0, 2))
    close(h, np.stack([a for a, _ in last]))
    close(c, np.stack([b for _, b in last]))


def test_gru_and_rnn() -> None:
    layer, x, h = nn.GRU(3, 4), data(3, 2, 3), data(1, 2, 4, seed=3)
    y, last = layer(Tensor(x), Tensor(h))
    p = {name: t.numpy() for name, t in nn.named_tensors(layer).items()}
    state, rows = h[0], []
    for step in x:
        xr, xz, xn = np.split(step @ p["weight_ih_l0"].T + p["bias_ih_l0"], 3, -1)
        hr, hz, hn = np.split(state @ p["weight_hh_l0"].T + p["bias_hh_l0"], 3, -1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        state = (1 - z) * n + z * state
        rows.append(state)
    close(y, np.stack(rows))
    close(last, rows[-1][None])
    simple = nn.RNN(3, 4, bias=False)
    y, _ = simple(Tensor(x[:1]))
    close(y[0], np.tanh(x[0] @ simple.weight_ih_l0.numpy().T))
    with pytest.raises(ShapeError, match=r"takes \(length, batch, 3\)"):
        layer(Tensor.ones(2, 2, 5))


def test_dropout_follows_the_moment() -> None:
    layer, x = nn.Dropout(0.5), Tensor.ones(100)
    assert layer(x) is x
    with nn.training():
        assert (layer(x).numpy() == 0).any()
        with nn.training(False):
            assert layer(x) is x


class Nested:
    def __init__(self) -> None:
        self.first = nn.Linear(2, 3)
        self.rest = [nn.Linear(3, 3), {"last": nn.Linear(3, 1, bias=False)}]
        self.again = self.first
        self.me = self
        self.name = "nested"
        self._cache = nn.Linear(9, 9)
        self.fixed = Tensor.zeros(2)


def test_parameters_are_found_by_walking() -> None:
    model = Nested()
    assert list(nn.named_tensors(model)) == [
        "first.weight", "first.bias", "rest.0.weight", "rest.0.bias", "rest.1.last.weight", "fixed",
    ]  # fmt: skip
    assert len(nn.parameters(model)) == 5 and nn.parameter_count(model) == 6 + 3 + 9 + 3 + 3
    model.first(Tensor.ones(1, 2)).sum().backward()
    assert model.first.bias.grad is not None
    nn.zero_grad(model)
    assert model.first.bias.grad is None


MODULES = [
    "attention",
    "conv",
    "init",
    "linear",
    "losses",
    "module",
    "norm",
    "optim",
    "recurrent",
    "reparametrize",
    "resume",
    "schedules",
    "state",
    "train",
    "transformer",
    "wrappers",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_documentation(name: str) -> None:
    module = importlib.import_module(f"morok.nn.{name}")
    result = doctest.testmod(module, extraglobs={"Tensor": Tensor})
    assert result.failed == 0
