"""What flows along the edges of a model while it is traced.

`Tensor`: numbers that a plan computes. `Host`: an array whose values are known while tracing, such as
weights, shapes and strings; whole numbers in it may be symbolic sizes. `Coded`: a tensor of codes
of a type that tensors do not have. A sequence is a list, or `Grown` where a part has not looked into it;
a map is a dict, an optional without an element None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np
from onnx import TensorProto

from morok.device.buffer import aligned_copy
from morok.errors import DTypeError
from morok.ir.node import UOp
from morok.onnx.types import (
    Array,
    code_dtype,
    code_is_value,
    dtype_of_elem,
    elem_of_array,
    elem_of_dtype,
    is_coded,
    numpy_type,
    type_name,
)
from morok.tensor.core import as_scalar_node
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

SMALL = 4096  # elements of an array that the host computes with while tracing


@final
class Host:
    """An array that is known while tracing. `lasting`: it is part of the model, the same at every call.
    `apart`: kernels read it, also if it is one number, so that layers that differ in it alone share theirs.
    """

    __slots__ = ("_forms", "_tensor", "apart", "array", "elem", "lasting", "symbolic")

    def __init__(self, array: Array, elem: int | None = None, lasting: bool = False) -> None:
        self.array = array
        found = elem_of_array(array) if elem is None else elem
        if found is None:
            raise DTypeError(f"NumPy's {array.dtype} is no type of ONNX's; convert the array first")
        self.elem = found
        self.symbolic = array.dtype == object and found != TensorProto.STRING
        self.lasting = lasting
        self.apart = False
        self._tensor: Tensor | Coded | None = None
        self._forms: dict[Any, Tensor] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def is_text(self) -> bool:
        return self.elem == TensorProto.STRING

    def tensor(self) -> Tensor | Coded:
        """The values as a tensor: a constant if there is one only, else memory."""
        if self._tensor is None:
            self._tensor = _as_tensor(self)
            if self.lasting:
                codes = self._tensor.codes if isinstance(self._tensor, Coded) else self._tensor
                codes._storage.frozen = "it is a constant of the model"
        return self._tensor

    def form(self, key: Any, laid_out: Callable[[Array], Array]) -> Tensor:
        """A constant's values in another order, which is made once, by a view of them."""
        if key not in self._forms:
            made = Tensor.from_numpy(aligned_copy(laid_out(self.array)))
            made._storage.frozen = "it is a constant of the model"
            self._forms[key] = made
        return self._forms[key]

    def __repr__(self) -> str:
        return f"Host({type_name(self.elem)}{list(self.shape)})"


@final
class Coded:
    """A tensor of codes."""

    __slots__ = ("codes", "elem")

    def __init__(self, codes: Tensor, elem: int) -> None:
        self.codes, self.elem = codes, elem

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.codes.shape

    def __repr__(self) -> str:
        return f"Coded({type_name(self.elem)}{list(self.shape)})"


@final
class Grown:
    """A sequence that a part starts on, by its name, and what the part has put at its end.

    How long it is does not matter to whoever only appends to it: such a part is compiled once.
    """

    __slots__ = ("added", "name")

    def __init__(self, name: str, added: list[Any]) -> None:
        self.name, self.added = name, added


Value: TypeAlias = "Tensor | Host | Coded | Grown | list[Any] | dict[Any, Any] | None"


def passing(value: Value) -> Value:
    """A value that may be another one next time: what is a constant of the model is none there."""
    if isinstance(value, list):
        return [passing(item) for item in value]
    return Host(value.array, value.elem) if isinstance(value, Host) and value.lasting else value


def _as_tensor(host: Host) -> Tensor | Coded:
    array = host.array
    if host.is_text:
        raise DTypeError("strings are computed with on the host, not in tensors")
    if host.symbolic:
        dtype = dtype_of_elem(host.elem)
        assert dtype is not None
        parts = [symbolic_scalar(size, dtype) for size in array.reshape(-1)]
        if not parts:
            return Tensor(np.zeros(array.shape, numpy_type(host.elem)))
        if len(parts) == 1:
            return parts[0].reshape(array.shape)
        return parts[0].stack(*parts[1:]).reshape(array.shape)
    if is_coded(host.elem):
        return Coded(Tensor.from_numpy(encode_array(array, host.elem)), host.elem)
    if array.size == 1 and not host.apart:
        return Tensor.full(array.shape, array.reshape(-1)[0].item(), dtype=dtype_of_elem(host.elem))
    array = np.ascontiguousarray(array)
    if not array.flags.writeable and not host.lasting:
        array = array.copy()
    return Tensor.from_numpy(array)


def symbolic_scalar(size: Any, dtype: Any) -> Tensor:
    """A size that may be symbolic, as a tensor without axes."""
    if isinstance(size, UOp):
        node = as_scalar_node(size, dtype)
        assert node is not None
        return Tensor(node)
    return Tensor(int(size), dtype=dtype)


def encode_array(array: Array, elem: int) -> Array:
    """The codes of an array of a coded type."""
    target = code_dtype(elem).numpy
    assert target is not None
    if code_is_value(elem):
        return array.astype(target)
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


def decode_array(codes: Array, elem: int) -> Array:
    """The array of a coded type that codes stand for."""
    if code_is_value(elem):
        return codes.astype(numpy_type(elem))
    return np.ascontiguousarray(codes.astype(np.uint8)).view(numpy_type(elem)).reshape(codes.shape)


def elem_of(value: Any) -> int:
    """The element type of a value that has one."""
    if isinstance(value, Host | Coded):
        return value.elem
    if isinstance(value, Tensor):
        return elem_of_dtype(value.dtype)
    raise DTypeError(f"a {type(value).__name__} has no element type; a tensor was expected")


def from_user(array: Any) -> Value:
    """What somebody feeds: an array, a tensor, a list of such, None."""
    if array is None or isinstance(array, Tensor | dict):
        return array
    if isinstance(array, list | tuple):
        return [from_user(item) for item in array]
    found = np.asarray(array)
    elem = elem_of_array(found)
    if elem is None:
        raise DTypeError(f"NumPy's {found.dtype} is no type of ONNX's; convert the array first")
    if elem == TensorProto.STRING:
        return Host(found.astype(object), elem)
    if is_coded(elem):
        return Coded(Tensor(encode_array(found, elem)), elem)
    return Tensor(found)


def to_user(value: Any, values: dict[str, int] | None = None) -> Any:
    """What somebody gets: arrays, lists of them, None."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, Coded):
        return decode_array(value.codes.numpy(), value.elem)
    if isinstance(value, Host):
        return known_array(value, values)
    if isinstance(value, list):
        return [to_user(item, values) for item in value]
    return value


def known_array(host: Host, values: dict[str, int] | None = None) -> Array:
    """The array, its symbolic sizes replaced by what they are."""
    if not host.symbolic:
        return host.array
    flat = [concrete(x, values) if isinstance(x, UOp) else int(x) for x in host.array.reshape(-1)]
    return np.array(flat, numpy_type(host.elem)).reshape(host.array.shape)


def spilled(value: Value) -> Value:
    """What was computed on the host, as a tensor; strings stay there."""
    if isinstance(value, Host) and not value.is_text and not value.symbolic:
        return value.tensor() if value.array.size != 1 else from_user(value.array)
    return value


def read(value: Value) -> Value:
    """A tensor's values on the host."""
    if isinstance(value, Tensor | Coded):
        elem = value.elem if isinstance(value, Coded) else None
        return Host(np.asarray(to_user(value)), elem)
    if isinstance(value, Host) and value.symbolic:
        return Host(known_array(value), value.elem)
    return value
