"""Weights in blocks: tiles with their vectors along a block, where that is faster, and what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from morok.machine.machine import Machine
from morok.onnx.panels import blocked
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.blocked_rows import WIDTHS, block_width, tile_height
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.schedule.schedule import schedule

AVX2, AVX512, AMX, N1 = (load(name) for name in ("avx2", "avx512", "avx512-amx", "neoverse-n1"))


def convolution(
    x: Any, w: Any, width: int, stride: int = 1, groups: int = 1, dilation: int = 1
) -> tuple[Tensor, Any]:
    """The lazy convolution with weights in blocks of so many outputs, and by NumPy in float64."""
    count = w.ndim - 2
    blocks = Tensor(np.ascontiguousarray(blocked(w, width))).realize()
    view = blocks.permute(0, blocks.ndim - 1, *range(1, blocks.ndim - 1)).reshape(w.shape)
    y = Tensor(x).realize().conv2d(view, None, stride, 0, dilation, groups)
    reach = [(k - 1) * dilation + 1 for k in w.shape[2:]]
    axes = tuple(range(2, 2 + count))
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), reach, axes)
    seen = seen[(slice(None), slice(None), *[slice(None, None, stride)] * count)]
    seen = seen[(..., *[slice(None, None, dilation)] * count)]
    letters = "pqr"[:count], "uvw"[:count]
    parts = []
    for g in range(groups):
        rows = w[g * (w.shape[0] // groups) : (g + 1) * (w.shape[0] // groups)].astype(np.float64)
        part = seen[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        parts.append(np.einsum(f"nc{letters[0]}{letters[1]},oc{letters[1]}->no{letters[0]}", part, rows))
    return y, np.concatenate(parts, 1)


def arrays(shape: Sequence[int], weights: Sequence[int]) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(s).astype(np.float32) for s in (shape, weights))
    return x, w / np.float32(np.sqrt(np.prod(weights[1:])))


def plan(y: Tensor, machine: Machine) -> UOp:
    (ast,) = (item.ast for item in schedule([y.contiguous().uop]).items)
    return optimize(ast, machine)


def is_tile_of_blocks(ast: UOp, width: int) -> bool:
    """Whether lanes are a block's outputs, which lie apart in the result, and nothing is packed."""
    lanes = [size(r) for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.UPCAST]
    packs = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE and str(n.arg[1]).startswith("pack")]
    return width in lanes and not packs


@pytest.mark.parametrize(
    ("machine", "channels", "size_", "out"),
    [(AVX512, 64, 14, 64), (AVX512, 32, 28, 96), (AMX, 64, 56, 64), (AVX2, 32, 20, 32), (AVX2, 32, 13, 24)],
)
def test_windows_take_blocks_where_that_is_faster(
    machine: Machine, channels: int, size_: int, out: int
) -> None:
    width = block_width(out, size_, size_ * size_, channels * 9, 4, machine)
    assert width is not None and out % width == 0
    y, _ = convolution(*arrays((1, channels, size_ + 2, size_ + 2), (out, channels, 3, 3)), width)
    assert is_tile_of_blocks(plan(y, machine), width)


def test_arms_lanes_are_operands_and_want_none() -> None:
    assert all(block_width(64, n, n * n, 576, 4, N1) is None for n in range(2, 100))
    y, _ = convolution(*arrays((1, 16, 16, 16), (32, 16, 3, 3)), 32)
    assert not is_tile_of_blocks(plan(y, N1), 32)


def test_short_sums_and_odd_numbers_of_outputs_stay_as_they_are() -> None:
    assert block_width(64, 14, 196, 9, 4, AVX512) is None
    assert block_width(65, 14, 196, 576, 4, AVX512) is None
    assert block_width(64, 1, 1, 576, 4, AVX512) is None


@pytest.mark.parametrize("machine", [AVX2, AVX512, AMX])
def test_tiles_have_no_edge_and_fit_the_registers(machine: Machine) -> None:
    for vectors in WIDTHS:
        for count in range(1, 130):
            height = tile_height(count, vectors, machine)
            assert count % height == 0 and height * vectors + vectors < machine.registers


@pytest.mark.parametrize("machine", ["avx512", "avx512-amx", "avx2"])
@pytest.mark.parametrize(
    ("shape", "weights", "how"),
    [
        ((1, 16, 16, 16), (32, 16, 3, 3), {}),
        ((2, 16, 30, 30), (64, 16, 3, 3), {}),  # a batch
        ((1, 32, 15, 29), (48, 32, 3, 3), {"stride": 2}),
        ((1, 32, 16, 16), (64, 16, 3, 3), {"groups": 2}),
        ((1, 16, 18, 18), (32, 16, 3, 3), {"dilation": 2}),
        ((1, 8, 24, 24), (32, 8, 5, 5), {}),
        ((1, 70, 9, 16), (32, 70, 3, 3), {}),  # stretches of a sum that end within a window's channels
        ((1, 40, 60), (32, 40, 5), {}),  # one dimension
        ((1, 12, 6, 8, 12), (32, 12, 3, 3, 3), {}),  # three
        ((1, 16, 19, 19), (16, 16, 3, 3), {}),  # a prime number of places in a row
        ((1, 16, 9, 9), (32, 16, 3, 3), {}),  # less than a vector in a row
    ],
)
def test_what_blocks_compute(machine: str, shape: Sequence[int], weights: Sequence[int], how: Any) -> None:
    x, w = arrays(shape, weights)
    width = 16 if weights[0] % 32 else 32
    with knobs.override(MACHINE=machine):
        y, want = convolution(x, w, width, **how)
        found = (y.relu() + 1.0).numpy()
    np.testing.assert_allclose(found, np.maximum(want, 0) + 1, rtol=2e-5, atol=2e-5)


def test_an_odd_batch_of_places_keeps_the_ordinary_tile() -> None:
    """Rows of a prime number of places would be tiles of one row."""
    y, _ = convolution(*arrays((1, 64, 39, 39), (64, 64, 3, 3)), 32)
    assert not is_tile_of_blocks(plan(y, AVX512), 32)
    names = [opt.name for opt in applied(plan(y, AVX512))]
    assert "UPCAST" in names


@pytest.mark.parametrize("machine", [AVX512, AMX])
def test_few_columns_are_one_panel_where_rows_come_from_far(machine: Machine) -> None:
    for rows, steps, columns in ((2048, 512, 49), (1024, 768, 60), (512, 512, 64)):
        ast = plan(Tensor.empty(rows, steps) @ Tensor.empty(steps, columns), machine)
        lanes = [size(r) for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.UPCAST]
        assert 64 in lanes
