"""Types and constants of CUDA C.

No header is included. Narrow floats are their bits in an unsigned integer, converted by PTX instructions; a
vector in memory is a built-in vector type, or, for elements below 32 bits, words whose parts are shifted out.
"""

from __future__ import annotations

import math
from struct import pack, unpack
from typing import Any

from morok.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    to_bits,
    uint8,
    uint16,
    uint32,
    uint64,
)
from morok.errors import CompileError

_NAMES: dict[DType, str] = {
    bool_: "bool",
    int8: "signed char",
    uint8: "unsigned char",
    int16: "short",
    uint16: "unsigned short",
    int32: "int",
    uint32: "unsigned",
    int64: "long long",
    uint64: "unsigned long long",
    float16: "unsigned short",
    bfloat16: "unsigned short",
    float32: "float",
    float64: "double",
}
_VECTORS: dict[DType, str] = {
    float32: "float",
    int32: "int",
    uint32: "uint",
    float64: "double",
    int64: "longlong",
    uint64: "ulonglong",
}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}
LANES = "xyzw"


def type_name(dtype: DType) -> str:
    """A scalar type."""
    name = _NAMES.get(dtype.scalar)
    if name is None:
        raise CompileError(f"CUDA C has no type for {dtype}")
    return name


def unsigned_name(dtype: DType) -> str:
    """The unsigned integer of the same width."""
    return _UNSIGNED[dtype.scalar.bits]


def words_of(dtype: DType) -> tuple[str, int, int]:
    """How a vector lies in memory: the type of one access, the words it has, and elements per word."""
    scalar, lanes = dtype.scalar, dtype.lanes
    if lanes == 1:
        return type_name(scalar), 1, 1
    name = _VECTORS.get(scalar)
    if name is not None:
        return f"{name}{lanes}", lanes, 1
    nbytes = scalar.itemsize * lanes
    if nbytes <= 4:
        return {2: "unsigned short", 4: "unsigned"}[nbytes], 1, lanes
    return f"uint{nbytes // 4}", nbytes // 4, 4 // scalar.itemsize


def constant(dtype: DType, value: Any) -> str:
    """One number."""
    scalar = dtype.scalar
    if scalar.is_bool:
        return "true" if value else "false"
    if scalar.is_int:
        return _integer(scalar, int(value))
    if scalar in (float16, bfloat16):
        return f"(unsigned short){to_bits(value, scalar):#06x}"
    return _float(scalar, float(value))


def _integer(scalar: DType, value: int) -> str:
    if scalar is int32:
        return str(value) if value != scalar.min else "(-2147483647 - 1)"
    if scalar is int64:
        return f"{value}LL" if value != scalar.min else "(-9223372036854775807LL - 1)"
    if scalar is uint32:
        return f"{value}u"
    if scalar is uint64:
        return f"{value}ull"
    return f"({type_name(scalar)}){value}"


def _float(scalar: DType, value: float) -> str:
    if scalar is float64:
        if math.isfinite(value):
            return value.hex() if value != int(value) or abs(value) >= 1e15 else _whole(value, "")
        return f"__longlong_as_double({_signed64(value)}LL)"
    if math.isfinite(value):
        return f"{value.hex()}f" if value != int(value) or abs(value) >= 1e7 else _whole(value, "f")
    return f"__uint_as_float({unpack('<I', pack('<f', value))[0]:#010x}u)"


def _whole(value: float, suffix: str) -> str:
    """A small whole number, readable; the sign of a zero is kept."""
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return f"{sign}{abs(int(value))}.0{suffix}"


def _signed64(value: float) -> str:
    bits: int = unpack("<Q", pack("<d", value))[0]
    return f"{bits:#018x}"
