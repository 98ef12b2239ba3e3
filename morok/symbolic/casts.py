"""Casts: chains, round trips, casts of choices and comparisons of casts. `lossless(a, b)` means that b holds
every value of a."""

from __future__ import annotations

from morok.dtype import lossless
from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.rewrite.rules import Rules, grows, when
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Bool,
    Cast,
    Const,
    Int,
    Var,
    Where,
    dtype,
)


def same_type(n: UOp, x: UOp) -> bool:
    """The cast leads to the type it comes from."""
    return n.dtype is x.dtype


def middle_holds_all(n: UOp, m: UOp, x: UOp) -> bool:
    """The type in the middle holds every value of x, so the detour changes nothing.

    Except that floats saturate where integers wrap: integers may pass through a float only to a type that
    holds them.
    """
    source, middle, target = x.dtype.scalar, m.dtype.scalar, n.dtype.scalar
    if middle.is_float and source.is_int and target.is_int and not lossless(source, target):
        return False
    return lossless(source, middle)


def integers_shrink(n: UOp, m: UOp, x: UOp) -> bool:
    """Integer to integer to narrower integer: the low bits stay the low bits."""
    kinds = n.dtype.is_bounded_int and m.dtype.is_bounded_int and x.dtype.is_int
    return kinds and n.dtype.scalar.bits <= m.dtype.scalar.bits


def value_fits(n: UOp, m: UOp, x: UOp) -> bool:
    """Integers whose bounds fit into the type in the middle."""
    if not (x.dtype.is_int and m.dtype.is_bounded_int and n.dtype.is_int):
        return False
    low, high = bounds(x)
    return bool(m.dtype.scalar.min <= low and high <= m.dtype.scalar.max)


@rules("symbolic.casts")
def cast_rules(n: Var, m: Var, x: Var, y: Var, p: Bool, a: Const, b: Const, i: Int, j: Int) -> Rules:
    """Conversions that are not needed."""
    # to the same type
    yield "same", n @ Cast(x) >> x, when(same_type)
    # through a type that holds everything
    yield "lossless-middle", n @ Cast(m @ Cast(x)) >> Cast(x, dtype=dtype(n)), when(middle_holds_all)
    # integers: only the narrowest type counts
    yield "integer-middle", n @ Cast(m @ Cast(x)) >> Cast(x, dtype=dtype(n)), when(integers_shrink)
    # integers that fit by their bounds
    yield "fitting-middle", n @ Cast(m @ Cast(x)) >> Cast(x, dtype=dtype(n)), when(value_fits)
    # (p ? a : b) as another type is p ? a' : b'
    yield (
        "where",
        n @ Cast(Where(p, a, b)) >> Where(p, Cast(a, dtype=dtype(n)), Cast(b, dtype=dtype(n))),
        grows("casts of constants fold"),
    )
