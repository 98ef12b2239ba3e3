"""What people know from NumPy and PyTorch: axes of scalars, keywords, bits of other sizes, text, None."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from morok import Tensor
from morok.errors import DTypeError, MorokError, ShapeError
from tests.tensor.common import same

RNG = np.random.default_rng(1)
X = np.float32(3.0)

# What axis 0 and -1 of a scalar give: NumPy where it takes them, PyTorch elsewhere.
SCALAR: dict[str, Any] = {
    **dict.fromkeys(
        ("sum", "prod", "max", "min", "amax", "amin", "mean", "norm", "nansum", "nanmean", "nanmax", "nanmin",
         "median", "logsumexp", "flip", "squeeze"), X,
    ),
    **dict.fromkeys(("any", "all"), True),
    **dict.fromkeys(("argmax", "argmin", "argsort"), np.int64(0)),
    "count_nonzero": np.int64(1), "softmax": np.float32(1), "log_softmax": np.float32(0),
    "var": np.float32(np.nan), "std": np.float32(np.nan),
    **{n: np.array([3.0], np.float32) for n in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")},
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, -1])
def test_a_scalar_has_an_axis_by_courtesy(axis: int) -> None:
    t = Tensor(X)
    found = {n: t.norm(2, axis) if n == "norm" else getattr(t, n)(axis) for n in SCALAR}
    Tensor.realize(*found.values())
    for name, wanted in SCALAR.items():
        got = found[name].numpy()
        assert got.shape == np.shape(wanted) and got.dtype == np.asarray(wanted).dtype, name
        np.testing.assert_array_equal(got, wanted, err_msg=name)
    same(t.sum(axis, keepdim=True), X)
    same(t.sort(axis).values, X)
    same(t.topk(1, axis).values, X)
    same(t.quantile(0.5, axis), X)
    same(t.transpose(axis, axis), X)
    same(t.swapaxes(0, -1), X)
    same(t.movedim(axis, axis), X)
    same(t.layer_norm(axis), np.float32(0))


@pytest.mark.parametrize(
    "name", ["sum", "argmax", "cumsum", "softmax", "sort", "median", "logcumsumexp", "any"]
)
def test_but_only_that_one(name: str) -> None:
    for axis in (1, -2):
        with pytest.raises(ShapeError, match=f"axis {axis} does not exist in shape"):
            getattr(Tensor(X), name)(axis)


# --- keywords


def test_alpha() -> None:
    x, y = np.array([1, 2]), np.array([3, 5])
    same(Tensor(x).add(Tensor(y), alpha=2), x + 2 * y)
    same(Tensor(x).sub(3, alpha=-2), x + 6)
    same(Tensor(x).add(Tensor(y / 2), alpha=0.5), x + 0.25 * y)
    with pytest.raises(DTypeError, match=r"alpha=0.5 of a sum of int64"):
        Tensor(x).add(Tensor(y), alpha=0.5)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "float32", "float64"])
def test_rounding_mode(dtype: str) -> None:
    x = np.array([7, 8, 9, 100, 0]).astype(dtype)
    y = np.array([2, 3, 4, 7, 5]).astype(dtype)
    if not dtype.startswith("u"):
        x, y = np.concatenate((x, -x, x)), np.concatenate((y, y, -y))
    same(Tensor(x).div(Tensor(y), rounding_mode="floor"), x // y)
    same(Tensor(x).div(Tensor(y), rounding_mode="trunc"), np.trunc(x.astype(float) / y).astype(dtype))
    with pytest.raises(MorokError, match='rounding_mode is None, "floor" or "trunc"'):
        Tensor(x).div(2, rounding_mode="up")


@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 3])
def test_decimals(decimals: int) -> None:
    floats = RNG.standard_normal(50) * 100
    whole = np.array([15, 25, -15, -25, 149, 150, 151, 0, -7])
    for x in (
        floats,
        floats.astype(np.float32),
        whole,
        whole.astype(np.int16),
        np.array([5, 15, 250], np.uint8),
    ):
        same(Tensor(x).round(decimals=decimals), np.round(x, decimals))
    half = (floats.astype(np.float16)).astype(np.float64)
    same(Tensor(half.astype(np.float16)).round(decimals), np.round(half, decimals).astype(np.float16))
    assert Tensor([1e38, float("inf")]).round(3).tolist() == [float(np.float32(1e38)), float("inf")]


def test_types_of_results() -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float16)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(-1, keepdims=True))
    same(Tensor(x).softmax(-1, dtype="float64"), e / e.sum(-1, keepdims=True), rtol=1e-14)
    same(Tensor(x).log_softmax(-1, dtype="float64"), np.log(e / e.sum(-1, keepdims=True)), rtol=1e-13)
    same(Tensor(x).mean(0, dtype="float64"), x.mean(0, dtype=np.float64), rtol=1e-15)
    same(Tensor([1, 2]).mean(dtype="float64"), np.float64(1.5))
    same(Tensor(x).sum(dtype="float64"), x.sum(dtype=np.float64), rtol=1e-15)
    same(Tensor([100, 100], dtype="int8").prod(dtype="int32"), np.int32(10000))
    same(Tensor([100, 100], dtype="int8").cumsum(0, dtype="int8"), np.array([100, -56], np.int8))
    with pytest.raises(DTypeError, match="an average is a float"):
        Tensor([1, 2]).mean(dtype="int32")


def test_sorter() -> None:
    x, v = RNG.permutation(np.arange(0.0, 20.0, 2.0)), np.array([3.0, 4.0, 40.0, -1.0])
    for side in ("left", "right"):
        wanted = np.searchsorted(x, v, side, sorter=np.argsort(x))
        same(Tensor(x).searchsorted(Tensor(v), side=side, sorter=Tensor(np.argsort(x))), wanted)
        same(Tensor(x).searchsorted(v, side=side, sorter=np.argsort(x)), wanted)
    with pytest.raises(ShapeError, match="the sorter"):
        Tensor(x).searchsorted(v, sorter=Tensor([0, 1]))


INDICES = {  # torch.cummax and torch.cummin of these
    "max": ([1, 3, 2, 3, 5, 5, 0], [0, 1, 1, 3, 4, 5, 5]),
    "min": ([1, 3, 2, 3, 5, 5, 0], [0, 0, 0, 0, 0, 0, 6]),
    "max nan": ([1.0, np.nan, 2.0, np.nan, 0.0], [0, 1, 1, 3, 3]),
    "min nan": ([1.0, np.nan, 2.0, np.nan, 0.0], [0, 1, 1, 3, 3]),
    "max bool": ([False, False, True, False], [0, 1, 2, 2]),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_of_running_extremes(name: str) -> None:
    data, wanted = INDICES[name]
    method, numpys = ("cummax", np.maximum) if name.startswith("max") else ("cummin", np.minimum)
    x = np.array(data)
    values, indices = getattr(Tensor(x), method)(0, return_indices=True)
    same(values, numpys.accumulate(x))
    same(indices, np.array(wanted))
    both = np.stack([x, x])
    same(getattr(Tensor(both), method)(1, return_indices=True).indices, np.array([wanted, wanted]))


def viewed(a: str, b: str) -> tuple[Any, Any]:
    raw = RNG.integers(0, 256, (3, 16), dtype=np.uint8)
    kinds = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
    x = raw % 2 == 1 if a == "bool" else raw.view(kinds.get(a, a))
    return x, x.view(kinds.get(b, b))


@pytest.mark.parametrize(
    ("a", "b"),
    [("int16", "uint8"), ("uint8", "int16"), ("float32", "uint8"), ("uint8", "float64"), ("float64", "int16"),
     ("bfloat16", "int32"), ("int8", "bool"), ("bool", "int16"), ("int64", "float16"), ("bool", "uint8")],
)  # fmt: skip
def test_bits_as_types_of_other_sizes(a: str, b: str) -> None:
    x, wanted = viewed(a, b)
    got = Tensor(x).bitcast(b).numpy()
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if b == "bool":
        np.testing.assert_array_equal(got, x != 0)
    else:
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


def test_bits_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"4 uint8 make a float32, but the last axis of shape \(3, 6\)"):
        Tensor.zeros(3, 6, dtype="uint8").bitcast("float32")
    with pytest.raises(ShapeError, match="reshape the scalar"):
        Tensor(1.0).bitcast("uint8")


# --- errors that are due


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Tensor.ones(10, 11)[[True, False]], IndexError, r"a mask of shape \(2,\) at axis 0"),
        (lambda: Tensor.ones(10, 11)[[True] * 11], IndexError, r"chooses from, \(10,\)"),
        (lambda: Tensor.ones(3, 4)[:, [True, False]], IndexError, "at axis 1"),
        (lambda: Tensor.ones(3, 4)[np.ones((3, 3), bool)], IndexError, r"chooses from, \(3, 4\)"),
        (lambda: Tensor([-2, 0, 2]) ** -2, DTypeError, "negative integer powers"),
        (lambda: Tensor([2]) ** np.int64(-1), DTypeError, "negative integer powers"),
        (lambda: Tensor([2, 2]) ** np.array([1, -1]), DTypeError, "negative integer powers"),
        (lambda: Tensor([True]) ** -1, DTypeError, "negative integer powers"),
        (lambda: Tensor.arange(2**70), DTypeError, "out of range for int64"),
        (lambda: Tensor.arange(-3, 3, dtype="uint8"), DTypeError, "-3 is out of range for uint8"),
        (lambda: Tensor.arange(250, 300, dtype="uint8"), DTypeError, "299 is out of range for uint8"),
        (lambda: Tensor.arange(float("inf")), ShapeError, "finite"),
        (lambda: Tensor.arange(float("nan")), ShapeError, "finite"),
        (lambda: Tensor.full((2,), 300, "uint8"), DTypeError, "300 is out of range for uint8"),
        (lambda: Tensor([1, 300], dtype="uint8"), DTypeError, "300 is out of range for uint8"),
        (lambda: Tensor(-1, dtype="uint16"), DTypeError, "-1 is out of range for uint16"),
        (lambda: Tensor([1, 2**70]), DTypeError, "out of range for int64"),
        (lambda: Tensor([1], dtype="uint8").full_like(-1), DTypeError, "-1 is out of range for uint8"),
        (lambda: Tensor([1], dtype="uint8").pad([(1, 1)], 300), DTypeError, "300 is out of range for uint8"),
        (lambda: Tensor([1]).repeat_interleave(-1), ShapeError, "negative size"),
        (lambda: Tensor.ones(2, 3).argmax((0, 1)), ShapeError, "an axis must be a whole number"),
        (lambda: Tensor.ones(2, 3).cumsum((0, 1)), ShapeError, "an axis must be a whole number"),
        (lambda: bool(Tensor([1, 2])), ShapeError, "not one truth"),
        (lambda: bool(Tensor([])), ShapeError, "not one truth"),
        (lambda: f"{Tensor([1.0, 2.0]):.2f}", ShapeError, "needs one element"),
    ],
)  # fmt: skip
def test_errors_that_are_due(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, MorokError)


def test_limits_beyond_the_type() -> None:
    x = np.array([1, 200], np.uint8)
    same(Tensor(x).clamp(-5, 100), np.clip(x, -5, 100))
    same(Tensor(x).clamp(10, 300), np.clip(x, 10, 300))


# --- among other Python objects


def test_text_of_numbers() -> None:
    t = Tensor([0.12345])
    assert f"{t:.3f}" == "0.123" and f"{t[0]:8.2e}" == f"{0.12345:8.2e}" and f"{Tensor(7):04d}" == "0007"
    assert f"{t}" == str(t) and str(t) == repr(t)


def test_none_is_no_tensor() -> None:
    t = Tensor([1.0, 2.0])
    assert (t == None) is False and (t != None) is True and (None == t) is False  # noqa: E711
    assert t not in [None] and None not in (t,)
    with pytest.raises(DTypeError, match="cannot be combined"):
        t == "text"  # noqa: B015


def test_membership() -> None:
    t = Tensor([[1, 2], [3, 4]])
    assert 3 in t and 7 not in t and 1.5 not in t


def test_sequences_in_an_index() -> None:
    x = RNG.standard_normal((3, 4, 5))
    t = Tensor(x)
    for key in (
        ((0, 2),),
        (slice(None), (0, 2)),
        ((0, 1), (1, 2)),
        (..., (0, 3)),
        (range(2),),
        ([[0], [1]], (1, 2)),
    ):
        same(t[key], x[tuple(np.asarray(k) if isinstance(k, range) else k for k in key)])
    copy = x.copy()
    copy[:, (0, 2)] = 1.0
    t[:, (0, 2)] = 1.0
    same(t, copy)


def test_one_value_for_each_truth() -> None:
    x, mask = RNG.standard_normal((3, 4)), RNG.random((3, 4)) > 0.5
    for part, value in (
        (mask, np.arange(mask.sum(), dtype=float)),
        (mask[:, 0], RNG.standard_normal((int(mask[:, 0].sum()), 4))),
    ):
        t, wanted = Tensor(x.copy()), x.copy()
        t[Tensor(part)] = Tensor(value)
        wanted[part] = value
        same(t, wanted)


def test_so_many_of_each() -> None:
    x = np.arange(6).reshape(2, 3)
    same(Tensor(x).repeat_interleave(Tensor([2, 0, 1]), 1), np.repeat(x, [2, 0, 1], 1))
    same(Tensor(x).repeat_interleave([1, 3], axis=0), np.repeat(x, [1, 3], 0))
    same(Tensor(x).repeat_interleave(np.array([2])), np.repeat(x, [2]))
    for wrong in ([1, 2], [-1, 1, 1], [0.5, 1, 1]):
        with pytest.raises(ShapeError, match="repeat_interleave"):
            Tensor(x).repeat_interleave(wrong, 1)


@pytest.mark.parametrize("what", ["quantile", "nanquantile"])
def test_between_infinite_neighbours(what: str) -> None:
    def at(values: list[float], q: float) -> float:
        return getattr(Tensor(values), what)(q).item()  # type: ignore[no-any-return]

    inf = np.inf
    assert at([-inf, 1.0, 2.0], 0.25) == at([-inf, 1.0, 2.0], 0.1) == -inf
    assert at([-inf, -inf, 1.0], 0.25) == -inf and at([inf, inf, 1.0], 0.75) == inf
    assert at([inf, 1.0, 2.0], 0.75) == inf and at([inf, 1.0, 2.0], 0.25) == 1.5
    assert np.isnan(at([-inf, inf], 0.5))
    assert Tensor([-inf, 1.0, np.nan]).nanmedian().item() == np.nanmedian([-inf, 1.0, np.nan]) == -inf


def test_values_that_are_arrays() -> None:
    same(Tensor.full((2,), np.float64(3)), np.full((2,), np.float64(3)))
    same(Tensor.full((2, 3), [1, 2, 3]), np.full((2, 3), [1, 2, 3]))
    same(Tensor.full((2,), Tensor(3.0), dtype="int8"), np.full((2,), 3, np.int8))
    same(Tensor([0.0, 1.0, 2.0]).quantile(np.array([0.5, 0.25])), np.array([1.0, 0.5], np.float32))
    same(Tensor([0.0, 1.0, 2.0]).quantile(Tensor([0.5, 0.25])), np.array([1.0, 0.5], np.float32))
    same(Tensor([[3.0, 4.0]]).norm("fro"), np.float32(5.0))
    with pytest.raises(ShapeError, match="do not broadcast"):
        Tensor.full((2,), [1, 2, 3])


def test_gradients_that_are_not_there() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([3.0])
    with pytest.raises(MorokError, match=r"target 1 of shape \(1,\).*allow_unused=True gives zeros"):
        (x * x).sum().gradient(x, y)
    gx, gy = (x * x).sum().gradient(x, y, allow_unused=True)
    assert gx.tolist() == [2.0, 4.0] and gy.tolist() == [0.0]
    z = (x * x).sum().realize()
    with pytest.raises(MorokError, match="has let go of its past; ask first"):
        z.gradient(x)


def test_numbers_where_tensors_are_usual() -> None:
    x = np.array([0.5, -2.0], np.float32)
    same(Tensor(x).addcmul(2, Tensor(x)), x + 2 * x)
    same(Tensor(x).addcdiv(3.0, 2), x + np.float32(1.5))


def test_a_truth_without_axes_is_an_index() -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for truth in (np.array(True), np.array(False), Tensor(True), Tensor(False)):
        key = np.asarray(truth)
        same(Tensor(x)[truth], x[key])
        same(Tensor(x[0, 1])[truth], x[0, 1][key])
