"""Types and constants of LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any

from morok.dtype import DType, bfloat16, float16, float32, float64, to_bits
from morok.errors import CompileError

_FLOATS = {float16: "half", bfloat16: "bfloat", float32: "float", float64: "double"}


def type_name(dtype: DType) -> str:
    """A type as LLVM writes it. Narrow floats that LLVM does not know are their bits."""
    if dtype.is_ptr:
        return "ptr"
    found = _NAMES.get(dtype)
    if found is None:
        found = _NAMES[dtype] = _name(dtype)
    return found


_NAMES: dict[DType, str] = {}


def _name(dtype: DType) -> str:
    if dtype.lanes > 1:
        return f"<{dtype.lanes} x {type_name(dtype.scalar)}>"
    if dtype.is_bool:
        return "i1"
    if dtype.is_bounded_int:
        return f"i{dtype.bits}"
    if dtype.is_void:
        return "void"
    name = _FLOATS.get(dtype)
    if name is None:
        raise CompileError(f"LLVM has no type for {dtype}")
    return name


def suffix(dtype: DType) -> str:
    """A type as part of an intrinsic's name: v4f32, i64."""
    lanes = f"v{dtype.lanes}" if dtype.lanes > 1 else ""
    scalar = dtype.scalar
    if scalar is bfloat16:
        return f"{lanes}bf16"
    return f"{lanes}{'f' if scalar.is_float else 'i'}{scalar.bits}"


def scalar_constant(dtype: DType, value: Any) -> str:
    """One number."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_bounded_int:
        # LLVM's integers have no sign; unsigned ones are written by their value
        return str(int(value))
    if dtype is float16:
        return f"0xH{to_bits(value, dtype):04X}"
    if dtype is bfloat16:
        return f"0xR{to_bits(value, dtype):04X}"
    # a float constant is written as the double of the same value
    return "0x" + pack(">d", value).hex().upper()


def constant(dtype: DType, value: Any) -> str:
    """A constant, the same in every lane; VCONST has one value per lane."""
    scalar = dtype.scalar
    if dtype.lanes == 1:
        return scalar_constant(scalar, value)
    name = type_name(scalar)
    if not isinstance(value, tuple):
        return same_in_all(name, scalar_constant(scalar, value))
    return listed(name, [scalar_constant(scalar, v) for v in value])


_ZEROS = frozenset(("0", "false", "0x0000000000000000", "0xH0000", "0xR0000"))


def same_in_all(name: str, number: str) -> str:
    """A vector of one number. Spelt out, such vectors were more than half of a text."""
    return "zeroinitializer" if number in _ZEROS else f"splat ({name} {number})"


def listed(name: str, numbers: Sequence[str]) -> str:
    """A vector of numbers of a type."""
    if len(set(numbers)) == 1:
        return same_in_all(name, numbers[0])
    return "<" + ", ".join([f"{name} {number}" for number in numbers]) + ">"
