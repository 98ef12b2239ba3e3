"""Statistics: differences, averages of products, elements by their rank, distances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.index import gather, take
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.middle import part_between
from morok.tensor.arrays.movement import expand, flatten, narrow, reshape, squeeze, transpose, unsqueeze
from morok.tensor.arrays.reduce import cumsum, mean, std
from morok.tensor.arrays.sorted import Sorted
from morok.tensor.arrays.sorting import searchsorted, sort
from morok.tensor.core import Core
from morok.tensor.creation.constructors import as_operand, from_data
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise.comparison import clamp, eq, maximum, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.functions import sqrt
from morok.tensor.elementwise.named import isclose
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import floor, isnan
from morok.tensor.sizes import _UNSET, as_axis, axis_or_dim, broadcast_shapes, concrete_shape

# --- comparisons of whole tensors


def allclose(x: T, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> T:
    """Whether all elements are close to each other, as `isclose`.

    >>> Tensor([1.0]).allclose(Tensor([1.0 + 1e-7])).item()
    True
    """
    return reduce.all(isclose(x, other, rtol, atol, equal_nan))


def array_equal(x: T, other: Any) -> Any:
    """Whether two tensors have the same shape and elements.

    >>> Tensor([1, 2]).array_equal(Tensor([1, 2])).item()
    True
    """
    y = as_operand(x, other)
    if x.shape != y.shape:
        return from_data(x, np.asarray(False))
    return reduce.all(eq(x, y))


def isin(x: T, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> T:
    """Where elements are among others.

    >>> Tensor([1, 2, 3]).isin(Tensor([3, 1])).tolist()
    [True, False, True]
    """
    y = (
        flatten(as_operand(x, test_elements))
        if np.ndim(test_elements) or isinstance(test_elements, Core)
        else None
    )
    y = reshape(as_operand(x, test_elements), -1) if y is None else y
    (count,) = concrete_shape(y.shape)
    if not count:
        found = eq(x, x) & ~eq(x, x)
    elif count <= 32:
        found = reduce.any(eq(unsqueeze(x, -1), y), -1)
    else:  # a search in sorted elements
        ordered = sort(y).values
        place = clamp(searchsorted(ordered, x), max=count - 1)
        found = eq(x, reshape(take(ordered, flatten(place)), x.shape))
    return ~found if invert else found


# --- differences and areas


def diff(
    x: T, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None, *, axis: int | None = None
) -> T:
    """Differences of neighbours along an axis, n times over.

    >>> Tensor([1, 4, 9]).diff().tolist()
    [3, 5]
    """
    if n < 0:
        raise ArgumentError(f"differences are taken 0 times or more, not {n}")
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    parts = [as_operand(x, p) for p in (prepend, append) if p is not None]
    if parts and n:
        before = [as_operand(x, prepend)] if prepend is not None else []
        after = [as_operand(x, append)] if append is not None else []
        grown = [expand(p, [1 if i == at else m for i, m in enumerate(x.shape)]) if not p.ndim else p
                 for p in (*before, x, *after)]  # fmt: skip
        x = cat(grown[0], *grown[1:], dim=at)
    for _ in range(n):
        size = x.shape[at]
        if size == 0:
            break
        low, high = narrow(x, at, 0, size - 1), narrow(x, at, 1, size - 1)
        x = high ^ low if x.dtype.is_bool else high - low
    return x


def _widths(y: T, x: Any, dx: Any, at: int) -> Any:
    """How far apart neighbours along an axis are."""
    if x is None:
        return 1.0 if dx is None else dx
    places = as_operand(y, x)
    if places.ndim == 1:
        widths = diff(places)
        return reshape(widths, [-1 if i == at else 1 for i in range(y.ndim)])
    return diff(places, dim=at - y.ndim)


def _steps(y: T, x: Any, dx: Any, dim: int) -> tuple[T, int]:
    at = as_axis(dim, y.ndim, y.shape)
    values = floating(y)
    size = values.shape[at]
    if size == 0:
        return values, at
    low, high = narrow(values, at, 0, size - 1), narrow(values, at, 1, size - 1)
    return (low + high) * 0.5 * _widths(y, x, dx, at), at


def trapezoid(y: T, x: Any = None, dx: Any = None, dim: int = -1, *, axis: int | None = None) -> T:
    """The area under a line through points along an axis: at places x, or dx apart.

    >>> Tensor([1.0, 2.0, 3.0]).trapezoid().item()
    4.0
    """
    areas, at = _steps(y, x, dx, dim if axis is None else axis)
    return reduce.sum(areas, at)


def cumulative_trapezoid(y: T, x: Any = None, dx: Any = None, dim: int = -1, *, axis: int | None = None) -> T:
    """The areas up to each point but the first, as `trapezoid`.

    >>> Tensor([1.0, 2.0, 3.0]).cumulative_trapezoid().tolist()
    [1.5, 4.0]
    """
    areas, at = _steps(y, x, dx, dim if axis is None else axis)
    return cumsum(areas, at)


def slopes(
    x: T, spacing: Any = None, dim: Any = None, edge_order: int = 1, *, axis: Any = None
) -> tuple[T, ...]:
    """The slopes along each axis by differences, NumPy's and PyTorch's `gradient` of sampled values.

    `spacing` is a number, one per axis, or a vector of places per axis.

    >>> [s.tolist() for s in Tensor([1.0, 4.0, 9.0]).slopes()]
    [[3.0, 4.0, 5.0]]
    """
    given = dim if axis is None else axis
    many = range(x.ndim) if given is None else given if isinstance(given, tuple | list) else (given,)
    axes = [as_axis(a, x.ndim, x.shape) for a in many]
    steps = list(spacing) if isinstance(spacing, tuple | list) else [spacing] * len(axes)
    if len(steps) != len(axes) or edge_order not in (1, 2):
        raise ArgumentError(f"{len(axes)} axes need as many spacings, and edge_order is 1 or 2")
    return tuple(_slope(floating(x), at, step, edge_order) for at, step in zip(axes, steps, strict=True))


def _slope(x: T, at: int, step: Any, order: int) -> T:
    (size,) = concrete_shape((x.shape[at],))
    if size < order + 1:
        raise ShapeError(f"slopes along axis {at} of {show_shape(x.shape)} need {order + 1} points")
    shape = [-1 if i == at else 1 for i in range(x.ndim)]
    even = not (isinstance(step, Core) or np.ndim(step))

    def part(start: int, count: int) -> T:
        return narrow(x, at, start, count)

    if even:
        gap: Any = 1.0 if step is None else step
        inner = (part(2, size - 2) - part(0, size - 2)) / (2.0 * gap)
        h = [gap] * 4
    else:
        widths = diff(cast(as_operand(x, step), x.dtype))
        a, b = (reshape(narrow(widths, 0, k, size - 2), shape) for k in (0, 1))
        inner = (
            part(2, size - 2) * a * a - part(0, size - 2) * b * b + part(1, size - 2) * (b * b - a * a)
        ) / (a * b * (a + b))
        h = [narrow(widths, 0, k % (size - 1), 1) for k in (0, 1, size - 2, size - 3)]
        h = [reshape(v, [1] * x.ndim) for v in h]
    if order == 1:
        first, last = (part(1, 1) - part(0, 1)) / h[0], (part(size - 1, 1) - part(size - 2, 1)) / h[2]
    else:
        first = _edge(part(0, 1), part(1, 1), part(2, 1), h[0], h[1])
        last = -_edge(part(size - 1, 1), part(size - 2, 1), part(size - 3, 1), h[2], h[3])
    found: T = cat(first, inner, last, dim=at) if size > 2 else cat(first, last, dim=at)
    return found


def _edge(a: Any, b: Any, c: Any, h: Any, k: Any) -> Any:
    """The slope at a of a parabola through three points, h and k apart."""
    return (a * -(2.0 * h + k)) / (h * (h + k)) + b * (h + k) / (h * k) - c * h / (k * (h + k))


# --- averages


def std_mean(
    x: T,
    axis: Any = None,
    keepdim: bool = False,
    correction: float | None = 1,
    *,
    dim: Any = _UNSET,
    unbiased: bool | None = None,
) -> tuple[T, T]:
    """The standard deviation and the mean.

    >>> [x.item() for x in Tensor([1.0, 2.0, 3.0]).std_mean()]
    [1.0, 2.0]
    """
    where_ = axis_or_dim(axis, dim)
    return std(x, where_, keepdim, correction, unbiased=unbiased), mean(x, where_, keepdim)


@rounded_once
def cov(x: T, correction: float = 1, fweights: Any = None, aweights: Any = None) -> T:
    """The covariances of rows, each of which is a variable, over n - correction.

    >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).cov().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if x.ndim > 2:
        raise ShapeError(f"cov takes rows of observations, not shape {show_shape(x.shape)}")
    lone = x.ndim < 2
    y = reshape(floating(x), 1, -1) if lone else floating(x)
    (count,) = concrete_shape(y.shape[-1:])
    weights: Any = None
    for w in (fweights, aweights):
        if w is not None:
            one = cast(as_operand(x, w), y.dtype)
            weights = one if weights is None else weights * one
    if weights is None:
        away = y - mean(y, -1, keepdim=True)
        total: Any = max(float(count) - correction, 0.0)
        weighted = away
    else:
        amount = reduce.sum(weights)
        away = y - unsqueeze(reduce.sum(y * weights, -1), -1) / amount
        if aweights is None or correction == 0:
            total = amount - correction
        else:
            total = (
                amount - reduce.sum(weights * cast(as_operand(x, aweights), y.dtype)) / amount * correction
            )
        total = maximum(total, 0.0)
        weighted = away * weights
    products = reduce.sum(unsqueeze(weighted, 1) * unsqueeze(away, 0), -1)
    found: T = products / total
    return squeeze(found) if lone or found.shape == (1, 1) else found  # as NumPy


@rounded_once
def corrcoef(x: T) -> T:
    """The correlations of rows, each of which is a variable.

    >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).corrcoef().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x)
    if not c.ndim:
        return c / c
    scale = sqrt(c.diagonal())  # type: ignore[attr-defined]
    found: T = clamp(c / unsqueeze(scale, 1) / unsqueeze(scale, 0), -1.0, 1.0)
    return found


# --- by rank


def msort(x: T) -> T:
    """Sorted along the first axis.

    >>> Tensor([3, 1, 2]).msort().tolist()
    [1, 2, 3]
    """
    found: T = sort(x, 0).values
    return found


def kthvalue(x: T, k: int, dim: int = -1, keepdim: bool = False, *, axis: int | None = None) -> Sorted:
    """(values, indices) of the k-th smallest elements along an axis; the smallest has k = 1.

    >>> Tensor([3, 1, 2]).kthvalue(2).values.item()
    2
    """
    at = as_axis(dim if axis is None else axis, max(x.ndim, 1), x.shape)
    size = x.shape[at] if x.ndim else 1
    if not isinstance(size, int) or not 1 <= k <= size:
        raise ShapeError(f"the k-th of axis {at} of shape {show_shape(x.shape)} has k in 1 … {size}, not {k}")
    values, order = sort(x, at)
    if not x.ndim:
        return Sorted(values, order)
    found = Sorted(narrow(values, at, k - 1, 1), narrow(order, at, k - 1, 1))
    return found if keepdim else Sorted(squeeze(found.values, at), squeeze(found.indices, at))


def mode(x: T, dim: int = -1, keepdim: bool = False, *, axis: int | None = None) -> Sorted:
    """(values, indices) of the elements that occur most often along an axis, the smallest of equals.

    >>> Tensor([1, 2, 2, 3]).mode().values.item()
    2
    """
    if not x.ndim:
        return Sorted(x, cast(x * 0, dt.int64))
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    rows = transpose(x, at, -1)
    values, order = sort(rows, -1)
    often = reduce.sum(eq(unsqueeze(values, -1), unsqueeze(values, -2)), -1)
    first = reduce.argmax(often, -1, keepdim=True)
    best = gather(values, -1, first)
    # the last of equals, as PyTorch
    last = first + reduce.max(often, -1, keepdim=True) - 1
    found = (
        gather(values, -1, first),
        gather(order, -1, clamp(last, max=int(concrete_shape(rows.shape)[-1]) - 1)),
    )
    values, places = (transpose(v, at, -1) for v in (best, found[1]))
    return Sorted(values, places) if keepdim else Sorted(squeeze(values, at), squeeze(places, at))


def _finite_first(x: T, axis: Any) -> tuple[T, T, Any]:
    """Floats sorted along an axis (all of them if none is given), and how many of each row are not NaN."""
    y = floating(x)
    if axis is None or not x.ndim:
        y, at = reshape(y, -1), 0
    else:
        at = as_axis(axis, x.ndim, x.shape)
    rows = transpose(y, at, -1)
    values: T = sort(rows, -1).values
    count = reduce.sum(~isnan(rows), -1, keepdim=True)
    return values, count, at


def _kept(found: T, x: T, axis: Any, keepdim: bool) -> T:
    """A result per row, in the place of the axis."""
    if axis is None or not x.ndim:
        return reshape(found, (1,) * x.ndim if keepdim else ())
    at = as_axis(axis, x.ndim, x.shape)
    moved = transpose(found, at, -1)
    return moved if keepdim else squeeze(moved, at)


def nanmedian(
    x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
) -> T:
    """The middle value of what is not NaN, or the average of the two in the middle.

    >>> Tensor([1.0, float("nan"), 3.0]).nanmedian().item()
    2.0
    """
    return nanquantile(x, 0.5, axis_or_dim(axis, dim), keepdim or keepdims)


def nanquantile(
    x: T,
    q: Any,
    axis: Any = None,
    keepdim: bool = False,
    interpolation: str = "linear",
    *,
    dim: Any = _UNSET,
    keepdims: bool = False,
) -> T:
    """The value below which a part q of what is not NaN lies; several q make a new first axis.

    >>> Tensor([0.0, 1.0, float("nan"), 2.0]).nanquantile(0.5).item()
    1.0
    """
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise ArgumentError(f"interpolation by {interpolation!r} is not known")
    where_, keep = axis_or_dim(axis, dim), keepdim or keepdims
    values, count, _ = _finite_first(x, where_)
    parts = cast(as_operand(values, q), dt.float64)
    wanted = reshape(parts, -1)
    place = cast(maximum(count - 1, 0), dt.float64) * wanted  # (…, quantiles)
    low = floor(place)
    share = place - low
    top = maximum(count - 1, 0)
    first = cast(low, dt.int64)
    second = where(share > 0.0, first + 1, first)
    second = where(second > top, top, second)
    below, above = gather(values, -1, first), gather(values, -1, second)
    weight = {
        "linear": cast(share, values.dtype),
        "lower": cast(share * 0.0, values.dtype),
        "higher": cast(share > 0.0, values.dtype),
        "midpoint": cast(share > 0.0, values.dtype) * 0.5,
        "nearest": cast((share > 0.5) | (eq(share, 0.5) & eq(first % 2, 1)), values.dtype),
    }[interpolation]
    found = where(eq(weight, 0.0), below, where(eq(weight, 1.0), above, part_between(below, above, weight)))
    found = cast(where(eq(count, 0), math.nan, found), float_of(x.dtype))
    pieces = [_kept(narrow(found, -1, i, 1), x, where_, keep) for i in range(concrete_shape(wanted.shape)[0])]
    if not parts.ndim:
        return pieces[0]
    return pieces[0].stack(*pieces[1:])  # type: ignore[attr-defined,no-any-return]


# --- lengths


@rounded_once
def dist(x: T, other: Any, p: float = 2) -> T:
    """The p-norm of x - y.

    >>> Tensor([3.0, 4.0]).dist(Tensor([0.0, 0.0])).item()
    5.0
    """
    return reduce.norm(x - as_operand(x, other), p)


@rounded_once
def renorm(x: T, p: float, dim: int, maxnorm: float) -> T:
    """x with the slices along an axis scaled down to a p-norm of `maxnorm`, where it is larger.

    >>> [round(v, 4) for v in Tensor([[3.0, 4.0]]).renorm(2, 0, 1.0).flatten().tolist()]
    [0.6, 0.8]
    """
    at = as_axis(dim, x.ndim, x.shape)
    rest = tuple(i for i in range(x.ndim) if i != at)
    length = reduce.norm(x, p, rest, keepdim=True)
    return x * where(length > maxnorm, maxnorm / (length + 1e-7), 1.0)


@rounded_once
def cdist(x: T, other: Any, p: float = 2.0, compute_mode: str | None = None) -> T:
    """The p-norms of the differences of all pairs of rows (…, n, m) and (…, k, m).

    >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [[5.0, 1.0]]
    """
    y = as_operand(x, other)
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"cdist takes rows of one length, not {show_shape(x.shape)} and {show_shape(y.shape)}"
        )
    lead = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if x.shape[-1] == 0:
        return expand(reduce.sum(x, -1, keepdim=True), [*lead, x.shape[-2], y.shape[-2]])
    return reduce.norm(unsqueeze(x, -2) - unsqueeze(y, -3), p, -1)
