"""Sums of rows beside a tile of a product, as in a layer norm before a linear layer: lanes stay where they
are loaded."""

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.heuristics.cpu import choose
from morok.optimize.loops import loops_of
from tests.optimize.kernels import NEON, kernel_of

ROWS, WIDTH, COLUMNS = 32, 192, 384


def normed(rows: int = ROWS) -> UOp:
    x, w = Tensor(np.zeros((rows, WIDTH), np.float32)), Tensor(np.zeros((WIDTH, COLUMNS), np.float32))
    return kernel_of((x.layer_norm() @ w).uop)


def moved_in_sums(ast: UOp, machine: Machine) -> list[UOp]:
    """Lanes that are taken apart or put together in the innermost loops that only add and load."""
    found: list[UOp] = []
    body: list[UOp] = []
    for node in lower(choose(ast, machine), machine).src:
        if node.op is Ops.RANGE:
            body = []
        elif node.op is Ops.END:
            if not any(n.op is Ops.STORE and _is_memory(n.src[0]) for n in body):
                found += body
            body = []
        else:
            body.append(node)
    return [n for n in found if n.op in (Ops.VECTORIZE, Ops.GEP) and n.dtype.is_float]


def _is_memory(address: UOp) -> bool:
    while address.src:
        address = address.src[0]
    return address.op is not Ops.DEFINE_REG


def test_sums_of_a_tiles_rows_move_no_lanes() -> None:
    # 8 of 12 columns times 8 rows are products with elements that are spread
    assert len(moved_in_sums(normed(), NEON)) <= 16


@pytest.mark.parametrize("rows", [8, 13, ROWS])
def test_they_are_right(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.normal(3, 2, (rows, WIDTH)).astype(np.float32)
    w = rng.normal(0, 1, (WIDTH, COLUMNS)).astype(np.float32)
    wide = x.astype(np.float64)
    unit = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    got = (Tensor(x).layer_norm(eps=1e-5) @ Tensor(w)).numpy()
    np.testing.assert_allclose(got, unit @ w, rtol=1e-4, atol=1e-4)


def scaled_sums() -> UOp:
    """Sums along memory, of what is scaled by numbers of each row: those lie side by side too."""
    x, y = (Tensor(np.zeros((512, 49), np.float32)) for _ in range(2))
    a, b, c, d = (Tensor(np.ones((512, 1), np.float32)) for _ in range(4))
    return kernel_of(((x - a) / b.sqrt() * c + d + y).relu().sum(1).uop)


def test_what_a_sum_does_not_walk_along_has_no_say() -> None:
    found = [r for r in loops_of(choose(scaled_sums(), NEON)).closers if r.arg[1] is AxisKind.UNROLL]
    assert [r.arg[1] for r in found] == [AxisKind.UNROLL]
    assert len(lower(choose(scaled_sums(), NEON), NEON).src) < 400


@pytest.mark.parametrize("shape", [(16, 1024), (64, 12, 64)])
def test_short_sums_across_memory_move_no_lanes(shape: tuple[int, ...]) -> None:
    ast = kernel_of(Tensor(np.zeros(shape, np.float32)).sum(-2).uop)
    instructions = lower(choose(ast, NEON), NEON).src
    assert not [n for n in instructions if n.op in (Ops.VECTORIZE, Ops.GEP, Ops.CAT)]
