"""Results whose size depends on values: what is true, what is different, how often it occurs.

With a `size` the result is lazy as everything is, and what is left over holds a fill value. Without one the
size is computed first and looked at, which a function under `jit` cannot do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import DTypeError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.node import const
from morok.ir.ops import Ops
from morok.tensor.arrays import reduce
from morok.tensor.arrays.index import take
from morok.tensor.arrays.joining import stack
from morok.tensor.arrays.movement import expand, flatten, narrow, repeat_each, reshape, unsqueeze
from morok.tensor.arrays.reduce import count_nonzero, cumsum
from morok.tensor.arrays.rows import put_rows
from morok.tensor.arrays.scatter import put
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.creation.constructors import as_operand, zeros_like
from morok.tensor.elementwise.comparison import maximum, where
from morok.tensor.elementwise.conversion import bitcast, cast
from morok.tensor.elementwise.operators import T
from morok.tensor.export import item, realize
from morok.tensor.sizes import as_axis, as_shape, as_size, broadcast_shapes, concrete_shape


def measured(x: T, what: str) -> int:
    """A number that decides a size, computed now."""
    if is_tracing():
        raise ShapeError(f"{what} inside of jit needs size=, because its result's size depends on values")
    return int(item(x))


def kept_for(x: T, size: Any) -> T:
    """The tensor, computed now if it is about to be looked at twice."""
    if size is None and not is_tracing():
        realize(x)
    return x


# --- positions of truths


def nonzero(x: T, size: Any = None, fill_value: int = -1, *, as_tuple: bool = False) -> Any:
    """The positions of the elements that are not zero, one row (i, j, …) each; or of the first `size`.

    Rows that are left over hold the fill value. Inside of `jit` the size must be given. `as_tuple` gives one
    tensor for each axis instead, which together are an index.

    >>> Tensor([[0, 1], [1, 0]]).nonzero().tolist()
    [[0, 1], [1, 0]]
    >>> Tensor([[0, 1], [1, 0]]).nonzero(size=3).tolist()
    [[0, 1], [1, 0], [-1, -1]]
    """
    x = kept_for(reshape(x, 1) if as_tuple and not x.ndim else x, size)
    count = measured(count_nonzero(x), "nonzero") if size is None else size
    flat = first_true(reshape(x, x.numel()), count)
    parts, rest = [], flat
    for n in reversed(concrete_shape(x.shape)):
        parts.append(where(flat < 0, fill_value, rest % max(n, 1)))
        rest = rest // max(n, 1)
    if as_tuple:
        return tuple(reversed(parts))
    if not parts:
        return narrow(unsqueeze(zeros_like(flat), 1), 1, 0, 0)
    return stack(parts[-1], *parts[-2::-1], dim=1)


def nonzero_static(x: T, size: int, fill_value: int = -1) -> T:
    """`nonzero` of the first `size` elements, by PyTorch's name.

    >>> Tensor([0, 1]).nonzero_static(size=2).tolist()
    [[1], [-1]]
    """
    found: T = nonzero(x, size, fill_value)
    return found


def argwhere(x: T, size: Any = None, fill_value: int = -1) -> T:
    """As `nonzero`, by NumPy's name.

    >>> Tensor([0, 3, 4]).argwhere().tolist()
    [[1], [2]]
    """
    found: T = nonzero(x, size, fill_value)
    return found


def first_true(x: T, size: Any) -> T:
    """The positions in a row of the first elements that are not zero, then -1."""
    (count,) = concrete_shape(as_shape((as_size(size),)))
    truths = cast(x, dt.bool_)
    rank = cumsum(cast(truths, dt.int64), 0) - 1
    places = where(truths, rank, -1)
    nobody = expand_to(const(dt.int64, -1), (count,))
    return x._new(put_rows(nobody, places.uop, expand_to(iota(x.shape, 0, dt.int64), x.shape)))


def masked_select(x: T, mask: Any, size: Any = None, fill_value: Any = 0) -> T:
    """The elements where the mask is true, in order; or the first `size`, then the fill value.

    >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
    [1, 3]
    >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=3).tolist()
    [1, 3, 0]
    """
    m = as_operand(x, mask)
    if not m.dtype.is_bool:
        raise DTypeError(f"a mask is made of truths, not of {m.dtype}")
    truths = kept_for(x._new(m.uop), size)
    sizes = (cast(truths, dt.int64) + zeros_like(x, dt.int64)).shape
    flat = reshape(expand(x, sizes), -1)
    all_truths = reshape(expand(truths, sizes), -1)
    count = measured(count_nonzero(all_truths), "masked_select") if size is None else size
    places = first_true(all_truths, count)
    if size is None:
        return take(flat, places)
    return cast(where(places < 0, fill_value, take(flat, maximum(places, 0))), x.dtype)


def masked_scatter(x: T, mask: Any, source: Any) -> T:
    """x with the elements of `source`, in order, where the mask is true.

    >>> Tensor([1, 2, 3]).masked_scatter(Tensor([True, False, True]), Tensor([7, 8])).tolist()
    [7, 2, 8]
    """
    m = as_operand(x, mask)
    sizes = broadcast_shapes(x.shape, m.shape)
    x, m = expand(x, sizes), expand(m, sizes)
    rank = cumsum(cast(reshape(m, -1), dt.int64), 0) - 1
    new = as_operand(x, source)
    found = cast(reshape(take(flatten(new), maximum(rank, 0)), x.shape), x.dtype)
    return where(m, found, x)


def repeat_interleave(x: T, repeats: Any, dim: int | None = None, *, axis: int | None = None) -> T:
    """Each element so many times in a row, as `numpy.repeat`; or each as often as its number says.

    >>> Tensor([1, 2]).repeat_interleave(2).tolist()
    [1, 1, 2, 2]
    >>> Tensor([1, 2, 3]).repeat_interleave([2, 0, 1]).tolist()
    [1, 1, 3]
    """
    where = dim if axis is None else axis
    if not isinstance(repeats, Core | np.ndarray | list | tuple):
        return repeat_each(x, repeats, where)
    if is_tracing() and isinstance(repeats, Core):
        raise ShapeError("repeat_interleave inside of jit needs numbers that are known, not a tensor")
    times = np.asarray(repeats)
    x = flatten(x) if where is None else x
    at = as_axis(0 if where is None else where, x.ndim, x.shape)
    if times.dtype.kind not in "iu" or times.ndim > 1 or (times < 0).any():
        raise ShapeError(f"repeat_interleave takes numbers of 0 or more in one row, not {repeats!r}")
    count = x.shape[at]
    if not isinstance(count, int) or (times.size != 1 and times.shape != (count,)):
        raise ShapeError(
            f"repeat_interleave along axis {at} of shape {show_shape(x.shape)} needs {count} numbers "
            f"or one, not {times.size}"
        )
    return take(x, np.repeat(np.arange(count), times), at)


# --- what occurs


def bincount(x: T, size: Any = None, weights: Any = None, *, minlength: int = 0) -> T:
    """How often each of the numbers 0, 1, 2 … occurs, or the sum of the weights that go with it.

    With a `size` only numbers below it count; without, there is a place for the largest, and `minlength`
    places at least.

    >>> Tensor([1, 1, 3]).bincount().tolist()
    [0, 2, 0, 1]
    >>> Tensor([1, 1, 3]).bincount(2).tolist()
    [0, 2]
    """
    if not x.dtype.is_bounded_int:
        raise DTypeError(f"bincount counts whole numbers, not {x.dtype}")
    flat = flatten(x)
    if size is None:
        size = max(_largest_number(kept_for(flat, size)) + 1, minlength)
    given = None if weights is None else x._new(_operand_of(x, weights).uop)
    if given is not None and given.numel() != flat.numel():
        raise ShapeError(
            f"bincount of {flat.numel()} numbers needs as many weights, not {show_shape(given.shape)}"
        )
    zeros = x._new(expand_to(const(dt.int64 if given is None else given.dtype, 0), as_shape((size,))))
    return counted(zeros, flat, given)


def _operand_of(x: T, value: Any) -> Any:
    return as_operand(x, value)


def _largest_number(x: T) -> int:
    if x.numel() == 0:
        return -1
    own = x.dtype
    bits = x if own.is_unsigned else bitcast(x, _UNSIGNED[own.itemsize])  # negative ones are the largest then
    most = measured(reduce.max(bits), "bincount")
    if most > own.max:
        raise ShapeError(f"bincount counts numbers of 0 and more, not {item(reduce.min(x))}")
    return most


_UNSIGNED = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}


def counted(x: T, places: Any, weights: Any) -> T:
    """Sums at places of a table of zeros; negative ones are outside, and not counted from the end."""
    where = places if places.dtype.is_unsigned else (places < 0).where(-1, places)
    if weights is not None:
        return put(x, x, where, x._new(weights.flatten().uop), Ops.ADD)
    total = places.numel()
    narrow = isinstance(total, int) and total < dt.int32.max  # a table half as large, and twice the lanes
    table = cast(x, dt.int32) if narrow else x
    found: T = put(table, table, where, x._new(expand_to(const(table.dtype, 1), places.shape)), Ops.ADD)
    return cast(found, x.dtype)
