"""One table per kind of numbers: op → the Z3 expression that means what `morok/ir/arithmetic/alu.py` says.

The functions for indices and reals get the translator first, because they may need helper variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok.ir.arithmetic.scalars import ROTATIONS
from morok.ir.ops import Op, Ops
from morok.proof.smt.solver import Expr, z3

Table = dict[Op, Callable[..., Expr]]


def _same(x: Expr) -> Expr:
    return x


# --- booleans

BOOLS: Table = {
    Ops.NOT: z3.Not,
    **dict.fromkeys((Ops.ADD, Ops.MAX, Ops.OR), lambda x, y: z3.Or(x, y)),
    **dict.fromkeys((Ops.MUL, Ops.MIN, Ops.AND), lambda x, y: z3.And(x, y)),
    Ops.XOR: lambda x, y: z3.Xor(x, y),
    Ops.CMPLT: lambda x, y: z3.And(z3.Not(x), y),
}

# --- integers of a width


def _floordiv(x: Expr, y: Expr) -> Expr:
    quotient, remainder = x / y, z3.SRem(x, y)
    down = z3.And(remainder != 0, (remainder < 0) != (y < 0))
    return z3.If(y == 0, _zero(x), z3.If(down, quotient - 1, quotient))


def _zero(x: Expr) -> Expr:
    return z3.BitVecVal(0, x.size())


def _nonzero(function: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: z3.If(y == 0, _zero(x), function(x, y))


def _mulhi(extend: Callable[[int, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    def high(x: Expr, y: Expr) -> Expr:
        bits = x.size()
        return z3.Extract(2 * bits - 1, bits, extend(bits, x) * extend(bits, y))

    return high


def _dot4(x: Expr, y: Expr) -> Expr:
    products = [
        z3.SignExt(24, z3.Extract(at + 7, at, x)) * z3.SignExt(24, z3.Extract(at + 7, at, y))
        for at in (0, 8, 16, 24)
    ]
    return products[0] + products[1] + products[2] + products[3]


def _popcount(x: Expr) -> Expr:
    bits = x.size()
    parts = [z3.ZeroExt(bits - 1, z3.Extract(i, i, x)) for i in range(bits)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _unsigned_power(x: Expr, y: Expr) -> Expr:
    """Square and multiply; with a constant exponent only the products that count remain."""
    y = z3.simplify(y)
    known = y.as_long() if z3.is_bv_value(y) else None
    result, square = z3.BitVecVal(1, x.size()), x
    for i in range(x.size()):
        if known is not None and not known >> i:
            break
        if known is None:
            result = z3.If(z3.Extract(i, i, y) == 1, result * square, result)
        elif known >> i & 1:
            result = result * square
        square = square * square
    return result


def _signed_power(x: Expr, y: Expr) -> Expr:
    one, zero = z3.BitVecVal(1, x.size()), _zero(x)
    even = z3.Extract(0, 0, y) == 0
    negative = z3.If(x == 1, one, z3.If(x == -1, z3.If(even, one, -one), zero))
    return z3.If(y < 0, negative, _unsigned_power(x, y))


def _threefry(counter: Expr, key: Expr) -> Expr:
    def words(v: Expr) -> tuple[Expr, Expr]:
        return z3.Extract(31, 0, v), z3.Extract(63, 32, v)

    (x0, x1), (k0, k1) = words(counter), words(key)
    keys = (k0, k1, z3.BitVecVal(0x1BD11BDA, 32) ^ k0 ^ k1)
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            x0 = x0 + x1
            x1 = z3.RotateLeft(x1, r) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + group + 1
    return z3.Concat(x1, x0)


_BITS: Table = {
    Ops.NEG: lambda x: -x,
    Ops.NOT: lambda x: ~x,
    Ops.POPCOUNT: _popcount,
    Ops.ADD: lambda x, y: x + y,
    Ops.SUB: lambda x, y: x - y,
    Ops.MUL: lambda x, y: x * y,
    Ops.AND: lambda x, y: x & y,
    Ops.OR: lambda x, y: x | y,
    Ops.XOR: lambda x, y: x ^ y,
    # Z3 shifts out of range as the ops do: every bit leaves, and a negative amount is a large one
    Ops.SHL: lambda x, y: x << y,
    Ops.MULACC: lambda x, y, z: x * y + z,
    **dict.fromkeys((Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT), _same),
}

SIGNED: Table = {
    **_BITS,
    Ops.ABS: lambda x: z3.If(x < 0, -x, x),
    Ops.FLOORDIV: _floordiv,
    Ops.FLOORMOD: _nonzero(lambda x, y: x % y),  # Z3's signed remainder has the sign of the divisor
    Ops.CDIV: _nonzero(lambda x, y: x / y),
    Ops.CMOD: _nonzero(lambda x, y: z3.SRem(x, y)),
    Ops.MULHI: _mulhi(z3.SignExt),
    Ops.DOT4: _dot4,
    Ops.POW: _signed_power,
    Ops.MAX: lambda x, y: z3.If(x < y, y, x),
    Ops.MIN: lambda x, y: z3.If(y < x, y, x),
    Ops.CMPLT: lambda x, y: x < y,
    Ops.SHR: lambda x, y: x >> y,
    Ops.CHECK: lambda x, n, y: z3.If(z3.And(x >= 0, x < n), x, y),
}

UNSIGNED: Table = {
    **_BITS,
    Ops.ABS: _same,
    **dict.fromkeys((Ops.FLOORDIV, Ops.CDIV), _nonzero(lambda x, y: z3.UDiv(x, y))),
    **dict.fromkeys((Ops.FLOORMOD, Ops.CMOD), _nonzero(lambda x, y: z3.URem(x, y))),
    Ops.MULHI: _mulhi(z3.ZeroExt),
    Ops.POW: _unsigned_power,
    Ops.MAX: lambda x, y: z3.If(z3.ULT(x, y), y, x),
    Ops.MIN: lambda x, y: z3.If(z3.ULT(y, x), y, x),
    Ops.CMPLT: lambda x, y: z3.ULT(x, y),
    Ops.SHR: lambda x, y: z3.LShR(x, y),
    Ops.THREEFRY: _threefry,
    Ops.CHECK: lambda x, n, y: z3.If(z3.ULT(x, n), x, y),
}

# --- unbounded integers


def _abs(x: Expr) -> Expr:
    return z3.If(x < 0, -x, x)


def _cdiv(t: Any, x: Expr, y: Expr) -> Expr:
    quotient = t.divide(_abs(x), _abs(y))[0]
    return z3.If((x < 0) == (y < 0), quotient, -quotient)


def _shr(t: Any, x: Expr, y: Expr) -> Expr:
    return z3.If(y >= 0, t.divide(x, t.power_of_two(y))[0], z3.If(x < 0, -1, 0))


INDICES: Table = {
    Ops.NEG: lambda t, x: -x,
    Ops.NOT: lambda t, x: -1 - x,
    Ops.ABS: lambda t, x: _abs(x),
    Ops.ADD: lambda t, x, y: x + y,
    Ops.SUB: lambda t, x, y: x - y,
    Ops.MUL: lambda t, x, y: x * y,
    Ops.FLOORDIV: lambda t, x, y: t.divide(x, y)[0],
    Ops.FLOORMOD: lambda t, x, y: t.divide(x, y)[1],
    Ops.CDIV: _cdiv,
    Ops.CMOD: lambda t, x, y: z3.If(y == 0, 0, x - _cdiv(t, x, y) * y),
    Ops.POW: lambda t, x, y: t.index_power(x, y),
    Ops.MAX: lambda t, x, y: z3.If(x < y, y, x),
    Ops.MIN: lambda t, x, y: z3.If(y < x, y, x),
    Ops.CMPLT: lambda t, x, y: x < y,
    Ops.AND: lambda t, x, y: t.bits_of_index(x, y),
    Ops.OR: lambda t, x, y: x + y - t.bits_of_index(x, y),
    Ops.XOR: lambda t, x, y: x + y - 2 * t.bits_of_index(x, y),
    Ops.SHL: lambda t, x, y: z3.If(y >= 0, x * t.power_of_two(y), 0),
    Ops.SHR: _shr,
    Ops.MULACC: lambda t, x, y, z: x * y + z,
    Ops.CHECK: lambda t, x, n, y: z3.If(z3.And(x >= 0, x < n), x, y),
    **dict.fromkeys((Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT), lambda t, x: x),
}

# --- floats


def _nearest() -> Any:
    return z3.RNE()


def _either_nan(x: Expr, y: Expr) -> Expr:
    return z3.Or(z3.fpIsNaN(x), z3.fpIsNaN(y))


def _fmax(x: Expr, y: Expr) -> Expr:
    # zeros are ordered -0 < +0: a positive x is the larger of two equal ones
    first = z3.Or(z3.fpGT(x, y), z3.And(z3.fpEQ(x, y), z3.fpIsPositive(x)))
    return z3.If(_either_nan(x, y), z3.fpNaN(x.sort()), z3.If(first, x, y))


def _fmin(x: Expr, y: Expr) -> Expr:
    first = z3.Or(z3.fpLT(x, y), z3.And(z3.fpEQ(x, y), z3.fpIsNegative(x)))
    return z3.If(_either_nan(x, y), z3.fpNaN(x.sort()), z3.If(first, x, y))


def _fused(x: Expr, y: Expr, z: Expr) -> Expr:
    if x.sort().sbits() > 3:
        return z3.fpFMA(_nearest(), x, y, z)
    # Z3 computes the fused form of constants wrongly in the smallest format (2·-1 - 2.5 = -16), so there
    # product and sum are formed in a format that holds both exactly, and rounded once.
    own, exact = x.sort(), z3.FPSort(8, 72)
    x, y, z = (z3.fpToFP(_nearest(), v, exact) for v in (x, y, z))
    total = z3.fpAdd(_nearest(), z3.fpMul(_nearest(), x, y), z)
    return z3.fpToFP(_nearest(), total, own)


FLOATS: Table = {
    Ops.NEG: lambda x: z3.fpNeg(x),
    Ops.ABS: lambda x: z3.fpAbs(x),
    Ops.RECIP: lambda x: z3.fpDiv(_nearest(), z3.FPVal(1.0, x.sort()), x),
    Ops.SQRT: lambda x: z3.fpSqrt(_nearest(), x),
    Ops.TRUNC: lambda x: z3.fpRoundToIntegral(z3.RTZ(), x),
    Ops.FLOOR: lambda x: z3.fpRoundToIntegral(z3.RTN(), x),
    Ops.CEIL: lambda x: z3.fpRoundToIntegral(z3.RTP(), x),
    Ops.RINT: lambda x: z3.fpRoundToIntegral(z3.RNE(), x),
    Ops.ADD: lambda x, y: z3.fpAdd(_nearest(), x, y),
    Ops.MUL: lambda x, y: z3.fpMul(_nearest(), x, y),
    Ops.FDIV: lambda x, y: z3.fpDiv(_nearest(), x, y),
    Ops.MAX: _fmax,
    Ops.MIN: _fmin,
    Ops.CMPLT: lambda x, y: z3.fpLT(x, y),
    Ops.MULACC: _fused,
}

# --- floats as reals: rounding, NaN and infinities do not exist, and what has no value is assumed not to
# happen


def _quotient(t: Any, x: Expr, y: Expr) -> Expr:
    t.defined.append(y != 0)
    return x / y


def _root(t: Any, x: Expr) -> Expr:
    root = z3.Real(f"root!{len(t.assumed)}_{len(t.defined)}")
    t.defined.append(x >= 0)
    t.assumed += [root >= 0, root * root == x]
    return root


REALS: Table = {
    Ops.NEG: lambda t, x: -x,
    Ops.ABS: lambda t, x: z3.If(x < 0, -x, x),
    Ops.RECIP: lambda t, x: _quotient(t, z3.RealVal(1), x),
    Ops.SQRT: _root,
    Ops.FLOOR: lambda t, x: z3.ToReal(z3.ToInt(x)),
    Ops.CEIL: lambda t, x: -z3.ToReal(z3.ToInt(-x)),
    Ops.ADD: lambda t, x, y: x + y,
    Ops.SUB: lambda t, x, y: x - y,
    Ops.MUL: lambda t, x, y: x * y,
    Ops.FDIV: _quotient,
    Ops.MAX: lambda t, x, y: z3.If(x < y, y, x),
    Ops.MIN: lambda t, x, y: z3.If(y < x, y, x),
    Ops.CMPLT: lambda t, x, y: x < y,
    Ops.MULACC: lambda t, x, y, z: x * y + z,
}
