"""Are the conditions of a rule as weak as they can be? A rule that asks for too much fires too seldom.

Each comparison is relaxed by one: `x < c` to `x < c + 1`. If the rule still holds, the condition was
stricter than it has to be. Some are on purpose, for the sake of a normal form; tests list them with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from morok.ir.ops import Ops
from morok.proof.prove import judge
from morok.proof.verdicts import PROVED, Effort
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Apply, Lit, Term, show

_EFFORT = Effort(needed=2_000_000, extra=0, cases=10)


def relaxed(condition: Term) -> Iterator[Term]:
    """The condition with one of its comparisons weakened by one step."""
    if not isinstance(condition, Apply) or not condition.src:
        return
    op, src = condition.op, condition.src
    if op is Ops.CMPLT:
        yield Apply((op,), (src[0], src[1] + Lit(1)), False)
    elif op is Ops.NOT and isinstance(src[0], Apply) and src[0].op is Ops.CMPLT and src[0].src:
        a, b = src[0].src
        yield Apply((op,), (Apply((Ops.CMPLT,), (a + Lit(1), b), False),), False)
    elif op in (Ops.AND, Ops.OR):
        for i, part in enumerate(src):
            for weaker in relaxed(part):
                yield Apply((op,), (*src[:i], weaker, *src[i + 1 :]), condition.commutative)


def loose(rule: Rule) -> list[str]:
    """The conditions that could be weaker."""
    found = []
    for number, condition in enumerate(rule.conditions):
        if not isinstance(condition, Term):
            continue
        for weaker in relaxed(condition):
            conditions = (*rule.conditions[:number], weaker, *rule.conditions[number + 1 :])
            verdict, _ = judge(replace(rule, conditions=conditions), _EFFORT)
            if verdict.status == PROVED:
                found.append(f"{show(condition)} could be {show(weaker)}")
    return found
