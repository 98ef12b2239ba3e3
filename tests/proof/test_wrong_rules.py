"""Every wrong rule is refuted, and the engine itself computes a wrong value from the counterexample."""

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("z3")

from morok.dtype import ALL_SCALARS, round_float
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.proof.candidates import build
from morok.proof.graphs import evaluate_graph
from morok.proof.prove import judge, prove_rule
from morok.proof.smt.formulas import same_value
from morok.proof.smt.sorts import Typing, single_ops, typings
from morok.proof.verdicts import REFUTED, Effort
from morok.rewrite.match import apply_rule
from morok.rewrite.rules import EXACT, Numeric, Rule
from tests.proof.wrong_rules import WRONG

EFFORT = Effort(extra=0)
TERMS = [r for r in WRONG if not r.name.startswith("wrong.code") and r.name != "wrong.condition.fails"]
CODE = [r for r in WRONG if r.name.startswith("wrong.code")]


def typing_of(rule: Rule, name: str) -> Typing:
    """The choice of types that a counterexample names."""
    for before in single_ops(rule.before):
        for typing in typings(before, ALL_SCALARS):
            if str(typing) == name:
                return typing
    raise AssertionError(name)


def number(value: Any, dtype: Any) -> Any:
    return round_float(float(value), dtype) if isinstance(value, Fraction) else value


@pytest.mark.parametrize("rule", TERMS, ids=str)
def test_a_wrong_rule_is_refuted_and_the_engine_goes_wrong(rule: Rule) -> None:
    verdict, _ = judge(rule, EFFORT)
    assert verdict.status == REFUTED, verdict
    example = dict(verdict.counterexample)
    typing = typing_of(rule, example.pop("type"))
    operands: dict[str, UOp] = {}
    values: dict[UOp, Any] = {}
    for name, var in rule.variables.items():
        if name not in example:
            continue  # the name of a part of the pattern
        dtype = typing.variables[name]
        value = number(example[name], dtype)
        if var.CONSTANT:
            operands[name] = const(dtype, value)
            continue
        low, high = (dtype.min, dtype.max) if dtype.min is not None else (-math.inf, math.inf)
        bounds = (example.get(f"vmin({name})", low), example.get(f"vmax({name})", high))
        operands[name] = make(Ops.DEFINE_VAR, dtype, (), (name, *bounds))
        values[operands[name]] = value
    before = build(typing.before, typing, operands)
    after = apply_rule(rule, before)
    assert after is not None, "the rule does not even fire"
    (x,), (y,) = evaluate_graph(before, values), evaluate_graph(after, values)
    assert not same_value(x, y, zero_sign=rule.numeric is not EXACT), (x, y, verdict)


@pytest.mark.parametrize("rule", CODE, ids=str)
def test_wrong_code_is_refuted(rule: Rule) -> None:
    verdict, _ = judge(rule, EFFORT)
    assert verdict.status == REFUTED, verdict
    assert "before and" in verdict.note or "raises" in verdict.note


def test_a_condition_that_would_raise_is_refuted() -> None:
    rule = next(r for r in WRONG if r.name == "wrong.condition.fails")
    report = prove_rule(rule, EFFORT)
    assert report.verdict == REFUTED and "divides by zero" in report.note


def test_there_are_enough_kinds_of_mistakes() -> None:
    kinds = Counter(r.name.split(".")[1] for r in WRONG)
    assert len(WRONG) >= 60 and len(kinds) >= 12
    assert {"nan", "overflow", "zero", "negative", "condition", "shift", "cast", "code"} <= set(kinds)
    assert {r.numeric for r in WRONG} == set(Numeric)
