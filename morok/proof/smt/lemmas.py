"""Lemmas about quotients, guessed from examples and then proved.

Over the reals a quotient need not be whole, so a remainder is not determined by what it is the remainder
of. What is missing is always of one kind: two quotients are equal, or one is a sum of others. Such
equations are read off sample values, proved one by one (their negation is a gap of at least one, which the
reals understand), and then used.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from morok.proof.smt.formulas import Assignment, Formula
from morok.proof.smt.solver import PROVED, UNKNOWN, Expr, Outcome, relaxed_to_reals, z3

_MOST_LEMMAS = 12
_LEMMA_STEPS = 300_000


def prove_with_lemmas(formula: Formula, samples: Sequence[Assignment], steps: int) -> Outcome:
    """Tries the goal of a formula over the reals, helped by equations between quotients."""
    divisions = formula.t.divisions
    hypotheses = formula.hypotheses()
    negated = [*hypotheses, z3.Not(formula.goal())]
    if not divisions or len(samples) < 8:
        return Outcome(UNKNOWN)
    for equation in itertools.islice(guesses(formula, samples), _MOST_LEMMAS):
        if relaxed_to_reals([*hypotheses, z3.Not(equation)], divisions, _LEMMA_STEPS).status != PROVED:
            continue
        hypotheses.append(equation)
        negated.append(equation)
        if relaxed_to_reals(negated, divisions, steps).status == PROVED:
            return Outcome(PROVED, how="with lemmas")
    return _with_splits(formula, negated, steps)


def _with_splits(formula: Formula, negated: list[Expr], steps: int) -> Outcome:
    """An integer is below, at or above a quotient, never between: three cases that the reals do not see."""
    divisions = formula.t.divisions
    quotients = [d.quotient for d in divisions]
    wholes = [e for name, e in formula.variables.items() if formula.inputs[name].is_index]
    pairs = [*itertools.product(wholes, quotients), *itertools.combinations(quotients, 2)]
    for x, q in pairs:
        cases = (x <= q - 1, x == q, x >= q + 1)
        if all(
            relaxed_to_reals([*negated, c], divisions, min(steps, 1_000_000)).status == PROVED for c in cases
        ):
            return Outcome(PROVED, how="with cases")
    return Outcome(UNKNOWN)


def guesses(formula: Formula, samples: Sequence[Assignment]) -> Any:
    """Equations quotient = product, or quotient = sum of two products, that hold for all samples.

    The simplest first.
    """
    columns = _columns(formula, samples)
    if columns is None:
        return
    quotients = [d.quotient for d in formula.t.divisions]
    symbols = list(columns)
    products: list[tuple[Expr, tuple[int, ...]]] = [(e, columns[e]) for e in symbols]
    for a, b in itertools.combinations_with_replacement(symbols, 2):
        products.append((a * b, tuple(x * y for x, y in zip(columns[a], columns[b], strict=True))))
    for q in quotients:
        target = columns[_same(q, symbols)]
        mine = [(e, v) for e, v in products if not _mentions(e, q)]
        for e, values in mine:
            if values == target:
                yield q == e
        by_values: dict[tuple[int, ...], Expr] = {}
        for e, values in mine:
            by_values.setdefault(values, e)
        for e, values in mine:
            rest = tuple(t - v for t, v in zip(target, values, strict=True))
            if any(rest) and rest in by_values:
                yield q == e + by_values[rest]


def _same(q: Expr, symbols: list[Expr]) -> Expr:
    return next(s for s in symbols if s.eq(q))


def _mentions(e: Expr, q: Expr) -> bool:
    return bool(e.eq(q)) or any(_mentions(c, q) for c in e.children())


def _columns(formula: Formula, samples: Sequence[Assignment]) -> dict[Expr, tuple[int, ...]] | None:
    """The values of variables and quotients, one per sample."""
    rows: list[dict[Expr, int]] = []
    for given in samples:
        row = _row(formula, given)
        if row is None:
            return None
        rows.append(row)
    return {e: tuple(row[e] for row in rows) for e in rows[0]}


def _row(formula: Formula, given: Assignment) -> dict[Expr, int] | None:
    known = []
    row: dict[Expr, int] = {}
    for name, e in formula.variables.items():
        if formula.inputs[name].is_index:
            known.append((e, z3.IntVal(given.values[name])))
            row[e] = given.values[name]
        elif formula.inputs[name].is_bool:
            known.append((e, z3.BoolVal(given.values[name])))
    for key, value in given.facts.items():
        if key in formula.facts and z3.is_const(formula.facts[key][0]):
            known.append((formula.facts[key][0], z3.IntVal(value)))
    for d in formula.t.divisions:
        a, b = (z3.simplify(z3.substitute(e, *known)) for e in (d.dividend, d.divisor))
        if not (z3.is_int_value(a) and z3.is_int_value(b)):
            return None
        q, r = divmod(a.as_long(), b.as_long()) if b.as_long() else (0, 0)
        row[d.quotient] = q
        known += [(d.quotient, z3.IntVal(q)), (d.remainder, z3.IntVal(r))]
    return row
