"""Products of few channels on a grid, in the registers of threads: right whatever the sizes."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.ops import AxisKind
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.render.cuda.kernel import render
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE
from tests.optimize.plans import an_h200, empty

RNG = np.random.default_rng(11)


class Conv(NamedTuple):
    """A convolution: images, channels, outputs, groups, sizes of images and windows, and how it is done."""

    count: int
    channels: int
    outputs: int
    groups: int
    sides: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1


CASES = {
    "four channels": Conv(2, 8, 8, 2, (9, 8), (3, 3), padding=1),
    "eight channels, stride": Conv(2, 16, 16, 2, (8, 8), (3, 3), 2, 1),
    "three channels": Conv(1, 6, 6, 2, (7, 7), (3, 3), padding=1),
    "six channels": Conv(2, 12, 12, 2, (5, 6), (3, 3), padding=1),
    "twelve channels": Conv(1, 24, 24, 2, (6, 6), (3, 3), padding=1),
    "twenty-four channels": Conv(1, 48, 48, 2, (5, 5), (3, 3), padding=1),
    "a multiplier": Conv(2, 4, 8, 4, (8, 7), (3, 3), padding=1),
    "dilation": Conv(1, 8, 8, 2, (9, 9), (3, 3), padding=2, dilation=2),
    "a line": Conv(2, 8, 8, 2, (19,), (5,), padding=2),
    "a volume": Conv(1, 4, 4, 2, (5, 4, 6), (3, 3, 3), padding=1),
    "a first layer": Conv(2, 3, 8, 1, (16, 16), (7, 7), 2, 3),
    "depthwise": Conv(2, 4, 4, 4, (14, 14), (3, 3), padding=1),
}


def reference(how: Conv, x: Any, w: Any, g: Any) -> tuple[Any, Any, Any]:
    """The result, and the gradients of images and weights, offset by offset."""
    pad = [(0, 0), (0, 0), *[(how.padding,) * 2] * len(how.sides)]
    wide = np.pad(x, pad)
    grouped = wide.reshape(how.count, how.groups, -1, *wide.shape[2:])
    weights = w.reshape(how.groups, -1, *w.shape[1:])
    out = np.zeros_like(g).reshape(how.count, how.groups, -1, *g.shape[2:])
    gradient = g.reshape(out.shape)
    dx, dw = np.zeros_like(grouped), np.zeros_like(weights)
    for offset in product(*map(range, how.window)):
        part = tuple(
            slice(k * how.dilation, k * how.dilation + how.stride * (n - 1) + 1, how.stride)
            for k, n in zip(offset, g.shape[2:], strict=True)
        )
        seen, own = grouped[(..., *part)], weights[(..., *offset)]
        out += np.einsum("ngc...,goc->ngo...", seen, own)
        dx[(..., *part)] += np.einsum("ngo...,goc->ngc...", gradient, own)
        dw[(..., *offset)] = np.einsum(
            "ngcp,ngop->goc", *(a.reshape(*a.shape[:3], -1) for a in (seen, gradient))
        )
    inside = tuple(slice(how.padding, how.padding + n) for n in how.sides)
    return out.reshape(g.shape), dx.reshape(wide.shape)[(..., *inside)], dw.reshape(w.shape)


def convolved(how: Conv, x: Tensor, w: Tensor) -> Tensor:
    function = {1: Tensor.conv1d, 2: Tensor.conv2d, 3: Tensor.conv3d}[len(how.sides)]
    return function(x, w, groups=how.groups, stride=how.stride, padding=how.padding, dilation=how.dilation)


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
@pytest.mark.parametrize("last", [False, True])
def test_grouped(how: Conv, last: bool) -> None:
    """Also where channels lie side by side in memory."""
    x = RNG.standard_normal((how.count, how.channels, *how.sides)).astype(np.float32)
    w = RNG.standard_normal((how.outputs, how.channels // how.groups, *how.window)).astype(np.float32)
    image, weight = Tensor(x, device=DEVICE), Tensor(w, device=DEVICE)
    if last:
        stored = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        image = Tensor(stored, device=DEVICE).permute(0, x.ndim - 1, *range(1, x.ndim - 1))
    made = convolved(how, image, weight)
    g = RNG.standard_normal(tuple(made.shape)).astype(np.float32)
    gradients = made.gradient(image, weight, gradient=Tensor(g, device=DEVICE))
    for found, want in zip((made, *gradients), reference(how, x, w, g), strict=True):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-3)


class Plan(NamedTuple):
    """A kernel's name, its actions, and what threads have."""

    name: str
    actions: list[str]
    outputs: int
    threads: int


def plans(channels: int, side: int, groups: int, kind: str) -> list[Plan]:
    """The kernels of a 3×3 convolution of 32 images in bfloat16 for an H200, or of one of its gradients."""
    with an_h200() as machine:
        x, w = empty(32, channels, side, side), empty(channels, channels // groups, 3, 3)
        y = x.conv2d(w, groups=groups, padding=1)
        if kind != "forward":
            y = y.gradient(x if kind == "images" else w, gradient=empty(*map(int, y.shape)))[0]
        found = []
        for kernel in y.plan().kernels:
            ast = optimize(kernel.ast, machine)
            loops = loops_of(ast).closers
            sizes = {
                kind: [size(r) or 1 for r in loops if r.arg[1] is kind]
                for kind in (AxisKind.UPCAST, AxisKind.LOCAL, AxisKind.GROUP_REDUCE)
            }
            threads = np.prod(sizes[AxisKind.LOCAL] + sizes[AxisKind.GROUP_REDUCE])
            names = [opt.name for opt in applied(ast)]
            found.append(Plan(kernel.name, names, int(np.prod(sizes[AxisKind.UPCAST])), int(threads)))
    return found


@pytest.mark.parametrize("kind", ["forward", "images"])
@pytest.mark.parametrize(("channels", "side"), [(128, 56), (256, 28)])
def test_few_channels_need_no_copies(channels: int, side: int, kind: str) -> None:
    """Four and eight channels of a group: one kernel, in which a thread has outputs of several channels."""
    (plan,) = plans(channels, side, 32, kind)
    assert not {"TC", "STAGE"} & set(plan.actions)
    assert plan.outputs >= 16 and plan.threads >= 64


@pytest.mark.parametrize("kind", ["forward", "images"])
@pytest.mark.parametrize("channels", [512, 1024])
def test_channels_of_groups_lie_side_by_side_for_units(channels: int, kind: str) -> None:
    """Sixteen and more channels of a group are multiplied by units, which read them in whole vectors."""
    image, _, product = plans(channels, 14, 32, kind)
    assert image.name == f"e_32_196_{channels}"
    assert "TC" in product.actions


@pytest.mark.parametrize(("channels", "side"), [(128, 56), (256, 28)])
def test_gradients_of_few_weights_have_many_threads(channels: int, side: int) -> None:
    """Threads share the places of all images; each has several of the weights."""
    first, _ = plans(channels, side, 32, "weights")
    assert not {"TC", "STAGE"} & set(first.actions)
    assert first.outputs >= 9 and first.threads >= 64


def test_gradients_of_depthwise_weights_lie_along_rows() -> None:
    (plan,) = plans(96, 56, 96, "weights")
    assert plan.outputs >= 3 and plan.threads >= 128


def test_both_operands_lie_along_the_same_steps() -> None:
    """The gradient of many weights: images and gradients are both copied with the images last."""
    (*copies, product) = plans(1024, 7, 32, "weights")
    assert [c.name for c in copies] == ["ex2_50176_32"] and "TC" in product.actions


def test_the_loop_of_a_window_is_written_once() -> None:
    """Steps of a convolution in float32 have no loop inside; written out 16 times they left all caches."""
    with an_h200() as machine:
        images, filters = empty(8, 64, 28, 28, dtype="float32"), empty(64, 64, 3, 3, dtype="float32")
        (item,) = schedule([images.conv2d(filters, padding=1).uop]).items
        text = render(lower(optimize(item.ast, machine), machine), "k", 3).text
    assert "cp.async" in text and "for (int" in text and "#pragma unroll" not in text
