"""What holds for every simplification: same values, same bounds or tighter, no more expensive, nothing left
to do."""

from __future__ import annotations

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from morok.dtype import DType, bool_, float32, index, int8, int32, uint8
from morok.ir.bounds import bounds
from morok.ir.node import UOp, toposort
from morok.ir.text import expr
from morok.proof.graphs import prove_equal
from morok.proof.verdicts import REFUTED
from morok.rewrite.engine import rewrite
from morok.rewrite.ruleset import RuleSet
from morok.symbolic.cost import cost
from morok.symbolic.sets import full, simple, symbolic
from tests.expressions import Grower, growers, same_value, value_of

SETS = {"simple": simple, "symbolic": symbolic, "full": full}
dtypes = st.sampled_from((index, index, index, bool_, int8, uint8, int32, float32))


def check(grower: Grower, root: UOp, ruleset: RuleSet) -> UOp:
    """Simplifies and compares values, to the sign of a zero; gives the result."""
    got = rewrite(root, ruleset)
    assert got.dtype is root.dtype
    for _ in range(12):
        values = grower.assignment()
        old, new = value_of(root, values), value_of(got, values)
        told = {expr(k): v for k, v in values.items()}
        assert same_value(old, new), f"{expr(root)} → {expr(got)}: {old} ≠ {new} for {told}"
    return got


@pytest.mark.parametrize("name", SETS)
@given(grower=growers, dtype=dtypes, depth=st.integers(1, 5))
def test_values_stay(grower: Grower, dtype: DType, depth: int, name: str) -> None:
    check(grower, grower.expression(dtype, depth), SETS[name])


@given(grower=growers, dtype=dtypes, depth=st.integers(1, 5))
def test_simplifying_twice_changes_nothing(grower: Grower, dtype: DType, depth: int) -> None:
    once = rewrite(grower.expression(dtype, depth), symbolic)
    again = RuleSet("symbolic without memory", symbolic.rules)
    assert rewrite(once, again) is once


@given(grower=growers, dtype=dtypes, depth=st.integers(1, 5))
def test_never_more_expensive(grower: Grower, dtype: DType, depth: int) -> None:
    root = grower.expression(dtype, depth)
    got = rewrite(root, symbolic)
    assert cost(got) <= cost(root), f"{expr(root)} → {expr(got)}"


@given(grower=growers, dtype=st.sampled_from((index, index, int8, uint8, bool_)), depth=st.integers(1, 5))
def test_bounds_are_kept(grower: Grower, dtype: DType, depth: int) -> None:
    root = grower.expression(dtype, depth)
    got = rewrite(root, symbolic)
    (low, high), (new_low, new_high) = bounds(root), bounds(got)
    assert low <= new_low and new_high <= high, f"{expr(root)} → {expr(got)}"


@given(grower=growers, dtype=st.sampled_from((index, bool_, int8, uint8)), depth=st.integers(1, 3))
def test_z3_finds_no_difference(grower: Grower, dtype: DType, depth: int) -> None:
    root = grower.expression(dtype, depth)
    assume(not any(n.dtype.is_float for n in toposort(root)))
    verdict = prove_equal(root, rewrite(root, full), steps=2_000_000)
    assert verdict.status != REFUTED, f"{expr(root)}: {verdict}"
    event(f"Z3: {verdict.status}")


@pytest.mark.slow
@given(grower=growers, dtype=dtypes)
def test_deep_expressions(grower: Grower, dtype: DType) -> None:
    check(grower, grower.expression(dtype, 7), full)
