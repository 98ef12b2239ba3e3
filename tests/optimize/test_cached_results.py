"""What is made of the sums of a register tile: a loop over the rows of the tile, out of the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of, size
from morok.optimize.record import Opt, applied
from tests.optimize.kernels import AVX512, GPU, NEON, buffers_of, interpret, kernel_of, native, same
from tests.schedule import graphs as g


def clipped(rows: int, steps: int, columns: int) -> UOp:
    """(a·b / 2 + 1, not below 0, not above 6)²."""
    product = g.matmul(g.tensor(rows, steps), g.tensor(steps, columns))
    y = g.relu(g.add(g.mul(product, 0.5), 1.0))
    y = g.call(Ops.MIN, y, g.scalar(y, 6.0))
    return kernel_of(g.mul(y, y))


def by_numpy(ast: UOp, rows: int, steps: int, columns: int) -> Any:
    """The same out of the memory that tests give to a kernel."""
    _, *inputs = (x.astype(np.float64) for x in buffers_of(ast))
    a, b = (next(x for x in inputs if x.size == n) for n in (rows * steps, steps * columns))
    return np.clip(a.reshape(rows, steps) @ b.reshape(steps, columns) / 2 + 1, 0, 6) ** 2


def names(ast: UOp) -> list[str]:
    return [opt.name for opt in applied(ast)]


def results(ast: UOp) -> list[UOp]:
    return [n for n in toposort(ast) if n.op is Ops.BUFFERIZE and n.arg[0] == "result"]


SHAPES = [(96, 300, 64), (61, 300, 203), (30, 260, 49), (7, 512, 40)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_answer_is_that_of_numpy(shape: tuple[int, int, int]) -> None:
    plain = clipped(*shape)
    wanted = by_numpy(plain, *shape)
    for host in (NEON, AVX512):
        ast = optimize(plain, host)
        same([interpret(ast)[0].reshape(wanted.shape)], [wanted], 1e-3)
    same([native(optimize(plain, NEON))[0].reshape(wanted.shape)], [wanted], 1e-3)


def test_the_code_after_a_sum_is_that_of_a_row() -> None:
    ast = optimize(clipped(96, 512, 96), NEON)
    (kept,) = results(ast)
    height, width = (size(r) for r in kept.src[1:])
    walked = {r.arg[1]: size(r) for r in closed_ranges(ast.src[0]) if r.arg[1] is AxisKind.UPCAST}
    assert walked == {AxisKind.UPCAST: width}  # and no longer the rows
    assert height in [size(r) for r in closed_ranges(ast.src[0]) if r.arg[1] is AxisKind.LOOP]


def test_functions_are_evaluated_of_several_rows_at_a_time() -> None:
    """One vector would wait for itself: a chain has gaps."""
    ast = optimize(kernel_of(g.exp(g.matmul(g.tensor(96, 512), g.tensor(512, 64)))), NEON)
    opt = next(o for o in applied(ast) if o.name == "CACHE_RESULT")
    assert opt.amount > 1


@pytest.mark.parametrize("steps", [8, 512])
def test_sums_that_are_only_written_stay_in_registers(steps: int) -> None:
    for made in (lambda x: x, g.relu):
        product = g.matmul(g.tensor(96, steps), g.tensor(steps, 64))
        assert "CACHE_RESULT" not in names(optimize(kernel_of(made(product)), NEON))


def test_few_steps_are_not_worth_a_way_through_the_cache() -> None:
    assert "CACHE_RESULT" not in names(optimize(clipped(96, 16, 64), NEON))


def test_threads_share_the_panels_of_a_product_whose_rest_has_a_result_of_its_own() -> None:
    """What is kept for the columns that are left over is not filled again by the threads of all others."""
    ast = optimize(clipped(128, 300, 388), NEON)
    assert len(results(ast)) == 2
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    panels = [n for n in toposort(ast.src[0]) if n.op is Ops.BUFFERIZE and n.arg[0] == "local"]
    assert panels and all(thread in ranges(panel) for panel in panels)


@pytest.mark.parametrize(
    ("host", "opt", "why"),
    [
        (GPU, Opt("CACHE_RESULT", -1, 1, (3, 4)), "memory that they share"),
        (NEON, Opt("CACHE_RESULT", -1, 1, (3,)), "rows and columns"),
        (NEON, Opt("CACHE_RESULT", -1, 1, (3, 9)), "no loop 9"),
        (NEON, Opt("CACHE_RESULT", -1, 1, (0, 4)), "no part of a tile"),
        (NEON, Opt("CACHE_RESULT", -1, 3, (3, 4)), "not walked 3 at a time"),
        (NEON, Opt("CACHE_RESULT", -1, 4, (3, 4)), "not walked 4 at a time"),
    ],
)
def test_refusals(host: Machine, opt: Opt, why: str) -> None:
    tile = apply_all(clipped(96, 512, 64), [Opt("UPCAST", 0, 4), Opt("UPCAST", 1, 8)], NEON)
    assert why in (can(tile, opt, host) or "")
    assert can(tile, Opt("CACHE_RESULT", -1, 2, (3, 4)), NEON) is None
