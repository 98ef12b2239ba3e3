"""Several tensors to one, and one to several."""

from __future__ import annotations

from typing import Any

from morok.dtype import promote
from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.movement import cat_nodes, flatten, narrow, reshape, squeeze
from morok.tensor.core import Core
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axis, as_size


def cat(x: T, *others: Any, dim: int = 0, axis: int | None = None) -> T:
    """Tensors end to end along an axis; sizes along the other axes must be equal.

    `Tensor.cat(a, b, dim=1)`, `a.cat(b, dim=1)` and `Tensor.cat([a, b], dim=1)` are the same.

    >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
    [1, 2, 3]
    """
    parts = _all(x, others)
    first = parts[0]
    where = as_axis(dim if axis is None else axis, first.ndim, first.shape)
    for part in parts[1:]:
        rest, own = _without(first.shape, where), _without(part.shape, where)
        if part.ndim != first.ndim or rest != own:
            raise ShapeError(
                f"shapes {show_shape(first.shape)} and {show_shape(part.shape)} do not join along axis "
                f"{where}: all other sizes must be equal"
            )
    dtype = promote(*(part.dtype for part in parts)) if len(parts) > 1 else first.dtype
    joined: T = first._new(cat_nodes([part.cast(dtype) for part in parts], where))
    return joined


def stack(x: T, *others: Any, dim: int = 0, axis: int | None = None) -> T:
    """Tensors of one shape along a new axis.

    >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
    [[1, 2], [3, 4]]
    """
    parts = _all(x, others)
    where = dim if axis is None else axis
    for part in parts[1:]:
        if part.shape != parts[0].shape:
            raise ShapeError(
                f"shapes {show_shape(parts[0].shape)} and {show_shape(part.shape)} do not stack: "
                "they must be equal"
            )
    first, *rest = (part.unsqueeze(where) for part in parts)
    at = as_axis(where, first.ndim, first.shape)
    joined: T = first.cat(*rest, dim=at)
    return joined


def split(x: T, sizes: Any, dim: int = 0, axis: int | None = None) -> tuple[T, ...]:
    """Parts along an axis: of the given sizes, or of one size with a shorter last one.

    >>> [part.tolist() for part in Tensor([1, 2, 3]).split(2)]
    [[1, 2], [3]]
    """
    own = x.shape
    where = as_axis(dim if axis is None else axis, len(own), own)
    total = own[where]
    if not isinstance(total, int):
        raise ShapeError(f"split along axis {where} of shape {show_shape(own)} needs a known size")
    if isinstance(sizes, int):
        if sizes < 1:
            raise ShapeError(f"split needs parts of 1 or more, not {sizes}")
        lengths = [min(sizes, total - start) for start in range(0, total, sizes)] or [0]
    else:
        lengths = [int(size) for size in sizes]
    if sum(lengths) != total or min(lengths, default=0) < 0:
        raise ShapeError(
            f"parts {lengths} add up to {sum(lengths)}, but axis {where} of shape {show_shape(own)} "
            f"has {total}"
        )
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return tuple(narrow(x, where, start, length) for start, length in zip(starts, lengths, strict=True))


def chunk(x: T, count: int, dim: int = 0, axis: int | None = None) -> tuple[T, ...]:
    """So many parts of nearly equal size along an axis.

    >>> [part.tolist() for part in Tensor([1, 2, 3]).chunk(2)]
    [[1, 2], [3]]
    """
    where = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    total = x.shape[where]
    if not isinstance(total, int) or count < 1:
        raise ShapeError(f"cannot cut axis {where} of shape {show_shape(x.shape)} into {count} chunks")
    return split(x, max(1, -(-total // count)), where)


def unbind(x: T, dim: int = 0, *, axis: int | None = None) -> tuple[T, ...]:
    """The slices along an axis, without it.

    >>> [part.item() for part in Tensor([1, 2]).unbind()]
    [1, 2]
    """
    where = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    total = x.shape[where]
    if not isinstance(total, int):
        raise ShapeError(f"unbind along axis {where} of shape {show_shape(x.shape)} needs a known size")
    return tuple(squeeze(narrow(x, where, i, 1), where) for i in range(total))


def roll(x: T, shift: Any, dim: Any = None, *, axis: Any = None) -> T:
    """The elements moved along axes, those that fall off coming in at the other end.

    Without an axis the flattened tensor is rolled.

    >>> Tensor([1, 2, 3]).roll(1).tolist()
    [3, 1, 2]
    """
    where = dim if axis is None else axis
    if where is None:
        return reshape(roll(flatten(x), shift, 0), x.shape)
    axes = tuple(where) if isinstance(where, tuple | list) else (where,)
    shifts = tuple(shift) if isinstance(shift, tuple | list) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll needs a shift per axis, got {len(shifts)} for {len(axes)} axes")
    for by, at in zip(shifts, axes, strict=True):
        x = _roll(x, by, as_axis(at, x.ndim, x.shape))
    return x


def _roll(x: T, shift: Any, where: int) -> T:
    total = x.shape[where]
    if not isinstance(total, int):
        raise ShapeError(f"roll along axis {where} of shape {show_shape(x.shape)} needs a known size")
    by = as_size(shift, "a shift")
    if not isinstance(by, int):
        raise ShapeError("roll needs a known shift")
    by = by % total if total else 0
    if by == 0:
        return x
    return cat(narrow(x, where, total - by, by), narrow(x, where, 0, total - by), dim=where)


def _without(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _all(first: Any, others: tuple[Any, ...]) -> list[Any]:
    """The tensors of `a.cat(b)`, `Tensor.cat(a, b)`, `Tensor.cat([a, b])`."""
    parts = list(first) if isinstance(first, tuple | list) else [first]
    for other in others:
        parts += other if isinstance(other, tuple | list) else [other]
    if not parts:
        raise ShapeError("cat and stack need at least one tensor")
    for part in parts:
        if not isinstance(part, Core):
            raise ShapeError(f"cat and stack join tensors, not a {type(part).__name__}")
    return parts
