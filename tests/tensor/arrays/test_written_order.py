"""Long rows that a processor sorts at once, by a kernel that counts. Against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from morok import Tensor, knobs

RNG = np.random.default_rng(0)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """With what is easily put in the wrong order."""
    if not dtype.startswith("float"):
        if dtype == "bool":
            return RNG.integers(0, 2, shape).astype(bool)
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    found = RNG.normal(size=shape).astype(dtype)
    for i, special in enumerate((np.nan, np.inf, -np.inf, -0.0, 0.0)):
        found.reshape(-1)[i :: 11 + i] = special
    return found


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"],
)
def test_order(dtype: str) -> None:
    """Any type and axis; equal elements stay in order, also from the largest down."""
    with knobs.override(DEVICE="CPU"):
        for shape, axis in (((700,), 0), ((3, 300), 1), ((2, 257, 3), 1)):
            a = numbers(dtype, *shape)
            values, order = Tensor(a).sort(axis)
            want = np.argsort(a, axis=axis, kind="stable")
            np.testing.assert_array_equal(order.numpy(), want)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, want, axis))
            flipped = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
            down = a.shape[axis] - 1 - np.flip(flipped, axis)  # NaN first
            np.testing.assert_array_equal(Tensor(a).argsort(axis, descending=True).numpy(), down)


def test_few_different_numbers() -> None:
    """Digits that all share are passed over: one, two, or all of them."""
    with knobs.override(DEVICE="CPU"):
        for a in (np.full(400, 7), RNG.integers(0, 3, 400) << 40, RNG.integers(0, 2, (2, 300)) * 255):
            np.testing.assert_array_equal(Tensor(a).argsort().numpy(), np.argsort(a, kind="stable"))


def test_it_runs_now_and_gradients_go_on() -> None:
    """A row of memory, or little made of it, is sorted at once; what it is made of keeps its gradient."""
    with knobs.override(DEVICE="CPU"):
        a = RNG.normal(size=500).astype(np.float32)
        x = Tensor(a)
        y = x * 2.0
        values, order = y.sort()
        assert order.is_realized and not y.is_realized
        (slope,) = (values * Tensor.arange(500)).sum().gradient(x)
        np.testing.assert_array_equal(slope.numpy(), 2.0 * np.argsort(np.argsort(a)))
        much = Tensor(RNG.normal(size=(300, 300)).astype(np.float32))
        assert not (much @ much).argsort().is_realized
