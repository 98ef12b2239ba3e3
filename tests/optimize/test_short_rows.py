"""Rows shorter than a vector (points, pixels, pairs) are written out; lanes go along the loop around them."""

from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor
from morok.ir.ops import AxisKind
from morok.optimize.heuristics.cpu import choose
from morok.optimize.loops import loops_of, size
from tests.optimize.kernels import NEON, kernel_of

COUNT = 4000


def floats(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


def bytes_of(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.uint8))


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs of neighbours, as rotary positions have them."""
    a, b = x[:, 0::2], x[:, 1::2]
    return Tensor.stack(a * angle - b, b * angle + a, dim=-1)


PROGRAMS: dict[str, tuple[Callable[[], Tensor], int, int]] = {
    "points times a row": (lambda: floats(COUNT, 3) * floats(3), 3, 4),
    "points times a column": (lambda: floats(COUNT, 2) * floats(COUNT, 1), 2, 4),
    "pairs": (lambda: turned(floats(64, 128), floats(64, 64)), 2, 4),
    "points of three arrays": (lambda: Tensor.stack(*(floats(COUNT) for _ in range(3)), dim=-1), 3, 4),
    "points with a one behind them": (lambda: floats(COUNT, 2).pad(((0, 0), (0, 1)), value=1.0), 3, 4),
    "pixels times a row": (lambda: bytes_of(COUNT, 3) * bytes_of(3), 3, 16),
    "half a vector and one": (lambda: bytes_of(COUNT, 9) + bytes_of(COUNT, 1), 9, 16),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_lanes_go_along_the_rows_around(name: str) -> None:
    program, short, lanes = PROGRAMS[name]
    found = loops_of(choose(kernel_of(program().uop), NEON)).closers
    assert sorted(size(r) or 0 for r in found if r.arg[1] is AxisKind.UPCAST) == sorted((short, lanes))
