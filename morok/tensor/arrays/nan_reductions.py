"""Reductions that leave NaN out."""

from __future__ import annotations

import math
from typing import Any

from morok.tensor.arrays import reduce
from morok.tensor.arrays.reduce import mean, prod, var
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.elementwise import comparison
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isnan
from morok.tensor.sizes import _UNSET, axis_or_dim


def _filled(x: T, value: float) -> T:
    return where(isnan(x), value, x) if x.dtype.is_float else x


def nansum(x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False) -> T:
    """The sum of what is not NaN.

    >>> Tensor([1.0, float("nan"), 2.0]).nansum().item()
    3.0
    """
    return reduce.sum(_filled(x, 0.0), axis_or_dim(axis, dim), keepdim or keepdims)


def nanprod(x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False) -> T:
    """The product of what is not NaN.

    >>> Tensor([3.0, float("nan"), 2.0]).nanprod().item()
    6.0
    """
    return prod(_filled(x, 1.0), axis_or_dim(axis, dim), keepdim or keepdims)


def nanmean(x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False) -> T:
    """The average of what is not NaN; NaN if nothing is left.

    >>> Tensor([1.0, float("nan"), 3.0]).nanmean().item()
    2.0
    """
    where, keep = axis_or_dim(axis, dim), keepdim or keepdims
    if not x.dtype.is_float:
        return mean(x, where, keep)
    wide = cast(x, accumulator(x.dtype))
    count = cast(reduce.sum(~isnan(wide), where, keep), wide.dtype)
    return cast(reduce.sum(_filled(wide, 0.0), where, keep) / count, x.dtype)


def nanvar(
    x: T,
    axis: Any = None,
    keepdim: bool = False,
    correction: float = 0,
    *,
    dim: Any = _UNSET,
    keepdims: bool = False,
    ddof: float | None = None,
) -> T:
    """The mean squared distance from the mean, of what is not NaN (over n, as NumPy).

    >>> Tensor([1.0, float("nan"), 3.0]).nanvar().item()
    1.0
    """
    where, keep = axis_or_dim(axis, dim), keepdim or keepdims
    wide = cast(x, accumulator(float_of(x.dtype)))
    gone = isnan(wide)
    distance = comparison.where(gone, 0.0, comparison.where(gone, 0.0, wide) - nanmean(wide, where, True))
    squares = reduce.sum(distance * distance, where, keep)
    count = cast(reduce.sum(~gone, where, keep), wide.dtype)
    rest = count - float(correction if ddof is None else ddof)
    return cast(comparison.where(rest > 0, squares, math.nan) / rest, float_of(x.dtype))


def nanmax(x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False) -> T:
    """The largest value that is not NaN; NaN if nothing is left.

    >>> Tensor([1.0, float("nan"), 3.0]).nanmax().item()
    3.0
    """
    where, keep = axis_or_dim(axis, dim), keepdim or keepdims
    if not x.dtype.is_float:
        return reduce.max(x, where, keep)
    nothing = reduce.all(isnan(x), where, keep)
    return comparison.where(nothing, math.nan, reduce.max(_filled(x, x.dtype.min), where, keep))


def nanmin(x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False) -> T:
    """The smallest value that is not NaN; NaN if nothing is left.

    >>> Tensor([1.0, float("nan"), 3.0]).nanmin().item()
    1.0
    """
    where, keep = axis_or_dim(axis, dim), keepdim or keepdims
    if not x.dtype.is_float:
        return reduce.min(x, where, keep)
    nothing = reduce.all(isnan(x), where, keep)
    return comparison.where(nothing, math.nan, reduce.min(_filled(x, x.dtype.max), where, keep))


def aminmax(x: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET) -> tuple[T, T]:
    """The smallest and the largest value.

    >>> [x.item() for x in Tensor([3, 1, 2]).aminmax()]
    [1, 3]
    """
    where = axis_or_dim(axis, dim)
    return reduce.min(x, where, keepdim), reduce.max(x, where, keepdim)


def var_mean(
    x: T,
    axis: Any = None,
    keepdim: bool = False,
    correction: float | None = 1,
    *,
    dim: Any = _UNSET,
    unbiased: bool | None = None,
) -> tuple[T, T]:
    """The variance and the mean.

    >>> [x.item() for x in Tensor([1.0, 2.0, 3.0]).var_mean()]
    [1.0, 2.0]
    """
    where = axis_or_dim(axis, dim)
    return var(x, where, keepdim, correction, unbiased=unbiased), mean(x, where, keepdim)
