"""Remainders of floats, exactly, and the quotients that belong to them, as C, Python and NumPy define them.

    x mod y = x - q·y,  q whole,  |x mod y| < |y|

is always a number of the type, although q may have thousands of bits.
"""

from __future__ import annotations

from morok import dtype as dt
from morok.dtype import DType
from morok.ir.build import bitcast, cast
from morok.ir.call import call
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops


def remainder_toward_zero(x: UOp, y: UOp) -> UOp:
    """C's fmod: the sign of x; NaN for an infinite x or a y of 0."""
    own: DType = x.dtype
    if own.bits < 32:
        return cast(alu(Ops.FMOD, cast(x, dt.float32), cast(y, dt.float32)), own)
    return alu(Ops.FMOD, x, y)


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
    """A remainder as a function of x and y, for gradients: the corrections say nothing that they need."""
    return call("remainder", rest, x, y)


def _signed(size: UOp, sign: UOp) -> UOp:
    """|size| with the sign bit of `sign`."""
    kind = dt.parse(f"int{sign.dtype.bits}")
    negative = alu(Ops.CMPLT, bitcast(sign, kind), const(kind, 0))
    size = alu(Ops.ABS, size)
    return alu(Ops.WHERE, negative, alu(Ops.NEG, size), size)
