"""How many digits sums have: long ones, and those that statistics are made of. Against NumPy in float64."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, knobs, nn


@pytest.fixture(autouse=True)
def compiled(interpreter: None) -> Any:
    with knobs.override(DEVICE="CPU"):  # a GPU's tiles of products have no registers to spare for this
        yield


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def error(got: Tensor, wanted: Any) -> float:
    return float(np.abs(got.numpy().astype(np.float64) - wanted).max() / np.abs(wanted).max())


# With n additions into one place the error of a sum of positive numbers goes up to n/4 roundings of 6e-8.
# These bounds are about twice what stretches of 256 leave, and less than one place for all would.
@pytest.mark.parametrize(("left", "inner", "right"), [(32, 4096, 32), (8, 10007, 16), (1, 1 << 14, 8)])
def test_long_products(left: int, inner: int, right: int) -> None:
    a, b = noise(left, inner), noise(inner, right, seed=1)
    assert error(Tensor(a) @ Tensor(b), a.astype(np.float64) @ b.astype(np.float64)) < 8e-7


@pytest.mark.parametrize("shape", [(64, 4, 28, 28), (9, 3, 61, 53)])
def test_long_sums_of_channels(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    wide = x.astype(np.float64)
    assert error(Tensor(x).sum((0, 2, 3)), wide.sum((0, 2, 3))) < 5e-7
    y = Tensor(x)
    total, squares, largest = y.sum((0, 2, 3)), (y * y).sum((0, 2, 3)), y.max((0, 2, 3))
    Tensor.realize(total, squares, largest)  # one loop for all of them
    assert error(squares, (wide * wide).sum((0, 2, 3))) < 5e-7
    assert np.array_equal(largest.numpy(), x.max((0, 2, 3)))


def test_a_stretch_that_is_the_same_in_every_round() -> None:
    # the last column does not know its row: its stretch is no part of the rounds over rows
    x = Tensor(np.zeros((2, 4, 8), np.float32)).diag_embed(-1)
    assert (x - Tensor(np.zeros(1, np.float32))).exp().sum().item() == 2 * 4 * 9 * 9


def test_a_long_sum_of_a_length_that_is_known_later() -> None:
    n = Variable("n", 1, 60000)
    x = noise(60000)
    for length in (1, 257, 59999):
        assert error(Tensor(x)[: n.bind(length)].sum(), x[:length].sum(dtype=np.float64)) < 5e-7


def test_a_batch_norm_after_a_convolution_takes_the_statistics_of_what_it_normalises() -> None:
    x, w = noise(16, 1, 28, 28) + 4, noise(8, 1, 3, 3, seed=1) + 1
    norm = nn.BatchNorm(8, track_running_stats=False)
    with nn.training():
        y = norm(Tensor(x).conv2d(Tensor(w)))
    names = [item.name for item in Tensor.prepare(y).schedule.items]
    assert sum("_3_3" in name for name in names) == 1  # one convolution, which all others read
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    exact = np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))
    exact = exact - exact.mean((0, 2, 3), keepdims=True)
    assert error(y, exact / np.sqrt((exact**2).mean((0, 2, 3), keepdims=True) + 1e-5)) < 6e-6
    # what is left without the average adds up to nothing, as far as an average of 70 can be written down
    assert abs(y.numpy().astype(np.float64).mean((0, 2, 3))).max() < 1e-5
