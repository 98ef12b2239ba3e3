"""In the middle of rows: medians and quantiles, of values in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.joining import stack
from morok.tensor.arrays.movement import narrow, permute, reshape, squeeze
from morok.tensor.arrays.reduce import mean
from morok.tensor.arrays.sorting import sort
from morok.tensor.calls.trace_cache import refuse_trace_cache
from morok.tensor.core import Core
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.functions import lerp
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isnan
from morok.tensor.export import tolist
from morok.tensor.sizes import _UNSET, as_axes, axis_or_dim, concrete_shape


def _sorted_over(t: T, axis: Any, what: str) -> tuple[T, int, tuple[int, ...]]:
    """Floats sorted along one last axis that the given ones have become; its size; the given ones."""
    axes = as_axes(axis, t.shape)
    rest = [i for i in range(t.ndim) if i not in axes]
    x = permute(cast(t, accumulator(float_of(t.dtype))), [*rest, *axes])
    count = math.prod(concrete_shape(tuple(t.shape[i] for i in axes)))
    if count == 0:
        raise ShapeError(f"{what} of shape {show_shape(t.shape)} has nothing to choose from")
    x = reshape(x, *(t.shape[i] for i in rest), count)
    values: T = sort(x, -1).values
    return values, count, axes


def _kept(x: T, axes: tuple[int, ...], like: T, keep: bool) -> T:
    """A result over axes, with these as 1 where wanted."""
    return reshape(x, [1 if i in axes else n for i, n in enumerate(like.shape)]) if keep else x


def median(t: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False) -> T:
    """The middle value, or the average of the two in the middle; NaN if there is one.

    >>> Tensor([3.0, 1.0, 2.0, 10.0]).median().item()
    2.5
    """
    if 0 in t.shape:  # of nothing: NaN, as the mean
        return mean(t, axis_or_dim(axis, dim), keepdim or keepdims)
    x, n, axes = _sorted_over(t, axis_or_dim(axis, dim), "median")
    low, high, last = (_nth(x, i) for i in ((n - 1) // 2, n // 2, n - 1))
    middle = low if n % 2 else low * 0.5 + high * 0.5
    found = cast(where(isnan(last), last, middle), float_of(t.dtype))
    return _kept(found, axes, t, keepdim or keepdims)


def _nth(x: T, place: int) -> T:
    """One element of each row."""
    return squeeze(narrow(x, -1, place, 1), -1)


def quantile(
    t: T,
    q: Any,
    axis: Any = None,
    keepdim: bool = False,
    interpolation: str = "linear",
    *,
    dim: Any = _UNSET,
    keepdims: bool = False,
) -> T:
    """The value below which a part q of the elements lies; several q make a new first axis.

    >>> Tensor([0.0, 1.0, 2.0, 3.0, 4.0]).quantile(0.25).item()
    1.0
    """
    if isinstance(q, Core):
        refuse_trace_cache("quantiles that are computed")
    if isinstance(q, Core | np.ndarray):
        q = tolist(q) if isinstance(q, Core) else q.tolist()
    parts = list(q) if isinstance(q, tuple | list) else [q]
    if any(not 0.0 <= float(part) <= 1.0 for part in parts):
        raise ArgumentError(f"quantiles lie between 0 and 1, not at {q}")
    x, n, axes = _sorted_over(t, axis_or_dim(axis, dim), "quantile")
    last = _nth(x, n - 1)
    own = float_of(t.dtype)
    results = []
    for part in parts:
        value = where(isnan(last), last, _between(x, n, float(part), interpolation))
        results.append(_kept(cast(value, own), axes, t, keepdim or keepdims))
    return stack(results[0], *results[1:]) if isinstance(q, tuple | list) else results[0]


def _between(x: T, n: int, q: float, how: str) -> T:
    """The value at a part q of sorted rows of n."""
    place = q * (n - 1)
    low = math.floor(place)
    high = min(low + 1, n - 1)
    weight = {
        "linear": place - low,
        "lower": 0.0,
        "higher": 0.0 if place == low else 1.0,
        "midpoint": 0.0 if place == low else 0.5,
        "nearest": float(round(place) > low),
    }.get(how)
    if weight is None:
        raise ArgumentError(
            f'interpolation is "linear", "lower", "higher", "midpoint" or "nearest", not {how!r}'
        )
    below, above = _nth(x, low), _nth(x, high)
    return below if weight == 0.0 else above if weight == 1.0 else part_between(below, above, weight)


def part_between(below: T, above: T, weight: Any) -> T:
    """From one of two neighbours toward the other; nothing finite leads away from an infinite one."""
    alone = eq(below, above) | (eq(below, -math.inf) & (above < math.inf))
    return where(alone, below, lerp(below, above, weight))
