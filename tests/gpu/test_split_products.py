"""Products of few outputs and long sums, cut in pieces (split-K) that need not divide them, without a rest.

Values against NumPy, plans for an H200."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.optimize.facts import trips
from morok.optimize.grid import grid_loops
from tests.gpu.kernels import DEVICE
from tests.optimize.plans import an_h200, empty, planned

ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "NN": lambda a, b: a @ b,
    "NT": lambda a, b: a @ b.T,
    "TN": lambda a, b: a.T @ b,
    "computed": lambda a, b: (a + 1.0) @ b.exp(),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [1024, 1000, 1009, 600, 4104])
def test_values(order: str, steps: int, dtype: str) -> None:
    random = np.random.default_rng(steps)
    a, b = (random.normal(size=s) * 0.25 for s in ((16, steps), (steps, 16)))
    a, b = (x.astype(dtype) for x in (a, b))
    given = (a.T if order[0] == "T" else a), (b.T if order == "NT" else b)
    with knobs.override(DEVICE=DEVICE, SPLIT_REDUCE=500):
        got = ORDERS[order](*map(Tensor, given)).cast("float32").numpy()
    wide = a.astype(np.float64), b.astype(np.float64)
    want = (wide[0] + 1) @ np.exp(wide[1]) if order == "computed" else wide[0] @ wide[1]
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


def test_what_lies_beyond_the_end_is_not_multiplied() -> None:
    """Rows behind the last step are the next row of memory, which may be anything."""
    a = np.full((16, 1000), 0.5, np.float32)
    b = np.full((1000, 16), 2.0, np.float32)
    a[1:, 0] = np.inf
    with knobs.override(DEVICE=DEVICE, SPLIT_REDUCE=500):
        got = (Tensor(a) @ Tensor(b)).numpy()
    assert (got[0] == 1000).all() and np.isposinf(got[1:]).all()


@pytest.mark.parametrize(
    ("rows", "steps", "columns", "dtype"),
    [
        (256, 69392, 232, "float16"), (256, 65536, 256, "float16"), (64, 30016, 64, "bfloat16"),
        (232, 48008, 256, "bfloat16"), (8, 70000, 512, "float16"), (512, 20008, 128, "float16"),
        (256, 69392, 232, "float32"), (128, 40004, 128, "float32"), (256, 69401, 232, "float32"),
        (96, 33344, 104, "bfloat16"), (1024, 20000, 16, "float16"),
    ],
)  # fmt: skip
def test_pieces_and_their_sum_are_two_kernels(rows: int, steps: int, columns: int, dtype: str) -> None:
    """Whatever the length; on a unit where there is one, and fed by the engine that copies tiles."""
    with an_h200() as machine:
        a, b = empty(rows, steps, dtype=dtype), empty(steps, columns, dtype=dtype)
        found = planned([(a @ b).uop], machine)
        assert len(found) == 2 and found[0].is_tiled and not found[1].is_product
        assert found[0].on_unit == (dtype != "float32")
        if min(rows, columns) >= 128 and dtype != "float32":
            assert "WARP_SPECIALIZE" in found[0].names


@pytest.mark.parametrize(
    ("rows", "steps", "columns"),
    [(344, 94016, 256), (256, 64 * 1021, 128), (384, 64 * 1021, 256), (128, 64 * 997, 640)],
)
def test_nearly_all_multiprocessors_have_a_block(rows: int, steps: int, columns: int) -> None:
    """Also where the number of steps has no such divisor: 94,016 are 13 times 113 tiles of 64."""
    with an_h200() as machine:
        found = planned([(empty(rows, steps) @ empty(steps, columns)).uop], machine)
    product = next(p for p in found if p.is_product)
    blocks = math.prod(map(trips, grid_loops(product.ast)))
    waves = -(-blocks // machine.cores)
    assert blocks >= 0.9 * waves * machine.cores
