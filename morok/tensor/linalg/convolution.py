"""Convolutions as sums over windows, and their gradients, which are convolutions again.

    y[n, o, p] = Σ over c, k of x[n, c, p·stride + k·dilation - padding] · w[o, c, k]

Derived step by step, the gradient of x would add up overlapping windows. Seen as a whole it is a convolution
of the gradient (with zeros between its elements if the stride is more than one) with the weights turned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from morok.ir.node import UOp, make
from morok.ir.ops import Ops

Pairs = Sequence[tuple[int, int]]


def convolved(
    x: Any, w: Any, stride: Sequence[int], pads: Pairs, dilation: Sequence[int], groups: int
) -> Any:
    """The convolution of (N, C, …) with (out, C / groups, …), under its name."""
    y = _sum_of_windows(x, w, stride, pads, dilation, groups)
    how = ("conv", tuple(stride), tuple(map(tuple, pads)), tuple(dilation), groups)
    return y._new(make(Ops.NOOP, y.dtype, (y.uop, x.uop, w.uop), how))


def _sum_of_windows(
    x: Any, w: Any, stride: Sequence[int], pads: Pairs, dilation: Sequence[int], groups: int
) -> Any:
    windows, kernel = _grouped_windows(x, w.shape[2:], stride, pads, dilation, groups)
    count = len(kernel)
    batch, places = windows.shape[0], windows.shape[4 : 4 + count]
    # (N, G, out/G, p…, C/G, k…): the axes that are summed go last
    axes = list(range(windows.ndim))
    windows = windows.permute(axes[:3] + axes[4 : 4 + count] + [3] + axes[4 + count :])
    out, inner = w.shape[:2]
    w = w.reshape(1, groups, out // groups, *(1,) * count, inner, *kernel)
    total = windows.ndim
    return windows._contract(w, tuple(range(total - count - 1, total))).reshape(batch, out, *places)


def _grouped_windows(
    x: Any, kernel: Sequence[int], stride: Sequence[int], pads: Pairs, dilation: Sequence[int], groups: int
) -> tuple[Any, Sequence[int]]:
    """x as (N, G, 1, C/G, p…, k…)."""
    windows = x.pad([None, None, *pads])._windows(kernel, stride, dilation)
    batch, channels, *rest = windows.shape
    return windows.reshape(batch, groups, 1, channels // groups, *rest), kernel


def pull_convolution(new: Callable[[UOp], Any], node: UOp, g: UOp, source: int) -> UOp:
    """The gradient of x (source 1) or of the weights (source 2)."""
    _, stride, pads, dilation, groups = node.arg
    x, w, gradient = new(node.src[1]), new(node.src[2]), new(g)
    if source == 2:
        found = _pull_weights(x, w, gradient, stride, pads, dilation, groups)
    else:
        found = _pull_input(x, w, gradient, stride, pads, dilation, groups)
    uop: UOp = found.uop
    return uop


def _pull_weights(
    x: Any, w: Any, g: Any, stride: Sequence[int], pads: Pairs, dilation: Sequence[int], groups: int
) -> Any:
    """Every window of x times the gradient at its place, summed over places and the batch."""
    windows, kernel = _grouped_windows(x, w.shape[2:], stride, pads, dilation, groups)
    count = len(kernel)
    batch, out, *places = g.shape
    g = g.reshape(batch, groups, out // groups, 1, *places, *(1,) * count)
    return windows._contract(g, (0, *range(4, 4 + count))).reshape(*w.shape)


def _pull_input(
    x: Any, w: Any, g: Any, stride: Sequence[int], pads: Pairs, dilation: Sequence[int], groups: int
) -> Any:
    """A convolution of the gradient, with zeros in it and around it, with the weights turned around."""
    around: list[tuple[int, int]] = []
    for axis, (s, (before, _), d) in enumerate(zip(stride, pads, dilation, strict=True), 2):
        g = _with_zeros_between(g, axis, s)
        reach = (w.shape[axis] - 1) * d
        first = reach - before
        around.append((first, x.shape[axis] + reach - g.shape[axis] - first))
    cut = [(max(0, -a), size - max(0, -b)) for (a, b), size in zip(around, g.shape[2:], strict=True)]
    g = g.shrink([None, None, *cut])
    out, inner, *kernel = w.shape
    transposed = w.reshape(groups, out // groups, inner, *kernel).transpose(1, 2)
    transposed = transposed.reshape(groups * inner, out // groups, *kernel).flip(tuple(range(2, w.ndim)))
    ones = (1,) * len(kernel)
    return convolved(g, transposed, ones, [(max(0, a), max(0, b)) for a, b in around], dilation, groups)


def _with_zeros_between(g: Any, axis: int, stride: int) -> Any:
    """n elements become (n - 1)·stride + 1 with zeros between them."""
    if stride == 1:
        return g
    n = g.shape[axis]
    whole: list[Any] = [None] * g.ndim
    wide = g.unsqueeze(axis + 1).pad([*whole[: axis + 1], (0, stride - 1), *whole[axis + 1 :]])
    flat = wide.reshape(*g.shape[:axis], n * stride, *g.shape[axis + 1 :])
    return flat.shrink([*whole[:axis], (0, (n - 1) * stride + 1), *whole[axis + 1 :]])
