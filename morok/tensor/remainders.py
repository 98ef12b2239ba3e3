"""Remainders of floats, exactly, and the quotients that belong to them, as C, Python and NumPy define them.

    x mod y = x - q·y,  q whole,  |x mod y| < |y|

is always a number of the type, but q may have thousands of bits. It is taken away piece by piece: each round
divides what is left roughly, and takes so many y away, which is exact (one fused product). A round makes what
is left about 2⁵⁰ times smaller. Narrow floats and float32 do that in float64, where everything that occurs is
a normal number; float64 goes through multiples y·2ᵏ first, so that no quotient overflows.
"""

from __future__ import annotations

import math

from morok import dtype as dt
from morok.dtype import DType
from morok.ir.build import bitcast, cast, le
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops

_PER_ROUND = 50  # bits of the quotient
_STAGE = 520  # bits of the quotient between two multiples of a double
_STAGES = (3 * _STAGE, 2 * _STAGE, _STAGE)


def remainder_toward_zero(x: UOp, y: UOp) -> UOp:
    """C's fmod: the sign of x; NaN for an infinite x or a y of 0."""
    own: DType = x.dtype
    wide = dt.float64
    size, step = (alu(Ops.ABS, cast(v, wide)) for v in (x, y))
    rest = _double(size, step) if own is wide else _reduced(size, step, _bits(own), own.mantissa_bits)
    # nothing is taken away by an infinite step, but the formula has 0 · inf in it
    infinite = alu(Ops.CMPEQ, step, const(wide, math.inf)) & alu(Ops.CMPLT, size, const(wide, math.inf))
    rest = cast(alu(Ops.WHERE, infinite, size, rest), own)
    return _signed(rest, x)


def divmod_rounded_down(x: UOp, y: UOp) -> tuple[UOp, UOp]:
    """The quotient rounded down and the remainder with the sign of y, as NumPy computes them.

    Its quotient is (x - remainder) / y, which is whole up to rounding, so it is rounded to the nearest one.
    """
    own: DType = x.dtype
    if own.bits < 32:
        pair = divmod_rounded_down(cast(x, dt.float32), cast(y, dt.float32))
        return cast(pair[0], own), cast(pair[1], own)
    zero, one, half = const(own, 0.0), const(own, 1.0), const(own, 0.5)
    rest = remainder_toward_zero(x, y)
    quotient = alu(Ops.FDIV, alu(Ops.SUB, x, rest), y)
    some = alu(Ops.CMPNE, rest, zero)
    apart = some & alu(Ops.CMPNE, alu(Ops.CMPLT, y, zero), alu(Ops.CMPLT, rest, zero))
    quotient = alu(Ops.WHERE, apart, alu(Ops.SUB, quotient, one), quotient)
    rest = alu(Ops.WHERE, apart, alu(Ops.ADD, rest, y), alu(Ops.WHERE, some, rest, _signed(zero, y)))
    whole = alu(Ops.FLOOR, quotient)
    above = alu(Ops.CMPLT, half, alu(Ops.SUB, quotient, whole))
    whole = alu(Ops.WHERE, above, alu(Ops.ADD, whole, one), whole)
    exact = alu(Ops.FDIV, x, y)
    nothing = alu(Ops.CMPEQ, quotient, zero)
    whole = alu(Ops.WHERE, nothing, _signed(zero, exact), whole)
    return alu(Ops.WHERE, alu(Ops.CMPEQ, y, zero), exact, whole), rest


def named_remainder(rest: UOp, x: UOp, y: UOp) -> UOp:
    """A remainder as a function of x and y, for gradients: the rounds say nothing that they need."""
    return make(Ops.NOOP, rest.dtype, (rest, x, y), "remainder")


def _bits(dtype: DType) -> int:
    """How many bits a quotient of two numbers may have."""
    smallest = dtype.smallest_normal * dtype.eps
    return math.frexp(float(dtype.largest))[1] - math.frexp(float(smallest))[1] + 1


def _reduced(size: UOp, step: UOp, bits: int, mantissa: int) -> UOp:
    """size mod step in float64, for quotients of so many bits that nothing overflows. Neither is negative."""
    inverse = alu(Ops.RECIP, step)
    rest = size
    for _ in range(-(-bits // _PER_ROUND)):
        times = alu(Ops.MUL, rest, inverse)
        if mantissa > 40:
            times = _shortened(times)
        times = alu(Ops.TRUNC, times)
        rest = alu(Ops.MULACC, alu(Ops.NEG, times), step, rest)
    below = alu(Ops.CMPLT, rest, const(rest.dtype, 0.0))
    rest = alu(Ops.WHERE, below, alu(Ops.ADD, rest, step), rest)
    return alu(Ops.WHERE, le(step, rest), alu(Ops.SUB, rest, step), rest)


def _shortened(times: UOp) -> UOp:
    """Rounded to 49 bits: what a double times that lacks of the dividend has 53 bits again."""
    bits = bitcast(times, dt.int64)
    rounded = alu(Ops.ADD, bits, const(dt.int64, 8))
    return bitcast(alu(Ops.AND, rounded, const(dt.int64, -16)), times.dtype)


def _double(size: UOp, step: UOp) -> UOp:
    """The remainder of doubles: modulo step·2ᵏ for some large k first, which changes nothing."""
    wide, mantissa = dt.float64, dt.float64.mantissa_bits
    rest = size
    for k in _STAGES:
        multiple = step
        for power in (k // 2, k - k // 2):  # 2ᵏ itself may be too large
            multiple = alu(Ops.MUL, multiple, const(wide, math.ldexp(1.0, power)))
        reduced = _reduced(rest, multiple, _STAGE + 20, mantissa)
        rest = alu(Ops.WHERE, le(multiple, rest), reduced, rest)
    # the inverse of a subnormal number would be infinite
    tiny = alu(Ops.CMPLT, step, const(wide, 1e-150))
    up, down = (
        alu(Ops.WHERE, tiny, const(wide, math.ldexp(1.0, p)), const(wide, 1.0)) for p in (_STAGE, -_STAGE)
    )
    scaled = _reduced(alu(Ops.MUL, rest, up), alu(Ops.MUL, step, up), _STAGE, mantissa)
    return alu(Ops.MUL, scaled, down)


def _signed(size: UOp, sign: UOp) -> UOp:
    """|size| with the sign bit of `sign`."""
    kind = dt.parse(f"int{sign.dtype.bits}")
    negative = alu(Ops.CMPLT, bitcast(sign, kind), const(kind, 0))
    size = alu(Ops.ABS, size)
    return alu(Ops.WHERE, negative, alu(Ops.NEG, size), size)
