"""Reads between the places of an image: grids, regions, deformed convolutions, and images from columns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import UnsupportedModel
from morok.onnx.ops.common import back, known, known_shape, product
from morok.onnx.table import Ints, T, converted, op
from morok.onnx.types import Array
from morok.onnx.values import Host, Value
from morok.onnx.windows import defaults
from morok.tensor.tensor import Tensor

_MODES = {
    "bilinear": "linear",
    "linear": "linear",
    "bicubic": "cubic",
    "cubic": "cubic",
    "nearest": "nearest",
}


@op("GridSample", since=16)
def grid_sample(
    x: T, grid: T, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> T:
    """Values of an image at places between -1 and 1 along each axis, the last axis first."""
    way = _MODES.get(mode)
    if way is None:
        raise UnsupportedModel(f"mode {mode!r} of GridSample is not known")
    sizes = known_shape(x, "GridSample")[2:]
    rank = len(sizes)
    at = []
    for i, n in enumerate(sizes):
        g = grid[..., rank - 1 - i].cast(dt.float32) if grid.dtype.bits < 32 else grid[..., rank - 1 - i]
        at.append((g + 1) * ((n - 1) / 2) if align_corners else ((g + 1) * n - 1) * 0.5)
    if way != "cubic":
        at = [_padded(p, n, padding_mode, align_corners, way) for p, n in zip(at, sizes, strict=True)]
    taps = [_taps(p, way) for p in at]
    lead = grid.shape[:-1]
    flat = x.reshape((*x.shape[:2], product(sizes)))
    total: Any = None
    for chosen in itertools.product(*taps):
        weight: Any = 1.0
        place: Any = 0
        valid: Any = None
        for (position, factor), n in zip(chosen, sizes, strict=True):
            if way == "cubic" and padding_mode != "zeros":
                position = _padded(position, n, padding_mode, align_corners, way)
            inside = (position >= 0) & (position <= n - 1)
            valid = inside if valid is None else valid & inside
            place = place * n + position.clamp(0, n - 1).cast(dt.int64)
            weight = factor if isinstance(weight, float) else weight * factor
        spread = place.reshape((lead[0], 1, -1)).expand((lead[0], x.shape[1], product(lead[1:])))
        part = flat.gather(2, spread).reshape((lead[0], x.shape[1], *lead[1:]))
        part = part.cast(dt.float32) if part.dtype.bits < 32 else part
        factor = (
            valid.where(weight, 0.0).unsqueeze(1) if not isinstance(weight, float) else valid.unsqueeze(1)
        )
        part = valid.unsqueeze(1).where(part, 0.0) * factor
        total = part if total is None else total + part
    return back(total, x.dtype)


def _padded(at: Tensor, n: int, mode: str, align: int, way: str) -> Tensor:
    """Places outside moved to where the border or the reflection is."""
    if way == "nearest":
        at = at.round()
    if mode == "border":
        return at.clamp(0, n - 1)
    if mode == "reflection":
        low, span = (0.0, float(n - 1)) if align else (-0.5, float(n))
        if span == 0:
            return at * 0
        d = (at - low).abs()
        turns = (d / span).floor()
        rest = d - turns * span
        odd = turns.fmod(2.0).ne(0)
        at = odd.where(span - rest, rest) + low
        return at.clamp(0, n - 1)
    return at


def _taps(at: Tensor, way: str) -> list[tuple[Tensor, Tensor]]:
    if way == "nearest":
        whole = at.round()
        return [(whole, whole * 0 + 1)]
    low = at.floor()
    t = at - low
    if way == "linear":
        return [(low, -t + 1), (low + 1, t)]
    a = -0.75
    made = []
    for k in range(-1, 3):
        d = (t - k).abs()
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        made.append((low + k, near if k in (0, 1) else far))
    return made


@op("RoiAlign", since=16, reads=True)
def roi_align(
    x: Value,
    rois: Value,
    batches: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Averages or maxima of bilinear reads in regions, on the host: how many reads depends on the regions."""
    half = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    held, boxes, owners = (converted("Known", v, n).array for n, v in enumerate((x, rois, batches)))
    out = np.zeros((len(boxes), held.shape[1], output_height, output_width), held.dtype)
    for r, (box, owner) in enumerate(zip(boxes.astype(np.float64), owners, strict=True)):
        x1, y1, x2, y2 = box * spatial_scale - half
        w, h = x2 - x1, y2 - y1
        if not half:
            w, h = max(w, 1.0), max(h, 1.0)
        out[r] = _region(held[owner], y1, x1, h, w, output_height, output_width, sampling_ratio, mode)
    return Host(out)


@op("RoiAlign", since=10, until=15, reads=True)
def roi_align_10(
    x: Value,
    rois: Value,
    batches: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    return roi_align(
        x,
        rois,
        batches,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


def _region(
    image: Array, y1: float, x1: float, h: float, w: float, oh: int, ow: int, ratio: int, mode: str
) -> Array:
    rows = ratio if ratio > 0 else max(int(np.ceil(h / oh)), 1)
    columns = ratio if ratio > 0 else max(int(np.ceil(w / ow)), 1)
    ys = y1 + (np.arange(oh)[:, None] + (np.arange(rows) + 0.5) / rows) * (h / oh)
    xs = x1 + (np.arange(ow)[:, None] + (np.arange(columns) + 0.5) / columns) * (w / ow)
    ylow, yhigh, wy, iny = _between(ys.reshape(-1), image.shape[1])
    xlow, xhigh, wx, inx = _between(xs.reshape(-1), image.shape[2])
    inside = iny[:, None] & inx
    corners = [
        image[:, a[:, None], b] * np.where(inside, p[:, None] * q, 0)
        for a, p in ((ylow, 1 - wy), (yhigh, wy))
        for b, q in ((xlow, 1 - wx), (xhigh, wx))
    ]
    shape = (image.shape[0], oh, rows, ow, columns)
    if mode == "max":  # of the weighted corners, as the specification's formula has it
        return np.maximum.reduce(corners).reshape(shape).max((2, 4))  # type: ignore[no-any-return]
    return sum(corners).reshape(shape).mean((2, 4))  # type: ignore[union-attr, no-any-return]


def _between(at: Array, n: int) -> tuple[Array, Array, Array, Array]:
    inside = (at >= -1.0) & (at <= n)
    at = np.maximum(at, 0)
    low = np.minimum(np.floor(at).astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    return low, high, np.where(low >= n - 1, 0.0, at - low), inside


@op("MaxRoiPool", since=1, reads=True)
def max_roi_pool(x: Value, rois: Value, *, pooled_shape: Any, spatial_scale: float = 1.0) -> Value:
    """The largest values of parts of regions, on the host."""
    held, boxes = (converted("Known", v, n).array for n, v in enumerate((x, rois)))
    oh, ow = pooled_shape
    out = np.zeros((len(boxes), held.shape[1], oh, ow), held.dtype)
    for r, (owner, *box) in enumerate(boxes):
        x1, y1, x2, y2 = (int(np.floor(v * spatial_scale + 0.5)) for v in box)
        h, w = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i in range(oh):
            for j in range(ow):
                top, bottom = y1 + int(np.floor(i * h / oh)), y1 + int(np.ceil((i + 1) * h / oh))
                left, right = x1 + int(np.floor(j * w / ow)), x1 + int(np.ceil((j + 1) * w / ow))
                part = held[int(owner), :, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
                out[r, :, i, j] = part.max((1, 2)) if part.size else 0
    return Host(out)


@op("DeformConv", since=19)
def deform_conv(
    x: T,
    w: T,
    offset: T,
    b: T | None,
    mask: T | None,
    *,
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    offset_group: int = 1,
    pads: Any = None,
    strides: Any = None,
) -> T:
    """A convolution whose reads are moved by offsets, along each spatial axis."""
    n, c, *sizes = known_shape(x, "DeformConv")
    kernel = [known(k, "a kernel") for k in w.shape[2:]]
    rank = len(kernel)
    strides, dilations = defaults(kernel, strides, dilations)
    around = pads or [0] * 2 * rank
    outs = [known(m, "DeformConv") for m in offset.shape[2:]]
    taps, spots = product(kernel), product(outs)
    moved = offset.reshape((n, offset_group, taps, rank, *outs)).cast(dt.float32)
    grids = np.stack(np.meshgrid(*[np.arange(k) for k in kernel], indexing="ij"), -1).reshape(taps, rank)
    at = []
    for i in range(rank):
        base = (np.arange(outs[i]) * strides[i] - around[i]).reshape(
            [-1 if a == i else 1 for a in range(rank)]
        )
        start = grids[:, i].reshape(taps, *(1,) * rank) * dilations[i] + base
        fixed = np.broadcast_to(start, (taps, *outs)).astype(np.float32)
        at.append(moved[:, :, :, i] + Tensor(np.ascontiguousarray(fixed)))
    image = x.reshape((n, offset_group, c // offset_group, product(sizes)))
    total: Any = None
    for chosen in itertools.product(*[_taps(p, "linear") for p in at]):
        weight: Any = None
        place: Any = 0
        for (position, factor), m in zip(chosen, sizes, strict=True):
            inside = (position >= 0) & (position <= m - 1)
            factor = inside.where(factor, 0.0)
            weight = factor if weight is None else weight * factor
            place = place * m + position.clamp(0, m - 1).cast(dt.int64)
        spread = place.reshape((n, offset_group, 1, taps * spots)).expand(
            (n, offset_group, c // offset_group, taps * spots)
        )
        part = image.gather(3, spread) * weight.reshape((n, offset_group, 1, taps * spots))
        total = part if total is None else total + part
    if mask is not None:
        total = total * mask.reshape((n, offset_group, 1, taps * spots))
    columns = total.reshape((n, group, c // group * taps, spots))
    weights = w.reshape((group, known(w.shape[0], "channels") // group, -1))
    made = weights.matmul(columns).reshape((n, w.shape[0], *outs))
    made = back(made, x.dtype)
    return made if b is None else made + b.reshape((1, -1, *(1,) * rank))


@op("Col2Im", since=18)
def col2im(
    x: T, image: Ints, block: Ints, *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> T:
    """Columns of blocks added up to an image."""
    sizes, kernel = [known(m, "Col2Im") for m in image], [known(k, "Col2Im") for k in block]
    rank = len(kernel)
    strides, dilations = defaults(kernel, strides, dilations)
    around = pads or [0] * 2 * rank
    full = [m + around[i] + around[i + rank] for i, m in enumerate(sizes)]
    counts = [
        (f - d * (k - 1) - 1) // s + 1 for f, d, k, s in zip(full, dilations, kernel, strides, strict=True)
    ]
    place = np.zeros((1,) * (2 * rank), np.int64)
    for i in range(rank):
        along = np.arange(kernel[i])[:, None] * dilations[i] + np.arange(counts[i]) * strides[i]
        shape = [1] * (2 * rank)
        shape[i], shape[i + rank] = kernel[i], counts[i]
        place = place * full[i] + along.reshape(shape)
    n = x.shape[0]
    channels = known(x.shape[1], "Col2Im") // product(kernel)
    flat = x.reshape((n, channels, product(kernel) * product(counts)))
    where = Tensor(np.ascontiguousarray(place.reshape(1, 1, -1))).expand(flat.shape)
    made = Tensor.zeros(n, channels, product(full), dtype=x.dtype).scatter_add(2, where, flat)
    made = made.reshape((n, channels, *full))
    inside = tuple((around[i], around[i] + m) for i, m in enumerate(sizes))
    return made.shrink(((0, n), (0, channels), *inside))
