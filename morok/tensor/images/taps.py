"""Weighted elements at known places along an axis: what resizing, folding and adaptive pools are made of.

    y[…, i, …] = Σ_k  weights[i, k] · x[…, places[i, k], …]

Places and weights are arrays, known when the graph is made. The sum is a loop in a kernel, of as many steps
as there are places, and its gradient puts each element back where it came from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from morok.tensor.arrays import reduce
from morok.tensor.arrays.index import take
from morok.tensor.creation.constructors import from_data
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.operators import T


def taken(x: T, axis: int, places: Any) -> T:
    """The elements at places (new, k): k as a new axis behind `axis`."""
    return take(x, places, axis)


def spread_along(x: T, axis: int, values: Any) -> T:
    """An array (new, k) as a tensor that goes with `taken(x, axis, …)`, in the type of x."""
    shape = [1] * (x.ndim + 1)
    shape[axis : axis + 2] = values.shape
    return cast(from_data(x, np.asarray(values).reshape(shape)), x.dtype)


def weighted(t: T, axis: int, places: Any, weights: Any) -> T:
    """The sums above. `places` and `weights` have the shape (new, k)."""
    x = floating(t)
    if places.shape[1] == 1 and (weights == 1.0).all():
        return take(x, places[:, 0], axis)
    parts, there = taken(x, axis, places), weights != 0
    if not there.all():  # what has no weight does not count, whatever it is: 0 · ∞ is not 0
        shape = [1] * (x.ndim + 1)
        shape[axis : axis + 2] = there.shape
        parts = where(from_data(x, there.reshape(shape)), parts, 0.0)
    if not (weights[there] == 1.0).all():
        parts = parts * spread_along(x, axis, weights)
    return reduce.sum(parts, axis + 1)


def trimmed(places: Any, weights: Any) -> tuple[Any, Any]:
    """Places without weight are taken out as far as all rows have them."""
    count = int((weights != 0).sum(1).max(initial=1))
    if count == weights.shape[1]:
        return places, weights
    order = np.argsort(weights == 0, axis=1, kind="stable")[:, : max(count, 1)]
    return np.take_along_axis(places, order, 1), np.take_along_axis(weights, order, 1)


def overlap_taps(
    size: int, kernel: int, count: int, edge: int, stride: int, dilation: int = 1
) -> tuple[Any, Any]:
    """For each element of an axis that windows cover, where in (kernel, count) its parts are."""
    offset = np.arange(size)[:, None] + edge - dilation * np.arange(kernel)[None, :]
    place, rest = offset // stride, offset % stride
    there = (rest == 0) & (place >= 0) & (place < count)
    places = np.arange(kernel)[None, :] * count + np.where(there, place, 0)
    return trimmed(places, there.astype(np.float64))
