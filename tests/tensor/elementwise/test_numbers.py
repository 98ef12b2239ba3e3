"""Numbers that once came out wrong: conversion of lists, remainders, functions near their critical points."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from morok import Tensor, grad, knobs
from tests.devices import devices
from tests.tensor.common import same

DEVICES = devices("PYTHON", "CPU")


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest) -> Any:
    """Functions are judged as the interpreter computes them and as machine code."""
    with knobs.override(DEVICE=request.param):
        yield request.param


# --- lists


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([0.1], "float64"),
        ([[1e200], [-1e-200]], "float64"),
        ([16777217.0, -16777217.5], "int64"),
        ([65519.999, 65520.0, 1.00048828125 + 2**-30], "float16"),
        ([2**53 + 1, 3], "float64"),
    ],
)
def test_a_list_is_rounded_once_to_the_type_asked_for(data: Any, dtype: str) -> None:
    with np.errstate(over="ignore"):
        same(Tensor(data, dtype=dtype), np.array(data, dtype))


def test_a_list_in_bfloat16_is_rounded_once() -> None:
    # just above the middle of two neighbours, by less than float32 can tell
    assert Tensor([1.00390625 + 2**-30], dtype="bfloat16").tolist() == [1.0078125]


def test_a_list_beside_doubles_keeps_its_digits() -> None:
    x = Tensor([1.0, 2.0], dtype="float64")
    same(x.add([0.1, 1e200]), np.array([1.0, 2.0]) + np.array([0.1, 1e200]))
    same(Tensor([1.0], dtype="float32").add([0.5]), np.array([1.5], np.float32))


# --- remainders


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_remainders_are_exact(dtype: str) -> None:
    limits = np.finfo(dtype)
    ends = [float(limits.max), float(limits.tiny), float(limits.smallest_subnormal), 3.0, 1.0, 0.1, 7e4]
    with np.errstate(all="ignore"):
        values = np.array([*ends, 1e20, 1e-40, 1e300, 1e-310, 0.0, math.inf], dtype)
        values = np.concatenate([values, -values, np.array([math.nan], dtype)])
        x, y = (np.ascontiguousarray(v).reshape(-1) for v in np.meshgrid(values, values))
        wanted = np.remainder(x, y), np.floor_divide(x, y), np.fmod(x, y)
    a, b = Tensor(x), Tensor(y)
    for result, want in zip((a % b, a // b, a.fmod(b)), wanted, strict=True):
        got = result.numpy()
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("near", [False, True], ids=["any", "near"])
def test_remainders_of_random_bits(dtype: str, near: bool) -> None:
    """Any bits; quotients about the largest that one division decides; zeros, infinities and NaN too."""
    rng = np.random.default_rng(0)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x, y = rng.integers(0, 256, (2, 4001 * kind.itemsize), dtype=np.uint8).view(kind)
    if near:
        digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]
        y = rng.uniform(0.5, 2, 4001).astype(kind)
        # products, and their neighbours: quotients that are nearly whole
        times = np.floor(2.0 ** rng.uniform(0, digits + 2, 4001)) * rng.choice([-1.0, 1.0], 4001)
        x = (times * y.astype(np.float64)).astype(kind)
        x = (x.view(f"i{kind.itemsize}") + rng.integers(-1, 2, 4001).astype(f"i{kind.itemsize}")).view(kind)
    wide = np.float32 if dtype == "bfloat16" else kind  # which is exact: NumPy's own bfloat16 is not
    with np.errstate(all="ignore"):
        a, b = x.astype(wide), y.astype(wide)
        wanted = [np.fmod(a, b), np.remainder(a, b), np.floor_divide(a, b)]
        p, q = Tensor(x), Tensor(y)
        for got, want in zip((p.fmod(q), p % q, p // q), wanted, strict=True):
            want, found = want.astype(kind), got.numpy()
            np.testing.assert_array_equal(found.astype(np.float64), want.astype(np.float64))
            some = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(found)[some], np.signbit(want)[some])


def test_remainders_on_every_way_through_the_code() -> None:
    """One number, lanes and what is left of them, a divisor that is known; with a large quotient anywhere."""
    for count in (1, 2, 3, 4, 7, 8, 17):
        for far in (None, 0, count - 1):
            x = np.linspace(-9.7, 13.1, count)
            if far is not None:
                x[far] = -1e300
            for y in (np.linspace(0.3, 2.9, count), np.float64(0.7)):
                got = Tensor(x).fmod(Tensor(y) if isinstance(y, np.ndarray) else 0.7)
                assert got.tolist() == [math.fmod(a, b) for a, b in np.broadcast(x, y)]


def test_remainders_of_two_types_in_one_kernel() -> None:
    x, y = Tensor(np.array([2.25], np.float64)), Tensor(np.array([3.5], np.float32))
    first, second = x.fmod(1.5), y.fmod(-1.5)
    Tensor.realize(first, second)
    assert first.item() == 0.75 and second.item() == 0.5


def test_the_slope_of_a_remainder() -> None:
    x, y = Tensor([7.5, -7.5]), Tensor([2.0, 2.0])
    dx, dy = grad(lambda x, y: (x % y).sum(), (0, 1))(x, y)
    assert (dx.tolist(), dy.tolist()) == ([1.0, 1.0], [-3.0, 4.0])
    dx, dy = grad(lambda x, y: x.fmod(y).sum(), (0, 1))(x, y)
    assert (dx.tolist(), dy.tolist()) == ([1.0, 1.0], [-3.0, 3.0])


# --- functions


def _near(name: str, given: list[float], dtype: str, ulps: float = 4.0) -> None:
    """Against the C library in double precision, or quadruple where NumPy has it."""
    x = np.array(given, dtype)
    with np.errstate(all="ignore"):
        exact = _EXACT[name](x.astype(np.longdouble))
        wanted = exact.astype(dtype)
        got = getattr(Tensor(x), name)().numpy()
        error = np.abs(got.astype(np.longdouble) - exact) / np.spacing(np.abs(wanted))
    fine = (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (error <= ulps)
    assert fine.all(), [(x[i], got[i], wanted[i]) for i in np.flatnonzero(~fine)[:4]]


_EXACT: dict[str, Any] = {
    "atanh": np.arctanh, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "log1p": np.log1p, "expm1": np.expm1, "asin": np.arcsin, "acos": np.arccos,
    "logit": lambda x: np.where(np.abs(x - 0.5) < 0.3, np.log1p((2 * x - 1) / (1 - x)), np.log(x / (1 - x))),
}  # fmt: skip


def _around(*values: float) -> list[float]:
    """The neighbours of some float32 numbers, on both sides."""
    found = []
    for value in map(np.float32, values):
        for other in (value, -value):
            found += [float(other), *(float(np.nextafter(other, np.float32(t))) for t in (np.inf, -np.inf))]
    return found


_CRITICAL = _around(
    0.0, 1e-30, 1e-4, 0.25, 0.5, 0.75, 0.99, 1.0, 1.5, 9.0, 88.0, 88.72, 89.0, 89.4, 1e9, 1e30
)


@pytest.mark.parametrize("name", _EXACT)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_near_their_critical_points(name: str, dtype: str) -> None:
    _near(name, [*_CRITICAL, -0.99999994, 710.4, -710.4, 709.9, 1 - 2**-53], dtype)


def test_sinc_far_from_zero() -> None:
    x = np.array([1.0, 2.0, -3.0, 1e30, 0.5, 1.5, -2.5, 0.0, 1e-30], np.float32)
    whole = np.array([0.0, 0.0, 0.0, 0.0, 2 / np.pi, -2 / (3 * np.pi), 2 / (5 * np.pi), 1.0, 1.0])
    np.testing.assert_allclose(Tensor(x).sinc().numpy(), whole, rtol=3e-7, atol=0)


def test_tanhshrink_near_zero() -> None:
    x = np.array([1e-3, 1e-6, -0.25, 0.75], np.float64)
    wanted = x**3 / 3 - 2 * x**5 / 15 + 17 * x**7 / 315
    np.testing.assert_allclose(Tensor(x).tanhshrink().numpy()[:2], wanted[:2], rtol=1e-14)
    np.testing.assert_allclose(Tensor(x).tanhshrink().numpy()[2:], (x - np.tanh(x))[2:], rtol=1e-13)


# --- slopes where two meet


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_equal_arguments_share_the_slope(name: str) -> None:
    x = Tensor([1.0, -2.0, 0.0, 3.0])
    y = Tensor([1.0, -2.0, 0.0, 1.0])
    dx, dy = grad(lambda x, y: getattr(x, name)(y).sum(), (0, 1))(x, y)
    base = math.e if name == "logaddexp" else 2.0
    wanted = [0.5, 0.5, 0.5, 1 / (1 + base**-2.0)]
    np.testing.assert_allclose(dx.numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(dy.numpy(), 1 - np.array(wanted), rtol=1e-5)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_logarithms_of_sums_with_infinities(name: str) -> None:
    x = np.array([math.inf, -math.inf, math.inf, -math.inf, math.nan, 0.0], np.float32)
    y = np.array([math.inf, -math.inf, -math.inf, 3.0, 1.0, math.inf], np.float32)
    with np.errstate(all="ignore"):
        dx, dy = grad(lambda x, y: getattr(x, name)(y).sum(), (0, 1))(Tensor(x[3:4]), Tensor(y[3:4]))
    assert (dx.tolist(), dy.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_equals_share_the_slope_of_an_extreme(name: str) -> None:
    """As in PyTorch and JAX."""
    dx, dy = grad(lambda x, y: getattr(x, name)(y).sum(), (0, 1))(Tensor([2.0]), Tensor([2.0]))
    assert (dx.item(), dy.item()) == (0.5, 0.5)


# --- half precision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_do_not_overflow(dtype: str) -> None:
    """Squares of 366 are no half precision numbers, but the length is."""
    x = np.full((8, 4), 366).astype(getattr(ml_dtypes, dtype, dtype))
    wanted = np.linalg.norm(x.astype(np.float64))
    assert float(Tensor(x).norm().item()) == float(np.array(wanted).astype(x.dtype))
    assert float(Tensor(x).std(correction=0).item()) == 0.0
    y = (x * 0 + np.arange(32).reshape(8, 4) * 40).astype(x.dtype)
    spread = np.std(y.astype(np.float64))
    assert abs(float(Tensor(y).std(correction=0).item()) / spread - 1) < 2.0**-8


# --- sigmoids whose results are subnormal

_FAR = {"float32": np.linspace(-112, -80, 257), "float64": np.linspace(-755, -700, 221)}


def _share(x: Any) -> Any:
    """The sigmoid of negative numbers, and its slope, in more digits."""
    e = np.exp(np.longdouble(x))
    return e / (1 + e)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sigmoids_far_below_zero(dtype: str) -> None:
    """Within 2 units of the last place of what is right; at the end they are the smallest number."""
    if np.finfo(np.longdouble).eps == np.finfo(np.float64).eps and dtype == "float64":
        pytest.skip("no wider floats here")
    data = _FAR[dtype].astype(dtype)
    x, share = np.longdouble(data), _share(np.longdouble(data))
    unit = np.spacing(share.astype(dtype)).astype(np.longdouble)
    t = Tensor(data, requires_grad=True)
    for value in (t.sigmoid(), t.softplus(), -(-t).logsigmoid()):
        assert np.all(np.abs(value.numpy() - share) <= 2 * unit)
        assert np.all(np.abs(value.sum().gradient(t)[0].numpy() - share) <= 2 * unit)
    # x times the sigmoid as it was rounded
    for value, factor in ((t.silu(), 1.0), (t.swish(), 1.0), ((t / 2).quick_gelu() * 2, 0.851)):
        near = _share(x * factor)
        own = 2 * np.spacing(near.astype(dtype)).astype(np.longdouble) + near * np.finfo(dtype).eps * -x
        assert np.all(np.abs(value.numpy() - x * near) <= -x * own)
    slope = t.silu().sum().gradient(t)[0].numpy()
    assert np.all(np.abs(slope - share * (1 + x)) <= -x * 3 * unit)


def test_a_sigmoid_of_bfloat16_far_below_zero() -> None:
    data = np.linspace(-95, -80, 61).astype(ml_dtypes.bfloat16)
    share = _share(data.astype(np.longdouble))
    unit = np.maximum(share * 2.0**-7, 2.0**-133)
    assert np.all(np.abs(Tensor(data).sigmoid().numpy().astype(np.longdouble) - share) <= unit)


def test_silu_at_the_ends() -> None:
    huge = np.array([3e38, -3e38, np.inf, -0.0, 1e-40], np.float32)
    same(Tensor(huge).silu(), np.array([3e38, -0.0, np.inf, -0.0, 5e-41], np.float32), rtol=1e-5)


# --- the 8-bit type that has no infinities


def test_extremes_without_nan_where_there_is_no_infinity() -> None:
    data = np.array([[1.625, np.nan, -2.0], [np.nan, np.nan, np.nan]], ml_dtypes.float8_e4m3fn)
    top, low = (getattr(Tensor(data), name)(1).numpy().astype(np.float32) for name in ("nanmax", "nanmin"))
    np.testing.assert_array_equal(top, np.array([1.625, np.nan], np.float32))
    np.testing.assert_array_equal(low, np.array([-2.0, np.nan], np.float32))
