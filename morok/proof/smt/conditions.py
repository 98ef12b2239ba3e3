"""Conditions of rules in Z3: ordinary mathematics, in which nothing wraps.

Integers of a width are computed in bit-vectors that grow with every op, so that no result is ever cut off.
Bounds of indices may be infinite; they follow the arithmetic of Python, where ∞ - ∞ and ∞ // c are NaN and
compare as false. Floats are computed in float64, as Python does. A division by zero would raise when the
rule is tried, so each divisor is an obligation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from morok.dtype import DType
from morok.errors import ProofError
from morok.ir.ops import Op, Ops
from morok.proof.smt.solver import Expr, z3
from morok.proof.smt.translate import Translator
from morok.rewrite.terms import Apply, Fact, Lit, Term, Var


@final
@dataclass(frozen=True, slots=True)
class Wide:
    """A signed bit-vector, as wide as it has to be."""

    e: Expr


@final
@dataclass(frozen=True, slots=True)
class Whole:
    """An unbounded integer or a real, or an infinity, or NaN."""

    e: Expr
    below: Expr  # it is -∞
    above: Expr  # it is +∞
    nan: Expr

    @property
    def finite(self) -> Expr:
        return z3.And(z3.Not(self.below), z3.Not(self.above), z3.Not(self.nan))


@final
@dataclass(frozen=True, slots=True)
class Double:
    """A float64."""

    e: Expr


@final
@dataclass(frozen=True, slots=True)
class Truth:
    e: Expr


def not_less(term: Term) -> tuple[Term, Term] | None:
    """The two sides of `x >= y`, which is written as "not x < y" and evaluated as Python's `>=`."""
    if not isinstance(term, Apply) or term.op is not Ops.NOT or not term.src:
        return None
    inner = term.src[0]
    if not isinstance(inner, Apply) or inner.op is not Ops.CMPLT or not inner.src:
        return None
    return inner.src[0], inner.src[1]


Number = Wide | Whole | Double | Truth | int | float


def _no() -> Expr:
    return z3.BoolVal(False)


def whole(e: Expr, below: Expr | None = None, above: Expr | None = None) -> Whole:
    return Whole(e, _no() if below is None else below, _no() if above is None else above, _no())


def as_number(e: Expr, dtype: DType, t: Translator) -> Number:
    """A value of a type, for a condition."""
    if dtype.is_bool:
        return Truth(e)
    if dtype.is_index or (dtype.is_float and t.reals):
        return whole(e)
    if dtype.is_float:
        return Double(z3.fpToFP(z3.RNE(), e, z3.Float64()))
    return Wide(z3.ZeroExt(1, e) if dtype.is_unsigned else e)


@final
class Conditions:
    """Translates the conditions of one rule. `look` gives the number behind a variable or a fact."""

    def __init__(self, translator: Translator, look: Callable[[Term], Number]) -> None:
        self.translator = translator
        self.look = look
        self.obligations: list[Expr] = []  # each must hold whenever the conditions before it do
        self._guards: list[Expr] = []

    def truth(self, condition: Term) -> Expr:
        """The condition as a formula."""
        return self._truth(self._number(condition))

    def _truth(self, x: Number) -> Expr:
        if isinstance(x, Truth):
            return x.e
        return z3.Not(self._compare(Ops.CMPEQ, x, 0))  # Python: a number is true unless it is zero

    def _number(self, term: Term) -> Number:
        if isinstance(term, Lit):
            return Truth(z3.BoolVal(term.value)) if isinstance(term.value, bool) else term.value
        if isinstance(term, (Var, Fact)):
            return self.look(term)
        if not isinstance(term, Apply) or term.src is None:
            raise ProofError(f"{term!r} cannot stand in a condition")
        op = term.op
        at_least = not_less(term)
        if at_least is not None:
            low, high = (self._number(t) for t in at_least)
            return Truth(self._at_least(low, high))
        first = self._number(term.src[0])
        if op in (Ops.AND, Ops.OR):
            return self._connective(op, self._truth(first), term.src[1])
        if op is Ops.NOT:
            return Truth(z3.Not(self._truth(first)))
        others = [self._number(s) for s in term.src[1:]]
        if op.is_compare:
            return Truth(self._compare(op, first, others[0]))
        return self._arithmetic(op, first, *others)

    def _connective(self, op: Op, x: Expr, other: Term) -> Number:
        # the second part is only evaluated where the first does not decide
        self._guards.append(x if op is Ops.AND else z3.Not(x))
        y = self._truth(self._number(other))
        self._guards.pop()
        return Truth(z3.And(x, y) if op is Ops.AND else z3.Or(x, y))

    # --- comparisons

    def _compare(self, op: Op, x: Number, y: Number) -> Expr:
        if isinstance(x, Truth) and isinstance(y, Truth):
            less = z3.And(z3.Not(x.e), y.e)
            return {Ops.CMPLT: less, Ops.CMPEQ: x.e == y.e, Ops.CMPNE: x.e != y.e}[op]
        if op is Ops.CMPNE:
            return z3.Not(self._compare(Ops.CMPEQ, x, y))
        if _plain(x) and _plain(y):
            return z3.BoolVal(x < y if op is Ops.CMPLT else x == y)  # type: ignore[operator]
        return self._compare_alike(op, *self._alike(x, y))

    def _at_least(self, x: Number, y: Number) -> Expr:
        """x >= y as Python has it: false with a NaN, so not the same as not x < y."""
        if isinstance(x, Truth) and isinstance(y, Truth):
            return z3.Or(x.e, z3.Not(y.e))
        return z3.Or(self._compare(Ops.CMPLT, y, x), self._compare(Ops.CMPEQ, x, y))

    def _compare_alike(self, op: Op, x: Any, y: Any) -> Expr:
        if isinstance(x, Wide):
            a, b = _same_width(x, y)
            return a < b if op is Ops.CMPLT else a == b
        if isinstance(x, Double):
            return (z3.fpLT if op is Ops.CMPLT else z3.fpEQ)(x.e, y.e)
        both = z3.And(x.finite, y.finite)
        numbers = z3.And(z3.Not(x.nan), z3.Not(y.nan))
        if op is Ops.CMPEQ:
            ends = z3.Or(z3.And(x.below, y.below), z3.And(x.above, y.above))
            return z3.simplify(z3.And(numbers, z3.Or(ends, z3.And(both, x.e == y.e))))
        beyond = z3.Or(z3.And(x.below, z3.Not(y.below)), z3.And(y.above, z3.Not(x.above)))
        return z3.simplify(z3.And(numbers, z3.Or(beyond, z3.And(both, x.e < y.e))))

    # --- arithmetic

    def _arithmetic(self, op: Op, x: Number, *others: Number) -> Number:
        if op is Ops.NEG:
            return self._arithmetic(Ops.SUB, 0, x)
        if op is Ops.ABS:
            return self._choose(self._compare(Ops.CMPLT, x, 0), self._arithmetic(Ops.NEG, x), x)
        y = others[0]
        if op in (Ops.MAX, Ops.MIN):  # Python: the first wins unless the second is strictly beyond
            second = self._compare(Ops.CMPLT, x, y) if op is Ops.MAX else self._compare(Ops.CMPLT, y, x)
            return self._choose(second, y, x)
        a, b = self._alike(x, y)
        if isinstance(a, Wide):
            return self._bits(op, a, b)
        if isinstance(a, Double):
            function = {Ops.ADD: z3.fpAdd, Ops.SUB: z3.fpSub, Ops.MUL: z3.fpMul}.get(op)
            if function is None:
                raise ProofError(f"{op.name} of floats cannot stand in a condition")
            return Double(function(z3.RNE(), a.e, b.e))
        return self._extended(op, a, b)

    def _bits(self, op: Op, x: Any, y: Any) -> Number:
        if op is Ops.MUL:
            size = x.e.size() + y.e.size()
            return Wide(_widen(x.e, size) * _widen(y.e, size))
        a, b = _same_width(x, y, more=1)
        if op is Ops.ADD:
            return Wide(a + b)
        if op is Ops.SUB:
            return Wide(a - b)
        self._must_hold(b != 0)
        if op is Ops.FLOORMOD:
            return Wide(a % b)
        if op is Ops.FLOORDIV:
            quotient, remainder = a / b, z3.SRem(a, b)
            down = z3.And(remainder != 0, (remainder < 0) != (b < 0))
            return Wide(z3.If(down, quotient - 1, quotient))
        raise ProofError(f"{op.name} cannot stand in a condition")

    def _extended(self, op: Op, x: Any, y: Any) -> Number:
        nan = z3.Or(x.nan, y.nan)
        if op is Ops.SUB:
            return self._extended(Ops.ADD, x, Whole(-y.e, y.above, y.below, y.nan))
        if op is Ops.ADD:
            lost = z3.Or(nan, z3.And(x.below, y.above), z3.And(x.above, y.below))
            below = z3.And(z3.Not(lost), z3.Or(x.below, y.below))
            return _tidy(x.e + y.e, below, z3.And(z3.Not(lost), z3.Or(x.above, y.above)), lost)
        if op is Ops.MUL:
            infinite_x, infinite_y = z3.Or(x.below, x.above), z3.Or(y.below, y.above)
            zero_x, zero_y = z3.And(x.finite, x.e == 0), z3.And(y.finite, y.e == 0)
            lost = z3.Or(nan, z3.And(infinite_x, zero_y), z3.And(infinite_y, zero_x))
            infinite = z3.And(z3.Not(lost), z3.Or(infinite_x, infinite_y))
            negative = z3.Xor(_negative(x), _negative(y))
            return _tidy(x.e * y.e, z3.And(infinite, negative), z3.And(infinite, z3.Not(negative)), lost)
        self._must_hold(z3.Or(z3.Not(y.finite), y.e != 0))
        quotient, remainder = self.translator.divide(x.e, y.e)
        lost = z3.Or(nan, x.below, x.above)
        opposite = z3.And(x.e != 0, z3.Xor(x.e < 0, y.below))
        if op is Ops.FLOORDIV:
            return _tidy(z3.If(y.finite, quotient, z3.If(opposite, -1, 0)), _no(), _no(), lost)
        if op is Ops.FLOORMOD:
            beyond = z3.And(z3.Not(lost), z3.Not(y.finite), opposite)
            value = z3.If(y.finite, remainder, x.e)
            return _tidy(value, z3.And(beyond, y.below), z3.And(beyond, y.above), lost)
        raise ProofError(f"{op.name} cannot stand in a condition")

    def _must_hold(self, e: Expr) -> None:
        self.obligations.append(z3.Implies(z3.And(self._guards), e) if self._guards else e)

    # --- bringing two numbers to one kind

    def _alike(self, x: Number, y: Number) -> tuple[Any, Any]:
        kinds = {type(v) for v in (x, y)}
        if Truth in kinds:
            raise ProofError("a condition computes with a truth value")
        for kind, convert in ((Double, self._double), (Whole, self._whole), (Wide, self._wide)):
            if kind in kinds or (kind is Wide and not kinds & {float}):
                return convert(x), convert(y)
        return self._double(x), self._double(y)

    def _double(self, x: Number) -> Double:
        if isinstance(x, Double):
            return x
        if isinstance(x, (int, float)):
            return Double(z3.FPVal(float(x), z3.Float64()))
        raise ProofError("a condition mixes floats and integers")

    def _whole(self, x: Number) -> Whole:
        if isinstance(x, Whole):
            return x
        if isinstance(x, Wide):
            return whole(z3.BV2Int(x.e, is_signed=True))
        if isinstance(x, float) and x in (float("inf"), float("-inf")):
            return whole(z3.IntVal(0), z3.BoolVal(x < 0), z3.BoolVal(x > 0))
        if isinstance(x, (int, float)):
            return whole(z3.IntVal(int(x)) if int(x) == x else z3.RealVal(str(x)))
        raise ProofError("a condition mixes floats and integers")

    def _wide(self, x: Number) -> Wide:
        if isinstance(x, Wide):
            return x
        if isinstance(x, int):
            return Wide(z3.BitVecVal(x, x.bit_length() + 1))
        raise ProofError("a condition mixes floats and integers")

    def _choose(self, condition: Expr, x: Number, y: Number) -> Number:
        a, b = self._alike(x, y)
        if isinstance(a, Wide):
            yes, no = _same_width(a, b)
            return Wide(z3.If(condition, yes, no))
        if isinstance(a, Double):
            return Double(z3.If(condition, a.e, b.e))
        parts = (z3.If(condition, getattr(a, f), getattr(b, f)) for f in ("e", "below", "above", "nan"))
        return _tidy(*parts)


def _plain(x: Number) -> bool:
    return isinstance(x, (int, float))


def _negative(x: Whole) -> Expr:
    return z3.Or(x.below, z3.And(x.finite, x.e < 0))


def _tidy(e: Expr, below: Expr, above: Expr, nan: Expr) -> Whole:
    return Whole(e, z3.simplify(below), z3.simplify(above), z3.simplify(nan))


def _widen(e: Expr, size: int) -> Expr:
    return e if e.size() == size else z3.SignExt(size - e.size(), e)


def _same_width(x: Any, y: Any, more: int = 0) -> tuple[Expr, Expr]:
    size = max(x.e.size(), y.e.size()) + more
    return _widen(x.e, size), _widen(y.e, size)
