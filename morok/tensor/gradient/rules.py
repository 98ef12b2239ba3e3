"""The rules of differentiation: for every op, the gradient of its sources from the gradient of its result.

    yield "mul", x * y, (g * y, g * x)

reads: where the result `x * y` has the gradient g, x gets g·y and y gets g·x. Both sides are terms of the
rule language, so a rule is data: only the parts that somebody asks for are built, and every rule is tested
against finite differences of its own left side. None means that the source has no gradient.

Functions that consist of several ops but are differentiated as one (their formulas guard against overflow in
ways that the chain rule does not survive) carry their name in a CALL: `CALL(result, x)` of log1p.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterator
from typing import Any, final

from morok.dtype import DType, float32
from morok.dtype.records import record
from morok.ir.build import approximate_op, cast
from morok.ir.call import call_name
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import Op, Ops
from morok.rewrite.engine import substitute
from morok.rewrite.match import build
from morok.rewrite.terms import (
    HEADS,
    Abs,
    Apply,
    As,
    Bool,
    Ceil,
    Cos,
    Exp,
    Exp2,
    Fdiv,
    Float,
    Floor,
    Lit,
    Log,
    Log2,
    Max,
    Min,
    Mulacc,
    Pow,
    Recip,
    Rint,
    Sin,
    Sqrt,
    Sub,
    Term,
    Trunc,
    Var,
    Where,
    lift,
    show,
)  # fmt: skip

Part = Term | None
Rules = Iterator[tuple[str, Term, tuple[Any, ...]]]


@final
@record(frozen=True)
class Pullback:
    """One rule. `parts` are the gradients of the op's sources, in their order."""

    name: str
    before: Term
    parts: tuple[Part, ...]

    @property
    def root(self) -> Apply:
        term = self.before.term if isinstance(self.before, As) else self.before
        assert isinstance(term, Apply)
        return term

    @property
    def op(self) -> Op:
        return self.root.op

    @property
    def function(self) -> str | None:
        """The name of the function, for one that is made of several ops."""
        return self.root.arg[0] if self.op is Ops.CALL else None

    def pull(self, node: UOp, gradient: UOp, source: int) -> UOp | None:
        """The gradient of one source."""
        part = self.parts[source]
        if part is None:
            return None
        found: dict[str, Any] = {"g": gradient}
        if isinstance(self.before, As):
            found[self.before.var.name] = node
        for term, value in zip(self.root.src or (), node.src, strict=True):
            if isinstance(term, Var):
                found[term.name] = value
        if self.function is None or node.dtype.bits >= float32.bits:
            return build(part, found, node.dtype)
        # several steps are rounded once, and need not be more exact than that
        wide = build(part, {name: cast(value, float32) for name, value in found.items()}, float32)
        return cast(_approximate_sigmoids(wide, node.dtype), node.dtype)

    def formula(self) -> str:
        """The rule as a line of mathematics."""
        names = [show(s) for s in self.root.src or ()]
        parts = [f"d{n} = {show(p)}" for n, p in zip(names, self.parts, strict=True) if p is not None]
        return f"{show(self.before)}: {', '.join(parts) or 'no gradient'}"


def _approximate_sigmoids(root: UOp, narrow: DType) -> UOp:
    """A formula whose sigmoids are as exact as a narrower type needs them."""
    calls = [
        n for n in toposort(root) if n.op is Ops.CALL and call_name(n) == "sigmoid" and n.dtype is float32
    ]
    mapping = {}
    for node in calls:
        x = node.src[1]
        # where a type has the exponents of float32, all is 2^-32 of itself: it is not 0 where powers overflow
        part = 32.0 if narrow.exponent_bits == float32.exponent_bits else 0.0
        one = const(float32, 2.0**-part)
        inner = alu(Ops.SUB, alu(Ops.MUL, x, const(float32, -math.log2(math.e))), const(float32, part))
        share = approximate_op(Ops.RECIP, alu(Ops.ADD, approximate_op(Ops.EXP2, inner), one))
        mapping[node] = node.replace((alu(Ops.MUL, share, one), *node.src[1:]))
    return substitute(root, mapping) if mapping else root


def pullbacks(function: Callable[..., Rules]) -> dict[str, Pullback]:
    """The rules that a generator yields, by name; its parameters are the variables."""
    hints = typing.get_type_hints(function)
    given = {name: hints[name](name) for name in inspect.signature(function).parameters}
    rules = {}
    for name, before, parts in function(**given):
        assert name not in rules, name
        rules[name] = Pullback(name, before, tuple(None if p is None else lift(p) for p in parts))
    return rules


def _sigmoid(x: Any) -> Term:
    """As the activation function builds it, name included, so that it can be differentiated again."""
    e = Exp(-Abs(x))
    return HEADS["Call"](Fdiv(Where(x < 0.0, e, 1.0), e + 1.0), x, arg=("sigmoid",))


@pullbacks
def CORNERS(g: Float, x: Float, y: Float, q: Float, r: Float) -> Rules:
    """Named functions with corners, where the formula that computes them has another slope, or none."""
    # a bound leaves what lies at it alone (`clamp`); a flat piece includes its end (`hardtanh`)
    for name, below, kept in (("at_least", x < y, g), ("at_most", y < x, g)):
        bounded = r @ HEADS["Call"](q, x, y, arg=(name,))
        yield name, bounded, (None, Where(below, 0.0, kept), Where(below, kept, 0.0))
    for name, inside in (("above", y < x), ("below", x < y)):
        flat_end = r @ HEADS["Call"](q, x, y, arg=(name,))
        yield name, flat_end, (None, Where(inside, g, 0.0), Where(inside, 0.0, g))
    # of a sum of squares: at 0, where every direction leads up, the slope is 0
    yield "root", r @ HEADS["Call"](q, x, arg=("root",)), (None, Where(r == 0.0, 0.0, g * 0.5 / r))
    # where logarithms are cut off the slope goes on; probabilities of 0 and 1 have a large one
    entropy = r @ HEADS["Call"](q, x, y, arg=("binary_cross_entropy",))
    no, yes = Max(Log(Lit(1.0) - x), Lit(-100.0)), Max(Log(x), Lit(-100.0))
    slope = g * Sub(x, y) / Max((Lit(1.0) - x) * x, Lit(1e-12))
    yield "binary_cross_entropy", entropy, (None, slope, g * Sub(no, yes))


@pullbacks
def RULES(g: Float, x: Float, y: Float, z: Float, q: Float, r: Float, c: Bool) -> Rules:
    """One rule per op. `r` is the result; `q` is the formula that a named function was computed by."""
    # sums and products
    yield "add", x + y, (g, g)
    yield "sub", Sub(x, y), (g, -g)
    yield "mul", x * y, (g * y, g * x)
    yield "fdiv", r @ Fdiv(x, y), (g / y, -(g * r) / y)
    yield "mulacc", Mulacc(x, y, z), (g * y, g * x, g)
    yield "neg", -x, (-g,)
    yield "recip", r @ Recip(x), (-g * r * r,)
    # |x| has no slope at 0; g·x is 0 there and keeps NaN
    yield "abs", Abs(x), (Where(x < 0.0, -g, Where(Lit(0.0) < x, g, g * x)),)
    # powers
    yield "sqrt", r @ Sqrt(x), (g * 0.5 / r,)
    yield "rsqrt", r @ HEADS["Rsqrt"](x), (g * -0.5 * r * r * r,)
    # x⁰ is constant, also at x = 0; 0ʸ is constant for y ≥ 0
    power = Where(y == 0.0, 0.0, g * y * Pow(x, y - 1.0))
    yield "pow", r @ Pow(x, y), (power, Where((x == 0.0) & (y >= 0.0), 0.0, g * r * Log(x)))
    # exponentials and logarithms
    yield "exp", r @ Exp(x), (g * r,)
    yield "exp2", r @ Exp2(x), (g * r * math.log(2.0),)
    yield "log", Log(x), (g / x,)
    yield "log2", Log2(x), (g / x * (1.0 / math.log(2.0)),)
    # angles
    yield "sin", Sin(x), (g * Cos(x),)
    yield "cos", Cos(x), (-g * Sin(x),)
    yield "tan", r @ HEADS["Tan"](x), (g * (r * r + 1.0),)
    square = x * x + y * y
    yield "atan2", HEADS["Atan2"](y, x), (g * x / square, -g * y / square)
    yield "tanh", r @ HEADS["Tanh"](x), (g * (Lit(1.0) - r * r),)
    yield "erf", HEADS["Erf"](x), (g * (2.0 / math.sqrt(math.pi)) * Exp(-(x * x)),)
    # the larger gets it; equals share it evenly
    more, less = Where(y < x, g, 0.0), Where(x < y, g, 0.0)
    yield "max", Max(x, y), (Where(x == y, g * 0.5, more), Where(x == y, g * 0.5, less))
    yield "min", Min(x, y), (Where(x == y, g * 0.5, less), Where(x == y, g * 0.5, more))
    # x - q·y, where the whole number q is flat
    remainder = r @ HEADS["Call"](q, x, y, arg=("remainder",))
    yield "fmod", r @ HEADS["Fmod"](x, y), (g, -g * Rint((x - r) / y))
    yield "remainder", remainder, (None, g, -g * Rint((x - r) / y))
    # each gets its share of the sum; x - y of two infinities that are equal is no number
    ahead = Where(x == y, 0.0, Sub(x, y))
    for name, base in (("logaddexp", 1.0), ("logaddexp2", math.log(2.0))):
        shares = tuple(g * _sigmoid(d * base) for d in (ahead, -ahead))
        yield name, r @ HEADS["Call"](q, x, y, arg=(name,)), (None, *shares)
    yield "where", Where(c, x, y), (None, Where(c, g, 0.0), Where(c, 0.0, g))
    # steps are flat
    for head in (Trunc, Floor, Ceil, Rint):
        yield head.ops[0].name.lower(), head(x), (None,)

    # functions of several ops, by name
    def named(name: str) -> Term:
        return r @ HEADS["Call"](q, x, arg=(name,))

    yield "log1p", named("log1p"), (None, g / (x + 1.0))
    yield "expm1", named("expm1"), (None, g * (r + 1.0))
    # by the result: it is at hand where the input would have to be computed again
    yield "relu", named("relu"), (None, Where(Lit(0.0) < r, g, 0.0))
    yield "sigmoid", named("sigmoid"), (None, g * r * (Lit(1.0) - r))
    s = _sigmoid(x)
    yield "silu", named("silu"), (None, g * (s + r * (Lit(1.0) - s)))
    # x·Φ(x), with the density of the normal distribution
    below = (HEADS["Erf"](x * math.sqrt(0.5)) + 1.0) * 0.5
    density = Exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    yield "gelu", named("gelu"), (None, g * (below + x * density))
    steep = math.sqrt(8.0 / math.pi)
    t = _sigmoid((x + x * x * x * 0.044715) * steep)
    slope = (x * x * (3.0 * 0.044715) + 1.0) * steep
    yield "gelu_tanh", named("gelu_tanh"), (None, g * (t + r * (Lit(1.0) - t) * slope))
    t = _sigmoid(x * 1.702)
    yield "quick_gelu", named("quick_gelu"), (None, g * (t + r * (Lit(1.0) - t) * 1.702))
    yield "softplus", named("softplus"), (None, g * s)
    root = Exp(Abs(x) * 0.5)  # e^x overflows before half of it does
    yield "sinh", named("sinh"), (None, g * (root * 0.5 * root + Recip(root * root) * 0.5))
    yield "cosh", named("cosh"), (None, g * r * HEADS["Tanh"](x))
    both = (Lit(1.0) - x) * (x + 1.0)
    yield "asin", named("asin"), (None, g * HEADS["Rsqrt"](both))
    yield "acos", named("acos"), (None, -g * HEADS["Rsqrt"](both))
    yield "atanh", named("atanh"), (None, g / both)
    yield "asinh", named("asinh"), (None, g * HEADS["Rsqrt"](x * x + 1.0))
    yield "acosh", named("acosh"), (None, g * HEADS["Rsqrt"]((x - 1.0) * (x + 1.0)))


RULES.update(CORNERS)
BY_OP: dict[Op, Pullback] = {rule.op: rule for rule in RULES.values() if rule.function is None}
BY_FUNCTION: dict[str, Pullback] = {rule.function: rule for rule in RULES.values() if rule.function}

# Results that are no floats, or bits that happen to be read as one: what depends on them has no slope.
FLAT: frozenset[Op] = frozenset((Ops.BITCAST, Ops.CONST, Ops.IOTA, Ops.DETACH, Ops.BUFFER))
