"""Rows that are multiplied in places known when it runs: threads share the places. Against NumPy."""

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


@pytest.mark.parametrize(("count", "rows", "width"), [(100, 40, 6), (64, 50, 1)])
def test_products(count: int, rows: int, width: int) -> None:
    """Of floats the order counts: each is multiplied once, in the order of the steps, to the last bit."""
    random = np.random.default_rng(count)
    where = random.integers(0, rows, count)
    factors = random.normal(1.0, 0.1, (count, width)).astype(np.float32)
    places = Tensor(np.repeat(where[:, None], width, 1), device=DEVICE)
    got = Tensor.ones(rows, width, device=DEVICE).scatter(0, places, Tensor(factors, device=DEVICE), "prod")
    assert len(scatters(got)) == 1
    want = np.ones((rows, width), np.float32)
    for place, factor in zip(where, factors, strict=True):
        want[place] *= factor
    np.testing.assert_array_equal(got.numpy(), want)


def test_what_is_refused() -> None:
    table, where = Tensor.empty(99, device=DEVICE), Tensor.empty(64, dtype="int32", device=DEVICE)
    got = table.scatter(0, where, Tensor.empty(64, device=DEVICE), "prod")
    kernels = [item.ast for item in schedule([got.uop]).items]
    ast = next(k for k in kernels if can(k, Opt("PARTITION", 0, 4), HOST) is None)
    assert can(ast, Opt("PARTITION", 9, 4), HOST) == "there is no loop 9"
    assert "counts" in str(can(ast, Opt("ATOMIC", 0), HOST))
    assert "so many threads" in str(can(ast, Opt("PARTITION", 0, 1), HOST))
    running = schedule([Tensor.empty(64, 64, device=DEVICE).cumsum(0).uop]).items[0].ast
    assert "none whose steps" in str(can(running, Opt("PARTITION", 0, 4), HOST)) or "no loop" in str(
        can(running, Opt("PARTITION", 0, 4), HOST)
    )


def test_single_numbers_are_shared_by_as_many_as_may() -> None:
    """More threads than there may be were asked for, so one did it all."""
    with an_h200() as machine:
        y = empty(1000, dtype="float32").scatter(
            0, empty(1 << 20, dtype="int64"), empty(1 << 20, dtype="float32"), "prod"
        )
        kernels = planned([y.uop], machine)
    assert [o.amount for k in kernels for o in applied(k.ast) if o.name == "PARTITION"] == [MOST]


def test_one_row_of_a_product_is_shared_by_warps() -> None:
    """A row of 2,768 elements had 512 threads with one access each."""
    with an_h200() as machine:
        (kernel,) = planned([empty(1, 2768).linear(empty(19856, 2768)).uop], machine)
    assert [o.amount for o in applied(kernel.ast) if o.name == "GROUP"] == [machine.warp]
