"""Types: scalars, vectors and pointers; how they promote; how their values and bits correspond."""

from morok.dtype.convert import as_value, from_bits, identity, round_float, to_bits
from morok.dtype.promote import dtype_of, lossless, promote, promote_scalar
from morok.dtype.types import (
    ALL_SCALARS,
    FLOATS,
    INTS,
    SIGNED,
    UNSIGNED,
    AddrSpace,
    DType,
    PtrDType,
    bfloat16,
    bool_,
    default_float,
    default_int,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    index,
    int8,
    int16,
    int32,
    int64,
    parse,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)

__all__ = [
    "ALL_SCALARS", "FLOATS", "INTS", "SIGNED", "UNSIGNED",
    "AddrSpace", "DType", "PtrDType",
    "void", "index", "bool_",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "float64",
    "default_float", "default_int", "parse",
    "dtype_of", "lossless", "promote", "promote_scalar",
    "as_value", "from_bits", "identity", "round_float", "to_bits",
]  # fmt: skip
