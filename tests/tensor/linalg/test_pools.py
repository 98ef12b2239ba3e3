"""Pools, padding and convolutions with all their options, against plain loops over windows."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import ArgumentError, ShapeError

X = np.random.default_rng(0).standard_normal((2, 3, 7, 9)).astype(np.float32)


def places(size: int, k: int, s: int, p: int, d: int, ceil: bool) -> list[list[int]]:
    """The positions in an axis that each window sees; negative ones and those from `size` on are edge."""
    over = size + 2 * p - d * (k - 1) - 1
    count = (math.ceil(over / s) if ceil else over // s) + 1
    if ceil and (count - 1) * s >= size + p:
        count -= 1
    return [[i * s - p + j * d for j in range(k)] for i in range(count)]


def pool(x: Any, k: Any, s: Any, p: Any, d: Any, ceil: bool) -> Any:
    """(largest, where, sum, elements inside, elements inside or in the edge) of each window of two axes."""
    rows, columns = (places(x.shape[2 + i], k[i], s[i], p[i], d[i], ceil) for i in range(2))
    found = np.zeros((5, *x.shape[:2], len(rows), len(columns)))
    height, width = x.shape[2:]
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        inside = [(a, b) for a in row for b in column if 0 <= a < height and 0 <= b < width]
        padded = [(a, b) for a in row for b in column if a < height + p[0] and b < width + p[1]]
        for n, c in np.ndindex(x.shape[:2]):
            values = [x[n, c, a, b] for a, b in inside]
            at = int(np.argmax(values))
            if np.isnan(values[at]):
                at = max(q for q, v in enumerate(values) if np.isnan(v))
            a, b = inside[at]
            found[:, n, c, i, j] = values[at], a * width + b, sum(values), len(inside), len(padded)
    return found


OPTIONS = [
    ((2, 2), (2, 2), (0, 0), (1, 1)),
    ((3, 2), (2, 2), (1, 1), (1, 1)),
    ((3, 3), (3, 4), (1, 1), (1, 1)),
    ((2, 3), (5, 1), (1, 0), (1, 2)),
    ((3, 2), (1, 3), (0, 1), (2, 3)),
]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("k", "s", "p", "d"), OPTIONS)
def test_pools(k: Any, s: Any, p: Any, d: Any, ceil: bool) -> None:
    largest, where, *_ = pool(X, k, s, p, d, ceil)
    got, at = Tensor(X).max_pool2d(k, s, p, d, ceil_mode=ceil, return_indices=True)
    np.testing.assert_array_equal(got.numpy(), largest.astype(np.float32))
    np.testing.assert_array_equal(at.numpy(), where)
    np.testing.assert_array_equal(Tensor(X[0]).max_pool2d(k, s, p, d, ceil).numpy(), got.numpy()[0])
    *_, total, inside, padded = pool(X, k, s, p, (1, 1), ceil)
    for include, count in ((True, padded), (False, inside)):
        mean = Tensor(X).avg_pool2d(k, s, p, include, ceil)
        np.testing.assert_allclose(mean.numpy(), total / count, rtol=1e-5, atol=1e-6)
    mean = Tensor(X).avg_pool2d(k, s, p, ceil_mode=ceil, divisor_override=3)
    np.testing.assert_allclose(mean.numpy(), total / 3, rtol=1e-5, atol=1e-6)


def test_where_the_largest_is_among_equals_and_nothing() -> None:
    x = np.array([[[[1, 1, np.nan, 0], [1, 0, np.nan, 2], [-np.inf] * 4, [-np.inf] * 4]]], np.float32)
    largest, where, *_ = pool(x, (2, 2), (2, 2), (1, 1), (1, 1), False)
    got, at = Tensor(x).max_pool2d(2, 2, 1, return_indices=True)
    np.testing.assert_array_equal(got.numpy(), largest)
    np.testing.assert_array_equal(at.numpy(), where)
    whole, place = Tensor(np.array([[3, 1, 3]], np.int32)).max_pool1d(3, return_indices=True)
    assert (whole.tolist(), place.tolist()) == ([[3]], [[0]])


def test_pools_of_one_and_three_axes() -> None:
    x = X[:, :, 0]
    largest, where, total, *_ = pool(x[:, :, None], (1, 2), (1, 2), (0, 0), (1, 1), True)
    got, at = Tensor(x).max_pool1d(2, ceil_mode=True, return_indices=True)
    np.testing.assert_array_equal(got.numpy(), largest[:, :, 0].astype(np.float32))
    np.testing.assert_array_equal(at.numpy(), where[:, :, 0])
    mean = Tensor(x).avg_pool1d(2, ceil_mode=True, divisor_override=2)
    np.testing.assert_allclose(mean.numpy(), total[:, :, 0] / 2, rtol=1e-5, atol=1e-6)
    cube = Tensor(X.reshape(2, 3, 7, 3, 3))
    assert (
        cube.max_pool3d(2, ceil_mode=True).shape
        == cube.avg_pool3d(2, ceil_mode=True).shape
        == (2, 3, 4, 2, 2)
    )
    with pytest.raises(ArgumentError, match="divisor_override"):
        cube.avg_pool3d(2, divisor_override=0)


def test_gradients_pass_to_where_the_largest_is() -> None:
    x = Tensor(X, requires_grad=True)
    got, at = x.max_pool2d(3, 2, 1, ceil_mode=True, return_indices=True)
    got.sum().backward()
    wanted = np.zeros((2, 3, 63))
    for n, c in np.ndindex(2, 3):
        np.add.at(wanted[n, c], at.numpy()[n, c].reshape(-1), 1)
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy().reshape(2, 3, 63), wanted)


def mirrored(x: Any, low: int, high: int, mode: str) -> Any:
    """What is cut off is cut after the edge was made."""
    longer = np.pad(x, ((0, 0), (max(low, 0), max(high, 0))), mode=mode)
    return longer[:, max(-low, 0) : longer.shape[1] - max(-high, 0)]


@pytest.mark.parametrize("low, high", [(-1, 2), (-2, -1), (3, -4), (-6, 5), (5, -6), (-11, 3), (3, -10)])
def test_edges_that_are_cut_off(low: int, high: int) -> None:
    x = np.arange(20, dtype=np.float32).reshape(2, 10)
    for mode in ("reflect", "edge"):
        got = Tensor(x).pad(((0, 0), (low, high)), mode=mode)
        np.testing.assert_array_equal(got.numpy(), mirrored(x, low, high, mode))
    inside = x[:, max(-low, 0) : 10 - max(-high, 0)]
    if inside.shape[1] >= max(low, high):
        wanted = np.pad(inside, ((0, 0), (max(low, 0), max(high, 0))), mode="wrap")
        np.testing.assert_array_equal(Tensor(x).pad(((0, 0), (low, high)), mode="circular").numpy(), wanted)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_one_sample(dims: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, *(5,) * dims)).astype(np.float32)
    w = np.random.default_rng(2).standard_normal((2, 2, *(3,) * dims)).astype(np.float32)
    for name in (f"conv{dims}d", f"conv_transpose{dims}d"):
        one, all_ = (getattr(Tensor(v), name)(Tensor(w), Tensor([1.0, 2.0]), padding=1) for v in (x, x[None]))
        np.testing.assert_array_equal(one.numpy(), all_.numpy()[0])
    with pytest.raises(ShapeError, match=r"\(N, C, …\)"):
        Tensor.ones(5).conv1d(Tensor.ones(1, 1, 3))
    with pytest.raises(ArgumentError, match="bogus"):
        Tensor(x).conv2d(Tensor(w), padding="bogus")


def test_softplus_with_a_slope_and_a_threshold() -> None:
    x = np.array([-30, -1, 0, 0.5, 3, 9, 11, 200], np.float32)
    for beta, limit in ((1.0, 20.0), (2.0, 20.0), (0.5, 1.0)):
        wanted = np.where(x * beta > limit, x, np.logaddexp(0, x.astype(np.float64) * beta) / beta)
        np.testing.assert_allclose(Tensor(x).softplus(beta, limit).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(Tensor(x).softplus(beta=3).numpy(), np.logaddexp(0, x * 3.0) / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "extra", "groups"),
    [
        ((2, 2), (2, 2), (0, 0), (0, 0), 1),
        ((3, 5), (2, 3), (1, 2), (1, 2), 1),
        ((4, 1), (2, 3), (1, 0), (0, 1), 3),
        ((3, 3), (1, 2), (2, 0), (0, 1), 3),
    ],
)
def test_transposed_convolutions_with_a_stride(
    kernel: Any, stride: Any, padding: Any, extra: Any, groups: int
) -> None:
    """Every input adds its weights to the places around it; none is multiplied with zeros between inputs."""
    rng = np.random.default_rng(3)
    x = X[:, :, :4, :3]
    w = rng.standard_normal((3, 2, *kernel)).astype(np.float32)
    each = 3 // groups
    whole = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], stride, kernel, strict=True)]
    y = np.zeros((2, 2 * groups, *(n + e for n, e in zip(whole, extra, strict=True))))
    for c, i, j in itertools.product(range(3), range(4), range(3)):
        rows, columns = (slice(a * s, a * s + k) for a, s, k in zip((i, j), stride, kernel, strict=True))
        outputs = slice(2 * (c // each), 2 * (c // each) + 2)
        y[:, outputs, rows, columns] += x[:, c, i, j][:, None, None, None] * w[c]
    ends = [y.shape[2 + n] - padding[n] for n in range(2)]
    y = y[:, :, padding[0] : ends[0], padding[1] : ends[1]] + np.arange(2 * groups)[:, None, None]
    bias = Tensor(np.arange(2 * groups, dtype=np.float32))
    found = Tensor(x).conv_transpose2d(Tensor(w), bias, stride, padding, extra, groups)
    work = sum(kernel.ops for kernel in found.plan().kernels)
    least = 2 * x.size * w[0].size  # multiplications and additions
    rounded = math.prod(-(-k // s) * s / k for k, s in zip(kernel, stride, strict=True))
    edges = math.prod((n - 1 + -(-k // s)) / n for n, k, s in zip(x.shape[2:], kernel, stride, strict=True))
    assert work <= least * rounded * edges + 8 * y.size
    np.testing.assert_allclose(found.numpy(), y, rtol=1e-4, atol=1e-5)
