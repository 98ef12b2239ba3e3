"""A sum that is compared with something made of itself is the same on both sides, in all kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from tests.devices import devices


@pytest.fixture(params=devices("CPU"), autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Machine code, where each kernel has tiles of its own; the interpreter adds in one order."""
    with knobs.override(DEVICE=request.param):
        yield request.param


SIZES = [(8, 3), (8, 16), (7, 5)]
TYPES = [np.float64, np.float32]


def _product(n: int, k: int, dtype: Any) -> tuple[Any, Tensor, Tensor]:
    """A symmetric product, small enough to be computed again wherever it is read."""
    a = np.random.default_rng(n * k).normal(size=(n, k)).astype(dtype)
    x = Tensor(a, requires_grad=True)
    return a, x, x @ x.permute(1, 0)


def _same(one: Tensor, other: Tensor) -> Tensor:
    """Both are wanted, so each is stored by a kernel of its own."""
    one.realize(other)
    return other


PROGRAMS: dict[str, Any] = {
    "maximum and where it is": lambda y, m: _same(m, y.eq(m)),
    "a maximum that is stored": lambda y, m: y.eq(m.contiguous()),
    "not below": lambda y, m: _same(m, y >= m),
    "by difference": lambda y, m: _same(m, (y - m).eq(0)),
    "after arithmetic": lambda y, m: _same(m, (y * 2 + 1).exp().eq((y * 2 + 1).exp().max(0, keepdim=True))),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_column_has_one_largest_element(name: str, dtype: Any) -> None:
    for n, k in SIZES:
        a, _, y = _product(n, k, dtype)
        hits = PROGRAMS[name](y, y.max(0, keepdim=True)).numpy()
        assert hits.sum(0).tolist() == [1] * n
        assert np.array_equal(hits.argmax(0), (a @ a.T).argmax(0))


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_between_their_extremes(dtype: Any) -> None:
    for n, k in SIZES:
        y = _product(n, k, dtype)[2]
        assert y.clip(y.min(1, keepdim=True), y.max(1, keepdim=True)).eq(y).all().item()


@pytest.mark.parametrize("dtype", TYPES)
def test_ranks_are_all_there(dtype: Any) -> None:
    for n, k in SIZES:
        y = _product(n, k, dtype)[2]
        ranks = (y.unsqueeze(2) > y.unsqueeze(1)).sum(2).numpy()
        assert np.array_equal(np.sort(ranks, 1), np.tile(np.arange(n), (n, 1)))


# --- slopes: each result gets the gradient c, and gives it to the element that it is


def _to_largest(x: Any, c: Any) -> Any:
    return (x == x.max(0, keepdims=True)) * c.sum(0, keepdims=True)


def _to_largest_so_far(x: Any, c: Any) -> Any:
    found = np.zeros_like(x)
    for i, j in np.ndindex(x.shape):
        found[x[: i + 1, j].argmax(), j] += c[i, j]
    return found


def _to_largest_of_half(x: Any, c: Any) -> Any:
    found = np.zeros_like(x)
    for i, j in np.ndindex(2, x.shape[1]):
        found[i + 2 * x[i::2, j].argmax(), j] += c[i, j]
    return found


def _put(y: Tensor) -> Tensor:
    n = y.shape[0]
    places = Tensor(np.tile(np.arange(n)[:, None] % 2, (1, n)))
    return Tensor(np.full((n, n), -1e9), dtype=y.dtype).scatter_reduce(0, places, y, "amax")[:2]


SLOPES: dict[str, Any] = {
    "max": (lambda y: y.max(0, keepdim=True).expand(*y.shape), _to_largest),
    "min": (lambda y: (-y).min(0, keepdim=True).expand(*y.shape) * -1.0, _to_largest),
    "cummax": (lambda y: y.cummax(0), _to_largest_so_far),
    "scatter_reduce": (_put, _to_largest_of_half),
}


@pytest.mark.parametrize("when", ["together", "computed before", "asked for before"])
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_of_extremes_of_sums(name: str, when: str) -> None:
    function, reference = SLOPES[name]
    for dtype in TYPES:
        for n, k in SIZES:
            a, x, y = _product(n, k, dtype)
            best = function(y)
            c = np.random.default_rng(1).normal(size=best.shape).astype(dtype)
            loss = (best * Tensor(c)).sum()
            if when == "computed before":
                best.realize()
            slope = loss.gradient(x)[0]
            if when == "asked for before":
                best.realize()
            to = reference(a @ a.T, c)
            expected = (to + to.T) @ a
            np.testing.assert_allclose(slope.numpy(), expected, rtol=0, atol=np.abs(expected).max() * 1e-5)


def test_a_slope_that_was_lost() -> None:
    """The product of a value with its maximum, where the two were computed by different kernels."""
    for n, k in SIZES:
        a, x, y = _product(n, k, np.float64)
        c = np.random.default_rng(2).normal(size=(n, n))
        slope = (y * y.max(0, keepdim=True) * Tensor(c)).sum().gradient(x)[0].numpy()
        value = a @ a.T
        top = value.max(0, keepdims=True)
        to = c * top + (value == top) * (c * value).sum(0, keepdims=True)
        np.testing.assert_allclose(slope, (to + to.T) @ a, rtol=1e-10)


def _kernels(x: Tensor) -> int:
    return len(x.plan().kernels)


def test_what_is_computed_the_same_everywhere_stays_fused() -> None:
    """Element-wise arithmetic needs no memory: the extreme of exp(x), and where it is, is one kernel."""
    x = Tensor(np.random.default_rng(3).normal(size=(16, 24)))
    y = (x * 3.0 + 1.0).exp()
    assert _kernels(y.eq(y.max(1, keepdim=True))) == 1
    assert _kernels(y.softmax(1)) == 1
