"""Long rows in order: sorted digit by digit, the k largest by their smallest. NumPy's stable sort judges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.machine.rates import OpCosts
from morok.optimize.facts import work
from morok.optimize.loops import loops_of
from morok.schedule.schedule import schedule
from tests.devices import devices

RNG = np.random.default_rng(18)


@pytest.fixture(params=devices("CPU", "EMULATOR"), autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A processor puts elements in their places; on a grid places look for their elements."""
    with knobs.override(DEVICE=request.param):
        yield request.param


def numbers(dtype: str, *shape: int) -> Any:
    """With equal ones, and for floats all that has no plain order."""
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.startswith("float"):
        x = (RNG.standard_normal(shape) * 20).round(1).astype(dtype)
        x.flat[5:9], x.flat[20], x.flat[21], x.flat[30:40] = np.nan, np.inf, -np.inf, 0.0
        x.flat[33] = -0.0
        return x
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = RNG.integers(low, high, shape, dtype=dtype, endpoint=True)
    x.flat[3:20] = x.flat[2]
    x.flat[40], x.flat[41] = low, high
    return x


def stable_order(x: Any, descending: bool) -> Any:
    """NaN last where numbers rise, first where they fall; equal ones as they came."""
    if not descending:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.flip(np.argsort(np.flip(x, -1), -1, kind="stable"), -1)


KINDS = [
    ("float32", (2, 301), False),
    ("int8", (300,), True),
    ("float16", (290,), True),
]
MORE = [
    ("float32", (270,), True),
    ("uint8", (257,), True),
    ("int32", (300,), True),
    ("uint32", (300,), True),
    ("uint32", (300,), False),
    ("int64", (300,), True),
    ("uint64", (300,), False),
    ("float64", (300,), True),
    ("int16", (2, 400), False),
    ("bool", (300,), True),
    ("uint16", (300,), True),
    ("float32", (3, 5, 700), False),
]


def check_sort(dtype: str, shape: tuple[int, ...], descending: bool) -> None:
    x = numbers(dtype, *shape)
    values, order = Tensor(x).sort(-1, descending=descending)
    want = stable_order(x, descending)
    np.testing.assert_array_equal(order.numpy(), want)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, -1))


@pytest.mark.parametrize(("dtype", "shape", "descending"), KINDS)
def test_long_rows_are_sorted(dtype: str, shape: tuple[int, ...], descending: bool) -> None:
    check_sort(dtype, shape, descending)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "shape", "descending"), MORE)
def test_all_types_are_sorted(dtype: str, shape: tuple[int, ...], descending: bool) -> None:
    check_sort(dtype, shape, descending)


@pytest.mark.parametrize(("dtype", "shape", "k", "largest"), [
    ("float32", (3, 600), 30, True), ("int32", (300,), 1, False), ("uint8", (2, 1100), 3, False),
    ("float32", (2, 300), 1, True), ("uint8", (2, 300), 8, True), ("float32", (2, 300), 5, False),
    ("float32", (2, 50), 2, True), ("int8", (60,), 1, False), ("uint8", (2, 178), 5, False),
])  # fmt: skip
def test_the_k_largest(dtype: str, shape: tuple[int, ...], k: int, largest: bool) -> None:
    """Of equal ones the first are taken. Runs of 16, in the second and third row, end with a shorter one."""
    x = numbers(dtype, *shape)
    values, order = Tensor(x).topk(k, largest=largest)
    want = stable_order(x, largest)[..., :k]
    np.testing.assert_array_equal(order.numpy(), want)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, -1))


def test_the_largest_alone_is_one_pass() -> None:
    """Not one for every few bits of it."""
    rows = Tensor(numbers("float32", 3, 600)).realize()
    assert len(rows.topk(1).values.plan().kernels) < len(rows.topk(30).values.plan().kernels) / 2


def test_a_few_of_short_rows_take_no_pairs(device: str) -> None:
    """A processor compares all elements with the largest so far, not with each other."""
    rows = [Tensor(numbers("float32", 4, n)).realize() for n in (60, 120)]
    asts = [[item.ast for item in schedule([x.topk(2).indices.uop]).items] for x in rows]
    few, more = (sum(work(loops_of(ast), OpCosts()) for ast in some) for some in asts)
    assert device != "CPU" or more < 3 * few


@pytest.mark.slow
def test_the_k_largest_of_wide_numbers_along_the_first_axis() -> None:
    x = numbers("int64", 300, 2)
    found = Tensor(x).topk(4, dim=0).indices.numpy()
    np.testing.assert_array_equal(found.T, stable_order(x.T, True)[:, :4])


@pytest.mark.parametrize("shape", [(272,), (3, 40), (40, 3)])
def test_a_running_sum_without_its_last_term_needs_its_input(shape: tuple[int, ...]) -> None:
    """The result does not depend on what a step reads: it must not take its place before it is read."""
    x = Tensor(np.ones(shape, np.int32)).realize()
    kept = (x * 3).contiguous()
    found = (kept.cumsum(0, dtype="int32") - kept).contiguous().flip(0) * 2
    want = (np.cumsum(np.full(shape, 3), 0) - 3)[::-1] * 2
    np.testing.assert_array_equal(found.numpy(), want)
    x.assign(x.cumsum(0, dtype="int32") - x)
    np.testing.assert_array_equal(x.realize().numpy(), np.cumsum(np.ones(shape), 0) - 1)
