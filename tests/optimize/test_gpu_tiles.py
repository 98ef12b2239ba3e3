"""Tiles on an H200 without one: who multiplies by itself, and which images the copy engine walks through."""

from __future__ import annotations

import math

import pytest

from morok.ir.ops import AxisKind
from morok.optimize.loops import loops_of, size
from tests.optimize.plans import Planned, an_h200, empty, planned


def threads_and_sums(found: Planned) -> tuple[int, int]:
    """Threads of a block, and sums of each."""
    loops = loops_of(found.ast).closers
    many = {k: math.prod(size(r) or 1 for r in loops if r.arg[1] is k) for k in AxisKind}
    return many[AxisKind.LOCAL], many[AxisKind.UPCAST]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "steps"), [(4096, 4096, 4096), (10944, 3072, 768), (10944, 50257, 768)]
)
def test_products_in_float32_have_few_threads_with_many_sums(
    rows: int, columns: int, steps: int, turned: bool
) -> None:
    with an_h200() as machine:
        x = empty(rows, steps, dtype="float32")
        w = empty(columns, steps, dtype="float32").T if turned else empty(steps, columns, dtype="float32")
        *copies, found = planned([(x @ w).uop], machine)
        threads, sums = threads_and_sums(found)
        worth = turned and columns % 4 == 0  # else no vector of them can be read
        assert len(copies) == worth and found.is_tiled and threads <= 128 and sums == 128


def test_where_tiles_are_few_all_schedulers_have_threads() -> None:
    with an_h200() as machine:
        x, w = empty(128, 1024, dtype="float32"), empty(4096, 1024, dtype="float32")
        product = max(planned([(x @ w.T).uop], machine), key=lambda p: p.steps)
        threads, sums = threads_and_sums(product)
        blocks = 128 * 4096 // (threads * sums)
        assert product.is_tiled and blocks * threads >= 4 * machine.warp * machine.cores


@pytest.mark.parametrize("side", [14, 16, 32, 56, 64, 78, 80, 112, 128])
@pytest.mark.parametrize("channels", [64, 152])
def test_the_engine_walks_through_images_of_any_width(side: int, channels: int) -> None:
    with an_h200() as machine:
        x = empty(32, channels, side, side, dtype="float16")
        w = empty(128, channels, 3, 3, dtype="float16")
        product = max(planned([x.conv2d(w, padding=1).uop], machine), key=lambda p: p.steps)
        assert "WARP_SPECIALIZE" in product.names
