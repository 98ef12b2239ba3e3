"""Floor division and modulo. `x // y` rounds down, `x % y` has the sign of y, and both are 0 where y is 0.

Rules that move a factor or a summand out of a quotient hold on indices only: integers of a fixed width may
wrap. The n-ary forms (`divide_sum`, `reduce_sum`) do for a whole sum what the rules below do for two terms.
"""

from __future__ import annotations

from morok.rewrite.rules import Rules, grows, unproved, when, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Add,
    Index,
    IndexConst,
    Int,
    IntConst,
    Mul,
    vmax,
    vmin,
)
from morok.symbolic.quotients import divide_sum, loop_quotient, loop_remainder, reduce_sum

_LOOP = unproved("a loop is a number below its end: what a RANGE means, and no law about numbers")


@rules("symbolic.divmod_simple")
def simple_rules(x: Int, y: Int, c: IntConst) -> Rules:
    """What needs no thought about the operands' structure, for integers of every kind."""
    # x // 1 = x
    yield "div-one", x // 1 >> x
    # x // -1 = -x
    yield "div-minus-one", x // -1 >> x * -1
    # x % 1 = 0
    yield "mod-one", x % 1 >> 0
    # x % -1 = 0
    yield "mod-minus-one", x % -1 >> 0
    # 0 // x = 0
    yield "zero-div", 0 // x >> 0
    # 0 % x = 0
    yield "zero-mod", 0 % x >> 0
    # x // 0 = 0, by definition
    yield "div-zero", x // 0 >> 0
    # x % 0 = 0, by definition
    yield "mod-zero", x % 0 >> 0
    # x // x = 1 where x is not 0
    yield "div-self", x // x >> 1, when((vmin(x) > 0) | (vmax(x) < 0))
    # x % x = 0
    yield "mod-self", x % x >> 0
    # (x % y) % y = x % y
    yield "mod-mod", (x % y) % y >> x % y
    # x // c = 0 and x % c = x for 0 ≤ x < c
    yield "div-small", x // c >> 0, when(vmin(x) >= 0, vmax(x) < c)
    yield "mod-small", x % c >> x, when(vmin(x) >= 0, vmax(x) < c)
    # the same for c < x ≤ 0
    yield "div-small-negative", x // c >> 0, when(vmax(x) <= 0, c < vmin(x))
    yield "mod-small-negative", x % c >> x, when(vmax(x) <= 0, c < vmin(x))
    # all values of x have the same quotient
    yield "div-bounds", x // c >> vmin(x) // c, when(c > 0, (vmin(x) // c).eq(vmax(x) // c))
    # (x // c)*c + x % c = x
    yield "recombine", Add[Mul(x // c, c), x % c] >> x, when(c.ne(0))


@rules("symbolic.divmod")
def divmod_rules(
    x: Index, y: Index, z: Index, a: IndexConst, b: IndexConst, c: IndexConst, d: IndexConst
) -> Rules:
    """Quotients and remainders of indices."""
    # all values of x have the same quotient q, so x % c = x - q*c
    yield "mod-bounds", x % c >> x + (vmin(x) // c) * c * -1, when(c > 0, (vmin(x) // c).eq(vmax(x) // c))
    # a negative divisor: x // c = (-x) // (-c)
    yield (
        "div-negative",
        x // c >> (x * -1) // (c * -1),
        when(c < 0),
        grows("the divisor becomes positive once"),
    )
    yield (
        "mod-negative",
        x % c >> ((x * -1) % (c * -1)) * -1,
        when(c < 0),
        grows("the divisor becomes positive once"),
    )

    # products
    # (x*a) // b = x * (a/b) where b divides a
    yield "div-multiple", Mul(x, a) // b >> x * (a // b), when(b.ne(0), (a % b).eq(0))
    # (x*a) % b = 0 where b divides a
    yield "mod-multiple", Mul(x, a) % b >> 0, when(b.ne(0), (a % b).eq(0))
    # (x*a) // b = x // (b/a) where a > 0 divides b
    yield "div-factor", Mul(x, a) // b >> x // (b // a), when(a > 0, (b % a).eq(0))
    # (x*a) % b = (x % (b/a)) * a where a > 0 divides b
    yield "mod-factor", Mul(x, a) % b >> (x % (b // a)) * a, when(a > 0, (b % a).eq(0))
    # (x*a) % b = (x*(a % b)) % b: windows that begin one further each
    yield "mod-coefficient", Mul(x, a) % b >> (x * (a % b)) % b, when(b > 0, a >= b), grows("a shrinks")
    # (x*y) // y = x
    yield "div-product", Mul[x, y] // y >> x, when((vmin(y) > 0) | (vmax(y) < 0))
    # (x*y) % y = 0
    yield "mod-product", Mul[x, y] % y >> 0

    # sums
    # (x*a + y) // b = x*(a/b) + y // b where b divides a
    yield "div-sum", Add[Mul(x, a), y] // b >> x * (a // b) + y // b, when(b.ne(0), (a % b).eq(0))
    # (x*a + y) % b = y % b where b divides a
    yield "mod-sum", Add[Mul(x, a), y] % b >> y % b, when(b.ne(0), (a % b).eq(0))
    # (x + a) // b: the whole multiples of b leave
    yield (
        "div-constant",
        Add(x, a) // b >> (x + a % b) // b + a // b,
        when(b > 0, (a < 0) | (a >= b)),
        grows("a shrinks"),
    )
    # (x + a) % b: likewise
    yield (
        "mod-constant",
        Add(x, a) % b >> (x + a % b) % b,
        when(b > 0, (a < 0) | (a >= b)),
        grows("a shrinks"),
    )
    # (x*a + y) // b = x // (b/a) where a divides b and 0 ≤ y < a
    yield (
        "div-sum-factor",
        Add[Mul(x, a), y] // b >> x // (b // a),
        when(a > 0, b > 0, (b % a).eq(0), vmin(y) >= 0, vmax(y) < a),
    )
    # (x*a + y) % b = (x % (b/a))*a + y likewise
    yield (
        "mod-sum-factor",
        Add[Mul(x, a), y] % b >> (x % (b // a)) * a + y,
        when(a > 0, b > 0, (b % a).eq(0), vmin(y) >= 0, vmax(y) < a),
    )

    # quotients of quotients
    # (x // a) // b = x // (a*b)
    yield "div-div", (x // a) // b >> x // (a * b), when(b > 0)
    # ((x // a) + b) // c = (x + a*b) // (a*c)
    yield "div-sum-div", Add(x // a, b) // c >> (x + a * b) // (a * c), when(a > 0, c > 0)
    # (x % a) % b = x % b where b divides a
    yield "mod-mod-multiple", (x % a) % b >> x % b, when(b > 0, a.ne(0), (a % b).eq(0))
    # (x % a) // b = (x // b) % (a/b) where b divides a
    yield (
        "mod-div",
        (x % a) // b >> (x // b) % (a // b),
        when(a > 0, b > 0, (a % b).eq(0)),
        grows("the quotient moves in"),
    )

    # whole sums at once
    yield (
        "div-of-sum",
        Add(x, y) // c >> divide_sum,
        when(c > 0),
        why("looks at every term of a sum of any length"),
    )
    yield (
        "mod-of-sum",
        Add(x, y) % c >> reduce_sum,
        when(c > 0),
        why("looks at every term of a sum of any length"),
    )


@rules("symbolic.divmod_unknown")
def unknown_rules(x: Index, y: Index, z: Index) -> Rules:
    """Divisors that are known later: rows of a length that is a variable."""
    # (x*y + z) // y = x + z // y
    yield (
        "div-sum-product",
        Add[Mul[x, y], z] // y >> x + z // y,
        when((vmin(y) > 0) | (vmax(y) < 0)),
    )
    # (x*y + z) % y = z % y
    yield "mod-sum-product", Add[Mul[x, y], z] % y >> z % y
    # a loop stays below its end: r // n = 0 and r % n = r for r in 0 … n-1
    yield "div-loop", x // y >> loop_quotient, why("looks at the end of a loop"), _LOOP
    yield "mod-loop", x % y >> loop_remainder, why("looks at the end of a loop"), _LOOP


@rules("symbolic.recombine")
def recombine_rules(x: Index, y: Index, a: IndexConst, b: IndexConst, c: IndexConst, d: IndexConst) -> Rules:
    """Quotient and remainder of the same number, put together again."""
    # (x // c)*(c*b) + (x % c)*b = x*b
    yield "scaled", Mul(x // c, a) + Mul(x % c, b) >> x * b, when(c.ne(0), a.eq(c * b))
    # (y + (x // c)*c) + x % c = y + x, in either order
    yield "in-sum", Add(Add(y, Mul(x // c, c)), x % c) >> y + x, when(c.ne(0))
    yield "in-sum-2", Add(Add(y, x % c), Mul(x // c, c)) >> y + x, when(c.ne(0))
    # (y + (x // c)*(c*b)) + (x % c)*b = y + x*b, in either order
    yield "scaled-in-sum", Add(Add(y, Mul(x // c, a)), Mul(x % c, b)) >> y + x * b, when(c.ne(0), a.eq(c * b))
    yield (
        "scaled-in-sum-2",
        Add(Add(y, Mul(x % c, b)), Mul(x // c, a)) >> y + x * b,
        when(c.ne(0), a.eq(c * b)),
    )
    # ((x // c) % d)*c + x % c = x % (c*d)
    yield "mod", Add[Mul((x // c) % d, c), x % c] >> x % (c * d), when(c > 0, d > 0)
    # ((x // c) % d)*(c*b) + (x % c)*b = (x % (c*d))*b
    yield (
        "mod-scaled",
        Mul((x // c) % d, a) + Mul(x % c, b) >> (x % (c * d)) * b,
        when(c > 0, d > 0, a.eq(c * b)),
    )
    # (y + ((x // c) % d)*(c*b)) + (x % c)*b = y + (x % (c*d))*b, in either order
    yield (
        "mod-in-sum",
        Add(Add(y, Mul((x // c) % d, a)), Mul(x % c, b)) >> y + (x % (c * d)) * b,
        when(c > 0, d > 0, a.eq(c * b)),
    )
    yield (
        "mod-in-sum-2",
        Add(Add(y, Mul(x % c, b)), Mul((x // c) % d, a)) >> y + (x % (c * d)) * b,
        when(c > 0, d > 0, a.eq(c * b)),
    )
    # ((x // (c*d))*d + (x // c) % d = x // c
    yield "quotients", Add[Mul(x // a, d), (x // c) % d] >> x // c, when(c > 0, d > 0, a.eq(c * d))
    # x - (x // c)*c = x % c
    yield "remainder", Add[Mul(x // c, a), x] >> x % c, when(c.ne(0), a.eq(c * -1))
    # x - x % c = (x // c)*c
    yield "multiple", Add[Mul(x % c, -1), x] >> (x // c) * c, when(c.ne(0))
