"""A rule with types chosen, as a formula: both sides, the facts it may use, and its conditions.

The walk over terms does not know what it computes with. The translator gives Z3 expressions; Python numbers
give the values with which a counterexample is checked again; arrays give all values of a small type at
once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, final

from morok.dtype import DType, as_value, bool_
from morok.errors import ProofError
from morok.ir.arithmetic.alu import evaluate, evaluate_array
from morok.ir.ops import Op, Ops
from morok.proof.smt.conditions import Conditions, Number, Truth, as_number, not_less, whole
from morok.proof.smt.solver import Expr, z3
from morok.proof.smt.sorts import NoTheory, Typing
from morok.proof.smt.translate import Translator
from morok.rewrite.match import CONDITION_OPS, term_dtype
from morok.rewrite.rules import Numeric, Rule
from morok.rewrite.terms import Apply, As, Fact, Lit, Term, Var, variables


class Algebra(Protocol):
    """What terms are computed with."""

    def constant(self, value: Any, dtype: DType) -> Any: ...

    def apply(self, op: Op, dtype: DType, *x: Any, to: DType | None = None) -> Any: ...


@final
class Numbers:
    """Python numbers."""

    def constant(self, value: Any, dtype: DType) -> Any:
        return as_value(value, dtype)

    def apply(self, op: Op, dtype: DType, *x: Any, to: DType | None = None) -> Any:
        return evaluate(op, dtype, *x, to=to)


@final
class Arrays:
    """NumPy arrays."""

    def constant(self, value: Any, dtype: DType) -> Any:
        return as_value(value, dtype)

    def apply(self, op: Op, dtype: DType, *x: Any, to: DType | None = None) -> Any:
        return evaluate_array(op, dtype, *x, to=to)


@final
@dataclass(frozen=True, slots=True)
class Typed:
    """A value with its type; stands for a node where only the type is asked for."""

    value: Any
    dtype: DType


@final
class Sides:
    """Computes the two sides of a rule."""

    def __init__(self, typing: Typing, algebra: Algebra, values: dict[str, Any], facts: Any = None) -> None:
        self.typing = typing
        self.algebra = algebra
        self.found = {name: Typed(v, typing.variables[name]) for name, v in values.items()}
        self.fact = facts  # Fact, type → value

    def before(self) -> Any:
        return self._match(self.typing.before)

    def _match(self, term: Term) -> Any:
        """The left side, as the nodes that it matches compute it."""
        dtype = self.typing.of(term)
        if isinstance(term, As):
            value = self._match(term.term)
            self.found[term.var.name] = Typed(value, dtype)
            return value
        if isinstance(term, Var):
            return self.found[term.name].value
        if isinstance(term, Lit):
            return self.algebra.constant(as_value(term.value, dtype), dtype)
        assert isinstance(term, Apply) and term.src is not None
        operands = [self._match(s) for s in term.src]
        return self.algebra.apply(
            term.op, self.typing.of(term.src[-1]), *operands, to=_target(term.op, dtype)
        )

    def after(self, term: Term, expected: DType) -> Typed:
        """The right side, as `build` in morok/rewrite/match.py would make it where `expected` is wanted."""
        if isinstance(term, As):
            term = term.var
        if isinstance(term, Var):
            return self.found[term.name]
        if isinstance(term, Lit):
            return Typed(self.algebra.constant(as_value(term.value, expected), expected), expected)
        if isinstance(term, Fact):
            return Typed(self.fact(term, expected), expected)
        assert isinstance(term, Apply) and term.src is not None
        if not term.op.is_alu:
            raise NoTheory(f"{term.op.name} is not arithmetic")
        dtype = term_dtype(term, self.found, expected)
        wanted = [dtype] * len(term.src)
        if term.op is Ops.WHERE:
            wanted[0] = bool_
        elif term.op.is_compare:
            wanted = [self._operands_type(term, expected)] * 2
        operands = [self.after(s, w) for s, w in zip(term.src, wanted, strict=True)]
        of = operands[-1].dtype
        if any(x.dtype is not of for x in operands[term.op is Ops.WHERE :]):
            raise ProofError(f"the right side mixes types in {term!r}")
        values = [x.value for x in operands]
        return Typed(self.algebra.apply(term.op, of, *values, to=_target(term.op, dtype)), dtype)

    def _operands_type(self, term: Apply, expected: DType) -> DType:
        for s in term.src or ():
            probe = term_dtype(s, self.found, _NOTHING)
            if probe is not _NOTHING:
                return probe
        return expected


_NOTHING: Any = object()


def _target(op: Op, dtype: DType) -> DType | None:
    return dtype if op in (Ops.CAST, Ops.BITCAST) else None


@final
class Formula:
    """One rule with one choice of types in Z3."""

    def __init__(self, rule: Rule, typing: Typing, known: dict[str, Any] | None = None) -> None:
        self.rule = rule
        self.typing = typing
        self.root_type = typing.of(typing.before)
        reals = rule.numeric in (Numeric.REASSOCIATING, Numeric.UNSAFE)
        self.t = Translator(reals=reals)
        self.facts: dict[
            tuple[str, str], tuple[Expr, Number, Expr]
        ] = {}  # kind, name → value, number, is infinite
        self.bounds: list[Expr] = []
        self.finite: list[Expr] = []  # facts that become constants must not be infinite
        given = known or {}
        self.inputs = {name: typing.variables[name] for name in _leaves(typing.before)}
        self.variables = {
            name: self.t.constant(given[name], dtype) if name in given else self.t.variable(name, dtype)
            for name, dtype in self.inputs.items()
        }
        self.sides = Sides(typing, self.t, self.variables, self._fact_as_value)
        self.before = self.sides.before()
        self.conditions: list[Expr] = []
        self._conditions = Conditions(self.t, self._look)
        self.obligations: list[tuple[int, Expr]] = []  # how many conditions come before, what must hold
        for number, condition in enumerate(c for c in rule.conditions if isinstance(c, Term)):
            self.conditions.append(self._conditions.truth(condition))
            self.obligations += [(number, o) for o in self._conditions.obligations]
            self._conditions.obligations.clear()
        assert isinstance(rule.after, Term)
        after = self.sides.after(rule.after, self.root_type)
        self.after, self.after_type = after.value, after.dtype
        self.obligations += [(len(self.conditions), z3.Not(infinite)) for infinite in self.finite]

    def hypotheses(self, conditions: int | None = None) -> list[Expr]:
        """What may be assumed: bounds, definitions and the first so many conditions."""
        return [*self.t.assumed, *self.bounds, *self.conditions[:conditions]]

    def goal(self) -> Expr:
        zero_sign = self.rule.numeric is not Numeric.EXACT
        return self.t.same(self.before, self.after, self.root_type, zero_sign)

    # --- facts

    def _look(self, term: Term) -> Number:
        if isinstance(term, Fact):
            return self._fact(term)[1]
        assert isinstance(term, Var)
        bound = self.sides.found[term.name]
        return as_number(bound.value, bound.dtype, self.t)

    def _fact_as_value(self, term: Fact, expected: DType) -> Expr:
        value, _, infinite = self._fact(term)
        bound = self.sides.found[term.var.name]
        if bound.dtype is not expected:
            raise ProofError(
                f"{term!r} becomes a constant of type {expected}, but {term.var} is {bound.dtype}"
            )
        self.finite.append(infinite)
        return value

    def _fact(self, term: Fact) -> tuple[Expr, Number, Expr]:
        """A bound of a variable: any number on the right side of its value."""
        key = (term.kind, term.var.name)
        if key not in self.facts:
            self.facts[key] = self._new_fact(term)
        return self.facts[key]

    def _new_fact(self, term: Fact) -> tuple[Expr, Number, Expr]:
        var, low = term.var, term.kind == "vmin"
        bound = self.sides.found[var.name]
        x, dtype, no = bound.value, bound.dtype, z3.BoolVal(False)
        if var.CONSTANT:
            return x, as_number(x, dtype, self.t), no
        fact = self.t.variable(f"{term.kind}({var.name})", dtype)
        if dtype.is_float:
            raise NoTheory("bounds of floats say nothing about NaN")
        if dtype.is_bool:
            self.bounds.append(z3.Implies(fact, x) if low else z3.Implies(x, fact))
            return fact, Truth(fact), no
        smaller, larger = (fact, x) if low else (x, fact)
        in_order = z3.Not(self.t.apply(Ops.CMPLT, dtype, larger, smaller))
        if not dtype.is_index:
            self.bounds.append(in_order)
            return fact, as_number(fact, dtype, self.t), no
        infinite = z3.Bool(f"{term.kind}({var.name})!infinite")
        self.bounds.append(z3.Or(infinite, in_order))
        number = whole(fact, infinite, no) if low else whole(fact, no, infinite)
        return fact, number, infinite


def _leaves(before: Term) -> list[str]:
    """The variables that stand for whole operands, not names given to parts of the pattern."""
    named = _named_parts(before)
    return [name for name in variables(before) if name not in named]


def _named_parts(term: Term) -> set[str]:
    if isinstance(term, As):
        return {term.var.name, *_named_parts(term.term)}
    if isinstance(term, Apply):
        return set().union(*(_named_parts(s) for s in term.src or ())) if term.src else set()
    return set()


# --- the same with Python numbers


@final
@dataclass(frozen=True, slots=True)
class Assignment:
    """Values of a rule's variables and of the bounds that its conditions speak of."""

    values: dict[str, Any]
    facts: dict[tuple[str, str], Any]


def assignment_of(formula: Formula, model: Any) -> Assignment:
    """What a model of the formula says about the rule's variables."""
    t = formula.t
    values = {name: t.value(model, e, formula.inputs[name]) for name, e in formula.variables.items()}
    facts = {}
    for (kind, name), (e, _, infinite) in formula.facts.items():
        if z3.is_true(model.eval(infinite, model_completion=True)):
            facts[kind, name] = -math.inf if kind == "vmin" else math.inf
        else:
            facts[kind, name] = t.value(model, e, formula.sides.found[name].dtype)
    return Assignment(values, facts)


def condition_holds(condition: Term, sides: Sides, facts: dict[tuple[str, str], Any]) -> Any:
    """A condition's value on Python numbers, as the reference matcher computes it."""
    if isinstance(condition, Lit):
        return condition.value
    if isinstance(condition, Fact):
        return facts[condition.kind, condition.var.name]
    if isinstance(condition, Var):
        return sides.found[condition.name].value
    assert isinstance(condition, Apply) and condition.src is not None
    at_least = not_less(condition)
    if at_least is not None:
        low, high = (condition_holds(t, sides, facts) for t in at_least)
        return low >= high
    first = condition_holds(condition.src[0], sides, facts)
    if condition.op is Ops.AND:
        return first and condition_holds(condition.src[1], sides, facts)
    if condition.op is Ops.OR:
        return first or condition_holds(condition.src[1], sides, facts)
    others = (condition_holds(s, sides, facts) for s in condition.src[1:])
    return CONDITION_OPS[condition.op](first, *others)


def same_value(a: Any, b: Any, zero_sign: bool = False) -> bool:
    """Equal as the rules mean it: NaN is NaN, and zeros differ by sign unless told otherwise."""
    if isinstance(a, float) and isinstance(b, float):
        if a != a or b != b:
            return a != a and b != b
        return a == b and (zero_sign or a != 0 or math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def compute(rule: Rule, typing: Typing, given: Assignment) -> tuple[Any, Any] | None:
    """Both sides on Python numbers; None if bounds or conditions do not hold for them."""
    facts = dict(given.facts)

    def fact(term: Fact, expected: DType) -> Any:
        return as_value(facts[term.kind, term.var.name], expected)

    sides = Sides(typing, Numbers(), given.values, fact)
    before = sides.before()
    for (kind, name), bound in facts.items():
        x = sides.found[name].value
        if bound > x if kind == "vmin" else bound < x:
            return None
    for name, var in variables(rule.before).items():
        if var.CONSTANT:
            facts["vmin", name] = facts["vmax", name] = sides.found[name].value
    if not all(condition_holds(c, sides, facts) for c in rule.conditions if isinstance(c, Term)):
        return None
    assert isinstance(rule.after, Term)
    return before, sides.after(rule.after, typing.of(typing.before)).value
