"""Sums of elements at known places: what is not in a window does not count, whatever it is."""

import numpy as np
import pytest

from morok import Tensor
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.nn import functional
from tests.devices import devices


@pytest.mark.parametrize("device", devices("PYTHON", "CPU", "EMULATOR"))
@pytest.mark.parametrize("call", [
    lambda t: t.adaptive_avg_pool1d(3),
    lambda t: t.interpolate(3, mode="area"),
])  # fmt: skip
def test_windows_of_unequal_size(device, call):
    x = np.array([3, -3, 0, np.inf, -4, 0, 4], np.float32)
    want = [0.0, np.inf, 0.0]  # of [0:3], [2:5], [4:7], by the definition; sums that cancel leave nothing
    assert call(Tensor(x.reshape(1, 1, 7), device=device)).numpy().ravel().tolist() == want
    y = np.array([1, 2, np.inf, 4, np.nan], np.float32)  # [0:2], [1:4], [3:5]
    got = call(Tensor(y.reshape(1, 1, 5), device=device)).numpy().ravel()
    np.testing.assert_array_equal(got, np.array([1.5, np.inf, np.nan], np.float32))


def test_folding_leaves_out_what_is_beside_a_window():
    x = np.zeros((1, 4, 4), np.float32)
    x[0, 0, 0] = np.inf  # the first element of the first window of 3×3, and of no other
    want = np.zeros((3, 3), np.float32)
    want[0, 0] = np.inf
    np.testing.assert_array_equal(functional.fold(Tensor(x), (3, 3), (2, 2)).numpy()[0, 0], want)


@pytest.mark.parametrize(
    "resized",
    [
        lambda x: x.interpolate((9, 5), mode="bilinear"),
        lambda x: x.adaptive_avg_pool2d(5),
        lambda x: x.interpolate((9, 5), mode="bilinear").permute(0, 1, 3, 2).adaptive_avg_pool2d((3, 4)),
    ],
)
def test_one_picture_after_the_other_has_the_same_tables(resized):
    """Tables are data on a device: to make them anew for each picture took longer than what reads them."""

    def tables(x):
        return {n for n in toposort(resized(x).uop) if n.op is Ops.BUFFER} - set(toposort(x.uop))

    first, second = (Tensor(np.full((1, 2, 7, 8), v, np.float32)).realize() for v in (1, 2))
    assert tables(first) and tables(first) == tables(second)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_half_precision_stays_and_is_rounded_once(mode, dtype):
    x = Tensor(np.random.default_rng(0).normal(size=(1, 2, 5, 6))).cast(dtype)
    got = x.interpolate((8, 4), mode=mode)
    assert str(got.dtype) == dtype
    want = x.cast("float64").interpolate((8, 4), mode=mode).cast("float32").cast(dtype)
    np.testing.assert_array_equal(got.cast("float32").numpy(), want.cast("float32").numpy())
