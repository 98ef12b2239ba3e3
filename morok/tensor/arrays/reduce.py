"""Reductions: sums, products, extremes and what follows from them.

Sums and products of floats narrower than 32 bits are carried in float32 and rounded once at the end; sums of
integers and truths are carried in 64 bits, as in NumPy. `axis` and `dim` are the same argument, and so are
`keepdim` and `keepdims`.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

from morok import dtype as dt
from morok.errors import DTypeError, MorokError, ShapeError
from morok.ir import build
from morok.ir import movement as move
from morok.ir.bounds import vmax
from morok.ir.call import call
from morok.ir.infer import numel, show_shape, size_node
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Op, Ops
from morok.tensor.arrays.movement import flatten, reshape
from morok.tensor.arrays.sorted import Sorted
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.creation.constructors import zeros_like
from morok.tensor.dtypes import accumulator, as_dtype, float_of
from morok.tensor.elementwise import arithmetic, comparison
from morok.tensor.elementwise.arithmetic import div
from morok.tensor.elementwise.comparison import eq, ne
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating, named
from morok.tensor.elementwise.functions import sqrt
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isnan
from morok.tensor.sizes import _UNSET, as_axes, as_axis, axis_or_dim

Axes = Any  # None, an int, or several


def reduce_axes(x: T, op: Op, axes: tuple[int, ...], keep: bool) -> T:
    """The bare reduction in the tensor's own type."""
    reduced = move.reduce_axis(x.uop, op, axes)
    if keep:
        return x._new(reduced)
    own = require_shape(reduced)
    return x._new(move.reshape(reduced, [s for axis, s in enumerate(own) if axis not in axes]))


def _accumulate(x: T, op: Op, axes: tuple[int, ...], keep: bool, dtype: Any) -> T:
    own = x.dtype
    wide = as_dtype(dtype) if dtype is not None else accumulator(own)
    if wide.is_float and wide.bits < 32:
        wide = dt.float32
    result = reduce_axes(cast(x, wide), op, axes, keep)
    return cast(result, dtype if dtype is not None else own if own.is_float else wide)


def sum(
    x: T,
    axis: Axes = None,
    keepdim: bool = False,
    *,
    dim: Axes = _UNSET,
    keepdims: bool = False,
    dtype: Any = None,
) -> T:
    """The sum over axes, or over everything.

    >>> Tensor([[1, 2], [3, 4]]).sum(0).tolist()
    [4, 6]
    """
    axes = as_axes(axis_or_dim(axis, dim), x.shape)
    return _accumulate(x, Ops.ADD, axes, keepdim or keepdims, dtype)


def prod(
    x: T,
    axis: Axes = None,
    keepdim: bool = False,
    *,
    dim: Axes = _UNSET,
    keepdims: bool = False,
    dtype: Any = None,
) -> T:
    """The product over axes, or of everything.

    >>> Tensor([[1, 2], [3, 4]]).prod(1).tolist()
    [2, 12]
    """
    axes = as_axes(axis_or_dim(axis, dim), x.shape)
    return _accumulate(x, Ops.MUL, axes, keepdim or keepdims, dtype)


def _extreme(x: T, op: Op, axes: tuple[int, ...], keep: bool) -> T:
    empty = [axis for axis in axes if x.shape[axis] == 0]
    if empty:
        name = "max" if op is Ops.MAX else "min"
        raise ShapeError(
            f"{name} over axis {empty[0]} of shape {show_shape(x.shape)} has nothing to choose from"
        )
    return reduce_axes(x, op, axes, keep)


def max(x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False) -> T:
    """The largest value; NaN if there is one.

    >>> Tensor([[1, 5], [3, 4]]).max(1).tolist()
    [5, 4]
    """
    return _extreme(x, Ops.MAX, as_axes(axis_or_dim(axis, dim), x.shape), keepdim or keepdims)


def min(x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False) -> T:
    """The smallest value; NaN if there is one.

    >>> Tensor([[1, 5], [3, 4]]).min(1).tolist()
    [1, 3]
    """
    return _extreme(x, Ops.MIN, as_axes(axis_or_dim(axis, dim), x.shape), keepdim or keepdims)


def any(x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False) -> T:
    """Whether some element is not zero.

    >>> Tensor([[0, 1], [0, 0]]).any(1).tolist()
    [True, False]
    """
    axes = as_axes(axis_or_dim(axis, dim), x.shape)
    return reduce_axes(cast(x, dt.bool_), Ops.OR, axes, keepdim or keepdims)


def all(x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False) -> T:
    """Whether no element is zero.

    >>> Tensor([[0, 1], [2, 3]]).all(1).tolist()
    [False, True]
    """
    axes = as_axes(axis_or_dim(axis, dim), x.shape)
    return reduce_axes(cast(x, dt.bool_), Ops.AND, axes, keepdim or keepdims)


def count_nonzero(
    x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
) -> T:
    """How many elements are not zero.

    >>> Tensor([0, 1, 2]).count_nonzero().item()
    2
    """
    return sum(cast(x, dt.bool_), axis_or_dim(axis, dim), keepdim or keepdims)


# --- averages


def _length(x: T, axes: tuple[int, ...], dtype: dt.DType) -> UOp:
    """How many elements meet in one, as a number in arithmetic."""
    return build.cast(size_node(numel(tuple(x.shape[axis] for axis in axes))), dtype)


def mean(
    x: T,
    axis: Axes = None,
    keepdim: bool = False,
    *,
    dim: Axes = _UNSET,
    keepdims: bool = False,
    dtype: Any = None,
) -> T:
    """The average; of integers in float32, or of everything in the type that is given.

    >>> Tensor([1.0, 2.0, 6.0]).mean().item()
    3.0
    """
    axes = as_axes(axis_or_dim(axis, dim), x.shape)
    if dtype is not None:
        kind = as_dtype(dtype)
        if not kind.is_float:
            raise DTypeError(f"an average is a float, not {kind}; cast it afterwards")
        return mean(cast(x, kind), axes, keepdim or keepdims)
    own = x.dtype
    wide = accumulator(own) if own.is_float else dt.float64
    total = reduce_axes(cast(x, wide), Ops.ADD, axes, keepdim or keepdims)
    return cast(div(total, _divisor(x, _length(x, axes, wide))), float_of(own))


def _divisor(x: T, node: UOp) -> Any:
    """A count as an operand: a number where it is known."""
    if node.op is Ops.CAST and node.src[0].op is Ops.CONST:
        return float(node.src[0].arg)
    return float(node.arg) if node.op is Ops.CONST else x._new(node)


def correction_of(correction: float | None, unbiased: bool | None) -> float:
    """PyTorch's older name for corrections of 0 and 1; None is 1, as there."""
    if unbiased is not None:
        return float(unbiased)
    return 1.0 if correction is None else correction


def var(
    x: T,
    axis: Axes = None,
    keepdim: bool = False,
    correction: float | None = 1,
    *,
    dim: Axes = _UNSET,
    keepdims: bool = False,
    ddof: float | None = None,
    unbiased: bool | None = None,
) -> T:
    """The mean of squared distances from the mean, over n - correction (PyTorch's 1; NumPy's ddof is 0).

    >>> Tensor([1.0, 2.0, 3.0]).var().item()
    1.0
    """
    axes = as_axes(axis_or_dim(axis, dim), x.shape)
    own = float_of(x.dtype)
    wide = cast(x, accumulator(own) if x.dtype.is_float else dt.float64)
    distance = wide - mean(wide, axes, keepdim=True)
    total = reduce_axes(distance * distance, Ops.ADD, axes, keepdim or keepdims)
    less = float(correction_of(correction, unbiased) if ddof is None else ddof)
    count = _divisor(x, _length(x, axes, wide.dtype))
    rest = builtins.max(count - less, 0.0) if isinstance(count, float) else count - less
    return cast(total / rest, own)


@rounded_once
def std(
    x: T,
    axis: Axes = None,
    keepdim: bool = False,
    correction: float | None = 1,
    *,
    dim: Axes = _UNSET,
    keepdims: bool = False,
    ddof: float | None = None,
    unbiased: bool | None = None,
) -> T:
    """The square root of the variance.

    >>> Tensor([1.0, 2.0, 3.0]).std().item()
    1.0
    """
    less = correction_of(correction, unbiased)
    spread = var(x, axis, keepdim, less, dim=dim, keepdims=keepdims, ddof=ddof)
    return named(spread, "root", sqrt(spread))


@rounded_once
def norm(
    t: T,
    p: Any = 2,
    axis: Axes = None,
    keepdim: bool = False,
    *,
    dim: Axes = _UNSET,
    keepdims: bool = False,
) -> T:
    """The p-norm over axes: the length for 2, the largest |x| for inf, the smallest for -inf.

    >>> Tensor([3.0, 4.0]).norm().item()
    5.0
    """
    axes, x, keep = axis_or_dim(axis, dim), arithmetic.abs(floating(t)), keepdim or keepdims
    p = 2 if p == "fro" else p
    if not isinstance(p, int | float):
        raise MorokError(f'the p of a norm is a number or "fro", not {p!r}')
    if p in (math.inf, -math.inf):
        return max(x, axes, keep) if p > 0 else min(x, axes, keep)
    if p == 0:
        return cast(sum(ne(x, 0.0), axes, keep), x.dtype)
    if p == 2:
        y = floating(t)
        length = sqrt(sum(y * y, axes, keep))
        # By name: the gradient at zero is zero, and not 0 times the infinite slope of the root.
        return t._new(call("norm", length.uop, y.uop, axes=as_axes(axes, t.shape)))
    if p == 1:
        return sum(x, axes, keep)
    powers = sum(x**p, axes, keep)
    if p < 0:
        return powers ** (1.0 / p)
    nothing = eq(powers, 0.0)  # where the root has an infinite slope, and the norm none
    return comparison.where(nothing, 0.0, comparison.where(nothing, 1.0, powers) ** (1.0 / p))


# --- positions


def _position(t: T, op: Op, axis: Axes, keep: bool) -> T:
    """The first place of an extreme value. A NaN is more extreme than anything, as in NumPy."""
    x = cast(t, dt.int8) if t.dtype.is_bool else t
    if axis is None:
        found = _position(flatten(x), op, 0, False)
        return reshape(found, (1,) * t.ndim) if keep else found
    where = as_axis(axis, x.ndim or 1, x.shape)
    if not x.ndim:
        return zeros_like(x, dt.int64)
    best = _extreme(x, op, (where,), True)
    size = x.shape[where]
    hit = eq(x, best)
    if x.dtype.is_float:
        hit = hit | isnan(x)  # equal to nothing, but then the extreme is NaN too, and nothing else hits
    # places are compared in vectors of the values' width, or nearly
    kind = dt.int32 if vmax(size_node(size)) < dt.int32.max else dt.int64
    place = expand_to(iota(x.shape, where, kind), x.shape)
    never = build.cast(size_node(size), kind) if isinstance(size, UOp) else const(kind, size)
    candidate = alu(Ops.WHERE, hit.uop, place, never)
    return cast(reduce_axes(t._new(candidate), Ops.MIN, (where,), keep), dt.int64)


def argmax(
    x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
) -> T:
    """Where the largest value is, the first of equals; in everything flattened if no axis is given.

    >>> Tensor([[1, 5], [7, 4]]).argmax(1).tolist()
    [1, 0]
    """
    return _position(x, Ops.MAX, axis_or_dim(axis, dim), keepdim or keepdims)


def argmin(
    x: T, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
) -> T:
    """Where the smallest value is, the first of equals; in everything flattened if no axis is given.

    >>> Tensor([[1, 5], [7, 4]]).argmin(1).tolist()
    [0, 1]
    """
    return _position(x, Ops.MIN, axis_or_dim(axis, dim), keepdim or keepdims)


# --- running


def cumsum(x: T, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> T:
    """Sums of everything up to each place along an axis; of everything flattened if none is given.

    >>> Tensor([1, 2, 3]).cumsum(0).tolist()
    [1, 3, 6]
    """
    return _cumulative(x, Ops.ADD, axis_or_dim(axis, dim), dtype)


def cumprod(x: T, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> T:
    """Products of everything up to each place along an axis; of everything flattened if none is given.

    >>> Tensor([1, 2, 3]).cumprod(0).tolist()
    [1, 2, 6]
    """
    return _cumulative(x, Ops.MUL, axis_or_dim(axis, dim), dtype)


def cummax(x: T, axis: Any = None, *, dim: Any = _UNSET, return_indices: bool = False) -> Any:
    """The largest value up to each place along an axis; NaN from the first one on.

    With `return_indices` (values, where they are), the last of equals, as PyTorch's.

    >>> Tensor([1, 3, 2]).cummax(0).tolist()
    [1, 3, 3]
    >>> Tensor([1, 3, 2]).cummax(0, return_indices=True).indices.tolist()
    [0, 1, 1]
    """
    return _extreme_so_far(x, Ops.MAX, axis_or_dim(axis, dim), return_indices)


def cummin(x: T, axis: Any = None, *, dim: Any = _UNSET, return_indices: bool = False) -> Any:
    """The smallest value up to each place along an axis; NaN from the first one on.

    With `return_indices` (values, where they are), the last of equals, as PyTorch's.

    >>> Tensor([3, 1, 2]).cummin(0).tolist()
    [3, 1, 1]
    """
    return _extreme_so_far(x, Ops.MIN, axis_or_dim(axis, dim), return_indices)


def _cumulative(x: T, op: Op, axis: Any, dtype: Any) -> T:
    own = x.dtype if dtype is None else as_dtype(dtype)
    if dtype is None and (own.is_bool or own.is_bounded_int):
        own = accumulator(own)
    wide = accumulator(own) if own.is_float else own
    return cast(_running(cast(x, wide), op, axis), own)


def _extreme_so_far(t: T, op: Op, axis: Any, indices: bool) -> Any:
    x = cast(t, dt.uint8) if t.dtype.is_bool else t
    found = _running(x, op, axis)
    values = cast(found, t.dtype)
    if not indices:
        return values
    if axis is None or not x.ndim:
        x, axis = reshape(x, x.numel()), 0
    where = as_axis(axis, x.ndim, x.shape)
    here = eq(x, found) | isnan(x) if x.dtype.is_float else eq(x, found)
    place = t._new(expand_to(iota(x.shape, where, dt.int64), x.shape))
    return Sorted(values, _running(comparison.where(here, place, 0), Ops.MAX, where))


def _running(x: T, op: Op, axis: Any) -> T:
    """Everything up to each place, combined. Vectors of sums are added in a tree, pieces of a long row
    side by side: rounding differs from one addition after the other, infinities and NaN do not."""
    if axis is None or not x.ndim:
        return _running(reshape(x, x.numel()), op, 0 if axis is None else axis)
    where = as_axis(axis, x.ndim, x.shape)
    return x._new(move.scan_axis(x.uop, op, where))
