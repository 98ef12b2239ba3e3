"""Reductions that leave NaN out."""

from __future__ import annotations

import math
from typing import Any, Self

from morok.tensor.arrays.reduce import Reduce
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.record import pure
from morok.tensor.sizes import _UNSET, axis_or_dim


@pure
class NanReductions(Reduce):
    """Many elements to one, as far as there are any."""

    def _filled(self, value: float) -> Self:
        return self.isnan().where(value, self) if self.dtype.is_float else self

    def nansum(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """The sum of what is not NaN.

        >>> Tensor([1.0, float("nan"), 2.0]).nansum().item()
        3.0
        """
        return self._filled(0.0).sum(axis_or_dim(axis, dim), keepdim or keepdims)

    def nanprod(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """The product of what is not NaN.

        >>> Tensor([3.0, float("nan"), 2.0]).nanprod().item()
        6.0
        """
        return self._filled(1.0).prod(axis_or_dim(axis, dim), keepdim or keepdims)

    def nanmean(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """The average of what is not NaN; NaN if nothing is left.

        >>> Tensor([1.0, float("nan"), 3.0]).nanmean().item()
        2.0
        """
        where, keep = axis_or_dim(axis, dim), keepdim or keepdims
        if not self.dtype.is_float:
            return self.mean(where, keep)
        wide = self.cast(accumulator(self.dtype))
        count = (~wide.isnan()).sum(where, keep).cast(wide.dtype)
        return (wide._filled(0.0).sum(where, keep) / count).cast(self.dtype)

    def nanvar(
        self,
        axis: Any = None,
        keepdim: bool = False,
        correction: float = 0,
        *,
        dim: Any = _UNSET,
        keepdims: bool = False,
        ddof: float | None = None,
    ) -> Self:
        """The mean squared distance from the mean, of what is not NaN (over n, as NumPy).

        >>> Tensor([1.0, float("nan"), 3.0]).nanvar().item()
        1.0
        """
        where, keep = axis_or_dim(axis, dim), keepdim or keepdims
        wide = self.cast(accumulator(float_of(self.dtype)))
        gone = wide.isnan()
        distance = gone.where(0.0, gone.where(0.0, wide) - wide.nanmean(where, True))
        squares = (distance * distance).sum(where, keep)
        count = (~gone).sum(where, keep).cast(wide.dtype)
        rest = count - float(correction if ddof is None else ddof)
        return ((rest > 0).where(squares, math.nan) / rest).cast(float_of(self.dtype))

    def nanmax(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """The largest value that is not NaN; NaN if nothing is left.

        >>> Tensor([1.0, float("nan"), 3.0]).nanmax().item()
        3.0
        """
        where, keep = axis_or_dim(axis, dim), keepdim or keepdims
        if not self.dtype.is_float:
            return self.max(where, keep)
        nothing = self.isnan().all(where, keep)
        return nothing.where(math.nan, self._filled(self.dtype.min).max(where, keep))

    def nanmin(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """The smallest value that is not NaN; NaN if nothing is left.

        >>> Tensor([1.0, float("nan"), 3.0]).nanmin().item()
        1.0
        """
        where, keep = axis_or_dim(axis, dim), keepdim or keepdims
        if not self.dtype.is_float:
            return self.min(where, keep)
        nothing = self.isnan().all(where, keep)
        return nothing.where(math.nan, self._filled(self.dtype.max).min(where, keep))

    def aminmax(self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET) -> tuple[Self, Self]:
        """The smallest and the largest value.

        >>> [x.item() for x in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        where = axis_or_dim(axis, dim)
        return self.min(where, keepdim), self.max(where, keepdim)

    def var_mean(
        self, axis: Any = None, keepdim: bool = False, correction: float = 1, *, dim: Any = _UNSET
    ) -> tuple[Self, Self]:
        """The variance and the mean.

        >>> [x.item() for x in Tensor([1.0, 2.0, 3.0]).var_mean()]
        [1.0, 2.0]
        """
        where = axis_or_dim(axis, dim)
        return self.var(where, keepdim, correction), self.mean(where, keepdim)
