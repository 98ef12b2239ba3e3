"""Ops that are decomposed together give the numbers that they give apart."""

from typing import Any

import numpy as np
import pytest

from benchmarks.ulp import points, run
from morok.codegen.decompose.together import only_added
from morok.dtype import DType, float32, float64
from morok.ir.build import define_global, end, index, rng, sink, store
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops

_LANES = 8


def kernel(function: Any, dtype: DType, n: int) -> UOp:
    r, u = rng(n // _LANES, 0), rng(_LANES, 1, AxisKind.UPCAST)
    i = r * _LANES + u
    x = make(Ops.INDEX, dtype, (define_global(dtype, n, 1), i))
    return sink(end(store(index(define_global(dtype, n, 0), i), function(x)), r, u))


def arguments(dtype: DType) -> Any:
    """Among them the ends of the range, where powers are subnormal or nearly infinite."""
    low, high = (-104.0, 89.5) if dtype is float32 else (-746.0, 710.5)
    ends = [np.linspace(at - 2, at + 2, 400) for at in (low, low + 17, high - 1, high)]
    found = np.concatenate([[np.inf, -np.inf, np.nan, 0.0, -0.0], *ends, points(dtype, 200, 3)])
    return found[: len(found) // _LANES * _LANES].astype(dtype.numpy)


@pytest.mark.parametrize("c", [1.0, -1.0, 3.5, 1e-19])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_with_an_exponential_is_the_same_in_one_kernel_and_in_two(
    sign: int, dtype: DType, c: float
) -> None:
    x = arguments(dtype)

    def power(v: UOp) -> UOp:
        return alu(Ops.EXP, v if sign > 0 else -v)

    both = run(kernel(lambda v: power(v) + c, dtype, len(x)), dtype, [x])
    with np.errstate(all="ignore"):
        apart = run(kernel(power, dtype, len(x)), dtype, [x]) + c
    np.testing.assert_array_equal(both, apart)
    assert np.isinf(both).any() and np.isnan(both).any() and (both == apart.dtype.type(c)).any()


def test_the_sign_of_an_argument_costs_nothing() -> None:
    x = arguments(float32)
    wanted = run(kernel(lambda v: alu(Ops.EXP, v), float32, len(x)), float32, [-x])
    got = run(kernel(lambda v: alu(Ops.EXP, -v), float32, len(x)), float32, [x])
    np.testing.assert_array_equal(got, wanted)
    got = run(kernel(lambda v: alu(Ops.EXP, -v * const(float32, 2.0)), float32, len(x)), float32, [x / 2])
    np.testing.assert_array_equal(got, wanted)


def test_an_exponential_that_is_needed_itself_stays() -> None:
    x = make(Ops.DEFINE_VAR, float32, (), ("x", 0, 1))
    power = alu(Ops.EXP, x)
    assert only_added(sink(power + 1.0)) == {power}
    assert only_added(sink((power + 1.0) / (power + 2.0))) == {power}
    assert only_added(sink(power / (power + 1.0))) == frozenset()
    assert only_added(sink(power + x)) == frozenset()
