"""Rows that are summed along two axes: one loop where memory has these behind each other, in either order."""

import numpy as np
import pytest

from morok import Tensor
from morok.machine.machine import Machine
from morok.optimize.record import applied
from tests.optimize.plans import an_h200, empty, planned


def normalised(x: Tensor) -> Tensor:
    """All channels of a picture are one group."""
    mean = x.mean((1, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((1, 2, 3), keepdim=True)
    return (x - mean) * (variance + 1e-5).rsqrt()


@pytest.mark.parametrize("pool", [False, True])
def test_channels_last_are_rows_as_well(pool: bool) -> None:
    """As many threads share the sums of pictures that have their channels last, not one warp."""
    with an_h200() as machine:
        first, last = empty(24, 512, 7, 7), empty(24, 7, 7, 512).permute(0, 3, 1, 2)
        shares = []
        for x in (first, last):
            y = normalised(x).cast("bfloat16")
            y = y.avg_pool2d(3, 1, padding=1) if pool else y.contiguous()
            (kernel,) = planned([y.uop], machine)
            shares.append([opt.amount for opt in applied(kernel.ast) if opt.name == "GROUP"])
    assert shares[0] == shares[1] and len(shares[0]) == 2


def groups(y: Tensor, machine: Machine) -> list[int]:
    (kernel,) = planned([y.uop], machine)
    return [opt.amount for opt in applied(kernel.ast) if opt.name == "GROUP"]


def test_a_number_for_each_channel() -> None:
    """It stands still along one of two loops that make a row in all else."""
    with an_h200() as machine:
        x, scale = empty(24, 512, 7, 7), empty(1, 512, 1, 1)
        alone = groups(normalised(x).contiguous(), machine)
        scaled = groups(normalised(x + x.abs() * scale).contiguous(), machine)
    assert alone == scaled and min(alone) >= 512


@pytest.mark.parametrize("axes", [(2, 3), 1], ids=["places", "channels"])
def test_means_of_what_is_normalised(axes: int | tuple[int, int]) -> None:
    """The block that has a picture's statistics takes the means of all its channels, a thread for each."""
    with an_h200() as machine:
        y = normalised(empty(24, 512, 7, 7)).mean(axes)
        (kernel,) = planned([y.uop], machine)
        opts = applied(kernel.ast)
    shared = [opt.amount for opt in opts if opt.name == "GROUP"]
    assert len(shared) == 2 and min(shared) >= 512  # the mean and the variance; not the means of channels
    assert max(opt.amount for opt in opts if opt.name == "LOCAL") >= 49


def test_values_of_means() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40, 5, 7)).astype(np.float32)
    found = normalised(Tensor(x, device="EMULATOR")).mean((2, 3)).numpy()
    y = x.astype(np.float64)
    mean = y.mean((1, 2, 3), keepdims=True)
    want = ((y - mean) / np.sqrt(y.var((1, 2, 3), keepdims=True) + 1e-5)).mean((2, 3))
    np.testing.assert_allclose(found, want, 1e-5, 1e-5)


def test_values() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 5, 24)).astype(np.float32)
    found = normalised(Tensor(x, device="EMULATOR").permute(0, 3, 1, 2)).avg_pool2d(3, 1, padding=1).numpy()
    y = x.transpose(0, 3, 1, 2).astype(np.float64)
    mean = y.mean((1, 2, 3), keepdims=True)
    y = (y - mean) / np.sqrt(((y - mean) ** 2).mean((1, 2, 3), keepdims=True) + 1e-5)
    padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(padded[:, :, i : i + 5, j : j + 5] for i in range(3) for j in range(3)) / 9
    np.testing.assert_allclose(found, want, 1e-5, 1e-5)
