"""Fused decompositions: ops that are cheaper to decompose together than one after the other.

A sum with an exponential gives the same numbers as apart, a sigmoid the same up to the last place.
These rules see the ops of a graph before any of them is decomposed. So do those of divisions, which ask for
the bounds of what is divided.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.decompose.exponential import LEAST_ADDED, exp_plus, sigmoid
from morok.codegen.decompose.table import division_rules, quotient_of
from morok.ir.node import UOp, alu, toposort
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import RuleSet, join, rules
from morok.rewrite.terms import Head


def only_added(root: UOp) -> frozenset[UOp]:
    """The exponentials of a graph that are only used in sums with constants."""
    fine: dict[UOp, bool] = {}
    for node in toposort(root):
        for s in node.src:
            if s.op is Ops.EXP and s.arg is None:
                added = node.op is Ops.ADD and any(other.op is Ops.CONST for other in node.src)
                fine[s] = fine.get(s, True) and added
    return frozenset(e for e, added in fine.items() if added)


def exponential_plus(node: UOp, ctx: Any) -> UOp | None:
    """e^x + c, where c is so large that a tiny e^x is nothing against it."""
    if Ops.EXP in ctx.machine.ops:
        return None
    for power, c in (node.src, node.src[::-1]):
        if c.op is Ops.CONST and power in ctx.only_added and abs(c.arg) >= LEAST_ADDED:
            return exp_plus(power.src[0], c)
    return None


def logistic(node: UOp, ctx: Any) -> UOp | None:
    """1 / (1 + e^-x) in the form that never overflows: (x < 0 ? e : 1) / (e + 1) with e = exp(-|x|)."""
    choice, whole = node.src
    if Ops.EXP in ctx.machine.ops or choice.op is not Ops.WHERE or whole.op is not Ops.ADD:
        return None
    below, small, value = choice.src
    e, one = whole.src
    if small is not e or not (_is(value, 1.0) and _is(one, 1.0)):
        return None
    if below.op is not Ops.CMPLT or not _is(below.src[1], 0.0):
        return None
    x = below.src[0]
    if x.dtype is not e.dtype:  # an integer, of which the power is a float's
        return None
    return sigmoid(x, quotient_of(x, ctx.machine)) if e is alu(Ops.EXP, -alu(Ops.ABS, x)) else None


def _is(node: UOp, value: float) -> bool:
    return node.op is Ops.CONST and node.arg == value


@rules("codegen.decompose_fused")
def fused_rules() -> Rules:
    """One line per combination."""
    needed = why("the expansion depends on the device")
    code = unproved("floating-point polynomials: errors are measured, not proved")
    yield "exp-plus", Head(Ops.ADD).any() >> exponential_plus, needed, code
    yield "sigmoid", Head(Ops.FDIV).any() >> logistic, needed, code


fused_decompositions: RuleSet = join("codegen.fused", fused_rules, division_rules)
