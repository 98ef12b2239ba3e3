"""Every op takes sizes that are known later, with the same kernels for all values, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, nn
from morok.errors import ShapeError
from morok.ir.infer import show_shape

X = np.arange(40, dtype=np.float32).reshape(10, 4)
IMAGES = np.random.default_rng(0).standard_normal((10, 1, 4, 4)).astype(np.float32)
ROW = np.random.default_rng(1).standard_normal((2, 3, 10)).astype(np.float32)
TAPS = np.random.default_rng(2).standard_normal((1, 3, 3)).astype(np.float32)
K = Variable("k", 1, 5)


def x() -> Tensor:
    return Tensor(X)


def cached(k: Any) -> Tensor:
    """The update of a cache as a value: what is there, one more, and zeros."""
    return x().shrink(((0, k), None)).cat(x()[:1], dim=0).pad(((0, 9 - k), (0, 0)))


def cached_by_numpy(k: int) -> Any:
    return np.concatenate([X[:k], X[:1], np.zeros((9 - k, 4))])


def assigned(k: Any) -> Tensor:
    c = Tensor(np.zeros((10, 4), np.float32)).realize()
    c[:k] = x()[:k]
    c[k : k + 2] = 1.0
    c[k] = 7.0
    return c


def assigned_by_numpy(k: int) -> Any:
    c = np.zeros((10, 4))
    c[:k], c[k : k + 2], c[k] = X[:k], 1.0, 7.0
    return c


def windows(a: Any, size: int, step: int) -> Any:
    return np.lib.stride_tricks.sliding_window_view(a, size, 0)[::step]


def convolved(a: Any, stride: int, edge: int, gap: int, taps: Any = TAPS) -> Any:
    padded = np.pad(a, ((0, 0), (0, 0), (edge, edge)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, 2 * gap + 1, 2)[:, :, ::stride, ::gap]
    return np.einsum("ncpk,ock->nop", seen, taps)


OPS: dict[str, tuple[Callable[[Any], Tensor], Callable[[int], Any]]] = {
    "slice from 0": (lambda k: x()[0 : 0 + k] + x()[:k], lambda k: 2 * X[:k]),
    "slice of that length": (lambda k: x()[2 : 2 + k] + x()[:k], lambda k: X[2 : 2 + k] + X[:k]),
    "both parts": (lambda k: x()[:k].cat(x()[k:]) + x(), lambda k: 2 * X),
    "cache": (cached, cached_by_numpy),
    "assignment": (assigned, assigned_by_numpy),
    "arange from": (lambda k: Tensor.arange(k, 8), lambda k: np.arange(k, 8)),
    "arange from and to": (lambda k: Tensor.arange(k, k + 4), lambda k: np.arange(k, k + 4)),
    "arange in steps": (lambda k: Tensor.arange(0, k + 2, 2), lambda k: np.arange(0, k + 2, 2)),
    "full": (lambda k: Tensor.full((2, k), k), lambda k: np.full((2, k), k)),
    "tril": (lambda k: Tensor.ones(5, 5).tril(k - 2), lambda k: np.tril(np.ones((5, 5)), k - 2)),
    "triu": (lambda k: Tensor.ones(k, 5).triu(1 - k), lambda k: np.triu(np.ones((k, 5)), 1 - k)),
    "convolution of a batch": (
        lambda k: Tensor(IMAGES)[:k].conv2d(Tensor.ones(1, 1, 4, 4)),
        lambda k: IMAGES[:k].sum((2, 3), keepdims=True),
    ),
    "pool of a batch": (
        lambda k: Tensor(IMAGES)[:k].max_pool2d(4),
        lambda k: IMAGES[:k].max((2, 3), keepdims=True),
    ),
    "windows": (lambda k: x()[: k + 4].unfold(0, 3, 2), lambda k: windows(X[: k + 4], 3, 2)),
    "windows side by side": (lambda k: x()[: k + 4].unfold(0, 2, 3), lambda k: windows(X[: k + 4], 2, 3)),
    "windows with gaps": (
        lambda k: Tensor(ROW)[:, :, : k + 4].conv1d(Tensor(TAPS), dilation=2),
        lambda k: convolved(ROW[:, :, : k + 4], 1, 0, 2),
    ),
    "convolution in steps": (
        lambda k: Tensor(ROW)[:, :, : k + 1].conv1d(Tensor(TAPS), stride=2, padding=1),
        lambda k: convolved(ROW[:, :, : k + 1], 2, 1, 1),
    ),
    "two convolutions": (
        lambda k: Tensor(ROW)[:, :, : k + 4].conv1d(Tensor(TAPS), stride=2, padding=1).conv1d(
            Tensor(TAPS[:, :1]), stride=2, padding=1
        ),
        lambda k: convolved(convolved(ROW[:, :, : k + 4], 2, 1, 1), 2, 1, 1, TAPS[:, :1]),
    ),
    "pool along": (
        lambda k: Tensor(ROW)[:, :, : k + 4].unsqueeze(2).max_pool2d((1, 2), stride=(1, 3)),
        lambda k: windows(ROW[:, :, : k + 4].T, 2, 3).max(-1).T[:, :, None],
    ),
    "split into": (lambda k: x().split([k, 10 - k])[1], lambda k: X[k:]),
    "split by": (lambda k: x()[: 2 * k].split(k)[1], lambda k: X[k : 2 * k]),
    "chunk": (lambda k: x()[: 2 * k].chunk(2)[1], lambda k: X[k : 2 * k]),
    "roll by": (lambda k: x().roll(k, 0), lambda k: np.roll(X, k, 0)),
    "roll back by": (lambda k: x().roll(-k, 0), lambda k: np.roll(X, -k, 0)),
    "roll along": (lambda k: x()[:k].roll(1, 0), lambda k: np.roll(X[:k], 1, 0)),
    "flip": (lambda k: x()[:k].flip(0), lambda k: X[:k][::-1]),
    "last row": (lambda k: x()[:k][-1], lambda k: X[k - 1]),
    "rows by position": (lambda k: x()[Tensor.arange(k) * 2], lambda k: X[: 2 * k : 2]),
    "running sum": (lambda k: x()[:k].cumsum(0), lambda k: X[:k].cumsum(0)),
    "variance": (lambda k: x()[: k + 1].var(0), lambda k: X[: k + 1].var(0, ddof=1)),
    "where": (lambda k: (Tensor.arange(10) < k).where(1, 0), lambda k: np.where(np.arange(10) < k, 1, 0)),
    "product of sizes": (lambda k: Tensor.ones(k, k + 1).flatten().sum(), lambda k: np.array(k * (k + 1.0))),
    "as many random numbers": (lambda k: (Tensor.rand(k, 4) < 2.0).sum(), lambda k: np.array(4 * k)),
    "dropout": (lambda k: (x()[:k].dropout(0.5, training=True) >= 0.0).sum(), lambda k: np.array(4 * k)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_ops_follow_numpy_with_one_kernel_for_all_values(name: str) -> None:
    op, wanted = OPS[name]
    kernels = []
    for value in (1, 3, 5):
        got = op(K.bind(value))
        kernels.append([kernel.ast for kernel in got.prepare().kernels])
        found = got.numpy()
        assert found.shape == np.shape(wanted(value))
        np.testing.assert_allclose(found, wanted(value), rtol=1e-4, atol=1e-5)
    assert kernels[0] == kernels[1] == kernels[2]


def test_random_numbers_of_a_symbolic_size_are_new_every_time() -> None:
    first, second = (Tensor.rand(K.bind(4), 3).numpy() for _ in range(2))
    assert first.shape == (4, 3) and not np.array_equal(first, second)
    assert 0.0 <= first.min() and first.max() < 1.0


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        (lambda k: x()[: k + 2].sort(0), "needs a known size"),
        (lambda k: x()[: k + 2].topk(2, 0), "needs a known size"),
        (lambda k: x()[: k * 2][::2], "a slice with symbolic ends has a step of 1 or -1"),
        (lambda k: x()[:k].unfold(0, 4, 1), "of shape \\(k, 4\\) takes windows of 1 … k in steps"),
        (lambda k: x()[:k].split(2), "how many parts of 2 axis 0 of shape \\(k, 4\\) has is not known yet"),
        (lambda k: x()[:k].chunk(2), "axis 0 of shape \\(k, 4\\) may not be 2 equal chunks"),
        (lambda k: x().split([k, 9 - k]), "parts \\[k, 9-k\\] add up to 9, but axis 0 of shape .* has 10"),
        (lambda k: x()[:k] + x()[: k + 1], "axis -2 has sizes k and k\\+1, which must be equal"),
        (lambda k: Tensor.arange(k, 0, -1), "has a step of 1 or more, not -1"),
        (
            lambda k: nn.Conv1d(4, 2, 4)(x()[:k].T.unsqueeze(0)),
            "a window of 4 does not fit in an axis of k; pad it",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_in_one_sentence(op: Callable[[Any], Any], sentence: str) -> None:
    with pytest.raises(ShapeError, match=sentence):
        op(K.bind(3))


def test_shapes_are_shown_as_arithmetic() -> None:
    k = K.bind(3)
    shown = [show_shape(t.shape) for t in (x()[: k + 2], x()[k:], x()[2 : 2 + k], Tensor.ones(k, k * 2))]
    assert shown == ["(k+2, 4)", "(10-k, 4)", "(k, 4)", "(k, 2*k)"]
