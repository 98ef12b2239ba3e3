"""Convolutions as sums over windows, and their gradients, which are convolutions again.

    y[n, o, p] = Σ over c, k of x[n, c, p·stride + k·dilation - padding] · w[o, c, k]

Derived step by step, the gradient of x would add up overlapping windows. Seen as a whole it is a convolution
of the gradient with the weights turned; with a stride, one for each place between two of its elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from morok.errors import ShapeError
from morok.ir.call import attributes, call
from morok.ir.infer import show_shape
from morok.ir.node import UOp
from morok.tensor.arrays.arrange import movedim
from morok.tensor.arrays.movement import (
    flatten,
    flip,
    narrow,
    permute,
    reshape,
    shrink,
    squeeze,
    transpose,
    unsqueeze,
)
from morok.tensor.arrays.padding import pad
from morok.tensor.core import Core
from morok.tensor.creation.constructors import as_operand, contiguous
from morok.tensor.elementwise.once import common_type, narrowed, rounded_once, widened
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.products import contract
from morok.tensor.linalg.windows import (
    known_size,
    padding_pairs,
    require_windows,
    slide,
    steps_of,
    whole_numbers,
)

Pairs = Sequence[tuple[int, int]]


def convolved(
    x: Any,
    w: Any,
    stride: Sequence[int],
    pads: Pairs,
    dilation: Sequence[int],
    groups: int,
    channels_last: bool = False,
) -> Any:
    """The convolution of (N, C, …) with (out, C / groups, …), under its name.

    With `channels_last` the sums are of the shape (N, …, out), and so is memory that is made for them.
    """
    y = _sum_of_windows(x, w, stride, pads, dilation, groups, channels_last)
    how = {"stride": tuple(stride), "pads": tuple(map(tuple, pads)), "dilation": tuple(dilation)}
    named = call("conv", y.uop, x.uop, w.uop, **how, groups=groups, channels_last=channels_last)
    return y._new(named)


def _sum_of_windows(
    x: Any,
    w: Any,
    stride: Sequence[int],
    pads: Pairs,
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
) -> Any:
    windows, kernel = _grouped_windows(x, w.shape[2:], stride, pads, dilation, groups)
    count = len(kernel)
    batch, places = windows.shape[0], windows.shape[4 : 4 + count]
    # (N, G, out/G, p…, C/G, k…), or (N, p…, G, out/G, C/G, k…): the axes that are summed go last
    axes = list(range(windows.ndim))
    channels, sums = axes[1:3], [3, *axes[4 + count :]]
    between = axes[4 : 4 + count]
    windows = windows.permute([0, *(between + channels if channels_last else channels + between), *sums])
    out, inner = w.shape[:2]
    ones, made = (1,) * count, (groups, out // groups)
    w = w.reshape(1, *((*ones, *made) if channels_last else (*made, *ones)), inner, *kernel)
    total = windows.ndim
    y = contract(windows, w, tuple(range(total - count - 1, total)))
    if channels_last:
        return y.reshape(batch, *places, out).permute(0, 1 + count, *range(1, 1 + count))
    return y.reshape(batch, out, *places)


def _grouped_windows(
    x: Any, kernel: Sequence[int], stride: Sequence[int], pads: Pairs, dilation: Sequence[int], groups: int
) -> tuple[Any, Sequence[int]]:
    """x as (N, G, 1, C/G, p…, k…)."""
    windows = slide(x.pad([None, None, *pads]), kernel, stride, dilation)
    batch, channels, *rest = windows.shape
    return windows.reshape(batch, groups, 1, channels // groups, *rest), kernel


@rounded_once
def conv2d(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> T:
    """The convolution of (N, C, …) with weights (out, C / groups, …), of any number of dimensions.

    >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    return _convolution(x, weight, bias, stride, padding, dilation, groups)


def conv_channels_last(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> T:
    """As `conv2d`, of images whose channels lie side by side in memory: so will those of the result.

    Weights of single channels are copied so, too: a vector of channels is multiplied by a vector of them.
    """
    if weight.shape[1] == 1:
        weight = movedim(contiguous(movedim(weight, 0, -1)), -1, 0)
    wide, w, b = (widened(value) for value in (x, weight, bias))
    y: T = _convolution(wide, w, b, stride, padding, dilation, groups, channels_last=True)
    kind = common_type(x, weight, bias)
    return with_channels_last(y, lambda turned: narrowed(turned, kind))


def with_channels_last(x: T, function: Callable[[T], T]) -> T:
    """A function of single numbers, whose result is computed with the second axis behind all others."""
    inner = range(2, x.ndim)
    return permute(function(permute(x, 0, *inner, 1)), 0, x.ndim - 1, *(n - 1 for n in inner))


def _convolution(
    x: T,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    channels_last: bool = False,
) -> T:
    w = as_operand(x, weight)
    count = w.ndim - 2
    if x.ndim == w.ndim - 1 > 1:  # one sample
        one = unsqueeze(x, 0)
        return squeeze(_convolution(one, w, bias, stride, padding, dilation, groups, channels_last), 0)
    _check_conv(x, w, groups)
    kernel = [known_size(size, "a kernel") for size in w.shape[2:]]
    s, d = steps_of(stride, count, "stride"), steps_of(dilation, count, "dilation")
    pads = padding_pairs(padding, kernel, d)
    require_windows(pad(x, [None, None, *pads]).shape[2:], kernel, d)
    y: T = convolved(x, w, s, pads, d, groups, channels_last)
    if bias is None:
        return y
    own = as_operand(x, bias)
    if channels_last:
        return with_channels_last(y, lambda turned: turned + own)
    return y + reshape(own, 1, -1, *(1,) * count)


def _of_rank(x: T, weight: Any, count: int, what: str) -> T:
    w = as_operand(x, weight)
    if x.ndim not in (count + 1, count + 2) or w.ndim != count + 2:
        raise ShapeError(
            f"{what} takes (N, C, …) or (C, …) and weights with {count} more axes each, not "
            f"{show_shape(x.shape)} and {show_shape(w.shape)}"
        )
    return w


def conv1d(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> T:
    """The convolution of (N, C, L) with weights (out, C / groups, k).

    >>> Tensor.ones(1, 1, 3).conv1d(Tensor.ones(1, 1, 2)).tolist()
    [[[2.0, 2.0]]]
    """
    w = _of_rank(x, weight, 1, "conv1d")
    return conv2d(x, w, bias, stride, padding, dilation, groups)


def conv3d(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> T:
    """The convolution of (N, C, D, H, W) with weights (out, C / groups, kd, kh, kw).

    >>> Tensor.ones(1, 1, 2, 2, 2).conv3d(Tensor.ones(1, 1, 2, 2, 2)).tolist()
    [[[[[8.0]]]]]
    """
    w = _of_rank(x, weight, 3, "conv3d")
    return conv2d(x, w, bias, stride, padding, dilation, groups)


def conv_transpose(
    t: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> T:
    """The convolution backwards: (N, C, …) with weights (C, out / groups, …), of any dimensions.

    Zeros go between the inputs, and the weights run over them backwards. With a stride alone, each of the
    places between two inputs has weights of its own, and nothing is multiplied with a zero.

    >>> Tensor.ones(1, 1, 2).conv_transpose(Tensor.ones(1, 1, 2), stride=2).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    x, w = t, as_operand(t, weight)
    if x.ndim == w.ndim - 1 > 1:  # one sample
        one = unsqueeze(x, 0)
        return squeeze(conv_transpose(one, w, bias, stride, padding, output_padding, groups, dilation), 0)
    count = x.ndim - 2
    if w.ndim != x.ndim or count < 1 or w.shape[0] != x.shape[1] or known_size(w.shape[0], "groups") % groups:
        raise ShapeError(
            f"a transposed convolution of {show_shape(x.shape)} with weights {show_shape(w.shape)} in "
            f"{groups} groups needs (N, C, …) and (C, out / groups, …), with groups that divide C"
        )
    s, p, o, d = (whole_numbers(v, count) for v in (stride, padding, output_padding, dilation))
    inner, per_group, *kernel = (known_size(size, "the weights of a convolution") for size in w.shape)
    if max(s) > 1 and max(d) == 1:
        y = _in_phases(x, w, s, p, o, groups)
        return y if bias is None else y + reshape(as_operand(x, bias), 1, -1, *(1,) * count)
    for i in range(count):
        x = _spread(x, 2 + i, s[i])
    edges = [d[i] * (kernel[i] - 1) - p[i] for i in range(count)]
    x = pad(x, [None, None, *((edge, edge + o[i]) for i, edge in enumerate(edges))])
    w = transpose(reshape(w, groups, inner // groups, per_group, *kernel), 1, 2)
    w = flip(reshape(w, groups * per_group, inner // groups, *kernel), *range(2, 2 + count))
    return conv2d(x, w, bias, dilation=d, groups=groups)


def _in_phases(
    x: T, w: Any, stride: Sequence[int], padding: Sequence[int], extra: Sequence[int], groups: int
) -> T:
    """A transposed convolution with steps: y[q·s + a] = Σ over c, j of x[c, q - j] · w[c, j·s + a].

    The s phases a are channels of a plain convolution with a kernel of ⌈k/s⌉, and then put in their places.
    A kernel no longer than the step is a product, and has no more phases than weights.
    """
    count = len(stride)
    inner, per_group, *kernel = (known_size(size, "the weights of a convolution") for size in w.shape)
    reach = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    there = [min(s, k) for s, k in zip(stride, kernel, strict=True)]
    ends = [(0, r * s - k) for r, s, k in zip(reach, there, kernel, strict=True)]
    w = pad(reshape(w, groups, inner // groups, per_group, *kernel), [None, None, None, *ends])
    split = [n for r, s in zip(reach, there, strict=True) for n in (r, s)]
    w = reshape(w, groups, inner // groups, per_group, *split)
    turns, phases = ([3 + 2 * i + n for i in range(count)] for n in (0, 1))
    w = flip(permute(w, 0, 2, *phases, 1, *turns), *range(3 + count, 3 + 2 * count))
    w = reshape(w, groups * per_group * math.prod(there), inner // groups, *reach)
    y = contiguous(conv2d(x, w, padding=tuple([r - 1 for r in reach]), groups=groups))
    places = y.shape[2:]
    y = reshape(y, y.shape[0], groups * per_group, *there, *places)
    empty = [(0, s - n) for s, n in zip(stride, there, strict=True)]
    y = pad(y, [None, None, *empty, *(None for _ in range(count))])
    pairs = [n for i in range(count) for n in (2 + count + i, 2 + i)]
    y = permute(y, 0, 1, *pairs)
    y = reshape(y, *y.shape[:2], *(n * s for n, s in zip(places, stride, strict=True)))
    wanted = [
        (n - 1) * s + k - 2 * p + o
        for n, s, k, p, o in zip(x.shape[2:], stride, kernel, padding, extra, strict=True)
    ]
    more = [
        max(0, k - p + o - r * s) for k, p, o, r, s in zip(kernel, padding, extra, reach, stride, strict=True)
    ]
    y = pad(y, [None, None, *((0, n) for n in more)])
    return shrink(y, [None, None, *((p, p + n) for p, n in zip(padding, wanted, strict=True))])


def _spread(x: T, axis: int, stride: int) -> T:
    """An axis with stride-1 zeros between its elements."""
    if stride == 1:
        return x
    gaps: list[Any] = [None] * (x.ndim + 1)
    gaps[axis + 1] = (0, stride - 1)
    size = int(x.shape[axis])  # type: ignore[arg-type]
    wide = flatten(pad(unsqueeze(x, axis + 1), gaps), axis, axis + 1)
    return narrow(wide, axis, 0, (size - 1) * stride + 1)


def conv_transpose1d(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> T:
    """The transposed convolution of (N, C, L) with weights (C, out / groups, k).

    >>> Tensor.ones(1, 1, 2).conv_transpose1d(Tensor.ones(1, 1, 2)).tolist()
    [[[1.0, 2.0, 1.0]]]
    """
    w = _of_rank(x, weight, 1, "conv_transpose1d")
    return conv_transpose(x, w, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> T:
    """The transposed convolution of (N, C, H, W) with weights (C, out / groups, kh, kw).

    >>> Tensor.ones(1, 1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 1, 2)).tolist()
    [[[[1.0, 2.0, 1.0]]]]
    """
    w = _of_rank(x, weight, 2, "conv_transpose2d")
    return conv_transpose(x, w, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: T,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> T:
    """The transposed convolution of (N, C, D, H, W) with weights (C, out / groups, kd, kh, kw).

    >>> Tensor.ones(1, 1, 1, 1, 2).conv_transpose3d(Tensor.ones(1, 1, 1, 1, 2)).tolist()
    [[[[[1.0, 2.0, 1.0]]]]]
    """
    w = _of_rank(x, weight, 3, "conv_transpose3d")
    return conv_transpose(x, w, bias, stride, padding, output_padding, groups, dilation)


def _check_conv(x: Core, w: Core, groups: int) -> None:
    if w.ndim < 3 or x.ndim != w.ndim:
        raise ShapeError(
            f"a convolution of {show_shape(x.shape)} with weights {show_shape(w.shape)} needs (N, C, …) or "
            "(C, …) and (out, C / groups, …) with equally many axes, 3 or more"
        )
    channels, inner, out = x.shape[1], w.shape[1], w.shape[0]
    fits = (
        isinstance(inner, int) and channels == inner * groups and isinstance(out, int) and out % groups == 0
    )
    if not fits:
        raise ShapeError(
            f"a convolution of {show_shape(x.shape)} with weights {show_shape(w.shape)} in {groups} groups "
            f"needs as many input channels as groups times the weights' second axis, and groups that divide "
            f"the outputs"
        )


def pull_convolution(new: Callable[[UOp], Any], node: UOp, g: UOp, source: int) -> UOp:
    """The gradient of x (source 1) or of the weights (source 2)."""
    x, w, gradient = new(node.src[1]), new(node.src[2]), new(g)
    pull = _pull_weights if source == 2 else _pull_input
    uop: UOp = pull(x, w, gradient, **attributes(node)).uop
    return uop


def _pull_weights(
    x: Any,
    w: Any,
    g: Any,
    stride: Sequence[int],
    pads: Pairs,
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
) -> Any:
    """Every window of x times the gradient at its place, summed over places and the batch."""
    windows, kernel = _grouped_windows(x, w.shape[2:], stride, pads, dilation, groups)
    count = len(kernel)
    batch, out, *places = g.shape
    g = g.reshape(batch, groups, out // groups, 1, *places, *(1,) * count)
    return contract(windows, g, (0, *range(4, 4 + count))).reshape(*w.shape)


def _pull_input(
    x: Any,
    w: Any,
    g: Any,
    stride: Sequence[int],
    pads: Pairs,
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
) -> Any:
    """A convolution of the gradient, with zeros around it, with the weights turned around. With a step: one
    for each place between two of the gradient's; where weights lie apart as well, zeros are between them."""
    sizes = (*x.shape[2:], *g.shape[2:])
    if max(stride) > 1 and max(dilation) == 1 and all(isinstance(n, int) for n in sizes):
        starts = [first for first, _ in pads]
        reached = [
            (n - 1) * s + k - 2 * p
            for n, s, k, p in zip(g.shape[2:], stride, w.shape[2:], starts, strict=True)
        ]
        extra = [n - m for n, m in zip(x.shape[2:], reached, strict=True)]
        return _in_phases(g, w, stride, starts, extra, groups)
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
    pads = [(max(0, a), max(0, b)) for a, b in around]
    return convolved(g, transposed, ones, pads, dilation, groups, channels_last)


def _with_zeros_between(g: Any, axis: int, stride: int) -> Any:
    """n elements become (n - 1)·stride + 1 with zeros between them."""
    if stride == 1:
        return g
    n = g.shape[axis]
    whole: list[Any] = [None] * g.ndim
    wide = g.unsqueeze(axis + 1).pad([*whole[: axis + 1], (0, stride - 1), *whole[axis + 1 :]])
    flat = wide.reshape(*g.shape[:axis], n * stride, *g.shape[axis + 1 :])
    return flat.shrink([*whole[:axis], (0, (n - 1) * stride + 1), *whole[axis + 1 :]])
