"""Gradients of windows that overlap: an element gets something from each window that it is in."""

from __future__ import annotations

import math

import numpy as np
import pytest

from morok import Tensor
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.schedule.schedule import schedule


def by_hand(n: int, k: int, s: int, d: int, weights: np.ndarray) -> np.ndarray:
    """Of windows' sums, each times a weight: the weights of the windows that an element is in."""
    found = np.zeros(n)
    for place, weight in enumerate(weights):
        for offset in range(k):
            found[place * s + offset * d] += weight
    return found


def slope(x: Tensor, y: Tensor) -> np.ndarray:
    (found,) = y.sum().gradient(x)
    return np.asarray(found.numpy())


@pytest.mark.parametrize(("n", "k", "s"), [
    (20, 5, 2), (21, 5, 2), (24, 5, 2), (23, 5, 3), (30, 7, 4), (31, 6, 4), (9, 9, 2), (17, 3, 2), (12, 4, 1),
])  # fmt: skip
def test_of_sums_over_windows(n: int, k: int, s: int, device: str) -> None:
    places = (n - k) // s + 1
    weights = np.arange(1.0, places + 1, dtype=np.float32) ** 2
    x = Tensor(np.zeros((1, 2, n), np.float32))
    got = slope(x, (x.avg_pool1d(k, s) * Tensor(weights)) * k)
    np.testing.assert_allclose(got[0], np.stack([by_hand(n, k, s, 1, weights)] * 2), rtol=1e-6)


@pytest.mark.parametrize(("n", "k", "s", "d"), [(20, 3, 2, 2), (25, 3, 2, 3), (30, 4, 3, 2), (18, 3, 1, 4)])
def test_of_windows_with_gaps(n: int, k: int, s: int, d: int, device: str) -> None:
    places = (n - d * (k - 1) - 1) // s + 1
    weights = np.arange(1.0, places + 1, dtype=np.float32) ** 2
    x = Tensor(np.zeros((1, 2, n), np.float32))  # all are the largest, and share evenly
    got = slope(x, (x.max_pool1d(k, s, 0, d) * Tensor(weights)) * k)
    np.testing.assert_allclose(got[0], np.stack([by_hand(n, k, s, d, weights)] * 2), rtol=1e-6)


def test_what_is_infinite_stays_inside_of_its_window(device: str) -> None:
    weights = np.array([1, np.inf, 2, np.nan, 3], np.float32)
    x = Tensor(np.zeros((1, 1, 11), np.float32))
    got = slope(x, (x.avg_pool1d(3, 2) * Tensor(weights)) * 3)
    want = by_hand(11, 3, 2, 1, weights)
    np.testing.assert_array_equal(got[0, 0], want.astype(np.float32))


def _steps_of_reads(g: Tensor) -> list[int]:
    """How many steps the sums of the last kernel have; its reads divide no place."""
    ast: UOp = schedule([g.uop]).items[-1].ast
    reads = [n for n in toposort(ast) if n.op is Ops.INDEX and not n.dtype.is_ptr]
    assert not any(m.op in (Ops.FLOORDIV, Ops.FLOORMOD) for n in reads for m in toposort(n))
    sums = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    return [math.prod(int(k.src[0].arg) for k in closed_ranges(n)) for n in sums]


@pytest.mark.parametrize(("k", "s", "steps"), [(5, 1, 25), (5, 2, 9), (5, 3, 4), (7, 4, 4), (3, 2, 4)])
def test_an_element_is_looked_for_only_in_windows_that_may_have_it(k: int, s: int, steps: int) -> None:
    x = Tensor.empty(1, 20, 60, 60, dtype="float32", device="CPU")
    y = x.avg_pool2d(k, s)
    (g,) = (y * y).sum().gradient(x)
    assert _steps_of_reads(g) == [steps]
