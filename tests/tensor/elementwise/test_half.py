"""Half precision is rounded once: every operation against NumPy in double precision, rounded.

The judges are those of the other tables, given the same numbers as doubles. An operation may be one unit in
the last place away, no more: what has been rounded in between, or computed with a rounded constant, is not.
`benchmarks/half.py` prints the worst error of each operation, beside PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from morok import Tensor, knobs, nn
from morok.nn import losses
from tests.devices import devices
from tests.tensor.interface import table_products
from tests.tensor.interface.table_elementwise import BINARY, UNARY, USUAL, Entry
from tests.tensor.interface.table_products import CASES
from tests.tensor.interface.table_shapes import REDUCTIONS
from tests.tensor.interface.table_values import numpy_type

Array = Any
HALVES = ("float16", "bfloat16")
ONE_HALF = [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"]  # of what takes long
(JUDGE,) = devices("PYTHON")
DEVICES = [JUDGE, *(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU",) if JUDGE == "PYTHON")]


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Machine code has its turn in the slow tier."""
    with knobs.override(DEVICE=request.param):
        yield


def ulps(got: Array, exact: Array) -> Array:
    """How far numbers are from exact ones that are rounded to their type, in units of the last place."""
    limits = ml_dtypes.finfo(got.dtype)
    with np.errstate(all="ignore"):
        want = np.asarray(exact, np.float64).astype(got.dtype).astype(np.float64)
        a = got.astype(np.float64)
        same = (a == want) | (np.isnan(a) & np.isnan(want))
        power = np.floor(np.log2(np.maximum(np.abs(want), float(limits.tiny))))
        step = np.exp2(power) * float(limits.eps)
        # beyond the largest number comes the infinite one
        top = float(limits.max)
        a, want = (np.where(np.isinf(v), np.copysign(top * (1 + float(limits.eps)), v), v) for v in (a, want))
        return np.where(same, 0.0, np.where(np.isfinite(a - want), np.abs(a - want) / step, np.inf))


def far(label: str, got: Array, exact: Array, limit: float = 1.0) -> list[str]:
    """What is wrong with a result; nothing if it is near enough."""
    error = ulps(got, exact)
    if not error.size or error.max() <= limit:
        return []
    at = np.unravel_index(int(np.argmax(error)), error.shape)
    return [f"{label}: {error.max():.3g} ulp, {got[at]!r} instead of {np.asarray(exact)[at]!r}"]


def _numbers(dtype: str, seed: int, count: int = 300) -> Array:
    """Numbers of many sizes, and some near 1."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.standard_normal(count) * 2)
    near = 1 + rng.standard_normal(count) * 0.05
    found = np.concatenate([sizes, -sizes, near, -near, np.linspace(-1, 1, 41), [0.0, 8.0, -8.0]])
    return rng.permutation(found).astype(numpy_type(dtype))


# A logarithm of a sum that is nearly 1 loses what its parts have lost.
_CANCELS = {"logaddexp", "logaddexp2"}


def _judged(entries: dict[str, Entry], dtype: str, arrays: tuple[Array, ...]) -> list[str]:
    tensors = [Tensor(x) for x in arrays]
    exact = tuple(x.astype(np.float64) for x in arrays)
    chosen = {n: e for n, e in entries.items() if dtype in e.types or "float64" in e.types}
    found = {name: entry.call(*tensors) for name, entry in chosen.items()}
    found = {name: result for name, result in found.items() if str(result.dtype) == dtype}
    Tensor.realize(*found.values())
    wrong = []
    for name, result in found.items():
        got, given = result.numpy(), exact
        if chosen[name].domain is not None:
            inside = np.asarray(chosen[name].domain(*arrays))  # type: ignore[misc]
            got, given = got[inside], tuple(x[inside] for x in exact)
        with np.errstate(all="ignore"):
            wrong += far(name, got, chosen[name].oracle(*given), 2.0 if name in _CANCELS else 1.0)
    return wrong


@pytest.mark.parametrize("dtype", HALVES)
def test_functions_of_one_number(dtype: str) -> None:
    x = _numbers(dtype, 0)
    wrong = _judged(UNARY, dtype, (x,))
    # in their tails these are the difference of two numbers that are nearly equal, for the judges too
    tails = ("gelu", "quick_gelu", "tanhshrink")
    wrong += _judged({n: e for n, e in USUAL.items() if n not in (*tails, "logit")}, dtype, (x,))
    wrong += _judged({n: USUAL[n] for n in tails}, dtype, (x[np.abs(x.astype(np.float64)) < 4.5],))
    inside = np.linspace(0.004, 0.996, 250).astype(x.dtype)
    wrong += _judged({"logit": USUAL["logit"]}, dtype, (inside,))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", HALVES)
def test_functions_of_two_numbers(dtype: str) -> None:
    wrong = _judged(BINARY, dtype, (_numbers(dtype, 1), _numbers(dtype, 2)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ONE_HALF)
def test_reductions(dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((5, 33)).astype(numpy_type(dtype))
    exact = x.astype(np.float64)
    found = [
        (f"{name} {axis}", mine(Tensor(x), axis, False), numpys(exact, axis, False))
        for name, (mine, numpys) in REDUCTIONS.items()
        for axis in (1, None)
    ]
    wrong = []
    Tensor.realize(*(result for _, result, _ in found))
    for label, result, want in found:
        if str(result.dtype) == dtype:
            wrong += far(label, result.numpy(), want)
    assert not wrong, "\n".join(wrong)


class _Rounding:
    """Stands for `t` of the table of cases: makes tensors of half precision, and remembers whether that lost
    something, because then the judge has been given other numbers."""

    def __init__(self, dtype: str) -> None:
        self.kind = numpy_type(dtype)
        self.lost = False

    def __call__(self, x: Any) -> Tensor:
        array = np.asarray(x)
        if array.dtype != np.float64:
            return Tensor(x)
        half = array.astype(self.kind)
        self.lost |= not np.array_equal(half.astype(np.float64), array)
        return Tensor(half)


def _half_cases(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Callable[[], Any], Any, _Rounding]]:
    """The cases with all of their numbers in half precision."""
    kind = numpy_type(dtype)
    for name, value in vars(table_products).copy().items():
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            monkeypatch.setattr(table_products, name, value.astype(kind).astype(np.float64))
    for name, cases in CASES.items():
        for number, (mine, numpys) in enumerate(cases):
            rounding = _Rounding(dtype)
            monkeypatch.setattr(table_products, "t", rounding)
            yield f"{name} {number}", mine, numpys, rounding


_LONG = {"inv", "det", "cholesky", "solve", "solve_triangular"}  # to compute
# Cases that put rounded results together again, that have a Python number in them (which takes the type of
# the tensor, as in NumPy, while the judge has a double), or that are about doubles and their memory.
_OTHER = {"qr", "svd", "__divmod__", "bitcast", "__dlpack__"}


def _check_cases(dtype: str, names: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    wrong, judged = [], set()
    for label, mine, numpys, rounding in _half_cases(dtype, monkeypatch):
        name = label.split()[0]
        if name in _OTHER or not names(name):
            continue
        result = mine()
        if not isinstance(result, Tensor) or str(result.dtype) != dtype or rounding.lost:
            continue
        judged.add(name)
        with np.errstate(all="ignore"):
            wrong += far(label, result.numpy(), np.asarray(numpys()))
    assert not wrong, "\n".join(wrong)
    return judged


@pytest.mark.parametrize("dtype", ONE_HALF)
def test_cases(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = _check_cases(dtype, lambda name: name not in _LONG, monkeypatch)
    assert len(judged) > 50, sorted(judged)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
def test_factorisations(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _check_cases(dtype, lambda name: name in _LONG, monkeypatch)


# --- losses and layers


def _huber(d: Array) -> Array:
    return np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5)


def _cosine(x: Array, y: Array) -> Array:
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))


_LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "l1": (losses.l1_loss, lambda x, y: np.abs(x - y).mean()),
    "mse": (losses.mse_loss, lambda x, y: ((x - y) ** 2).mean()),
    "huber": (losses.huber_loss, lambda x, y: _huber(x - y).mean()),
    "hinge": (losses.hinge_loss, lambda x, y: np.maximum(0, 1 - x * y).mean()),
    "binary": (losses.binary_cross_entropy, lambda x, y: -(y * np.log(x) + (1 - y) * np.log(1 - x)).mean()),
    "logits": (
        losses.binary_cross_entropy_with_logits,
        lambda x, y: (np.logaddexp(0, x) - x * y).mean(),
    ),
    "cosine": (losses.cosine_similarity, _cosine),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_losses(dtype: str) -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.uniform(0.01, 0.99, (7, 33)).astype(numpy_type(dtype)) for _ in range(2))
    wrong = []
    for name, (mine, numpys) in _LOSSES.items():
        got = mine(Tensor(x), Tensor(y))
        assert str(got.dtype) == dtype, name
        wrong += far(name, got.numpy(), numpys(x.astype(np.float64), y.astype(np.float64)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", HALVES)
def test_group_norm(dtype: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 6, 33)).astype(numpy_type(dtype))
    w, b = (rng.uniform(0.5, 2.0, 6).astype(x.dtype) for _ in range(2))
    layer = nn.GroupNorm(3, 6)
    layer.weight, layer.bias = Tensor(w), Tensor(b)
    rows = x.astype(np.float64).reshape(2, 3, -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    want = rows.reshape(x.shape) * w.astype(np.float64)[:, None] + b.astype(np.float64)[:, None]
    # where the two terms cancel, the unit is that of the larger
    got, unit = layer(Tensor(x)).numpy().astype(np.float64), float(ml_dtypes.finfo(x.dtype).eps)
    assert (np.abs(got - want) <= 0.75 * unit * np.maximum(np.abs(want), 0.01)).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_in_training(dtype: str) -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((16, 3, 5)) + 4).astype(numpy_type(dtype))  # a rounded mean shows
    layer = nn.BatchNorm(3, dtype=dtype)
    exact = x.astype(np.float64)
    mean, var = exact.mean((0, 2)), exact.var((0, 2))
    want = (exact - mean[:, None]) / np.sqrt(var + 1e-5)[:, None]
    with nn.training():
        y = layer(Tensor(x))
    assert str(y.dtype) == dtype
    got, unit = y.numpy().astype(np.float64), float(ml_dtypes.finfo(x.dtype).eps)
    assert (np.abs(got - want) <= 0.75 * unit * np.maximum(np.abs(want), 0.01)).all()
    assert str(layer.running_mean.dtype) == dtype  # type: ignore[union-attr]
    assert not far("mean", layer.running_mean.numpy(), mean * 0.1)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", HALVES)
def test_scores_of_attention_are_not_rounded(dtype: str) -> None:
    """Scores near 700 in steps of 1/16: rounded to half precision, weights would be off by factors."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((1, n, 16)).astype(numpy_type(dtype)) for n in (9, 12, 12))
    q, k = (q * 8).astype(q.dtype), (k * 8).astype(k.dtype)
    a, b, c = (x.astype(np.float64) for x in (q, k, v))
    scores = a @ b.swapaxes(-1, -2) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ c
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy().astype(np.float64)
    unit = float(ml_dtypes.finfo(v.dtype).eps)
    assert np.abs(got - want).max() <= 1.5 * unit * np.abs(c).max()
