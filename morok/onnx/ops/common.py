"""What operators of several families share: axes, types, windows, borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import ShapeError
from morok.ir.bounds import vmin
from morok.ir.infer import show_shape
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.onnx.table import OpenSize
from morok.tensor.tensor import Tensor


def axis_of(axis: int, ndim: int) -> int:
    """An axis from the front."""
    if not -max(ndim, 1) <= axis < max(ndim, 1):
        raise ShapeError(f"axis {axis} does not exist in a tensor of {ndim} axes")
    return axis + ndim if axis < 0 else axis


def axes_of(axes: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes from the front; all of them if none are given."""
    if axes is None:
        return tuple(range(ndim))
    return tuple(axis_of(int(axis), ndim) for axis in axes)


def known(size: Any, what: str) -> int:
    """A size that has to be a number."""
    if isinstance(size, UOp):
        raise OpenSize(f"{what} needs a known size, not {show_shape((size,))}")
    return int(size)


def known_shape(x: Tensor, what: str) -> tuple[int, ...]:
    return tuple(known(n, what) for n in x.shape)


def product(sizes: Sequence[Any]) -> Any:
    """The product of sizes that may be symbolic."""
    result: Any = 1
    for n in sizes:
        result = n * result
    return result


def wide(x: Tensor) -> Tensor:
    """Half precision as float32, where an operator computes several steps."""
    return x.cast(dt.float32) if x.dtype.is_float and x.dtype.bits < 32 else x


def back(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else x.cast(dtype)


def per_channel(x: Tensor, ndim: int) -> Tensor:
    """A vector along axis 1 of a tensor of so many axes."""
    return x.reshape((1, -1) + (1,) * (ndim - 2)) if ndim > 1 else x


_IN_MEMORY = (Ops.CONTIGUOUS, Ops.BUFFER, Ops.COPY)
_MOST_SEEN = 256  # nodes; behind so many there is a sum


def kept(x: Tensor) -> Tensor:
    """A value that somebody pads or joins: in memory first, if it is a sum of products or the like.

    As a part of a larger array such a sum would be computed under a condition, element by element.
    """
    todo, seen = [x.uop], {x.uop}
    while todo:
        node = todo.pop()
        if node.op is Ops.REDUCE_AXIS or len(seen) > _MOST_SEEN:
            return x.contiguous()
        if node.op not in _IN_MEMORY:
            fresh = [n for n in node.src if n not in seen]
            seen.update(fresh)
            todo += fresh
    return x


def bordered(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """A border along one axis made of what lies inside, however wide it is: a choice of slices."""
    n = x.shape[axis]
    if not isinstance(n, int):
        return _bordered_open(x, axis, n, before, after, mode)
    places = np.arange(-before, n + after)
    if mode == "edge":
        places = places.clip(0, n - 1)
    elif mode == "wrap":
        places = places % n
    elif n == 1:
        places = np.zeros_like(places)
    else:
        places = np.abs((places + (n - 1)) % (2 * n - 2) - (n - 1))
    return x.index_select(axis, Tensor(places))


def _bordered_open(x: Tensor, axis: int, n: UOp, before: int, after: int, mode: str) -> Tensor:
    """The same along an axis of a symbolic size, from which a border is cut: it is no wider than the axis."""
    least = 1 if mode == "edge" else max(before, after) + (mode == "reflect")
    if vmin(n) < max(least, -min(before, 0) - min(after, 0)):
        raise ShapeError(f"borders of {before} and {after} need more than {show_shape((n,))} has")
    x = kept(x)

    def cut(start: Any, end: Any) -> Tensor:
        return x.shrink(tuple((start, end) if a == axis else (0, m) for a, m in enumerate(x.shape)))

    def wide(part: Tensor, count: int) -> Tensor:
        return part.expand([count if a == axis else m for a, m in enumerate(x.shape)])

    parts = [cut(-min(before, 0), n + min(after, 0))]
    before, after = max(before, 0), max(after, 0)
    if mode == "edge":
        first, last = wide(cut(0, 1), before), wide(cut(n - 1, n), after)
    elif mode == "wrap":
        first, last = cut(n - before, n), cut(0, after)
    else:
        first, last = cut(1, before + 1).flip(axis), cut(n - 1 - after, n - 1).flip(axis)
    parts = [*([first] if before > 0 else []), *parts, *([last] if after > 0 else [])]
    return parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else parts[0]
