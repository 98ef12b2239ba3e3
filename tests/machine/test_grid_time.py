"""Times on a grid: what a product takes at least is never more than what its best tile takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok.dtype import bfloat16, float16, float32
from morok.dtype.types import DType
from morok.machine.files import load
from morok.machine.grid_time import Problem, least_clocks, product_clocks

sizes = st.integers(1, 20000)


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32])
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.integers(1, 64), sizes, st.integers(1, 64))
def test_no_tile_is_faster_than_the_least(
    name: str, dtype: DType, rows: int, columns: int, batch: int, steps: int, pieces: int
) -> None:
    machine = load(name)
    cut = Problem(rows, columns, batch * pieces, -(-steps // pieces), 4, 0.0, dtype.itemsize, 0)
    least = least_clocks(rows * columns * batch * steps, dtype, float32, machine)
    assert least <= product_clocks(cut, dtype, float32, machine) * (1 + 1e-9)
