"""Resizing: (N, C, …) at other places between its elements, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.index import take
from morok.tensor.arrays.selection import repeat_interleave
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.once import is_narrow, narrowed, widened
from morok.tensor.elementwise.operators import T
from morok.tensor.images.taps import kept_array, trimmed, weighted
from morok.tensor.linalg.windows import factors_of, whole_numbers

_CUBIC, _CUBIC_ANTIALIAS = -0.75, -0.5  # the steepness of the cubic curve; PyTorch has two
_TAKEN = ("nearest", "nearest-exact")  # no elements are computed
MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "cubic", "area")


def interpolate(
    x: T,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> T:
    """(N, C, …) resized to `size`, or by a factor: "nearest", "nearest-exact", "linear", "bicubic", "area".

    "bilinear" and "trilinear" are other names of "linear", as in PyTorch. With `antialias`, "linear" and
    "bicubic" average over what one new element covers.

    >>> Tensor([[[1.0, 2.0]]]).interpolate(4).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    >>> Tensor([[[0.0, 4.0]]]).interpolate(4, mode="linear").tolist()
    [[[0.0, 1.0, 3.0, 4.0]]]
    """
    count = x.ndim - 2
    if mode not in MODES:
        raise ArgumentError(f"interpolate has the modes {', '.join(map(repr, MODES))}, not {mode!r}")
    if count < 1 or (size is None) == (scale_factor is None):
        raise ShapeError(f"interpolate of shape {show_shape(x.shape)} needs (N, C, …) and a size or a factor")
    if antialias and mode not in ("linear", "bilinear", "bicubic", "cubic"):
        raise ArgumentError(f'antialias is for "linear" and "bicubic", not for {mode!r}')
    factors = factors_of(scale_factor, count) if size is None else [None] * count
    wanted = whole_numbers(size, count) if size is not None else []
    axes = []
    for i, (old, factor) in enumerate(zip(x.shape[2:], factors, strict=True)):
        if not isinstance(old, int):
            raise ShapeError(f"interpolate of shape {show_shape(x.shape)} needs known sizes")
        new = wanted[i] if factor is None else int(old * factor)
        ratio = old / max(new, 1) if factor is None or recompute_scale_factor else 1.0 / factor
        axes.append((i, old, new, ratio))
    # what lies between elements is rounded once, after the last axis
    wide = x if mode in _TAKEN else widened(x)
    for i, old, new, ratio in sorted(axes, key=_least_work):
        wide = _resized(wide, 2 + i, old, new, ratio, mode, bool(align_corners), antialias)
    return narrowed(wide, x.dtype) if is_narrow(x.dtype) else wide


def _least_work(axis: tuple[int, int, int, float]) -> tuple[float, int]:
    """What leaves the least for other axes goes first; and the last axis, in which elements are read one by
    one and not in vectors, where it has the fewest of them."""
    i, old, new, _ = axis
    return new / max(old, 1), -i if new > old else i


def _resized(
    x: T, axis: int, old: int, new: int, ratio: float, mode: str, corners: bool, antialias: bool
) -> T:
    if mode in _TAKEN:
        return _nearest(x, axis, old, new, ratio, mode)
    if mode == "area":
        return window_averages(x, axis, old, new)
    kernel, reach = (cubic_curve, 2) if mode in ("bicubic", "cubic") else (linear_curve, 1)
    if antialias:
        scale = (old - 1) / (new - 1) if corners and new > 1 else ratio
        return weighted(x, axis, *antialias_taps(old, new, scale, kernel, reach))
    at = places_between(old, new, ratio, corners)
    if reach == 1:
        at = np.maximum(at, 0.0)
    return weighted(x, axis, *curve_taps(old, at, kernel, reach))


def _nearest(x: T, axis: int, old: int, new: int, ratio: float, mode: str) -> T:
    # in float32, as PyTorch: which of two elements is nearer is a matter of rounding
    steps = np.arange(new, dtype=np.float32)
    exact = mode == "nearest-exact"
    at = (steps + np.float32(0.5)) * np.float32(ratio) if exact else steps * np.float32(ratio)
    whole = np.minimum(np.floor(at).astype(np.int64), old - 1)
    if old and new % old == 0 and np.array_equal(whole, np.arange(new) // max(new // old, 1)):
        return repeat_interleave(x, new // old, axis)
    if x.dtype.is_float:
        return weighted(x, axis, whole[:, None], np.ones((new, 1)))
    return take(x, whole, axis)


# --- which elements, and how much of each


def places_between(old: int, new: int, ratio: float, corners: bool) -> Any:
    """Where the new elements lie between the old ones: at their centres, or from corner to corner."""
    steps = np.arange(new)
    if corners:
        return steps * ((old - 1) / (new - 1) if new > 1 else 0.0)
    return (steps + 0.5) * ratio - 0.5


def linear_curve(distance: Any, antialias: bool = False) -> Any:
    """The weight of an element at a distance: a tent."""
    return np.maximum(1.0 - np.abs(distance), 0.0)


def cubic_curve(distance: Any, antialias: bool = False, a: float | None = None) -> Any:
    """The weight of an element at a distance by cubic convolution."""
    a = (_CUBIC_ANTIALIAS if antialias else _CUBIC) if a is None else a
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


Curve = Callable[..., Any]


def curve_taps(old: int, at: Any, curve: Curve, reach: int) -> tuple[Any, Any]:
    """The 2·reach elements around each place; those over the edge are the ones at it."""
    low = np.floor(at).astype(np.int64)
    near = low[:, None] + np.arange(1 - reach, reach + 1)
    weights = curve(at[:, None] - near)
    places = np.clip(near, 0, max(old - 1, 0))
    return places, weights


def antialias_taps(old: int, new: int, scale: float, curve: Curve, reach: int) -> tuple[Any, Any]:
    """All elements under a curve that is as wide as the new elements, weights adding up to 1."""
    stretch = max(scale, 1.0)
    support = reach * stretch
    centre = (np.arange(new) + 0.5) * scale
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), old)
    width = int((last - first).max(initial=1))
    places = first[:, None] + np.arange(width)
    weights = curve((places + 0.5 - centre[:, None]) / stretch, True)
    weights = np.where(places < last[:, None], weights, 0.0)
    total = weights.sum(1, keepdims=True)
    return np.minimum(places, old - 1), weights / np.where(total == 0.0, 1.0, total)


def window_averages(x: T, axis: int, old: int, new: int) -> T:
    """Averages over windows of nearly equal size, which may overlap by one: an adaptive pool.

    Sums, then one division: shares that are rounded before they are added do not cancel where elements do.
    """
    first, last = adaptive_windows(old, new)
    counts = np.maximum(last - first, 1)
    places = first[:, None] + np.arange(int(counts.max(initial=1)))
    inside = (places < last[:, None]).astype(np.float64)
    sums = weighted(x, axis, *trimmed(np.minimum(places, old - 1), inside))
    shape = [1] * sums.ndim
    shape[axis] = new
    return sums / cast(kept_array(sums, counts.reshape(shape)), sums.dtype)


def adaptive_windows(old: int, new: int) -> tuple[Any, Any]:
    """(first, one past the last) of each of `new` windows of an axis."""
    steps = np.arange(new)
    return steps * old // max(new, 1), np.array([math.ceil((i + 1) * old / max(new, 1)) for i in steps], int)
