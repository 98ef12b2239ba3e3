"""What makes two calls of a compiled function different: everything that Python could tell apart."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from typing import Any

import numpy as np
import pytest

from morok import Tensor, grad, jit, knobs, nn, no_grad
from tests.devices import devices

SCALE = 2.0
SETTINGS: Any = types.ModuleType("settings")
RANDOM = np.random.default_rng(0)


@pytest.fixture(params=dict.fromkeys([*devices("PYTHON"), "CPU"]), autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The interpreter runs kernels one by one, the CPU all of them in one native call."""
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(0))  # the same in any order of tests
    with knobs.override(DEVICE=request.param):
        yield request.param


def make(*sizes: int) -> Tensor:
    return Tensor(RANDOM.normal(size=sizes).astype(np.float32)).realize()


def same_as_eager(function: Callable[..., Tensor], *calls: tuple[Any, ...]) -> None:
    compiled = jit(function)
    for _ in range(3):
        for args in calls:
            got, want = compiled(*args), function(*args)
            assert got.dtype is want.dtype
            np.testing.assert_array_equal(got.numpy(), want.numpy())
            np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(want.numpy()))
    assert compiled.traces == len(calls)


# --- arguments


def test_numbers_that_are_equal_and_not_the_same() -> None:
    whole, zeros = Tensor([1, 2]), Tensor(np.array([-0.0, 1.0], np.float32))
    same_as_eager(lambda x, v: x * v, (whole, 1), (whole, 1.0), (whole, True))
    same_as_eager(lambda x, v: x + v, (zeros, 0.0), (zeros, -0.0))
    same_as_eager(lambda x, v: x * v["a"][0], (whole, {"a": [1]}), (whole, {"a": [1.0]}))
    same_as_eager(lambda x, v: x * next(iter(v)), (whole, {1: 0}), (whole, {1.0: 0}))


def test_nan_is_a_value_like_any_other() -> None:
    compiled = jit(lambda x, v: x * v)
    for _ in range(3):
        assert np.isnan(compiled(make(2), float("nan")).numpy()).all()
    assert compiled.traces == 1


def test_one_tensor_in_two_places() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.assign(a + 1)
        return b * 2 if a is b else b * 3

    compiled = jit(function)
    for _ in range(3):
        x, y, z = (Tensor([1.0, 2.0]).realize() for _ in range(3))
        assert compiled(x, x).tolist() == [4.0, 6.0] and x.tolist() == [2.0, 3.0]
        assert compiled(y, z).tolist() == [3.0, 6.0] and y.tolist() == [2.0, 3.0]


def test_a_tensor_that_is_given_and_taken_from_outside() -> None:
    outside = Tensor([1.0, 2.0]).realize()

    def function(a: Tensor) -> Tensor:
        a.assign(a + 1)
        return outside * 2

    compiled = jit(function)
    for number in range(1, 4):
        assert compiled(outside).tolist() == [2.0 * (number + 1), 2.0 * (number + 2)]
    for _ in range(2):
        assert compiled(make(2)).tolist() == [8.0, 10.0]


def test_objects_and_functions_as_arguments_are_looked_into() -> None:
    layer, factor = nn.Linear(3, 2), 2.0
    compiled: Any = jit(lambda part, x: part(x))

    def scaled(x: Tensor) -> Tensor:
        return x * factor

    for number in range(4):
        x, factor = make(1, 3), float(number)
        np.testing.assert_allclose(compiled(layer, x).numpy(), layer(x).numpy(), rtol=1e-6)
        np.testing.assert_allclose(compiled(scaled, x).numpy(), x.numpy() * factor, rtol=1e-6)
        layer.weight = make(2, 3)


def test_subclasses_give_subclasses() -> None:
    class Own(Tensor):
        pass

    compiled = jit(lambda x: x * 2)
    for kind in (Tensor, Own, Tensor, Own):
        assert type(compiled(kind([1.0]))) is kind


def test_gradients_of_arguments() -> None:
    def function(w: Tensor, x: Tensor) -> Tensor:
        if not w.requires_grad:
            return (w * x).sum() * 3
        loss = (w * x).sum()
        loss.backward()
        return loss

    compiled = jit(function)
    w, plain = Tensor([1.0, 2.0], requires_grad=True), make(2)
    for number in range(6):
        if number == 3:
            w.zero_grad()
        x, before = make(2), 0.0 if w.grad is None else w.grad.numpy()
        compiled(w, x)
        assert w.grad is not None
        np.testing.assert_allclose(w.grad.numpy(), before + x.numpy(), rtol=1e-5)
        want = 3 * (plain.numpy() * x.numpy()).sum()
        np.testing.assert_allclose(compiled(plain, x).numpy(), want, rtol=1e-4)


def test_a_tensor_that_requires_gradients_from_now_on() -> None:
    compiled, x = jit(lambda x: x * 2 if x.requires_grad else x * 3), Tensor([1.0]).realize()
    assert [compiled(x).item() for _ in range(3)] == [3.0] * 3
    x.requires_grad_()
    assert compiled(x).item() == 2.0


def test_a_view_of_what_requires_gradients_from_now_on() -> None:
    compiled, x = jit(lambda x: (x * x).sum()), Tensor([1.0, 2.0]).realize()
    view = x.reshape(2, 1)
    for _ in range(3):
        compiled(view)  # compiled, replayed, and replayed the short way
    x.requires_grad_()
    compiled(view).backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]


def test_containers_that_are_called_with_again() -> None:
    def function(x: Tensor, parts: dict[Any, Any], *, scale: Any) -> Tensor:
        last = list(parts.values())[-1]
        return x * parts["w"][0] + last * scale * len(parts) + next(iter(parts["w"][1:]), 0)

    compiled, x = jit(function), make(2)
    parts: dict[Any, Any] = {"w": [make(2)], "b": make(2)}

    def check(**named: Any) -> None:
        for _ in range(3):  # traced or replayed, then the short way
            got, want = compiled(x, parts, **named), function(x, parts, **named)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)

    check(scale=1)
    traces = compiled.traces
    parts["b"] = make(2)  # another tensor
    check(scale=1)
    parts["w"][0].assign(make(2))  # the same one with other values
    check(scale=1)
    parts["b"] = parts["w"][0] + 1  # a lazy one
    check(scale=1)
    parts["b"] = make(4)[::2]  # a part of one
    check(scale=1)
    parts["b"] = Tensor([3.0, 4.0]).realize()
    check(scale=1)
    assert compiled.traces == traces
    check(scale=1.5)
    check(scale=make(2))
    parts["w"].append(make(2))  # another structure
    check(scale=1)
    del parts["b"]
    parts["c"] = make(2)  # another name
    check(scale=1)
    parts = {"c": parts["c"], "w": parts["w"][:1]}  # another order
    parts["w"], parts[1] = parts["w"], make(2)
    check(scale=1)
    parts[1.0] = make(2)  # the key stays 1: an equal one does not replace it
    check(scale=1)
    parts = {True if key == 1 else key: value for key, value in parts.items()}
    before = compiled.traces
    check(scale=1)
    assert compiled.traces == before + 1  # 1 and True are different keys


def test_what_is_known_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jit(lambda x, parts, *, scale: x * parts["w"] * scale[0])
    x, parts, scale = make(2), {"w": make(2)}, [make(2)]
    want = compiled(x, parts, scale=scale).numpy()
    compiled(x, parts, scale=scale)
    monkeypatch.setattr(type(compiled), "_long_way", lambda *_: pytest.fail("the long way"))
    np.testing.assert_array_equal(compiled(x, {"w": parts["w"]}, scale=[scale[0]]).numpy(), want)


# --- surroundings


def test_options_and_the_place_of_new_tensors() -> None:
    compiled, x = jit(lambda x: x + Tensor.arange(2)), Tensor([1, 2], device="PYTHON")
    alone = jit(lambda x: Tensor.arange(3) + 0)
    for device in ("CPU", "PYTHON", "CPU", "PYTHON"):
        with knobs.override(DEVICE=device):
            assert alone(x).device == device
            assert (Tensor.arange(3) + 0).realize().device == device
    for _ in range(2):
        with knobs.override(NOOPT=True):
            compiled(x)
        compiled(x)
    assert compiled.traces == 2 and alone.traces == 2


def test_gradients_flow_through_a_function_on_the_way() -> None:
    square = jit(lambda x: x * x)
    for _ in range(3):
        square(Tensor([5.0]))  # compiled, and replayed
    np.testing.assert_array_equal(grad(lambda t: square(t).sum())(Tensor([3.0])).numpy(), [6.0])
    w, v = Tensor([2.0]).requires_grad_(), Tensor([7.0]).requires_grad_()
    (square(w * 3) * v).sum().backward()  # (3w)² v
    assert w.grad is not None and v.grad is not None
    assert (w.grad.item(), v.grad.item()) == (2 * 9 * 2 * 7, 36)
    with no_grad():
        assert square(w * 3).item() == 36


def test_without_gradients() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)

    def function(x: Tensor) -> Tensor:
        y = w * x
        return y * 2 if y.requires_grad else y * 3

    compiled = jit(function)
    for _ in range(3):
        x = make(2)
        np.testing.assert_allclose(compiled(x).numpy(), w.numpy() * x.numpy() * 2, rtol=1e-6)
        with no_grad():
            np.testing.assert_allclose(compiled(x).numpy(), w.numpy() * x.numpy() * 3, rtol=1e-6)


class Shared:
    factor = 2.0

    def scaled(self, x: Tensor) -> Tensor:
        return x * (self.factor * SCALE)

    def twice(self, x: Tensor) -> Tensor:
        return self.scaled(x) + self.scaled(x)


def test_values_that_are_reached_in_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner functions, attributes of modules and classes, methods, defaults, another compiled function."""

    def inner(x: Tensor) -> Tensor:
        return sum([x * SCALE for _ in range(2)]) * SETTINGS.factor * Shared.factor

    def with_default(x: Tensor, by: list[float] = [2.0]) -> Tensor:  # noqa: B006 - it is changed on purpose
        return x * by[0]

    assert with_default.__defaults__ is not None
    compiled: list[tuple[Any, Callable[[], float]]] = [
        (jit(inner), lambda: 2 * SCALE * SETTINGS.factor * Shared.factor),
        (jit(Shared().twice), lambda: 2 * Shared.factor * SCALE),
        (jit(with_default), lambda: with_default.__defaults__[0][0]),  # type: ignore[index]
        (jit(jit(inner)), lambda: 2 * SCALE * SETTINGS.factor * Shared.factor),
    ]
    monkeypatch.setattr(SETTINGS, "factor", 1.0, raising=False)

    def check() -> None:
        x = make(3)
        for function, factor in compiled:
            np.testing.assert_allclose(function(x).numpy(), x.numpy() * factor(), rtol=1e-5)

    check()
    for owner, name in ((SETTINGS, "factor"), (Shared, "factor")):
        monkeypatch.setattr(owner, name, 3.0)
        check()
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    with_default.__defaults__[0][0] = 4.0
    check()


class Slots:
    __slots__ = ("w",)


def test_tensors_in_slots_and_in_arguments_that_are_given_before() -> None:
    holder, given = Slots(), make(3)
    holder.w = make(3)
    in_slots, before = jit(lambda x: x * holder.w), jit(partial(lambda w, x: x * w, given))
    held = []  # somebody looks at the memory, so that an assignment takes other memory
    for _ in range(4):
        x = make(3)
        held.append(given.numpy())
        np.testing.assert_array_equal(in_slots(x).numpy(), x.numpy() * holder.w.numpy())
        np.testing.assert_array_equal(before(x).numpy(), x.numpy() * held[-1])
        holder.w = make(3)
        given.assign(given * 2).realize()
    assert in_slots.traces == before.traces == 1


def test_a_zero_from_outside_that_changes_its_sign() -> None:
    numbers = [0.0]
    compiled, x = jit(lambda x: x + numbers[0]), Tensor(np.array([-0.0], np.float32))
    signs = []
    for number in (0.0, -0.0, 0.0):
        numbers[0] = number
        signs.append(bool(np.signbit(compiled(x).numpy()[0])))
    assert signs == [False, True, False]


# --- results


def test_results_that_share_memory() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = (x + 1).contiguous()
        return y, y, y.reshape(6), y.transpose(0, 1), y[0]

    compiled = jit(function)
    for _ in range(4):
        x = make(2, 3)
        y = x.numpy() + 1
        results = compiled(x)
        for got, want in zip(results, (y, y, y.reshape(6), y.T, y[0]), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        assert results[0] is results[1]


def test_constants_that_are_given_out_may_be_written() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        made = Tensor([1.0, 2.0])
        return made, x + made

    compiled = jit(function)
    for _ in range(4):
        x = make(2)
        made, added = compiled(x)
        assert made.tolist() == [1.0, 2.0]
        np.testing.assert_array_equal(added.numpy(), x.numpy() + np.array([1, 2], np.float32))
        made.assign(made * 7).realize()


def test_a_tensor_from_outside_is_given_back_as_it_is_now() -> None:
    kept = {"w": make(3)}
    compiled = jit(lambda x: (x + 1, kept["w"], kept["w"][1:]))
    for _ in range(4):
        _, whole, part = compiled(make(3))
        np.testing.assert_array_equal(whole.numpy(), kept["w"].numpy())
        np.testing.assert_array_equal(part.numpy(), kept["w"].numpy()[1:])
        kept["w"] = make(3)


def test_an_argument_that_is_given_back_is_the_argument() -> None:
    compiled = jit(lambda x: (x, x[1:]))
    for _ in range(3):
        x = make(3)
        before = x.numpy().copy()
        whole, part = compiled(x)
        assert whole is x
        part.assign(part * 0).realize()  # a view of the argument, as without jit
        np.testing.assert_array_equal(x.numpy(), [before[0], 0, 0])


def test_threads_do_not_get_each_other_s_results() -> None:
    compiled = jit(lambda x: (x * 2 + 1).exp().sum(1))
    inputs = [make(100, 200) for _ in range(4)]
    for x in inputs:
        compiled(x)
    wanted = [compiled(x).numpy().copy() for x in inputs]
    right: list[bool] = []
    options = knobs.overridden()

    def work(number: int) -> None:
        with knobs.override(**options):
            got = (compiled(inputs[number]).numpy() for _ in range(200))
            right.extend([np.array_equal(result, wanted[number]) for result in got])

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 800 and all(right) and compiled.traces == 1
