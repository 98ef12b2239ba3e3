"""Windows on a grid: right results whatever the sizes, and the form that makes them fast.

The machine of the first tests has one multiprocessor, so that small images get vectors, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.dtype import PtrDType, bfloat16
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.gpu.choose import choose_gpu
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.tensor.linalg.convolution import conv_channels_last
from morok.tensor.sizes import concrete_shape
from tests.gpu.kernels import DEVICE, HOST, run
from tests.optimize.plans import an_h200, empty

ALONE = replace(HOST, cores=1)
RNG = np.random.default_rng(5)


def padded(x: np.ndarray, by: int, value: float = 0.0) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (by, by), (by, by)), constant_values=value)


def slid(x: np.ndarray, k: int, stride: int) -> np.ndarray:
    """(N, C, P, Q, k, k)."""
    return np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::stride, ::stride]


def ran(y: Tensor, arrays: list[np.ndarray]) -> Any:
    """The result of a program of one kernel, of memory in the order in which it was made."""
    (kernel,) = y.contiguous().plan().kernels
    shape = concrete_shape(y.shape)
    out = np.zeros(shape, arrays[0].dtype)
    return run(choose_gpu(kernel.ast, ALONE), [out, *arrays])[0].reshape(shape)


SIZES = [
    (2, 16, 14, 7, 1),
    (2, 24, 7, 5, 1),
    (1, 40, 9, 3, 2),
    (3, 8, 17, 3, 1),
    (1, 3, 30, 5, 2),
    (2, 7, 6, 3, 1),
]


@pytest.mark.parametrize(("count", "channels", "side", "k", "stride"), SIZES)
@pytest.mark.parametrize("last", [False, True])
def test_depthwise(count: int, channels: int, side: int, k: int, stride: int, last: bool) -> None:
    x = RNG.standard_normal((count, channels, side, side)).astype(np.float32)
    w = RNG.standard_normal((channels, 1, k, k)).astype(np.float32)
    want = np.einsum("ncpqab,cab->ncpq", slid(padded(x, k // 2), k, stride), w[:, 0])
    how: dict[str, Any] = {"stride": stride, "padding": k // 2, "groups": channels}
    if last:
        x, w = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.ascontiguousarray(w.transpose(2, 3, 0, 1))
        image, weight = Tensor(x).permute(0, 3, 1, 2), Tensor(w).permute(2, 3, 0, 1)
        found = ran(image.conv2d(weight, **how).permute(0, 2, 3, 1), [x, w]).transpose(0, 3, 1, 2)
    else:
        found = ran(Tensor(x).conv2d(Tensor(w), **how), [x, w])
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("count", "channels", "side", "k", "stride"), SIZES)
def test_pooling(count: int, channels: int, side: int, k: int, stride: int) -> None:
    x = RNG.standard_normal((count, channels, side, side)).astype(np.float32)
    found = ran(Tensor(x).max_pool2d(k, stride, padding=k // 2), [x])
    want = slid(padded(x, k // 2, -np.inf), k, stride).max((-2, -1))
    np.testing.assert_array_equal(found, want)
    found = ran(Tensor(x).avg_pool2d(k, stride), [x])
    np.testing.assert_allclose(found, slid(x, k, stride).mean((-2, -1)), rtol=1e-5, atol=1e-5)


def in_order(ast: UOp, kind: AxisKind) -> list[int]:
    return [size(r) or 0 for r in loops_of(ast).closers if r.arg[1] is kind]


@pytest.mark.parametrize(
    ("count", "side", "channels", "k", "stride"),
    [
        (32, 14, 384, 7, 1),
        (32, 56, 96, 7, 1),
        (64, 7, 960, 5, 1),
        (64, 14, 480, 3, 1),
        (64, 112, 64, 3, 2),
        (16, 31, 33, 5, 1),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_thread_has_neighbours_that_share_what_they_read(
    count: int, side: int, channels: int, k: int, stride: int, last: bool
) -> None:
    """Blocks of at least two warps whatever the width of an image, a row of the window written out, and a
    vector of channels where these lie side by side."""
    with an_h200() as machine:
        how: dict[str, Any] = {"stride": stride, "padding": k // 2, "groups": channels}
        if last:
            x, w = (
                empty(count, side, side, channels).permute(0, 3, 1, 2),
                empty(k, k, channels, 1).permute(2, 3, 0, 1),
            )
            y = x.conv2d(w, **how).permute(0, 2, 3, 1)
        else:
            y = empty(count, channels, side, side).conv2d(empty(channels, 1, k, k), **how)
        (kernel,) = y.contiguous().plan().kernels
        ast = optimize(kernel.ast, machine)
    outputs, threads, taps = (
        in_order(ast, kind) for kind in (AxisKind.UPCAST, AxisKind.LOCAL, AxisKind.UNROLL)
    )
    assert k in taps
    assert np.prod(threads) >= 64
    assert max(outputs) >= 4
    if last and channels % 8 == 0:
        assert outputs.count(8) >= 1 and np.prod(outputs) >= 32


def test_outputs_that_need_one_short_sum_are_threads() -> None:
    """A squeeze-and-excite block scales all places of a channel by a sum over ten numbers."""
    with an_h200() as machine:
        scale = empty(64, 10, 1, 1).conv2d(empty(240, 10, 1, 1)).sigmoid()
        (kernel,) = (empty(64, 240, 28, 28) * scale).plan().kernels
        ast = optimize(kernel.ast, machine)
    assert in_order(ast, AxisKind.UPCAST) == [8] and in_order(ast, AxisKind.UNROLL) == [10]
    assert np.prod(in_order(ast, AxisKind.LOCAL)) >= 64 and max(in_order(ast, AxisKind.LOCAL)) >= 64


def test_windows_of_a_product_are_not_stored() -> None:
    """An expansion, an activation and a depthwise convolution: the image is stored, in its own type."""
    with an_h200() as machine:
        wide = empty(64, 16, 112, 112).conv2d(empty(64, 16, 1, 1), empty(64)).relu()
        y = wide.conv2d(empty(64, 1, 3, 3), padding=1, stride=2, groups=64)
        first, second = y.contiguous().plan().kernels
        names = [opt.name for opt in applied(optimize(first.ast, machine))]
        taps = in_order(optimize(second.ast, machine), AxisKind.UNROLL)
    stored = next(n for n in toposort(first.ast) if n.op is Ops.DEFINE_GLOBAL and n.arg == 0)
    assert isinstance(stored.dtype, PtrDType)
    assert (stored.dtype.elem, stored.dtype.size) == (bfloat16, 64 * 64 * 112 * 112)
    assert "TC" in names and taps == [3, 3]


def test_few_long_sums_have_many_threads() -> None:
    """The gradient of a depthwise convolution's weights: none of the loops alone has rows for all threads.

    Weights beside each other have gradients of mostly the same numbers."""
    with an_h200() as machine:
        x, g = (empty(32, 28, 28, 192).permute(0, 3, 1, 2) for _ in range(2))
        w = empty(192, 1, 7, 7)
        (found,) = conv_channels_last(x, w, padding=3, groups=192).gradient(w, gradient=g)
        first = found.plan().kernels[0]
        ast = optimize(first.ast, machine)
    assert np.prod(in_order(ast, AxisKind.LOCAL) + in_order(ast, AxisKind.GROUP_REDUCE)) >= 256
    assert 7 in in_order(ast, AxisKind.UPCAST) and 7 in in_order(ast, AxisKind.UNROLL)


@pytest.mark.parametrize(("count", "channels", "side", "k", "stride"), SIZES)
def test_gradients_of_weights(count: int, channels: int, side: int, k: int, stride: int) -> None:
    x = RNG.standard_normal((count, side, side, channels)).astype(np.float32)
    w = RNG.standard_normal((channels, 1, k, k)).astype(np.float32)
    image, weight = (Tensor(a, device=DEVICE) for a in (x, w))
    made = conv_channels_last(
        image.permute(0, 3, 1, 2), weight, stride=stride, padding=k // 2, groups=channels
    )
    g = RNG.standard_normal(concrete_shape(made.shape)).astype(np.float32)
    (found,) = made.gradient(weight, gradient=Tensor(g, device=DEVICE))
    seen = slid(padded(x.transpose(0, 3, 1, 2), k // 2), k, stride)
    np.testing.assert_allclose(
        found.numpy()[:, 0], np.einsum("ncpqab,ncpq->cab", seen, g), rtol=1e-4, atol=1e-3
    )
