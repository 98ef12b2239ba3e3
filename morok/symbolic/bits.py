"""Shifts and bitwise ops on integers. On indices shifts are products and quotients, which the other families
understand."""

from __future__ import annotations

from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, when, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    And,
    Bounded,
    BoundedConst,
    Index,
    IndexConst,
    Int,
    IntConst,
    Or,
    Shl,
    Shr,
    Xor,
)


def shift_to_product(node: UOp, i: UOp, c: UOp) -> UOp:
    """i << c as i * 2^c."""
    return make(Ops.MUL, node.dtype, (i, const(node.dtype, 1 << c.arg)))


def shift_to_quotient(node: UOp, i: UOp, c: UOp) -> UOp:
    """i >> c as i // 2^c."""
    return make(Ops.FLOORDIV, node.dtype, (i, const(node.dtype, 1 << c.arg)))


def mask_to_remainder(node: UOp, i: UOp, c: UOp) -> UOp | None:
    """i & (2^k - 1) as i % 2^k."""
    if c.arg & (c.arg + 1):
        return None
    return make(Ops.FLOORMOD, node.dtype, (i, const(node.dtype, c.arg + 1)))


def within_width(node: UOp, k: UOp, m: UOp) -> bool:
    """Both shifts together leave at least one bit."""
    return bool(k.arg + m.arg < node.dtype.scalar.bits)


_POWER = why("the power of two is computed from the shift")


@rules("symbolic.bits")
def bit_rules(
    x: Int,
    y: Int,
    i: Index,
    c: IndexConst,
    a: IntConst,
    b: IntConst,
    w: Bounded,
    k: BoundedConst,
    m: BoundedConst,
) -> Rules:
    """Bits of integers."""
    # x & 0 = 0
    yield "and-zero", And[x, 0] >> 0
    # x & -1 = x; -1 has every bit set
    yield "and-ones", And[x, -1] >> x
    # x | 0 = x
    yield "or-zero", Or[x, 0] >> x
    # x | -1 = -1
    yield "or-ones", Or[x, -1] >> -1
    # x ^ 0 = x
    yield "xor-zero", Xor[x, 0] >> x
    # x ^ -1 = ~x
    yield "xor-ones", Xor[x, -1] >> ~x
    # x ^ x = 0
    yield "xor-self", Xor(x, x) >> 0
    # (y ^ x) ^ x = y
    yield "xor-twice", Xor(Xor[y, x], x) >> y
    # x & ~x = 0
    yield "and-complement", And[x, ~x] >> 0
    # x | ~x = -1
    yield "or-complement", Or[x, ~x] >> -1
    # x ^ ~x = -1
    yield "xor-complement", Xor[x, ~x] >> -1
    # (x & a) & b = x & (a & b)
    yield "and-constants", And(And(x, a), b) >> x & (a & b)
    # (x | a) | b = x | (a | b)
    yield "or-constants", Or(Or(x, a), b) >> x | (a | b)
    # (x ^ a) ^ b = x ^ (a ^ b)
    yield "xor-constants", Xor(Xor(x, a), b) >> x ^ (a ^ b)
    # x << 0 = x, x >> 0 = x
    yield "shl-zero", Shl(x, 0) >> x
    yield "shr-zero", Shr(x, 0) >> x
    # 0 << x = 0, 0 >> x = 0
    yield "zero-shl", Shl(0, x) >> 0
    yield "zero-shr", Shr(0, x) >> 0
    # (w << k) << m = w << (k + m) while something is left
    yield "shl-shl", Shl(Shl(w, k), m) >> Shl(w, k + m), when(k >= 0, m >= 0, within_width)
    # (w >> k) >> m = w >> (k + m)
    yield "shr-shr", Shr(Shr(w, k), m) >> Shr(w, k + m), when(k >= 0, m >= 0, within_width)
    # i << c = i * 2^c
    yield "shl-index", Shl(i, c) >> shift_to_product, when(c >= 0, c < 63), _POWER
    # i >> c = i // 2^c
    yield "shr-index", Shr(i, c) >> shift_to_quotient, when(c >= 0, c < 63), _POWER
    # i & (2^k - 1) = i % 2^k
    yield "mask-index", And(i, c) >> mask_to_remainder, when(c > 0), _POWER
