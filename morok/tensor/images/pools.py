"""Pools: the largest value, or the average, of each window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.index import take
from morok.tensor.arrays.movement import expand, reshape, squeeze, unflatten
from morok.tensor.arrays.padding import pad
from morok.tensor.arrays.reduce import mean
from morok.tensor.creation.constructors import arange, from_data, ones_like
from morok.tensor.elementwise.activations import relu
from morok.tensor.elementwise.comparison import eq, ne, where
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.images.resize import adaptive_windows, window_averages
from morok.tensor.linalg.windows import (
    known_size,
    padding_pairs,
    require_windows,
    slide,
    steps_of,
    whole_numbers,
)


def _beyond(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    """How far the last window reaches over the edge, if it is to be there."""
    low, high = pads
    reach = dilation * (kernel - 1) + 1
    over = size + low + high - reach
    count = -(-over // stride) + 1
    if (count - 1) * stride >= size + low:  # it would begin outside
        count -= 1
    return max(0, (count - 1) * stride - over)


def _pool(
    t: T, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Callable[[T, float, float], T], tuple[int, ...], bool]:
    """Windows of something of this shape, given what fills its edge and what lies beyond; their axes.

    Beyond: with `ceil_mode` the last window may reach over the edge, as long as it begins inside of it.
    """
    count = len(kernel) if isinstance(kernel, tuple | list) else 2
    sizes = steps_of(kernel, count, "kernel size")
    steps = sizes if stride is None else steps_of(stride, count, "stride")
    d = steps_of(dilation, count, "dilation")
    lead: list[Any] = [None] * (t.ndim - count)
    pads = padding_pairs(padding, sizes, d)
    beyond = [0] * count
    if ceil_mode:
        for i, size in enumerate(t.shape[t.ndim - count :]):
            beyond[i] = _beyond(known_size(size, "a pooled axis"), sizes[i], steps[i], d[i], pads[i])

    def windows(x: T, edge: float, outside: float) -> T:
        x = pad(x, [*lead, *pads], edge)
        if any(beyond):
            x = pad(x, [*lead, *((0, n) for n in beyond)], outside)
        require_windows(x.shape[-count:], sizes, d)
        return slide(x, sizes, steps, d)

    axes = tuple(range(t.ndim, t.ndim + count))
    return windows, axes, any(beyond)


def max_pool2d(
    t: T,
    kernel_size: Any = 2,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of the last axes; with `return_indices` also where it is in them.

    >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).max_pool2d(2).tolist()
    [[[[4.0]]]]
    >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).max_pool2d(2, return_indices=True)[1].tolist()
    [[[[3]]]]
    """
    windows, axes, _ = _pool(t, kernel_size, stride, padding, dilation, ceil_mode)
    least = t.dtype.min
    x = windows(t, least, least)
    top = reduce.max(x, axes)
    if not return_indices:
        return top
    sizes = t.shape[t.ndim - len(axes) :]
    count = math.prod(known_size(size, "a pooled axis") for size in sizes)
    places = reshape(arange(type(t), count, device=t.device), *(1,) * (t.ndim - len(axes)), *sizes)
    at = windows(expand(places, *t.shape), -1, -1)
    level = reshape(top, *top.shape, *(1,) * len(axes))
    hit = (at >= 0) & (eq(x, level) | ne(x, x))
    first = reduce.min(where(hit, at, count), axes)
    # among several NaNs the last one is meant, as elsewhere
    return top, where(
        ne(top, top), reduce.max(where(hit, at, -1), axes), first
    ) if t.dtype.is_float else first


@rounded_once
def avg_pool2d(
    t: T,
    kernel_size: Any = 2,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    divisor_override: int | None = None,
) -> T:
    """The average of each window of the last axes; the sum over `divisor_override`, if that is given.

    >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).avg_pool2d(2).tolist()
    [[[[2.5]]]]
    """
    windows, axes, reaches = _pool(t, kernel_size, stride, padding, 1, ceil_mode)
    x = windows(t, 0, 0)
    if divisor_override is not None:
        if not divisor_override:
            raise ArgumentError("divisor_override must not be 0")
        return reduce.sum(x, axes) / divisor_override
    if count_include_pad and not reaches:
        return mean(x, axes)
    inside = windows(ones_like(t), float(count_include_pad), 0)
    return reduce.sum(x, axes) / reduce.sum(inside, axes)


def max_pool1d(
    x: T,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of the last axis.

    >>> Tensor([[[1.0, 3.0, 2.0, 0.0]]]).max_pool1d(2).tolist()
    [[[3.0, 2.0]]]
    """
    kernel = whole_numbers(kernel_size, 1)
    return max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    x: T,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of the last three axes.

    >>> Tensor.ones(1, 1, 2, 2, 2).max_pool3d(2).shape
    (1, 1, 1, 1, 1)
    """
    kernel = whole_numbers(kernel_size, 3)
    return max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool1d(
    x: T,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    divisor_override: int | None = None,
) -> T:
    """The average of each window of the last axis.

    >>> Tensor([[[1.0, 3.0, 2.0, 0.0]]]).avg_pool1d(2).tolist()
    [[[2.0, 1.0]]]
    """
    kernel = whole_numbers(kernel_size, 1)
    return avg_pool2d(x, kernel, stride, padding, count_include_pad, ceil_mode, divisor_override)


def avg_pool3d(
    x: T,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    divisor_override: int | None = None,
) -> T:
    """The average of each window of the last three axes.

    >>> Tensor.ones(1, 1, 2, 2, 2).avg_pool3d(2).tolist()
    [[[[[1.0]]]]]
    """
    kernel = whole_numbers(kernel_size, 3)
    return avg_pool2d(x, kernel, stride, padding, count_include_pad, ceil_mode, divisor_override)


def _sizes(t: T, output_size: Any, count: int) -> list[int]:
    """How many windows each of the last axes gets; None keeps an axis as it is."""
    own = [known_size(n, "a pooled axis") for n in t.shape[t.ndim - count :]]
    many = list(output_size) if isinstance(output_size, tuple | list) else [output_size] * count
    if t.ndim < count or len(many) != count or any(w is not None and w < 0 for w in many):
        raise ShapeError(f"a pool of shape {show_shape(t.shape)} to {output_size!r} needs {count} sizes")
    if 0 in own and any(many):
        raise ShapeError(f"a pool of shape {show_shape(t.shape)} has nothing to choose from")
    return [n if w is None else w for w, n in zip(many, own, strict=True)]


def _averages(t: T, output_size: Any, count: int) -> T:
    """Windows of nearly equal size, so many as are asked for, one axis after the other."""
    x = t
    for i, wanted in enumerate(_sizes(t, output_size, count)):
        axis = t.ndim - count + i
        size = known_size(x.shape[axis], "a pooled axis")
        if wanted and size % wanted == 0:
            x = mean(unflatten(x, axis, (wanted, size // wanted)), axis + 1)
        elif wanted != size:
            x = window_averages(x, axis, size, wanted)
    return x


def _places_of_windows(size: int, wanted: int) -> Any:
    """The places (wanted, width) of the windows' elements; short windows name their last one again."""
    first, last = adaptive_windows(size, wanted)
    width = int((last - first).max(initial=1))
    return np.minimum(first[:, None] + np.arange(width), last[:, None] - 1)


def _largest(t: T, output_size: Any, count: int, return_indices: bool) -> Any:
    lead = t.ndim - count
    own = [known_size(n, "a pooled axis") for n in t.shape[lead:]]
    wanted = _sizes(t, output_size, count)
    windows = [_places_of_windows(n, w) for n, w in zip(own, wanted, strict=True)]
    x = t
    if not return_indices:
        for i, places in enumerate(windows):
            x = reduce.max(take(x, places, lead + i), lead + i + 1)
        return x
    flat: Any = 0
    for i, places in enumerate(windows):
        x = take(x, places, lead + 2 * i)
        shape = [1] * (2 * count)
        shape[2 * i : 2 * i + 2] = places.shape
        flat = flat * own[i] + places.reshape(shape)
    axes = tuple(range(lead + 1, lead + 2 * count, 2))
    top = reduce.max(x, axes, keepdim=True)
    at = from_data(t, flat)
    hit = eq(x, top) | ne(x, x) if t.dtype.is_float else eq(x, top)
    first = reduce.min(where(hit, at, int(np.prod(own))), axes)
    return squeeze(top, axes), first


@rounded_once
def adaptive_avg_pool1d(x: T, output_size: Any) -> T:
    """The averages of so many windows of nearly equal size of the last axis.

    >>> Tensor([[[1.0, 3.0, 5.0]]]).adaptive_avg_pool1d(2).tolist()
    [[[2.0, 4.0]]]
    """
    return _averages(x, output_size, 1)


@rounded_once
def adaptive_avg_pool2d(x: T, output_size: Any) -> T:
    """The averages of so many windows of nearly equal size of the last two axes.

    >>> Tensor.ones(1, 1, 4, 6).adaptive_avg_pool2d((2, 3)).shape
    (1, 1, 2, 3)
    """
    return _averages(x, output_size, 2)


@rounded_once
def adaptive_avg_pool3d(x: T, output_size: Any) -> T:
    """The averages of so many windows of nearly equal size of the last three axes.

    >>> Tensor.ones(1, 1, 4, 6, 5).adaptive_avg_pool3d((2, 3, None)).shape
    (1, 1, 2, 3, 5)
    """
    return _averages(x, output_size, 3)


def adaptive_max_pool1d(x: T, output_size: Any, return_indices: bool = False) -> Any:
    """The largest values of so many windows of nearly equal size of the last axis.

    >>> Tensor([[[1.0, 3.0, 5.0]]]).adaptive_max_pool1d(2).tolist()
    [[[3.0, 5.0]]]
    """
    return _largest(x, output_size, 1, return_indices)


def adaptive_max_pool2d(x: T, output_size: Any, return_indices: bool = False) -> Any:
    """The largest values of so many windows of nearly equal size of the last two axes.

    >>> Tensor.ones(1, 1, 4, 6).adaptive_max_pool2d(1).shape
    (1, 1, 1, 1)
    """
    return _largest(x, output_size, 2, return_indices)


def adaptive_max_pool3d(x: T, output_size: Any, return_indices: bool = False) -> Any:
    """The largest values of so many windows of nearly equal size of the last three axes.

    >>> Tensor.ones(1, 1, 4, 6, 5).adaptive_max_pool3d(1, return_indices=True)[1].tolist()
    [[[[[0]]]]]
    """
    return _largest(x, output_size, 3, return_indices)


def lp_pool(x: T, norm_type: float, count: int, kernel_size: Any, stride: Any, ceil_mode: bool) -> T:
    """The p-norm of each window of the last axes."""
    kernel = steps_of(kernel_size, count, "kernel size")
    total = avg_pool2d(floating(x) ** norm_type, tuple(kernel), stride, 0, True, ceil_mode, 1)
    return relu(total) ** (1.0 / norm_type)
