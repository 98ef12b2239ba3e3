"""Element types of ONNX: their names, what NumPy calls them, and how a tensor holds them.

Types that tensors do not have are held as codes: integers of 2 and 4 bits as int8 or uint8 with the same
values, small floats as the bytes that stand for them. Whatever computes with them converts them first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from morok import dtype as dt
from morok.dtype import DType

Array = np.ndarray[Any, Any]

_KNOWN: dict[int, tuple[Any, DType]] = {
    TensorProto.BOOL: (np.bool_, dt.bool_),
    TensorProto.INT8: (np.int8, dt.int8),
    TensorProto.INT16: (np.int16, dt.int16),
    TensorProto.INT32: (np.int32, dt.int32),
    TensorProto.INT64: (np.int64, dt.int64),
    TensorProto.UINT8: (np.uint8, dt.uint8),
    TensorProto.UINT16: (np.uint16, dt.uint16),
    TensorProto.UINT32: (np.uint32, dt.uint32),
    TensorProto.UINT64: (np.uint64, dt.uint64),
    TensorProto.FLOAT16: (np.float16, dt.float16),
    TensorProto.BFLOAT16: (ml_dtypes.bfloat16, dt.bfloat16),
    TensorProto.FLOAT: (np.float32, dt.float32),
    TensorProto.DOUBLE: (np.float64, dt.float64),
    TensorProto.FLOAT8E4M3FN: (ml_dtypes.float8_e4m3fn, dt.float8_e4m3),
    TensorProto.FLOAT8E5M2: (ml_dtypes.float8_e5m2, dt.float8_e5m2),
}

# Held as codes: NumPy's type, the type of the codes, and whether a code is its value.
_CODED: dict[int, tuple[Any, DType, bool]] = {
    TensorProto.INT4: (ml_dtypes.int4, dt.int8, True),
    TensorProto.UINT4: (ml_dtypes.uint4, dt.uint8, True),
    TensorProto.INT2: (ml_dtypes.int2, dt.int8, True),
    TensorProto.UINT2: (ml_dtypes.uint2, dt.uint8, True),
    TensorProto.FLOAT8E4M3FNUZ: (ml_dtypes.float8_e4m3fnuz, dt.uint8, False),
    TensorProto.FLOAT8E5M2FNUZ: (ml_dtypes.float8_e5m2fnuz, dt.uint8, False),
    TensorProto.FLOAT8E8M0: (ml_dtypes.float8_e8m0fnu, dt.uint8, False),
    TensorProto.FLOAT4E2M1: (ml_dtypes.float4_e2m1fn, dt.uint8, False),
}

STRING = TensorProto.STRING
PLAIN = frozenset(_KNOWN)  # types that tensors have

_ELEM_OF_NUMPY: dict[Any, int] = {
    **{np.dtype(n): e for e, (n, _) in _KNOWN.items()},
    **{np.dtype(n): e for e, (n, _, _) in _CODED.items()},
}
_ELEM_OF_DTYPE: dict[DType, int] = {d: e for e, (_, d) in _KNOWN.items()}


def type_name(elem: int) -> str:
    """An element type as the specification writes it."""
    try:
        return str(TensorProto.DataType.Name(elem)).lower()
    except ValueError:
        return f"type {elem}"


def is_coded(elem: int) -> bool:
    """Whether tensors hold the type as codes."""
    return elem in _CODED


def is_known(elem: int) -> bool:
    """Whether tensors, or tensors of codes, hold the type."""
    return elem in _KNOWN or elem in _CODED


def code_dtype(elem: int) -> DType:
    """The type of a coded type's codes."""
    return _CODED[elem][1]


def code_is_value(elem: int) -> bool:
    """Whether the codes of a type are the numbers themselves: true of the narrow integers."""
    return _CODED[elem][2]


def numpy_type(elem: int) -> np.dtype[Any]:
    """NumPy's type for an element type; object for strings."""
    found: Any = _KNOWN.get(elem) or _CODED.get(elem) or (object,)
    made: np.dtype[Any] = np.dtype(found[0])
    return made


def dtype_of_elem(elem: int) -> DType | None:
    """The type of a tensor's elements; None for types that tensors hold as codes, or not at all."""
    found = _KNOWN.get(elem)
    return None if found is None else found[1]


def elem_of_dtype(dtype: DType) -> int:
    return _ELEM_OF_DTYPE[dtype]


def elem_of_array(array: Array) -> int | None:
    """The element type of an array; None for one that ONNX does not have."""
    if array.dtype.kind in "OUST":
        return int(STRING)
    return _ELEM_OF_NUMPY.get(array.dtype)


def is_float(elem: int) -> bool:
    return elem in _FLOATS


def int_range(elem: int) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    info: Any = ml_dtypes.iinfo(numpy_type(elem))  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


_FLOATS = frozenset(e for e in (*_KNOWN, *_CODED) if "float" in numpy_type(e).name)


@cache
def code_values(elem: int) -> Array:
    """The number, as float32, that each code of a small float stands for."""
    kind = numpy_type(elem)
    count = 16 if elem == TensorProto.FLOAT4E2M1 else 256
    codes = np.arange(count, dtype=np.uint8)
    return codes.view(kind).astype(np.float32)
