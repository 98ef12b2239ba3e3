"""Online softmax: sums of values whose weights are powers over their own sum, as in softmax(s) · v.

    M = max over k of s(k)
    L = Σ over k of e(k)                    with e(k) = exp(s(k) - M)
    O = Σ over k of (e(k) / L) · v(k, …)

Read as it stands, the scores s are needed three times, one pass after the other. But L divides all terms of O
alike, so it may divide their sum. And where a larger maximum is found on the way, everything that has been
added up so far falls by the same factor, exp(old - new). So one pass is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

from morok.ir.build import APPROXIMATE, approximate_op, cast
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute


@final
@dataclass(frozen=True)
class Power:
    """exp(s - M), or 2 to the power of a multiple of it."""

    node: UOp
    scores: UOp
    top: UOp  # the REDUCE that is the maximum
    how: tuple[Any, ...]  # the op, the factor of the difference, the op's argument


@final
@dataclass(frozen=True)
class Weighted:
    """A weighted sum and what it is made of, all over the loop of the sum."""

    sum: UOp
    power: Power
    total: UOp  # the REDUCE that adds the powers up
    weight: UOp  # a power over the total, as it is now
    weights: UOp  # the factor of the sum's product that holds it, converted perhaps


def power_of(node: UOp) -> Power | None:
    """A node as a power that falls as a maximum rises."""
    if node.op not in (Ops.EXP, Ops.EXP2):
        return None
    inner, factor = node.src[0], 1.0
    if inner.op is Ops.MUL and inner.src[1].op is Ops.CONST:
        inner, factor = inner.src[0], float(inner.src[1].arg)
    if inner.op is not Ops.SUB or factor <= 0.0:
        return None
    scores, top = inner.src
    if top.op is not Ops.REDUCE or top.arg != (Ops.MAX,):
        return None
    return Power(node, scores, top, (node.op, factor, node.arg))


def renaming(x: UOp, y: UOp) -> dict[UOp, UOp] | None:
    """The loops of x as those of y, if that makes them the same; None where they differ otherwise."""
    found: dict[UOp, UOp] = {}
    seen: set[tuple[UOp, UOp]] = set()
    stack = [(x, y)]
    while stack:
        a, b = stack.pop()
        if (a, b) in seen:
            continue
        seen.add((a, b))
        if a.op is Ops.RANGE and b.op is Ops.RANGE:
            if found.setdefault(a, b) is not b or a.src != b.src or a.arg[1] is not b.arg[1]:
                return None
            continue
        if a.op is not b.op or a.dtype is not b.dtype or a.arg != b.arg or len(a.src) != len(b.src):
            return None
        stack += zip(a.src, b.src, strict=True)
    return found if len(set(found.values())) == len(found) else None


def _over(node: UOp) -> tuple[UOp, UOp] | None:
    """(power, total) of power / total, in either of its forms."""
    if node.op is Ops.FDIV:
        pairs = [(node.src[0], node.src[1])]
    elif node.op is Ops.MUL:
        a, b = node.src
        pairs = [(p, r.src[0]) for p, r in ((a, b), (b, a)) if r.op is Ops.RECIP]
    else:
        return None
    return next((p for p in pairs if p[1].op is Ops.REDUCE and p[1].arg == (Ops.ADD,)), None)


def weighted_sum(node: UOp) -> Weighted | None:
    """A REDUCE as such a sum; None if it is none."""
    if node.op is not Ops.REDUCE or node.arg != (Ops.ADD,) or len(node.src) != 2:
        return None
    if node.src[0].op is not Ops.MUL:
        return None
    for weights, values in (node.src[0].src, reversed(node.src[0].src)):
        weight = weights
        while weight.op is Ops.CAST and weight.src[0].dtype.is_float:
            weight = weight.src[0]
        pair = _over(weight)
        power = None if pair is None else power_of(pair[0])
        if pair is None or power is None:
            continue
        (loop,) = closed_ranges(node)
        total = pair[1]
        found = Weighted(node, power, total, weight, weights)
        fits = _same_loop(total.src[0], power.node, total, loop)
        fits = fits and _same_loop(power.top.src[0], power.scores, power.top, loop)
        if fits and power.top not in toposort(values):
            return found
    return None


def _same_loop(value: UOp, wanted: UOp, closer: UOp, loop: UOp) -> bool:
    """Whether a reduction's value is the wanted one, over another loop."""
    names = renaming(value, wanted)
    if names is None or len(closer.src) != 2:
        return False
    own = closed_ranges(closer)[0]
    outside = ranges(closer)
    return names.get(own) is loop and all(names[r] is r for r in outside & names.keys())


def unrounded(node: UOp) -> UOp:
    """A value that was rounded to a narrower type on its way to float32, without that."""
    if node.op is not Ops.CAST or not node.src[0].dtype.is_float:
        return node
    wide = node.dtype
    done: dict[UOp, UOp] = {}
    for n in toposort(node.src[0], stop=lambda n: n.op not in _ROUNDED or n.dtype is wide):
        if n.op is Ops.CAST and n.src[0].dtype is wide:
            done[n] = n.src[0]
        elif n.op is Ops.CONST and n.dtype.is_float:
            done[n] = const(wide, n.arg)
        elif n.dtype is wide:  # what is behind it is computed as it is
            done[n] = n
        elif n.op in _ROUNDED and n.op is not Ops.CAST:
            done[n] = make(n.op, wide, tuple(done[s] for s in n.src), n.arg, n.origin)
        elif n.dtype.is_float:
            done[n] = cast(n, wide)
        else:
            done[n] = n
    return done[node.src[0]]


# what is rounded in a narrow type and need not be
_ROUNDED = frozenset((Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.WHERE, Ops.CAST))


SMALL, LARGE = 1e-30, 1e30  # factors whose products with that of a power are ordinary numbers


def scaled(node: UOp) -> tuple[UOp, float]:
    """(x, a) for x·a with a positive constant, which a maximum does not mind; -inf is -inf·a."""
    if node.op is Ops.MUL and node.src[1].op is Ops.CONST and SMALL < float(node.src[1].arg) < LARGE:
        return node.src[0], float(node.src[1].arg)
    if node.op is Ops.WHERE:
        for i in (1, 2):
            masked, (x, a) = node.src[3 - i], scaled(node.src[i])
            if a != 1.0 and masked.op is Ops.CONST and masked.arg == -math.inf:
                return node.replace((node.src[0], *((x, masked) if i == 1 else (masked, x)))), a
    return node, 1.0


def online_weighted_sum(found: Weighted) -> dict[UOp, UOp]:
    """The same sum with one loop for everything, and divided at its end; and the maximum and the sum of
    powers, for others who want them.

    Scores that never become memory are not rounded to its type either, and a positive scale is taken
    together with the factor of a power: 2^((x - M)·a·c). The maximum of all x·a is that of x, times a:
    rounding keeps their order.
    """
    (loop,) = closed_ranges(found.sum)
    power = found.power
    scores = unrounded(power.scores)
    op, factor, arg = power.how
    more = 1.0
    if arg == APPROXIMATE:
        scores, more = scaled(scores)
        factor *= more
        top = power.top.replace((scores, loop))
        each = approximate_op(op, alu(Ops.MUL, alu(Ops.SUB, scores, top), const(top.dtype, factor)))
        power = replace(power, how=(op, factor, arg))
    else:
        top = power.top.replace((scores, loop))
        each = substitute(power.node, {power.top: top, power.scores: scores})
    total = found.total.replace((each, loop))
    weights = substitute(found.weights, {found.weight: each})
    product = substitute(found.sum.src[0], {found.weights: weights})
    result = online_sum(found.sum.replace((product, loop)), top, power)
    divisor = online_sum(total, top, power)
    highest = top if more == 1.0 else alu(Ops.MUL, top, const(top.dtype, more))
    over = Ops.FDIV if found.weight.op is Ops.FDIV else Ops.MUL
    divided = alu(over, result, divisor if over is Ops.FDIV else alu(Ops.RECIP, divisor))
    return {found.sum: divided, found.total: divisor, found.power.top: highest}


def power_sum(node: UOp) -> Power | None:
    """The power that a REDUCE adds up, if its maximum goes over the same values; None otherwise."""
    if node.op is not Ops.REDUCE or node.arg != (Ops.ADD,) or len(node.src) != 2:
        return None
    power = power_of(node.src[0])
    if power is None or not _same_loop(power.top.src[0], power.scores, power.top, node.src[1]):
        return None
    return power


def online_power_sum(node: UOp, power: Power) -> dict[UOp, UOp]:
    """A sum of powers and their maximum with one loop for both."""
    top = power.top.replace((power.scores, node.src[1]))
    total = node.replace((substitute(power.node, {power.top: top}), node.src[1]))
    return {node: online_sum(total, top, power), power.top: top}


def online_sum(node: UOp, top: UOp, power: Power) -> UOp:
    """A sum that is taken along with a maximum."""
    return make(Ops.ONLINE, node.dtype, (node, top), power.how, node.origin)
