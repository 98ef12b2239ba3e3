"""Integer ops: division, shifts, powers and random bits with what processors have.

Processors divide toward zero and fault (or worse) on a divisor of 0 and on INT_MIN / -1. The ops of the IR
have a value there, so the divisor is made safe first and the result corrected. By a constant one multiplies
instead (strength reduction): with a magic number proved right for every value that the operand can have.
"""

from __future__ import annotations

from morok.codegen.decompose.pieces import as_type, like, shl, shr, where
from morok.dtype import float16, float32, int64, uint16, uint32, uint64
from morok.ir.arithmetic.scalars import ROTATIONS
from morok.ir.bounds import vmax, vmin
from morok.ir.build import bitcast, cast
from morok.ir.node import UOp, alu
from morok.ir.ops import Ops
from morok.symbolic.domain import divides, shifts


def _safe(x: UOp, y: UOp) -> UOp:
    """y, or 1 where division by y has no result."""
    bad = y.eq(0)
    if not x.dtype.is_unsigned and vmin(x) == x.dtype.scalar.min and vmin(y) <= -1 <= vmax(y):
        bad = bad | (y.eq(-1) & x.eq(x.dtype.scalar.min))
    return where(bad, like(y, 1), y)


def guard_division(node: UOp) -> UOp | None:
    """CDIV and CMOD with any divisor → with a safe one; 0 where it is 0."""
    x, y = node.src
    if divides(x, y):
        return None
    quotient = alu(node.op, x, _safe(x, y))
    return where(y.eq(0), like(x, 0), quotient) if vmin(y) <= 0 <= vmax(y) else quotient


def magic_numbers(largest: int, divisor: int, bits: int) -> tuple[int, int] | None:
    """(m, s) with x // d = (x·m) >> s for all 0 ≤ x ≤ largest, and x·m below 2^bits; None if there are none.

    Let m = ⌈2^s / d⌉ and e = m·d - 2^s. For x = q·d + r, x·m / 2^s = q + (r + x·e / 2^s) / d, whose whole
    part is q if r + x·e / 2^s < d; since r ≤ d-1, it is enough that x·e < 2^s for the largest x.
    """
    for s in range(bits):
        m = -(-(1 << s) // divisor)
        if largest * m >= 1 << bits:
            return None
        if largest * (m * divisor - (1 << s)) < 1 << s:
            return m, s
    return None


def divide_by_constant(x: UOp, divisor: int) -> UOp | None:
    """x // d for x ≥ 0 and a constant d > 0, without dividing."""
    if vmin(x) < 0 or divisor < 1:
        return None
    if divisor & (divisor - 1) == 0:
        return shr(x, divisor.bit_length() - 1)
    scalar = x.dtype.scalar
    largest = int(vmax(x))
    sign = 0 if scalar.is_unsigned else 1
    found = magic_numbers(largest, divisor, scalar.bits - sign)
    if found is not None:
        m, s = found
        return shr(x * m, s)
    if scalar.bits > 32:
        return None
    wide = int64 if sign else uint64
    # All of 64: below 2^31 there is one with s ≤ 31 + ⌈log₂ d⌉ and m ≤ 2^32, so a product below 2^63.
    found = magic_numbers(largest, divisor, 64)
    if found is None:
        return None
    m, s = found
    return cast(shr(as_type(x, wide) * m, s), x.dtype)


def floor_divide(node: UOp) -> UOp | None:
    """x // y rounded down."""
    x, y = node.src
    if y.op is Ops.CONST and y.arg > 0:
        d = y.arg
        if d & (d - 1) == 0:
            return shr(x, d.bit_length() - 1)  # an arithmetic shift rounds down for every sign
        quick = divide_by_constant(x, d)
        if quick is not None:
            return quick
    if x.dtype.is_unsigned or (vmin(x) >= 0 and vmin(y) >= 0):
        return alu(Ops.CDIV, x, y)
    quotient = alu(Ops.CDIV, x, y)
    remainder = x - quotient * y
    # toward zero is one too much where there is a remainder with the other sign than y
    apart = remainder.ne(0) & ((remainder ^ y) < 0) & y.ne(0)
    return quotient - cast(apart, x.dtype)


def floor_modulo(node: UOp) -> UOp | None:
    """x - (x // y)·y."""
    x, y = node.src
    if y.op is Ops.CONST and y.arg > 0 and y.arg & (y.arg - 1) == 0:
        mask: int = y.arg - 1
        return x & mask
    if y.op is Ops.CONST and divide_by_constant(x, y.arg) is not None:
        return x - alu(Ops.FLOORDIV, x, y) * y
    if x.dtype.is_unsigned or (vmin(x) >= 0 and vmin(y) >= 0):
        return alu(Ops.CMOD, x, y)
    remainder = alu(Ops.CMOD, x, y)
    apart = remainder.ne(0) & ((remainder ^ y) < 0)
    return where(apart, remainder + y, remainder)


def c_divide_constant(node: UOp) -> UOp | None:
    """CDIV of what is not negative by a constant."""
    x, y = node.src
    return divide_by_constant(x, y.arg) if y.op is Ops.CONST else None


def c_modulo_constant(node: UOp) -> UOp | None:
    """CMOD of what is not negative by a constant."""
    x, y = node.src
    quotient = divide_by_constant(x, y.arg) if y.op is Ops.CONST else None
    return None if quotient is None else x - quotient * y


def multiply_by_power(node: UOp) -> UOp | None:
    """x·2^k → x << k, for integers of a fixed width."""
    x, c = node.src
    if not x.dtype.is_bounded_int or c.op is not Ops.CONST or c.arg < 2 or c.arg.bit_count() != 1:
        return None
    return shl(x, c.arg.bit_length() - 1)


def guard_shift(node: UOp) -> UOp | None:
    """Shifts by amounts outside of the width."""
    x, y = node.src
    width = x.dtype.scalar.bits
    if shifts(x, y):
        return None
    inside = y & (width - 1)
    shifted = alu(node.op, x, inside)
    fits = y.eq(inside)
    if node.op is Ops.SHL:
        return where(fits, shifted, like(x, 0))
    return where(fits, shifted, like(x, 0) if x.dtype.is_unsigned else shr(x, width - 1))


def integer_power(node: UOp) -> UOp | None:
    """x^y of integers by squaring; a negative exponent truncates."""
    x, y = node.src
    if not x.dtype.is_int:
        return None
    width = x.dtype.scalar.bits
    top = int(vmax(y)) if vmin(y) >= 0 else (1 << width - 1) - 1
    result, base = like(x, 1), x
    for k in range(max(1, top.bit_length())):
        if y.op is Ops.CONST:
            result = result * base if y.arg >> k & 1 else result
        else:
            result = where((shr(y, k) & 1).ne(0), result * base, result)
        base = base * base
    if vmin(y) >= 0:
        return result
    sign = where((y & 1).ne(0), like(x, -1), like(x, 1))
    unit = where(x.eq(1), like(x, 1), where(x.eq(-1), sign, like(x, 0)))
    return where(y < 0, unit, result)


def dot4(node: UOp) -> UOp:
    """Σ of the products of the bytes, each brought to the upper end and back with its sign."""

    def at(x: UOp, place: int) -> UOp:
        up = x if place == 3 else alu(Ops.SHL, x, like(x, 24 - 8 * place))
        return alu(Ops.SHR, up, like(x, 24))

    x, y = node.src
    first, *others = (alu(Ops.MUL, at(x, i), at(y, i)) for i in range(4))
    for product in others:
        first = alu(Ops.ADD, first, product)
    return first


def dot2(node: UOp) -> UOp:
    """Σ of the products of the two float16 in the bits of each."""

    def at(x: UOp, place: int) -> UOp:
        bits = bitcast(x, uint32.vec(x.dtype.lanes))
        half = as_type(bits if place == 0 else shr(bits, 16), uint16)
        return as_type(bitcast(half, float16.vec(x.dtype.lanes)), float32)

    x, y = node.src
    return at(x, 0) * at(y, 0) + at(x, 1) * at(y, 1)


def threefry(node: UOp) -> UOp:
    """Twenty rounds of Threefry-2x32; the low words come first."""
    counter, key = node.src
    mask = 0xFFFFFFFF

    def low(v: UOp) -> UOp:
        return as_type(v & mask, uint32)

    k0, k1 = low(key), low(shr(key, 32))
    keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x0, x1 = low(counter) + k0, low(shr(counter, 32)) + k1
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            x0 = x0 + x1
            x1 = (shl(x1, r) | shr(x1, 32 - r)) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + (group + 1)
    return as_type(x0, uint64) | shl(as_type(x1, uint64), 32)
