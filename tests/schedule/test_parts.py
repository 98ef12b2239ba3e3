"""Stretches of memory that a graph sees, read and written: one graph wherever they begin; beside NumPy."""

import random
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit
from morok.schedule import schedule as scheduling

rng = np.random.default_rng(12)
X = rng.standard_normal((6, 4, 5)).astype(np.float32)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were scheduled, and not found."""
    found: list[Any] = []
    build = scheduling._stored_or_built

    def noted(sink: Any) -> Any:
        found.append(sink)
        return build(sink)

    monkeypatch.setattr(scheduling, "_stored_or_built", noted)
    scheduling.clear_cache()
    return found


def memory(array: Any, device: str = "CPU") -> Tensor:
    return Tensor(np.array(array), device=device).realize()


def write(y: Any, x: Any, kind: str, i: int) -> None:
    if kind == "a row":
        y[i] = x[i] * 2.0
    elif kind == "of another place":
        y[i] = x[5 - i] + 1.0
    elif kind == "added to":
        y[i] += x[i]
    elif kind == "some of a row":
        y[i, 1:3] = x[i, 1:3] - 1.0
    elif kind == "one":
        y[i, 2, 3] = x[i, 2, 3] * 3.0
    elif kind == "several rows":
        y[i : i + 2] = x[i : i + 2] * 0.5
    elif kind == "a number":
        y[i] = 7.0


KINDS = ("a row", "of another place", "added to", "some of a row", "one", "several rows", "a number")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_scheduled_once(kind: str, built: list[Any]) -> None:
    y, x, wanted = memory(X), memory(X + 1), X.copy()
    for i in range(5):
        write(y, x, kind, i)
        y.realize()
        write(wanted, X + 1, kind, i)
    assert len(built) == 1
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6)
    np.testing.assert_array_equal(x.numpy(), X + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_call_writes_where_its_argument_lies(kind: str) -> None:
    for i in (1, 4):

        @jit
        def step(y: Tensor, x: Tensor, i: int = i) -> None:
            write(y, x, kind, i)

        for k in range(3):
            y, x, wanted = memory(X + k), memory(X * 2 - k), X + k
            step(y, x)
            write(wanted, X * 2 - k, kind, i)
            np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6)


def test_who_sees_more_than_the_stretch() -> None:
    y, x, wanted = memory(X), memory(X * 3), X.copy()
    for i in range(1, 5):
        y[i] = y[i - 1] * 0.5 + x[i]  # another row is read
        y.realize()
        wanted[i] = wanted[i - 1] * 0.5 + X[i] * 3
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5)
    for i in range(5):
        y[i] = x[i]
        total = y.sum(0).realize()  # all of it, in the same graph
        wanted[i] = X[i] * 3
        np.testing.assert_allclose(total.numpy(), wanted.sum(0), rtol=1e-4, atol=1e-5)
        y[i] = x[i + 1]
        y[i + 1] = x[i]  # twice in a graph
        row = (y[i] + 1.0).realize()
        wanted[i], wanted[i + 1] = X[i + 1] * 3, X[i] * 3
        np.testing.assert_allclose(row.numpy(), wanted[i] + 1, rtol=1e-5)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5)


def draw(seed: int, y: list[Any]) -> list[Any]:
    """A drawn program of rows; tensors are realised anywhere."""
    r, found = random.Random(seed), []
    for _ in range(r.randint(5, 14)):
        a, b = r.choice(y), r.choice(y)
        i, j, c = r.randrange(5), r.randrange(6), round(r.uniform(-1, 1), 2)
        kind = r.randrange(8)
        if kind < 5:
            write(a, b, KINDS[kind], i)
        elif kind == 5:
            a[i] = a[i] * c + b[j]
        elif kind == 6:
            a[i], b[j] = b[j] * c, a[i] + 1.0
        else:
            found.append(a[j] * 2.0 + b.sum(0))
        realised, others = r.random() < 0.6, r.randrange(3)
        if realised and isinstance(a, Tensor):
            a.realize(*([], [b], found)[others])
    return found


@pytest.mark.parametrize("device", ["CPU", "PYTHON", "EMULATOR"])
@pytest.mark.parametrize("seed", range(5))
def test_drawn_programs(seed: int, device: str) -> None:
    mine, theirs = [memory(X, device), memory(X * 2, device)], [X.copy(), X * 2]
    for found, wanted in zip(
        (*draw(seed, mine), *mine), (*[v.copy() for v in draw(seed, theirs)], *theirs), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-3)
