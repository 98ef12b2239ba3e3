"""How many elements lie in which interval."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

import numpy as np

from morok import dtype as dt
from morok.tensor.arrays import reduce
from morok.tensor.arrays.movement import flatten, narrow, reshape, squeeze
from morok.tensor.arrays.selection import bincount
from morok.tensor.arrays.sorting import searchsorted
from morok.tensor.arrays.statistics import diff
from morok.tensor.creation.constructors import as_operand, from_data
from morok.tensor.elementwise.comparison import clamp, eq, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import floor
from morok.tensor.sizes import concrete_shape


def histc(x: T, bins: int = 100, min: float = 0, max: float = 0) -> T:
    """How many elements lie in each of `bins` equal intervals between two numbers, or between the extremes.

    >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 4).tolist()
    [0.0, 2.0, 1.0, 0.0]
    """
    values = flatten(floating(x))
    if min == max == 0:
        count = values.numel()
        low = reduce.min(values) if count else from_data(values, np.float32(0))
        high = reduce.max(values) if count else from_data(values, np.float32(1))
        same = eq(low, high)
        low, high = where(same, low - 1.0, low), where(same, high + 1.0, high)
    else:
        low, high = (from_data(values, np.asarray(v, np.float64)) for v in (min, max))
    place = _bins(values, cast(low, values.dtype), cast(high, values.dtype), bins)
    found: T = cast(bincount(place, bins), values.dtype)
    return found


def _bins(values: Any, low: Any, high: Any, bins: int) -> Any:
    """The interval that each value lies in, the last one closed; -1 outside."""
    position = floor((values - low) / (high - low) * float(bins))
    inside = (values >= low) & (values <= high)
    place = cast(where(inside, position, 0.0), dt.int64)
    return where(inside, clamp(place, 0, bins - 1), -1)


class Histogram(NamedTuple):
    """How many there are in each interval, and where the intervals end."""

    hist: Any
    bin_edges: Any


def _edges(values: Any, bins: Any, limits: Any) -> Any:
    if isinstance(bins, int):
        if limits is None:
            count = values.numel()
            low = reduce.min(values) if count else values.sum() * 0.0
            high = reduce.max(values) if count else values.sum() * 0.0 + 1.0
            same = eq(low, high)
            low, high = where(same, low - 0.5, low), where(same, high + 0.5, high)
        else:
            low, high = (from_data(values, np.asarray(v, np.float64)) for v in limits)
            if limits[0] == limits[1]:
                low, high = low - 0.5, high + 0.5
        low, high = (cast(v, values.dtype) for v in (low, high))
        steps = from_data(values, np.arange(bins + 1))
        line = low + (high - low) * (cast(steps, values.dtype) * (1.0 / bins))
        return where(eq(steps, bins), high, line)
    return cast(as_operand(values, bins), values.dtype)


def _interval(values: Any, edges: Any) -> Any:
    """Between which edges each value lies, the last interval closed; -1 outside."""
    count = concrete_shape(edges.shape)[0] - 1
    place = searchsorted(edges, values, right=True) - 1
    bottom, top = narrow(edges, 0, 0, 1), narrow(edges, 0, count, 1)
    place = where(eq(values, top), count - 1, place)
    # by the outer edges: of edges that are out of order a search finds any
    inside = (values >= bottom) & (values <= top)
    return where(inside & (place >= 0) & (place < count), place, -1)


def _amounts(x: Any, weight: Any) -> Any:
    return None if weight is None else flatten(cast(as_operand(x, weight), x.dtype))


def histogram(x: T, bins: Any, range: Any = None, weight: Any = None, density: bool = False) -> Histogram:
    """(counts, edges): how many elements lie between neighbouring edges, or in so many equal intervals.

    >>> counts, edges = Tensor([1.0, 2.0, 1.0]).histogram(4, (0.0, 4.0))
    >>> counts.tolist(), edges.tolist()
    ([0.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0])
    """
    values = flatten(floating(x))
    edges = _edges(values, bins, range)
    size = concrete_shape(edges.shape)[0] - 1
    counts = cast(bincount(_interval(values, edges), size, weights=_amounts(values, weight)), values.dtype)
    if density:
        counts = counts / (reduce.sum(counts) * diff(edges))
    return Histogram(counts, edges)


def histogramdd(
    x: T, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[T, Any]:
    """(counts, edges along each axis) of points (…, dimensions), as `histogram`.

    >>> counts, _ = Tensor([[0.5, 0.5], [1.5, 0.5]]).histogramdd([2, 1], range=(0.0, 2.0, 0.0, 1.0))
    >>> counts.tolist()
    [[1.0], [1.0]]
    """
    points = floating(x)
    (size,) = concrete_shape(points.shape[-1:])
    points = reshape(points, -1, size)
    many = list(bins) if isinstance(bins, tuple | list) else [bins] * size
    limits = (
        [None] * size if range is None else [(range[2 * i], range[2 * i + 1]) for i in builtins.range(size)]
    )
    place: Any = None
    found, total = [], 1
    for i in builtins.range(size):
        line = squeeze(narrow(points, -1, i, 1), -1)
        edges = _edges(line, many[i], limits[i])
        count = concrete_shape(edges.shape)[0] - 1
        at = _interval(line, edges)
        place = at if place is None else where((place >= 0) & (at >= 0), place * count + at, -1)
        found.append(edges)
        total *= count
    counts = cast(bincount(place, total, weights=_amounts(points, weight)), points.dtype)
    counts = reshape(counts, [concrete_shape(e.shape)[0] - 1 for e in found])
    if density:
        counts = counts / reduce.sum(counts)
        for i, e in enumerate(found):
            counts = counts / reshape(diff(e), [-1 if j == i else 1 for j in builtins.range(size)])
    return counts, tuple(found)
