"""Interval arithmetic is proved, and what is wrong with it is found."""

import math
from typing import Any

import pytest

pytest.importorskip("z3")

from morok.ir import bounds
from morok.ir.ops import ALU, Op, Ops
from morok.proof.intervals import laws, prove_intervals
from morok.proof.verdicts import PROVED, REFUTED, RuleReport

NAMES = list(dict.fromkeys(law.name for law in laws()))


def report(op: Op, quick: bool = True) -> RuleReport:
    (found,) = prove_intervals((law for law in laws() if law.name == f"ir.bounds.{op.name.lower()}"), quick)
    return found


def test_every_op_with_a_rule_is_there() -> None:
    tables = {**bounds.INTS, **bounds.BOOLS, **bounds.OTHERS}
    assert set(NAMES) == {f"ir.bounds.{op.name.lower()}" for op in tables} - {"ir.bounds.threefry"}
    assert len(NAMES) >= 50 and ALU & set(tables)


@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_every_value_of_small_types(name: str) -> None:
    (found,) = prove_intervals((law for law in laws() if law.name == name), quick=True)
    assert found.verdict == PROVED, found.note


@pytest.mark.parametrize("op", [Ops.ADD, Ops.SUB, Ops.ABS, Ops.MAX, Ops.CMPLT], ids=lambda op: op.name)
def test_intervals_hold_for_all_integers(op: Op) -> None:
    found = report(op, quick=False)
    assert found.verdict == PROVED and "for all values: int8, uint8, index" in found.note


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold(name: str) -> None:
    (found,) = prove_intervals(law for law in laws() if law.name == name)
    assert found.verdict == PROVED, found.note


def ends(n: Any, i: int = 0) -> tuple[Any, Any]:
    low, high = n.src[i].bounds_
    return low, high


WRONG: dict[str, tuple[Op, Any]] = {
    "one too little": (Ops.ADD, lambda n: (ends(n)[0] + ends(n, 1)[0], ends(n)[1] + ends(n, 1)[1] - 1)),
    "the same end twice": (Ops.SUB, lambda n: (ends(n)[0] - ends(n, 1)[0], ends(n)[1] - ends(n, 1)[1])),
    "two corners of four": (Ops.MUL, lambda n: (ends(n)[0] * ends(n, 1)[0], ends(n)[1] * ends(n, 1)[1])),
    "no zero divisor": (Ops.FLOORDIV, lambda n: (min(ends(n)[0], 1), max(ends(n)[1], 1))),
    "divisor itself": (Ops.FLOORMOD, lambda n: (1, ends(n, 1)[1])),
    "the other extreme": (
        Ops.MAX,
        lambda n: (min(ends(n)[0], ends(n, 1)[0]), max(ends(n)[1], ends(n, 1)[1])),
    ),
    "it may be equal": (Ops.CMPLT, lambda n: (ends(n)[1] <= ends(n, 1)[0], ends(n)[0] < ends(n, 1)[1])),
    "the wrong sign": (Ops.NEG, lambda n: ends(n)),
    "one step more": (Ops.RANGE, lambda n: (0, ends(n)[1])),
    "wrapped": (Ops.CAST, lambda n: (0, 1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, rule = WRONG[name]
    table = bounds.BOOLS if op.is_compare else bounds.INTS
    monkeypatch.setitem(table, op, rule)
    found = report(op)
    assert found.verdict == REFUTED and op.name in found.note


def test_what_is_wrong_for_large_numbers_only_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def sum_of_small_ones(n: Any) -> tuple[Any, Any]:
        (alo, ahi), (blo, bhi) = ends(n), ends(n, 1)
        return alo + blo, ahi + bhi - (1 if alo > 10**9 and ahi != math.inf else 0)

    monkeypatch.setitem(bounds.INTS, Ops.ADD, sum_of_small_ones)
    assert report(Ops.ADD).verdict == PROVED  # small types do not see it
    assert report(Ops.ADD, quick=False).verdict == REFUTED
