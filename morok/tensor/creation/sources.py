"""Nodes for data that somebody has: numbers, lists, arrays, and memory of other libraries."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.device.buffer import Array, Buffer, bind_buffer
from morok.device.registry import canonical, default_device, get_device
from morok.dtype import DType, dtype_of
from morok.errors import DTypeError, ShapeError
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.build import cast
from morok.ir.infer import shape
from morok.ir.layout import placed
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.tensor.core import Core
from morok.tensor.dtypes import from_numpy, require_range
from morok.tensor.export import numpy
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.memory.storage import identified


def from_array(array: Array, dtype: DType, device: str | None, copy: bool = False) -> UOp:
    """A node for an array on the host that nobody will change: its own memory where device and layout allow.

    With `copy` it is an array that somebody may change.
    """
    target = get_device(placed(canonical(device), array.shape) if device else default_device())
    return bound_to(array, target.copied(array, dtype) if copy else target.adopt(array, dtype))


def bound_to(array: Array, memory: Buffer) -> UOp:
    """Memory in the shape of the array that it holds."""
    node = new_buffer(memory.dtype, array.size, memory.device)
    bind_buffer(node, memory)
    return view_of(node, array.shape)


def node_of(data: Any, dtype: DType | None, device: str | None) -> UOp:
    """The node of whatever a tensor can be made of."""
    if isinstance(data, Core):
        data = identified(data.uop)
    if isinstance(data, UOp):
        return data if dtype is None else cast(data, dtype)
    if isinstance(data, bool | int | float) and not isinstance(data, np.generic):  # float64 is a float
        require_range(data, dtype or dtype_of(data))
        return const(dtype or dtype_of(data), data)
    if hasattr(data, "__dlpack__") and not isinstance(data, np.ndarray | np.generic):
        array, found = foreign_array(data)
    else:
        array, found = as_array(data, dtype is not None)
    ours = isinstance(data, list | tuple)
    if ours and dtype is not None and array.dtype.kind in "iu" and array.size:
        for end in (array.min(), array.max()):
            require_range(int(end), dtype)
    if dtype is not None and dtype is not found:
        array, found, ours = evaluate_array(Ops.CAST, found, array, to=dtype), dtype, True
    return from_array(array, found, device, copy=not ours)


def foreign_array(data: Any) -> tuple[Array, DType]:
    """The memory of another library's array, by DLPack.

    PyTorch gives a tensor away only if no gradient is wanted for it, and NumPy does not know bfloat16; both
    can be helped with the tensor's own methods, without importing anything.
    """
    detach = getattr(data, "detach", None)
    plain = detach() if callable(detach) else data
    if str(getattr(plain, "dtype", "")) == "torch.bfloat16":
        int16 = sys.modules["torch"].int16  # whoever has such a tensor has imported it
        return np.from_dlpack(plain.view(int16)).view(storage(dt.bfloat16)), dt.bfloat16
    try:
        array = np.from_dlpack(plain)
    except (RuntimeError, BufferError, TypeError) as error:
        raise DTypeError(f"a {type(data).__name__} cannot be taken over by DLPack: {error}") from None
    return array, from_numpy(array.dtype)


def as_array(data: Any, exact: bool = False) -> tuple[Array, DType]:
    """Anything that NumPy understands as an array, with the type that morok gives it.

    Python's floats are float32; `exact` leaves them as they are, for somebody who converts them anyway.
    """
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        return array, from_numpy(array.dtype)
    if isinstance(data, list | tuple):
        return _from_list(data, exact)
    try:
        array = np.asarray(memoryview(data))
    except TypeError:
        if not hasattr(data, "__array__"):
            raise DTypeError(
                f"a tensor is made of numbers, nested lists, arrays or files, not of a {type(data).__name__}"
            ) from None
        array = np.asarray(data)
    return array, from_numpy(array.dtype)


def _from_list(data: Any, exact: bool) -> tuple[Array, DType]:
    """Nested lists of numbers (or of scalar tensors), of equal lengths."""
    try:
        array = np.array(_plain(data))
    except ValueError:
        raise ShapeError("the lists of a tensor must have equal lengths at each level") from None
    if array.size == 0:
        return array.astype(np.float32), dt.default_float
    if array.dtype == np.float64 and not exact:
        return array.astype(np.float32), dt.default_float
    if array.dtype.kind == "O":
        first = array.reshape(-1)[0]
        for value in array.reshape(-1):
            require_range(value, dt.int64)  # integers that no type holds are objects to NumPy
        raise DTypeError(f"the elements of a tensor must be numbers, not {type(first).__name__}")
    return array, from_numpy(array.dtype)


def is_floats(data: Any) -> bool:
    """Whether data are lists that hold Python's floats."""
    if not isinstance(data, list | tuple):
        return type(data) is float
    return any(map(is_floats, data))


def _plain(data: Any) -> Any:
    """Lists with tensors in them replaced by their values."""
    if isinstance(data, Core):
        return numpy(data)
    if isinstance(data, list | tuple):
        return [_plain(x) if isinstance(x, list | tuple | Core) else x for x in data]
    return data


def on_device(node: UOp, device: str | None) -> UOp:
    """A constant on a device other than the default one."""
    name = default_device() if device is None else canonical(device)
    if name == default_device():
        return node
    sizes = shape(node)
    name = placed(name, () if sizes is None else sizes)
    get_device(name)
    return make(Ops.COPY, node.dtype, (node, make(Ops.DEVICE, dt.void, (), name)))
