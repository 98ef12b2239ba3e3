"""Reductions made simpler: nested ones joined, factors and conditions that do not change taken out."""

from __future__ import annotations

from morok.dtype import identity
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, why
from morok.rewrite.ruleset import RuleSet, join, rules
from morok.rewrite.terms import HEADS
from morok.symbolic.sets import symbolic


def _single(node: UOp) -> bool:
    return len(node.arg) == 1


def join_nested(node: UOp) -> UOp | None:
    """A reduction of a reduction by the same op is one reduction over the loops of both."""
    inner = node.src[0]
    if not _single(node) or (inner.op, inner.arg) != (Ops.REDUCE, node.arg):
        return None
    return make(Ops.REDUCE, node.dtype, (inner.src[0], *node.src[1:], *inner.src[1:]), node.arg)


def join_under_condition(node: UOp) -> UOp | None:
    """A sum of sums, some of which are left out, is one sum in which their parts are left out."""
    value = node.src[0]
    if not _single(node) or value.op is not Ops.WHERE:
        return None
    neutral = const(node.dtype, identity(node.arg[0].name, node.dtype))
    condition, inner, otherwise = value.src
    if otherwise is not neutral or (inner.op, inner.arg) != (Ops.REDUCE, node.arg):
        return None
    if not frozenset(inner.src[1:]).isdisjoint(ranges(condition)):
        return None
    chosen = alu(Ops.WHERE, condition, inner.src[0], neutral)
    return make(Ops.REDUCE, node.dtype, (chosen, *node.src[1:], *inner.src[1:]), node.arg)


def take_factor_out(node: UOp) -> UOp | None:
    """Integers: the sum of x·c is the sum of x, times c. Floats would round differently."""
    value = node.src[0]
    if node.arg != (Ops.ADD,) or value.op is not Ops.MUL or not value.dtype.is_bounded_int:
        return None
    loops = frozenset(node.src[1:])
    for x, factor in (value.src, value.src[::-1]):
        if loops.isdisjoint(ranges(factor)):
            return alu(Ops.MUL, node.replace((x, *node.src[1:])), factor)
    return None


def take_condition_out(node: UOp) -> UOp | None:
    """A condition that does not change in the loop is asked once, outside."""
    value = node.src[0]
    if not _single(node) or value.op is not Ops.WHERE:
        return None
    neutral = const(node.dtype, identity(node.arg[0].name, node.dtype))
    condition, x, otherwise = value.src
    if otherwise is not neutral or not frozenset(node.src[1:]).isdisjoint(ranges(condition)):
        return None
    return alu(Ops.WHERE, condition, node.replace((x, *node.src[1:])), neutral)


_ANY = why("a reduction has any number of loops")


@rules("schedule.reductions")
def reduction_rules() -> Rules:
    """Less inside the loop."""
    reduce = HEADS["Reduce"].any()
    # ΣᵢΣⱼ x = Σᵢⱼ x
    yield "nested", reduce >> join_nested, _ANY
    # Σᵢ (p ? Σⱼ x : 0) = Σᵢⱼ (p ? x : 0)
    yield "nested-condition", reduce >> join_under_condition, _ANY
    # Σ x·c = c·Σ x
    yield "factor", reduce >> take_factor_out, _ANY
    # Σ (p ? x : 0) = p ? Σ x : 0
    yield "condition", reduce >> take_condition_out, _ANY


reductions: RuleSet = join("reductions", symbolic, reduction_rules)
