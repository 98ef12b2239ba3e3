"""Mutants of rules whose sides and conditions are terms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from morok.ir.ops import Op, Ops
from morok.proof.smt.sorts import NoTheory, narrow_types, single_ops, typings
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Apply, As, Fact, Lit, Term, show, variables

_OTHER_OP: dict[Op, Op] = {
    Ops.ADD: Ops.SUB, Ops.SUB: Ops.ADD, Ops.MAX: Ops.MIN, Ops.MIN: Ops.MAX, Ops.AND: Ops.OR, Ops.OR: Ops.AND,
    Ops.FLOORDIV: Ops.CDIV, Ops.FLOORMOD: Ops.CMOD, Ops.SHL: Ops.SHR, Ops.SHR: Ops.SHL, Ops.CMPEQ: Ops.CMPNE,
    Ops.CMPNE: Ops.CMPEQ, Ops.XOR: Ops.OR,
}  # fmt: skip
_ORDERED = frozenset((Ops.SUB, Ops.FDIV, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CMPLT, Ops.SHL, Ops.SHR))
MOST_PER_RULE = 8
FEWEST = 3


@final
@dataclass(frozen=True, slots=True)
class TermMutant:
    """A rule, and the rule with one thing changed."""

    id: str
    rule: Rule
    changed: Rule
    part: str  # before, condition or after
    old: Term | None = None  # the condition that was changed, and what it is now, if there is one still
    new: Term | None = None


def mutants(rule: Rule) -> list[TermMutant]:
    """At least three for a rule with a condition or a constant, where there is so much to change."""
    found: dict[str, TermMutant] = {}
    for part, new, what in _changes(rule):
        name = f"{rule.name}: {what}"
        if name not in found:
            found[name] = TermMutant(name, rule, new, part, *_condition(rule, new))
    for part, new, what in _more_changes(rule):
        if len(found) < FEWEST:
            name = f"{rule.name}: {what}"
            found.setdefault(name, TermMutant(name, rule, new, part))
    every = list(found.values())
    if len(every) <= MOST_PER_RULE:
        return every
    conditions = [m for m in every if m.part == "condition"]
    others = [m for m in every if m.part != "condition"]
    room = max(2, MOST_PER_RULE - len(conditions))
    return [*conditions[: MOST_PER_RULE - 2], *_spread(others, room)][:MOST_PER_RULE]


def _condition(rule: Rule, changed: Rule) -> tuple[Term | None, Term | None]:
    gone = [c for c in rule.conditions if isinstance(c, Term) and not any(c is d for d in changed.conditions)]
    come = [c for c in changed.conditions if isinstance(c, Term) and not any(c is d for d in rule.conditions)]
    return gone[0] if gone else None, come[0] if come else None


def _spread(items: list[TermMutant], count: int) -> list[TermMutant]:
    step = max(1, len(items) // count)
    return items[::step][:count]


def _changes(rule: Rule) -> Iterator[tuple[str, Rule, str]]:
    for i, condition in enumerate(rule.conditions):
        if not isinstance(condition, Term):
            continue
        before, after = rule.conditions[:i], rule.conditions[i + 1 :]
        for new in _altered(condition, True):
            changed = replace(rule, conditions=(*before, new, *after))
            yield "condition", changed, f"if {show(condition)} → {show(new)}"
        yield "condition", replace(rule, conditions=(*before, *after)), f"without {show(condition)}"
    for new in _altered(rule.before, False, literals_only=True):
        yield "before", replace(rule, before=new), f"left {show(rule.before)} → {show(new)}"
    if isinstance(rule.after, Term):
        for new in _altered(rule.after, False):
            yield "after", replace(rule, after=new), f"right {show(rule.after)} → {show(new)}"


def _more_changes(rule: Rule) -> Iterator[tuple[str, Rule, str]]:
    """For rules with little to change: other ops on the left, something else on the right."""
    for new in _altered(rule.before, False):
        yield "before", replace(rule, before=new), f"left {show(rule.before)} → {show(new)}"
    if not isinstance(rule.after, Term):
        return
    others: list[Term] = [v for name, v in variables(rule.before).items() if show(rule.after) != name]
    if not isinstance(rule.after, Lit):
        others.append(Lit(0))
    try:
        found = (t for before in single_ops(rule.before) for t in typings(before, narrow_types(rule)))
        root = next(t.of(t.before) for t in found)
    except NoTheory:
        more: list[Term] = []
    else:
        flip = Ops.NEG if root.is_float else Ops.NOT
        more = [Apply((flip,), (rule.after,))]
        more += [] if root.is_bool else [Apply((Ops.ADD,), (rule.after, Lit(1)))]
    for new in (*more, *others):
        yield "after", replace(rule, after=new), f"right {show(rule.after)} → {show(new)}"


def _altered(term: Term, condition: bool, literals_only: bool = False) -> Iterator[Term]:
    """The term with one thing changed."""
    if isinstance(term, Lit):
        yield from (Lit(v) for v in _other_values(term.value))
    elif isinstance(term, Fact):
        yield Fact("vmax" if term.kind == "vmin" else "vmin", term.var)
    elif isinstance(term, As):
        yield from (As(term.var, inner) for inner in _altered(term.term, condition, literals_only))
    elif isinstance(term, Apply) and term.src is not None:
        if not literals_only:
            yield from _other_ops(term, condition)
        for i, s in enumerate(term.src):
            for new in _altered(s, condition, literals_only):
                yield _with(term, (*term.src[:i], new, *term.src[i + 1 :]))


def _with(term: Apply, src: tuple[Term, ...], op: Op | None = None) -> Term:
    inner = src[0]
    if op is None and term.op is Ops.NOT and isinstance(inner, Apply) and inner.op is Ops.NOT and inner.src:
        return inner.src[0]
    ops = term.ops if op is None else (op,)
    commutative = term.commutative if op is None else op.commutative
    return Apply(ops, src, commutative, term.arg, term.dtype)


def _other_ops(term: Apply, condition: bool) -> Iterator[Term]:
    assert term.src is not None
    src, op = term.src, term.op
    if op is Ops.NOT and isinstance(src[0], Apply) and src[0].op is Ops.CMPLT and src[0].src:
        a, b = src[0].src
        yield Apply((Ops.CMPLT,), (b, a))  # a >= b as a > b
        if not condition:
            yield src[0]
        return
    if op is Ops.CMPLT:
        yield Apply((Ops.NOT,), (Apply((Ops.CMPLT,), (src[1], src[0])),))  # a < b as a <= b
    if op in _ORDERED and show(src[0]) != show(src[1]):
        yield _with(term, (src[1], src[0]))
    if op is Ops.WHERE and show(src[1]) != show(src[2]):
        yield _with(term, (src[0], src[2], src[1]))
    if op is Ops.NOT and not condition:
        yield src[0]
    other = _OTHER_OP.get(op)
    if other is not None and not (condition and other in (Ops.CDIV, Ops.CMOD)):
        yield _with(term, src, other)
    if op is Ops.FLOORDIV:  # rounded up
        yield -(-src[0] // src[1])


def _other_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    if math.isinf(value):
        return (-value, 0.0)
    return (value + 1.0, -value)
