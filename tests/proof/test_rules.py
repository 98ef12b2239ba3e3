"""How rules are judged: which types, which conditions, what counts as proved."""

import sys
from typing import Any

import pytest

pytest.importorskip("z3")

from morok.dtype import bool_, float16, index, int8, uint8
from morok.ir.build import variable
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.proof.cases import _for_all_operands
from morok.proof.exhaust import exhaust
from morok.proof.prove import judge, prove_rule
from morok.proof.smt.sorts import NARROW, single_ops, typings
from morok.proof.verdicts import APPROXIMATION, OUT_OF_SCOPE, PROVED, REFUTED, UNKNOWN, VACUOUS, Effort
from morok.rewrite.rules import REASSOCIATING, Rule, Rules, collect, unproved, when, why
from morok.rewrite.terms import (
    HEADS,
    Add,
    And,
    Bits,
    Bool,
    Bounded,
    Cast,
    Cmplt,
    Const,
    Exp2,
    Float,
    Floor,
    Head,
    Index,
    IndexConst,
    Int,
    IntConst,
    Many,
    Max,
    Min,
    Mul,
    Neg,
    Shl,
    Var,
    Where,
    false,
    true,
    vmax,
    vmin,
    zero,
)

EFFORT = Effort(extra=0)


def never(node: UOp) -> UOp | None:
    return None


def same_type(n: UOp, v: UOp) -> bool:
    return n.dtype is v.dtype


def right(
    x: Int, y: Int, v: Var, p: Bool, f: Float, g: Float, i: Index, a: IndexConst, b: IndexConst, n: Var
) -> Rules:
    yield "mod-mod", (x % y) % y >> x % y
    yield "self", Max(v, v) >> v
    yield "where", Where(p, v, v) >> v
    yield "negations", Neg(Neg(f)) >> f
    yield "commutes", Add(f, g) >> g + f
    yield "div-sum", Add[Mul(i, a), x] // a >> i + x // a, when(a > 0)
    yield "div-div", (i // a) // b >> i // (a * b), when(b > 0)
    yield "mod-div", (i % a) // b >> (i // b) % (a // b), when(a > 0, b > 0, (a % b).eq(0))
    yield "cast", n @ Cast(v) >> v, when(same_type)
    yield "below", (x < y) >> true, when(vmax(x) < vmin(y))
    yield "shared-literal", Where(Cmplt(i, zero), zero, f) >> Where(i < 0, 0.0, f)
    yield "add-sub", (f + g) - g >> f, REASSOCIATING


def test_right_rules_are_proved() -> None:
    for rule in collect("right", right):
        verdict, theory = judge(rule, EFFORT)
        assert verdict.status == PROVED, (rule.name, verdict)
        assert theory


def odd(x: Int, c: IntConst, p: Bool, many: Many, v: Var, k: Const) -> Rules:
    yield "contradiction", x // c >> 0, when(c > 0, c < 0)
    yield "no-type", Add[p, 7] >> p
    yield "no-float", x + 1.5 >> x
    yield "silent", x + c >> never, why("to see what is said")
    yield "reason", x + c >> 0, unproved("because it is wrong")
    yield "changes-type", Cast(v) >> v
    yield "variadic", HEADS["Vectorize"](many) >> HEADS["Vectorize"](many)
    yield "transcendental", Exp2(k) >> never, why("to see what is said")
    yield "infinite", x // c >> vmin(x) // c, when(c > 0, vmin(x).eq(vmax(x)))
    yield "endless", x // c >> vmin(x) // c, when(c > 0, vmax(x) < 100, vmin(x) < -100)


def rule(name: str) -> Rule:
    return next(r for r in collect("odd", odd) if r.name == f"odd.{name}")


@pytest.mark.parametrize(
    ("name", "verdict", "note"),
    [
        ("contradiction", VACUOUS, "cannot fire"),
        ("no-type", VACUOUS, "cannot fire"),
        ("no-float", VACUOUS, "cannot fire"),
        ("silent", UNKNOWN, "never fired"),
        ("reason", OUT_OF_SCOPE, "because it is wrong"),
        ("changes-type", REFUTED, "turns"),
        ("variadic", UNKNOWN, "VECTORIZE is not arithmetic"),
        ("transcendental", OUT_OF_SCOPE, "no theory"),
        ("endless", REFUTED, ""),
    ],
)
def test_what_cannot_be_proved_is_named(name: str, verdict: str, note: str) -> None:
    report = prove_rule(rule(name), EFFORT)
    assert report.verdict == verdict and note in report.note, report


def test_where_three_variables_are_too_many_two_operands_are_not() -> None:
    x, y, z = (variable(name, -128, 127, int8) for name in "xyz")
    before = (x * 14 + y * 3) // (y * 4 + z * 8 + x)
    assert exhaust(before, before) is None, "2^24 values"
    toward_zero, divisor = alu(Ops.CDIV, *before.src), before.src[1]
    rest = alu(Ops.SUB, before.src[0], toward_zero * divisor)
    low = rest.ne(0) & divisor.ne(0) & ((rest < 0) ^ (divisor < 0))
    after = toward_zero - low.where(const(int8, 1), const(int8, 0))
    found = _for_all_operands(rule("silent"), before, after)
    assert found is not None and found.status == PROVED
    assert _for_all_operands(rule("silent"), before, toward_zero) is None, (
        "that is no proof that it is wrong either"
    )


def test_a_bound_on_the_right_must_be_finite() -> None:
    # vmin = vmax excludes infinities, because nothing lies between +∞ and -∞
    assert prove_rule(rule("infinite"), EFFORT).verdict == PROVED


def test_types_are_found_by_unification() -> None:
    def given(x: Bits, y: Var, p: Bool, f: Float) -> Rules:
        yield "and", And(x, y) >> x
        yield "compare", Where(Cmplt(y, f), p, true) >> p
        yield "literals", Where(Cmplt(x, zero), zero, f) >> f
        yield "bool", Add(y, false) >> y

    found = {}
    for r in collect("types", given):
        (before,) = single_ops(r.before)
        found[r.name] = [t.variables for t in typings(before, NARROW)]
    assert [set(t.values()) for t in found["types.and"]] == [{bool_}, {int8}, {uint8}, {index}]
    assert found["types.compare"] == [{"y": float16, "f": float16, "p": bool_}]
    # the two zeros are one object and must not tie the two types together
    assert [t["x"] for t in found["types.literals"]] == [int8, uint8, index]
    assert found["types.bool"] == [{"y": bool_}]


def test_a_pattern_over_several_ops_is_proved_for_each() -> None:
    def given(v: Var) -> Rules:
        yield "idempotent", Head(Max.ops[0], Min.ops[0])(v, v) >> v
        yield "not-idempotent", Head(Max.ops[0], Add.ops[0])(v, v) >> v

    good, bad = collect("several", given)
    assert prove_rule(good, EFFORT).verdict == PROVED
    assert prove_rule(bad, EFFORT).verdict == REFUTED


def of_integers(node: UOp) -> UOp | None:
    return None if node.dtype.is_float else node.src[0]


def of_everything(node: UOp) -> UOp:
    return node.src[0]


def with_context(node: UOp, ctx: object) -> UOp:
    return node.src[0]


def one_of_the_rounds(node: UOp, ctx: Any) -> UOp | None:
    return node.src[0] if ctx == "integers" and node.dtype.is_int else None


def one_too_many(node: UOp, ctx: Any) -> UOp | None:
    return node.src[0] if ctx == "floats" or node.dtype.is_int else None


def test_a_pattern_with_whatever_sources_gets_some() -> None:
    def given() -> Rules:
        yield "right", Floor.any() >> of_integers, why("to see what is said")
        yield "wrong", Floor.any() >> of_everything, why("to see what is said")
        yield "context", Floor.any() >> with_context, why("to see what is said")

    good, bad, unknown = (prove_rule(r, EFFORT) for r in collect("open", given))
    assert (good.verdict, good.theory) == (PROVED, "index int8/32/64 uint8/64")
    assert bad.verdict == REFUTED
    assert unknown.verdict == UNKNOWN and "context" in unknown.note


def test_code_is_tried_in_every_context_that_its_module_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    def given() -> Rules:
        yield "right", Floor.any() >> one_of_the_rounds, why("to see what is said")
        yield "wrong", Floor.any() >> one_too_many, why("to see what is said")

    offered = {"proof_contexts": lambda: ("integers", "floats")}
    for name, value in offered.items():
        monkeypatch.setattr(sys.modules[__name__], name, value, raising=False)
    right, wrong = (prove_rule(r, EFFORT) for r in collect("contexts", given))
    assert right.verdict == PROVED and "float" not in right.theory
    assert wrong.verdict == REFUTED


def test_a_rule_with_a_number_that_float16_lacks_gets_a_wider_float() -> None:
    def given(f: Float) -> Rules:
        yield "short", (f * 65536.0) * 0.5 >> f * 32768.0, REASSOCIATING
        yield "long", f + 16777215.0 >> 16777215.0 + f
        yield "longer", f + 0.1 >> 0.1 + f

    reports = [prove_rule(r, EFFORT) for r in collect("large", given)]
    assert [(r.verdict, r.theory) for r in reports] == [
        (PROVED, "floatb16"),
        (PROVED, "float32"),
        (PROVED, "float64"),
    ]


def test_the_widest_integers_are_needed_where_bits_are_counted() -> None:
    def given(w: Bounded) -> Rules:
        yield "far", Shl(w, 70) >> 0
        yield "near", w + 1 >> 1 + w
        yield "large", And[w, 1000] >> And(1000, w)

    reports = [prove_rule(r, EFFORT) for r in collect("width", given)]
    assert [(r.verdict, r.theory) for r in reports] == [
        (PROVED, "int8/64 uint8/64"),
        (PROVED, "int8 uint8"),
        (PROVED, "int64 uint64"),
    ]


def test_a_proof_by_cases_says_how_many() -> None:
    def given(x: Index) -> Rules:
        yield "code", Floor(x) >> of_integers, why("to see what is said")
        yield "terms", Floor(x) >> x

    code, terms = (prove_rule(r, EFFORT) for r in collect("cases", given))
    assert code.cases > 0 and code.text == f"proved, {code.cases} cases"
    assert terms.cases == 0 and terms.text == "proved"


def test_an_approximation_is_not_called_a_law() -> None:
    def given(f: Float, g: Float) -> Rules:
        yield "function", Exp2(f) >> f + 1.0, unproved("measured")
        yield "law", f + g >> g, unproved("no idea")

    function, law = (prove_rule(r, EFFORT) for r in collect("kinds", given))
    assert (function.verdict, function.note) == (APPROXIMATION, "measured")
    assert law.verdict == OUT_OF_SCOPE and not function.failed


def test_wide_types_are_a_bonus() -> None:
    def given(x: Int, y: Int) -> Rules:
        yield "sub", (x + y) - y >> x

    (r,) = collect("wide", given)
    assert prove_rule(r, EFFORT).theory == "index int8 uint8"
    assert prove_rule(r, Effort()).theory == "index int8/32 uint8/32"


def test_verdicts_do_not_depend_on_the_run() -> None:
    r = next(r for r in collect("right", right) if r.name == "right.mod-div")
    first, second = (judge(r, EFFORT) for _ in range(2))
    assert first == second
