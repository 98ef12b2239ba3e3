"""Order: sort, the k largest, medians, and search in sorted rows.

Rows are sorted by merging. An element's place in the result is the number of elements before it: inside short
runs every pair is compared, two sorted runs are merged by searching each element in the other run, and then
everything is put in its place. That is a kernel to count and one to put per level, whatever the length.

What is sorted are whole numbers of 64 bits: the upper half orders as the elements do (NaN last, -0 and 0
equal), the lower half is the position, so no two are equal and equal elements stay in order.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from morok import dtype as dt
from morok.dtype import promote
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.node import const
from morok.tensor.arrays.reduce import Sorted
from morok.tensor.arrays.rows import put_rows
from morok.tensor.arrays.scatter import Scatter
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.record import pure
from morok.tensor.sizes import _UNSET, as_axes, as_axis, axis_or_dim, concrete_shape
from morok.tensor.trace_cache import refuse_trace_cache

_RUN = 256  # elements of which every pair is compared
_SHORT = 64  # elements of a sorted row that are all looked at instead of searched
_TOP = (1 << 31) - 1  # the largest key


@pure
class Sorting(Scatter):
    """Everything that depends on which element is larger."""

    # --- keys

    def _order_key(self) -> Self:
        """A whole number of 64 bits per element that orders as the elements do."""
        own = self.dtype
        if not own.is_float:
            if own is dt.uint64:
                return (self ^ (1 << 63)).bitcast(dt.int64)
            return self.cast(dt.int64)
        wide = self if own is dt.float64 else self.cast(dt.float32)
        bits = (wide + 0.0).bitcast(dt.int64 if own is dt.float64 else dt.int32)  # -0 becomes 0
        key = (bits < 0).where(bits ^ bits.dtype.max, bits)
        return wide.isnan().where(bits.dtype.max, key).cast(dt.int64)

    def _sort_keys(self, descending: bool) -> list[Self]:
        """Keys of 32 bits, in 64: one, or the lower and the upper half of a wide one."""
        key = self._order_key()
        key = ~key if descending else key
        if self.dtype.itemsize < 8:
            shift = 1 << 31 if self.dtype is dt.uint32 else 0
            return [key + shift if descending else key - shift] if shift else [key]
        return [(key & 0xFFFFFFFF) - (1 << 31), key >> 32]

    def _row_order(self, descending: bool) -> Self:
        """For rows (…, n), the positions of the elements in order."""
        result: Self | None = None
        for key in self._sort_keys(descending):
            mine = key if result is None else key.gather(-1, result)
            order = mine._sorted_positions()
            result = order if result is None else result.gather(-1, order)
        assert result is not None
        return result

    def _sorted_positions(self) -> Self:
        """As above, of keys of 32 bits."""
        *lead, count = concrete_shape(self.shape)
        position = self._new(expand_to(iota((count,), 0, dt.int64), (count,)))
        packed = (self << 32) | position
        rows = packed.reshape(math.prod(lead), count)
        return (rows._sorted_rows() & 0xFFFFFFFF).reshape(*lead, count)

    def _sorted_rows(self) -> Self:
        """Rows of different numbers, each sorted."""
        rows, count = concrete_shape(self.shape)
        runs = 1
        while -(-count // runs) > _RUN:
            runs *= 2
        length = -(-count // runs)
        extra = runs * length - count
        x = self
        if extra:  # larger than everything, and different from each other
            tail = self._new(expand_to(iota((extra,), 0, dt.int64), (extra,))) + (_TOP << 32) + count
            x = self.cat(tail.expand(rows, extra), dim=1)
        x = x.reshape(rows * runs, length).contiguous()  # keys are compared many times
        smaller = (x.unsqueeze(-2) < x.unsqueeze(-1)).sum(-1)
        x = x._placed(smaller)
        while runs > 1:
            pairs = x.reshape(rows * runs // 2, 2, length)
            here = self._new(expand_to(iota(pairs.shape, 2, dt.int64), pairs.shape))
            x = pairs._placed(pairs.flip(1)._places_in_rows(pairs, False) + here)
            runs, length = runs // 2, length * 2
        return x.reshape(rows, count + extra).narrow(1, 0, count)

    def _placed(self, places: Self) -> Self:
        """The elements of each first index moved to places among them."""
        lead = self.shape[0]
        size = self.numel() // lead if lead else 0
        row = self._new(expand_to(iota((lead, size), 0, dt.int64), (lead, size)))
        flat = (places.reshape(lead, size) + row * size).reshape(lead * size)
        zeros = expand_to(const(self.dtype, 0), (lead * size,))
        put = put_rows(zeros, flat.uop, self.reshape(lead * size).uop)
        return self._new(put).reshape(lead, size)

    def _places_in_rows(self, values: Self, right: bool) -> Self:
        """For values (…, m) and sorted rows (…, n), how many of the row are smaller (or as large)."""
        size = self.shape[-1]
        assert isinstance(size, int)
        if size <= _SHORT:
            mine, other = values.unsqueeze(-1), self.unsqueeze(-2)
            return ((other <= mine) if right else (other < mine)).sum(-1)
        place = values.zeros_like(dt.int64)
        step = 1 << (size.bit_length() - 1)
        while step:
            look = place + (step - 1)
            found = self.gather(-1, look.clamp(max=size - 1))
            below = (found <= values) if right else (found < values)
            place = place + (below & (look < size)).where(step, 0)
            step //= 2
        return place

    # --- sorting

    def _rows_of(self, axis: Any, what: str) -> tuple[Self, int]:
        """The axis moved to the end; a scalar counts as one element."""
        x = self.reshape(1) if not self.ndim else self
        at = as_axis(axis, x.ndim, x.shape)
        if not isinstance(x.shape[at], int):
            raise ShapeError(f"{what} along axis {at} of shape {show_shape(x.shape)} needs a known size")
        return x.transpose(at, -1), at

    def argsort(
        self, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int | None = None
    ) -> Self:
        """The positions that would sort an axis (the last one); equal elements stay in order.

        >>> Tensor([3, 1, 2]).argsort().tolist()
        [1, 2, 0]
        """
        x, at = self._rows_of(dim if axis is None else axis, "argsort")
        if x.numel() == 0:
            return self.zeros_like(dt.int64)
        return x._row_order(descending).transpose(at, -1).reshape(self.shape)

    def sort(
        self, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int | None = None
    ) -> Sorted:
        """(values, indices) of an axis (the last one) in order, NaN at the end; equal elements stay in order.

        >>> values, indices = Tensor([3, 1, 2]).sort()
        >>> values.tolist(), indices.tolist()
        ([1, 2, 3], [1, 2, 0])
        """
        order = self.argsort(dim, descending, stable, axis=axis)
        at = dim if axis is None else axis
        return Sorted(self.gather(at, order) if self.ndim else self, order)

    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, axis: int | None = None
    ) -> Sorted:
        """(values, indices) of the k largest elements of an axis, or of the smallest, in order.

        >>> Tensor([3, 1, 2]).topk(2).values.tolist()
        [3, 2]
        """
        x, at = self._rows_of(dim if axis is None else axis, "topk")
        size = x.shape[-1]
        if not isinstance(size, int) or not 0 <= k <= size:
            raise ShapeError(
                f"topk of axis {at} of shape {show_shape(self.shape)} has k in 0 … {size}, not {k}"
            )
        order = self.argsort(at, descending=largest).narrow(at, 0, k) if self.ndim else self.argsort()
        return Sorted(self.gather(at, order) if self.ndim else self, order)

    def searchsorted(
        self, values: Any, right: bool = False, side: str | None = None, sorter: Any = None
    ) -> Self:
        """For sorted rows (…, n), where values (…, m) would go: before equal elements, or after them.

        A single sorted row serves values of any shape. Rows that are not sorted need a `sorter`, the
        positions that sort them.

        >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 4])).tolist()
        [1, 2]
        """
        v = values if isinstance(values, Sorting) else self._from_data(values)
        after = right if side is None else side == "right"
        if side not in (None, "left", "right"):
            raise ArgumentError(f'side must be "left" or "right", not {side!r}')
        if self.ndim == 0 or (self.ndim > 1 and self.shape[:-1] != v.shape[:-1]):
            raise ShapeError(
                f"searchsorted in rows of shape {show_shape(self.shape)} needs values of shape "
                f"{show_shape(self.shape[:-1])[:-1]}, m), not {show_shape(v.shape)}"
            )
        if sorter is not None:
            order = sorter if isinstance(sorter, Sorting) else self._from_data(sorter)
            if order.shape != self.shape:
                raise ShapeError(
                    f"the sorter of rows of shape {show_shape(self.shape)} has that shape, "
                    f"not {show_shape(order.shape)}"
                )
            return self.gather(-1, order).searchsorted(v, after)
        kind = promote(self.dtype, v.dtype)
        rows, wanted = self.cast(kind)._order_key(), self._new(v.cast(kind)._order_key().uop)
        if self.ndim > 1:
            return rows._places_in_rows(wanted, after)
        return rows._places_in_rows(wanted.reshape(wanted.numel()), after).reshape(v.shape)

    def bucketize(self, boundaries: Any, right: bool = False) -> Self:
        """For each element, the number of the interval between sorted boundaries that it lies in.

        >>> Tensor([1, 4, 9]).bucketize(Tensor([2, 5])).tolist()
        [0, 1, 2]
        """
        edges = boundaries if isinstance(boundaries, Sorting) else self._from_data(boundaries)
        return self._new(edges.searchsorted(self, right).uop)

    # --- in the middle

    def _sorted_over(self, axis: Any, what: str) -> tuple[Any, tuple[int, ...]]:
        """Floats sorted along one last axis that the given ones have become."""
        axes = as_axes(axis, self.shape)
        rest = [i for i in range(self.ndim) if i not in axes]
        x = self.cast(accumulator(float_of(self.dtype))).permute([*rest, *axes])
        count = math.prod(concrete_shape(tuple(self.shape[i] for i in axes)))
        if count == 0:
            raise ShapeError(f"{what} of shape {show_shape(self.shape)} has nothing to choose from")
        x = x.reshape(*(self.shape[i] for i in rest), count)
        return x.sort(-1).values, axes

    def _kept(self, axes: tuple[int, ...], like: Any, keep: bool) -> Any:
        """A result over axes, with these as 1 where wanted."""
        return self.reshape([1 if i in axes else n for i, n in enumerate(like.shape)]) if keep else self

    def median(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """The middle value, or the average of the two in the middle; NaN if there is one.

        >>> Tensor([3.0, 1.0, 2.0, 10.0]).median().item()
        2.5
        """
        if 0 in self.shape:  # of nothing: NaN, as the mean
            return self.mean(axis_or_dim(axis, dim), keepdim or keepdims)
        x, axes = self._sorted_over(axis_or_dim(axis, dim), "median")
        n = x.shape[-1]
        low, high, last = (x.narrow(-1, i, 1).squeeze(-1) for i in ((n - 1) // 2, n // 2, n - 1))
        middle = low if n % 2 else low * 0.5 + high * 0.5
        found = last.isnan().where(last, middle).cast(float_of(self.dtype))
        return found._kept(axes, self, keepdim or keepdims)  # type: ignore[no-any-return]

    def quantile(
        self,
        q: Any,
        axis: Any = None,
        keepdim: bool = False,
        interpolation: str = "linear",
        *,
        dim: Any = _UNSET,
        keepdims: bool = False,
    ) -> Self:
        """The value below which a part q of the elements lies; several q make a new first axis.

        >>> Tensor([0.0, 1.0, 2.0, 3.0, 4.0]).quantile(0.25).item()
        1.0
        """
        if isinstance(q, Core):
            refuse_trace_cache("quantiles that are computed")
        if isinstance(q, Core | np.ndarray):
            q = q.tolist()  # type: ignore[union-attr]
        parts = list(q) if isinstance(q, tuple | list) else [q]
        if any(not 0.0 <= float(part) <= 1.0 for part in parts):
            raise ArgumentError(f"quantiles lie between 0 and 1, not at {q}")
        x, axes = self._sorted_over(axis_or_dim(axis, dim), "quantile")
        found = [_between(x, float(part), interpolation) for part in parts]
        last = x.narrow(-1, x.shape[-1] - 1, 1).squeeze(-1)
        own = float_of(self.dtype)
        found = [last.isnan().where(last, value).cast(own) for value in found]
        results = [value._kept(axes, self, keepdim or keepdims) for value in found]
        return results[0].stack(*results[1:]) if isinstance(q, tuple | list) else results[0]  # type: ignore[no-any-return]


def _between(x: Any, q: float, how: str) -> Any:
    """The value at a part q of sorted rows."""
    n = x.shape[-1]
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
    below, above = (x.narrow(-1, i, 1).squeeze(-1) for i in (low, high))
    return below if weight == 0.0 else above if weight == 1.0 else below.lerp(above, weight)
