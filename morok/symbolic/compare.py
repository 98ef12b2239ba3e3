"""Comparisons: decided by bounds, freed of what both sides share, brought to the form `x < c` or `c < x`.

Sides may be moved across `<` only on indices, which do not wrap. Equality survives wrap-around.
"""

from __future__ import annotations

from morok.rewrite.rules import Rules, grows, when
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Add,
    Bits,
    Bool,
    Cmpeq,
    Cmplt,
    Cmpne,
    Index,
    IndexConst,
    Int,
    IntConst,
    Mul,
    Var,
    false,
    true,
    vmax,
    vmin,
    zero,
)


@rules("symbolic.compare")
def compare_rules(v: Var, w: Var, x: Int, y: Int, s: Bits, t: Bits, p: Bool, q: Bool) -> Rules:
    """What bounds and equal sides decide, for every type they hold for."""
    # v < v is false, for NaN too
    yield "lt-self", (v < v) >> false
    # s = s; not for floats, where NaN differs from itself
    yield "eq-self", s.eq(s) >> true
    yield "ne-self", s.ne(s) >> false
    # x < y when the greatest x is below the least y
    yield "lt-true", (x < y) >> true, when(vmax(x) < vmin(y))
    # not x < y when the least x is no less than the greatest y
    yield "lt-false", (x < y) >> false, when(vmin(x) >= vmax(y))
    # values that cannot meet differ
    yield "eq-apart", x.eq(y) >> false, when((vmax(x) < vmin(y)) | (vmax(y) < vmin(x)))
    yield "ne-apart", x.ne(y) >> true, when((vmax(x) < vmin(y)) | (vmax(y) < vmin(x)))
    # not (v = w) is v ≠ w, for NaN too
    yield "not-eq", ~v.eq(w) >> v.ne(w)
    yield "not-ne", ~v.ne(w) >> v.eq(w)
    # comparisons of booleans are boolean algebra
    yield "eq-true", Cmpeq[p, true] >> p
    yield "eq-false", Cmpeq[p, false] >> ~p
    yield "ne-true", Cmpne[p, true] >> ~p
    yield "ne-false", Cmpne[p, false] >> p
    yield "eq-bool", p.eq(q) >> ~(p ^ q), grows("a comparison becomes boolean algebra; no rule leads back")
    yield "ne-bool", p.ne(q) >> p ^ q
    yield "lt-bool", (p < q) >> ~p & q, grows("a comparison becomes boolean algebra; no rule leads back")


@rules("symbolic.compare_equal")
def equality_rules(x: Int, y: Int, z: Int, a: IntConst, b: IntConst) -> Rules:
    """Both sides of = and ≠ lose what they share; holds with wrap-around."""
    for op, name in ((Cmpeq, "eq"), (Cmpne, "ne")):
        # x + a = b  is  x = b - a
        yield f"{name}-constants", op[Add(x, a), b] >> op(x, b + (a * -1))
        # x + y = x + z  is  y = z
        yield f"{name}-cancel", op(Add[x, y], Add[x, z]) >> op(y, z)
        # x + y = x  is  y = 0
        yield f"{name}-cancel-all", op[Add[x, y], x] >> op(y, 0)
        # x * -1 = b  is  x = -b
        yield f"{name}-negative", op[Mul(x, -1), b] >> op(x, b * -1)


@rules("symbolic.compare_index")
def index_rules(x: Index, y: Index, z: Index, a: IndexConst, b: IndexConst, p: Bool) -> Rules:
    """On indices, which do not wrap: the variable alone on one side."""
    # x + a < b  is  x < b - a
    yield "lt-constant-right", Cmplt(Add(x, a), b) >> (x < b + a * -1)
    # a < x + b  is  a - b < x
    yield "lt-constant-left", Cmplt(a, Add(x, b)) >> (a + b * -1 < x)
    # x + a < y + b  is  x < y + (b - a)
    yield "lt-constants", Cmplt(Add(x, a), Add(y, b)) >> (x < y + (b + a * -1))
    # x + y < x + z  is  y < z
    yield "lt-cancel", Cmplt(Add[x, y], Add[x, z]) >> (y < z)
    # x + y < x  is  y < 0
    yield "lt-cancel-right", Cmplt(Add[x, y], x) >> (y < 0)
    # x < x + y  is  0 < y
    yield "lt-cancel-left", Cmplt(x, Add[x, y]) >> (zero < y)
    # x*a < b  is  x < ⌈b/a⌉ for a > 0
    yield "lt-factor-right", Cmplt(Mul(x, a), b) >> (x < (b + (a + -1)) // a), when(a > 0)
    # x*a < b  is  ⌊b/a⌋ < x for a < 0
    yield "lt-factor-negative", Cmplt(Mul(x, a), b) >> (b // a < x), when(a < 0)
    # b < x*a  is  ⌊b/a⌋ < x for a > 0
    yield "lt-factor-left", Cmplt(b, Mul(x, a)) >> (b // a < x), when(a > 0)
    # b < x*a  is  x < ⌈b/a⌉ for a < 0
    yield "lt-factor-left-negative", Cmplt(b, Mul(x, a)) >> (x < (b + (a + 1)) // a), when(a < 0)
    # x*a < y*a  is  x < y for a > 0
    yield "lt-factors", Cmplt(Mul(x, a), Mul(y, a)) >> (x < y), when(a > 0)
    # x*a < y*a  is  y < x for a < 0
    yield "lt-factors-negative", Cmplt(Mul(x, a), Mul(y, a)) >> (y < x), when(a < 0)
    # x // a < b  is  x < a*b for a > 0
    yield "lt-quotient-right", Cmplt(x // a, b) >> (x < a * b), when(a > 0)
    # b < x // a  is  (b + 1)*a - 1 < x for a > 0
    yield "lt-quotient-left", Cmplt(b, x // a) >> ((b + 1) * a + -1 < x), when(a > 0)
    # not x < b  is  b - 1 < x
    yield "not-lt-constant", ~(x < b) >> (b + -1 < x)
    # not b < x  is  x < b + 1
    yield "not-constant-lt", ~Cmplt(b, x) >> (x < b + 1)
    # x*a = b has no solution unless a divides b
    yield "eq-no-multiple", Cmpeq[Mul(x, a), b] >> false, when(a.ne(0), (b % a).ne(0))
    yield "ne-no-multiple", Cmpne[Mul(x, a), b] >> true, when(a.ne(0), (b % a).ne(0))
    # x*a = b  is  x = b/a
    yield "eq-factor", Cmpeq[Mul(x, a), b] >> x.eq(b // a), when(a.ne(0), (b % a).eq(0))
    yield "ne-factor", Cmpne[Mul(x, a), b] >> x.ne(b // a), when(a.ne(0), (b % a).eq(0))
    # x < 1 for x ≥ 0 is x = 0 … kept as it is: < is the normal form
