"""Vectors of places are written as wide as they are asked for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.vector.vectors import splat, swizzle
from morok.device.cpu.device import program_of
from morok.device.registry import get_device
from morok.dtype import int32
from morok.ir.build import define_global
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.render.llvm.places import written_in_pieces
from morok.schedule.schedule import schedule

WIDE = 48


def numbers(*values: int) -> UOp:
    return make(Ops.VCONST, int32.vec(len(values)), (), values)


def read() -> UOp:
    place = make(Ops.INDEX, int32.ptr(64), (define_global(int32, 64, 0), const(int32, 3)))
    return make(Ops.LOAD, int32, (place,))


def lists() -> tuple[UOp, UOp, UOp]:
    """A number in all lanes, with something added in each, and what that is to compare."""
    spread = splat(read(), WIDE)
    total = alu(Ops.ADD, spread, numbers(*range(WIDE)))
    return spread, total, alu(Ops.AND, total, const(int32.vec(WIDE), 31))


def test_what_is_asked_for_by_eights_is_written_so() -> None:
    spread, total, masked = lists()
    taken = [swizzle(masked, range(i, i + 8)) for i in range(0, WIDE, 8)]
    assert written_in_pieces([spread, total, masked, *taken]) == {spread: 8, total: 8, masked: 8}


@pytest.mark.parametrize("lanes", [range(4, 12), range(16), (3,), (1, 0), range(6)])
def test_what_somebody_wants_otherwise_stays(lanes: range | tuple[int, ...]) -> None:
    """Runs that begin elsewhere, or of two lengths, or lanes one by one: what is asked so is not cut."""
    spread, total, masked = lists()
    taken = [swizzle(masked, range(8, 16)), swizzle(total, range(8)), swizzle(total, tuple(lanes))]
    assert total not in written_in_pieces([spread, total, masked, *taken])


def test_a_register_is_not_cut() -> None:
    spread = splat(read(), 16)
    total = alu(Ops.ADD, spread, numbers(*range(16)))
    assert not written_in_pieces([spread, total, swizzle(total, range(8)), swizzle(total, range(8, 16))])


def convolution() -> tuple[Tensor, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 16, 14, 14)).astype(np.float32)
    w = rng.standard_normal((32, 16, 3, 3)).astype(np.float32)
    return Tensor(x, device="CPU").conv2d(Tensor(w, device="CPU"), padding=1), x, w


def test_edges_of_a_convolution_are_compared_in_registers() -> None:
    """No vector of 48 places in the text, nor on processors whose text is another one a piece of one."""
    with knobs.override(DEVICE="CPU", MACHINE="avx512"):
        device = get_device("CPU")
        item = schedule([convolution()[0].uop]).items[-1]
        text = program_of(item.ast, device.machine, device.optimise, "k").text  # type: ignore[attr-defined]
    assert "<8 x i32>" in text
    assert not [n for n in re.findall(r"<(\d+) x i32> %", text) if int(n) > 16]


def test_and_are_right() -> None:
    y, x, w = convolution()
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_pool_of_two_strides_has_no_lanes_one_by_one() -> None:
    """Masks of windows with an edge around them: made of lanes of registers, they were most of the text."""
    x = Tensor.empty(4, 24, 64, device="CPU")
    with knobs.override(DEVICE="CPU", MACHINE="avx512"):
        device = get_device("CPU")
        item = schedule([x.reshape(1, 4, 24, 64).max_pool2d(3, 2, padding=1).uop]).items[-1]
        text = program_of(item.ast, device.machine, device.optimise, "k").text  # type: ignore[attr-defined]
    assert "llvm.masked.load" in text
    assert text.count("insertelement <16 x i1>") < 8


@pytest.mark.parametrize("size", [(9, 64), (31, 56), (12, 97)])
@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 2, 1), (5, 3, 2), (2, 2, 1)])
def test_pools_with_edges(size: tuple[int, int], window: int, stride: int, padding: int) -> None:
    x = np.random.default_rng(5).standard_normal((1, 3, *size)).astype(np.float32)
    found = Tensor(x, device="CPU").max_pool2d(window, stride, padding=padding).numpy()
    edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    wide = np.pad(x, edges, constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (window, window), (2, 3))
    np.testing.assert_array_equal(found, windows[:, :, ::stride, ::stride].max((-1, -2)))
