"""The small vocabulary in which decompositions are written. Everything works on scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.dtype import DType, float16, float32, float64, int16, int32, int64, uint16, uint32, uint64
from morok.ir.build import RARE, bitcast, cast
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops

SIGNED = {float16: int16, float32: int32, float64: int64}
UNSIGNED = {float16: uint16, float32: uint32, float64: uint64}


def like(x: UOp, value: Any) -> UOp:
    """A constant of x's type."""
    return const(x.dtype, value)


def as_type(x: UOp, dtype: DType) -> UOp:
    """x converted, keeping its lanes."""
    return cast(x, dtype.vec(x.dtype.lanes))


def fma(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    """x*y + z with one rounding."""
    return alu(
        Ops.MULACC, x, y if isinstance(y, UOp) else like(x, y), z if isinstance(z, UOp) else like(x, z)
    )


def poly(x: UOp, coefficients: Sequence[float]) -> UOp:
    """Σ cᵢ·xⁱ by Horner's rule."""
    total = like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = fma(total, x, c)
    return total


def poly_in_pairs(x: UOp, square: UOp, coefficients: Sequence[float]) -> UOp:
    """The same sum as c₀ + c₁·x + x²·(c₂ + c₃·x + x²·(…)): as many steps, but half as many in a row."""
    last = len(coefficients) - 1 & ~1
    pairs = [coefficients[i : i + 2] for i in range(0, last + 1, 2)]
    terms = [fma(x, pair[1], pair[0]) if len(pair) == 2 else like(x, pair[0]) for pair in pairs]
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = fma(square, total, term)
    return total


def bits_of(x: UOp) -> UOp:
    """The bits of a float as a signed integer."""
    return bitcast(x, SIGNED[x.dtype.scalar].vec(x.dtype.lanes))


def float_of(bits: UOp, dtype: DType) -> UOp:
    """The float with these bits."""
    return bitcast(bits, dtype.scalar.vec(bits.dtype.lanes))


def rarely(condition: UOp, x: UOp, y: UOp) -> UOp:
    """x where the condition holds, which is rare: what only x needs is then worth a branch."""
    return make(Ops.WHERE, x.dtype, (condition, x, y), RARE)


def where(condition: UOp, x: UOp | float, y: UOp | float) -> UOp:
    """x where the condition holds, else y; one of them may be a number."""
    model = x if isinstance(x, UOp) else y
    assert isinstance(model, UOp)
    a = x if isinstance(x, UOp) else like(model, x)
    b = y if isinstance(y, UOp) else like(model, y)
    return alu(Ops.WHERE, condition, a, b)


def shr(x: UOp, amount: int) -> UOp:
    return alu(Ops.SHR, x, like(x, amount))


def shl(x: UOp, amount: int) -> UOp:
    return alu(Ops.SHL, x, like(x, amount))


def rint(x: UOp) -> UOp:
    return alu(Ops.RINT, x)


def absolute(x: UOp) -> UOp:
    return alu(Ops.ABS, x)


def is_nan(x: UOp) -> UOp:
    return x.ne(x)


def copy_sign(magnitude: UOp, sign: UOp) -> UOp:
    """|magnitude| with the sign bit of `sign`."""
    m, s = bits_of(magnitude), bits_of(sign)
    whole = s.dtype.scalar
    return float_of((m & whole.max) | (s & whole.min), magnitude.dtype)


def power_of_two(n: UOp, dtype: DType) -> UOp:
    """2ⁿ of a whole number in the range of normal exponents; n is an integer of the float's width."""
    bias = (1 << dtype.scalar.exponent_bits - 1) - 1
    return float_of(shl(n + bias, dtype.scalar.mantissa_bits), dtype)


def scale_by_power(x: UOp, n: UOp) -> UOp:
    """x·2ⁿ in two steps, so that the result may be subnormal or infinite; rounds once."""
    half = shr(n, 1)
    return x * power_of_two(half, x.dtype) * power_of_two(n - half, x.dtype)


_WHOLE = 1.5 * 2.0**52  # beside which a float64 has no digits behind the point
_WHOLE_BITS = 0x4338 << 48  # that number's own


def low_bits(x: UOp) -> UOp:
    """A whole float64 of less than 2^50 as an integer of 64 bits, of which only the lower 51 are its own.

    A conversion has to think of what does not fit, and vectors of few processors have one.
    """
    return bitcast(x + _WHOLE, int64.vec(x.dtype.lanes))


def to_int(x: UOp) -> UOp:
    """The same, with all of its bits."""
    return low_bits(x) - _WHOLE_BITS


def two_product(x: UOp, y: UOp) -> tuple[UOp, UOp]:
    """x·y as a sum of two floats, exactly."""
    high = x * y
    return high, fma(x, y, -high)


def fast_two_sum(x: UOp, y: UOp) -> tuple[UOp, UOp]:
    """x + y as a sum of two floats, exactly, for |x| ≥ |y|."""
    high = x + y
    return high, y - (high - x)


def two_sum(x: UOp, y: UOp) -> tuple[UOp, UOp]:
    """x + y as a sum of two floats, exactly."""
    high = x + y
    v = high - x
    return high, (x - (high - v)) + (y - v)
