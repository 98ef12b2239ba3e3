"""Rows side by side in lanes: codes of blocks are decoded where they are loaded, many rows at a time."""

from dataclasses import replace

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.vector.accumulators import accumulate
from morok.dtype import bfloat16, float32, int32
from morok.ir.build import define_global, rng
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.optimize.heuristics.cpu import choose
from morok.optimize.heuristics.gpu.choose import choose_gpu
from morok.optimize.loops import loops_of, size
from morok.tensor.elementwise.arithmetic import binary
from morok.tensor.realize import prepare
from tests.optimize.kernels import GPU, NEON, kernel_of
from tests.optimize.plans import an_h200, empty, planned


def lanes(y: Tensor) -> list[tuple[AxisKind, int | None]]:
    found = loops_of(choose(kernel_of(y.uop), replace(NEON, lane_operands=True)))
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


def test_words_of_four_codes(rows: int = 64) -> None:
    """The other factor's words are the same for all rows; sums of sums take half of the lanes."""
    words = Tensor(np.zeros((rows, 6, 8, 16), np.int32))
    x = Tensor(np.zeros((1, 6, 8, 1), np.int32))
    sums = binary(words, Ops.DOT4, x).sum(2, dtype=int32)
    found = lanes(sums.cast(float32).sum(1))
    assert (AxisKind.UPCAST, 16) in found and (AxisKind.UNROLL, 2) in found  # by lanes of the other factor
    factors = Tensor(np.zeros((rows, 3, 2, 16), np.int32))
    pairs = (sums.reshape(rows, 3, 2, 16) * factors).sum(2, dtype=int32)
    assert (AxisKind.UPCAST, 8) in lanes(pairs.cast(float32).sum(1))
    wide = choose(kernel_of(pairs.cast(float32).sum(1).uop), replace(NEON, vector_bytes=64))
    assert (AxisKind.UPCAST, 16) in [(r.arg[1], size(r)) for r in loops_of(wide).closers]  # not half a vector


def test_threads_of_a_grid_have_neighbouring_rows() -> None:
    words, x = Tensor(np.zeros((64, 32, 8, 16), np.int32)), Tensor(np.zeros((1, 32, 8, 1), np.int32))
    y = binary(words, Ops.DOT4, x).sum(2, dtype=int32).cast(float32).sum(1)
    found = loops_of(choose_gpu(kernel_of(y.uop), GPU))
    kinds = {r.arg[1]: (int(r.arg[0]), size(r)) for r in found.closers}
    assert kinds[AxisKind.UPCAST][1] == 2 and kinds[AxisKind.LOCAL][1] == 8  # two rows of a thread
    assert kinds[AxisKind.GROUP_REDUCE][1] == 16
    assert kinds[AxisKind.LOCAL][0] > kinds[AxisKind.GROUP_REDUCE][0]  # the last one is the fastest


def test_threads_share_both_loops_of_a_short_sum() -> None:
    """Blocks and pairs of groups in them: few blocks are not enough for all threads."""
    words = Tensor(np.zeros((64, 4, 2, 2, 8, 16), np.int32))
    x = Tensor(np.zeros((1, 4, 2, 2, 8, 1), np.int32))
    halves = binary(words, Ops.DOT4, x).sum(4, dtype=int32).cast(float32)
    y = (halves[:, :, 0] + halves[:, :, 1]).sum((1, 2))
    found = loops_of(choose_gpu(kernel_of(y.uop), GPU))
    assert (AxisKind.GROUP_REDUCE, 8) in {(r.arg[1], size(r)) for r in found.closers}


def test_narrow_rows_of_a_grid_are_read_by_few_threads() -> None:
    matrix = Tensor(np.zeros((4096, 1024), np.uint16)).bitcast(bfloat16)
    y = (Tensor(np.zeros((1, 1024), np.float32)) * matrix.cast(float32)).sum(1)
    found = loops_of(choose_gpu(kernel_of(y.uop), GPU))
    sizes = {(r.arg[1], size(r)) for r in found.closers}
    assert (AxisKind.GROUP_REDUCE, 32) in sizes and (AxisKind.UNROLL, 8) in sizes


def test_two_matrices_with_one_vector_are_read_as_one_is() -> None:
    """A gate and what passes it: few threads of 16 bytes each share a row of both."""
    with an_h200() as machine:
        x = empty(1, 1024, dtype="float32")
        gate, up = (x @ empty(4096, 1024).cast(float32).T for _ in range(2))
        (found,) = planned([(gate.silu() * up).uop], machine)
        sizes = {(r.arg[1], size(r)) for r in loops_of(found.ast).closers}
        assert (AxisKind.GROUP_REDUCE, 32) in sizes and (AxisKind.UNROLL, 8) in sizes


def few_rows(count: int) -> Tensor:
    """Sums of words for several rows on the left, each times a scale of its block."""
    words, scales = (
        Tensor(np.zeros((64, 1, 32, 8, 16), np.int32)),
        Tensor(np.zeros((64, 1, 32, 16), np.float32)),
    )
    x = Tensor(np.zeros((1, count, 32, 8, 1), np.int32))
    return (binary(words, Ops.DOT4, x).sum(3, dtype=int32).cast(float32) * scales).sum(2)


@pytest.mark.parametrize("count", [2, 4, 16])
def test_rows_on_the_left_share_what_is_read(count: int) -> None:
    """And nothing is kept on the way: every sum of a block is read once."""
    plan = prepare([few_rows(count)])
    assert len(plan.schedule.items) == 1
    found = loops_of(choose(plan.schedule.items[0].ast, NEON))
    kinds = [(r.arg[1], size(r)) for r in found.closers]
    assert (AxisKind.UPCAST, 2) in kinds and (AxisKind.UPCAST, 16) in kinds
    grid = loops_of(choose_gpu(plan.schedule.items[0].ast, GPU))
    assert (AxisKind.UPCAST, min(count, 4)) in [(r.arg[1], size(r)) for r in grid.closers]


@pytest.mark.parametrize("count", [6, 8])
def test_words_that_are_only_summed_serve_as_many_rows_as_registers_hold(count: int) -> None:
    """Panels of words: sums of a panel for all rows lie in registers."""
    words, x = Tensor(np.zeros((1, 64, 32, 8), np.int32)), Tensor(np.zeros((count, 1, 32, 1), np.int32))
    plan = prepare([binary(words, Ops.DOT4, x).sum(2, dtype=int32)])
    found = loops_of(choose(plan.schedule.items[0].ast, NEON))
    kinds = [(r.arg[1], size(r)) for r in found.closers]
    assert (AxisKind.UPCAST, count) in kinds and (AxisKind.UPCAST, 8) in kinds
