"""Rounding to whole numbers on processors that have no instruction for it.

Adding 2^m, where m is the number of mantissa bits, leaves no room for a fraction: the addition itself rounds
to the nearest whole number, halves to even. What is that large already is whole.
"""

from __future__ import annotations

from morok.codegen.decompose.pieces import absolute, copy_sign, like, where
from morok.ir.node import UOp


def rint(x: UOp) -> UOp:
    """To the nearest whole number, halves to even."""
    large = float(1 << x.dtype.scalar.mantissa_bits)
    a = absolute(x)
    whole = copy_sign((a + large) - large, x)
    return where(a < large, whole, x)


def floor(x: UOp) -> UOp:
    """Down."""
    near = rint(x)
    return near - where(x < near, like(x, 1.0), like(x, 0.0))


def ceil(x: UOp) -> UOp:
    """Up: the opposite of down for the opposite."""
    return -floor(-x)


def trunc(x: UOp) -> UOp:
    """Toward zero."""
    return copy_sign(floor(absolute(x)), x)
