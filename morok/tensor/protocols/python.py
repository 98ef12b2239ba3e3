"""What Python, NumPy and pickle ask of a tensor: length, truth, text, copies, arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from morok.device.buffer import Array
from morok.errors import OperandError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.joining import unbind
from morok.tensor.creation.sources import node_of
from morok.tensor.elementwise.comparison import eq
from morok.tensor.elementwise.operators import T
from morok.tensor.export import is_realized, item, numpy
from morok.tensor.gradient.backward import requires_grad_
from morok.tensor.memory.storage import identified
from morok.tensor.protocols.numpy_functions import call_function, call_ufunc
from morok.tensor.sizes import concrete

_SMALL = 1000  # elements up to which repr shows values


def as_array(x: T, dtype: Any = None, copy: bool | None = None) -> Array:
    """The values as an array, for `np.asarray`."""
    array = numpy(x)
    if dtype is not None and np.dtype(dtype) != array.dtype:
        return array.astype(dtype)
    return array.copy() if copy else array


def array_ufunc(x: T, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """NumPy's element-wise functions on tensors."""
    return call_ufunc(x, ufunc, method, inputs, kwargs)


def array_function(x: T, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's other functions on tensors."""
    return call_function(x, function, args, kwargs)


def dlpack(x: T, **options: Any) -> Any:
    """The values for `from_dlpack` of other libraries."""
    return numpy(x).__dlpack__(**options)


def dlpack_device(x: T) -> tuple[Any, Any]:
    """Where those values lie."""
    kind, number = numpy(x).__dlpack_device__()
    return kind, number


def length(x: T) -> int:
    """The size of the first axis."""
    if not x.ndim:
        raise OperandError("a tensor without axes has no length")
    return concrete(x.shape[0])


def iterate(x: T) -> Iterator[T]:
    """The slices along the first axis."""
    if not x.ndim:
        raise OperandError("a tensor without axes cannot be iterated over")
    return iter(unbind(x, 0))


def truth(x: T) -> bool:
    """Whether the only element is not zero."""
    if x.numel() != 1:
        raise ShapeError(
            f"the truth of a tensor of shape {show_shape(x.shape)} is not one truth; use any() or all()"
        )
    return bool(item(x))


def contains(x: T, value: Any) -> bool:
    """Whether some element equals a value."""
    return bool(reduce.any(eq(x, value)))


def format_text(x: T, spec: str) -> str:
    """`f"{loss:.3f}"` of one element is its number's; without a format, the tensor's own text."""
    return format(item(x), spec) if spec else str(x)


def as_int(x: T) -> int:
    """The only element, cut to a whole number."""
    return int(item(x))


def as_float(x: T) -> float:
    """The only element."""
    return float(item(x))


def as_index(x: T) -> int:
    """The only element of integers, for Python's own lists."""
    value = item(x)
    if not isinstance(value, int) or isinstance(value, bool):
        raise OperandError(f"a tensor of {x.dtype} is no index")
    return value


def pickled(x: T, /) -> Any:
    """A tensor is pickled by its values, its device and whether it is a leaf."""
    return _restore, (type(x), numpy(x).copy(), x.device, x._leaf)


def copied(x: T) -> T:
    """The same value as a tensor of its own."""
    return x._new(identified(x.uop))


def deepcopied(x: T, memo: dict[int, Any]) -> T:
    """A copy with memory of its own."""
    memo[id(x)] = copy = _restore(type(x), numpy(x).copy(), x.device, x._leaf)
    return copy


def text_of(x: T, /) -> str:
    """What kind of tensor it is, and its values if they are there and few."""
    head = f"Tensor {show_shape(x.shape)} {x.dtype} on {x.device}"
    if not is_realized(x):
        return f"<{head}, lazy>"
    count = x.numel()
    if not isinstance(count, int) or count > _SMALL:
        return f"<{head}>"
    text = np.array2string(np.asarray(numpy(x)), separator=", ", threshold=64, prefix=" ")
    return f"<{head}:\n {text}>" if "\n" in text else f"<{head}: {text}>"


def _restore(cls: type[T], array: Array, device: str, leaf: bool = False) -> T:
    tensor = cls._new(node_of(array, None, device))
    return requires_grad_(tensor) if leaf else tensor
