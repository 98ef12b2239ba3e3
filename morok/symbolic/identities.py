"""Identity and absorbing elements, an operand with itself, signs. On floats only what keeps NaN, infinities
and rounding."""

from __future__ import annotations

from morok.rewrite.rules import UNSAFE, Rules, grows
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Abs,
    Add,
    Bool,
    Cast,
    Float,
    Int,
    Mul,
    Neg,
    Number,
    Pow,
    Recip,
    Signed,
    Sqrt,
    Where,
    minus_zero,
    one,
    zero,
)


@rules("symbolic.identities")
def identity_rules(x: Number, i: Int, s: Signed, f: Float) -> Rules:
    """x+0, x*1 and relatives."""
    # i + 0 = i
    yield "add-zero", Add[i, zero] >> i
    # f + (-0.0) = f, even for f = -0.0
    yield "add-minus-zero", Add[f, minus_zero] >> f
    # f + 0.0 is left alone: -0.0 + 0.0 = 0.0, and 1/x tells them apart
    # x - 0 = x
    yield "sub-zero", x - 0 >> x
    # 0 - s = -s
    yield "zero-sub", 0 - s >> s * -1
    # x * 1 = x
    yield "mul-one", Mul[x, one] >> x
    # f * -1.0 = -f
    yield "mul-minus-one-float", Mul[f, -1.0] >> -f
    # f / 1 = f
    yield "fdiv-one", f / 1.0 >> f
    # f / -1 = -f
    yield "fdiv-minus-one", f / -1.0 >> -f
    # x ** 1 = x
    yield "pow-one", Pow(x, one) >> x
    # f ** 2 = f * f
    yield "pow-two", Pow(f, 2.0) >> f * f, grows("no rule makes a power")
    # i * 0 = 0; on floats NaN and infinities forbid it
    yield "mul-zero", Mul[i, zero] >> 0
    # i - i = 0
    yield "sub-self", i - i >> 0
    # i ** 0 = 1
    yield "pow-zero", Pow(x, zero) >> 1


@rules("symbolic.signs")
def sign_rules(x: Number, i: Signed, j: Signed, f: Float, g: Float) -> Rules:
    """Negation moves out and cancels."""
    # --f = f
    yield "neg-neg", Neg(Neg(f)) >> f
    # -i = i * -1, the one form of a sign that sums know; of unsigned numbers the bounds would be lost
    yield "neg-int", -i >> i * -1, grows("products with -1 are the normal form of a sign; no rule leads back")
    # i - j = i + j * -1
    yield (
        "sub-int",
        i - j >> i + j * -1,
        grows("sums are the normal form; no rule makes a difference of integers"),
    )
    # f + -g = f - g
    yield "add-neg", Add[f, -g] >> f - g, grows("as expensive as before; no rule leads back")
    # f - -g = f + g
    yield "sub-neg", f - (-g) >> f + g
    # -f * -g = f * g
    yield "mul-neg-neg", Mul(-f, -g) >> f * g
    # -f / -g = f / g
    yield "fdiv-neg-neg", (-f) / (-g) >> f / g
    # |-f| = |f|
    yield "abs-neg", Abs(-f) >> Abs(f)
    # |i * -1| = |i|
    yield "abs-minus-one", Abs(Mul[i, -1]) >> Abs(i)
    # ||x|| = |x|
    yield "abs-abs", Abs(Abs(x)) >> Abs(x)
    # |f * f| = f * f
    yield "abs-square", Abs(f * f) >> f * f
    # 1/(-f) = -(1/f)
    yield "recip-neg", Recip(-f) >> -Recip(f)


@rules("symbolic.unsafe")
def unsafe_rules(f: Float, g: Float, p: Bool) -> Rules:
    """What other compilers do silently. Never on unless asked for: NaN and infinities are lost."""
    # f * 0 = 0, wrong for NaN and infinities
    yield "mul-zero", Mul[f, 0.0] >> 0.0, UNSAFE
    # f - f = 0, wrong for NaN and infinities
    yield "sub-self", f - f >> 0.0, UNSAFE
    # f / f = 1, wrong for NaN, infinities and zero
    yield "fdiv-self", f / f >> 1.0, UNSAFE
    # (f + g) - g = f, wrong for infinite g
    yield "add-sub", (f + g) - g >> f, UNSAFE
    # (f * g) / g = f
    yield "mul-fdiv", Mul[f, g] / g >> f, UNSAFE
    # 1/(1/f) = f
    yield "recip-recip", Recip(Recip(f)) >> f, UNSAFE
    # sqrt(f) * sqrt(f) = f
    yield "sqrt-square", Mul(Sqrt(f), Sqrt(f)) >> f, UNSAFE
    # f times a truth is f or 0, wrong for NaN and infinities; a product with a one-hot row is then a gather
    yield "mul-truth", Mul[Cast(p), f] >> Where(p, f, 0.0), UNSAFE, grows("no rule makes a truth a number")
    yield (
        "mul-choice",
        Mul[Where(p, f, 0.0), g] >> Where(p, f * g, 0.0),
        UNSAFE,
        grows("choices move out of products, and no rule moves them in"),
    )
