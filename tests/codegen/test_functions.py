"""Errors of the elementary functions. `benchmarks/ulp.py` prints the full sweep."""

import numpy as np
import pytest

from benchmarks.ulp import LIMITS, allowed, errors, in_lanes, kernel, run, worst, worst_sigmoid
from morok.dtype import DType, float32, float64
from morok.ir.ops import Op, Ops


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("op", LIMITS, ids=lambda op: op.name)
def test_error(op: Op, dtype: DType) -> None:
    error, at = worst(op, dtype, 400)
    assert error <= allowed(op, dtype), at


def test_angles_between_an_eighth_of_a_turn_and_one() -> None:
    """π/2 less an angle is below 1 there: the second part of π/2 is more than half of its last place."""
    angle = np.linspace(np.pi / 4, 1, 2000)
    y, x = in_lanes(np.sin(angle)), in_lanes(np.cos(angle))
    got = run(kernel(Ops.ATAN2, float64, len(x)), float64, [y, x])
    exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    assert errors(got, exact).max() <= 1.5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("op", LIMITS, ids=lambda op: op.name)
def test_error_on_many_points(op: Op, dtype: DType) -> None:
    error, at = worst(op, dtype, 60_000, seed=7)
    assert error <= allowed(op, dtype), at


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_sigmoid(dtype: DType) -> None:
    error, at = worst_sigmoid(dtype, 1000)
    assert error <= 4, at
