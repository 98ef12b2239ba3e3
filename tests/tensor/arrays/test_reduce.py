"""Reductions, norms and losses against NumPy and against their definitions."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from morok import Tensor
from morok.errors import DTypeError, ShapeError
from tests.tensor.common import ALL, same, sample

X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
AXES: tuple[Any, ...] = (None, 0, 1, -1, (0, 2), (1, -1), (0, 1, 2), ())


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("dtype", ALL)
def test_types(name: str, dtype: str) -> None:
    x = sample((2, 3), dtype)
    found = [getattr(Tensor(x), name)(axis, keepdim=keep) for axis in (None, 0, 1) for keep in (False, True)]
    Tensor.realize(*found)
    wanted = [getattr(np, name)(x, axis, keepdims=keep) for axis in (None, 0, 1) for keep in (False, True)]
    for got, array in zip(found, wanted, strict=True):
        same(got, array)


@pytest.mark.parametrize("axis", AXES)
def test_axes(axis: Any) -> None:
    t = Tensor(X)
    same(t.sum(axis), X.sum(axis), rtol=1e-5, atol=1e-6)
    same(t.max(axis, keepdim=True), X.max(axis, keepdims=True))
    same(t.min(axis=axis, keepdims=True), X.min(axis, keepdims=True))
    same(t.mean(dim=axis), X.mean(axis), rtol=1e-5, atol=1e-6)
    if axis != ():
        same(t.var(axis), X.var(axis, ddof=1), rtol=1e-5, atol=1e-6)
        same(t.std(axis, ddof=0, keepdim=True), X.std(axis, keepdims=True), rtol=1e-5, atol=1e-6)


def test_narrow_sums_are_carried_in_float32() -> None:
    for name in ("float16", ml_dtypes.bfloat16):
        x = np.full(5000, 0.1, dtype=name)
        t = Tensor(x)
        assert t.sum().numpy().dtype == x.dtype
        assert abs(t.sum().item() - 5000 * float(x[0])) < 5
        assert abs(t.mean().item() - 0.1) < 1e-3
        assert t.sum(dtype="float32").dtype.name == "float32"


def test_integers() -> None:
    x = np.array([100, 100, 100], np.int8)
    same(Tensor(x).sum(), np.int64(300))
    same(Tensor(x.astype(np.uint8)).sum(), np.uint64(300))
    same(Tensor(x).mean(), np.float32(100))
    same(Tensor([True, True]).sum(), np.int64(2))
    same(Tensor([1, 2]).mean(), np.float32(1.5))
    same(Tensor(x).sum(dtype="int8"), x.sum(dtype=np.int8))
    same(Tensor([0, 3, 0]).count_nonzero(), np.int64(1))


def test_empty() -> None:
    empty = Tensor(np.zeros((2, 0), np.float32))
    same(empty.sum(), np.float32(0))
    same(empty.sum(1), np.zeros(2, np.float32))
    same(empty.sum(0), np.zeros(0, np.float32))
    same(empty.prod(1), np.ones(2, np.float32))
    same(empty.any(), np.bool_(False))
    same(empty.all(1), np.array([True, True]))
    same(empty.max(0), np.zeros(0, np.float32))
    assert np.isnan(empty.mean().item())
    for name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(ShapeError, match="nothing to choose from"):
            getattr(empty, name)(1)
    same(Tensor(5.0).sum(), np.float32(5))
    same(Tensor(5.0).max(), np.float32(5))


def test_nan_and_infinity() -> None:
    x = np.array([[1.0, np.nan, 2.0], [np.inf, -np.inf, 1.0], [3.0, np.inf, np.inf]])
    t = Tensor(x)
    with np.errstate(all="ignore"):
        same(t.max(1), x.max(1))
        same(t.min(1), x.min(1))
        same(t.sum(1), x.sum(1))
        same(t.argmax(1), x.argmax(1))
        same(t.argmin(1), x.argmin(1))


def test_positions() -> None:
    x = np.array([[3, 1, 3], [0, 0, 0]])
    t = Tensor(x)
    same(t.argmax(), np.int64(0))
    same(t.argmax(1), x.argmax(1))
    same(t.argmin(0), x.argmin(0))
    same(t.argmax(1, keepdim=True), x.argmax(1, keepdims=True))
    same(t.argmax(keepdims=True), x.argmax(keepdims=True))
    same(Tensor(X).argmax(1), X.argmax(1))
    same(Tensor(X).argmin(dim=-1), X.argmin(-1))
    same(Tensor([False, True]).argmax(), np.int64(1))


@pytest.mark.parametrize(
    ("sizes", "axis"), [((600,), 0), ((3, 513), 1), ((130, 5), 0), ((2, 40, 3), 1), ((33,), 0)]
)
def test_long_running_sums(sizes: tuple[int, ...], axis: int) -> None:
    """Longer than a run, and than a run of runs; with and without a rest."""
    x = np.random.default_rng(1).integers(-3, 4, sizes)
    same(Tensor(x).cumsum(axis), x.cumsum(axis))
    y = x.astype(np.float32) * 0.25 + 1.0
    same(Tensor(y).cumsum(axis), y.cumsum(axis), rtol=1e-5, atol=1e-5)
    same(Tensor(y / 4).cumprod(axis), (y / 4).cumprod(axis), rtol=1e-4, atol=1e-5)


def test_places_of_extremes_are_64_bits() -> None:
    x = np.random.default_rng(2).standard_normal((3, 300), dtype=np.float32)
    for axis in (0, 1, None):
        found = Tensor(x).argmax(axis).numpy()
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, x.argmax(axis))


def test_long_reductions_to_one_number() -> None:
    """In two stages, with a rest that no piece takes."""
    x = np.random.default_rng(3).integers(-9, 10, (1 << 17) + 1011)
    same(Tensor(x).sum(), x.sum())
    same(Tensor(x).max(), x.max())
    same(Tensor(x).argmax(), np.int64(x.argmax()))
    y = x[: 360 * 365].reshape(360, 365).astype(np.float32)
    same(Tensor(y).sum(), y.sum(dtype=np.float64).astype(np.float32), rtol=1e-5)
    same(Tensor(y).min(), y.min())


def test_running() -> None:
    same(Tensor(X).cumsum(1), X.cumsum(1), rtol=1e-5, atol=1e-5)
    same(Tensor(np.array([1, 2, 3], np.int8)).cumsum(0), np.array([1, 2, 3], np.int8).cumsum(0))
    same(Tensor([1.0, 2.0, 4.0]).cumprod(0), np.array([1, 2, 8], np.float32))
    same(Tensor([[1, 2], [3, 4]]).cumsum(dim=-1), np.array([[1, 3], [3, 7]]))


def test_norms() -> None:
    x = Tensor(X)
    same(x.norm(), np.sqrt((X * X).sum()), rtol=1e-5)
    same(x.norm(1, -1), np.abs(X).sum(-1), rtol=1e-5)
    same(x.norm(float("inf"), 0), np.abs(X).max(0))
    same(x.norm(3, 0, keepdim=True), (np.abs(X) ** 3).sum(0, keepdims=True) ** np.float32(1 / 3), rtol=1e-5)


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def test_softmax() -> None:
    t = Tensor(X)
    same(t.softmax(), softmax(X), rtol=1e-5)
    same(t.softmax(dim=0), softmax(X, 0), rtol=1e-5)
    same(t.log_softmax(1), np.log(softmax(X, 1)), rtol=1e-4, atol=1e-5)
    same(t.logsumexp(-1), np.log(np.exp(X).sum(-1)), rtol=1e-5)
    same(t.logsumexp((0, 1), keepdim=True), np.log(np.exp(X).sum((0, 1), keepdims=True)), rtol=1e-5)
    big = Tensor([[1e4, 1e4], [-1e4, -float("inf")]])
    same(big.softmax(), np.array([[0.5, 0.5], [1, 0]], np.float32))
    assert big.log_softmax().tolist()[1][1] == -float("inf")
    assert Tensor([-float("inf")] * 2).logsumexp().item() == -float("inf")
    assert Tensor([float("inf"), 1.0]).logsumexp().item() == float("inf")
    half = Tensor(X.astype(np.float16)).softmax()
    same(half, softmax(X.astype(np.float16).astype(np.float32)).astype(np.float16), rtol=1e-3)
    same(Tensor([1, 2]).softmax(), softmax(np.array([1.0, 2.0], np.float32)), rtol=1e-6)


def layer_norm(x: Any, axes: Any = -1, eps: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_layer_norm() -> None:
    t = Tensor(X)
    w, b = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    same(t.layer_norm(), layer_norm(X), rtol=1e-4, atol=1e-5)
    same(t.layer_norm(-1, Tensor(w), Tensor(b)), layer_norm(X) * w + b, rtol=1e-4, atol=1e-5)
    same(t.layer_norm((1, 2)), layer_norm(X, (1, 2)), rtol=1e-4, atol=1e-5)
    same(t.layer_norm((4, 5)), layer_norm(X, (1, 2)), rtol=1e-4, atol=1e-5)
    same(t.rms_norm(eps=1e-6), X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6), rtol=1e-4, atol=1e-5)
    mean, var = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    got = t.batch_norm(Tensor(mean), Tensor(var), Tensor(var * 2), Tensor(mean), eps=0.0)
    same(got, (X - mean[None, :, None]) * 2 + mean[None, :, None], rtol=1e-5, atol=1e-5)


def test_losses() -> None:
    logits, targets = X[0], np.array([0, 4, 2, 2])
    rows = -np.log(softmax(logits))[np.arange(4), targets]
    t = Tensor(logits)
    same(t.cross_entropy(Tensor(targets)), rows.mean(), rtol=1e-5)
    same(t.cross_entropy(targets, reduction="sum"), rows.sum(), rtol=1e-5)
    same(t.cross_entropy(Tensor(targets), reduction="none"), rows, rtol=1e-4)
    same(t.cross_entropy(Tensor(targets), ignore_index=2), rows[:2].mean(), rtol=1e-5)
    smooth = (0.9 * rows - 0.1 * np.log(softmax(logits)).mean(-1)).mean()
    same(t.cross_entropy(Tensor(targets), label_smoothing=0.1), np.float32(smooth), rtol=1e-5)
    same(t.mse_loss(t + 2), np.float32(4), rtol=1e-5)
    p = np.array([0.0, 1.0, 0.5, 1.0, 0.0], np.float32)
    wanted = -(p * np.log(1 / (1 + np.exp(-X[0, 0]))) + (1 - p) * np.log(1 / (1 + np.exp(X[0, 0])))).mean()
    same(Tensor(X[0, 0]).binary_cross_entropy_with_logits(Tensor(p)), wanted, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"needs targets \(4,\), not \(3,\)"):
        t.cross_entropy(Tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="reduction"):
        t.mse_loss(t, reduction="most")


def test_one_hot() -> None:
    same(Tensor([[2, 0], [1, 1]]).one_hot(3), np.eye(3, dtype=np.int64)[[[2, 0], [1, 1]]])
    with pytest.raises(DTypeError, match="labels are integers"):
        Tensor([1.0]).one_hot(3)


def test_triangles() -> None:
    for diagonal in (-2, -1, 0, 1, 3):
        same(Tensor(X).tril(diagonal), np.tril(X, diagonal))
        same(Tensor(X).triu(diagonal), np.triu(X, diagonal))
    same(Tensor([[True, True], [True, True]]).tril(), np.tril(np.ones((2, 2), bool)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.sum(3), r"axis 3 does not exist in shape \(3, 4, 5\); use -3 … 2"),
        (lambda t: t.sum((0, 0)), "name an axis twice"),
        (lambda t: t.sum((0, -3)), "name an axis twice"),
        (lambda t: t.sum(0, dim=1), "the same argument"),
        (lambda t: t.mean(1.5), "axis must be a whole number"),
        (lambda t: t.argmax(7), "axis 7 does not exist"),
        (lambda t: t.softmax(-4), "axis -4 does not exist"),
        (lambda t: t[0, 0].tril(), "needs two axes"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message) as info:
        call(Tensor(X))
    assert "test_reduce.py:" in str(info.value)
