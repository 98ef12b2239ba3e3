"""Rows that are added in places known when it runs: threads share the places. Against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from morok import Tensor
from morok.ir.node import UOp
from morok.optimize.actions.partition import MOST
from morok.optimize.actions.table import can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt, applied
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST
from tests.optimize.plans import an_h200, empty, planned


def scatters(result: Tensor) -> list[UOp]:
    """The kernels that put rows in places, with their plans."""
    found = [optimize(item.ast, HOST) for item in schedule([result.uop]).items]
    return [ast for ast in found if any(opt.name == "PARTITION" for opt in applied(ast))]


@pytest.mark.parametrize(("count", "rows", "width"), [(300, 40, 24), (64, 50, 1), (1000, 33, 8)])
def test_gradient_of_an_embedding(count: int, rows: int, width: int) -> None:
    """Many tokens meet in a row; each is added once, in order."""
    random = np.random.default_rng(count)
    where = random.integers(0, rows, count)
    slopes = random.normal(size=(count, width)).astype(np.float32)
    table = Tensor(np.zeros((rows, width), np.float32), device=DEVICE)
    (got,) = table[Tensor(where, device=DEVICE)].gradient(table, gradient=Tensor(slopes, device=DEVICE))
    assert len(scatters(got)) == 1
    want = np.zeros((rows, width))
    np.add.at(want, where, slopes.astype(np.float64))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)


def test_the_order_is_that_of_the_steps() -> None:
    """Sums of floats are the same as one after the other, to the last bit."""
    random = np.random.default_rng(3)
    where = random.integers(0, 35, 256) % 7
    slopes = (random.normal(size=(256, 4)) * 10.0 ** random.integers(-4, 5, (256, 4))).astype(np.float32)
    table = Tensor(np.zeros((35, 4), np.float32), device=DEVICE)
    (got,) = table[Tensor(where, device=DEVICE)].gradient(table, gradient=Tensor(slopes, device=DEVICE))
    assert len(scatters(got)) == 1
    want = np.zeros((35, 4), np.float32)
    for place, slope in zip(where, slopes, strict=True):
        want[place] += slope
    np.testing.assert_array_equal(got.numpy(), want)


def test_the_last_one_stays() -> None:
    where = np.arange(512) * 7 % 40
    x = Tensor(np.zeros((40, 3), np.float32), device=DEVICE)
    rows = np.arange(512 * 3, dtype=np.float32).reshape(512, 3)
    got = x.scatter(0, Tensor(np.repeat(where[:, None], 3, 1), device=DEVICE), Tensor(rows, device=DEVICE))
    want = np.zeros((40, 3), np.float32)
    for place, row in zip(where, rows, strict=True):
        want[place] = row
    np.testing.assert_array_equal(got.numpy(), want)


def test_what_is_refused() -> None:
    table, where = Tensor.empty(99, 8, device=DEVICE), Tensor.empty(64, dtype="int32", device=DEVICE)
    (got,) = table[where].gradient(table, gradient=Tensor.empty(64, 8, device=DEVICE))
    kernels = [item.ast for item in schedule([got.uop]).items]
    ast = next(k for k in kernels if can(k, Opt("PARTITION", 0, 4), HOST) is None)
    assert can(ast, Opt("PARTITION", 9, 4), HOST) == "there is no loop 9"
    assert "none whose steps" in str(can(ast, Opt("PARTITION", 1, 4), HOST))
    assert "so many threads" in str(can(ast, Opt("PARTITION", 0, 1), HOST))
    running = schedule([Tensor.empty(64, 64, device=DEVICE).cumsum(0).uop]).items[0].ast
    assert "none whose steps" in str(can(running, Opt("PARTITION", 0, 4), HOST)) or "no loop" in str(
        can(running, Opt("PARTITION", 0, 4), HOST)
    )


def test_single_numbers_are_shared_by_as_many_as_may() -> None:
    """More threads than there may be were asked for, so one did it all."""
    with an_h200() as machine:
        y = empty(1000, dtype="float32").scatter_add(
            0, empty(1 << 20, dtype="int64"), empty(1 << 20, dtype="float32")
        )
        kernels = planned([y.uop], machine)
    assert [o.amount for k in kernels for o in applied(k.ast) if o.name == "PARTITION"] == [MOST]


def test_one_row_of_a_product_is_shared_by_warps() -> None:
    """A row of 2,768 elements had 512 threads with one access each."""
    with an_h200() as machine:
        (kernel,) = planned([empty(1, 2768).linear(empty(19856, 2768)).uop], machine)
    assert [o.amount for o in applied(kernel.ast) if o.name == "GROUP"] == [machine.warp]
