"""A call of a form that has been seen makes the nodes that the method itself would make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable
from morok.errors import ShapeError
from morok.ir.cached_graph import CachedGraph
from morok.ir.provenance import place
from morok.schedule import schedule as schedules
from morok.schedule.schedule import clear_cache
from morok.tensor.calls import record, trace_cache
from morok.tensor.calls.record import repeated
from morok.tensor.calls.trace_cache import clear_trace_cache
from morok.tensor.random import manual_seed

Call = Callable[[Any, Any], Any]

CALLS: dict[str, Call] = {
    "add": lambda x, y: x + y,
    "number on the left": lambda x, _: 2 - x,
    "negative zero": lambda x, _: x + -0.0,
    "power": lambda x, _: x**3,
    "remainder": lambda x, y: x % y,
    "compare": lambda x, y: x <= y,
    "where": lambda x, y: (x > 0).where(x, y),
    "clamp": lambda x, _: x.clamp(0, max=1.5),
    "gelu": lambda x, _: x.gelu("tanh"),
    "log1p": lambda x, _: x.log1p(),
    "cast": lambda x, _: x.cast("float16"),
    "reshape": lambda x, _: x.reshape((2, -1)),
    "expand": lambda x, _: x.unsqueeze(0).expand(3, -1, -1),
    "pad": lambda x, _: x.pad(((1, 0), (0, 2)), value=3.0),
    "slices": lambda x, _: x[1:3, ::2],
    "negative step": lambda x, _: x[::-1, None, ..., 1],
    "lookup": lambda x, y: x[y[0].cast("int32")],
    "sum": lambda x, _: x.sum(0, keepdim=True),
    "variance": lambda x, _: x.var(axis=1),
    "argmax": lambda x, _: x.argmax(1),
    "cumsum": lambda x, _: x.cumsum(1),
    "softmax": lambda x, _: x.softmax(-1),
    "layer norm": lambda x, y: x.layer_norm(-1, y[0], y[1]),
    "matrix product": lambda x, y: x @ y.transpose(0, 1),
    "attention": lambda x, y: x.scaled_dot_product_attention(y, y, is_causal=True),
    "convolution": lambda x, y: x.reshape(1, 1, 4, 6).conv2d(y[:2, :2].reshape(1, 1, 2, 2), padding=1),
    "overlapping pool": lambda x, _: x.reshape(1, 1, 4, 6).max_pool2d(3, 1),
    "joined": lambda x, y: x.cat(y, dim=1),
    "rolled": lambda x, _: x.roll(2, 1),
    "triangle": lambda x, _: x.tril(1),
}


def pair() -> tuple[Tensor, Tensor]:
    random = np.random.default_rng()
    return tuple(Tensor(random.normal(size=(4, 6)).astype(np.float32)) for _ in range(2))  # type: ignore[return-value]


def known() -> int:
    return sum(isinstance(found, CachedGraph) for _, found in trace_cache._trace_cache.items())


@pytest.mark.parametrize("name", CALLS)
def test_the_same_nodes_as_the_long_way(name: str) -> None:
    clear_trace_cache()
    for _ in range(2):
        CALLS[name](*pair())
    assert known(), "nothing was captured"
    computed = tuple(t * 2 for t in pair())
    for x, y in (pair(), computed, (computed[0], computed[0])):
        quick = CALLS[name](x, y)
        before = trace_cache._trace_cache.items()
        clear_trace_cache()
        assert CALLS[name](x, y).uop is quick.uop
        for form, found in before:
            trace_cache._trace_cache[form] = found


# What asks for the device, and what returns several tensors.
MORE: dict[str, Call] = {
    "largest": lambda x, _: x.topk(2),
    "largest of long rows": lambda x, _: x.repeat(1, 60).topk(5),
    "median": lambda x, _: x.median(1),
    "median without NaN": lambda x, _: x.nanmedian(1),
    "quantile": lambda x, _: x.quantile(0.3, 1),
    "places in a row": lambda x, y: x[0].searchsorted(y),
    "among others": lambda x, y: x.isin(y),
    "both ends": lambda x, _: x.aminmax(dim=1),
    "variance and mean": lambda x, _: x.var_mean(1),
    "quotient and remainder": lambda x, y: divmod(x, y),
    "mantissa": lambda x, _: x.frexp(),
    "pieces": lambda x, _: x.split(2),
    "rows": lambda x, _: x.unbind(0),
    "pool and places": lambda x, _: x.reshape(1, 1, 4, 6).max_pool2d(2, return_indices=True),
    "product by letters": lambda x, y: Tensor.einsum("ij,kj->ik", x, y),  # type: ignore[type-var]
    "added at places": lambda x, y: x.scatter_add(1, y.argsort(1), y),
    "rows added at places": lambda x, y: x.scatter_add(0, y[:, :1].argsort(0).expand(4, 6), y),
    "largest at places": lambda x, y: x.scatter_reduce(1, y.argsort(1), y, "amax"),
}


def several(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


@pytest.mark.parametrize("name", MORE)
def test_an_equal_call_is_neither_traced_nor_scheduled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clear_trace_cache()
    traced: list[object] = []
    scheduled: list[object] = []
    watched: list[tuple[Any, str, list[object]]]
    watched = [(record, "note_call", traced), (schedules, "normalise", scheduled)]
    for module, known_as, calls in watched:
        monkeypatch.setattr(module, known_as, _noting(calls, vars(module)[known_as]))

    def values() -> list[Any]:
        first, *others = found = several(MORE[name](x, y))
        first.realize(*others)
        return [t.numpy() for t in found]

    x, y = pair()
    want = values()
    values()
    traced.clear()
    scheduled.clear()
    for got, same in zip(values(), want, strict=True):
        np.testing.assert_array_equal(got, same)
    assert known() and not traced, "methods are called the long way"
    assert not scheduled, "graphs of this form are known"


def _noting(calls: list[object], function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        calls.append(args)
        return function(*args)

    return noted


@pytest.mark.parametrize("name", MORE)
def test_several_results_are_the_nodes_of_the_long_way(name: str) -> None:
    clear_trace_cache()
    for _ in range(2):
        MORE[name](*pair())
    for x, y in (pair(), tuple(t * 2 for t in pair())):
        quick = MORE[name](x, y)
        before = trace_cache._trace_cache.items()
        clear_trace_cache()
        slow = MORE[name](x, y)
        assert quick.__class__ is slow.__class__
        assert [t.uop for t in several(quick)] == [t.uop for t in several(slow)]
        for form, found in before:
            trace_cache._trace_cache[form] = found


def test_pieces_are_views_at_every_call() -> None:
    clear_trace_cache()
    for _ in range(4):
        x, _ = pair()
        first, *_ = x.split(2)
        first[0] = 7.0
        np.testing.assert_array_equal(x[0].numpy(), 7.0)


def test_each_device_has_graphs_of_its_own() -> None:
    clear_trace_cache()
    values = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    want = -np.sort(-values)[:, :5]
    for device in ("CPU", "PYTHON") * 4:
        found = Tensor(values, device=device).topk(5).values
        assert found.device == device
        np.testing.assert_array_equal(found.numpy(), want)
    graphs = [found for _, found in trace_cache._trace_cache.items() if getattr(found, "several", None)]
    assert len(graphs) == 2


def test_an_operand_that_the_method_itself_makes_is_no_confusion() -> None:
    """x broadcast is what `y` is here, and another time it is not."""
    clear_trace_cache()
    for _ in range(3):
        x = Tensor(np.ones((1, 3), np.float32))
        x + x.expand(4, 3)
    x, y = Tensor(np.ones((1, 3), np.float32)), Tensor(np.full((1, 3), 5.0, np.float32)).expand(4, 3)
    assert (x + y).numpy()[0, 0] == 6.0


def test_numbers_that_are_equal_and_not_the_same() -> None:
    clear_trace_cache()
    x = Tensor(np.array([-0.0, 1.0], np.float32))
    for _ in range(3):
        assert np.signbit((x + -0.0).numpy()[0]) and not np.signbit((x + 0.0).numpy()[0])
    i = Tensor([2, 3])
    for _ in range(3):
        assert (i * 1).dtype.name == "int64" and (i * 1.0).dtype.name == "float32"
        assert (i * True).dtype.name == "int64"


def test_the_same_tensor_twice_is_another_form() -> None:
    clear_trace_cache()
    x, y = pair()
    for _ in range(3):
        np.testing.assert_array_equal((x - x).numpy(), 0.0)
        np.testing.assert_array_equal((x - y).numpy(), x.numpy() - y.numpy())


def test_nodes_come_from_the_line_that_called() -> None:
    for _ in range(3):
        x, _ = pair()
        x.exp2()
    here = x.exp2()
    there = pair()[0].exp2()
    assert place(here.uop) != place(there.uop)
    assert str(place(there.uop)).startswith("test_trace_cache.py:")


@repeated(1)
def scaled(x: Tensor, y: Tensor, count: int, fails: bool) -> Tensor:
    """Asks for the device of its tensors, and makes something there."""
    asked.append(y.device)
    if fails:
        return Tensor(np.arange(count, dtype=np.float32)) * y
    return x * y + Tensor.arange(count, device=y.device)


asked: list[str] = []


def test_functions_that_are_no_methods() -> None:
    clear_trace_cache()
    asked.clear()
    x, y = (np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32) for _ in range(2))
    for _ in range(5):
        found = scaled(Tensor(x) * 2, Tensor(y), 4, False)
        np.testing.assert_allclose(found.numpy(), x * 2 * y + np.arange(4), rtol=1e-6)
    default = Tensor(x).device
    assert asked == [default] * 3  # twice by calls, and once to capture it
    for _ in range(4):  # of another device
        found = scaled(Tensor(x, device="PYTHON"), Tensor(y, device="PYTHON"), 4, False)
        assert found.device == "PYTHON"
        np.testing.assert_allclose(found.numpy(), x * y + np.arange(4), rtol=1e-6)
    for _ in range(4):  # with memory of its own there is nothing to be kept
        found = scaled(Tensor(x), Tensor(y), 4, True)
        np.testing.assert_allclose(found.numpy(), np.arange(4) * y, rtol=1e-6)


def test_symbolic_sizes_and_errors_go_the_long_way() -> None:
    clear_trace_cache()
    n = Variable("n", 1, 4)
    for value in (2, 3, 2, 4):
        x = pair()[0][: n.bind(value)] * 2.0
        assert x.numpy().shape == (value, 6)
    for _ in range(4):
        with pytest.raises(ShapeError, match=r"\(4, 6\) and \(5, 6\)") as caught:
            pair()[0] + Tensor.ones(5, 6)
        assert str(caught.value.place).startswith("test_trace_cache.py:")


def test_random_numbers_are_drawn_once_per_call() -> None:
    def draws() -> list[Any]:
        manual_seed(3)
        return [(pair()[0] * 0 + Tensor.rand(4, 6)).tolist() for _ in range(4)]

    clear_trace_cache()
    assert draws() == draws()


def test_how_many_are_kept() -> None:
    clear_trace_cache()
    x = Tensor([1.0])
    for n in range(trace_cache._KEPT + 10):
        x + n
    assert len(trace_cache._trace_cache) <= trace_cache._KEPT


def test_memory_is_not_held() -> None:
    """The trace cache holds signatures, never the tensors that they were captured from."""
    from morok.ir.node import live_nodes

    clear_trace_cache()
    for _ in range(3):
        (pair()[0] * 3.0).softmax(-1)
    before = live_nodes()
    for _ in range(10):
        (pair()[0] * 3.0).softmax(-1)
    assert live_nodes() == before


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("call", "right"),
    [
        (lambda x, k: x[k:], lambda x, k: x[k:]),
        (lambda x, k: x[1, :k], lambda x, k: x[1, :k]),
        (lambda x, k: x.roll(k, 0), lambda x, k: np.roll(x, k, 0)),
        (lambda x, k: x.sum(k - 1), lambda x, k: x.sum(k - 1)),
        (lambda x, k: x.reshape(k, -1), lambda x, k: x.reshape(k, -1)),
        (lambda x, k: x.tril(diagonal=k), lambda x, k: np.tril(x, k)),
    ],
)
def test_tensors_in_place_of_numbers_are_looked_at_each_time(call: Call, right: Call, lazy: bool) -> None:
    """The value decides about the graph, so such a call is not cached, wherever the tensor stands."""
    clear_trace_cache()
    for k in (1, 1, 2, 1, 2):
        x = pair()[0]
        number = Tensor(np.array(k))
        got = call(x, number * 3 - 2 * k if lazy else number)
        np.testing.assert_allclose(got.numpy(), right(x.numpy(), k), rtol=1e-5, atol=1e-6)  # sums cancel


def test_the_tensor_itself_by_name() -> None:
    clear_trace_cache()
    for _ in range(3):
        x = pair()[0]
        np.testing.assert_allclose(Tensor.square(x=x).numpy(), x.numpy() ** 2, rtol=1e-6)


def test_kernels_of_a_known_signature_come_from_the_lines_of_the_graph_at_hand() -> None:
    clear_cache()
    plans = []
    for _ in range(2):
        x, y = pair()
        middle = x.softmax(-1).contiguous()
        plans.append((middle @ y.transpose(0, 1)).prepare())
        x, y = pair()
        middle = x.softmax(-1).contiguous()
        plans.append((middle @ y.transpose(0, 1)).prepare())
    lines = [
        [int(str(kernel.place).removeprefix("test_trace_cache.py:")) for kernel in p.kernels] for p in plans
    ]
    assert lines[0] == lines[2] and lines[1] == lines[3]
    assert lines[1] == [line + 3 for line in lines[0]] and len(set(lines[0])) == 2
