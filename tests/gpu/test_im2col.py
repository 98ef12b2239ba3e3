"""Convolutions by TMA's walk through images (im2col): what is copied, and results against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.emulator.device import EmulatorAllocator
from morok.device.emulator.mbarriers import TensorMap
from morok.device.emulator.memory import GlobalMemory
from morok.dtype import float16
from morok.errors import DeviceError
from morok.ir.matrix import shared_layout
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.warp_roles import Box, Walk
from morok.optimize.actions.table import apply_all
from morok.optimize.actions.warp_specialize import tile_box
from morok.optimize.facts import store_of
from morok.optimize.heuristics.gpu.matmul import PRODUCER
from morok.optimize.loops import loops_of
from morok.optimize.record import Opt
from morok.render.cuda.kernel import render
from morok.rewrite.engine import substitute
from tests.gpu.kernels import cubin
from tests.gpu.products import HOST, TARGET, close, kernel_of, left_first, product
from tests.gpu.test_warp_specialize import built, names, run

Pair = tuple[int, int]


def windows(stride: Pair, padding: Pair, dilation: int) -> Any:
    """A convolution of images with the channels last, as memory has them."""

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        return x.conv2d(w, stride=stride, padding=padding, dilation=dilation)

    return convolve


def reference(x: Any, w: Any, stride: Pair, padding: Pair, dilation: int) -> Any:
    """The same in NumPy, element of the window by element."""
    (top, left), (down, right) = padding, stride
    x = np.pad(x, ((0, 0), (top, top), (left, left), (0, 0)))
    high = (x.shape[1] - dilation * (w.shape[1] - 1) - 1) // down + 1
    wide = (x.shape[2] - dilation * (w.shape[2] - 1) - 1) // right + 1
    out = np.zeros((len(x), high, wide, len(w)))
    for i in range(w.shape[1]):
        for j in range(w.shape[2]):
            part = x[:, i * dilation :, j * dilation :][:, : high * down : down, : wide * right : right]
            out += part @ w[:, i, j].T
    return out.transpose(0, 3, 1, 2)


def walks(kernel: UOp) -> list[Box]:
    found = [shared_layout(n) for n in toposort(kernel)]
    return [how.box for how in found if how is not None and how.box is not None and how.box.walk is not None]


@pytest.mark.parametrize(
    ("images", "weights", "stride", "padding", "dilation", "tile"),
    [
        ((2, 14, 14, 64), (128, 3, 3, 64), (1, 1), (1, 1), 1, (128, 128)),  # blocks walk several tiles
        ((3, 9, 10, 72), (72, 3, 3, 72), (1, 1), (1, 1), 1, (128, 64)),  # nothing is a multiple of a tile
        ((5, 7, 7, 128), (128, 3, 3, 128), (1, 1), (1, 1), 1, (128, 64)),  # a tile goes over several images
        ((2, 15, 16, 64), (128, 3, 3, 64), (2, 2), (1, 1), 1, (128, 128)),  # no end on the right is needed
        ((2, 16, 12, 64), (64, 3, 5, 64), (2, 1), (1, 2), 1, (128, 64)),  # lines and columns differ
        ((2, 14, 14, 64), (128, 3, 3, 64), (1, 1), (0, 0), 1, (128, 64)),  # no edges
        ((1, 20, 22, 64), (128, 3, 3, 64), (1, 1), (2, 2), 2, (128, 128)),  # one image
        ((3, 16, 16, 64), (128, 3, 3, 64), (1, 1), (1, 1), 1, (128, 64)),  # tiles end with lines
        ((5, 8, 8, 128), (128, 3, 3, 128), (1, 1), (1, 1), 1, (128, 64)),  # images end with tiles
        ((5, 4, 4, 64), (128, 3, 3, 64), (1, 1), (1, 1), 1, (128, 64)),  # four of them are a tile
        ((3, 32, 16, 64), (128, 3, 3, 64), (2, 2), (1, 1), 1, (128, 64)),
        ((2, 4, 128, 64), (128, 3, 3, 64), (1, 1), (1, 1), 1, (128, 64)),  # half a line is one
    ],
    ids=[
        "several",
        "odd",
        "small",
        "strided",
        "oblong",
        "valid",
        "dilated",
        "lines",
        "images",
        "some images",
        "lines, strided",
        "half lines",
    ],
)
def test_convolutions(
    images: tuple[int, ...],
    weights: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: int,
    tile: Pair,
) -> None:
    ast = kernel_of(windows(stride, padding, dilation), images, weights)
    kernel = built(ast, PRODUCER, tile)
    assert "WARP_SPECIALIZE" in names(kernel)
    assert len(walks(kernel)) == 1
    got, arrays = run(ast, kernel)
    x, w = sorted(arrays[1:], key=lambda a: a.size != np.prod(images))
    x, w = x.reshape(images).astype(float), w.reshape(weights).astype(float)
    close(got, reference(x, w, stride, padding, dilation), 1e-3)


@pytest.mark.parametrize(
    ("images", "outputs", "stride", "tile"),
    [
        ((3, 16, 12, 64), 128, 1, (128, 64)),  # 576 places: nine tiles of 64
        ((2, 15, 18, 128), 128, 2, (128, 128)),  # 144: the last tile goes beyond the last image
        ((2, 16, 16, 64), 128, 1, (128, 64)),  # four lines are a tile
        ((3, 8, 8, 64), 128, 1, (128, 64)),  # an image is one
    ],
    ids=["whole", "strided", "lines", "images"],
)
def test_gradients_of_weights(images: tuple[int, ...], outputs: int, stride: int, tile: Pair) -> None:
    """Steps are places: the walk is along the sum."""
    n, h, w, c = images
    high, wide = -(-h // stride), -(-w // stride)

    def gradient(x: Tensor, g: Tensor) -> Tensor:
        x, g = x.permute(0, 3, 1, 2), g.permute(0, 3, 1, 2)
        kernel = Tensor.zeros(outputs, c, 3, 3, dtype="float16", device="EMULATOR")
        (found,) = x.conv2d(kernel, stride=stride, padding=1).gradient(kernel, gradient=g)
        return found.permute(0, 2, 3, 1)

    ast = kernel_of(gradient, images, (n, high, wide, outputs))
    kernel = built(ast, PRODUCER, tile)
    assert len(walks(kernel)) == 1
    got, arrays = run(ast, kernel)
    x, g = sorted(arrays[1:], key=lambda a: a.size != np.prod(images))
    x, g = x.reshape(images).astype(float), g.reshape(n, high, wide, outputs).astype(float)
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = np.zeros((outputs, 3, 3, c))
    for i, j in np.ndindex(3, 3):
        part = x[:, i:, j:][:, : high * stride : stride, : wide * stride : stride]
        want[:, i, j] = np.einsum("nhwo,nhwc->oc", g, part)
    close(got, want, 1e-3)


def test_corners_are_where_the_window_begins() -> None:
    """17 columns in steps of 2 with an edge of 1: the first element goes from -1 to 15, which is 1 before the
    last; 12 lines in single steps with an edge of 2 and 5 elements: from -2 to 9, which is 2 before."""
    ast = kernel_of(windows((1, 2), (2, 1), 1), (3, 12, 17, 64), (128, 5, 3, 64))
    (box,) = walks(built(ast, PRODUCER, (128, 64)))
    assert box.sizes == (64, 17, 12, 3)
    assert box.strides == (1, 64, 17 * 64, 12 * 17 * 64)
    assert box.part == (64, 64)
    assert box.walk == Walk(lower=(-1, -2), upper=(-1, -2), steps=(2, 1))


def test_channels_that_are_not_aligned_are_no_walk() -> None:
    ast = kernel_of(windows((1, 1), (1, 1), 1), (2, 14, 14, 68), (128, 3, 3, 68))
    with pytest.raises(AssertionError, match="no such choice"):
        built(ast, PRODUCER, (128, 128))


def test_what_the_engine_walks() -> None:
    """Two images of 2 lines and 3 columns, one channel in a copy of 2; a window of 3 with an edge of 1 in
    lines of columns alone. From the last column of the first line on, shifted by 2."""
    allocator = EmulatorAllocator("test")
    block = allocator.allocate(24)
    allocator.copy_in(block, 0, np.arange(1, 13).astype(np.float16))
    memory = GlobalMemory("images", block, 0, 24, float16)
    box = Box((1, 3, 2, 2), (1, 1, 3, 6), (2, 6), walk=Walk((-1, 0), (-1, 0), (1, 1)))
    got = TensorMap(memory, box).read(0, [0, 1, 0, 0, 2, 0])
    assert got[:, 0].tolist() == [0, 5, 6, 0, 8, 9]
    assert not got[:, 1].any()  # there is no second channel
    with pytest.raises(DeviceError, match="none of its places"):
        TensorMap(memory, box).read(0, [0, 2, 0, 0, 2, 0])


def test_rows_of_one_tile_end_only_where_the_stores_do() -> None:
    """All rows are one tile of 128: the last 56 are none if nothing is stored of them, else repeated ones."""
    ast = kernel_of(product, (72, 128), (128, 64))
    left = 1 if left_first(ast) else 2
    opts = [Opt("PADTO", 0, 128), Opt("TILE", 2, 64), Opt("STAGE", left, 2, (0, 3))]
    loops = loops_of(apply_all(ast, opts, HOST))
    address = store_of(loops.ast.src[0]).src[0]
    everywhere = loops_of(substitute(loops.ast, {address: address.replace(address.src[:2])}))
    for found, edge in ((loops, True), (everywhere, False)):
        (tile,) = (n for n in found.order if n.op is Ops.BUFFERIZE)
        assert any(n.op is Ops.MIN for n in toposort(tile.src[0]))
        assert (tile_box(found, tile) is not None) is edge


def test_the_source_compiles_without_spills() -> None:
    ast = kernel_of(windows((1, 1), (1, 1), 1), (4, 28, 28, 128), (256, 3, 3, 128))
    program = render(lower(built(ast, PRODUCER, (128, 256)), TARGET), "test", 3)
    assert ".im2col." in program.text
    cubin(program.text)
