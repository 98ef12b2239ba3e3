"""What PyTorch's tensors are asked: sizes, types and copies under the names that are known from there."""

from __future__ import annotations

from typing import Any

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.movement import transpose
from morok.tensor.core import Core
from morok.tensor.creation.constructors import clone, from_data
from morok.tensor.dtypes import as_dtype
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axis


def dim(x: Core) -> int:
    """The number of axes, as `ndim`.

    >>> Tensor([[1, 2]]).dim()
    2
    """
    return x.ndim


def nelement(x: Core) -> Any:
    """The number of elements, as `numel`.

    >>> Tensor([[1, 2]]).nelement()
    2
    """
    return x.numel()


def element_size(x: Core) -> int:
    """How many bytes an element takes.

    >>> Tensor([1.0]).element_size()
    4
    """
    return x.dtype.itemsize


def is_floating_point(x: Core) -> bool:
    """Whether the elements are floats.

    >>> Tensor([1.0]).is_floating_point(), Tensor([1]).is_floating_point()
    (True, False)
    """
    return x.dtype.is_float


def is_contiguous(x: Core) -> bool:
    """True: what is read of a tensor is always in row-major order.

    >>> Tensor([[1, 2]]).T.is_contiguous()
    True
    """
    return True


def stride(x: Core, dim: int | None = None) -> Any:
    """How many elements a step along each axis is, in row-major order; or along one.

    >>> Tensor.ones(2, 3, 4).stride(), Tensor.ones(2, 3, 4).stride(0)
    ((12, 4, 1), 12)
    """
    steps: list[Any] = [1]
    for size in x.shape[:0:-1]:
        steps.append(steps[-1] * (size if size.__class__ is not int else max(size, 1)))
    found = tuple(steps[::-1][: x.ndim] if x.ndim else ())
    return found if dim is None else found[as_axis(dim, x.ndim, x.shape)]


def t(x: T) -> T:
    """The two axes of a matrix swapped; a vector as it is.

    >>> Tensor([[1, 2]]).t().tolist()
    [[1], [2]]
    """
    if x.ndim > 2:
        raise ShapeError(f"t takes at most two axes, and shape {show_shape(x.shape)} has more; use mT")
    return transpose(x, 0, 1) if x.ndim == 2 else x


def type_as(x: T, other: Core) -> T:
    """In another tensor's type.

    >>> Tensor([1, 2]).type_as(Tensor([0.5])).tolist()
    [1.0, 2.0]
    """
    return cast(x, other.dtype)


def cpu(x: T) -> T:
    """In the host's memory: on the device that is called CPU.

    >>> Tensor([1.0]).cpu().device
    'CPU'
    """
    return x.to("CPU")  # type: ignore[attr-defined, no-any-return]


def copy(x: T) -> T:
    """A copy with memory of its own, as `clone`.

    >>> Tensor([1.0]).copy().tolist()
    [1.0]
    """
    return clone(x)


def new_tensor(x: T, data: Any, dtype: Any = None) -> T:
    """A tensor of data, in this tensor's type and place.

    >>> Tensor([1.0]).new_tensor([2, 3]).tolist()
    [2.0, 3.0]
    """
    return cast(from_data(x, data), as_dtype(dtype or x.dtype))
