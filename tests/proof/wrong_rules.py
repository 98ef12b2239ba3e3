"""Rules that are wrong, each in its own way. The prover must refute them all, with values that show it.

The first part of a name is the kind of mistake. Several have been shipped by somebody.
"""

from morok.dtype import int8, int32
from morok.ir.bounds import vmax as upper_bound
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.rewrite.rules import REASSOCIATING, UNSAFE, ZERO_SIGN, Rule, Rules, collect, when, why
from morok.rewrite.terms import (
    Abs,
    Add,
    And,
    Bool,
    Bounded,
    BoundedConst,
    Cast,
    Cdiv,
    Cmplt,
    Float,
    FloatConst,
    Index,
    IndexConst,
    Int,
    IntConst,
    Max,
    Min,
    Mul,
    Or,
    Recip,
    Shl,
    Shr,
    Sqrt,
    Sub,
    Trunc,
    Var,
    Where,
    dtype,
    false,
    true,
    vmax,
    vmin,
    zero,
)


def off_by_one(x: Int, y: Index, c: IntConst, a: IndexConst, b: IndexConst) -> Rules:
    yield "off-by-one.mod-small", x % c >> x, when(vmin(x) >= 0, vmax(x) <= c)
    yield "off-by-one.div-small", x // c >> 0, when(vmin(x) >= 0, vmax(x) <= c)
    yield "off-by-one.lt-constant", Cmplt(Add(y, a), b) >> (y < b + a * -1 + 1)
    yield "off-by-one.not-lt", ~(y < b) >> (b < y)
    yield "off-by-one.lt-factor", Cmplt(Mul(y, a), b) >> (y < b // a), when(a > 0)
    yield "off-by-one.lt-quotient", Cmplt(b, y // a) >> (b * a + -1 < y), when(a > 0)
    small = when(a > 0, b > 0, (b % a).eq(0), vmin(x) >= 0, vmax(x) <= a)
    yield "off-by-one.sum-factor", Add[Mul(y, a), x] // b >> y // (b // a), small


def wrong_sign(i: Int, j: Int, x: Index, y: Index, a: IndexConst, c: IndexConst) -> Rules:
    yield "sign.zero-sub", 0 - i >> i
    yield "sign.sub", Sub(i, j) >> j - i
    yield "sign.div-negative", x // c >> (x * -1) // c, when(c < 0)
    yield "sign.mod-negative", x % c >> x % (c * -1), when(c < 0)
    yield "sign.remainder", Add[Mul(x // c, a), x] >> x % c, when(c.ne(0), a.eq(c))


def division_by_negative(x: Index, y: Index, a: IndexConst, b: IndexConst, i: Int, c: IntConst) -> Rules:
    yield "negative.lt-factors", Cmplt(Mul(x, a), Mul(y, a)) >> (x < y), when(a.ne(0))
    yield "negative.div-div", (x // a) // b >> x // (a * b), when(b.ne(0))
    yield "negative.mod-below", Cmplt(i % c, c) >> true
    yield "negative.max-scale", Max(Mul(x, a), Mul(y, a)) >> x.maximum(y) * a
    yield "negative.div-rounds", i // c >> Cdiv(i, c), when(c > 0)


def missing_condition(x: Int, i: Index, a: IndexConst, b: IndexConst, c: IntConst, p: Bool, y: Int) -> Rules:
    yield "condition.div-self", x // x >> 1
    yield "condition.recombine", Add[Mul(x // c, c), x % c] >> x
    yield "condition.mod-mod", (i % a) % b >> i % b, when(b > 0, (a % b).eq(0))
    yield "condition.div-small", x // c >> 0, when(vmax(x) < c, c > 0)
    yield "condition.where", Where(p, x, y) >> x
    yield "condition.bounds", Max[x, y] >> x, when(vmax(x) >= vmax(y))
    yield "condition.not-a-number", (i < 0) >> true, when(~(vmax(i) // 2 >= 0))
    yield "condition.fails", Mul(i, a) // b >> i * (a // b), when((a % b).eq(0))


def overflow(x: Bounded, y: Bounded, a: BoundedConst, b: BoundedConst, i: Int) -> Rules:
    yield "overflow.lt-constant", Cmplt(Add(x, a), b) >> (x < b + a * -1)
    yield "overflow.mul-div", Mul(x, a) // a >> x, when(a.ne(0))
    yield "overflow.lt-cancel", Cmplt(Add[x, y], x) >> (y < 0)
    yield "overflow.abs", Cmplt(Abs(i), 0) >> false
    yield "overflow.max-shift", Max(Add(x, a), Add(y, a)) >> x.maximum(y) + a
    yield "overflow.div-div", (x // a) // b >> x // (a * b), when(a > 0, b > 0)
    yield "overflow.average", (x + y) // 2 >> x // 2 + y // 2 + (x % 2 + y % 2) // 2


def unsigned(x: Bounded, y: Bounded) -> Rules:
    yield "unsigned.lt-as-difference", (x < y) >> (x - y < 0)
    yield "unsigned.neg-lt", Cmplt(-x, 0) >> (zero < x)


def nan(f: Float, g: Float) -> Rules:
    yield "nan.sub-self", f - f >> 0.0
    yield "nan.eq-self", f.eq(f) >> true
    yield "nan.not-lt", ~(f < g) >> (g < f) | f.eq(g)
    yield "nan.min", Where(f < g, f, g) >> f.minimum(g)


def infinities(f: Float, g: Float) -> Rules:
    yield "infinity.mul-zero", Mul[f, 0.0] >> 0.0, ZERO_SIGN
    yield "infinity.fdiv-self", f / f >> 1.0, ZERO_SIGN
    yield "infinity.large-factor", (f * 65536.0) * 0.5 >> f * 32768.0, ZERO_SIGN
    yield "infinity.add-sub", (f + g) - g >> f, ZERO_SIGN


def signed_zero(f: Float, g: Float) -> Rules:
    yield "zero.add-zero", Add[f, zero] >> f
    yield "zero.zero-sub", 0.0 - f >> -f
    yield "zero.choose", Where(f.eq(0.0), 0.0, f) >> f
    yield "zero.abs", Where(f < 0.0, -f, f) >> Abs(f)
    yield "zero.neg-sub", -(f - g) >> g - f


def rounding(f: Float, g: Float, h: Float, c: FloatConst) -> Rules:
    yield "rounding.add-lean", Add(Add(f, g), h) >> f + (g + h), ZERO_SIGN
    yield "rounding.fdiv", f / c >> f * Recip(c), ZERO_SIGN
    yield "rounding.recip-recip", Recip(Recip(f)) >> f, ZERO_SIGN
    yield "rounding.sqrt-square", Sqrt(f * f) >> Abs(f), ZERO_SIGN


def over_the_reals(f: Float, g: Float, a: FloatConst, b: FloatConst) -> Rules:
    yield "reals.constants", Sub(Add(f, a), b) >> f + (a + b), REASSOCIATING
    yield "reals.sqrt-sum", Sqrt(f * f + g * g) >> f + g, UNSAFE
    yield "reals.fdiv", f / g >> g / f, UNSAFE


def shifts(x: Bounded, k: BoundedConst, m: BoundedConst, w: Int, j: IntConst) -> Rules:
    yield "shift.shl-shl", Shl(Shl(x, k), m) >> Shl(x, k + m), when(k >= 0, m >= 0)
    yield "shift.there-and-back", Shr(Shl(x, k), k) >> x, when(k >= 0, k < 8)
    yield "shift.far-away", Shl(x, 40) >> 0
    yield "shift.sign-bit", Shr(x, 7) >> Where(x < 0, -1, 0)
    yield "shift.all-bits", And[x, 255] >> x
    yield "shift.as-cdiv", Shr(w, j) >> Cdiv(w, Shl(1, j)), when(j >= 0, j < 8)


def casts(n: Var, m: Var, x: Var, f: Float, i: Int, j: Int) -> Rules:
    yield "cast.middle", n @ Cast(m @ Cast(x)) >> Cast(x, dtype=dtype(n))
    yield "cast.trunc", n @ Cast(Cast(f, dtype=int32)) >> Cast(Trunc(f), dtype=dtype(n)), ZERO_SIGN
    yield "cast.sum", n @ Cast(Add(i, j)) >> Cast(i, dtype=dtype(n)) + Cast(j, dtype=dtype(n))
    yield "cast.narrow", n @ Cast(Cast(i, dtype=int8)) >> Cast(i, dtype=dtype(n))


def booleans(p: Bool, q: Bool, x: Int, y: Int) -> Rules:
    yield "boolean.de-morgan", ~(p & q) >> ~p & ~q
    yield "boolean.absorb", Or[p, And[p, q]] >> q
    yield "boolean.min-max", Min(Max(x, y), y) >> x
    yield "boolean.xor", p.ne(q) >> p | q


def mask(node: UOp, x: UOp, c: UOp) -> UOp | None:
    """x % c as x & (c - 1); right for powers of two only."""
    return alu(Ops.AND, x, const(node.dtype, c.arg - 1)) if c.arg % 2 == 0 else None


def truncating_fold(node: UOp, a: UOp, b: UOp) -> UOp:
    """a // b rounded toward zero."""
    return const(node.dtype, int(a.arg / b.arg) if b.arg else 0)


def lose_the_constant(node: UOp, x: UOp, y: UOp, c: UOp) -> UOp | None:
    """(x + y) // c = x // c, if y is a constant."""
    return alu(Ops.FLOORDIV, x, c) if y.op is Ops.CONST else None


def bound_of_the_wrong_side(node: UOp, x: UOp, c: UOp) -> UOp | None:
    """x < c is true if … the bound of c is positive."""
    return const(node.dtype, True) if upper_bound(c) > 0 else None


def multiply_by_inverse(node: UOp, w: UOp, k: UOp) -> UOp | None:
    """w // k by a multiplication with a constant that is one bit too narrow."""
    if not 1 < k.arg < 16:
        return None
    return alu(Ops.MULHI, w, const(node.dtype, 255 // k.arg + 1))


def raises(node: UOp, x: UOp, c: UOp) -> UOp:
    """Divides by whatever comes."""
    return const(node.dtype, 7 // c.arg)


def nothing_of_64_bits(node: UOp, w: UOp) -> UOp:
    """w & w = w, except where a word is as long as a machine's."""
    return const(node.dtype, 0) if node.dtype.scalar.bits == 64 else w


def first_lane(node: UOp, w: UOp, k: UOp) -> UOp | None:
    """w * 1 = w, and in a vector the first lane for all of them."""
    if k.arg != 1:
        return None
    lanes = node.dtype.lanes
    return w if lanes == 1 else make(Ops.GEP, node.dtype, (w,), (0,) * lanes)


def not_zero_or_so(c: UOp) -> bool:
    return bool(c.arg > 0 or c.arg == -2)


_CODE = why("to see whether wrong code is found")


def code(x: Index, y: Index, c: IndexConst, a: IntConst, b: IntConst, w: Bounded, k: BoundedConst) -> Rules:
    yield "code.mask", x % c >> mask, when(c > 0), _CODE
    yield "code.truncating-fold", a // b >> truncating_fold, _CODE
    yield "code.lost-constant", Add(x, y) // c >> lose_the_constant, when(c > 0), _CODE
    yield "code.wrong-bound", Cmplt(x, c) >> bound_of_the_wrong_side, _CODE
    yield "code.inverse", w // k >> multiply_by_inverse, when(vmin(w) >= 0), _CODE
    yield "code.raises", x // c >> raises, _CODE
    yield "code.width", And(w, w) >> nothing_of_64_bits, _CODE
    yield "code.lanes", Mul(w, k) >> first_lane, _CODE
    yield "code.condition", (x // y) // c >> x // (y * c), when(not_zero_or_so)


GROUPS = (
    off_by_one, wrong_sign, division_by_negative, missing_condition, overflow, unsigned, nan, infinities,
    signed_zero, rounding, over_the_reals, shifts, casts, booleans, code,
)  # fmt: skip
WRONG: list[Rule] = [rule for group in GROUPS for rule in collect("wrong", group)]
