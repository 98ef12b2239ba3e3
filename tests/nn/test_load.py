"""Loading a state copies memory: no kernel is made for it, and everybody who shows a tensor sees it."""

from __future__ import annotations

import numpy as np
import pytest

from morok import Tensor, jit, nn
from morok.nn.state import load_state_dict
from morok.runtime.plan import requests
from tests.devices import needs_host_memory


class Model:
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def state(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    sizes = {"first.weight": (4, 3), "first.bias": (4,), "second.weight": (2, 4), "second.bias": (2,)}
    return {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}


def expected(x: np.ndarray, s: dict[str, np.ndarray]) -> np.ndarray:
    hidden = np.maximum(x @ s["first.weight"].T + s["first.bias"], 0)
    return hidden @ s["second.weight"].T + s["second.bias"]


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def tensors(s: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: Tensor(array) for name, array in s.items()}


@pytest.mark.parametrize("realized", [False, True])
def test_no_kernel_is_made(realized: bool) -> None:
    model, new = Model(), state(1)
    if realized:
        model(Tensor(X)).realize()
    before = requests.compiled + requests.from_disk + requests.remembered
    load_state_dict(model, tensors(new))
    assert requests.compiled + requests.from_disk + requests.remembered == before
    np.testing.assert_allclose(model(Tensor(X)).numpy(), expected(X, new), rtol=1e-5)


def test_the_copy_is_its_own() -> None:
    model, new = Model(), state(2)
    given = tensors(new)
    load_state_dict(model, given)
    given["first.bias"].assign(given["first.bias"] * 0).realize()
    model.second.bias.assign(model.second.bias + 1).realize()
    np.testing.assert_array_equal(model.first.bias.numpy(), new["first.bias"])
    np.testing.assert_array_equal(given["second.bias"].numpy(), new["second.bias"])


def test_what_was_computed_before_keeps_its_values() -> None:
    model, old, new = Model(), state(3), state(4)
    load_state_dict(model, tensors(old))
    view, lazy = model.first.weight[1], model.first.weight * 2
    load_state_dict(model, tensors(new))
    np.testing.assert_array_equal(view.numpy(), new["first.weight"][1])
    np.testing.assert_array_equal(lazy.numpy(), old["first.weight"] * 2)


def test_parameters_stay_parameters() -> None:
    model, new = Model(), state(5)
    load_state_dict(model, tensors(new))
    loss = model(Tensor(X)).sum()
    loss.backward()
    gradient = model.second.bias.grad
    assert gradient is not None
    np.testing.assert_array_equal(gradient.numpy(), [2, 2])
    nn.SGD(nn.parameters(model), lr=0.5).step()
    np.testing.assert_allclose(model.second.bias.numpy(), new["second.bias"] - 1, rtol=1e-6)


def test_a_compiled_function_sees_it() -> None:
    model = Model()
    run = jit(lambda x: model(x))
    x = Tensor(X).realize()
    for seed in (6, 7, 8):
        new = state(seed)
        load_state_dict(model, tensors(new))
        np.testing.assert_allclose(run(x).numpy(), expected(X, new), rtol=1e-5)
    assert run.traces == 1


@needs_host_memory
def test_memory_that_others_look_at_is_written() -> None:
    array = np.zeros(4, np.float32)
    holder = {"w": Tensor.from_numpy(array)}
    load_state_dict(holder, {"w": Tensor([1.0, 2.0, 3.0, 4.0])})
    np.testing.assert_array_equal(array, [1, 2, 3, 4])


def test_other_types_and_views_are_assigned() -> None:
    holder = {"w": Tensor([0.0, 0.0]), "v": Tensor([0, 0])}
    load_state_dict(holder, {"w": Tensor([1, 2]), "v": Tensor([[1, 2], [3, 4]])[:, 1]})
    assert holder["w"].tolist() == [1.0, 2.0] and holder["v"].tolist() == [2, 4]
    assert holder["w"].dtype is Tensor([0.0]).dtype
