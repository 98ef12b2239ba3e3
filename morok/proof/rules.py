"""Proves a rule whose both sides are terms, for every choice of types it claims.

A code condition is ignored first, which makes the claim stronger; if the rule holds without it, that is the
end of it. If it does not, the rule is tried on graphs instead (`cases.py`). A refutation counts only if
Python computes different values.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok.dtype import DType, from_bits, index, int8
from morok.errors import ProofError
from morok.ir.ops import Ops
from morok.proof.graphs import BITWISE
from morok.proof.smt import solver
from morok.proof.smt.formulas import (
    Arrays,
    Assignment,
    Formula,
    Sides,
    assignment_of,
    compute,
    same_value,
)
from morok.proof.smt.lemmas import prove_with_lemmas
from morok.proof.smt.solver import Problem, z3
from morok.proof.smt.sorts import (
    SLOW,
    SMALL_FLOATS,
    WIDE,
    WIDEST,
    WIDEST_CONVERTED,
    Typing,
    converts,
    narrow_types,
    ops_in,
    single_ops,
    typings,
    width_matters,
)
from morok.proof.verdicts import PROVED, REFUTED, UNKNOWN, Effort, Verdict
from morok.rewrite.rules import Numeric, Rule
from morok.rewrite.terms import Fact, Lit, Term, subterms, variables

_CASE_BY_CASE = frozenset(
    (Ops.CAST, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.MUL)
)  # hard under a choice
_CONSTANTS = (*range(-12, 13), 16, 32, 64, 17, 31, 61, -16, -17)
_MOST_TYPINGS = 600


@final
@dataclass(frozen=True, slots=True)
class TypedVerdict:
    """The verdict for one choice of types; `needed` if the rule stands or falls with it."""

    typing: Typing
    verdict: Verdict
    needed: bool


def prove_terms(rule: Rule, effort: Effort) -> Iterator[TypedVerdict]:
    """One verdict per choice of types, the needed ones first.

    Choices under which the rule cannot fire are left out.
    """
    plans = [(narrow_types(rule), True)]
    if width_matters(rule):
        plans.append((WIDEST_CONVERTED if converts(rule) else WIDEST, True))
    if effort.extra and not converts(rule):
        plans.append((WIDE, False))
    if effort.slow:
        plans.append((SLOW, False))
    for offered, needed in plans:
        count = 0
        for before in single_ops(rule.before):
            for typing in typings(before, offered):
                count += 1
                if count > _MOST_TYPINGS:
                    raise ProofError(f"{rule.name} allows more than {_MOST_TYPINGS} choices of types")
                verdict = prove_typed(
                    rule, typing, effort.needed if needed else effort.extra, needed or effort.slow
                )
                if verdict is not None:
                    yield TypedVerdict(typing, verdict, needed)


def prove_typed(rule: Rule, typing: Typing, steps: int, thorough: bool = True) -> Verdict | None:
    """The verdict for one choice of types; None if the conditions cannot hold under it."""
    formula = Formula(rule, typing)
    if formula.after_type is not formula.root_type:
        what = f"the rule turns {formula.root_type} into {formula.after_type}"
        return Verdict(REFUTED, what, {"type": str(formula.root_type)})
    possible = _can_fire(rule, formula, steps)
    if possible is False:
        return None
    for number, obligation in formula.obligations:
        verdict = _decide(rule, formula, formula.hypotheses(number), obligation, steps, "", patient=True)
        if verdict.status != PROVED:
            return Verdict(
                verdict.status,
                "a condition divides by zero or needs a bound that is infinite",
                verdict.counterexample,
            )
    if any(t.is_index or t.is_float or t.bits > 8 for t in typing.types.values()):
        found = _sampled(rule, typing, 200)  # where the solver is slow to find what is wrong
        if found is not None:
            return found
    if formula.root_type.is_index and _bit_by_bit(rule, typing, steps):
        return Verdict(PROVED, "bit by bit")
    verdict = Verdict(UNKNOWN, "out of steps")
    if ops_in(rule.before) & _CASE_BY_CASE:
        found = _by_booleans(rule, typing, steps)
        verdict = verdict if found is None else found
    if verdict.status == UNKNOWN:
        hypotheses = [*formula.hypotheses(), *formula.t.defined]
        verdict = _decide(rule, formula, hypotheses, formula.goal(), steps, "both sides")
    for other_way in _OTHER_WAYS if thorough else ():
        if verdict.status == UNKNOWN:
            found = other_way(rule, typing, steps)
            verdict = verdict if found is None else found
    if possible is None and verdict.status == PROVED and next(_fitting(rule, typing), None) is None:
        return Verdict(UNKNOWN, "it stays open whether the conditions can hold")
    return verdict


def _can_fire(rule: Rule, formula: Formula, steps: int) -> bool | None:
    """Whether the hypotheses have a model: a rule that cannot fire would be proved by anything."""
    if not formula.conditions and not formula.t.defined:
        return True
    everything = [*formula.hypotheses(), *formula.t.defined]
    return solver.satisfiable(everything, formula.t.divisions, steps)


def _decide(
    rule: Rule,
    formula: Formula,
    hypotheses: list[Any],
    goal: Any,
    steps: int,
    what: str,
    patient: bool = False,
) -> Verdict:
    outcome = solver.decide(Problem(hypotheses, goal, formula.t.divisions), steps, patient)
    if outcome.status == solver.PROVED:
        over_reals = formula.t.reals and formula.root_type.is_float
        return Verdict(PROVED, "over the reals" if over_reals else "")
    if outcome.status == solver.UNKNOWN:
        return Verdict(UNKNOWN, "out of steps")
    given = assignment_of(formula, outcome.model)
    if not what:
        return Verdict(REFUTED, "", _shown(formula.typing, given))
    if formula.t.reals:
        return Verdict(REFUTED, "over the reals", _shown(formula.typing, given))
    checked = _recheck(rule, formula.typing, given)
    if checked is not None:
        return checked
    return Verdict(
        UNKNOWN, f"Z3 sees a difference that Python does not, for {_text(_shown(formula.typing, given))}"
    )


def _recheck(rule: Rule, typing: Typing, given: Assignment) -> Verdict | None:
    """A refutation, if Python computes different values for the two sides."""
    sides = compute(rule, typing, given)
    if sides is None or same_value(*sides, zero_sign=rule.numeric is not Numeric.EXACT):
        return None
    shown = _shown(typing, given)
    return Verdict(REFUTED, f"{_text(shown)} gives {sides[0]} before and {sides[1]} after", shown)


def _shown(typing: Typing, given: Assignment) -> dict[str, Any]:
    facts = {f"{kind}({name})": v for (kind, name), v in given.facts.items()}
    return {**given.values, **facts, "type": str(typing)}


def _text(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


# --- sampling: quick refutations, and evidence that conditions can hold


def _samples(rule: Rule, typing: Typing, count: int) -> Iterator[Assignment]:
    """Small values, which is where wrong rules show it, with bounds around them."""
    rng = random.Random(rule.name)
    leaves = [n for n in typing.variables if n in Formula(rule, typing).inputs]
    wanted = _facts_of(rule)
    for number in range(count):
        reach = 3 if number % 4 == 0 else 12 if number % 4 < 3 else 100
        values = {name: _random_value(rng, typing.variables[name], reach) for name in leaves}
        facts: dict[tuple[str, str], Any] = {}
        for kind, name in wanted:
            if name not in values or variables(rule.before)[name].CONSTANT:
                continue
            away = rng.choice((0, 0, 1, 2, 5))
            x = values[name]
            if typing.variables[name].is_bool:
                facts[kind, name] = x if away == 0 else kind == "vmax"
                continue
            bound = x - away if kind == "vmin" else x + away
            dtype = typing.variables[name]
            if dtype.is_bounded_int:
                bound = max(dtype.min, min(dtype.max, bound))
            facts[kind, name] = bound
        yield Assignment(values, facts)


def _random_value(rng: random.Random, dtype: DType, reach: int) -> Any:
    if dtype.is_bool:
        return rng.random() < 0.5
    if dtype.is_float:
        return from_bits(rng.getrandbits(dtype.bits), dtype)
    value = rng.randint(-reach, reach)
    if dtype.is_index:
        return value
    if rng.random() < 0.3:
        return rng.choice((dtype.min, dtype.max, dtype.max - 1, dtype.min + 1))
    return max(dtype.min, min(dtype.max, value))


def _facts_of(rule: Rule) -> list[tuple[str, str]]:
    terms = [t for c in (*rule.conditions, rule.after) if isinstance(c, Term) for t in subterms(c)]
    return list(dict.fromkeys((t.kind, t.var.name) for t in terms if isinstance(t, Fact)))


def _sampled(rule: Rule, typing: Typing, count: int) -> Verdict | None:
    if rule.numeric in (Numeric.REASSOCIATING, Numeric.UNSAFE):
        return None
    names = {name for _, name in _facts_of(rule)}
    if not names <= set(Formula(rule, typing).inputs):
        return None  # bounds of a part of the pattern
    for given in _samples(rule, typing, count):
        try:
            verdict = _recheck(rule, typing, given)
        except (ZeroDivisionError, OverflowError):
            continue
        if verdict is not None:
            return verdict
    return None


def _fitting(rule: Rule, typing: Typing) -> Iterator[Assignment]:
    """Samples for which the conditions hold."""
    for given in _samples(rule, typing, 6000):
        try:
            if compute(rule, typing, given) is not None:
                yield given
        except (ZeroDivisionError, OverflowError, KeyError):
            continue


# --- other ways


def _bit_by_bit(rule: Rule, typing: Typing, steps: int) -> bool:
    """Laws of bits alone: what holds for 8 of them holds for any number, because no bit knows of another."""
    if not isinstance(rule.after, Term) or any(isinstance(c, Term) for c in rule.conditions):
        return False
    sides = (rule.before, rule.after)
    literals = [t.value for side in sides for t in subterms(side) if isinstance(t, Lit)]
    if any(not ops_in(side) <= BITWISE for side in sides) or any(v not in (0, -1) for v in literals):
        return False
    formula = Formula(rule, typing.with_type(index, int8))
    return solver.decide(Problem([], formula.goal()), steps).status == solver.PROVED


def _by_booleans(rule: Rule, typing: Typing, steps: int) -> Verdict | None:
    """Each value of the rule's booleans alone.

    What is left of a choice is often the same expression twice.
    """
    names = [n for n, t in Formula(rule, typing).inputs.items() if t.is_bool]
    if not 1 <= len(names) <= 3:
        return None
    for values in itertools.product((False, True), repeat=len(names)):
        formula = Formula(rule, typing, dict(zip(names, values, strict=True)))
        problem = Problem(formula.hypotheses(), formula.goal(), formula.t.divisions)
        outcome = solver.decide(problem, steps)
        if outcome.status == solver.REFUTED:
            return _recheck(rule, typing, assignment_of(formula, outcome.model))
        if outcome.status == solver.UNKNOWN:
            return None
    return Verdict(PROVED)


def _by_lemmas(rule: Rule, typing: Typing, steps: int) -> Verdict | None:
    """Quotients of indices: equations between them are guessed from examples and proved first."""
    if not any(t.is_index for t in typing.types.values()):
        return None
    formula = Formula(rule, typing)
    fitting = itertools.islice(_fitting(rule, typing), 24)
    found = prove_with_lemmas(formula, list(fitting), steps)
    return Verdict(PROVED) if found.status == solver.PROVED else None


def _patiently(rule: Rule, typing: Typing, steps: int) -> Verdict | None:
    formula = Formula(rule, typing)
    hypotheses = [*formula.hypotheses(), *formula.t.defined]
    verdict = _decide(rule, formula, hypotheses, formula.goal(), steps, "both sides", patient=True)
    return None if verdict.status == UNKNOWN else verdict


def _sampled_longer(rule: Rule, typing: Typing, steps: int) -> Verdict | None:
    return _sampled(rule, typing, 4000)


def _for_constants(rule: Rule, typing: Typing, steps: int) -> Verdict | None:
    """Weaker: the constants of the rule take many values, everything else stays symbolic."""
    names = [n for n, v in variables(rule.before).items() if v.CONSTANT and typing.variables[n].is_index]
    if not names or len(names) < sum(v.CONSTANT for v in variables(rule.before).values()):
        return None
    rng = random.Random(rule.name)
    proved = 0
    for _ in range(4000):
        known = {name: rng.choice(_CONSTANTS) for name in names}
        formula = Formula(rule, typing, known)
        simple = [z3.simplify(c) for c in formula.conditions]
        if any(z3.is_false(c) for c in simple):
            continue
        problem = Problem(formula.hypotheses(), formula.goal(), formula.t.divisions)
        outcome = solver.decide(problem, steps)
        if outcome.status == solver.REFUTED:
            return _recheck(rule, typing, assignment_of(formula, outcome.model))
        if outcome.status == solver.UNKNOWN:
            return None
        proved += 1
        if proved >= 150:
            break
    return Verdict(PROVED, "some constants", cases=proved) if proved >= 20 else None


_OTHER_WAYS = (_by_lemmas, _by_booleans, _sampled_longer, _patiently, _for_constants)


def exhausted(rule: Rule, before: Term) -> Iterator[tuple[Typing, Verdict]]:
    """A rule on the 8-bit floats, for which Z3 has no theory: all values of up to two variables."""
    if (
        rule.numeric in (Numeric.REASSOCIATING, Numeric.UNSAFE)
        or rule.conditions
        or not isinstance(rule.after, Term)
    ):
        return
    for dtype in SMALL_FLOATS:
        for typing in typings(before, (dtype,)):
            floats = [n for n, t in typing.variables.items() if t is dtype]
            others = [n for n, t in typing.variables.items() if t is not dtype]
            if (
                len(floats) in (1, 2)
                and len(others) <= 3
                and all(typing.variables[n].is_bool for n in others)
            ):
                yield typing, _all_values(rule, typing, floats, others)


def _all_values(rule: Rule, typing: Typing, floats: list[str], others: list[str]) -> Verdict:
    assert isinstance(rule.after, Term)
    dtype = typing.variables[floats[0]]
    every = np.array([from_bits(b, dtype) for b in range(256)], dtype=np.float64)
    sizes = [256] * len(floats) + [2] * len(others)
    grid = np.indices(sizes).reshape(len(sizes), -1)
    values: dict[str, Any] = {n: every[grid[i]] for i, n in enumerate(floats)}
    values.update({n: grid[len(floats) + i].astype(bool) for i, n in enumerate(others)})
    sides = Sides(typing, Arrays(), values)
    before = np.broadcast_to(np.asarray(sides.before()), grid.shape[1:])
    after = np.broadcast_to(
        np.asarray(sides.after(rule.after, typing.of(typing.before)).value), grid.shape[1:]
    )
    if before.dtype == np.bool_:
        wrong = before != after
    else:
        x, y = before.astype(np.float64), after.astype(np.float64)
        equal = (x == y) & ((rule.numeric is Numeric.ZERO_SIGN) | (np.signbit(x) == np.signbit(y)))
        wrong = ~(equal | (np.isnan(x) & np.isnan(y)))
    if not wrong.any():
        return Verdict(PROVED)
    at = int(np.argmax(wrong))
    shown = {n: v[at].item() for n, v in values.items()}
    note = f"{_text(shown)} gives {before[at]} before and {after[at]} after"
    return Verdict(REFUTED, note, {**shown, "type": str(dtype)})
