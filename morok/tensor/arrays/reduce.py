"""Reductions: sums, products, extremes and what follows from them.

Sums and products of floats narrower than 32 bits are carried in float32 and rounded once at the end; sums of
integers and truths are carried in 64 bits, as in NumPy. `axis` and `dim` are the same argument, and so are
`keepdim` and `keepdims`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

from morok import dtype as dt
from morok.errors import DTypeError, MorokError, ShapeError
from morok.ir import movement as move
from morok.ir.bounds import vmax
from morok.ir.build import cast
from morok.ir.infer import numel, show_shape, size_node
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.tensor.arrays.movement import Movement
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.creation.constructors import Creation
from morok.tensor.dtypes import accumulator, as_dtype, float_of
from morok.tensor.elementwise.activations import Activations
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.record import pure
from morok.tensor.sizes import _UNSET, as_axes, as_axis, axis_or_dim

Axes = Any  # None, an int, or several


class Sorted(NamedTuple):
    """Values, and where they were: what `sort` and `topk` return."""

    values: Any
    indices: Any


@pure
class Reduce(Activations, Movement, Creation):
    """Many elements to one."""

    def _reduce(self, op: Op, axes: tuple[int, ...], keep: bool) -> Self:
        """The bare reduction in the tensor's own type."""
        reduced = move.reduce_axis(self.uop, op, axes)
        if keep:
            return self._new(reduced)
        own = require_shape(reduced)
        return self._new(move.reshape(reduced, [s for axis, s in enumerate(own) if axis not in axes]))

    def _accumulate(self, op: Op, axes: tuple[int, ...], keep: bool, dtype: Any) -> Self:
        own = self.dtype
        wide = as_dtype(dtype) if dtype is not None else accumulator(own)
        if wide.is_float and wide.bits < 32:
            wide = dt.float32
        result = self.cast(wide)._reduce(op, axes, keep)
        return result.cast(dtype if dtype is not None else own if own.is_float else wide)

    def sum(
        self,
        axis: Axes = None,
        keepdim: bool = False,
        *,
        dim: Axes = _UNSET,
        keepdims: bool = False,
        dtype: Any = None,
    ) -> Self:
        """The sum over axes, or over everything.

        >>> Tensor([[1, 2], [3, 4]]).sum(0).tolist()
        [4, 6]
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        return self._accumulate(Ops.ADD, axes, keepdim or keepdims, dtype)

    def prod(
        self,
        axis: Axes = None,
        keepdim: bool = False,
        *,
        dim: Axes = _UNSET,
        keepdims: bool = False,
        dtype: Any = None,
    ) -> Self:
        """The product over axes, or of everything.

        >>> Tensor([[1, 2], [3, 4]]).prod(1).tolist()
        [2, 12]
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        return self._accumulate(Ops.MUL, axes, keepdim or keepdims, dtype)

    def _extreme(self, op: Op, axes: tuple[int, ...], keep: bool) -> Self:
        empty = [axis for axis in axes if self.shape[axis] == 0]
        if empty:
            name = "max" if op is Ops.MAX else "min"
            raise ShapeError(
                f"{name} over axis {empty[0]} of shape {show_shape(self.shape)} has nothing to choose from"
            )
        return self._reduce(op, axes, keep)

    def max(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """The largest value; NaN if there is one.

        >>> Tensor([[1, 5], [3, 4]]).max(1).tolist()
        [5, 4]
        """
        return self._extreme(Ops.MAX, as_axes(axis_or_dim(axis, dim), self.shape), keepdim or keepdims)

    def min(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """The smallest value; NaN if there is one.

        >>> Tensor([[1, 5], [3, 4]]).min(1).tolist()
        [1, 3]
        """
        return self._extreme(Ops.MIN, as_axes(axis_or_dim(axis, dim), self.shape), keepdim or keepdims)

    amax, amin = max, min

    def any(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """Whether some element is not zero.

        >>> Tensor([[0, 1], [0, 0]]).any(1).tolist()
        [True, False]
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        return self.cast(dt.bool_)._reduce(Ops.OR, axes, keepdim or keepdims)

    def all(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """Whether no element is zero.

        >>> Tensor([[0, 1], [2, 3]]).all(1).tolist()
        [False, True]
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        return self.cast(dt.bool_)._reduce(Ops.AND, axes, keepdim or keepdims)

    def count_nonzero(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """How many elements are not zero.

        >>> Tensor([0, 1, 2]).count_nonzero().item()
        2
        """
        return self.cast(dt.bool_).sum(axis_or_dim(axis, dim), keepdim or keepdims)

    # --- averages

    def _length(self, axes: tuple[int, ...], dtype: dt.DType) -> UOp:
        """How many elements meet in one, as a number in arithmetic."""
        return cast(size_node(numel(tuple(self.shape[axis] for axis in axes))), dtype)

    def mean(
        self,
        axis: Axes = None,
        keepdim: bool = False,
        *,
        dim: Axes = _UNSET,
        keepdims: bool = False,
        dtype: Any = None,
    ) -> Self:
        """The average; of integers in float32, or of everything in the type that is given.

        >>> Tensor([1.0, 2.0, 6.0]).mean().item()
        3.0
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        if dtype is not None:
            kind = as_dtype(dtype)
            if not kind.is_float:
                raise DTypeError(f"an average is a float, not {kind}; cast it afterwards")
            return self.cast(kind).mean(axes, keepdim or keepdims)
        own = self.dtype
        wide = accumulator(own) if own.is_float else dt.float64
        total = self.cast(wide)._reduce(Ops.ADD, axes, keepdim or keepdims)
        return total.__truediv__(self._divisor(self._length(axes, wide))).cast(float_of(own))

    def _divisor(self, node: UOp) -> Any:
        """A count as an operand: a number where it is known."""
        if node.op is Ops.CAST and node.src[0].op is Ops.CONST:
            return float(node.src[0].arg)
        return float(node.arg) if node.op is Ops.CONST else self._new(node)

    def var(
        self,
        axis: Axes = None,
        keepdim: bool = False,
        correction: float = 1,
        *,
        dim: Axes = _UNSET,
        keepdims: bool = False,
        ddof: float | None = None,
    ) -> Self:
        """The mean of squared distances from the mean, over n - correction (PyTorch's 1; NumPy's ddof is 0).

        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        own = float_of(self.dtype)
        wide = self.cast(accumulator(own) if self.dtype.is_float else dt.float64)
        distance = wide - wide.mean(axes, keepdim=True)
        total = (distance * distance)._reduce(Ops.ADD, axes, keepdim or keepdims)
        less = float(correction if ddof is None else ddof)
        count = self._divisor(self._length(axes, wide.dtype))
        rest = max(count - less, 0.0) if isinstance(count, float) else count - less
        return (total / rest).cast(own)

    @rounded_once
    def std(
        self,
        axis: Axes = None,
        keepdim: bool = False,
        correction: float = 1,
        *,
        dim: Axes = _UNSET,
        keepdims: bool = False,
        ddof: float | None = None,
    ) -> Self:
        """The square root of the variance.

        >>> Tensor([1.0, 2.0, 3.0]).std().item()
        1.0
        """
        return self.var(axis, keepdim, correction, dim=dim, keepdims=keepdims, ddof=ddof).sqrt()

    @rounded_once
    def norm(
        self,
        p: Any = 2,
        axis: Axes = None,
        keepdim: bool = False,
        *,
        dim: Axes = _UNSET,
        keepdims: bool = False,
    ) -> Self:
        """The p-norm over axes: the length for 2, the largest |x| for inf, the smallest for -inf.

        >>> Tensor([3.0, 4.0]).norm().item()
        5.0
        """
        axes, x, keep = axis_or_dim(axis, dim), self._floating().abs(), keepdim or keepdims
        p = 2 if p == "fro" else p
        if not isinstance(p, int | float):
            raise MorokError(f'the p of a norm is a number or "fro", not {p!r}')
        if p in (math.inf, -math.inf):
            return x.max(axes, keep) if p > 0 else x.min(axes, keep)
        if p == 0:
            return x.ne(0.0).sum(axes, keep).cast(x.dtype)
        if p == 2:
            y = self._floating()
            length = (y * y).sum(axes, keep).sqrt()
            # By name: the gradient at zero is zero, and not 0 times the infinite slope of the root.
            name = ("norm", as_axes(axes, self.shape))
            return self._new(make(Ops.NOOP, y.dtype, (length.uop, y.uop), name))
        return x.sum(axes, keep) if p == 1 else (x**p).sum(axes, keep) ** (1.0 / p)

    # --- positions

    def _position(self, op: Op, axis: Axes, keep: bool) -> Self:
        """The first place of an extreme value. A NaN is more extreme than anything, as in NumPy."""
        x = self.cast(dt.int8) if self.dtype.is_bool else self
        if axis is None:
            found = x.flatten()._position(op, 0, False)
            return found.reshape((1,) * self.ndim) if keep else found
        where = as_axis(axis, max(x.ndim, 1), x.shape)
        if not x.ndim:
            return x.zeros_like(dt.int64)
        best = x._extreme(op, (where,), True)
        size = x.shape[where]
        hit = x.eq(best)
        if x.dtype.is_float:
            hit = hit | x.isnan()  # equal to nothing, but then the extreme is NaN too, and nothing else hits
        # places are compared in vectors of the values' width, or nearly
        kind = dt.int32 if vmax(size_node(size)) < dt.int32.max else dt.int64
        place = expand_to(iota(x.shape, where, kind), x.shape)
        never = cast(size_node(size), kind) if isinstance(size, UOp) else const(kind, size)
        candidate = alu(Ops.WHERE, hit.uop, place, never)
        return self._new(candidate)._reduce(Ops.MIN, (where,), keep).cast(dt.int64)

    def argmax(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """Where the largest value is, the first of equals; in everything flattened if no axis is given.

        >>> Tensor([[1, 5], [7, 4]]).argmax(1).tolist()
        [1, 0]
        """
        return self._position(Ops.MAX, axis_or_dim(axis, dim), keepdim or keepdims)

    def argmin(
        self, axis: Axes = None, keepdim: bool = False, *, dim: Axes = _UNSET, keepdims: bool = False
    ) -> Self:
        """Where the smallest value is, the first of equals; in everything flattened if no axis is given.

        >>> Tensor([[1, 5], [7, 4]]).argmin(1).tolist()
        [0, 1]
        """
        return self._position(Ops.MIN, axis_or_dim(axis, dim), keepdim or keepdims)

    # --- running

    def cumsum(self, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> Self:
        """Sums of everything up to each place along an axis; of everything flattened if none is given.

        >>> Tensor([1, 2, 3]).cumsum(0).tolist()
        [1, 3, 6]
        """
        return self._cumulative(Ops.ADD, axis_or_dim(axis, dim), dtype)

    def cumprod(self, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> Self:
        """Products of everything up to each place along an axis; of everything flattened if none is given.

        >>> Tensor([1, 2, 3]).cumprod(0).tolist()
        [1, 2, 6]
        """
        return self._cumulative(Ops.MUL, axis_or_dim(axis, dim), dtype)

    def cummax(self, axis: Any = None, *, dim: Any = _UNSET, return_indices: bool = False) -> Any:
        """The largest value up to each place along an axis; NaN from the first one on.

        With `return_indices` (values, where they are), the last of equals, as PyTorch's.

        >>> Tensor([1, 3, 2]).cummax(0).tolist()
        [1, 3, 3]
        >>> Tensor([1, 3, 2]).cummax(0, return_indices=True).indices.tolist()
        [0, 1, 1]
        """
        return self._extreme_so_far(Ops.MAX, axis_or_dim(axis, dim), return_indices)

    def cummin(self, axis: Any = None, *, dim: Any = _UNSET, return_indices: bool = False) -> Any:
        """The smallest value up to each place along an axis; NaN from the first one on.

        With `return_indices` (values, where they are), the last of equals, as PyTorch's.

        >>> Tensor([3, 1, 2]).cummin(0).tolist()
        [3, 1, 1]
        """
        return self._extreme_so_far(Ops.MIN, axis_or_dim(axis, dim), return_indices)

    def _cumulative(self, op: Op, axis: Any, dtype: Any) -> Self:
        own = self.dtype if dtype is None else as_dtype(dtype)
        if dtype is None and (own.is_bool or own.is_bounded_int):
            own = accumulator(own)
        wide = accumulator(own) if own.is_float else own
        return self.cast(wide)._running(op, axis).cast(own)

    def _extreme_so_far(self, op: Op, axis: Any, indices: bool) -> Any:
        x = self.cast(dt.uint8) if self.dtype.is_bool else self
        found = x._running(op, axis)
        values = found.cast(self.dtype)
        if not indices:
            return values
        if axis is None or not x.ndim:
            x, axis = x.reshape(x.numel()), 0
        where = as_axis(axis, x.ndim, x.shape)
        here = x.eq(found) | x.isnan() if x.dtype.is_float else x.eq(found)
        place = self._new(expand_to(iota(x.shape, where, dt.int64), x.shape))
        return Sorted(values, here.where(place, 0)._running(Ops.MAX, where))

    def _running(self, op: Op, axis: Any) -> Self:
        """Everything up to each place, combined. Vectors of sums are added in a tree, pieces of a long row
        side by side: rounding differs from one addition after the other, infinities and NaN do not."""
        if axis is None or not self.ndim:
            return self.reshape(self.numel())._running(op, 0 if axis is None else axis)
        where = as_axis(axis, self.ndim, self.shape)
        return self._new(move.scan_axis(self.uop, op, where))
