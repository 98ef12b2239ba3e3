"""NumPy's further ways to join and cut, parts replaced, positions of triangles and of combinations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from morok.errors import ArgumentError, OutOfRange, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import diag_embed, movedim, tensor_split
from morok.tensor.arrays.index import take
from morok.tensor.arrays.joining import cat, split, stack
from morok.tensor.arrays.movement import expand, flatten, narrow, reshape, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.core import Core, iota
from morok.tensor.creation.constructors import as_operand, empty, from_data, full
from morok.tensor.dtypes import as_dtype
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axis, broadcast_shapes, concrete_shape, flat_args


def _several(first: Any, others: tuple[Any, ...]) -> list[Any]:
    """The tensors of `f(a, b)` and of `f([a, b])`."""
    parts = [*(first if isinstance(first, tuple | list) else (first,)), *others]
    for part in parts:
        if not isinstance(part, Core):
            raise ArgumentError(f"tensors are wanted here, not a {type(part).__name__}")
    return parts


# --- axes


def _at_least(x: Any, others: tuple[Any, ...], grown: Any) -> Any:
    if not others and isinstance(x, Core):
        return grown(x)
    return tuple(grown(part) for part in _several(x, others))


def atleast_1d(x: T, *others: Any) -> Any:
    """The tensor, or each of several, with one axis if it has none.

    >>> Tensor(3).atleast_1d().tolist()
    [3]
    """
    return _at_least(x, others, lambda t: reshape(t, 1) if not t.ndim else t)


def atleast_2d(x: T, *others: Any) -> Any:
    """The tensor, or each of several, with two axes at least; a vector is a row.

    >>> Tensor([1, 2]).atleast_2d().tolist()
    [[1, 2]]
    """
    return _at_least(x, others, _rows)


def _rows(x: Any) -> Any:
    return reshape(x, 1, 1) if not x.ndim else unsqueeze(x, 0) if x.ndim == 1 else x


def atleast_3d(x: T, *others: Any) -> Any:
    """The tensor, or each of several, with three axes at least; a matrix gets a last one.

    >>> Tensor([1, 2]).atleast_3d().shape
    (1, 2, 1)
    """
    return _at_least(x, others, lambda t: unsqueeze(_rows(t), -1) if t.ndim < 3 else t)


def broadcast_tensors(x: T, *others: Any) -> tuple[Any, ...]:
    """The tensors, all expanded to one shape.

    >>> [t.tolist() for t in Tensor([1, 2]).broadcast_tensors(Tensor([[3]]))]
    [[[1, 2]], [[3, 3]]]
    """
    parts = _several(x, others)
    sizes = broadcast_shapes(*(part.shape for part in parts))
    return tuple(expand(part, sizes) for part in parts)


def sum_to_size(x: T, *size: Any) -> T:
    """The sum over the axes along which a tensor of that size would be repeated.

    >>> Tensor([[1, 2], [3, 4]]).sum_to_size(1, 2).tolist()
    [[4, 6]]
    """
    sizes = tuple(flat_args(size))
    extra = x.ndim - len(sizes)
    if extra < 0 or any(m not in (1, n) for n, m in zip(x.shape[extra:], sizes, strict=True)):
        raise ShapeError(f"size {show_shape(sizes)} does not expand to {show_shape(x.shape)}")
    x = reduce.sum(x, tuple(range(extra)), dtype=x.dtype) if extra else x
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, sizes, strict=True)) if n != m)
    return reduce.sum(x, axes, keepdim=True, dtype=x.dtype) if axes else x


# --- joining and cutting


def column_stack(x: T, *others: Any) -> Any:
    """Vectors as columns, and matrices, side by side.

    >>> Tensor([1, 2]).column_stack(Tensor([3, 4])).tolist()
    [[1, 3], [2, 4]]
    """
    parts = [reshape(p, -1, 1) if p.ndim < 2 else p for p in _several(x, others)]
    return cat(parts[0], *parts[1:], dim=1)


def dstack(x: T, *others: Any) -> Any:
    """Tensors behind each other along the third axis.

    >>> Tensor([1, 2]).dstack(Tensor([3, 4])).tolist()
    [[[1, 3], [2, 4]]]
    """
    parts = [atleast_3d(p) for p in _several(x, others)]
    return cat(parts[0], *parts[1:], dim=2)


def block_diag(x: T, *others: Any) -> Any:
    """Matrices along the diagonal of one that is zero elsewhere.

    >>> Tensor([[1, 2]]).block_diag(Tensor([3])).tolist()
    [[1, 2, 0], [0, 0, 3]]
    """
    parts = [_rows(p) for p in _several(x, others)]
    total = sum(p.shape[1] for p in parts)
    found, at = [], 0
    for p in parts:
        if p.ndim != 2:
            raise ShapeError(f"block_diag takes matrices, not shape {show_shape(p.shape)}")
        found.append(pad(p, [None, (at, total - at - p.shape[1])]))
        at += p.shape[1]
    return cat(found[0], *found[1:], dim=0)


def hsplit(x: T, parts: Any) -> tuple[T, ...]:
    """Parts along the second axis, of a vector along the first.

    >>> [p.tolist() for p in Tensor([[1, 2]]).hsplit(2)]
    [[[1]], [[2]]]
    """
    return _even(x, parts, 0 if x.ndim == 1 else 1, 1, "hsplit")


def vsplit(x: T, parts: Any) -> tuple[T, ...]:
    """Parts along the first axis.

    >>> [p.tolist() for p in Tensor([[1], [2]]).vsplit(2)]
    [[[1]], [[2]]]
    """
    return _even(x, parts, 0, 2, "vsplit")


def dsplit(x: T, parts: Any) -> tuple[T, ...]:
    """Parts along the third axis.

    >>> [p.tolist() for p in Tensor([[[1, 2]]]).dsplit(2)]
    [[[[1]]], [[[2]]]]
    """
    return _even(x, parts, 2, 3, "dsplit")


def _even(x: T, parts: Any, axis: int, least: int, what: str) -> tuple[T, ...]:
    if x.ndim < least:
        raise ShapeError(f"{what} takes {least} axes or more, not shape {show_shape(x.shape)}")
    size = x.shape[axis]
    if isinstance(parts, int) and isinstance(size, int) and (parts < 1 or size % parts):
        raise ShapeError(f"{what} into {parts} equal parts does not fit shape {show_shape(x.shape)}")
    return tensor_split(x, parts, axis)


def split_with_sizes(x: T, split_sizes: Any, dim: int = 0) -> tuple[T, ...]:
    """Parts of the given sizes along an axis.

    >>> [p.tolist() for p in Tensor([1, 2, 3]).split_with_sizes([1, 2])]
    [[1], [2, 3]]
    """
    return split(x, list(split_sizes), dim)


# --- parts replaced


def slice_scatter(x: T, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> T:
    """x with a slice of an axis replaced.

    >>> Tensor([1, 2, 3, 4]).slice_scatter(Tensor([7, 8]), 0, 1, 3).tolist()
    [1, 7, 8, 4]
    """
    at = as_axis(dim, x.ndim, x.shape)
    size = x.shape[at]
    if not isinstance(size, int) or step < 1:
        raise ShapeError(
            f"slice_scatter along axis {at} of {show_shape(x.shape)} needs a known size and a step of 1 on"
        )
    first, last, _ = slice(start, end, step).indices(size)
    count = len(range(first, last, step))
    new = cast(as_operand(x, src), x.dtype)
    wanted = (*x.shape[:at], count, *x.shape[at + 1 :])
    if new.shape != wanted:
        raise ShapeError(f"a slice of shape {show_shape(wanted)} is replaced, not {show_shape(new.shape)}")
    if not count:
        return x
    places = np.clip((np.arange(size) - first) // step, 0, count - 1)
    inside = np.zeros(size, bool)
    inside[first:last:step] = True
    mask = from_data(x, inside.reshape([size if i == at else 1 for i in range(x.ndim)]))
    return where(mask, take(new, places, at), x)


def select_scatter(x: T, src: Any, dim: int, index: int) -> T:
    """x with one slice of an axis replaced; `src` has no such axis.

    >>> Tensor([[1, 2], [3, 4]]).select_scatter(Tensor([7, 8]), 1, 0).tolist()
    [[7, 2], [8, 4]]
    """
    at = as_axis(dim, x.ndim, x.shape)
    size = x.shape[at]
    if isinstance(size, int) and not -size <= index < size:
        raise OutOfRange(f"index {index} is outside of axis {at} of shape {show_shape(x.shape)}")
    first = index + size if index < 0 else index
    return slice_scatter(x, unsqueeze(as_operand(x, src), at), at, first, first + 1)


def diagonal_scatter(x: T, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> T:
    """x with a diagonal of two axes replaced.

    >>> Tensor([[1, 2], [3, 4]]).diagonal_scatter(Tensor([7, 8])).tolist()
    [[7, 2], [3, 8]]
    """
    a, b = (as_axis(d, x.ndim, x.shape) for d in (dim1, dim2))
    rows, columns = concrete_shape((x.shape[a], x.shape[b]))
    new = cast(as_operand(x, src), x.dtype)
    side = int(concrete_shape(new.shape)[-1]) if new.ndim else 0
    top, left = max(-offset, 0), max(offset, 0)
    if side != max(0, min(rows - top, columns - left)):
        raise ShapeError(
            f"a diagonal of {show_shape(x.shape)} is as long as it is, not {show_shape(new.shape)}"
        )
    if not side:
        return x
    none: list[Any] = [None] * (new.ndim - 1)
    spread = diag_embed(new)
    full_size = pad(spread, [*none, (top, rows - top - side), (left, columns - left - side)])
    place = np.eye(rows, columns, offset, dtype=bool)
    moved = movedim(full_size, (-2, -1), (a, b))
    shape = [rows if i == a else columns if i == b else 1 for i in range(x.ndim)]
    mask = from_data(x, (place if a < b else place.T).reshape(shape))
    return where(mask, moved, x)


def as_strided(x: T, size: Any, stride: Any, storage_offset: int = 0) -> T:
    """The elements that strides over the flattened tensor reach, as a new tensor.

    >>> Tensor([1, 2, 3, 4]).as_strided((2, 2), (1, 1)).tolist()
    [[1, 2], [2, 3]]
    """
    sizes, steps = tuple(size), tuple(stride)
    if len(sizes) != len(steps):
        raise ShapeError(f"{len(sizes)} sizes need as many strides, not {len(steps)}")
    places = np.full(sizes, storage_offset, np.int64)
    for axis, (n, s) in enumerate(zip(sizes, steps, strict=True)):
        places += (np.arange(n) * s).reshape([n if i == axis else 1 for i in range(len(sizes))])
    return take(flatten(x) if x.ndim else reshape(x, 1), places)


# --- made of the tensor's type


def new_empty(x: T, *size: Any, dtype: Any = None, device: str | None = None) -> T:
    """Memory with whatever is in it, of this tensor's type.

    >>> Tensor([1.0]).new_empty(2, 3).shape
    (2, 3)
    """
    return empty(type(x), *flat_args(size), dtype=dtype or x.dtype, device=device or x.device)


def new_full(x: T, size: Any, fill_value: Any, dtype: Any = None, device: str | None = None) -> T:
    """The same value everywhere, of this tensor's type.

    >>> Tensor([1.0]).new_full((2,), 3).tolist()
    [3.0, 3.0]
    """
    return full(type(x), size, fill_value, as_dtype(dtype or x.dtype), device or x.device)


def new_zeros(x: T, *size: Any, dtype: Any = None, device: str | None = None) -> T:
    """Zeros of this tensor's type.

    >>> Tensor([1]).new_zeros(2).tolist()
    [0, 0]
    """
    return new_full(x, flat_args(size), 0, dtype, device)


def new_ones(x: T, *size: Any, dtype: Any = None, device: str | None = None) -> T:
    """Ones of this tensor's type.

    >>> Tensor([1]).new_ones(2).tolist()
    [1, 1]
    """
    return new_full(x, flat_args(size), 1, dtype, device)


# --- positions


def _triangle(cls: type[T], inside: Any, dtype: Any, device: str | None) -> T:
    found = np.stack(np.nonzero(inside)).astype(np.int64)
    made = full(cls, found.shape, found, dtype or "int64", device)
    return made


def tril_indices(
    cls: type[T], row: int, col: int, offset: int = 0, dtype: Any = None, device: str | None = None
) -> T:
    """The rows and columns of the elements on and below a diagonal.

    >>> Tensor.tril_indices(2, 2).tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    return _triangle(cls, np.tri(row, col, offset, dtype=bool), dtype, device)


def triu_indices(
    cls: type[T], row: int, col: int, offset: int = 0, dtype: Any = None, device: str | None = None
) -> T:
    """The rows and columns of the elements on and above a diagonal.

    >>> Tensor.triu_indices(2, 2).tolist()
    [[0, 0, 1], [0, 1, 1]]
    """
    return _triangle(cls, ~np.tri(row, col, offset - 1, dtype=bool), dtype, device)


def unravel_index(x: T, shape: Any) -> tuple[T, ...]:
    """Positions in a flattened tensor of some shape as one position along each of its axes.

    >>> [p.tolist() for p in Tensor([3, 5]).unravel_index((2, 3))]
    [[1, 1], [0, 2]]
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(n < 0 for n in sizes):
        raise ShapeError(f"sizes are 0 or more, not {sizes}")
    parts, rest = [], x
    for n in reversed(sizes):
        parts.append(rest % max(n, 1))
        rest = rest // max(n, 1)
    return tuple(reversed(parts))


def diagflat(x: T, offset: int = 0) -> T:
    """The matrix with all elements on a diagonal.

    >>> Tensor([[1, 2]]).diagflat().tolist()
    [[1, 0], [0, 2]]
    """
    return diag_embed(reshape(x, x.numel()), offset)


def cartesian_prod(x: T, *others: Any) -> Any:
    """All combinations of one element of each vector, as rows.

    >>> Tensor([1, 2]).cartesian_prod(Tensor([3])).tolist()
    [[1, 3], [2, 3]]
    """
    parts = _several(x, others)
    if len(parts) == 1:
        return parts[0]
    sizes = tuple(p.shape[0] for p in parts)
    grids = [
        reshape(
            expand(reshape(p, [n if i == k else 1 for i, n in enumerate(sizes)]), sizes), math.prod(sizes)
        )
        for k, p in enumerate(parts)
    ]
    return stack(grids[0], *grids[1:], dim=1)


def combinations(x: T, r: int = 2, with_replacement: bool = False) -> T:
    """All choices of r elements of a vector, in order, as rows.

    >>> Tensor([1, 2, 3]).combinations().tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    if x.ndim != 1 or r < 0:
        raise ShapeError(
            f"combinations takes a vector and a number of 0 or more, not {show_shape(x.shape)} and {r}"
        )
    (size,) = concrete_shape(x.shape)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(size), r)), np.int64).reshape(-1, r)
    return take(x, rows) if r else narrow(x, 0, 0, 0)


def vander(x: T, N: int | None = None, increasing: bool = False) -> T:
    """The powers of each element along a new last axis, the highest first; or increasing.

    >>> Tensor([2, 3]).vander(3, increasing=True).tolist()
    [[1, 2, 4], [1, 3, 9]]
    """
    count = concrete_shape(x.shape)[-1] if N is None else N
    powers = x._new(iota((count,), 0, as_dtype("int64")))
    y = unsqueeze(x, -1)
    found = where(powers < 1, y**0, expand(y, [*x.shape, count]))
    one = where(powers < 1, y * 0 + 1, found)
    result: T = reduce.cumprod(one, -1)
    result = cast(result, x.dtype)
    return result if increasing else result.flip(-1)  # type: ignore[attr-defined]
