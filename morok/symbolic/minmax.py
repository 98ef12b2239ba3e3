"""Minimum and maximum: by bounds, with themselves and each other, under shared terms."""

from __future__ import annotations

import math

from morok.rewrite.rules import Rules, when
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import (
    Add,
    Check,
    Float,
    Index,
    IndexConst,
    Int,
    IntConst,
    Lit,
    Max,
    Min,
    Mul,
    Var,
    vmax,
    vmin,
)


@rules("symbolic.minmax")
def minmax_rules(
    v: Var,
    w: Var,
    x: Int,
    y: Int,
    z: Int,
    f: Float,
    i: Index,
    j: Index,
    a: IntConst,
    b: IntConst,
    c: IndexConst,
) -> Rules:
    """The lattice laws, and what bounds decide."""
    # max(v, v) = v
    yield "max-self", Max(v, v) >> v
    yield "min-self", Min(v, v) >> v
    # max(x, y) = x when the least x is no less than the greatest y
    yield "max-bounds", Max[x, y] >> x, when(vmin(x) >= vmax(y))
    yield "min-bounds", Min[x, y] >> x, when(vmax(x) <= vmin(y))
    # max(f, -inf) = f, NaN included
    yield "max-lowest", Max[f, Lit(-math.inf)] >> f
    yield "min-highest", Min[f, Lit(math.inf)] >> f
    # max(max(x, a), b) = max(x, max(a, b))
    yield "max-constants", Max(Max(x, a), b) >> x.maximum(a.maximum(b))
    yield "min-constants", Min(Min(x, a), b) >> x.minimum(a.minimum(b))
    # max(min(x, y), y) = y
    yield "max-min", Max[Min[x, y], y] >> y
    yield "min-max", Min[Max[x, y], y] >> y
    # max(min(x, a), b) = b for b ≥ a
    yield "max-min-constants", Max(Min(x, a), b) >> b, when(b >= a)
    yield "min-max-constants", Min(Max(x, a), b) >> b, when(b <= a)
    # max(i + c, j + c) = max(i, j) + c
    yield "max-shift", Max(Add(i, c), Add(j, c)) >> i.maximum(j) + c
    yield "min-shift", Min(Add(i, c), Add(j, c)) >> i.minimum(j) + c
    # max(i*c, j*c) = max(i, j)*c for c > 0
    yield "max-scale", Max(Mul(i, c), Mul(j, c)) >> i.maximum(j) * c, when(c > 0)
    yield "min-scale", Min(Mul(i, c), Mul(j, c)) >> i.minimum(j) * c, when(c > 0)
    # max(i*c, j*c) = min(i, j)*c for c < 0
    yield "max-scale-negative", Max(Mul(i, c), Mul(j, c)) >> i.minimum(j) * c, when(c < 0)
    yield "min-scale-negative", Min(Mul(i, c), Mul(j, c)) >> i.maximum(j) * c, when(c < 0)
    # a position that is never outside needs no check
    yield "check-inside", Check(x, y, z) >> x, when(vmin(x) >= 0, vmax(x) < vmin(y))
    # max(x, y) + min(x, y) = x + y
    yield "max-plus-min", Max[x, y] + Min[x, y] >> x + y
