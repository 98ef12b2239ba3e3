"""Patches of images as columns and back, and channels dealt out in space."""

from __future__ import annotations

import math
from typing import Any

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.movement import permute, reshape, squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.arrays.scatter import scatter
from morok.tensor.creation.constructors import as_operand, zeros
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.images.taps import overlap_taps, weighted
from morok.tensor.linalg.windows import known_size, require_windows, slide, steps_of, whole_numbers
from morok.tensor.sizes import as_axis


def im2col(t: T, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> T:
    """The patches of (N, C, H, W) as columns (N, C·h·w, L); PyTorch's `nn.functional.unfold`.

    >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).im2col((1, 2)).tolist()
    [[[1.0, 3.0], [2.0, 4.0]]]
    """
    if t.ndim not in (3, 4):
        raise ShapeError(f"im2col takes (N, C, H, W) or (C, H, W), not {show_shape(t.shape)}")
    if t.ndim == 3:
        return squeeze(im2col(unsqueeze(t, 0), kernel_size, dilation, padding, stride), 0)
    kernel, d, s = (
        steps_of(v, 2, what)
        for v, what in ((kernel_size, "kernel size"), (dilation, "dilation"), (stride, "stride"))
    )
    edge = whole_numbers(padding, 2)
    x = pad(t, [None, None, *((p, p) for p in edge)])
    require_windows(x.shape[2:], kernel, d)
    windows = slide(x, kernel, s, d)  # (N, C, oh, ow, kh, kw)
    n, c, rows, columns, kh, kw = windows.shape
    together = permute(windows, 0, 1, 4, 5, 2, 3)
    return reshape(together, n, known_size(c, "an axis of channels") * kh * kw, rows * columns)


@rounded_once
def col2im(
    t: T, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> T:
    """Columns (N, C·h·w, L) added up to images (N, C, H, W); PyTorch's `nn.functional.fold`.

    >>> Tensor([[[1.0, 3.0], [2.0, 4.0]]]).col2im((2, 2), (1, 2)).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    if t.ndim == 2:
        return squeeze(col2im(unsqueeze(t, 0), output_size, kernel_size, dilation, padding, stride), 0)
    kernel, d, s = (
        steps_of(v, 2, what)
        for v, what in ((kernel_size, "kernel size"), (dilation, "dilation"), (stride, "stride"))
    )
    edge, size = whole_numbers(padding, 2), whole_numbers(output_size, 2)
    counts = [(size[i] + 2 * edge[i] - d[i] * (kernel[i] - 1) - 1) // s[i] + 1 for i in range(2)]
    patch = math.prod(kernel)
    if t.ndim != 3 or not isinstance(t.shape[1], int) or t.shape[1] % patch:
        raise ShapeError(
            f"col2im with kernels {tuple(kernel)} takes (N, C·{patch}, L), not {show_shape(t.shape)}"
        )
    if min(counts) < 1 or t.shape[2] != math.prod(counts):
        raise ShapeError(
            f"col2im to {tuple(size)} needs {math.prod(counts)} columns, not shape {show_shape(t.shape)}"
        )
    channels = t.shape[1] // patch
    x = reshape(t, t.shape[0], channels, *kernel, *counts)
    x = permute(x, 0, 1, 2, 4, 3, 5)  # (N, C, kh, oh, kw, ow)
    x = reshape(x, t.shape[0], channels, kernel[0] * counts[0], kernel[1] * counts[1])
    for i in range(2):
        x = weighted(x, 2 + i, *overlap_taps(size[i], kernel[i], counts[i], edge[i], s[i], d[i]))
    return x


# --- channels and space


def pixel_shuffle(x: T, upscale_factor: int) -> T:
    """(…, C·r², H, W) as (…, C, H·r, W·r).

    >>> Tensor([[[1.0]], [[2.0]], [[3.0]], [[4.0]]]).pixel_shuffle(2).tolist()
    [[[1.0, 2.0], [3.0, 4.0]]]
    """
    r = upscale_factor
    *lead, channels, rows, columns = _image(x, "pixel_shuffle")
    if r < 1 or not isinstance(channels, int) or channels % (r * r):
        raise ShapeError(f"pixel_shuffle by {r} needs a multiple of {r * r} channels, not {channels}")
    n = len(lead)
    y = reshape(x, *lead, channels // (r * r), r, r, rows, columns)
    y = permute(y, *range(n), n, n + 3, n + 1, n + 4, n + 2)
    return reshape(y, *lead, channels // (r * r), rows * r, columns * r)


def pixel_unshuffle(x: T, downscale_factor: int) -> T:
    """(…, C, H·r, W·r) as (…, C·r², H, W): the opposite of `pixel_shuffle`.

    >>> Tensor([[[1.0, 2.0], [3.0, 4.0]]]).pixel_unshuffle(2).flatten().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    r = downscale_factor
    *lead, channels, rows, columns = _image(x, "pixel_unshuffle")
    if r < 1 or rows % r or columns % r:
        raise ShapeError(f"pixel_unshuffle by {r} needs sizes that it divides, not {rows} and {columns}")
    n = len(lead)
    y = reshape(x, *lead, channels, rows // r, r, columns // r, r)
    y = permute(y, *range(n), n, n + 2, n + 4, n + 1, n + 3)
    return reshape(y, *lead, channels * r * r, rows // r, columns // r)


def _image(x: T, what: str) -> list[Any]:
    if x.ndim < 3:
        raise ShapeError(f"{what} takes (…, C, H, W), not {show_shape(x.shape)}")
    return [*x.shape[:-3], *(known_size(n, "an axis of an image") for n in x.shape[-3:])]


def channel_shuffle(x: T, groups: int) -> T:
    """Channels (axis 1) of groups dealt out in turn.

    >>> Tensor([[[1.0], [2.0], [3.0], [4.0]]]).channel_shuffle(2).flatten().tolist()
    [1.0, 3.0, 2.0, 4.0]
    """
    at = as_axis(1, x.ndim, x.shape)
    channels = known_size(x.shape[at], "the axis of channels")
    if groups < 1 or channels % groups:
        raise ShapeError(f"{groups} groups do not divide {channels} channels")
    rest = x.shape[2:]
    y = reshape(x, x.shape[0], groups, channels // groups, *rest)
    return reshape(permute(y, 0, 2, 1, *range(3, y.ndim)), x.shape)


# --- the way back from a pool


def max_unpool(
    x: T, indices: Any, count: int, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> T:
    """Elements at the places that a max pool over `count` axes has taken them from; zeros elsewhere."""
    kernel = steps_of(kernel_size, count, "kernel size")
    step = kernel if stride is None else steps_of(stride, count, "stride")
    edge = whole_numbers(padding, count)
    own = [known_size(n, "a pooled axis") for n in x.shape[x.ndim - count :]]
    usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(own, step, edge, kernel, strict=True)]
    wanted = usual if output_size is None else whole_numbers(tuple(output_size)[-count:], count)
    if any(abs(w - u) >= max(s, 1) for w, u, s in zip(wanted, usual, step, strict=True)):
        raise ShapeError(f"an unpool of {tuple(own)} gives about {tuple(usual)}, not {tuple(wanted)}")
    lead = x.shape[: x.ndim - count]
    places = as_operand(x, indices)
    empty = x._new(zeros(type(x), *lead, math.prod(wanted), dtype=x.dtype, device=x.device).uop)
    put = scatter(empty, -1, reshape(places, *lead, math.prod(own)), reshape(x, *lead, math.prod(own)))
    return reshape(put, *lead, *wanted)


def max_unpool1d(
    x: T, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> T:
    """The opposite of `max_pool1d(…, return_indices=True)`, zeros where nothing was taken.

    >>> Tensor([[[4.0]]]).max_unpool1d(Tensor([[[1]]]), 2).tolist()
    [[[0.0, 4.0]]]
    """
    return max_unpool(x, indices, 1, kernel_size, stride, padding, output_size)


def max_unpool2d(
    x: T, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> T:
    """The opposite of `max_pool2d(…, return_indices=True)`, zeros where nothing was taken.

    >>> Tensor([[[[4.0]]]]).max_unpool2d(Tensor([[[[2]]]]), 2).tolist()
    [[[[0.0, 0.0], [4.0, 0.0]]]]
    """
    return max_unpool(x, indices, 2, kernel_size, stride, padding, output_size)


def max_unpool3d(
    x: T, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> T:
    """The opposite of `max_pool3d(…, return_indices=True)`, zeros where nothing was taken.

    >>> Tensor([[[[[4.0]]]]]).max_unpool3d(Tensor([[[[[0]]]]]), 1).tolist()
    [[[[[4.0]]]]]
    """
    return max_unpool(x, indices, 3, kernel_size, stride, padding, output_size)
