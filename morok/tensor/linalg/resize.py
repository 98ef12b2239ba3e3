"""Resizing: (N, C, …) at other places between its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.index import take
from morok.tensor.arrays.selection import repeat_interleave
from morok.tensor.creation.constructors import from_data
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.once import is_narrow, narrowed, widened
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.windows import factors_of, whole_numbers


def interpolate(
    x: T, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
) -> T:
    """(N, C, …) resized to `size`, or by a factor: "nearest", or "linear" in every direction.

    "bilinear" and "trilinear" are other names of "linear", as in PyTorch.

    >>> Tensor([[[1.0, 2.0]]]).interpolate(4).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    if mode != "nearest" and is_narrow(x.dtype):
        return narrowed(widened(x).interpolate(size, scale_factor, mode, align_corners), x.dtype)  # type: ignore[no-any-return]
    count = x.ndim - 2
    if mode not in ("nearest", "linear", "bilinear", "trilinear"):
        raise ArgumentError(f'interpolate has the modes "nearest" and "linear", not {mode!r}')
    if count < 1 or (size is None) == (scale_factor is None):
        raise ShapeError(f"interpolate of shape {show_shape(x.shape)} needs (N, C, …) and a size or a factor")
    factors = factors_of(scale_factor, count) if size is None else [None] * count
    wanted = whole_numbers(size, count) if size is not None else []
    for i in range(count):
        old = x.shape[2 + i]
        if not isinstance(old, int):
            raise ShapeError(f"interpolate of shape {show_shape(x.shape)} needs known sizes")
        factor = factors[i]
        new = wanted[i] if factor is None else int(old * factor)
        ratio = old / new if factor is None else 1.0 / factor
        x = _resized(x, 2 + i, old, new, ratio, mode, align_corners)
    return x


def _resized(x: T, axis: int, old: int, new: int, ratio: float, mode: str, corners: bool) -> T:
    places = np.arange(new)
    if mode == "nearest":
        whole = np.minimum((places * ratio).astype(np.int64), old - 1)
        if new % old == 0 and np.array_equal(whole, places // (new // old)):
            return repeat_interleave(x, new // old, axis)
        return take(x, whole, axis)
    step = (old - 1) / (new - 1) if corners and new > 1 else 0.0 if corners else ratio
    at = places * step if corners else np.maximum((places + 0.5) * ratio - 0.5, 0.0)
    low = np.minimum(at.astype(np.int64), old - 1)
    high = np.minimum(low + 1, old - 1)
    weight = np.clip(at - low, 0.0, 1.0).reshape([new if i == axis else 1 for i in range(x.ndim)])
    share = cast(from_data(x, weight), floating(x).dtype)
    below, above = take(x, low, axis), take(x, high, axis)
    return below * (-share + 1.0) + above * share
