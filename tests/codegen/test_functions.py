"""Errors of the elementary functions. `benchmarks/ulp.py` prints the full sweep."""

from typing import Any

import numpy as np
import pytest

from benchmarks.ulp import LIMITS, allowed, errors, in_lanes, kernel, run, worst, worst_sigmoid
from morok.codegen.decompose import exponential, trigonometric
from morok.dtype import DType, float32, float64, index
from morok.ir.arithmetic.alu import evaluate
from morok.ir.build import define_global
from morok.ir.node import const, make, toposort
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


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("function", [exponential.exp, exponential.exp2])
def test_the_power_of_what_is_masked_is_a_product_of_zeros(function: Any, dtype: DType) -> None:
    """Not of numbers whose product is smaller than any: that takes some processors a hundred cycles."""
    x = make(Ops.INDEX, dtype, (define_global(dtype, 1, 0), const(index, 0)))
    result = function(x)
    assert result.op is Ops.MUL
    done: dict[Any, Any] = {x: -np.inf}
    for n in toposort(result, stop=lambda n: n is x):
        if n not in done:
            given = [done[s] for s in n.src]
            done[n] = n.arg if n.op is Ops.CONST else evaluate(n.op, n.src[-1].dtype, *given, to=n.dtype)
    assert [done[s] for s in result.src] == [0.0, 0.0] and done[result] == 0.0


@pytest.mark.parametrize("function", [trigonometric.sin, trigonometric.tan, exponential.pow_])
def test_quadrants_and_exponents_are_bits_of_a_sum(function: Any) -> None:
    """Vectors of few processors become integers of 64 bits; on others each lane was converted by itself."""
    x = make(Ops.INDEX, float32, (define_global(float32, 1, 0), const(index, 0)))
    result = function(x, x) if function is exponential.pow_ else function(x)
    casts = [n for n in toposort(result) if n.op is Ops.CAST and n.dtype.is_int and n.src[0].dtype.is_float]
    assert not casts
