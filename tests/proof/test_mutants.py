"""Mutants that once passed as proved, and a sample of those that `make mutate` makes."""

import random

import pytest

pytest.importorskip("z3")

from tests.mutation.__main__ import every_mutant, run, settled
from tests.mutation.code import TextMutant

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


@pytest.mark.parametrize("mutant", PASSED_ONCE, ids=lambda m: m.id)
def test_what_passed_as_proved_once_does_not_any_more(mutant: TextMutant) -> None:
    (verdict,) = run([mutant], jobs=1).values()
    assert verdict[0] == "killed" and verdict[1].startswith("prover"), verdict


@pytest.mark.slow
def test_a_sample_of_mutants_is_noticed() -> None:
    chosen = random.Random(5).sample(every_mutant(), 40)
    found = {m.id: settled(m, v) for m, v in zip(chosen, run(chosen, jobs=2).values(), strict=True)}
    survived = [name for name, (status, _) in found.items() if status == "survived"]
    assert len(survived) <= 1, survived
