"""Long rows sorted on a grid: every element is put in its place by a thread. Against NumPy, with proofs."""

from __future__ import annotations

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import applied
from morok.proof.kernels.safety import examine
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE, HOST
from tests.optimize.plans import an_h200, empty, planned
from tests.tensor.arrays.test_written_order import numbers


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]
)
def test_order(dtype: str) -> None:
    """Any type and axis; equal elements stay in order, also from the largest down."""
    for shape, axis in (((700,), 0), ((2, 257, 3), 1)):
        a = numbers(dtype, *shape)
        values, order = Tensor(a, device=DEVICE).sort(axis)
        want = np.argsort(a, axis=axis, kind="stable")
        np.testing.assert_array_equal(order.numpy(), want)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, want, axis))
    flipped = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
    down = a.shape[axis] - 1 - np.flip(flipped, axis)  # NaN first
    np.testing.assert_array_equal(Tensor(a, device=DEVICE).argsort(axis, descending=True).numpy(), down)


def test_few_different_numbers() -> None:
    random = np.random.default_rng(1)
    for a in (np.full(400, 7), random.integers(0, 3, 1000) << 40, random.integers(0, 2, (2, 300)) * 255):
        found = Tensor(a, device=DEVICE).argsort().numpy()
        np.testing.assert_array_equal(found, np.argsort(a, kind="stable"))


def test_who_puts_an_element_meets_nobody() -> None:
    """Places are computed where elements are put, and are proved to be inside."""
    result = Tensor.empty(2, 700, device=DEVICE).argsort()
    kernels = [optimize(item.ast, HOST) for item in schedule([result.uop]).items]
    putting = [k for k in kernels if any(o.name == "ATOMIC" for o in applied(k))]
    assert len(putting) == 8
    assert not examine(lower(putting[0], HOST), putting[0]).open


def test_kernels_of_a_pass() -> None:
    """Words of bits, how many there are of each digit, three of running sums, and two that put elements."""
    with an_h200() as machine:
        found = planned([empty(1 << 20, dtype="float32").sort().values.uop], machine)
    assert len(found) <= 2 + 7 * 8
