"""Mutants that once passed as proved, and a sample of those that `make mutate` makes."""

import random
from collections import Counter

import pytest

pytest.importorskip("z3")

from morok.proof.prove import kind_of_unproved
from morok.proof.rulebook import all_rules, load_registry
from morok.proof.verdicts import LOWERING
from morok.rewrite.terms import Lit, Term, subterms
from tests.mutation.code import TextMutant
from tests.mutation.kill import NOT_PROVED, REFUTES, SURVIVED, Baseline, all_judges, reached
from tests.mutation.run import code_of, every_mutant, run, verdicts
from tests.mutation.suite import Suite
from tests.mutation.terms import TermMutant

QUOTIENTS, VALIDITY = "morok.symbolic.quotients", "morok.symbolic.validity"
CASTS, INTEGERS = "morok.symbolic.casts", "morok.codegen.decompose.integers"
PASSED_ONCE = [
    TextMutant(QUOTIENTS, "_small_rest", "high < d", "high <= d"),
    TextMutant(QUOTIENTS, "_small_rest", "0 <= low", "-1 <= low"),
    TextMutant(QUOTIENTS, "_small_rest", "constant % d)", "0)"),
    TextMutant(QUOTIENTS, "divide_sum", "constant // g", "-(-constant // g)"),
    TextMutant(QUOTIENTS, "reduce_sum", "constant // g", "-(-constant // g)"),
    TextMutant(VALIDITY, "known_bounds", "right.arg - 1", "right.arg - 2"),
    TextMutant(VALIDITY, "conjuncts", "c.op is Ops.AND", "c.op in (Ops.AND, Ops.OR)"),
    TextMutant(CASTS, "value_fits", "m.dtype.scalar.max", "m.dtype.scalar.max + 1"),
    TextMutant(INTEGERS, "divide_by_constant", "scalar.bits - sign", "scalar.bits - sign + 1"),
    TextMutant(
        INTEGERS,
        "floor_modulo",
        "& (y.arg - 1) == 0",
        "& (y.arg - 1) in (0, y.arg >> 41 and y.arg & (y.arg - 1))",
    ),
    TextMutant(INTEGERS, "integer_power", "(1 << width - 1) - 1", "(1 << width - 2) - 1"),
    TextMutant(INTEGERS, "integer_power", "where(x.eq(-1), sign,", "where(x.eq(-1), like(x, 1),"),
]

CHEAP = {"codegen.decompose_divisions.divide-constant": 1.0}  # asked before others that run the same function


@pytest.fixture(scope="module")
def prover() -> Baseline:
    """All rules with code as judges; that they can be proved as they are is what other tests are about."""
    load_registry()
    found = Baseline(all_judges(all_rules(), Suite(None), {m.module for m in PASSED_ONCE}))
    by_rule = {rule.name: rule for rule in all_rules()}
    for name in found.judges:
        rule = by_rule.get(name)
        if rule is not None:
            code = [f for f in (rule.after, *rule.conditions) if not isinstance(f, Term)]
            found.seconds[name], found.functions[name] = CHEAP.get(name, 5.0), reached(*code)
    return found


@pytest.mark.parametrize("mutant", PASSED_ONCE, ids=lambda m: m.id)
def test_what_passed_as_proved_once_does_not_any_more(mutant: TextMutant, prover: Baseline) -> None:
    ((_, found),) = verdicts([mutant], 1, prover)
    assert found.by in (REFUTES, NOT_PROVED), found


def _survivors(count: int, seed: int, prover: Baseline) -> list[str]:
    chosen = random.Random(seed).sample([m for m in every_mutant() if isinstance(m, TermMutant)], count)
    results, _ = run(chosen, 2, prover, told=lambda text: None)
    return [name for name, found in results.items() if found.status == SURVIVED]


def test_a_small_sample_of_mutants_is_noticed(prover: Baseline) -> None:
    assert not _survivors(8, 3, prover)


@pytest.mark.slow
def test_a_sample_of_mutants_is_noticed(prover: Baseline) -> None:
    survived = _survivors(60, 5, prover)
    assert len(survived) <= 1, survived


def test_every_rule_with_a_condition_or_a_constant_has_three_mutants() -> None:
    """Lowering rules are no equations: docs/proofs.md lists them."""
    made = Counter(
        m.rule.name if isinstance(m, TermMutant) else (m.module, m.function) for m in every_mutant()
    )
    for rule in all_rules():
        sides = [side for side in (rule.before, rule.after, *rule.conditions) if isinstance(side, Term)]
        numbers = any(isinstance(t, Lit) for side in sides for t in subterms(side))
        functions = code_of(rule)
        if (rule.unproved is None or kind_of_unproved(rule) != LOWERING) and (
            numbers or rule.conditions or functions
        ):
            count = made[rule.name] + sum(made[f] for f in reached(*functions))
            assert count >= 3, f"{rule.name} has {count} mutants"
