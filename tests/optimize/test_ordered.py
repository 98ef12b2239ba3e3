"""Loops whose steps must follow each other: no action splits them over lanes or threads, or reorders them."""

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.interpreter import run_kernel
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply, can
from morok.optimize.heuristics.cpu import choose
from tests.optimize.kernels import AVX512, NEON
from tests.optimize.test_actions import candidates

ROWS, UPDATES, WIDTH = 5, 24, 16
RNG = np.random.default_rng(0)
PLACES = RNG.integers(0, ROWS, (2, UPDATES // 2))
VALUES = RNG.standard_normal((2, UPDATES // 2, WIDTH)).astype(np.float32)


def scatter_kernel() -> UOp:
    """Rows added to rows in an order that float addition shows."""
    with knobs.override(DEVICE="PYTHON"):
        t = Tensor.zeros(ROWS, WIDTH).index_add(0, Tensor(PLACES), Tensor(VALUES))
        return t.plan().schedule.items[-1].ast


def result(ast: UOp) -> np.ndarray:
    out = np.zeros(ROWS * WIDTH, np.float32)
    run_kernel(ast, [out, PLACES.reshape(-1), VALUES.reshape(-1)])
    return out.reshape(ROWS, WIDTH)


WANTED = np.zeros((ROWS, WIDTH), np.float32)
np.add.at(WANTED, PLACES.reshape(-1), VALUES.reshape(-1, WIDTH))


def ordered(ast: UOp) -> list[UOp]:
    return [n for n in toposort(ast) if n.op is Ops.RANGE and n.arg[1] is AxisKind.ORDERED]


@pytest.mark.parametrize("host", [NEON, AVX512], ids=["neon", "avx512"])
def test_no_action_touches_an_ordered_loop(host: Machine) -> None:
    ast = scatter_kernel()
    np.testing.assert_array_equal(result(ast), WANTED)
    steps = ordered(ast)
    assert len(steps) == 1 and steps[0].src[0].arg == UPDATES
    number = steps[0].arg[0]
    allowed = [opt for opt in candidates(ast) if can(ast, opt, host) is None]
    assert allowed, "the loop over a row may be cut"
    for opt in allowed:
        assert opt.axis != number or opt.name == "SWAP", opt
        assert [r.src[0].arg for r in ordered(apply(ast, opt, host))] == [UPDATES], opt


@pytest.mark.parametrize("host", [NEON, AVX512, Machine(cores=4)], ids=["neon", "avx512", "threads"])
def test_the_heuristics_cut_the_rows(host: Machine) -> None:
    best = choose(scatter_kernel(), host)
    assert [r.src[0].arg for r in ordered(best)] == [UPDATES]


def test_two_ordered_loops_keep_their_order() -> None:
    """Values that lie the other way round in memory: the two loops cannot become one."""
    transposed = VALUES.transpose(1, 0, 2)
    wanted = np.zeros((ROWS, WIDTH), np.float32)
    for i, j in np.ndindex(UPDATES // 2, 2):
        wanted[PLACES.T[i, j]] = transposed[i, j]
    for where in ("PYTHON", "CPU"):
        with knobs.override(DEVICE=where):
            values = Tensor(VALUES).transpose(0, 1)
            t = Tensor.zeros(ROWS, WIDTH).index_copy(0, Tensor(np.ascontiguousarray(PLACES.T)), values)
            ast = t.plan().schedule.items[-1].ast
            np.testing.assert_array_equal(t.numpy(), wanted)
    assert [r.src[0].arg for r in sorted(ordered(ast), key=lambda r: r.arg)] == [UPDATES // 2, 2]
    swaps = [opt for opt in candidates(ast) if opt.name == "SWAP"]
    assert swaps and all("keep their order" in (can(ast, opt, NEON) or "") for opt in swaps)
