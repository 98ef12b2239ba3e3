"""Rows side by side in lanes: codes of blocks are decoded where they are loaded, many rows at a time."""

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.vector.accumulators import accumulate
from morok.dtype import float32
from morok.ir.build import define_global, rng
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.optimize.heuristics.cpu import choose
from morok.optimize.loops import loops_of, size
from tests.optimize.kernels import NEON, kernel_of


def lanes(y: Tensor) -> list[tuple[AxisKind, int | None]]:
    found = loops_of(choose(kernel_of(y.uop), NEON))
    return [(r.arg[1], size(r)) for r in found.closers if r.arg[1] in (AxisKind.UPCAST, AxisKind.UNROLL)]


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_are_lanes_and_steps_are_not(rows: int) -> None:
    codes = Tensor(np.zeros((64, 96, 16), np.uint8))
    x = Tensor(np.zeros((rows, 1, 96, 1), np.float32))
    low, high = (codes & 15).cast(float32), (codes >> 4).cast(float32)
    found = lanes((x * low + x * x * high).sum(2))
    assert (AxisKind.UPCAST, 16) in found and all(kind is not AxisKind.UNROLL for kind, _ in found)
    assert rows == 1 or (AxisKind.UPCAST, rows) in found  # what was decoded serves them all


def test_other_products_are_not_touched() -> None:
    matrix, x = Tensor(np.zeros((64, 96), np.uint8)), Tensor(np.zeros((1, 96), np.float32))
    assert (AxisKind.UPCAST, 16) not in lanes((x * matrix.cast(float32)).sum(1))


def test_sums_of_products_are_added_one_by_one() -> None:
    a, b, c, d, total = (alu(Ops.ADD, const(float32, float(i)), make_value(i)) for i in range(5))
    found = accumulate(Ops.ADD, total, alu(Ops.ADD, alu(Ops.MUL, a, b), alu(Ops.MUL, c, d)), True)
    assert found.op is Ops.MULACC and found.src[2].op is Ops.MULACC and found.src[2].src[2] is total
    plain = alu(Ops.ADD, alu(Ops.MUL, a, b), c)
    assert accumulate(Ops.ADD, total, plain, True) is alu(Ops.ADD, total, plain)


def make_value(i: int) -> UOp:
    return make(Ops.INDEX, float32, (define_global(float32, 8, i), rng(8, 0)))
