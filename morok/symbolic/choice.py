"""WHERE: equal branches, nested choices, choices of booleans, and ops lifted over a choice of constants."""

from __future__ import annotations

from morok.rewrite.rules import Rules, grows
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Add,
    Bool,
    Cmpeq,
    Cmplt,
    Cmpne,
    Const,
    Floordiv,
    Floormod,
    Int,
    IntConst,
    Max,
    Min,
    Mul,
    Var,
    Where,
    false,
    true,
)


@rules("symbolic.where")
def where_rules(p: Bool, q: Bool, x: Var, y: Var, z: Var, r: Bool, i: Int, j: Int) -> Rules:
    """Choices that are no choices, and choices in choices."""
    # the condition is known
    yield "true", Where(true, x, y) >> x
    yield "false", Where(false, x, y) >> y
    # both branches are the same
    yield "same", Where(p, x, x) >> x
    # a choice between true and false is the condition
    yield "bool", Where(p, true, false) >> p
    yield "bool-not", Where(p, false, true) >> ~p
    # with one boolean branch constant it is an and or an or
    yield "and", Where(p, r, false) >> p & r
    yield "or", Where(p, true, r) >> p | r
    yield (
        "and-not",
        Where(p, false, r) >> ~p & r,
        grows("boolean algebra is the normal form; no rule leads back"),
    )
    yield (
        "or-not",
        Where(p, r, true) >> ~p | r,
        grows("boolean algebra is the normal form; no rule leads back"),
    )
    # ¬p ? x : y = p ? y : x
    yield "not", Where(~p, x, y) >> Where(p, y, x)
    # the same question is not asked twice
    yield "again-true", Where(p, Where(p, x, y), z) >> Where(p, x, z)
    yield "again-false", Where(p, x, Where(p, y, z)) >> Where(p, x, z)
    # p ? (q ? x : y) : y = (p ∧ q) ? x : y
    yield "nested-and", Where(p, Where(q, x, y), y) >> Where(p & q, x, y)
    # p ? x : (q ? x : y) = (p ∨ q) ? x : y
    yield "nested-or", Where(p, x, Where(q, x, y)) >> Where(p | q, x, y)
    # p ? (q ? y : x) : y = (p ∧ ¬q) ? x : y
    yield (
        "nested-and-not",
        Where(p, Where(q, y, x), y) >> Where(p & ~q, x, y),
        grows("one choice instead of two"),
    )
    # i < j ? i : j = min(i, j)
    yield "min", Where(i < j, i, j) >> i.minimum(j)
    # i < j ? j : i = max(i, j)
    yield "max", Where(i < j, j, i) >> i.maximum(j)


@rules("symbolic.lift")
def lift_rules(p: Bool, x: Int, a: IntConst, b: IntConst, c: IntConst, u: Const, v: Const, w: Const) -> Rules:
    """An op on a choice between constants is a choice between constants."""
    for op, name in (
        (Add, "add"),
        (Mul, "mul"),
        (Floordiv, "div"),
        (Floormod, "mod"),
        (Max, "max"),
        (Min, "min"),
    ):
        # (p ? a : b) + c = p ? a+c : b+c
        yield name, op(Where(p, a, b), c) >> Where(p, op(a, c), op(b, c))
    for op, name in ((Cmplt, "lt"), (Cmpeq, "eq"), (Cmpne, "ne")):
        # (p ? a : b) < c = p ? a<c : b<c
        yield (
            name,
            op(Where(p, u, v), w) >> Where(p, op(u, w), op(v, w)),
            grows("both branches fold to booleans"),
        )
    # c < (p ? a : b) = p ? c<a : c<b
    yield (
        "lt-left",
        Cmplt(w, Where(p, u, v)) >> Where(p, w < u, w < v),
        grows("both branches fold to booleans"),
    )
    # (p ? x : a) * 0 … is mul-zero's business
