"""What operators of several families share: axes, types, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import ShapeError
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
