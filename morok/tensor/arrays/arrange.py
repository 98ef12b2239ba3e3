"""Movement that takes several steps: paddings made of the tensor itself, diagonals, and axes by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from morok.dtype import int64
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import Size, numel, show_shape
from morok.ir.node import alu, const
from morok.ir.ops import Ops
from morok.tensor.arrays import reduce
from morok.tensor.arrays.movement import expand, flip, narrow, permute, reshape, squeeze, transpose, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.core import expand_to, iota
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axes, as_axis, as_size

# --- axes


def ravel(x: T) -> T:
    """All elements in one axis.

    >>> Tensor([[1, 2], [3, 4]]).ravel().tolist()
    [1, 2, 3, 4]
    """
    return reshape(x, x.numel())


def swapaxes(x: T, dim0: int, dim1: int) -> T:
    """Two axes swapped, as `transpose`.

    >>> Tensor.ones(2, 3, 4).swapaxes(0, 2).shape
    (4, 3, 2)
    """
    return transpose(x, dim0, dim1)


def movedim(x: T, source: Any, destination: Any) -> T:
    """Axes moved to other positions, the rest keeping their order.

    >>> Tensor.ones(2, 3, 4).movedim(0, -1).shape
    (3, 4, 2)
    """
    own = x.shape
    start, goal = as_axes(source, own), as_axes(destination, own)
    if len(start) != len(goal):
        raise ShapeError(f"movedim moves {len(start)} axes to {len(goal)} positions; give as many")
    rest = [axis for axis in range(len(own)) if axis not in start]
    to = dict(zip(goal, start, strict=True))
    return permute(x, [to[i] if i in to else rest.pop(0) for i in range(len(own))])


def matrix_transpose(x: T) -> T:
    """The last two axes swapped."""
    return transpose(x, -2, -1)


def expand_as(x: T, other: Any) -> T:
    """Expanded to the shape of another tensor.

    >>> Tensor([1, 2]).expand_as(Tensor.ones(3, 2)).shape
    (3, 2)
    """
    return expand(x, *other.shape)


def reshape_as(x: T, other: Any) -> T:
    """In the shape of another tensor.

    >>> Tensor.ones(4).reshape_as(Tensor.ones(2, 2)).shape
    (2, 2)
    """
    return reshape(x, *other.shape)


def select(x: T, dim: Any = None, index: Any = 0, *, axis: int | None = None) -> T:
    """One slice of an axis, without it.

    >>> Tensor([[1, 2], [3, 4]]).select(1, 0).tolist()
    [1, 3]
    """
    own = x.shape
    at = as_axis(dim if axis is None else axis, len(own), own)
    size = own[at]
    place = as_size(index, "an index")
    if isinstance(place, int) and isinstance(size, int):
        if not -size <= place < size:
            raise ShapeError(
                f"index {place} is outside of axis {at} of shape {show_shape(own)}; use {-size} … {size - 1}"
            )
        place = place % size
    return squeeze(narrow(x, at, place, 1), at)


def fliplr(x: T) -> T:
    """The second axis reversed.

    >>> Tensor([[1, 2], [3, 4]]).fliplr().tolist()
    [[2, 1], [4, 3]]
    """
    return flip(x, 1)


def flipud(x: T) -> T:
    """The first axis reversed.

    >>> Tensor([[1, 2], [3, 4]]).flipud().tolist()
    [[3, 4], [1, 2]]
    """
    return flip(x, 0)


def rot90(t: T, k: int = 1, dims: Any = (0, 1)) -> T:
    """Turned by 90 degrees k times, from the first of two axes toward the second.

    >>> Tensor([[1, 2], [3, 4]]).rot90().tolist()
    [[2, 4], [1, 3]]
    """
    a, b = as_axes(dims, t.shape)
    turns = k % 4
    x = flip(t, b) if turns == 1 else flip(t, a) if turns == 3 else t
    return flip(t, a, b) if turns == 2 else transpose(x, a, b) if turns else x


def tensor_split(x: T, parts: Any, dim: int = 0, *, axis: int | None = None) -> tuple[T, ...]:
    """Parts along an axis: so many, the first ones longer by one; or cut at the given positions.

    >>> [part.tolist() for part in Tensor([1, 2, 3]).tensor_split(2)]
    [[1, 2], [3]]
    """
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    total = x.shape[at]
    if not isinstance(total, int):
        raise ShapeError(f"tensor_split along axis {at} of shape {show_shape(x.shape)} needs a known size")
    if isinstance(parts, int) or getattr(parts, "ndim", 1) == 0:
        parts = int(parts)
        if parts < 1:
            raise ShapeError(f"tensor_split needs 1 part or more, not {parts}")
        cuts = [total // parts * i + min(i, total % parts) for i in range(parts + 1)]
    else:
        cuts = [0, *(slice(0, int(p)).indices(total)[1] for p in parts), total]
    return tuple(narrow(x, at, a, max(b - a, 0)) for a, b in pairwise(cuts))


def _listed(first: Any, others: tuple[Any, ...]) -> list[Any]:
    """The tensors of `f(a, b)` and of `f([a, b])`."""
    return [*(first if isinstance(first, tuple | list) else (first,)), *others]


def hstack(t: T, *others: Any) -> T:
    """Tensors side by side: along the second axis, vectors along the first.

    >>> Tensor([1, 2]).hstack(Tensor([3])).tolist()
    [1, 2, 3]
    """
    parts = [x.reshape(1) if not x.ndim else x for x in _listed(t, others)]
    joined: T = parts[0].cat(*parts[1:], dim=1 if parts[0].ndim > 1 else 0)
    return joined


def vstack(t: T, *others: Any) -> T:
    """Tensors below each other: along the first axis, vectors as rows.

    >>> Tensor([1, 2]).vstack(Tensor([3, 4])).tolist()
    [[1, 2], [3, 4]]
    """
    parts = [x.reshape(1, -1) if x.ndim < 2 else x for x in _listed(t, others)]
    joined: T = parts[0].cat(*parts[1:], dim=0)
    return joined


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """The coordinates of all points of a grid over vectors; "xy" swaps the first two axes, as NumPy does.

    >>> [x.tolist() for x in Tensor.meshgrid(Tensor([1, 2]), Tensor([3, 4]))]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f'indexing must be "ij" or "xy", not {indexing!r}')
    given = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    flat = [x.reshape(x.numel()) for x in given]
    sizes = tuple(x.shape[0] for x in flat)
    slim = [tuple(n if i == k else 1 for i, n in enumerate(sizes)) for k in range(len(flat))]
    grids = [x.reshape(shape).expand(sizes) for x, shape in zip(flat, slim, strict=True)]
    swap = indexing == "xy" and len(grids) > 1
    return tuple(grid.transpose(0, 1) if swap else grid for grid in grids)


# --- diagonals


def diagonal(x: T, offset: int = 0, dim1: int = 0, dim2: int = 1) -> T:
    """A diagonal of two axes, as the last axis.

    >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist()
    [1, 4]
    """
    own = x.shape
    a, b = as_axes((dim1, dim2), own)
    rows, columns = own[a], own[b]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError(f"a diagonal of shape {show_shape(own)} needs known sizes")
    rest = [axis for axis in range(len(own)) if axis not in (a, b)]
    x = permute(x, [*rest, a, b])
    lead = x.shape[:-2]
    top, left = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - top, columns - left))
    if not count:
        return narrow(reshape(x, *lead, rows * columns), -1, 0, 0)
    # A square whose rows are one element longer in memory: its diagonal is its first column.
    square = narrow(narrow(x, -2, top, count), -1, left, count)
    none: list[Any] = [None] * len(lead)
    flat = pad(reshape(square, *lead, count * count), [*none, (0, count)])
    return squeeze(narrow(reshape(flat, *lead, count, count + 1), -1, 0, 1), -1)


_diagonal = diagonal  # `diag` has an argument of that name


def diag_embed(t: T, offset: int = 0, dim1: int = -2, dim2: int = -1) -> T:
    """The last axis as a diagonal of two axes that are zero elsewhere.

    >>> Tensor([1, 2]).diag_embed().tolist()
    [[1, 0], [0, 2]]
    """
    size = t.shape[-1] if t.ndim else None
    if not isinstance(size, int):
        raise ShapeError(f"diag_embed of shape {show_shape(t.shape)} needs a last axis of known size")
    side = size + abs(offset)
    none: list[Any] = [None] * (t.ndim - 1)
    before = (max(offset, 0), max(-offset, 0))
    x = unsqueeze(pad(t, [*none, before]), -2)
    shape = (side, side)
    row, column = (expand_to(iota(shape, i, int64), shape) for i in (0, 1))
    here = alu(Ops.CMPEQ, column, alu(Ops.ADD, row, const(int64, offset)))
    full = where(t._new(here), x, t._new(const(t.dtype, 0)))
    return movedim(full, (-2, -1), (dim1, dim2))


def diag(x: T, diagonal: int = 0) -> T:
    """The diagonal of a matrix, or the matrix with a vector as its diagonal.

    >>> Tensor([1, 2]).diag().tolist()
    [[1, 0], [0, 2]]
    """
    if x.ndim not in (1, 2):
        raise ShapeError(f"diag takes a vector or a matrix, not shape {show_shape(x.shape)}")
    return diag_embed(x, diagonal) if x.ndim == 1 else _diagonal(x, diagonal)


def trace(x: T, offset: int = 0, dim1: int = 0, dim2: int = 1) -> T:
    """The sum of a diagonal.

    >>> Tensor([[1, 2], [3, 4]]).trace().item()
    5
    """
    return reduce.sum(diagonal(x, offset, dim1, dim2), -1)


# --- axes by name


def rearrange(x: T, /, pattern: str, **sizes: Any) -> T:
    """Axes split, joined and reordered by name: "b (h p) c -> b h (p c)", with sizes of the parts.

    >>> Tensor.ones(2, 12).rearrange("b (h d) -> h b d", h=3).shape
    (3, 2, 4)
    """
    left, right = _sides(pattern)
    own = x.shape
    groups, named = _match(own, left, sizes, pattern)
    names = [name for group in groups for name in group]
    wanted = [name for group in right for name in _spelled(group, groups)]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise ShapeError(
            f"pattern {pattern!r} needs the same names on both sides, each once, got {names} and {wanted}"
        )
    x = permute(reshape(x, [named[name] for name in names]), [names.index(name) for name in wanted])
    shape: list[Size] = []
    for group in right:
        if group == ["..."]:
            shape += [named[name] for name in _spelled(group, groups)]
        else:
            shape.append(numel(tuple(named[name] for name in _spelled(group, groups))))
    return reshape(x, shape)


def _sides(pattern: str) -> tuple[list[list[str]], list[list[str]]]:
    """The groups of names on both sides of a pattern; 1 is a group without a name."""
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ArgumentError(f'a pattern has two sides, "a b -> b a", not {pattern!r}')
    found = []
    for side in sides:
        groups: list[list[str]] = []
        if re.sub(r"\(\s*[\w\s]*\)|\.\.\.|\w+|\s+", "", side):
            raise ArgumentError(f"a pattern is made of names, 1, ... and ( ), so {pattern!r} cannot be read")
        for token in re.findall(r"\([^)]*\)|\.\.\.|\w+", side):
            names = token.strip("()").split() if token != "..." else ["..."]
            groups.append([name for name in names if name != "1"])
        found.append(groups)
    return found[0], found[1]


def _match(
    own: Sequence[Size], left: list[list[str]], sizes: dict[str, Any], pattern: str
) -> tuple[list[list[str]], dict[str, Size]]:
    """A group of names per axis, and the size of each name."""
    if ["..."] in left:
        at = left.index(["..."])
        extra = len(own) - len(left) + 1
        left = [*left[:at], *([f"...{i}"] for i in range(extra)), *left[at + 1 :]]
    if len(left) != len(own):
        raise ShapeError(
            f"pattern {pattern!r} has {len(left)} axes on the left, "
            f"shape {show_shape(tuple(own))} has {len(own)}"
        )
    named: dict[str, Size] = {name: as_size(size) for name, size in sizes.items()}
    for size, group in zip(own, left, strict=True):
        unknown = [name for name in group if name not in named]
        known: Any = 1
        for name in group:
            known = known * named[name] if name in named else known
        fits = isinstance(size, int) and isinstance(known, int) and known > 0 and size % known == 0
        if len(unknown) == 1 and (known == 1 or fits):
            named[unknown[0]] = size if known == 1 else size // known
        elif unknown or known != size:
            raise ShapeError(
                f"pattern {pattern!r} cuts an axis of size {show_shape((size,))[1:-2]} into "
                f"({' '.join(f'{n}={named[n]}' if n in named else n for n in group)}), which does not fit"
            )
    return left, named


def _spelled(group: list[str], groups: list[list[str]]) -> list[str]:
    """The names of a group; ... stands for all axes that it matched."""
    if group != ["..."]:
        return group
    return [name for other in groups for name in other if name.startswith("...")]
