"""The one place that imports Z3, and the tactics that decide a formula.

Z3 decides bit-vectors, booleans and floats by itself. Quotients of unbounded integers by a variable are
beyond it as they stand, so they are kept as definitions `a = b·q + r` and tried in several ways: as Z3's
own division, and relaxed to the reals with every strict inequality tightened by one. A contradiction among
the reals is one among the integers, and real polynomial arithmetic is decidable.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from morok.errors import ProofError

try:
    import z3
except ImportError as error:  # pragma: no cover - covered by a test in its own process
    raise ProofError("proofs need Z3, which is not installed; run: pip install 'morok[proof]'") from error

__all__ = ["z3"]  # to the whole room; the rest of this file is public as well

Expr = Any  # Z3 has no types of its own

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"

# Limits are counted in the solver's own steps, some two million of which take a second: a verdict is the same
# on a slow machine and on a busy one.
_NATIVE, _OVER_REALS = 800_000, 1_000_000
_BACKSTOP = 600_000  # milliseconds: a step that does not end is an error, not a verdict


def fresh() -> None:
    """Forgets all expressions: what the solver does must not depend on what it was asked before.

    Its decisions follow the numbers that it gives to expressions, and those count on within a context.
    """
    z3.z3._main_ctx = None


def _limit(solver: Any, steps: int) -> None:
    solver.set("rlimit", steps)
    solver.set("timeout", _BACKSTOP)


@final
@dataclass(frozen=True, slots=True)
class Division:
    """quotient and remainder stand for the rounded-down division of two unbounded integers."""

    dividend: Expr
    divisor: Expr
    quotient: Expr
    remainder: Expr


@final
@dataclass(slots=True)
class Problem:
    """Hypotheses under which the goal shall hold."""

    hypotheses: list[Expr]
    goal: Expr
    divisions: list[Division] = field(default_factory=list)


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver says; `how` names the tactic that did it."""

    status: str
    model: Any = None
    how: str = ""


def native(divisions: Sequence[Division]) -> list[Expr]:
    """Quotients by Z3's own division, which rounds so that the remainder is not negative."""
    facts = []
    for d in divisions:
        a, b = d.dividend, d.divisor
        if z3.is_int_value(b):
            value = b.as_long()
            quotient = a / b if value > 0 else (-a) / (-b) if value < 0 else z3.IntVal(0)
            remainder = a % b if value > 0 else -((-a) % (-b)) if value < 0 else z3.IntVal(0)
        else:
            quotient = z3.If(b == 0, 0, z3.If(b > 0, a / b, (-a) / (-b)))
            remainder = z3.If(b == 0, 0, a - b * d.quotient)
        facts += [d.quotient == quotient, d.remainder == remainder]
    return facts


def euclid(divisions: Sequence[Division]) -> list[Expr]:
    """Quotients by their defining property, as polynomials."""
    facts = []
    for d in divisions:
        a, b, q, r = d.dividend, d.divisor, d.quotient, d.remainder
        facts += [
            z3.Implies(b == 0, z3.And(q == 0, r == 0)),
            z3.Implies(b != 0, a == b * q + r),
            z3.Implies(b > 0, z3.And(0 <= r, r < b)),
            z3.Implies(b < 0, z3.And(b < r, r <= 0)),
        ]
    return facts


def check(assertions: Sequence[Expr], steps: int) -> Outcome:
    """Z3's verdict on a conjunction: PROVED means that it has no model, REFUTED that it has one."""
    solver = _solver_for(assertions)
    _limit(solver, steps)
    solver.add(*assertions)
    return _run(solver)


def _run(solver: Any) -> Outcome:
    start = time.monotonic()
    try:
        answer = solver.check()
        if answer == z3.unsat:
            return Outcome(PROVED)
        if answer == z3.sat:
            return Outcome(REFUTED, solver.model())
    except z3.Z3Exception:  # a tactic that does not apply, or a resource that ran out
        pass
    if time.monotonic() - start > _BACKSTOP / 1000:
        raise ProofError("the solver is stuck in one of its steps; the question has to be put differently")
    return Outcome(UNKNOWN)


def _solver_for(assertions: Sequence[Expr]) -> Any:
    kinds = _kinds(assertions)
    if z3.Z3_INT_SORT in kinds or z3.Z3_REAL_SORT in kinds or "function" in kinds:
        return z3.Solver()
    return z3.SolverFor("QF_FPBV" if z3.Z3_FLOATING_POINT_SORT in kinds else "QF_BV")


def _kinds(assertions: Sequence[Expr]) -> set[Any]:
    """The sorts that a formula mentions, and "function" if it has uninterpreted ones."""
    kinds: set[Any] = set()
    seen: set[int] = set()
    stack = list(assertions)
    while stack:
        e = stack.pop()
        if e.get_id() in seen:
            continue
        seen.add(e.get_id())
        kinds.add(e.sort_kind())
        if z3.is_app(e) and e.num_args() and e.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            kinds.add("function")
        stack.extend(e.children())
    return kinds


def decide(problem: Problem, steps: int, patient: bool = True) -> Outcome:
    """Does the goal follow?

    `steps` is for each tactic; `patient` tries the slow ones as well.
    """
    if z3.is_true(z3.simplify(problem.goal)):
        return Outcome(PROVED, how="simplified")
    negated = [*problem.hypotheses, z3.Not(problem.goal)]
    if not problem.divisions and not _nonlinear(negated):
        return check(negated, steps)
    by_constants = all(z3.is_int_value(d.divisor) for d in problem.divisions)
    # products of unknowns, without quotients, are the business of the reals
    ways = [_natively, _relaxed] if problem.divisions and by_constants else [_relaxed, _natively]
    for way in ways:
        outcome = way(negated, problem.divisions, steps)
        if outcome.status != UNKNOWN:
            return outcome
    if not patient:
        return Outcome(UNKNOWN)
    return check([*negated, *euclid(problem.divisions)], steps)


def _natively(negated: Sequence[Expr], divisions: Sequence[Division], steps: int) -> Outcome:
    return check([*negated, *native(divisions)], min(steps, _NATIVE))


def _relaxed(negated: Sequence[Expr], divisions: Sequence[Division], steps: int) -> Outcome:
    return relaxed_to_reals(negated, divisions, min(steps, _OVER_REALS))


def satisfiable(assertions: Sequence[Expr], divisions: Sequence[Division], steps: int) -> bool | None:
    """Whether hypotheses have a model at all; None if that stays open."""
    for definitions in (native, euclid):
        found = check([*assertions, *definitions(divisions)], steps)
        if found.status != UNKNOWN:
            return found.status == REFUTED
        if not divisions:
            break
    return None


def _nonlinear(assertions: Sequence[Expr]) -> bool:
    seen: set[int] = set()
    stack = list(assertions)
    while stack:
        e = stack.pop()
        if e.get_id() in seen:
            continue
        seen.add(e.get_id())
        if z3.is_int(e) and z3.is_mul(e) and sum(not z3.is_int_value(c) for c in e.children()) > 1:
            return True
        stack.extend(e.children())
    return False


# --- integers relaxed to reals


def relaxed_to_reals(assertions: Sequence[Expr], divisions: Sequence[Division], steps: int) -> Outcome:
    """PROVED if the assertions contradict each other even over the reals; nothing is learnt otherwise.

    The signs of the divisors are split by hand, which keeps each case close to the conjunction that the
    decision procedure likes.
    """
    divisors = {d.divisor.get_id(): d.divisor for d in divisions}
    choices = [_signs(divisor) for divisor in divisors.values()]
    if len(list(itertools.product(*choices))) > _MOST_CASES:
        return Outcome(UNKNOWN)
    relaxed = _Relaxation()  # shared by the cases, which differ in little
    try:
        common = [relaxed.formula(e, True) for e in assertions]
        for signs in itertools.product(*choices):
            sign_of = dict(zip(divisors, signs, strict=True))
            case = [_has_sign(divisor, sign_of[number]) for number, divisor in divisors.items()]
            for d in divisions:
                case += _rounded_down(d, sign_of[d.divisor.get_id()])
            reals = [relaxed.formula(e, True) for e in case]
            solver = z3.Tactic("qfnra-nlsat").solver()
            _limit(solver, steps)
            solver.add(*common, *reals, *relaxed.definitions)
            if _run(solver).status != PROVED:
                return Outcome(UNKNOWN)
    except _NotArithmetic:
        return Outcome(UNKNOWN)
    return Outcome(PROVED, how="over the reals")


_MOST_CASES = 243


def _signs(divisor: Expr) -> tuple[int, ...]:
    if not z3.is_int_value(divisor):
        return (1, -1, 0)
    value = divisor.as_long()
    return ((value > 0) - (value < 0),)


def _has_sign(divisor: Expr, sign: int) -> Expr:
    return divisor >= 1 if sign > 0 else divisor <= -1 if sign < 0 else divisor == 0


def _rounded_down(d: Division, sign: int) -> list[Expr]:
    """The definition of a quotient whose divisor has a known sign."""
    a, b, q, r = d.dividend, d.divisor, d.quotient, d.remainder
    if sign == 0:
        return [q == 0, r == 0]
    return [a == b * q + r, *((0 <= r, r < b) if sign > 0 else (b < r, r <= 0))]


class _NotArithmetic(Exception):
    """Something that has no counterpart among the reals."""


@final
class _Relaxation:
    """Rewrites a formula over the integers into a weaker one over the reals, tight at every integer."""

    def __init__(self) -> None:
        self.definitions: list[Expr] = []
        self._terms: dict[int, Expr] = {}
        self._formulas: dict[tuple[int, bool], Expr] = {}
        self._divisions: dict[tuple[int, int], tuple[Expr, Expr]] = {}
        self._kept: list[Expr] = []  # keeps the numbers of expressions from being used again
        self._fresh = itertools.count()

    def formula(self, e: Expr, positive: bool) -> Expr:
        """The formula, or its negation, with strict inequalities tightened by one."""
        key = e.get_id(), positive
        found = self._formulas.get(key)
        if found is None:
            found = self._formulas[key] = self._formula(e, positive)
            self._kept.append(e)
        return found

    def _formula(self, e: Expr, positive: bool) -> Expr:
        if z3.is_true(e) or z3.is_false(e):
            return e if positive else z3.Not(e)
        if z3.is_not(e):
            return self.formula(e.arg(0), not positive)
        if z3.is_and(e) or z3.is_or(e):
            parts = [self.formula(c, positive) for c in e.children()]
            return z3.And(parts) if z3.is_and(e) == positive else z3.Or(parts)
        if z3.is_implies(e):
            return self.formula(z3.Or(z3.Not(e.arg(0)), e.arg(1)), positive)
        if z3.is_bool(e) and z3.is_app(e) and e.decl().kind() == z3.Z3_OP_ITE:
            c, a, b = e.children()
            return self.formula(z3.And(z3.Implies(c, a), z3.Implies(z3.Not(c), b)), positive)
        if z3.is_eq(e) or z3.is_distinct(e):
            return self._equality(e, positive == z3.is_eq(e))
        if z3.is_le(e) or z3.is_lt(e) or z3.is_ge(e) or z3.is_gt(e):
            return self._inequality(e, positive)
        if z3.is_const(e) and z3.is_bool(e):
            return e if positive else z3.Not(e)
        raise _NotArithmetic

    def _equality(self, e: Expr, equal: bool) -> Expr:
        if e.num_args() != 2:
            raise _NotArithmetic
        a, b = e.children()
        if z3.is_bool(a):
            same = z3.Or(z3.And(a, b), z3.And(z3.Not(a), z3.Not(b)))
            return self.formula(same, equal)
        x, y = self.term(a), self.term(b)
        return x == y if equal else z3.Or(x <= y - 1, x >= y + 1)

    def _inequality(self, e: Expr, positive: bool) -> Expr:
        a, b = (self.term(c) for c in e.children())
        strict = z3.is_lt(e) or z3.is_gt(e)
        if z3.is_ge(e) or z3.is_gt(e):
            a, b = b, a
        if positive:
            return a <= b - 1 if strict else a <= b
        return a >= b if strict else a >= b + 1

    def term(self, e: Expr) -> Expr:
        """An integer as a real."""
        found = self._terms.get(e.get_id())
        if found is None:
            found = self._terms[e.get_id()] = self._term(e)
            self._kept.append(e)
        return found

    def _term(self, e: Expr) -> Expr:
        if z3.is_int_value(e):
            return z3.RealVal(e.as_long())
        if not z3.is_int(e) or not z3.is_app(e):
            raise _NotArithmetic
        if z3.is_const(e):
            return z3.Real(f"{e.decl().name()}!r")
        kind = e.decl().kind()
        parts = e.children()
        if kind == z3.Z3_OP_ITE:
            value = self._new()
            condition, yes, no = parts
            taken, other = value == self.term(yes), value == self.term(no)
            self.definitions.append(z3.Or(self.formula(condition, False), taken))
            self.definitions.append(z3.Or(self.formula(condition, True), other))
            return value
        if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD):
            return self._division(kind, parts[0], parts[1])
        reals = [self.term(c) for c in parts]
        if kind == z3.Z3_OP_ADD:
            return z3.Sum(reals)
        if kind == z3.Z3_OP_MUL:
            return z3.Product(reals)
        if kind == z3.Z3_OP_SUB:
            return reals[0] - z3.Sum(reals[1:])
        if kind == z3.Z3_OP_UMINUS:
            return -reals[0]
        if kind == z3.Z3_OP_POWER and z3.is_int_value(parts[1]) and 0 <= parts[1].as_long() <= 8:
            return z3.Product([reals[0]] * parts[1].as_long())
        raise _NotArithmetic

    def _division(self, kind: int, a: Expr, b: Expr) -> Expr:
        if not z3.is_int_value(b) or b.as_long() <= 0:
            raise _NotArithmetic
        key = (a.get_id(), b.as_long())
        if key not in self._divisions:
            q, r = self._divisions[key] = self._new(), self._new()
            self._kept.append(a)
            self.definitions += [self.term(a) == b.as_long() * q + r, r >= 0, r <= b.as_long() - 1]
        return self._divisions[key][kind == z3.Z3_OP_MOD]

    def _new(self) -> Expr:
        return z3.Real(f"!{next(self._fresh)}")
