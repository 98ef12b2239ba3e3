"""One helper that says everything about an example: the result, its bounds, and that it equals the
original."""

from __future__ import annotations

from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.ir.text import expr
from morok.proof.graphs import prove_equal
from morok.proof.verdicts import PROVED
from morok.rewrite.engine import rewrite
from morok.rewrite.ruleset import RuleSet
from morok.symbolic.sets import symbolic


def becomes(before: UOp, after: UOp, ruleset: RuleSet = symbolic, keeps_bounds: bool = True) -> None:
    """`before` simplifies to exactly `after`, is equal to it by Z3, and is not wider in its bounds.

    Bounds do not know about guards, so a value that is simplified under one may look wider
    (`keeps_bounds=False`).
    """
    got = rewrite(before, ruleset)
    assert got is after, f"{expr(before)} became {expr(got)}, not {expr(after)}"
    if keeps_bounds and before.dtype.is_int:
        (low, high), (new_low, new_high) = bounds(before), bounds(got)
        assert new_low >= low and new_high <= high, f"{expr(before)} had tighter bounds than {expr(got)}"
    verdict = prove_equal(before, after)
    assert verdict.status == PROVED, f"{expr(before)} = {expr(after)}: {verdict}"


def stays(x: UOp, ruleset: RuleSet = symbolic) -> None:
    """Nothing simplifies x."""
    got = rewrite(x, ruleset)
    assert got is x, f"{expr(x)} became {expr(got)}"
