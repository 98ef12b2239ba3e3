"""Errors of the elementary functions. `benchmarks/ulp.py` prints the full sweep."""

import pytest

from benchmarks.ulp import LIMITS, worst, worst_sigmoid
from morok.dtype import DType, float32, float64
from morok.ir.ops import Op


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("op", LIMITS, ids=lambda op: op.name)
def test_error(op: Op, dtype: DType) -> None:
    error, at = worst(op, dtype, 400)
    assert error <= LIMITS[op], at


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("op", LIMITS, ids=lambda op: op.name)
def test_error_on_many_points(op: Op, dtype: DType) -> None:
    error, at = worst(op, dtype, 60_000, seed=7)
    assert error <= LIMITS[op], at


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_sigmoid(dtype: DType) -> None:
    error, at = worst_sigmoid(dtype, 1000)
    assert error <= 4, at
