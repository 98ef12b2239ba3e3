"""Rows that are summed along two axes: one loop where memory has these behind each other, in either order."""

import numpy as np
import pytest

from morok import Tensor
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


def test_values() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 5, 24)).astype(np.float32)
    found = normalised(Tensor(x, device="EMULATOR").permute(0, 3, 1, 2)).avg_pool2d(3, 1, padding=1).numpy()
    y = x.transpose(0, 3, 1, 2).astype(np.float64)
    mean = y.mean((1, 2, 3), keepdims=True)
    y = (y - mean) / np.sqrt(((y - mean) ** 2).mean((1, 2, 3), keepdims=True) + 1e-5)
    padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(padded[:, :, i : i + 5, j : j + 5] for i in range(3) for j in range(3)) / 9
    np.testing.assert_allclose(found, want, 1e-5, 1e-5)
