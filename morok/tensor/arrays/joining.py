"""Several tensors to one, and one to several."""

from __future__ import annotations

from typing import Any

from morok.dtype import promote
from morok.errors import ArgumentError, ShapeError, SizesDiffer
from morok.ir.infer import Shape, Size, add_sizes, show_shape, subtract_sizes
from morok.ir.ops import Ops
from morok.ir.sizes import at_most, canonical, combine, show_size
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
            raise SizesDiffer(
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
    lengths = (
        [as_size(size) for size in sizes]
        if isinstance(sizes, list | tuple)
        else _equal_parts(as_size(sizes, "the size of a part"), total, where, own)
    )
    starts: list[Size] = [0]
    for length in lengths:
        starts.append(add_sizes(starts[-1], length))
    if starts[-1] != total or not all(at_most(0, length) for length in lengths):
        shown = ", ".join(map(show_size, lengths))
        raise ShapeError(
            f"parts [{shown}] add up to {show_size(starts[-1])}, but axis {where} of shape {show_shape(own)} "
            f"has {show_size(total)}"
        )
    return tuple(narrow(x, where, start, length) for start, length in zip(starts, lengths, strict=False))


_MOST_PARTS = 1024  # of a size that is known later


def _equal_parts(size: Size, total: Size, where: int, own: Shape) -> list[Size]:
    """Parts of one size; the last one is shorter, or all are equal where that is not known yet."""
    if not at_most(1, size):
        raise ShapeError(f"split needs parts of 1 or more, not {show_size(size)}")
    if isinstance(size, int) and isinstance(total, int):
        return [min(size, total - start) for start in range(0, total, size)] or [0]
    for count in range(1, _MOST_PARTS):
        together = combine(Ops.MUL, size, count)
        if together == total:
            return [size] * count
        if at_most(total, together):
            break
    raise ShapeError(
        f"how many parts of {show_size(size)} axis {where} of shape {show_shape(own)} has is not known yet; "
        "give split a list of sizes"
    )


def chunk(x: T, count: int, dim: int = 0, axis: int | None = None) -> tuple[T, ...]:
    """So many parts of nearly equal size along an axis.

    >>> [part.tolist() for part in Tensor([1, 2, 3]).chunk(2)]
    [[1, 2], [3]]
    """
    where = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    total = x.shape[where]
    if count < 1:
        raise ShapeError(f"cannot cut axis {where} of shape {show_shape(x.shape)} into {count} chunks")
    if not isinstance(total, int):
        part = canonical(total // count)
        if combine(Ops.MUL, part, count) != total:
            raise ShapeError(f"axis {where} of shape {show_shape(x.shape)} may not be {count} equal chunks")
        return split(x, [part] * count, where)
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


def roll(
    x: T, shift: Any = None, dim: Any = None, *, axis: Any = None, shifts: Any = None, dims: Any = None
) -> T:
    """The elements moved along axes, those that fall off coming in at the other end.

    Without an axis the flattened tensor is rolled. `shifts` and `dims` are PyTorch's names.

    >>> Tensor([1, 2, 3]).roll(1).tolist()
    [3, 1, 2]
    """
    where = next((given for given in (dim, axis, dims) if given is not None), None)
    shift = shifts if shift is None else shift
    if shift is None:
        raise ArgumentError("roll needs to know by how much: shift, or shifts")
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
    by = as_size(shift, "a shift")
    if isinstance(by, int) and isinstance(total, int):
        by = by % total if total else 0
    elif not (at_most(0, by) and at_most(by, total)):
        by = combine(Ops.FLOORMOD, by, total)
    if by == 0:
        return x
    rest = subtract_sizes(total, by)
    return cat(narrow(x, where, rest, by), narrow(x, where, 0, rest), dim=where)


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
