"""Indexing: NumPy's `x[...]` with numbers, slices, None, Ellipsis and arrays of integers, and gathers.

Slices are movement. An array of integers is a lookup: compare the wanted position with every position, keep
the one element that matches, add up. The scheduler sees that only one element of the sum is read and turns it
into a read at a computed place, so neither the comparison nor the zeros ever exist.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from morok.dtype import int64
from morok.dtype.records import record
from morok.errors import DTypeError, OutOfRange, ShapeError
from morok.ir import build
from morok.ir import movement as move
from morok.ir.checks import Complaint
from morok.ir.infer import Shape, Size, add_sizes, numel, show_shape, size_node
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.tensor.arrays.movement import expand, flatten, flip, permute, reshape, shrink, transpose, unsqueeze
from morok.tensor.arrays.reduce import reduce_axes
from morok.tensor.arrays.rows import checked, named_rows, take_rows, wide_enough
from morok.tensor.calls.record import frozen
from morok.tensor.calls.trace_cache import refuse_trace_cache
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.creation.constructors import as_operand, from_data
from morok.tensor.elementwise import comparison
from morok.tensor.elementwise.operators import T
from morok.tensor.export import numpy
from morok.tensor.sizes import _UNSET, Variable, as_axis, as_size, axis_or_dim, broadcast_shapes

INDEXED = (
    "an index with arrays gives a value, which cannot be written to; assign to x[...] itself, or copy the "
    "value with contiguous()"
)


@record
class Steps:
    """Basic indexing taken apart: a box, then axes reversed, then strides, then the final shape."""

    whole: Shape = ()
    box: list[tuple[Size, Size]] = field(default_factory=list)
    flips: list[bool] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    keep: list[bool] = field(default_factory=list)  # False: the axis was indexed by a number
    new: list[int] = field(default_factory=list)  # positions of None among the kept axes
    arrays: list[tuple[int, Any]] = field(default_factory=list)  # (kept axis, integers)
    at: int = 0  # how many axes of the result come before those of the arrays


@record
class Rows:
    """A tensor as a table of rows, and the places in it that arrays of integers name."""

    table: Any
    places: Any
    axes: list[int]  # of the tensor, those that the places run through
    rest: list[int]

    def order(self, at: int) -> list[int]:
        """From (places…, rest…) to the axes of the result."""
        front = self.places.ndim
        return [*range(front, front + at), *range(front), *range(front + at, front + len(self.rest))]


@frozen(INDEXED)
def getitem(x: T, key: Any) -> T:
    steps = parse_key(x.shape, key)
    x = basic_index(x, steps)
    return _looked_up(x, steps) if steps.arrays else x


def basic_index(x: T, steps: Steps) -> T:
    """Slices and numbers; arrays' axes are still whole."""
    x = flip(shrink(x, steps.box), [axis for axis, f in enumerate(steps.flips) if f]) if steps.box else x
    for axis, stride in enumerate(steps.strides):
        if stride > 1:
            x = _stride(x, axis, stride)
    sizes: list[Size] = [size for size, kept in zip(x.shape, steps.keep, strict=True) if kept]
    for position in steps.new:
        sizes.insert(position, 1)
    return reshape(x, sizes)


def _stride(t: T, axis: int, stride: int) -> T:
    """Every stride-th element of an axis, the first included."""
    own = t.shape
    size = own[axis]
    assert isinstance(size, int)
    count = -(-size // stride)
    rest: list[Any] = [(0, 0)] * len(own)
    rest[axis] = (0, count * stride - size)
    # A view, though there is a PAD in it: nothing of the padding is left.
    x = move.reshape(move.pad(t.uop, rest), (*own[:axis], count, stride, *own[axis + 1 :]))
    box: list[Any] = [(0, size) for size in (*own[:axis], count, 1, *own[axis + 1 :])]
    return t._view(move.reshape(move.shrink(x, box), (*own[:axis], count, *own[axis + 1 :])))


# --- arrays


def _looked_up(x: T, steps: Steps) -> T:
    """Arrays of integers at some axes: they broadcast together, as in NumPy."""
    rows = as_rows(x, steps.arrays)
    found = x._new(take_rows(rows.table.uop, rows.places.uop))
    return permute(found, rows.order(steps.at))


def as_rows(x: T, arrays: list[tuple[int, Any]], writes: bool = False) -> Rows:
    """The tensor as a table whose rows are what one point of the arrays names."""
    own = x.shape
    axes = [axis for axis, _ in arrays]
    rest = [axis for axis in range(len(own)) if axis not in axes]
    wanted = [_positions(x, tensor, axis, writes) for axis, tensor in arrays]
    table = permute(x, [*axes, *rest])
    if len(axes) == 1:
        return Rows(table, wanted[0], axes, rest)
    sizes = [own[axis] for axis in axes]
    flat = reshape(table, numel(tuple(sizes)), *(own[axis] for axis in rest))
    together = broadcast_shapes(*(w.shape for w in wanted))
    return Rows(flat, _flat_places(x, wanted, sizes).expand(together), axes, rest)


def _flat_places(x: T, wanted: Sequence[Any], sizes: Sequence[Size]) -> Any:
    """Positions along several axes as one in row-major order; -1 where one of them does not exist."""
    place: Any = None
    exists: Any = None
    for w, size in zip(wanted, sizes, strict=True):
        limit = x._new(build.cast(size_node(size), int64)) if isinstance(size, UOp) else size
        one = w.cast(int64)
        place = one if place is None else place * limit + one
        here = (one >= 0) & (one < limit)
        exists = here if exists is None else exists & here
    return exists.where(place, -1)


def _positions(x: T, where: Any, axis: int, writes: bool = False) -> T:
    """Positions along an axis, from the front. Known ones are checked now, others where they are used.

    One that is outside is the first one until somebody hears of it; where something is written, nowhere.
    """
    size = x.shape[axis]
    if isinstance(where, Core):
        tensor = x._new(where.uop)
    else:
        array = np.asarray(where)
        array = array.astype(np.int64) if array.size == 0 else array
        if isinstance(size, int):
            known = _known_positions(array, size, axis, x.shape)
            return from_data(x, known) if writes or not size else _within(x, known, size)
        tensor = from_data(x, array)
    if not tensor.dtype.is_bounded_int:
        raise DTypeError(f"an index must be made of integers, not {tensor.dtype}")
    if size == 0 and tensor.numel() != 0:
        raise OutOfRange(f"axis {axis} of shape {show_shape(x.shape)} is empty, so it has no positions")
    node, limit = wide_enough(tensor.uop, size)
    places = x._new(node)
    signed = not places.dtype.is_unsigned
    if signed:
        places = comparison.where(places < 0, places + x._new(limit), places)
    complaint = Complaint(_outside("{}", size, axis, x.shape), signed)
    return x._new(checked(places.uop, limit, complaint, writes))


def _within(x: T, known: Any, size: int) -> T:
    """Positions that are known to be there, so that a kernel sees it too: the lesser of two costs less than
    asking whether they are."""
    narrow = known.astype(np.uint32 if size <= 1 << 31 else np.uint64)
    places = from_data(x, narrow)
    return x._new(alu(Ops.MIN, places.uop, expand_to(const(places.dtype, size - 1), places.shape)))


def gather(t: T, dim: Any = None, index: Any = None, *, axis: int | None = None) -> T:
    """For each place of `index`, the element of x with that position along `dim`, as PyTorch.

    As everywhere, negative positions count from the end, and others that there are not raise OutOfRange.

    >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    own = t.shape
    if not own:
        there = as_operand(t, index)
        return reshape(gather(reshape(t, 1), dim, reshape(there, 1), axis=axis), there.shape)
    at = as_axis(dim if axis is None else axis, len(own), own)
    there = as_operand(t, index)
    if 0 in there.shape and there.ndim != t.ndim:  # PyTorch: nothing is asked for
        return reshape(shrink(reshape(t, t.numel()), [(0, 0)]), there.shape)
    return gathered(t, at, index_along(t, index, at, "gather"))


def gathered(t: T, at: int, where: T) -> T:
    """The elements of an axis at positions that are there, or that somebody has asked about."""
    own = t.shape
    x = shrink(t, [None if i == at else (0, size) for i, size in enumerate(where.shape)])
    # The axis that is looked through goes last, and a 1 takes its place.
    x = transpose(unsqueeze(x, -1), at, -1)
    sizes = (*where.shape, own[at])
    here = expand_to(iota(sizes, len(sizes) - 1, where.dtype), sizes)
    hit = alu(Ops.CMPEQ, expand_to(unsqueeze(where, -1).uop, sizes), here)
    value = alu(Ops.WHERE, hit, expand_to(x.uop, sizes), const(t.dtype, 0))
    found = reduce_axes(t._new(value), Ops.ADD, (len(sizes) - 1,), False)
    if not t.dtype.is_float:
        return found
    places = places_along(t, where, at)
    return t._new(named_rows(found.uop, reshape(t, t.numel()).uop, places.uop))


def index_along(x: T, index: Any, axis: int, what: str, writes: bool = False) -> T:
    """An index with as many axes as x, and no longer than x except along one of them."""
    own = x.shape
    where = _positions(x, index, axis, writes)
    fits = where.ndim == x.ndim and all(
        i == axis or not isinstance(n, int) or not isinstance(m, int) or n <= m
        for i, (n, m) in enumerate(zip(where.shape, own, strict=False))
    )
    if not fits:
        raise ShapeError(
            f"{what} of shape {show_shape(own)} along axis {axis} needs an index of {x.ndim} axes, "
            f"none longer than x's except for axis {axis}, not {show_shape(where.shape)}"
        )
    return where


def places_along(x: T, where: T, axis: int) -> Any:
    """For an index as `gather` takes it, the places in the flattened tensor."""
    sizes = where.shape
    wanted = [where if i == axis else x._new(expand_to(iota(sizes, i, int64), sizes)) for i in range(x.ndim)]
    return _flat_places(x, wanted, x.shape) if wanted else where


def take_along_dim(t: T, index: Any, dim: Any = None, *, axis: Any = None) -> T:
    """As `gather`, with sizes along the other axes broadcast; without an axis, of the flattened tensor.

    >>> Tensor([[1, 2], [3, 4]]).take_along_dim(Tensor([[0], [1]]), 1).tolist()
    [[1], [4]]
    """
    where = axis_or_dim(axis, _UNSET if dim is None else dim)
    x = flatten(t) if where is None else t
    places = as_operand(t, index)
    places = flatten(places) if where is None else places
    at = as_axis(0 if where is None else where, x.ndim, x.shape)
    if places.ndim != x.ndim:
        raise ShapeError(
            f"take_along_dim of shape {show_shape(x.shape)} needs an index of {x.ndim} axes, "
            f"not {show_shape(places.shape)}"
        )
    common = broadcast_shapes(
        *(tuple(1 if i == at else n for i, n in enumerate(each.shape)) for each in (x, places))
    )
    x = expand(x, [x.shape[i] if i == at else n for i, n in enumerate(common)])
    places = expand(places, [places.shape[i] if i == at else n for i, n in enumerate(common)])
    return gather(x, at, places)


def index_select(x: T, dim: Any = None, index: Any = None, *, axis: int | None = None) -> T:
    """The slices of an axis that `index` names; negative positions count from the end.

    >>> Tensor([1, 2, 3]).index_select(0, Tensor([2, 0])).tolist()
    [3, 1]
    """
    if not x.ndim:  # PyTorch: a number has one position, and keeps being one
        return reshape(index_select(reshape(x, 1), dim, index, axis=axis), ())
    return take(x, index, as_axis(dim if axis is None else axis, x.ndim, x.shape))


def take(x: T, index: Any, axis: Any = None, *, dim: Any = _UNSET) -> T:
    """Elements of the flattened tensor, or, with an axis, slices along it.

    >>> Tensor([[1, 2], [3, 4]]).take(Tensor([3, 0])).tolist()
    [4, 1]
    """
    where = axis_or_dim(axis, dim)
    x = flatten(x) if where is None else x
    at = as_axis(0 if where is None else where, x.ndim, x.shape)
    return _looked_up(x, Steps(arrays=[(at, index)], at=at))


def embedding(x: T, index: Any) -> T:
    """The rows of a table that `index` names; negative ones count from the end.

    >>> Tensor([[1, 2], [3, 4]]).embedding(Tensor([1])).tolist()
    [[3, 4]]
    """
    return take(x, index, 0)


def parse_key(shape: Shape, key: Any) -> Steps:
    """A key of `x[key]`, taken apart."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [_plain(item) for item in items]
    items = [part for item in _with_masks(items, shape) for part in item]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("an index can have only one ...")
    used = sum(1 for item in items if item is not None and item is not Ellipsis and not _is_truth(item))
    if used > len(shape):
        raise ShapeError(f"shape {show_shape(shape)} has {len(shape)} axes, but the index has {used}")
    fill: list[Any] = [slice(None)] * (len(shape) - used)
    at = dots[0] if dots else len(items)
    steps = Steps(shape, at=_place_of_arrays(items, len(fill)))
    items[at : at + len(dots)] = fill
    axis = kept = 0
    for item in items:
        if item is None or _is_truth(item):
            steps.new.append(kept)
            if item is not None:
                steps.arrays.append((kept, np.zeros(int(item), np.int64)))
            kept += 1
            continue
        kept += _add(steps, item, axis, kept, shape)
        axis += 1
    return steps


def _is_truth(item: Any) -> bool:
    return isinstance(item, bool | np.bool_)


def _is_array(item: Any) -> bool:
    return isinstance(item, Core | np.ndarray | list) or _is_truth(item)


def _place_of_arrays(items: list[Any], left: int) -> int:
    """How many axes of the result come before those of the arrays.

    NumPy: where arrays and numbers stand side by side, their axes take that place, else they come first.
    """
    if not any(map(_is_array, items)):
        return 0
    other = [item is None or item is Ellipsis or isinstance(item, slice) for item in items]
    first, last = other.index(False), len(other) - 1 - other[::-1].index(False)
    if any(other[first:last]):
        return 0
    return sum(left if item is Ellipsis else 1 for item in items[:first])


def _with_masks(items: list[Any], shape: Shape) -> list[list[Any]]:
    """Each item; a mask is as many arrays of positions as it has axes, which must be those of the tensor."""
    masks = [_mask_of(item) for item in items]
    widths = [
        0 if item is None or item is Ellipsis or _is_truth(item) else 1 if mask is None else mask.ndim
        for item, mask in zip(items, masks, strict=True)
    ]
    found: list[list[Any]] = []
    axis = 0
    for item, mask, width in zip(items, masks, widths, strict=True):
        if mask is not None:
            _check_mask(mask, axis, shape)
        found.append([item] if mask is None else list(np.nonzero(mask)))
        axis += len(shape) - sum(widths) if item is Ellipsis else width
    return found


def _plain(item: Any) -> Any:
    """A part of a key without what only looks different: sequences are arrays, masks are known now."""
    if isinstance(item, tuple | range | list):
        try:
            return np.asarray(item)
        except ValueError:
            raise ShapeError("lists in an index must have equal lengths at each level") from None
    if isinstance(item, np.ndarray) and item.dtype == np.bool_ and not item.ndim:
        return bool(item)
    if not isinstance(item, Core) or not item.dtype.is_bool:
        return item
    refuse_trace_cache("an index by a mask")
    if is_tracing():
        raise ShapeError(
            "a boolean tensor as an index gives a size that depends on values, which are not known inside of "
            "jit; use masked_select with a size, where or masked_fill"
        )
    truths = numpy(item)
    return truths if item.shape else bool(truths)


def whole_positions(items: Any, shape: Shape) -> list[Any]:
    """Indices of axes with masks, if there are any, as the positions that they choose."""
    found: list[Any] = []
    for item in items:
        mask = _mask_of(_plain(item))
        if mask is None:
            found.append(item)
            continue
        _check_mask(mask, len(found), shape)
        found += [np.asarray(part) for part in np.nonzero(mask)]
    return found


def _mask_of(item: Any) -> Any:
    """The truths of a mask that has axes; None for anything else."""
    return item if isinstance(item, np.ndarray) and item.ndim and item.dtype == np.bool_ else None


def _check_mask(mask: Any, axis: int, shape: Shape) -> None:
    own = shape[axis : axis + mask.ndim]
    if own != mask.shape:
        raise OutOfRange(
            f"a mask of shape {show_shape(mask.shape)} at axis {axis} of shape {show_shape(shape)} must have "
            f"the sizes of the axes that it chooses from, {show_shape(own)}"
        )


def _add(steps: Steps, item: Any, axis: int, kept: int, shape: Shape) -> int:
    """One axis of the key; returns how many axes of the result it makes before lookups."""
    size = shape[axis]
    if isinstance(item, slice):
        low, high, stride = _slice(item, size)
        steps.box.append((low, high))
        steps.flips.append(stride < 0)
        steps.strides.append(abs(stride))
        steps.keep.append(True)
        return 1
    if _is_array(item):
        steps.box.append((0, size))
        steps.flips.append(False)
        steps.strides.append(1)
        steps.keep.append(True)
        steps.arrays.append((kept, item))
        return 1
    position = _number(item, size, axis, shape)
    steps.box.append((position, add_sizes(position, 1)))
    steps.flips.append(False)
    steps.strides.append(1)
    steps.keep.append(False)
    return 0


def _number(item: Any, size: Size, axis: int, shape: Shape) -> Size:
    if isinstance(item, Variable | UOp):
        return as_size(item)
    try:
        position = operator.index(item)
    except TypeError:
        raise ShapeError(
            f"an index is a number, a slice, None, ... or an array of integers, not {item!r}"
        ) from None
    if not isinstance(size, int):
        return add_sizes(size, position) if position < 0 else position
    if not -size <= position < size:
        raise OutOfRange(_outside(position, size, axis, shape))
    return position + size if position < 0 else position


def _slice(item: slice, size: Size) -> tuple[Size, Size, int]:
    """(first, one past the last, stride) of the elements, in ascending order; the stride keeps its sign."""
    parts = (item.start, item.stop)
    if isinstance(size, int) and not any(isinstance(p, UOp | Variable) for p in parts):
        try:
            start, stop, step = item.indices(size)
        except (TypeError, ValueError) as error:
            raise ShapeError(f"bad slice: {error}") from None
        count = len(range(start, stop, step))
        if count == 0:
            return 0, 0, 1
        last = start + (count - 1) * step
        return (start, last + 1, step) if step > 0 else (last, start + 1, step)
    if item.step == -1:  # from the start down to what lies behind the stop
        low = add_sizes(_end(item.stop, -1, size), 1)
        return low, add_sizes(_end(item.start, add_sizes(size, -1), size), 1), -1
    if item.step not in (None, 1):
        raise ShapeError("a slice with symbolic ends has a step of 1 or -1")
    low = _end(item.start, 0, size)
    high = _end(item.stop, size, size)
    return low, high, 1


def _end(value: Any, otherwise: Size, size: Size) -> Size:
    if value is None:
        return otherwise
    end = as_size(value, "the end of a slice")
    if isinstance(end, int) and end < 0:
        return add_sizes(size, end)
    return end


def _outside(position: Any, size: Size, axis: int, shape: Shape) -> str:
    """What is said about a position that an axis does not have."""
    fitting = "it is empty" if size == 0 else f"use {-size} … {size - 1}" if isinstance(size, int) else ""
    text = f"index {position} is outside of axis {axis} of shape {show_shape(shape)}"
    return f"{text}; {fitting}" if fitting else text


def _known_positions(array: Any, size: int, axis: int, shape: Shape) -> Any:
    """Positions from the front of numbers that are known."""
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(f"an index must be made of integers, not {array.dtype}")
    if array.size and (array.min() < -size or array.max() >= size):
        wrong = array.min() if array.min() < -size else array.max()
        raise OutOfRange(_outside(wrong, size, axis, shape))
    if array.dtype.kind == "u" or np.iinfo(array.dtype).max < size:
        array = array.astype(np.int64)
    return np.where(array < 0, array + size, array)
