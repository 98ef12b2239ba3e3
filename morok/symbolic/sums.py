"""Sums and products: one order, one constant, like terms together, constants multiplied out.

The normal form of an index is a sum of products, leaning to the left, constant last: `((r0*128 + r1*4) + r2)
+ 7`. Integers of a fixed width form a ring too (wrap-around included), so most of it holds for them. Floats
only reassociate when asked.
"""

from __future__ import annotations

from morok.ir.node import UOp, make
from morok.rewrite.rules import REASSOCIATING, Rules, grows, when, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Add,
    And,
    Bits,
    Float,
    FloatConst,
    Index,
    IndexConst,
    Int,
    IntConst,
    Max,
    Min,
    Mul,
    Or,
    Xor,
)
from morok.symbolic.order import precedes


def y_first(node: UOp, x: UOp, y: UOp) -> bool:
    """y stands before x in the normal form, and neither is a longer chain of the same op, which the next
    rules sort."""
    return x.op is not node.op and y.op is not node.op and precedes(y, x)


def z_first(y: UOp, z: UOp) -> bool:
    """z stands before y in the normal form."""
    return precedes(z, y)


def insert(node: UOp, z: UOp) -> UOp:
    """z moved to its place in the chain of the same op before it, which is sorted already."""
    later: list[UOp] = []  # what comes after z, last one first
    rest = node.src[0]
    while rest.op is node.op and precedes(z, rest.src[1]):
        later.append(rest.src[1])
        rest = rest.src[0]
    if rest.op is not node.op and precedes(z, rest):
        rest, z = z, rest
    chain = make(node.op, node.dtype, (rest, z))
    for term in reversed(later):
        chain = make(node.op, node.dtype, (chain, term))
    return chain


_SORTS = grows("sorts by a total order, so it ends")
_ANY_LENGTH = why("walks a chain of any length, where swapping neighbours would take a rewrite each")
_LEANS = grows("moves weight to the left, so it ends")


@rules("symbolic.commute")
def commute_rules(x: Bits, y: Bits, z: Bits) -> Rules:
    """Operands of commutative, associative ops in one order, leaning to the left."""
    for op, name in (
        (Add, "add"),
        (Mul, "mul"),
        (And, "and"),
        (Or, "or"),
        (Xor, "xor"),
        (Max, "max"),
        (Min, "min"),
    ):
        # x + y = y + x
        yield f"{name}-order", op(x, y) >> op(y, x), when(y_first), _SORTS
        # x + (y + z) = (x + y) + z
        yield f"{name}-lean", op(x, op(y, z)) >> op(op(x, y), z), _LEANS
        # (x + y) + z = (x + z) + y, and on through a chain of any length
        yield f"{name}-sort", op(op(x, y), z) >> insert, when(z_first), _ANY_LENGTH
        if op not in (Add, Mul, Xor):
            # (x & y) & y = x & y
            yield f"{name}-same", op(op(x, y), y) >> op(x, y)


@rules("symbolic.sums")
def sum_rules(x: Int, y: Int, z: Int, a: IntConst, b: IntConst) -> Rules:
    """One constant per sum and per product; like terms are counted."""
    # (x + a) + b = x + (a + b)
    yield "add-constants", Add(Add(x, a), b) >> x + (a + b)
    # (x * a) * b = x * (a * b)
    yield "mul-constants", Mul(Mul(x, a), b) >> x * (a * b)
    # x + x = x * 2
    yield "double", x + x >> x * 2, grows("one term instead of two; no rule leads back")
    # x*a + x = x * (a + 1)
    yield "count-one", Add[Mul(x, a), x] >> x * (a + 1)
    # x*a + x*b = x * (a + b)
    yield "count", Mul(x, a) + Mul(x, b) >> x * (a + b)
    # (y + x) + x = y + x*2
    yield (
        "double-in-sum",
        Add(Add(y, x), x) >> y + x * 2,
        grows("one term instead of two; no rule leads back"),
    )
    # (y + x*a) + x = y + x * (a + 1)
    yield "count-one-in-sum", Add(Add(y, Mul(x, a)), x) >> y + x * (a + 1)
    # (y + x) + x*a = y + x * (a + 1)
    yield "count-one-in-sum-2", Add(Add(y, x), Mul(x, a)) >> y + x * (a + 1)
    # (y + x*a) + x*b = y + x * (a + b)
    yield "count-in-sum", Add(Add(y, Mul(x, a)), Mul(x, b)) >> y + x * (a + b)


_MULTIPLIES_OUT = grows("multiplies out; nothing puts a common factor back, so it ends")


@rules("symbolic.distribute")
def distribute_rules(x: Index, y: Index, a: IndexConst, b: IndexConst) -> Rules:
    """Constant factors move into sums of indices, so that each variable has one coefficient."""
    # (x + a) * b = x*b + a*b
    yield "constant", Mul(Add(x, a), b) >> x * b + (a * b), _MULTIPLIES_OUT
    # (x + y) * a = x*a + y*a
    yield "sum", Mul(Add(x, y), a) >> x * a + y * a, _MULTIPLIES_OUT


@rules("symbolic.reassociate")
def reassociating_rules(f: Float, g: Float, a: FloatConst, b: FloatConst) -> Rules:
    """Changes rounding: off unless REASSOCIATE is set."""
    # (f + a) + b = f + (a + b)
    yield "add-constants", Add(Add(f, a), b) >> f + (a + b), REASSOCIATING
    # (f * a) * b = f * (a * b)
    yield "mul-constants", Mul(Mul(f, a), b) >> f * (a * b), REASSOCIATING
    # f*a + f*b = f * (a + b)
    yield "count", Mul(f, a) + Mul(f, b) >> f * (a + b), REASSOCIATING
