"""Functions that are traced once and replayed, and traced again when something changed."""

import numpy as np
import pytest

import morok
from morok import Tensor, jit, knobs
from morok.device.buffer import bind_buffer
from morok.ir.memory import base_of
from morok.runtime.plan import buffer_for
from tests.devices import needs_host_memory


def array(n: int, start: float = 0.0) -> np.ndarray:
    return np.arange(n, dtype=np.float32) + np.float32(start)


def test_replay_on_other_data() -> None:
    @jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x * y + 1.0).sum()

    for k in range(5):
        x, y = array(8, k), array(8, -k)
        assert f(Tensor(x), Tensor(y)).item() == pytest.approx(float((x * y + 1).sum()))
    assert f.traces == 1


def test_results_are_not_overwritten() -> None:
    f = jit(lambda x: x + 1.0)
    results = [f(Tensor(array(4, k))) for k in range(8)]
    views = [r.numpy() for r in results]
    sums = [f(Tensor(array(4, 100.0))) + r for r in results]  # graphs that hold old results
    f(Tensor(array(4, 1000.0)))
    for k, (r, v, s) in enumerate(zip(results, views, sums, strict=True)):
        np.testing.assert_array_equal(r.numpy(), array(4, k + 1))
        np.testing.assert_array_equal(v, array(4, k + 1))
        np.testing.assert_array_equal(s.numpy(), array(4, 101) + array(4, k + 1))


@needs_host_memory
@pytest.mark.parametrize("sizes", [(4,), (2, 2)])
def test_memory_of_dropped_results_is_used_again(sizes: tuple[int, ...]) -> None:
    f = jit(lambda x: x * 2.0)
    x = Tensor(array(4).reshape(sizes)).realize()
    f(x)
    results = [f(x)]
    first = results[0].numpy().ctypes.data
    del results
    assert {f(x).numpy().ctypes.data for _ in range(10)} == {first}
    # every kind of holder keeps the memory: a tensor, a graph, an array
    tensor = f(x)
    graph = f(x) + 1.0
    values = f(x).numpy()
    view = f(x)[1:]
    others = [f(x).numpy().ctypes.data for _ in range(5)]
    assert tensor.numpy().ctypes.data not in others and values.ctypes.data not in others
    f(Tensor(array(4, 50.0).reshape(sizes)).realize())
    np.testing.assert_array_equal(tensor.numpy(), (array(4) * 2).reshape(sizes))
    np.testing.assert_array_equal(graph.numpy(), (array(4) * 2 + 1).reshape(sizes))
    np.testing.assert_array_equal(values, (array(4) * 2).reshape(sizes))
    np.testing.assert_array_equal(view.numpy(), (array(4) * 2).reshape(sizes)[1:])


def test_results_as_arguments() -> None:
    f = jit(lambda x: x + 1.0)
    x = Tensor(array(4)).realize()
    for _ in range(20):
        x = f(x)
    np.testing.assert_array_equal(x.numpy(), array(4, 20.0))


def test_other_shapes_and_types_are_traced_again(capsys: pytest.CaptureFixture[str]) -> None:
    f = jit(lambda x, n=1: x * n)
    with knobs.override(EXPLAIN="jit"):
        assert f(Tensor(array(4))).tolist() == [0, 1, 2, 3]
        assert f(Tensor(array(3))).tolist() == [0, 1, 2]
        assert f(Tensor([1, 2])).tolist() == [1, 2]
        assert f(Tensor([1, 2]), 3).tolist() == [3, 6]
        assert f(Tensor([4, 5]), 3).tolist() == [12, 15]
    assert f.traces == 4
    assert "is traced" in capsys.readouterr().err


def test_values_from_outside_are_guarded() -> None:
    scale = 2.0
    options = {"shift": 1.0, "parts": [1, 2]}

    @jit
    def f(x: Tensor) -> Tensor:
        return x * scale + options["shift"] + len(options["parts"])

    x = Tensor(array(3)).realize()
    assert f(x).tolist() == [3, 5, 7]
    scale = 3.0
    assert f(x).tolist() == [3, 6, 9]
    options["shift"] = 0.0
    assert f(x).tolist() == [2, 5, 8]
    options["parts"].append(3)
    assert f(x).tolist() == [3, 6, 9]
    traces = f.traces
    assert f(x).tolist() == [3, 6, 9] and f.traces == traces


class Layer:
    def __init__(self) -> None:
        self.weight = Tensor(array(3, 1.0))
        self.bias = 0.5

    @jit
    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


def test_objects_are_guarded() -> None:
    layer, other = Layer(), Layer()
    x = Tensor([1.0, 1.0, 1.0])
    assert layer(x).tolist() == [1.5, 2.5, 3.5]
    layer.weight = Tensor([0.0, 0.0, 0.0])
    assert layer(x).tolist() == [0.5, 0.5, 0.5]
    layer.bias = 2.0
    assert layer(x).tolist() == [2.0, 2.0, 2.0]
    assert other(x).tolist() == [1.5, 2.5, 3.5]


def test_weights_that_are_assigned_to_are_seen() -> None:
    weight = Tensor(array(3)).realize()
    f = jit(lambda x: x + weight)
    x = Tensor([10.0, 10.0, 10.0])
    assert f(x).tolist() == [10, 11, 12]
    weight.assign(weight + 1.0).realize()
    assert f(x).tolist() == [11, 12, 13]


def test_assigning_is_repeated_at_every_call() -> None:
    state = Tensor(array(3)).realize()
    want = state.numpy().copy()

    @jit
    def f(x: Tensor) -> Tensor:
        state.assign(state + x)
        return state + 0.0

    for _ in range(3):
        want = want + 1.0
        np.testing.assert_allclose(f(Tensor(np.ones(3, dtype=np.float32))).numpy(), want, rtol=1e-6)
        np.testing.assert_allclose(state.numpy(), want, rtol=1e-6)


def test_structures() -> None:
    @jit
    def f(pair: tuple[Tensor, Tensor], options: dict[str, Tensor]) -> dict[str, object]:
        a, b = pair
        return {"sum": a + b, "all": [a, options["c"] * 2.0], "name": "x"}

    for k in range(3):
        a, b, c = (Tensor(array(2, k + d)) for d in range(3))
        out = f((a, b), {"c": c})
        assert out["name"] == "x"
        np.testing.assert_array_equal(out["sum"].numpy(), array(2, k) + array(2, k + 1))
        np.testing.assert_array_equal(out["all"][0].numpy(), array(2, k))
        np.testing.assert_array_equal(out["all"][1].numpy(), array(2, k + 2) * 2)


def test_views_as_arguments() -> None:
    f = jit(lambda x: x.sum(0))
    data = array(12).reshape(3, 4)
    for part in (data, data * 2):
        x = Tensor(part)
        np.testing.assert_array_equal(f(x.permute(1, 0)).numpy(), part.T.sum(0))


def test_the_interpreter_replays_too() -> None:
    f = jit(lambda x: x + 1.0)
    for k in range(3):
        x = Tensor(array(4, k), device="PYTHON")
        np.testing.assert_array_equal(f(x).numpy(), array(4, k + 1))
    assert f.traces == 1


@needs_host_memory
def test_arguments_get_other_memory_between_replays() -> None:
    f = jit(lambda x, y: x * 2 + y)
    a, b = (Tensor(np.arange(n, n + 4, dtype=np.float32)).realize() for n in (0, 10))
    for _ in range(4):  # the same nodes, then others, then the first ones again
        for x, y in ((a, b), (a, b), (b, a), (b, a), (a, a)):
            np.testing.assert_array_equal(f(x, y).numpy(), x.numpy() * 2 + y.numpy())
    for _ in range(3):
        f(a, b)
    other = Tensor(np.full(4, 7.0, np.float32)).realize()
    bind_buffer(base_of(a.uop), buffer_for(base_of(other.uop)))  # the same node shows other memory
    np.testing.assert_array_equal(f(a, b).numpy(), 14 + np.arange(10, 14, dtype=np.float32))


def test_public_name() -> None:
    assert morok.jit is jit


def test_parts_of_arguments_are_given_back() -> None:
    f = jit(lambda a: (a, a.reshape(2, 2), a[1:], a.reshape(2, 2).transpose(0, 1)))
    data = array(8)
    for given in (Tensor(data[:4]), Tensor(data[4:]), Tensor(data)[::2], Tensor(data[:4]) * 2.0):
        want = given.numpy().copy()
        found = f(given)
        assert [t.shape for t in found] == [(4,), (2, 2), (3,), (2, 2)]
        for got, right in zip(found, (want, want.reshape(2, 2), want[1:], want.reshape(2, 2).T), strict=True):
            assert got.numpy().tolist() == right.tolist()
    assert f.traces == 1


def test_memory_of_a_result_that_was_assigned_to_is_not_used_again() -> None:
    """The memory has another name after the assignment; that the first one is gone says nothing."""

    @jit
    def turn(x: Tensor) -> None:
        x[...] = x.flip(0)

    with knobs.override(DEVICE="CPU"):
        x, want = Tensor(array(1000)).realize(), array(1000)
        for n in range(6):
            turn(x)
            want = want[::-1].copy()
            x[n] = 10.0 * n
            want[n] = 10.0 * n
            x.realize()
        np.testing.assert_array_equal(x.numpy(), want)
