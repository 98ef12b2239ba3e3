"""Places that are computed in floats: the position and the place beside it are one number, however it rounds.

Positions lie on whole numbers or a rounding beside them, so a product that is spread over a sum, or any other
arithmetic than what the line says, picks another element.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs

SIZE = 12
NUMBERS = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0]


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    """What the interpreter computes is not what is asked here."""
    with knobs.override(DEVICE=os.environ.get("DEVICE", "CPU")):
        yield


def position(x: Any, numbers: list[float], number: Any) -> Any:
    """((x + a)·b - c)·d + e: as far as a list of numbers goes."""
    for n, c in enumerate(numbers):
        x = (x + number(c), x * number(c), x - number(c), x * number(c), x + number(c))[n]
    return x


@pytest.mark.parametrize("count", [3, 16, 37])
def test_chains(count: int) -> None:
    table = np.arange(SIZE, dtype=np.float32) ** 2
    given = (np.arange(count, dtype=np.float32) - count // 2) / np.float32(10)
    rng = np.random.default_rng(count)
    for _ in range(12):
        steps = rng.choice(NUMBERS, rng.integers(2, 6)).tolist()
        p = position(given, steps, np.float32)
        low = np.floor(p)
        place = np.clip(low, 0, SIZE - 1).astype(np.int64)
        wanted = table[place] * (p - low) + low
        t = position(Tensor(given), steps, float)
        assert t.dtype.name == "float32"
        below = t.floor()
        found = Tensor(table)[below.clamp(0, SIZE - 1).cast("int64")] * (t - below) + below
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-6, err_msg=str(steps))


@pytest.mark.parametrize("corners", [False, True])
def test_a_grid_that_lies_on_pixels(corners: bool) -> None:
    """Each sample is its pixel; a position that rounds to below its row has all of its weight on that row."""
    from morok.nn.functional import grid_sample

    height, width = 5, 2
    x = np.arange(height * width, dtype=np.float32).reshape(1, 1, height, width) ** 2
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    if corners:
        ends = [2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1]
    else:
        ends = [(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1]
    grid = np.stack(ends, -1).astype(np.float32).reshape(1, 1, -1, 2)
    found = grid_sample(Tensor(x), Tensor(grid), align_corners=corners)
    np.testing.assert_allclose(found.numpy().reshape(-1), x.reshape(-1), rtol=1e-5, atol=1e-4)
