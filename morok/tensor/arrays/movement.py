"""The same elements at other places: reshape, permute, expand, pad, shrink, flip and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.dtype import int64
from morok.errors import ShapeError
from morok.ir import build
from morok.ir import movement as move
from morok.ir.infer import Shape, Size, add_sizes, numel, show_shape, size_node
from morok.ir.node import UOp, alu
from morok.ir.ops import Ops
from morok.ir.sizes import show_size, show_values
from morok.tensor.calls.record import frozen
from morok.tensor.core import C, Core, expand_to, iota, require_shape
from morok.tensor.sizes import as_axes, as_axis, as_shape, as_size, flat_args

_INDEX = int64  # the type in which positions are compared


# --- shape


def reshape(x: C, *shape: Any) -> C:
    """The same elements in row-major order under another shape; -1 in one place means "what is left".

    A view where NumPy's is one: what is written to either is seen by both.

    >>> Tensor.arange(6).reshape(2, -1).shape
    (2, 3)
    """
    own = x.shape
    sizes = _complete(own, [as_size(size) for size in flat_args(shape)])
    try:
        return x._view(move.reshape(x.uop, sizes))
    except ShapeError:
        raise ShapeError(_bad_reshape(own, sizes)) from None


def flatten(x: C, start_dim: int = 0, end_dim: int = -1) -> C:
    """Several axes as one.

    >>> Tensor.ones(2, 3, 4).flatten(1).shape
    (2, 12)
    """
    own = x.shape
    if not own:
        return reshape(x, 1)
    first, last = as_axis(start_dim, len(own), own), as_axis(end_dim, len(own), own)
    if first > last:
        raise ShapeError(f"flatten of shape {show_shape(own)} goes from axis {first} back to {last}")
    return reshape(x, *own[:first], numel(own[first : last + 1]), *own[last + 1 :])


def unflatten(x: C, dim: Any = None, sizes: Sequence[Any] = (), *, axis: int | None = None) -> C:
    """One axis as several.

    >>> Tensor.ones(2, 12).unflatten(1, (3, 4)).shape
    (2, 3, 4)
    """
    own = x.shape
    at = as_axis(dim if axis is None else axis, len(own), own)
    inner = _complete(own[at : at + 1], [as_size(size) for size in sizes])
    return reshape(x, *own[:at], *inner, *own[at + 1 :])


def squeeze(x: C, dim: Any = None, *, axis: Any = None) -> C:
    """Without axes of size 1, or without the given ones if they have size 1.

    >>> Tensor.ones(2, 1, 3).squeeze(1).shape
    (2, 3)
    """
    own = x.shape
    axes = as_axes(dim if axis is None else axis, own)
    return reshape(x, *(size for i, size in enumerate(own) if not (i in axes and size == 1)))


def unsqueeze(x: C, dim: Any = None, *, axis: int | None = None) -> C:
    """With a new axis of size 1 at `dim`.

    >>> Tensor.ones(2, 3).unsqueeze(-1).shape
    (2, 3, 1)
    """
    own = x.shape
    at = as_axis(dim if axis is None else axis, len(own) + 1, own)
    return reshape(x, *own[:at], 1, *own[at:])


# --- order


def permute(x: C, *axes: Any) -> C:
    """The axes in another order.

    >>> Tensor.ones(2, 3, 4).permute(2, 0, 1).shape
    (4, 2, 3)
    """
    own = x.shape
    order = as_axes(flat_args(axes), own)
    if len(order) != len(own):
        raise ShapeError(
            f"permute of shape {show_shape(own)} needs each of its {len(own)} axes once, got {order}"
        )
    return x._view(move.permute(x.uop, order))


def transpose(x: C, dim0: int = 1, dim1: int = 0) -> C:
    """Two axes swapped.

    >>> Tensor.ones(2, 3, 4).transpose(0, 2).shape
    (4, 3, 2)
    """
    own = x.shape
    if not own and {dim0, dim1} <= {0, -1}:
        return x
    a, b = as_axis(dim0, len(own), own), as_axis(dim1, len(own), own)
    order = list(range(len(own)))
    order[a], order[b] = b, a
    return x._view(move.permute(x.uop, order))


def reversed_axes(x: C) -> C:
    """The axes in reverse order."""
    return x._view(move.permute(x.uop, range(x.ndim)[::-1]))


def flip(x: C, *order: Any, dims: Any = None, axis: Any = None) -> C:
    """Axes reversed; all of them if none is given, by position or as `dims` or `axis`.

    >>> Tensor([1, 2, 3]).flip().tolist()
    [3, 2, 1]
    """
    named = [each for each in (dims, axis) if each is not None]
    given = flat_args(tuple(named) or order)
    axes = as_axes(given if (named or order) and given != (None,) else None, x.shape)
    return x._view(move.flip(x.uop, [axis in axes for axis in range(x.ndim)]))


# --- repeat


@frozen("expand repeats elements, so its result cannot be written to; copy it with contiguous()")
def expand(x: C, *sizes: Any) -> C:
    """Axes of size 1 repeated; -1 keeps a size, new axes come in front.

    >>> Tensor([[1], [2]]).expand(-1, 3).tolist()
    [[1, 1, 1], [2, 2, 2]]
    """
    own = x.shape
    given = [as_size(size) for size in flat_args(sizes)]
    if len(given) < len(own):
        raise ShapeError(
            f"expand of shape {show_shape(own)} needs {len(own)} sizes or more, got {len(given)}"
        )
    padded = (1,) * (len(given) - len(own)) + own
    wanted = as_shape([old if new == -1 else new for old, new in zip(padded, given, strict=True)])
    for old, new in zip(padded, wanted, strict=True):
        if old != 1 and old != new:
            raise ShapeError(
                f"shape {show_shape(own)} does not expand to {show_shape(wanted)}: only axes of size 1 repeat"
            )
    return x._new(expand_to(x.uop, wanted))


@frozen("broadcast_to repeats elements, so its result cannot be written to; copy it with contiguous()")
def broadcast_to(x: C, *shape: Any) -> C:
    """As `expand`, under NumPy's name.

    >>> Tensor([1, 2]).broadcast_to(2, 2).tolist()
    [[1, 2], [1, 2]]
    """
    return expand(x, *shape)


def repeat(x: C, *repeats: Any) -> C:
    """The whole tensor so many times along each axis, as `numpy.tile`.

    >>> Tensor([1, 2]).repeat(2).tolist()
    [1, 2, 1, 2]
    """
    own = x.shape
    times = as_shape(flat_args(repeats))
    if len(times) < len(own):
        times = (1,) * (len(own) - len(times)) + times
    padded = (1,) * (len(times) - len(own)) + own
    pairs: list[Size] = [size for pair in zip((1,) * len(padded), padded, strict=True) for size in pair]
    wide = [size for pair in zip(times, padded, strict=True) for size in pair]
    final = [numel((n, size)) for n, size in zip(times, padded, strict=True)]
    return reshape(expand(reshape(x, *pairs), *wide), *final)


def repeat_each(x: C, repeats: int, dim: int | None = None, *, axis: int | None = None) -> C:
    """Each element so many times in a row, as `numpy.repeat`.

    >>> Tensor([1, 2]).repeat_interleave(2).tolist()
    [1, 1, 2, 2]
    """
    where = dim if axis is None else axis
    x = flatten(x) if where is None else x
    own = x.shape
    at = as_axis(0 if where is None else where, len(own), own)
    as_shape((repeats,))
    after = own[at + 1 :]
    wide = expand(unsqueeze(x, at + 1), *own[: at + 1], repeats, *after)
    return reshape(wide, *own[:at], numel((own[at], as_size(repeats))), *after)


# --- boxes


def shrink(x: C, limits: Sequence[tuple[Any, Any] | None]) -> C:
    """The box between start and stop of each axis; None keeps the whole axis.

    >>> Tensor([1, 2, 3, 4]).shrink([(1, 3)]).tolist()
    [2, 3]
    """
    own = x.shape
    if len(limits) != len(own):
        raise ShapeError(
            f"shrink of shape {show_shape(own)} needs {len(own)} pairs (start, stop), got {len(limits)}"
        )
    box = [
        (0, size) if pair is None else (as_size(pair[0]), as_size(pair[1]))
        for pair, size in zip(limits, own, strict=True)
    ]
    try:
        return x._view(move.shrink(x.uop, box))
    except ShapeError:
        raise ShapeError(_bad_box(own, box)) from None


def narrow(x: C, dim: Any = None, start: Any = 0, length: Any = 1, *, axis: int | None = None) -> C:
    """`length` elements of one axis from `start` on.

    >>> Tensor([1, 2, 3, 4]).narrow(0, 1, 2).tolist()
    [2, 3]
    """
    own = x.shape
    at = as_axis(dim if axis is None else axis, len(own), own)
    first, size = as_size(start), as_size(length)
    stop = add_sizes(first, size)
    return shrink(x, [(first, stop) if i == at else None for i in range(len(own))])


# --- several


def cat_nodes(tensors: Sequence[Core], axis: int) -> UOp:
    """Tensors of one type end to end: each padded to the whole, chosen by position."""
    nodes = [t.uop for t in tensors]
    sizes = [t.shape[axis] for t in tensors]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):  # pair by pair: symbolic sums are equal if they are made in one order
        result = nodes[0]
        for node in nodes[1:]:
            result = _append([result, node], [require_shape(result)[axis], require_shape(node)[axis]], axis)
        return result
    return _append(nodes, sizes, axis)


def _append(nodes: Sequence[UOp], sizes: Sequence[Size], axis: int) -> UOp:
    starts: list[Size] = [0]
    for size in sizes:
        starts.append(add_sizes(starts[-1], size))
    result: UOp | None = None
    for i, node in enumerate(nodes):
        own = require_shape(node)
        rest: Size = 0
        for size in sizes[i + 1 :]:
            rest = add_sizes(rest, size)
        part = move.pad(node, [(starts[i], rest) if a == axis else (0, 0) for a in range(len(own))])
        if result is None:
            result = part
            continue
        whole = require_shape(part)
        here = alu(Ops.CMPLT, iota(whole, axis, _INDEX), build.cast(size_node(starts[i]), _INDEX))
        result = alu(Ops.WHERE, expand_to(here, whole), result, part)
    assert result is not None
    return result


def _complete(own: Shape, sizes: list[Size]) -> Shape:
    """Sizes with the one -1 filled in."""
    open_axes = [axis for axis, size in enumerate(sizes) if size == -1]
    if not open_axes:
        return as_shape(sizes)
    if len(open_axes) > 1:
        raise ShapeError(
            f"reshape to {show_shape(tuple(sizes))} has more than one -1; only one size can follow"
        )
    rest = numel(tuple(size for size in sizes if size != -1))
    total = numel(own)
    if isinstance(rest, int) and isinstance(total, int):
        if rest == 0 or total % rest:
            raise ShapeError(_bad_reshape(own, tuple(sizes)))
        sizes[open_axes[0]] = total // rest
    else:
        sizes[open_axes[0]] = _quotient(own, tuple(size for size in sizes if size != -1))
    return as_shape(sizes)


def _quotient(own: Shape, taken: Shape) -> Size:
    """The number of elements over a part of the sizes: common factors cancel."""
    left, right = list(own), []
    for size in taken:
        if size in left:
            left.remove(size)
        else:
            right.append(size)
    above, below = numel(tuple(left)), numel(tuple(right))
    if below == 1:
        return above
    known = 1
    for size in left:
        known *= size if isinstance(size, int) else 1
    if isinstance(below, int) and known % below == 0:
        symbolic = tuple(size for size in left if not isinstance(size, int))
        return numel((*symbolic, known // below))
    return alu(Ops.FLOORDIV, size_node(above), size_node(below))


def _bad_reshape(own: Shape, wanted: Shape) -> str:
    have = show_shape((numel(own),))[1:-2]
    known = tuple(size for size in wanted if size != -1)
    need = show_shape((numel(known),))[1:-2]
    if len(known) < len(wanted):
        return (
            f"shape {show_shape(own)} with {have} elements does not reshape to {show_shape(wanted)}: "
            f"{have} is no multiple of {need}"
        )
    return (
        f"shape {show_shape(own)} with {have} elements does not reshape to {show_shape(wanted)}, "
        f"which has {need}; the numbers must be equal"
    )


def _bad_box(own: Shape, box: list[tuple[Size, Size]]) -> str:
    """Which axis of a box leaves the tensor, and what its ends could be."""
    for axis, (size, (start, stop)) in enumerate(zip(own, box, strict=True)):
        wrong = move.leaves(size, start, stop)
        if wrong is not None:
            ends = " … ".join(map(show_size, (start, stop)))
            return (
                f"shrink of shape {show_shape(own)} to {ends} of axis {axis} leaves the tensor"
                f"{show_values(wrong)}; start and stop lie in 0 … {show_size(size)}, the start first"
            )
    return f"shrink of shape {show_shape(own)} to {box} leaves the tensor"
