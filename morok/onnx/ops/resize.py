"""Resize and its ancestors, axis by axis: which elements of the input, with which weights, make an output.

Positions and weights are constants of the plan where sizes are known. Along an axis of a symbolic size, or to
one, they are computed: for nearest and linear modes whose positions do not depend on more than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import ShapeError, UnsupportedModel
from morok.onnx.ops.common import axes_of, back, known
from morok.onnx.table import Nums, OpenSize, T, op
from morok.onnx.types import Array
from morok.onnx.values import symbolic_scalar
from morok.tensor.tensor import Tensor

_FINEST = 1 << 10  # parts of an element that symbolic sizes are multiplied by


@dataclass(frozen=True)
class _Way:
    """How one resizes: the attributes of the operator."""

    mode: str = "nearest"
    transform: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude: int = 0
    antialias: int = 0
    outside: float = 0.0


@op("Resize", since=18)
def resize(
    x: T,
    roi: Nums | None,
    scales: Nums | None,
    sizes: Nums | None,
    *,
    antialias: int = 0,
    axes: Any = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> T:
    way = _Way(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
        antialias,
        extrapolation_value,
    )
    return resized(x, way, roi, scales, sizes, axes, keep_aspect_ratio_policy)


@op("Resize", since=11, until=17)
def resize_11(
    x: T,
    roi: Nums | None,
    scales: Nums | None,
    sizes: Nums | None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> T:
    way = _Way(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
        0,
        extrapolation_value,
    )
    return resized(x, way, roi, scales, sizes, None, "stretch")


@op("Resize", since=10, until=10)
@op("Upsample", since=9)
def upsample(x: T, scales: Nums, *, mode: str = "nearest") -> T:
    way = _Way("linear" if mode in ("linear", "bilinear") else mode, "asymmetric", "floor")
    return resized(x, way, None, scales, None, None, "stretch")


@op("Upsample", since=7, until=8)
def upsample_7(x: T, *, scales: Any, mode: str = "nearest") -> T:
    return upsample(x, tuple(scales), mode=mode)


@op("Upsample", until=6)
def upsample_1(x: T, *, height_scale: float, width_scale: float, mode: str = "nearest") -> T:
    return upsample(x, (1.0, 1.0, height_scale, width_scale), mode=mode)


def resized(x: Tensor, way: _Way, roi: Any, scales: Any, sizes: Any, axes: Any, policy: str) -> Tensor:
    """The tensor in other sizes."""
    places = axes_of(axes, x.ndim)
    if not scales and not sizes:
        raise ShapeError("a Resize has neither scales nor sizes")
    if len(scales or sizes) != len(places):
        what = "scales" if scales else "sizes"
        raise ShapeError(f"there are {len(scales or sizes)} {what} for {len(places)} axes")
    if policy == "stretch" and any(_is_open(x, scales, sizes, i, a) for i, a in enumerate(places)):
        return _resized_open(x, way, scales, sizes, places)
    own = [
        known(x.shape[a], "Resize") if not _kept(scales, sizes, i, x, a) else None
        for i, a in enumerate(places)
    ]
    if sizes and policy != "stretch":
        ratios = [n / m for n, m in zip(sizes, own, strict=True) if m]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        wanted = [int(np.floor(ratio * m + 0.5)) if m else m for m in own]
        factors = [ratio] * len(places)
    else:
        factors, wanted = [], []
        for i, m in enumerate(own):
            start, end = _region(way, roi, i, len(places))
            if m is None:
                factors.append(1.0)
                wanted.append(None)
            elif sizes:
                wanted.append(int(sizes[i]))
                factors.append(sizes[i] / m)
            else:
                wanted.append(int(np.floor(m * (end - start) * np.float64(scales[i]))))
                factors.append(float(scales[i]))
    y = x
    outside: Array | None = None
    for i, axis in enumerate(places):
        if own[i] is None:
            continue
        start, end = _region(way, roi, i, len(places))
        y, beyond = _along(y, axis, own[i], wanted[i], factors[i], way, start, end)  # type: ignore[arg-type]
        if beyond is not None and beyond.any():
            shape = [len(beyond) if a == axis else 1 for a in range(x.ndim)]
            outside = beyond.reshape(shape) if outside is None else outside | beyond.reshape(shape)
    y = back(y, x.dtype) if not x.dtype.is_int else _rounded(y, x)
    return y if outside is None else Tensor(np.ascontiguousarray(outside)).where(way.outside, y).cast(x.dtype)


def _rounded(y: Tensor, x: Tensor) -> Tensor:
    return y if y.dtype is x.dtype else y.round().clamp(x.dtype.min, x.dtype.max).cast(x.dtype)


def _kept(scales: Any, sizes: Any, i: int, x: Tensor, axis: int) -> bool:
    """Whether an axis stays as it is; such ones may be symbolic."""
    if sizes:
        return not isinstance(sizes[i], int) and sizes[i] is x.shape[axis]
    return float(scales[i]) == 1.0 and not isinstance(x.shape[axis], int)


def _is_open(x: Tensor, scales: Any, sizes: Any, i: int, axis: int) -> bool:
    """Whether an axis is resized from a symbolic size, or to one."""
    if _kept(scales, sizes, i, x, axis):
        return False
    return not isinstance(x.shape[axis], int) or bool(sizes and not isinstance(sizes[i], int | float))


def _resized_open(x: Tensor, way: _Way, scales: Any, sizes: Any, places: tuple[int, ...]) -> Tensor:
    """The tensor in other sizes, of which some are symbolic."""
    y = x
    for i, axis in enumerate(places):
        n: Any = x.shape[axis]
        if _kept(scales, sizes, i, x, axis) or (not sizes and float(scales[i]) == 1.0):
            continue
        if not _is_open(x, scales, sizes, i, axis):
            m = int(sizes[i]) if sizes else int(np.floor(n * np.float64(scales[i])))
            factor = sizes[i] / n if sizes else float(scales[i])
            y, beyond = _along(y, axis, n, m, factor, way, 0.0, 1.0)
            if beyond is not None:
                raise OpenSize("Resize of a region needs known sizes")
        elif sizes:
            y = _along_open(y, axis, n, sizes[i], None, way)
        else:
            y = _along_open(y, axis, n, _times(n, float(scales[i])), float(scales[i]), way)
    return back(y, x.dtype) if not x.dtype.is_int else _rounded(y, x)


def _times(n: Any, scale: float) -> Any:
    """⌊n · scale⌋ of a symbolic size."""
    exact = Fraction(scale)
    if exact.denominator > _FINEST:
        raise OpenSize(f"Resize by {scale} needs a known size")
    return n * exact.numerator // exact.denominator


def _along_open(x: Tensor, axis: int, n: Any, m: Any, scale: float | None, way: _Way) -> Tensor:
    """One axis resized whose size, or whose new one, is symbolic. Without a scale, it is m/n."""
    if scale is not None and way.mode == "nearest" and _repeats(int(scale), scale, way):
        own = x.shape
        wide = x.unsqueeze(axis + 1).expand((*own[: axis + 1], int(scale), *own[axis + 1 :]))
        return wide.reshape((*own[:axis], m, *own[axis + 1 :]))
    at = _open_coordinates(n, m, scale, way)
    last = symbolic_scalar(n, dt.float64) - 1.0
    if way.mode == "nearest":
        return x.index_select(axis, _nearest_open(at, way.nearest).maximum(0.0).minimum(last).cast(dt.int64))
    if way.mode != "linear" or way.antialias or way.exclude:
        raise OpenSize(f"Resize of mode {way.mode!r} needs known sizes")
    y = x.cast(dt.float32) if x.dtype.is_int or x.dtype.bits < 32 else x
    shape = [m if a == axis else 1 for a in range(x.ndim)]
    low = at.floor()
    weight = (at - low).cast(y.dtype).contiguous().reshape(shape)
    first, second = (
        y.index_select(axis, place.maximum(0.0).minimum(last).cast(dt.int64).contiguous())
        for place in (low, low + 1.0)
    )
    return first * (1.0 - weight) + second * weight


def _repeats(k: int, scale: float, way: _Way) -> bool:
    """Whether each element is there k times, however many there are."""
    if k != scale or way.transform not in ("asymmetric", "half_pixel", "pytorch_half_pixel"):
        return False
    return np.array_equal(_nearest(_coordinates(4, 4 * k, k, way, 0, 1), way.nearest), np.arange(4 * k) // k)


def _open_coordinates(n: Any, m: Any, scale: float | None, way: _Way) -> Tensor:
    """Where the elements of an axis of m lie on the axis of n that they come from, in double precision."""
    x = Tensor.arange(m).cast(dt.float64)
    size, wanted = symbolic_scalar(n, dt.float64), symbolic_scalar(m, dt.float64)
    if way.transform in ("half_pixel", "pytorch_half_pixel"):
        at = ((x + 0.5) / scale if scale is not None else (x + 0.5) * size / wanted) - 0.5
        return at if way.transform == "half_pixel" else (wanted > 1.0).where(at, 0.0)
    if way.transform == "align_corners":
        length = size * scale if scale is not None else wanted
        return x * (size - 1.0) / (length - 1.0).maximum(1.0)  # of one element, x is 0
    if way.transform == "asymmetric":
        return x / scale if scale is not None else x * size / wanted
    raise OpenSize(f"Resize by way of {way.transform!r} needs known sizes")


def _nearest_open(at: Tensor, mode: str) -> Tensor:
    """Whole numbers beside the coordinates."""
    if mode == "round_prefer_floor":
        return (at - 0.5).ceil()
    if mode == "round_prefer_ceil":
        return (at + 0.5).floor()
    if mode in ("floor", "ceil"):
        return at.floor() if mode == "floor" else at.ceil()
    raise UnsupportedModel(f"nearest_mode {mode!r} is not known")


def _region(way: _Way, roi: Any, i: int, count: int) -> tuple[float, float]:
    if way.transform != "tf_crop_and_resize" or not roi:
        return 0.0, 1.0
    return float(roi[i]), float(roi[i + count])


def _coordinates(n: int, m: int, scale: float, way: _Way, start: float, end: float) -> Array:
    """Where the elements of an axis of m lie on the axis of n that they come from."""
    x = np.arange(m, dtype=np.float64)
    length = scale * n  # may be a fraction
    if way.transform == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if way.transform == "half_pixel_symmetric":
        return n / 2 * (1 - m / length) + (x + 0.5) / scale - 0.5
    if way.transform == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if m > 1 else np.zeros(m)
    if way.transform == "align_corners":
        return x * (n - 1) / (length - 1) if m > 1 else np.zeros(m)
    if way.transform == "asymmetric":
        return x / scale
    if way.transform == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if way.transform == "tf_crop_and_resize":
        if m > 1:
            return start * (n - 1) + x * (end - start) * (n - 1) / (m - 1)
        return np.full(m, 0.5 * (start + end) * (n - 1))
    raise UnsupportedModel(f"coordinate_transformation_mode {way.transform!r} is not known")


def _along(
    x: Tensor, axis: int, n: int, m: int, scale: float, way: _Way, start: float, end: float
) -> tuple[Tensor, Array | None]:
    """One axis resized, and which of its elements lie outside of the input."""
    at = _coordinates(n, m, scale, way, start, end)
    beyond = (at < 0) | (at > n - 1) if way.transform == "tf_crop_and_resize" else None
    if m == n and np.array_equal(at, np.arange(n)):
        return x, beyond
    if way.mode == "nearest":
        return _picked(x, axis, n, _nearest(at, way.nearest).clip(0, n - 1)), beyond
    places, weights = _taps(at, n, scale, way)
    y = x.cast(dt.float32) if x.dtype.is_int or x.dtype.bits < 32 else x
    total: Any = None
    for k in range(places.shape[1]):
        if not weights[:, k].any():
            continue
        shape = [m if a == axis else 1 for a in range(x.ndim)]
        factor = Tensor(weights[:, k].astype(y.dtype.numpy)).reshape(shape)
        part = _picked(y, axis, n, places[:, k]) * factor
        total = part if total is None else total + part
    return total, beyond


def _picked(x: Tensor, axis: int, n: int, places: Array) -> Tensor:
    """Elements of an axis by constant places; whole repetitions are movement."""
    m = len(places)
    if n and m % n == 0 and np.array_equal(places, np.repeat(np.arange(n), m // n)):
        shape = x.shape
        wide = x.unsqueeze(axis + 1).expand((*shape[: axis + 1], m // n, *shape[axis + 1 :]))
        return wide.reshape((*shape[:axis], m, *shape[axis + 1 :]))
    step = int(places[1] - places[0]) if m > 1 else 1
    if step > 0 and np.array_equal(places, places[0] + step * np.arange(m)):
        cut = tuple(
            slice(int(places[0]), int(places[-1]) + 1, step) if a == axis else slice(None)
            for a in range(x.ndim)
        )
        return x[cut]
    return x.index_select(axis, Tensor(places.astype(np.int64)))


def _nearest(at: Array, mode: str) -> Array:
    if mode == "round_prefer_floor":
        return np.ceil(at - 0.5).astype(np.int64)
    if mode == "round_prefer_ceil":
        return np.floor(at + 0.5).astype(np.int64)
    if mode in ("floor", "ceil"):
        return getattr(np, mode)(at).astype(np.int64)  # type: ignore[no-any-return]
    raise UnsupportedModel(f"nearest_mode {mode!r} is not known")


def _taps(at: Array, n: int, scale: float, way: _Way) -> tuple[Array, Array]:
    """For each output the places of the input that make it, and their weights."""
    stretch = min(scale, 1.0) if way.antialias else 1.0
    reach = (1.0 if way.mode == "linear" else 2.0) / stretch
    if way.mode not in ("linear", "cubic"):
        raise UnsupportedModel(f"mode {way.mode!r} of Resize is not known")
    count = 2 * int(np.ceil(reach))
    first = np.floor(at).astype(np.int64) - count // 2 + 1
    places = first[:, None] + np.arange(count)
    distance = (places - at[:, None]) * stretch
    weights = _triangle(distance) if way.mode == "linear" else _keys(distance, way.cubic)
    if way.exclude:
        weights = np.where((places < 0) | (places > n - 1), 0.0, weights)
    if way.exclude or stretch != 1.0:
        weights = weights / weights.sum(1, keepdims=True)
    return places.clip(0, n - 1), weights


def _triangle(d: Array) -> Array:
    return np.maximum(0.0, 1.0 - np.abs(d))


def _keys(d: Array, a: float) -> Array:
    """The cubic of Keys with coefficient a."""
    d = np.abs(d)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
