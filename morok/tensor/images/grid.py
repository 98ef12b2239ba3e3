"""Images sampled at any places: `affine_grid` says where, `grid_sample` looks there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from morok import dtype as dt
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.index import gathered
from morok.tensor.arrays.joining import stack
from morok.tensor.arrays.movement import expand, reshape, squeeze, unsqueeze
from morok.tensor.creation.constructors import arange, as_operand
from morok.tensor.elementwise import arithmetic, rounding
from morok.tensor.elementwise.comparison import clamp, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import floor
from morok.tensor.linalg.products import matmul
from morok.tensor.linalg.windows import known_size
from morok.tensor.sizes import concrete_shape

_STEEPNESS = -0.75  # of the cubic curve
MODES = ("bilinear", "linear", "nearest", "bicubic", "cubic")
EDGES = ("zeros", "border", "reflection")


def affine_grid(theta: T, size: Sequence[Any], align_corners: bool | None = False) -> T:
    """The places (N, H, W, 2), or (N, D, H, W, 3), that matrices (N, 2, 3), or (N, 3, 4), move a grid to.

    >>> t = Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> t.affine_grid((1, 1, 1, 2), align_corners=True).tolist()
    [[[[-1.0, 0.0], [1.0, 0.0]]]]
    """
    sizes = concrete_shape(tuple(size)[2:])
    count = len(sizes)
    if count not in (2, 3) or theta.ndim != 3 or theta.shape[1:] != (count, count + 1):
        raise ShapeError(
            f"affine_grid takes matrices (N, 2, 3) and a size (N, C, H, W), or (N, 3, 4) and one axis more, "
            f"not {show_shape(theta.shape)} and {tuple(size)}"
        )
    axes = []
    for i, n in enumerate(sizes):
        place = arange(type(theta), n, device=theta.device)
        line = cast(place, theta.dtype)
        if align_corners:
            line = line * (2.0 / (n - 1)) - 1.0 if n > 1 else line * 0.0
        else:
            line = (line * 2.0 + 1.0) * (1.0 / n) - 1.0
        axes.append(expand(reshape(line, [n if j == i else 1 for j in range(count)]), *sizes))
    ones = axes[0] * 0.0 + 1.0
    points = stack(axes[-1], *axes[-2::-1], ones, dim=-1)  # x first
    flat = reshape(points, -1, count + 1)
    moved = matmul(flat, theta.transpose(-1, -2))  # type: ignore[attr-defined]
    return reshape(moved, theta.shape[0], *sizes, count)


@rounded_once
def grid_sample(
    t: T,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = False,
) -> T:
    """(N, C, H, W) at places (N, H', W', 2): x and y from -1 to 1; or (N, C, D, H, W) at (N, D', H', W', 3).

    Between elements it is "bilinear", "nearest" or "bicubic"; outside it is zero ("zeros"), the element at
    the edge ("border") or what is mirrored there ("reflection").

    >>> x = Tensor([[[[1.0, 3.0]]]])
    >>> x.grid_sample(Tensor([[[[-1.0, 0.0], [0.0, 0.0]]]]), align_corners=True).tolist()
    [[[[1.0, 2.0]]]]
    """
    g: Any = as_operand(t, grid)
    count = t.ndim - 2
    if mode not in MODES or padding_mode not in EDGES:
        raise ArgumentError(
            f"grid_sample has the modes {', '.join(map(repr, MODES))} and the edges "
            f"{', '.join(map(repr, EDGES))}, not {mode!r} and {padding_mode!r}"
        )
    if count < 1 or g.ndim != t.ndim or g.shape[-1] != count or g.shape[0] != t.shape[0]:
        raise ShapeError(
            f"grid_sample of shape {show_shape(t.shape)} needs places (N, …, {count}), "
            f"not {show_shape(g.shape)}"
        )
    sizes = [known_size(n, "a sampled axis") for n in t.shape[2:]]
    x = reshape(floating(t), t.shape[0], t.shape[1], -1)
    corners = bool(align_corners)
    places = []
    for i, n in enumerate(sizes):
        line = squeeze(g.narrow(-1, count - 1 - i, 1), -1)
        line = (line + 1.0) * ((n - 1) / 2.0) if corners else ((line + 1.0) * n - 1.0) * 0.5
        places.append(cast(line, x.dtype))
    if mode in ("bicubic", "cubic"):
        curved: T = _cubic(x, places, sizes, padding_mode, corners)
        return curved
    inside = [_kept(p, n, padding_mode, corners) for p, n in zip(places, sizes, strict=True)]
    if mode == "nearest":
        near: T = _looked_up(x, [rounding.round(p) for p in inside], sizes, padding_mode == "zeros")
        return near
    low = [floor(p) for p in inside]
    share = [p - f for p, f in zip(inside, low, strict=True)]
    total: Any = None
    for corner in itertools.product((0, 1), repeat=count):
        weight: Any = None
        for c, s in zip(corner, share, strict=True):
            part = s if c else -s + 1.0
            weight = part if weight is None else weight * part
        at = [f + float(c) for f, c in zip(low, corner, strict=True)]
        term = _looked_up(x, at, sizes, True) * unsqueeze(weight, 1)
        total = term if total is None else total + term
    found: T = total
    return found


def _kept(x: Any, size: int, edge: str, corners: bool) -> Any:
    """Places that lie outside, moved inside as the edge says."""
    if edge == "reflection":
        x = _mirrored(x, 0.0, size - 1.0) if corners else _mirrored(x, -0.5, size - 0.5)
    return x if edge == "zeros" else clamp(x, 0.0, max(size - 1.0, 0.0))


def _mirrored(x: Any, low: float, high: float) -> Any:
    span = high - low
    if span <= 0.0:
        return x * 0.0
    away = arithmetic.abs(x - low)
    turns = floor(away / span)
    rest = away - turns * span
    odd = (turns - floor(turns * 0.5) * 2.0) > 0.5
    return where(odd, -rest + span, rest) + low


def _looked_up(x: T, places: list[Any], sizes: list[int], zeros: bool) -> Any:
    """x (N, C, flat) at whole places, each (N, …); 0 outside if so asked.

    Places are cut to the image as integers: so no kernel has to ask whether they are there.
    """
    flat: Any = None
    exists: Any = None
    dtype = dt.int32 if math.prod(sizes) <= 1 << 31 else dt.int64
    for p, n in zip(places, sizes, strict=True):
        here = (p >= 0.0) & (p <= n - 1.0)
        whole = clamp(cast(where(here, p, 0.0), dtype), 0, max(n - 1, 0))
        flat = whole if flat is None else flat * n + whole
        exists = here if exists is None else exists & here
    lead, rest = x.shape[:2], flat.shape[1:]
    flat = clamp(flat, 0, max(math.prod(sizes) - 1, 0))  # once more, where it is read from memory
    index = expand(reshape(flat, lead[0], 1, -1), lead[0], lead[1], -1)
    found = reshape(gathered(x, 2, index), *lead, *rest)
    return where(unsqueeze(exists, 1), found, 0.0) if zeros else found


def _cubic(x: T, places: list[Any], sizes: list[int], edge: str, corners: bool) -> Any:
    low = [floor(p) for p in places]
    weights = [_cubic_weights(p - f) for p, f in zip(places, low, strict=True)]
    total: Any = None
    for offsets in itertools.product(range(4), repeat=len(sizes)):
        at = [_kept(f + float(k - 1), n, edge, corners) for f, k, n in zip(low, offsets, sizes, strict=True)]
        weight: Any = None
        for k, w in zip(offsets, weights, strict=True):
            weight = w[k] if weight is None else weight * w[k]
        at = [rounding.round(p) for p in at]
        term = _looked_up(x, at, sizes, edge == "zeros") * unsqueeze(weight, 1)
        total = term if total is None else total + term
    return total


def _cubic_weights(s: Any) -> list[Any]:
    a = _STEEPNESS

    def near(d: Any) -> Any:
        return (d * (a + 2) - (a + 3)) * d * d + 1.0

    def far(d: Any) -> Any:
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(s + 1.0), near(s), near(-s + 1.0), far(-s + 2.0)]
