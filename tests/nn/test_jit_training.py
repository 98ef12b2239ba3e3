"""Whole steps of training under `@jit`: everything that a step assigns is a result of one plan."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, nn
from morok.tensor.jit.jit import JitError, jit

rng = np.random.default_rng(0)
X = rng.standard_normal((8, 3)).astype(np.float32)
Y = rng.standard_normal((8, 2)).astype(np.float32)


class Model:
    """A layer, running statistics, and another layer.

    A bias before the norm would have no gradient but rounding errors, whose signs AdamW follows.
    """

    def __init__(self) -> None:
        self.first, self.norm, self.last = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())


def made(kind: Callable[..., nn.Optimizer]) -> tuple[Model, nn.Optimizer, Callable[[Tensor, Tensor], Tensor]]:
    morok.manual_seed(3)
    model = Model()
    optimizer = kind(nn.parameters(model))

    def step(x: Tensor, y: Tensor) -> Tensor:
        with nn.training():
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
        return loss

    return model, optimizer, step


def values(*things: Any) -> dict[str, Any]:
    return {name: t.numpy().copy() for name, t in nn.named_tensors(list(things)).items()}


@pytest.mark.parametrize(
    "kind",
    [
        lambda p: nn.SGD(p, lr=0.1, momentum=0.9),
        lambda p: nn.AdamW(p, lr=0.05),
        lambda p: nn.LAMB(p, lr=0.05),
        lambda p: nn.Muon(p, lr=0.05),
    ],
    ids=["sgd", "adamw", "lamb", "muon"],
)
def test_the_same_as_without_jit(kind: Any, device: str) -> None:
    """Parameters, states, statistics, gradients and losses, while the learning rate changes."""
    plain, jitted = made(kind), made(kind)
    compiled = jit(jitted[2])
    for number in range(4):
        losses = [float(f(Tensor(X), Tensor(Y)).item()) for f in (plain[2], compiled)]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
        for a, b in zip(values(*plain[:2]).values(), values(*jitted[:2]).values(), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-3, atol=1e-5)
        gradients = [nn.parameters(m)[0].grad for m in (plain[0], jitted[0])]
        assert gradients[0] is not None and gradients[1] is not None
        np.testing.assert_allclose(gradients[1].numpy(), gradients[0].numpy(), rtol=2e-3, atol=1e-5)
        plain[1].lr = jitted[1].lr = 0.05 / (number + 1)
    # the first call found no gradients, the second those that the first had left; after that nothing is new
    assert compiled.traces <= 2
    (plan, *_) = compiled.plans
    assert len(plan.kernels) > 1


def test_one_plan_and_no_tracing_when_only_the_rate_changes() -> None:
    _, optimizer, step = made(lambda p: nn.SGD(p, lr=0.1))
    compiled = jit(step)
    for n in range(6):
        compiled(Tensor(X), Tensor(Y))
        optimizer.lr = 0.1 / (n + 1)
        seen = compiled.traces if n == 2 else None
        if seen is not None:
            settled = seen
    assert compiled.traces == settled


def test_a_changed_setting_is_traced_again() -> None:
    model, optimizer, step = made(lambda p: nn.SGD(p, lr=0.1))
    other, second, plain = made(lambda p: nn.SGD(p, lr=0.1))
    compiled = jit(step)
    for decay in (0.0, 0.0, 0.5, 0.5):
        optimizer.weight_decay = second.weight_decay = decay
        compiled(Tensor(X), Tensor(Y))
        plain(Tensor(X), Tensor(Y))
    for a, b in zip(values(other).values(), values(model).values(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6)


def test_a_counter_in_memory(device: str) -> None:
    count = Tensor(np.zeros(2, dtype=np.float32))

    @jit
    def tick(x: Tensor) -> Tensor:
        count.assign(count + x)
        return count * 10.0

    for n in range(1, 5):
        assert tick(Tensor([1.0, 2.0])).tolist() == [10.0 * n, 20.0 * n]
        assert count.tolist() == [1.0 * n, 2.0 * n]
    count.assign(Tensor([100.0, 100.0]))
    assert tick(Tensor([1.0, 2.0])).tolist() == [1010.0, 1020.0]
    assert tick.traces == 1


def test_arguments_are_assigned_to() -> None:
    @jit
    def swap(x: Tensor, y: Tensor) -> None:
        old = x * 1.0
        x.assign(y)
        y.assign(old)

    for _ in range(3):
        a, b = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
        swap(a, b)
        assert (a.tolist(), b.tolist()) == ([3.0, 4.0], [1.0, 2.0])
        a.assign(a + 1.0)
        assert b.tolist() == [1.0, 2.0] and a.tolist() == [4.0, 5.0]


def test_a_result_that_is_also_assigned_has_memory_of_its_own() -> None:
    state = Tensor([1.0, 2.0])

    @jit
    def double() -> Tensor:
        state.assign(state * 2.0)
        return state

    seen = [double().tolist() for _ in range(3)]
    assert seen == [[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]] and state.tolist() == [8.0, 16.0]


def test_parts_are_assigned() -> None:
    state = Tensor(np.zeros(4, dtype=np.float32))
    view = state[2:]

    @jit
    def put(x: Tensor) -> None:
        state[1:3] = x

    for n in range(3):
        put(Tensor([1.0 + n, 2.0]))
        assert state.tolist() == [0.0, 1.0 + n, 2.0, 0.0] and view.tolist() == [2.0, 0.0]
    assert put.traces == 1


@pytest.mark.parametrize(
    "look", [lambda t: t.item(), lambda t: t.numpy(), lambda t: bool(t > 1), lambda t: t.tolist(), float]
)
def test_values_cannot_be_looked_at(look: Callable[[Tensor], Any]) -> None:
    """Neither of what is computed nor of an argument: the plan would remember them for ever."""

    @jit
    def scaled(x: Tensor) -> Tensor:
        return x * (2.0 if look(x.sum()) is not None else 3.0)

    @jit
    def first(x: Tensor) -> Tensor:
        return x * (2.0 if look(x) is not None else 3.0)

    for function in (scaled, first):
        with pytest.raises(JitError, match="cannot look at values"):
            function(Tensor([4.0]))


def test_layers_are_looked_up() -> None:
    """Weights that moved to other memory, or are other tensors, are seen: nothing old is used."""
    layer = nn.Linear(3, 2)
    call = jit(lambda x: layer(x))
    x = Tensor(X)

    def fresh() -> None:
        np.testing.assert_allclose(call(x).numpy(), layer(x).numpy(), rtol=1e-6)

    fresh()
    step = nn.TrainStep(layer, nn.SGD(nn.parameters(layer), lr=0.5), lambda x: (layer(x) ** 2).mean())
    step(x)
    step(x)
    fresh()
    layer.weight.assign(layer.weight.detach() * 0.0).realize()
    fresh()
    layer.weight = Tensor(np.ones((2, 3), dtype=np.float32))
    fresh()
    layer.bias = None
    fresh()


def test_training_is_part_of_the_form() -> None:
    drop = nn.Dropout(0.5)
    call = jit(lambda x: drop(x))
    x = Tensor(np.ones((64, 64), dtype=np.float32))
    with nn.training():
        assert (call(x).numpy() == 0).any() and (call(x).numpy() == 0).any()
    assert (call(x).numpy() == 1).all() and (call(x).numpy() == 1).all()
    drop.p = 0.0
    with nn.training():
        assert (call(x).numpy() == 1).all()


def test_arrays_changed_in_place_are_seen() -> None:
    scale = np.array([2.0, 3.0], dtype=np.float32)
    call = jit(lambda x: x * Tensor(scale.copy()))
    assert call(Tensor([1.0, 1.0])).tolist() == [2.0, 3.0]
    scale[0] = 5.0
    assert call(Tensor([1.0, 1.0])).tolist() == [5.0, 3.0]


def test_a_compiled_step_notices_a_changed_setting() -> None:
    layer, drop = nn.Linear(3, 3), nn.Dropout(0.0)
    optimizer = nn.SGD(nn.parameters(layer), lr=0.0)
    step = nn.TrainStep(layer, optimizer, lambda x: drop(layer(x)).abs().sum())
    kept = step(Tensor(X)).item()
    assert step(Tensor(X)).item() == kept
    drop.p = 0.999999
    assert step(Tensor(X)).item() < 0.01 * kept


def test_a_failed_trace_leaves_everything_alone() -> None:
    model, _, step = made(lambda p: nn.SGD(p, lr=0.1))
    before = values(model)

    @jit
    def broken(x: Tensor, y: Tensor) -> Tensor:
        step(x, y)
        raise RuntimeError("later")

    with pytest.raises(RuntimeError, match="later"):
        broken(Tensor(X), Tensor(Y))
    for a, b in zip(before.values(), values(model).values(), strict=True):
        np.testing.assert_array_equal(a, b)
