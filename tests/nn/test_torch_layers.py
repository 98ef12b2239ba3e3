"""Cells, transformers and wrapped functions beside PyTorch; weights computed from others; lists and dicts."""

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn
from morok.errors import ArgumentError, ShapeError
from tests.nn.torch_layers import CASES, RECORD, leaves, wave

WANTED = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(CASES))
def test_a_layer_is_pytorchs(name: str) -> None:
    kind, args, options, shapes = CASES[name]
    layer = getattr(nn, kind)(*args, **options)
    weights = nn.named_tensors(layer)
    layer.load_state_dict(
        {n: Tensor(wave(*weights[n].shape, shift=i)) for i, n in enumerate(sorted(weights))}
    )
    found = layer(*(Tensor(wave(*s, shift=0.5 * i)) for i, s in enumerate(shapes)))
    mine = [leaf.numpy().reshape(-1)[:64] for leaf in leaves(found) if leaf is not None]
    assert len(mine) == len(WANTED[name])
    for a, b in zip(mine, WANTED[name], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=3e-6)


def test_weights_of_length_and_direction() -> None:
    layer = nn.weight_norm(nn.Linear(3, 2))
    v, g = wave(2, 3), np.array([[2.0], [0.5]], np.float32)
    layer.load_state_dict({"weight_v": Tensor(v), "weight_g": Tensor(g), "bias": Tensor.zeros(2)})
    x = wave(4, 3, shift=1.0)
    weight = v * (g / np.sqrt((v * v).sum(1, keepdims=True)))
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), x @ weight.T, rtol=1e-5, atol=1e-6)
    slope = layer(Tensor(x)).sum().gradient(layer.weight_g)[0].numpy()  # type: ignore[attr-defined]
    np.testing.assert_allclose(slope, (x @ (weight / g).T).sum(0)[:, None], rtol=1e-4, atol=1e-5)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert sorted(other.state_dict()) == ["bias", "weight_g", "weight_v"]
        np.testing.assert_allclose(other(Tensor(x)).numpy(), x @ weight.T, rtol=1e-5, atol=1e-6)
    nn.remove_weight_norm(layer)
    assert type(layer) is nn.Linear and layer.weight.is_leaf
    np.testing.assert_allclose(layer.weight.numpy(), weight, rtol=1e-6)
    with pytest.raises(ArgumentError, match="not computed"):
        nn.remove_weight_norm(layer)
    with pytest.raises(ArgumentError, match="no tensor"):
        nn.weight_norm(layer, "wait")


def test_one_length_for_a_whole_weight() -> None:
    layer = nn.weight_norm(nn.Conv2d(2, 3, 2), dim=None)
    assert nn.named_tensors(layer)["weight_g"].shape == ()


def test_a_weight_over_its_largest_singular_value() -> None:
    Tensor.manual_seed(3)  # two singular values that are nearly equal would take more steps
    layer = nn.spectral_norm(nn.Linear(5, 4, bias=False))
    plain: Any = layer
    with nn.training():
        layer(Tensor.ones(1, 5)).realize()
    np.testing.assert_allclose(np.linalg.norm(plain.weight.numpy(), 2), 1.0, rtol=1e-2)
    before = plain.weight_u.numpy()
    layer(Tensor.ones(1, 5)).realize()  # not in training: nothing moves
    np.testing.assert_array_equal(plain.weight_u.numpy(), before)
    # the slope is that of W / (uᵀ W v) with u and v held fast
    w, u, v = plain.weight_orig.numpy(), before, plain.weight_v.numpy()
    x = wave(3, 5)
    slope = layer(Tensor(x)).sum().gradient(plain.weight_orig)[0].numpy()
    sigma = u @ w @ v
    g = np.ones((4, 1), np.float32) * x.sum(0)
    np.testing.assert_allclose(
        slope, g / sigma - (g * w).sum() / sigma**2 * np.outer(u, v), rtol=1e-3, atol=1e-4
    )
    assert type(nn.remove_spectral_norm(layer)) is nn.Linear


def test_lists_and_dicts_are_plain() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList([nn.Linear(2, 3), nn.ReLU()])
            self.named = nn.ModuleDict({"out": nn.Linear(3, 1)})
            self.more = nn.ParameterList([Tensor([1.0])])
            self.other = nn.ParameterDict({"w": Tensor([1.0])})
            self.more.append(Tensor([2.0]))
            self.other["v"] = Tensor([3.0])

    names = list(Net().state_dict())
    assert names == [
        "layers.0.weight", "layers.0.bias", "named.out.weight", "named.out.bias", "more.0", "more.1",
        "other.w", "other.v",
    ]  # fmt: skip
    assert len(Net().parameters()) == 8
    assert nn.Parameter(Tensor([1.0]) * 2).is_leaf


def test_wrapped_functions_keep_their_options() -> None:
    assert repr(nn.MaxPool2d(2, stride=1)) == "MaxPool2d(kernel_size=2, stride=1)"
    assert nn.MaxPool2d(2, stride=1)(Tensor.ones(1, 1, 3, 3)).shape == (1, 1, 2, 2)
    assert nn.ReLU(inplace=True)(Tensor([-1.0])).tolist() == [0.0]
    assert nn.CrossEntropyLoss(reduction="sum")(Tensor([[0.0, 0.0]]), Tensor([1])).shape == ()
    with pytest.raises(TypeError):
        nn.MaxPool2d(kernel=2)
    x = Tensor.ones(4, 8)
    assert nn.Dropout1d(0.5)(x.unsqueeze(0)).tolist() == [x.tolist()]
    with nn.training():
        assert {0.0, 2.0} >= set(nn.Dropout2d(0.5)(Tensor.ones(1, 50, 2, 2)).flatten().tolist())


def test_complaints() -> None:
    with pytest.raises(ShapeError, match="this cell takes"):
        nn.GRUCell(3, 4)(Tensor.ones(2, 5))
    with pytest.raises(ArgumentError, match="nonlinearity"):
        nn.RNN(3, 4, nonlinearity="sine")
    with pytest.raises(ArgumentError, match="heads"):
        nn.MultiheadAttention(7, 2)
    with pytest.raises(ArgumentError, match="activation"):
        nn.TransformerEncoderLayer(8, 2, activation="selu")


def test_windows_at_random_places() -> None:
    x = np.arange(42, dtype=np.float32).reshape(1, 1, 6, 7)
    at = Tensor([[[0.3, 0.6]]])
    values, places = nn.functional.fractional_max_pool2d(
        Tensor(x), (2, 3), output_size=(4, 3), return_indices=True, _random_samples=at
    )
    # windows begin at ⌊(i + u) α⌋ - ⌊u α⌋ with α = (size - window) / (windows - 1); the last one at the end
    rows = [int((i + 0.6) * 4 / 3) - int(0.6 * 4 / 3) for i in range(3)] + [4]
    columns = [int((i + 0.3) * 2) - int(0.3 * 2) for i in range(2)] + [4]
    wanted = np.array([[x[0, 0, r : r + 2, c : c + 3].max() for c in columns] for r in rows])
    np.testing.assert_array_equal(values.numpy()[0, 0], wanted)
    np.testing.assert_array_equal(places.numpy()[0, 0], wanted.astype(int))  # a value is its place here
    with pytest.raises(ShapeError, match="do not fit"):
        nn.functional.fractional_max_pool2d(Tensor(x), 4, output_size=5)
    with pytest.raises(ArgumentError, match="output_size"):
        nn.functional.fractional_max_pool2d(Tensor(x), 2)
