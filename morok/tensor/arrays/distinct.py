"""Different elements, or different slices: which there are, where, and how often."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from morok import dtype as dt
from morok.ir.node import const
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import movedim
from morok.tensor.arrays.index import gather, take
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.movement import expand, narrow, reshape, squeeze, unsqueeze
from morok.tensor.arrays.reduce import cumsum
from morok.tensor.arrays.rows import put_rows
from morok.tensor.arrays.scatter import scatter
from morok.tensor.arrays.selection import counted, first_true, kept_for, measured
from morok.tensor.arrays.sorting import sort
from morok.tensor.core import expand_to, iota
from morok.tensor.creation.constructors import full, ones_like, zeros, zeros_like
from morok.tensor.elementwise.comparison import maximum, ne, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axis, as_shape, as_size, concrete_shape


class Unique(NamedTuple):
    """What `unique` returns if more than the values is asked for; None for what is not."""

    values: Any
    inverse: Any = None
    counts: Any = None


def unique(
    t: T,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: Any = None,
    *,
    size: Any = None,
    fill_value: Any = 0,
) -> Any:
    """The different elements in order, one NaN among them; or (values, inverse, counts).

    `inverse` says for each element where its value is, `counts` how often each value occurs. With a
    `size`, that many: the fill value, which occurs 0 times, is left over, and what does not fit is lost.
    With a `dim`, the different slices along that axis; every pair of them is compared.

    >>> Tensor([3, 1, 3]).unique().tolist()
    [1, 3]
    >>> Tensor([3, 1, 3]).unique(return_inverse=True, return_counts=True).inverse.tolist()
    [1, 0, 1]
    """
    if dim is not None:
        return _unique_slices(t, dim, return_inverse, return_counts, size, fill_value)
    x = reshape(t, t.numel())
    (total,) = concrete_shape(x.shape)
    if not total:
        return _unique_of_nothing(t, size, fill_value, return_inverse, return_counts)
    values, order = sort(kept_for(x, size))
    before = values.narrow(0, 0, total - 1)
    after = values.narrow(0, 1, total - 1)
    differs = before.ne(after)
    if x.dtype.is_float:
        differs = differs & ~(before.isnan() & after.isnan())
    first = cat(narrow(ones_like(x, dt.bool_), 0, 0, 1), differs)
    group = cumsum(cast(first, dt.int64), 0) - 1
    if size is None:
        count = measured(reshape(narrow(group, 0, total - 1, 1) + 1, ()), "unique")
    else:
        (count,) = concrete_shape(as_shape((as_size(size),)))
    places = first_true(first, count)
    found = values.take(maximum(places, 0))
    if size is not None:
        found = cast(where(places < 0, fill_value, found), t.dtype)
    if not return_inverse and not return_counts:
        return found
    inverse = reshape(scatter(zeros_like(group), 0, order, group), t.shape)
    kept = where(group < count, group, -1)
    zeros = expand_to(const(dt.int64, 0), (count,))
    put = counted(x._new(zeros), kept, None)
    return Unique(found, inverse if return_inverse else None, put if return_counts else None)


def _unique_of_nothing(x: T, size: Any, fill_value: Any, inverse: bool, counts: bool) -> Any:
    count = 0 if size is None else size
    found = x._new(full(type(x), (count,), fill_value, x.dtype, x.device).uop)
    if not inverse and not counts:
        return found
    none = x._new(zeros(type(x), x.shape, dtype=dt.int64).uop)
    return Unique(found, none if inverse else None, zeros_like(found, dt.int64) if counts else None)


def _as_rows(x: T) -> T:
    """Slices along the first axis as rows, also where there are none; those without elements are equal."""
    first, *rest = concrete_shape(x.shape)
    if first and not math.prod(rest):
        return x._new(zeros(type(x), first, 1, dtype=x.dtype, device=x.device).uop)
    return reshape(x, first, math.prod(rest))


def _unique_slices(t: T, dim: Any, inverse: bool, counts: bool, size: Any, fill_value: Any) -> Any:
    """The different slices along an axis in order, by comparing every pair."""
    at = as_axis(dim, max(t.ndim, 1), t.shape)
    x = kept_for(t, size)
    rows = _as_rows(movedim(x, at, 0)) if x.ndim else reshape(x, 1, 1)
    total, width = concrete_shape(rows.shape)
    if not total:
        none = x._new(zeros(type(x), 0, dtype=dt.int64).uop)
        return Unique(x, none if inverse else None, none if counts else None) if inverse or counts else x
    a, b = expand(unsqueeze(rows, 1), total, total, width), unsqueeze(rows, 0)
    differs = ne(a, b)
    first = reduce.argmax(differs, -1, keepdim=True)  # the first place where two rows differ
    here = gather(a, -1, first)
    there = gather(expand(b, total, total, width), -1, first)
    same = ~reduce.any(differs, -1)
    less = squeeze(here < there, -1)
    place = x._new(expand_to(iota((total,), 0, dt.int64), (total,)))
    earlier = unsqueeze(place, 1) < unsqueeze(place, 0)
    leads = ~reduce.any(same & earlier, 0)  # no equal one before it
    rank = reduce.sum(unsqueeze(leads, 1) & less, 0)
    if size is None:
        count = measured(reduce.sum(leads), "unique")
    else:
        (count,) = concrete_shape(as_shape((as_size(size),)))
    nobody = expand_to(const(dt.int64, -1), (count,))
    where_from = x._new(put_rows(nobody, where(leads & (rank < count), rank, -1).uop, place.uop))
    found = take(x, maximum(where_from, 0), at) if x.ndim else x
    if size is not None:
        shape = [count if i == at else 1 for i in range(x.ndim)]
        found = cast(where(reshape(where_from, shape) < 0, fill_value, found), t.dtype)
    if not inverse and not counts:
        return found
    zero = x._new(expand_to(const(dt.int64, 0), (count,)))
    often = counted(zero, where(rank < count, rank, -1), None)
    return Unique(found, rank if inverse else None, often if counts else None)


def unique_consecutive(
    t: T, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """Elements, or slices along an axis, without repetitions of the one before; or (values, inverse, counts).

    >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
    [1, 2, 1]
    """
    x = kept_for(t, None)
    if dim is None or not x.ndim:
        rows, at = reshape(x, -1, 1), None
        moved = reshape(x, -1)
    else:
        at = as_axis(dim, x.ndim, x.shape)
        moved = movedim(x, at, 0)
        rows = _as_rows(moved)
    total, _ = concrete_shape(rows.shape)
    if not total:
        none = x._new(zeros(type(x), x.shape if at is None else (0,), dtype=dt.int64).uop)
        found = reshape(x, 0) if at is None else x
        return (
            found
            if not (return_inverse or return_counts)
            else Unique(found, none if return_inverse else None, reshape(none, 0) if return_counts else None)
        )
    changes = reduce.any(ne(narrow(rows, 0, 1, total - 1), narrow(rows, 0, 0, total - 1)), 1)
    begins = cat(reshape(ones_like(narrow(rows, 0, 0, 1), dt.bool_).any(1), 1), changes)  # type: ignore[attr-defined]
    group = cumsum(cast(begins, dt.int64), 0) - 1
    count = measured(reshape(narrow(group, 0, total - 1, 1) + 1, ()), "unique_consecutive")
    found = take(moved, first_true(begins, count), 0)
    found = found if at is None else movedim(found, 0, at)
    if not return_inverse and not return_counts:
        return found
    often = counted(x._new(expand_to(const(dt.int64, 0), (count,))), group, None)
    places = reshape(group, x.shape) if at is None else group
    return Unique(found, places if return_inverse else None, often if return_counts else None)
