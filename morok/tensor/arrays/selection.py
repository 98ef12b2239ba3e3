"""Results whose size depends on values: what is true, what is different, how often it occurs.

With a `size` the result is lazy as everything is, and what is left over holds a fill value. Without one the
size is computed first and looked at, which a function under `jit` cannot do.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from morok import dtype as dt
from morok.errors import DTypeError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.node import const
from morok.ir.ops import Ops
from morok.tensor.arrays.rows import put_rows
from morok.tensor.arrays.sorting import Sorting
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.record import recorded
from morok.tensor.sizes import as_axis, as_shape, as_size, concrete_shape
from morok.tensor.tracing import is_tracing


class Unique(NamedTuple):
    """What `unique` returns if more than the values is asked for; None for what is not."""

    values: Any
    inverse: Any = None
    counts: Any = None


@recorded
class Selection(Sorting):
    """As many results as there are."""

    def _measured(self, what: str) -> int:
        """A number that decides a size, computed now."""
        if is_tracing():
            raise ShapeError(f"{what} inside of jit needs size=, because its result's size depends on values")
        return int(self.item())  # type: ignore[attr-defined]

    def _kept_for(self, size: Any) -> Self:
        """The tensor, computed now if it is about to be looked at twice."""
        if size is None and not is_tracing():
            self.realize()  # type: ignore[attr-defined]
        return self

    # --- positions of truths

    def nonzero(self, size: Any = None, fill_value: int = -1) -> Self:
        """The positions of the elements that are not zero, one row (i, j, …) each; or of the first `size`.

        Rows that are left over hold the fill value. Inside of `jit` the size must be given.

        >>> Tensor([[0, 1], [1, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        >>> Tensor([[0, 1], [1, 0]]).nonzero(size=3).tolist()
        [[0, 1], [1, 0], [-1, -1]]
        """
        x = self._kept_for(size)
        count = x.count_nonzero()._measured("nonzero") if size is None else size
        flat = x.reshape(x.numel())._first_true(count)
        parts, rest = [], flat
        for n in reversed(concrete_shape(x.shape)):
            parts.append((flat < 0).where(fill_value, rest % max(n, 1)))
            rest = rest // max(n, 1)
        if not parts:
            return flat.zeros_like().unsqueeze(1).narrow(1, 0, 0)
        return parts[-1].stack(*parts[-2::-1], dim=1)

    def argwhere(self, size: Any = None, fill_value: int = -1) -> Self:
        """As `nonzero`, by NumPy's name.

        >>> Tensor([0, 3, 4]).argwhere().tolist()
        [[1], [2]]
        """
        return self.nonzero(size, fill_value)

    def _first_true(self, size: Any) -> Self:
        """The positions in a row of the first elements that are not zero, then -1."""
        (count,) = concrete_shape(as_shape((as_size(size),)))
        truths = self.cast(dt.bool_)
        rank = truths.cast(dt.int64).cumsum(0) - 1
        places = truths.where(rank, -1)
        nobody = expand_to(const(dt.int64, -1), (count,))
        return self._new(put_rows(nobody, places.uop, expand_to(iota(self.shape, 0, dt.int64), self.shape)))

    def masked_select(self, mask: Any, size: Any = None, fill_value: Any = 0) -> Self:
        """The elements where the mask is true, in order; or the first `size`, then the fill value.

        >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
        [1, 3]
        >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=3).tolist()
        [1, 3, 0]
        """
        m = mask if isinstance(mask, Core) else self._from_data(mask)
        if not m.dtype.is_bool:
            raise DTypeError(f"a mask is made of truths, not of {m.dtype}")
        truths = self._new(m.uop)._kept_for(size)
        sizes = (truths.cast(dt.int64) + self.zeros_like(dt.int64)).shape
        flat = self.expand(sizes).reshape(-1)
        all_truths = truths.expand(sizes).reshape(-1)
        count = all_truths.count_nonzero()._measured("masked_select") if size is None else size
        places = all_truths._first_true(count)
        if size is None:
            return flat.take(places)
        return (places < 0).where(fill_value, flat.take(places.maximum(0))).cast(self.dtype)

    def masked_scatter(self, mask: Any, source: Any) -> Self:
        """x with the elements of `source`, in order, where the mask is true.

        >>> Tensor([1, 2, 3]).masked_scatter(Tensor([True, False, True]), Tensor([7, 8])).tolist()
        [7, 2, 8]
        """
        m = self._new((mask if isinstance(mask, Core) else self._from_data(mask)).uop).expand(self.shape)
        rank = m.reshape(-1).cast(dt.int64).cumsum(0) - 1
        new = self._new((source if isinstance(source, Core) else self._from_data(source)).uop)
        found = new.flatten().take(rank.maximum(0)).reshape(self.shape).cast(self.dtype)
        return m.where(found, self)

    def repeat_interleave(self, repeats: Any, dim: int | None = None, *, axis: int | None = None) -> Self:
        """Each element so many times in a row, as `numpy.repeat`; or each as often as its number says.

        >>> Tensor([1, 2]).repeat_interleave(2).tolist()
        [1, 1, 2, 2]
        >>> Tensor([1, 2, 3]).repeat_interleave([2, 0, 1]).tolist()
        [1, 1, 3]
        """
        where = dim if axis is None else axis
        if not isinstance(repeats, Core | np.ndarray | list | tuple):
            return super().repeat_interleave(repeats, where)
        if is_tracing() and isinstance(repeats, Core):
            raise ShapeError("repeat_interleave inside of jit needs numbers that are known, not a tensor")
        times = np.asarray(repeats)
        x = self.flatten() if where is None else self
        at = as_axis(0 if where is None else where, x.ndim, x.shape)
        if times.dtype.kind not in "iu" or times.ndim > 1 or (times < 0).any():
            raise ShapeError(f"repeat_interleave takes numbers of 0 or more in one row, not {repeats!r}")
        count = x.shape[at]
        if not isinstance(count, int) or (times.size != 1 and times.shape != (count,)):
            raise ShapeError(
                f"repeat_interleave along axis {at} of shape {show_shape(x.shape)} needs {count} numbers "
                f"or one, not {times.size}"
            )
        return x.take(np.repeat(np.arange(count), times), at)

    # --- what occurs

    def unique(
        self,
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

        >>> Tensor([3, 1, 3]).unique().tolist()
        [1, 3]
        >>> Tensor([3, 1, 3]).unique(return_inverse=True, return_counts=True).inverse.tolist()
        [1, 0, 1]
        """
        if dim is not None:
            raise ShapeError("unique looks at single elements; slices along an axis are not compared")
        x = self.reshape(self.numel())
        (total,) = concrete_shape(x.shape)
        if not total:
            return self._unique_of_nothing(size, fill_value, return_inverse, return_counts)
        values, order = x._kept_for(size).sort()
        before = values.narrow(0, 0, total - 1)
        after = values.narrow(0, 1, total - 1)
        differs = before.ne(after)
        if x.dtype.is_float:
            differs = differs & ~(before.isnan() & after.isnan())
        first = x.ones_like(dt.bool_).narrow(0, 0, 1).cat(differs)
        group = first.cast(dt.int64).cumsum(0) - 1
        if size is None:
            count = (group.narrow(0, total - 1, 1) + 1).reshape(())._measured("unique")
        else:
            (count,) = concrete_shape(as_shape((as_size(size),)))
        places = first._first_true(count)
        found = values.take(places.maximum(0))
        if size is not None:
            found = (places < 0).where(fill_value, found).cast(self.dtype)
        if not return_inverse and not return_counts:
            return found
        inverse = group.zeros_like().scatter(0, order, group).reshape(self.shape)
        kept = (group < count).where(group, -1)
        zeros = expand_to(const(dt.int64, 0), (count,))
        put = x._new(zeros)._counted(kept, None)
        return Unique(found, inverse if return_inverse else None, put if return_counts else None)

    def _unique_of_nothing(self, size: Any, fill_value: Any, inverse: bool, counts: bool) -> Any:
        count = 0 if size is None else size
        found = self._new(self.full((count,), fill_value, self.dtype, self.device).uop)
        if not inverse and not counts:
            return found
        none = self._new(self.zeros(self.shape, dtype=dt.int64).uop)
        return Unique(found, none if inverse else None, found.zeros_like(dt.int64) if counts else None)

    def bincount(self, size: Any = None, weights: Any = None, *, minlength: int = 0) -> Self:
        """How often each of the numbers 0, 1, 2 … occurs, or the sum of the weights that go with it.

        With a `size` only numbers below it count; without, there is a place for the largest, and `minlength`
        places at least.

        >>> Tensor([1, 1, 3]).bincount().tolist()
        [0, 2, 0, 1]
        >>> Tensor([1, 1, 3]).bincount(2).tolist()
        [0, 2]
        """
        if not self.dtype.is_bounded_int:
            raise DTypeError(f"bincount counts whole numbers, not {self.dtype}")
        flat = self.flatten()
        if size is None:
            size = max(flat._kept_for(size)._largest_number() + 1, minlength)
        given = None if weights is None else self._new(self._operand_of(weights).uop)
        if given is not None and given.numel() != flat.numel():
            raise ShapeError(
                f"bincount of {flat.numel()} numbers needs as many weights, not {show_shape(given.shape)}"
            )
        zeros = self._new(expand_to(const(dt.int64 if given is None else given.dtype, 0), as_shape((size,))))
        return zeros._counted(flat, given)

    def _operand_of(self, value: Any) -> Any:
        return value if isinstance(value, Core) else self._from_data(value)

    def _largest_number(self) -> int:
        if self.numel() == 0:
            return -1
        least, most = self.min(), self.max()
        if not self.dtype.is_unsigned and least._measured("bincount") < 0:
            raise ShapeError(f"bincount counts numbers of 0 and more, not {least.item()}")  # type: ignore[attr-defined]
        return most._measured("bincount")

    def _counted(self, places: Any, weights: Any) -> Self:
        """Sums at places; negative ones are outside, and not counted from the end."""
        where = places if places.dtype.is_unsigned else (places < 0).where(-1, places)
        amount = expand_to(const(self.dtype, 1), places.shape) if weights is None else weights.flatten().uop
        found: Self = self._put(self, where, self._new(amount), Ops.ADD)
        return found
