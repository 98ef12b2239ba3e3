"""Loops that workers share: what lies before such a loop is computed in each call, so calls are few."""

from __future__ import annotations

import re

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.codegen.pipeline import lower
from morok.device.registry import get_device
from morok.optimize.heuristics.apply import optimize
from morok.render.llvm.kernel import render
from morok.render.llvm.shared import before_and_inside
from morok.schedule.schedule import schedule


def empty(*sizes: int) -> Tensor:
    return Tensor.empty(*sizes, device="CPU")


def texts(value: Tensor, cores: int) -> list[str]:
    with knobs.override(DEVICE="CPU", MACHINE="avx512", THREADS=cores):
        machine = get_device("CPU").machine
        found = [lower(optimize(i.ast, machine), machine) for i in schedule([value.uop]).items]
        return [render(linear, "kernel", fused=machine.fma, cores=cores).text for linear in found]


def extent(text: str) -> int:
    found = re.search(r"kernel\.extent\(ptr %args\) #\d \{\nentry:\n  ret i64 (\d+)", text)
    assert found is not None
    return int(found[1])


def test_a_sum_that_all_need_is_computed_once_by_each_worker() -> None:
    x = empty(1 << 16)
    (text,) = texts(x / x.sum(), 8)
    assert extent(text) == 8


def test_without_it_every_iteration_can_be_taken() -> None:
    (text,) = texts(empty(1 << 20) + 1, 8)
    assert extent(text) > 8 * 8


def test_a_short_one_leaves_the_pieces() -> None:
    """A sum of 64 numbers before a loop over a million is nothing."""
    (text,) = texts(empty(1 << 20) / empty(64).sum(), 2)
    assert extent(text) > 2 * 8


def test_what_runs_before_the_loop_is_counted() -> None:
    x = empty(1 << 16)
    with knobs.override(DEVICE="CPU", MACHINE="avx512", THREADS=8):
        machine = get_device("CPU").machine
        (item,) = schedule([(x / x.sum()).uop]).items
        before, inside = before_and_inside(lower(optimize(item.ast, machine), machine).src)
    assert 0.2 < before / inside < 5


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_sizes_below_the_number_of_workers(threads: int) -> None:
    n = Variable("n", 1, 40000)
    values = np.random.default_rng(0).random(40000, np.float32) + 0.5
    with knobs.override(THREADS=threads):
        x = Tensor(values, device="CPU")
        f = jit(lambda x, n: x[:n] / x[:n].sum())
        for count in (1, 2, 3, 15, 16, 17, 40000):
            got = f(x, n.bind(count)).numpy()
            np.testing.assert_allclose(got, values[:count] / values[:count].sum(dtype=np.float64), rtol=2e-5)


def test_rows_that_pass_by_sums_in_the_cache_are_added_as_they_lie() -> None:
    """Lanes of one row are never put beside lanes of another."""
    first, _ = texts(empty(1848, 592).sum(0), 8)
    assert "<16 x float>" in first
    assert "extractelement" not in first and "insertelement" not in first
