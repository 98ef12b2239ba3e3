"""Rows and panels of products that are packed: what is computed once, and when a panel is used."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.registry import get_device
from morok.ir.infer import ranges, summed
from morok.ir.movement import flip
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.machine.rates import Rates
from morok.optimize.facts import access
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.tiles import tile_shape
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.schedule.schedule import schedule
from tests.optimize.kernels import AVX512, NEON, kernel_of, native
from tests.schedule import graphs as g


def points(copy: UOp) -> int:
    return math.prod(size(r) or 1 for r in copy.src[1:])


def copies(ast: UOp) -> list[UOp]:
    """What is packed, that which is packed most seldom first."""
    return sorted((n for n in toposort(ast) if n.op is Ops.BUFFERIZE), key=lambda n: len(ranges(n)))


def test_rows_that_fit_the_cache_are_packed_once_and_panels_as_they_are_used() -> None:
    """A prime number of panels: rows that are computed first are not computed again for each of them, and no
    panel leaves the cache before it is used, where the third cache is slow."""
    x, w = g.tensor(64, 128), g.tensor(128, 12 * 127)
    ast = optimize(
        kernel_of(g.matmul(g.layer_norm(x, g.tensor(128), g.tensor(128)), w)), replace(NEON, ahead_of_use=0)
    )
    rows, panel = copies(ast)
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    assert not ranges(rows) and points(rows) == 64 * 128
    assert ranges(panel) == {thread} and size(thread) == 127 and points(panel) == 12 * 128


def gradient_of_pictures(channels: int, size: int) -> UOp:
    """A convolution with its weights turned, of which a rectifier's gradient is taken."""
    x, w = g.tensor(1, channels, size, size), g.tensor(channels, channels, 3, 3)
    y = g.conv(x, g.transpose(flip(w, (False, False, True, True)), 1, 0, 2, 3), padding=1)
    return kernel_of(g.relu(y))


@pytest.mark.parametrize(
    ("channels", "size", "cut"), [(256, 14, True), (512, 7, True), (16, 14, False), (32, 56, False)], ids=str
)
def test_long_panels_go_in_blocks_of_steps(channels: int, size: int, cut: bool) -> None:
    """Rows that jump in memory, panels longer than the first cache: 62 GFLOP/s beside 100 with blocks."""
    ast = optimize(gradient_of_pictures(channels, size), AVX512)
    assert any(opt.name == "SPLIT_K" for opt in applied(ast)) is cut
    if not cut:
        return
    (totals,) = (n for n in copies(ast) if summed(n))
    panel, rows = sorted((n for n in copies(ast) if n is not totals), key=points)
    assert points(panel) * 4 <= AVX512.l1_bytes
    assert points(rows) * 4 <= AVX512.l2_bytes // 2 and points(totals) * 4 <= 16 * AVX512.l2_bytes
    columns = {r for r in ranges(panel) if r.arg[1] is AxisKind.LOOP}
    assert columns and columns.isdisjoint(ranges(rows))  # packed once for all panels of a block


def test_blocks_of_steps_are_right() -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((1, 128, 9, 9), (128, 112, 3, 3)))
    with knobs.override(DEVICE="CPU", THREADS=2):
        y = Tensor(x).conv2d(Tensor(w).flip(2, 3).permute(1, 0, 2, 3), padding=1)
        found = (y.relu() * 2.0).numpy()[0]
    padded = np.pad(x[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    want = np.zeros((112, 9, 9))
    for i, j in np.ndindex(3, 3):
        want += np.einsum("cyx,co->oyx", padded[:, i : i + 9, j : j + 9], w[:, :, 2 - i, 2 - j])
    want = 2.0 * np.maximum(want, 0)
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("machine", [NEON, AVX512], ids=["neon", "avx512"])
def test_rows_that_are_computed_of_two_arrays_are_packed(machine: Machine) -> None:
    """They were computed again for every panel, element by element."""
    a, b, w = g.tensor(64, 128), g.tensor(64, 128), g.tensor(128, 768)
    ast = optimize(kernel_of(g.matmul(g.add(a, b), w)), machine)
    rows, _ = copies(ast)
    assert points(rows) == 64 * 128 and rows.src[0].op is not Ops.INDEX


def test_such_products_are_right() -> None:
    rng = np.random.default_rng(7)
    a, b, w = (rng.normal(size=s).astype(np.float32) for s in ((67, 96), (67, 96), (96, 205)))
    with knobs.override(DEVICE="CPU"):
        found = ((Tensor(a) + Tensor(b)) @ Tensor(w)).numpy()
    want = (a.astype(np.float64) + b) @ w
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("machine", [NEON, AVX512], ids=["neon", "avx512"])
@pytest.mark.parametrize("side", ["rows", "columns"])
def test_what_is_computed_of_one_read_by_several_ways_is_packed(machine: Machine, side: str) -> None:
    """x * sigmoid(x): the read has several readers, and was packed as it is, to be computed in every tile."""
    a, w = g.tensor(64, 128), g.tensor(128, 768)
    x = a if side == "rows" else w
    gated = g.mul(x, g.relu(g.add(x, 3.0)))
    ast = optimize(kernel_of(g.matmul(gated, w) if x is a else g.matmul(a, gated)), machine)
    packed = [n for n in copies(ast) if n.src[0].op is not Ops.INDEX]
    assert [n.src[0].op for n in packed] == [Ops.MUL]
    (product,) = (n for n in toposort(ast) if n.op is Ops.REDUCE)
    inside = toposort(product, stop=lambda n: n.op is Ops.BUFFERIZE)
    assert not any(n.op is Ops.MAX for n in inside)


def test_products_of_such_values_are_right() -> None:
    rng = np.random.default_rng(9)
    a, w = (rng.normal(size=s).astype(np.float32) for s in ((67, 96), (96, 205)))
    wide = a.astype(np.float64), w.astype(np.float64)
    gated = [x * np.clip(x + 3, 0, 6) / 6 for x in wide]
    with knobs.override(DEVICE="CPU", THREADS=2):
        x, y = Tensor(a), Tensor(w)
        rows = (x.hardswish() @ y).numpy()
        columns = (x @ y.hardswish()).numpy()
    for found, want in ((rows, gated[0] @ wide[1]), (columns, wide[0] @ gated[1])):
        assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


FAR = replace(AVX512, l2_bytes=64 << 10, packs_in_order=True, rates=Rates(far_byte=0.34, vector_load=1))


@pytest.mark.parametrize(
    ("machine", "shape", "cut"),
    [
        (FAR, (264, 1024, 256), True),
        (FAR, (1000, 1000, 384), True),  # threads share the rows
        (FAR, (264, 128, 256), False),  # totals would come and go more often than panels
        (FAR, (264, 1021, 256), False),  # nothing divides the steps
        (replace(FAR, rates=Rates()), (264, 1024, 256), False),  # panels come in time
    ],
    ids=str,
)
def test_panels_from_far_go_in_blocks_of_steps(
    machine: Machine, shape: tuple[int, int, int], cut: bool
) -> None:
    rows, steps, columns = shape
    ast = optimize(kernel_of(g.matmul(g.tensor(rows, steps), g.tensor(steps, columns))), machine)
    assert any(opt.name == "SPLIT_K" for opt in applied(ast)) is cut
    if not cut:
        return
    (totals,) = (n for n in copies(ast) if summed(n))
    packed = sorted((n for n in copies(ast) if n is not totals), key=lambda n: len(ranges(n)))
    panels, block = packed
    assert points(panels) * 2 >= steps * columns  # of all steps, and of all columns of a thread
    assert points(block) * 4 <= machine.l2_bytes // 2 and points(block) < steps * points(totals) / columns


@pytest.mark.parametrize("shape", [(269, 1024, 250), (900, 600, 384), (70, 600, 700)], ids=str)
def test_blocks_of_panels_from_far_are_right(shape: tuple[int, int, int]) -> None:
    rows, steps, columns = shape
    ast = kernel_of(g.matmul(g.tensor(rows, steps), g.tensor(steps, columns)))
    found, a, b = (x.astype(np.float64) for x in native(optimize(ast, FAR)))
    want = a.reshape(rows, steps) @ b.reshape(steps, columns)
    assert np.abs(found.reshape(want.shape) - want).max() <= 1e-5 * np.abs(want).max()


def test_panels_that_are_filled_together_are_read_along_their_rows() -> None:
    """Row after row of the matrix, and not a few columns of each row, which lie a page apart."""
    product = kernel_of(g.matmul(g.tensor(264, 1024), g.tensor(1024, 256)))
    for in_order in (False, True):
        ast = optimize(product, replace(FAR, packs_in_order=in_order))
        panels = max((n for n in copies(ast) if not summed(n)), key=points)
        (read,) = (n for n in toposort(panels.src[0]) if n.op is Ops.INDEX and not n.dtype.is_ptr)
        steps = [access(read).step(r) for r in sorted(panels.src[1:], key=lambda r: int(r.arg[0]))]
        walked = [s for s in steps if s is not None]
        assert len(walked) == len(steps) and (walked == sorted(walked, reverse=True)) is in_order


def test_a_tile_does_the_most_for_each_load() -> None:
    """Six rows and four vectors are ten loads for 24 products; eight and three are eleven."""
    assert tile_shape(1200, 1024 * 3, 16, FAR) == (6, 64)
    assert tile_shape(1200, 1024 * 3, 16, replace(FAR, rates=Rates())) == (8, 48)


@pytest.mark.parametrize("machine", ["avx512", "avx512-amx", "avx2", "neoverse-n1"])
def test_columns_that_no_step_moves(machine: str) -> None:
    """Their copy has no loop of steps that could be walked along."""
    random = np.random.default_rng(8)
    a, b = random.normal(size=(64, 128)).astype(np.float32), random.normal(size=256).astype(np.float32)
    with knobs.override(DEVICE="CPU", MACHINE=machine, THREADS=2):
        product = (Tensor.empty(64, 128, 1) * Tensor.empty(1, 1, 256)).sum(1)
        chip = get_device("CPU").machine
        for item in schedule([product.uop]).items:
            optimize(item.ast, chip)
    with knobs.override(DEVICE="CPU"):
        got = (Tensor(a)[:, :, None] * Tensor(b)[None, None]).sum(1).numpy()
    want = a.astype(np.float64).sum(1)[:, None] * b
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
