"""Small windows: convolutions of few channels, or of each channel for itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morok import Tensor
from morok.device.cpu.device import program_of
from morok.ir import movement
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.schedule.schedule import schedule
from tests.optimize.kernels import AVX512, NEON, interpret, kernel_of, native, same
from tests.schedule import graphs as g


def depthwise(channels: int, height: int, width: int, k: int, stride: int = 1) -> UOp:
    """(1, c, h, w) * (c, k, k): each channel for itself."""
    view = g.windows(g.tensor(1, channels, height, width), k, stride)
    weights = movement.reshape(g.tensor(channels, k, k), (1, channels, 1, 1, k, k))
    return kernel_of(g.total(g.mul(view, weights), 4, 5))


@pytest.mark.parametrize("k", [5, 7])
def test_a_window_is_summed_along_its_outputs(k: int) -> None:
    """Five elements fill a vector and one more, but then every output ends with a sum across lanes."""
    ast = optimize(depthwise(6, 12, 48 + k - 1, k), NEON)
    (reduce,) = (n for n in toposort(ast) if n.op is Ops.REDUCE)
    kinds = {r.arg[1]: size(r) for r in loops_of(ast).by_number.values()}
    assert (kinds[AxisKind.UPCAST] or 0) % 4 == 0 and kinds[AxisKind.UNROLL] == k
    assert len(closed_ranges(reduce)) >= 1


@pytest.mark.parametrize(("width", "k", "stride"), [(59, 5, 2), (17, 5, 2), (11, 5, 1), (103, 7, 2)])
def test_strided_and_narrow_windows_are_vectors_along_their_outputs(width: int, k: int, stride: int) -> None:
    """5x5 windows of stride 2 ran element by element."""
    cut = optimize(depthwise(6, 12, width, k, stride), AVX512)
    kinds = {r.arg[1]: size(r) for r in loops_of(cut).by_number.values()}
    assert (kinds.get(AxisKind.UPCAST) or 0) % 16 == 0 and kinds[AxisKind.UPCAST]


@pytest.mark.parametrize(("height", "width"), [(18, 18), (12, 20), (12, 12)])
def test_narrow_windows_are_taken_in_rows(height: int, width: int) -> None:
    """A row of seven or fourteen outputs is one vector, and its sum of 25 steps waited for itself."""
    cut = optimize(depthwise(6, height, width, 5), AVX512)
    rows = [opt for opt in applied(cut) if opt.name == "UPCAST"]
    assert len(rows) == 2 and min(opt.amount for opt in rows) in (2, 4)


@pytest.mark.parametrize(
    ("height", "width", "k", "stride"),
    [(9, 13, 5, 1), (8, 21, 7, 1), (11, 23, 5, 2), (5, 9, 5, 1), (12, 18, 5, 1), (8, 12, 5, 1)],
)
def test_windows_keep_the_answer(height: int, width: int, k: int, stride: int) -> None:
    ast = depthwise(3, height, width, k, stride)
    for machine in (NEON, AVX512):
        same(interpret(optimize(ast, machine)), interpret(ast))
    same(native(optimize(ast, NEON)), interpret(ast))


@pytest.mark.parametrize(("channels", "outputs"), [(3, 8), (3, 12), (8, 4), (2, 3)])
def test_few_channels_of_a_strided_convolution_are_packed(channels: int, outputs: int) -> None:
    """Columns that lie apart are gathered once, not for each of the rows."""
    ast = kernel_of(g.conv(g.tensor(1, channels, 25, 35), g.tensor(outputs, channels, 3, 3), 2))
    cut = optimize(ast, NEON)
    assert "PACK" in [opt.name for opt in applied(cut)]
    for machine in (NEON, AVX512):
        same(interpret(optimize(ast, machine)), interpret(ast))
    same(native(cut), interpret(ast))


@pytest.mark.parametrize(("width", "k"), [(56, 3), (28, 3), (14, 5), (21, 3)])
def test_a_padded_image_is_copied_in_whole_vectors(width: int, k: int) -> None:
    """Where memory takes masks: rows of 58 elements have no divisor, and were copied one by one."""
    image = movement.pad(g.tensor(1, 16, width, width), ((0, 0), (0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    weights = movement.reshape(g.tensor(16, k, k), (1, 16, 1, 1, k, k))
    ast = kernel_of(g.total(g.mul(g.windows(image, k, 1), weights), 4, 5))
    cut = optimize(ast, AVX512)
    halo = next(opt for opt in applied(cut) if opt.name == "HALO")
    assert halo.amount == 16
    copies = [n for n in toposort(cut) if n.op is Ops.BUFFERIZE]
    assert copies and all(
        n.src[-1].arg[1] is AxisKind.UPCAST and (size(n.src[-1]) or 0) % 16 == 0 for n in copies
    )
    same(interpret(cut), interpret(ast))
    assert all(opt.amount == 0 for opt in applied(optimize(ast, NEON)) if opt.name == "HALO")


@pytest.mark.parametrize("columns", [108, 60, 24, 21])
def test_what_is_left_over_is_a_vector_with_a_mask(columns: int) -> None:
    """Of 108 elements 12 are left over by vectors of 16: one by one they took longer than all others."""
    for ast in (
        kernel_of(g.softmax(g.tensor(64, columns))),
        kernel_of(g.relu(g.add(g.tensor(64, columns), g.tensor(columns)))),
        kernel_of(g.total(g.tensor(64, columns), 1)),
    ):
        cut = optimize(ast, AVX512)
        loops = loops_of(cut).by_number.values()
        lanes = [size(r) or 0 for r in loops if r.arg[1] in (AxisKind.UPCAST, AxisKind.UNROLL)]
        assert lanes and all(n % 16 == 0 for n in lanes), lanes
        plain = [size(r) or 0 for r in loops if r.arg[1] in (AxisKind.LOOP, AxisKind.REDUCE)]
        assert all(n <= -(-columns // 16) or n == 64 for n in plain), plain  # steps of vectors, rows
        same(interpret(cut), interpret(ast))


def test_a_written_out_window_is_added_with_one_rounding() -> None:
    """Products of lanes, one after the other: as products and sums apart they were twice as many."""
    for machine in (NEON, AVX512):
        fused = replace(machine, fma=True)
        text = program_of(depthwise(6, 12, 50, 3), fused, optimize).text
        assert "@llvm.fma" in text and "fmul" in text and "fadd" not in text


@pytest.mark.parametrize(
    ("machine", "width", "rows", "joined"),
    [(AVX512, 112, 16, False), (AVX512, 28, 128, False), (AVX512, 14, 256, False), (AVX512, 7, 512, True),
     (NEON, 28, 128, True), (NEON, 14, 256, True), (NEON, 14, 8, False)],
)  # fmt: skip
def test_rows_of_strided_windows_stay_vectors(machine: Machine, width: int, rows: int, joined: bool) -> None:
    """Joined with the next row, each of its elements is gathered by itself, which takes longer than a tile
    that is not full unless there are many rows. Windows that move by one are vectors in either case."""
    ast = kernel_of(g.conv(g.tensor(1, 8, 2 * width + 1, 2 * width + 1), g.tensor(rows, 8, 3, 3), 2))
    assert any(o.name == "JOIN" and o.axis == 1 for o in applied(optimize(ast, machine))) is joined
    if rows * width < 1000:
        same(interpret(optimize(ast, machine)), interpret(ast))


@pytest.mark.parametrize("count", [6401, 40, 33])
def test_rows_that_are_interleaved_are_vectors(count: int) -> None:
    """What a transposed convolution ends with: as many loads as elements, and as many stores."""
    ast = kernel_of(g.contiguous(g.relu(g.transpose(g.tensor(2, count), 1, 0))))
    for machine in (NEON, AVX512):
        cut = optimize(ast, machine)
        names = [opt.name for opt in applied(cut)]
        assert names.count("UPCAST") >= 2, names
        if count < 100:
            same(interpret(cut), interpret(ast))
    if count < 100:
        same(native(optimize(ast, NEON)), interpret(ast))


def test_rows_of_a_small_window_are_joined() -> None:
    """The gradients of 3 × 3 weights are three columns of a product, less than a vector."""
    shapes = (64, 16, 8, 8), (32, 16, 3, 3), (64, 32, 8, 8)
    x, w, above = (Tensor(np.zeros(shape, np.float32)) for shape in shapes)
    (found,) = x.conv2d(w, padding=1).gradient(w, gradient=above)
    plans = [applied(optimize(item.ast, NEON)) for item in schedule([found.uop]).items]
    assert any([o.name for o in plan].count("JOIN") >= 2 for plan in plans)


@pytest.mark.parametrize(("size", "k"), [(20, 1), (12, 3)])
def test_an_image_half_as_wide_beside_a_convolution_leaves_its_loops_whole(size: int, k: int) -> None:
    """What is added divides the places of outputs by 2; tiles were cut from every second place, and a
    product of 96 channels ran at an eighth of its rate."""
    product = g.conv(g.tensor(1, 8, size + k - 1, size + k - 1), g.tensor(16, 8, k, k))
    half = movement.reshape(g.tensor(1, 16, size // 2, size // 2), (1, 16, size // 2, 1, size // 2, 1))
    wide = movement.reshape(g.spread(half, (1, 16, size // 2, 2, size // 2, 2)), (1, 16, size, size))
    ast = kernel_of(g.add(product, wide))
    outputs = [size_ for r in closed_ranges(ast.src[0]) if (size_ := r.src[0].arg)]
    assert sorted(outputs) == sorted((16, size, size))
    for machine in (NEON, AVX512):
        same(interpret(optimize(ast, machine)), interpret(ast))
    same(native(optimize(ast, NEON)), interpret(ast))
