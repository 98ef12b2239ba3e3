"""Convolutions, pools, resizing and sampling with PyTorch's arguments."""

from __future__ import annotations

from typing import Any

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.tensor.calls.record import recorded
from morok.tensor.images.pools import lp_pool
from morok.tensor.tensor import Tensor

pixel_shuffle, pixel_unshuffle = Tensor.pixel_shuffle, Tensor.pixel_unshuffle
channel_shuffle, grid_sample, affine_grid = Tensor.channel_shuffle, Tensor.grid_sample, Tensor.affine_grid
max_unpool1d, max_unpool2d, max_unpool3d = Tensor.max_unpool1d, Tensor.max_unpool2d, Tensor.max_unpool3d
adaptive_avg_pool1d, adaptive_avg_pool2d = Tensor.adaptive_avg_pool1d, Tensor.adaptive_avg_pool2d
adaptive_avg_pool3d, adaptive_max_pool1d = Tensor.adaptive_avg_pool3d, Tensor.adaptive_max_pool1d
adaptive_max_pool2d, adaptive_max_pool3d = Tensor.adaptive_max_pool2d, Tensor.adaptive_max_pool3d
interpolate = Tensor.interpolate


def _conv(
    input: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, axes: int
) -> Tensor:
    plain = [
        v[0] if isinstance(v, tuple | list) and len(v) == 1 < axes else v for v in (stride, padding, dilation)
    ]
    function = (Tensor.conv1d, Tensor.conv2d, Tensor.conv3d)[axes - 1]
    s, p, d = plain
    if (isinstance(p, tuple | list) and axes > 1) or (not isinstance(p, str) and isinstance(p, tuple | list)):
        p = tuple(p)
    return function(input, weight, bias, groups=groups, stride=s, dilation=d, padding=p)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution of (N, C, L), or of one (C, L), with weights (O, C / groups, k).

    >>> conv1d(Tensor([[[1.0, 2.0, 3.0]]]), Tensor([[[1.0, 1.0]]])).tolist()
    [[[3.0, 5.0]]]
    """
    return _conv(input, weight, bias, stride, padding, dilation, groups, 1)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution of (N, C, H, W), or of one (C, H, W), with weights (O, C / groups, kh, kw).

    >>> conv2d(Tensor.ones(1, 1, 3, 3), Tensor.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    return _conv(input, weight, bias, stride, padding, dilation, groups, 2)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution of (N, C, D, H, W) with weights (O, C / groups, kd, kh, kw).

    >>> conv3d(Tensor.ones(1, 1, 2, 2, 2), Tensor.ones(1, 1, 2, 2, 2)).item()
    8.0
    """
    return _conv(input, weight, bias, stride, padding, dilation, groups, 3)


def _transposed(
    input: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    extra: Any,
    groups: int,
    dilation: Any,
    axes: int,
) -> Tensor:
    function = (Tensor.conv_transpose1d, Tensor.conv_transpose2d, Tensor.conv_transpose3d)[axes - 1]
    s, p, e, d = (
        v[0] if isinstance(v, tuple | list) and len(v) == 1 else v for v in (stride, padding, extra, dilation)
    )
    lone = input.ndim == axes + 1
    x = input.unsqueeze(0) if lone else input
    found = function(x, weight, bias, stride=s, padding=p, output_padding=e, groups=groups, dilation=d)
    return found.squeeze(0) if lone else found


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A transposed convolution of (N, C, L) with weights (C, O / groups, k).

    >>> conv_transpose1d(Tensor([[[1.0, 2.0]]]), Tensor([[[1.0, 1.0]]])).tolist()
    [[[1.0, 3.0, 2.0]]]
    """
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 1)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A transposed convolution of (N, C, H, W) with weights (C, O / groups, kh, kw).

    >>> conv_transpose2d(Tensor.ones(1, 1, 1, 1), Tensor.ones(1, 1, 2, 2)).tolist()
    [[[[1.0, 1.0], [1.0, 1.0]]]]
    """
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 2)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A transposed convolution of (N, C, D, H, W) with weights (C, O / groups, kd, kh, kw).

    >>> conv_transpose3d(Tensor.ones(1, 1, 1, 1, 1), Tensor.ones(1, 1, 1, 1, 2)).tolist()
    [[[[[1.0, 1.0]]]]]
    """
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 3)


# --- pools


def _all(value: Any, axes: int) -> tuple[Any, ...]:
    many = tuple(value) if isinstance(value, tuple | list) else (value,) * axes
    return many * axes if len(many) == 1 else many


def _max_pool(
    x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, indices: bool, axes: int
) -> Any:
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"max_pool{axes}d takes {axes + 1} or {axes + 2} axes, not {show_shape(x.shape)}")
    step = None if stride is None or stride == [] or stride == () else _all(stride, axes)
    return x.max_pool2d(_all(kernel, axes), step, _all(padding, axes), _all(dilation, axes), ceil, indices)


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of (N, C, L).

    >>> max_pool1d(Tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2).tolist()
    [[[3.0, 2.0]]]
    """
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 1)


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of (N, C, H, W).

    >>> max_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[4.0]]]]
    """
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 2)


def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of (N, C, D, H, W).

    >>> max_pool3d(Tensor.ones(1, 1, 2, 2, 2), 2).tolist()
    [[[[[1.0]]]]]
    """
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 3)


def _avg_pool(
    x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, edges: bool, divisor: Any, axes: int
) -> Tensor:
    step = None if stride is None or stride == [] or stride == () else _all(stride, axes)
    return x.avg_pool2d(_all(kernel, axes), step, _all(padding, axes), edges, ceil, divisor)


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The average of each window of (N, C, L).

    >>> avg_pool1d(Tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2).tolist()
    [[[2.0, 1.0]]]
    """
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, None, 1)


def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of each window of (N, C, H, W).

    >>> avg_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[2.5]]]]
    """
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of each window of (N, C, D, H, W).

    >>> avg_pool3d(Tensor.ones(1, 1, 2, 2, 2), 2).tolist()
    [[[[[1.0]]]]]
    """
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


_lp = recorded(lp_pool)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window of (N, C, L).

    >>> lp_pool1d(Tensor([[[3.0, 4.0]]]), 2, 2).tolist()
    [[[5.0]]]
    """
    return _lp(input, norm_type, 1, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window of (N, C, H, W).

    >>> lp_pool2d(Tensor([[[[3.0, 4.0]]]]), 2, (1, 2)).tolist()
    [[[[5.0]]]]
    """
    return _lp(input, norm_type, 2, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window of (N, C, D, H, W).

    >>> lp_pool3d(Tensor([[[[[3.0, 4.0]]]]]), 2, (1, 1, 2)).tolist()
    [[[[[5.0]]]]]
    """
    return _lp(input, norm_type, 3, kernel_size, stride, ceil_mode)


# --- patches, padding, resizing


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The patches of (N, C, H, W) as columns (N, C·h·w, L).

    >>> unfold(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), (1, 2)).tolist()
    [[[1.0, 3.0], [2.0, 4.0]]]
    """
    return input.im2col(*(_all(v, 2) for v in (kernel_size, dilation, padding, stride)))


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Columns (N, C·h·w, L) added up to images (N, C, H, W).

    >>> fold(Tensor([[[1.0, 3.0], [2.0, 4.0]]]), (2, 2), (1, 2)).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    return input.col2im(*(_all(v, 2) for v in (output_size, kernel_size, dilation, padding, stride)))


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Values around the last axes; two numbers for each, the last axis first.

    >>> pad(Tensor([1.0]), (1, 0), value=5.0).tolist()
    [5.0, 1.0]
    """
    return input.pad(list(pad), 0 if value is None else value, mode)


def upsample(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """As `interpolate`.

    >>> upsample(Tensor([[[1.0]]]), 2).tolist()
    [[[1.0, 1.0]]]
    """
    return input.interpolate(size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` in mode "nearest".

    >>> upsample_nearest(Tensor([[[1.0]]]), 2).tolist()
    [[[1.0, 1.0]]]
    """
    return input.interpolate(size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` in mode "bilinear" from corner to corner.

    >>> upsample_bilinear(Tensor([[[[0.0, 2.0]]]]), (1, 3)).tolist()
    [[[[0.0, 1.0, 2.0]]]]
    """
    return input.interpolate(size, scale_factor, "bilinear", True)
