"""Indexing: NumPy's `x[...]` with numbers, slices, None, Ellipsis and arrays of integers, and gathers.

Slices are movement. An array of integers is a lookup: compare the wanted position with every position, keep
the one element that matches, add up. The scheduler sees that only one element of the sum is read and turns it
into a read at a computed place, so neither the comparison nor the zeros ever exist.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from morok.errors import DTypeError, ShapeError
from morok.ir.build import cast
from morok.ir.infer import Shape, Size, add_sizes, show_shape, size_node
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.joining import Joining
from morok.tensor.record import pure
from morok.tensor.sizes import Variable, as_axis, as_size, broadcast_shapes


@dataclass
class Steps:
    """Basic indexing taken apart: a box, then axes reversed, then strides, then the final shape."""

    whole: Shape = ()
    box: list[tuple[Size, Size]] = field(default_factory=list)
    flips: list[bool] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    keep: list[bool] = field(default_factory=list)  # False: the axis was indexed by a number
    new: list[int] = field(default_factory=list)  # positions of None among the kept axes
    arrays: list[tuple[int, Any]] = field(default_factory=list)  # (kept axis, integers)


@pure
class Index(Joining):
    """Reading parts."""

    def __getitem__(self, key: Any) -> Self:
        steps = parse_key(self.shape, key)
        x = self._basic(steps)
        return x._lookup_all(steps.arrays) if steps.arrays else x

    def _basic(self, steps: Steps) -> Self:
        """Slices and numbers; arrays' axes are still whole."""
        x = (
            self.shrink(steps.box).flip([axis for axis, f in enumerate(steps.flips) if f])
            if steps.box
            else self
        )
        for axis, stride in enumerate(steps.strides):
            if stride > 1:
                x = x._stride(axis, stride)
        sizes: list[Size] = [size for size, kept in zip(x.shape, steps.keep, strict=True) if kept]
        for position in steps.new:
            sizes.insert(position, 1)
        return x.reshape(sizes)

    def _stride(self, axis: int, stride: int) -> Self:
        """Every stride-th element of an axis, the first included."""
        own = self.shape
        size = own[axis]
        assert isinstance(size, int)
        count = -(-size // stride)
        rest: list[Any] = [None] * len(own)
        rest[axis] = (0, count * stride - size)
        x = self.pad(rest).reshape(*own[:axis], count, stride, *own[axis + 1 :])
        box: list[Any] = [None] * x.ndim
        box[axis + 1] = (0, 1)
        return x.shrink(box).squeeze(axis + 1)

    # --- arrays

    def _lookup_all(self, arrays: list[tuple[int, Any]]) -> Self:
        """Arrays of integers at some axes: they broadcast together, as in NumPy."""
        own = self.shape
        axes = [axis for axis, _ in arrays]
        wanted = [self._wrapped(tensor, own[axis], axis) for axis, tensor in arrays]
        together = broadcast_shapes(*(w.shape for w in wanted))
        rest = [axis for axis in range(len(own)) if axis not in axes]
        x = self.permute([*rest, *axes])
        sizes = (*together, *x.shape)
        hit: UOp | None = None
        for i, w in enumerate(wanted):
            axis = len(sizes) - len(axes) + i
            here = expand_to(iota(sizes, axis, w.dtype), sizes)
            spread = expand_to(w.reshape(*w.shape, *(1,) * x.ndim).uop, sizes)
            same = alu(Ops.CMPEQ, spread, here)
            hit = same if hit is None else alu(Ops.AND, hit, same)
        assert hit is not None
        value = alu(Ops.WHERE, hit, expand_to(x.uop, sizes), const(self.dtype, 0))
        found = self._new(value)._reduce(Ops.ADD, tuple(range(len(sizes) - len(axes), len(sizes))), False)
        if axes != list(range(axes[0], axes[0] + len(axes))):
            return found  # axes apart from each other: the result's come first
        front = len(together)
        order = list(range(front, front + axes[0])) + list(range(front))
        return found.permute(order + list(range(front + axes[0], found.ndim)))

    def _wrapped(self, where: Any, size: Size, axis: int) -> Self:
        """Positions from the front. Known ones are checked now, others read 0 where they are outside."""
        if isinstance(where, Core):
            tensor = self._new(where.uop)
        else:
            array = np.asarray(where)
            if isinstance(size, int):
                _check_positions(array, size, axis, self.shape)
            tensor = self._from_data(array.astype(np.int64) if array.size == 0 else array)
        if not tensor.dtype.is_bounded_int:
            raise DTypeError(f"an index must be made of integers, not {tensor.dtype}")
        if tensor.dtype.is_unsigned:
            return tensor
        limit = cast(size_node(size), tensor.dtype) if isinstance(size, UOp) else const(tensor.dtype, size)
        return (tensor < 0).where(tensor + self._new(limit), tensor)

    def gather(self, dim: int, index: Any) -> Self:
        """For each place of `index`, the element of x with that position along `dim`, as PyTorch.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
        [[2], [3]]
        """
        own = self.shape
        axis = as_axis(dim, len(own), own)
        where = self._wrapped(index, own[axis], axis)
        if where.ndim != self.ndim:
            raise ShapeError(
                f"gather of shape {show_shape(own)} needs an index of {self.ndim} axes, "
                f"not {show_shape(where.shape)}"
            )
        x = self.shrink([None if i == axis else (0, size) for i, size in enumerate(where.shape)])
        # The axis that is looked through goes last, and a 1 takes its place.
        x = x.unsqueeze(-1).transpose(axis, -1)
        sizes = (*where.shape, own[axis])
        here = expand_to(iota(sizes, len(sizes) - 1, where.dtype), sizes)
        hit = alu(Ops.CMPEQ, expand_to(where.unsqueeze(-1).uop, sizes), here)
        value = alu(Ops.WHERE, hit, expand_to(x.uop, sizes), const(self.dtype, 0))
        return self._new(value)._reduce(Ops.ADD, (len(sizes) - 1,), False)

    def index_select(self, dim: int, index: Any) -> Self:
        """The slices of an axis that `index` names.

        >>> Tensor([1, 2, 3]).index_select(0, Tensor([2, 0])).tolist()
        [3, 1]
        """
        axis = as_axis(dim, self.ndim, self.shape)
        return self._lookup_all([(axis, index)])

    def take(self, index: Any) -> Self:
        """Elements of the flattened tensor.

        >>> Tensor([[1, 2], [3, 4]]).take(Tensor([3, 0])).tolist()
        [4, 1]
        """
        return self.flatten()._lookup_all([(0, index)])

    def embedding(self, index: Any) -> Self:
        """The rows of a table that `index` names.

        >>> Tensor([[1, 2], [3, 4]]).embedding(Tensor([1])).tolist()
        [[3, 4]]
        """
        return self._lookup_all([(0, index)])


def parse_key(shape: Shape, key: Any) -> Steps:
    """A key of `x[key]`, taken apart."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [part for item in items for part in _masks(item)]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("an index can have only one ...")
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    if used > len(shape):
        raise ShapeError(f"shape {show_shape(shape)} has {len(shape)} axes, but the index has {used}")
    fill: list[Any] = [slice(None)] * (len(shape) - used)
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = fill
    steps = Steps(shape)
    axis = kept = 0
    for item in items:
        if item is None:
            steps.new.append(kept)
            kept += 1
            continue
        kept += _add(steps, item, axis, kept, shape)
        axis += 1
    return steps


def _masks(item: Any) -> list[Any]:
    """A mask whose truths are known is as many arrays of positions; anything else is itself."""
    if isinstance(item, Core) and item.dtype.is_bool:
        raise ShapeError(
            "a boolean tensor as an index gives a size that is not known before it runs; "
            "use where or masked_fill, or index with a NumPy array"
        )
    known = isinstance(item, np.ndarray | list) and np.asarray(item).dtype == np.bool_
    return list(np.nonzero(np.asarray(item))) if known else [item]


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
    if isinstance(item, Core | np.ndarray | list):
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
        fitting = f"use {-size} … {size - 1}" if size else "it is empty"
        raise ShapeError(
            f"index {position} is outside of axis {axis} of shape {show_shape(shape)}; {fitting}"
        )
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
    if item.step not in (None, 1):
        raise ShapeError("a slice with symbolic ends has a step of 1")
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


def _check_positions(array: Any, size: int, axis: int, shape: Shape) -> None:
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(f"an index must be made of integers, not {array.dtype}")
    if array.size and (array.min() < -size or array.max() >= size):
        wrong = array.min() if array.min() < -size else array.max()
        raise ShapeError(
            f"index {wrong} is outside of axis {axis} of shape {show_shape(shape)}; use {-size} … {size - 1}"
        )
