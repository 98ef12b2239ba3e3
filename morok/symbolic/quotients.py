"""Division and remainder of a whole sum by a positive constant: code, because a sum has any number of terms.

A sum is read as Σ kᵢ·tᵢ + k. For `sum // c` and `sum % c`:
1. terms whose coefficient c divides leave the quotient and vanish from the remainder;
2. a common divisor g of c and all coefficients is cancelled: (Σ kᵢ·tᵢ + k) // c = (Σ (kᵢ/g)·tᵢ + k//g) //
(c/g);
3. if the terms that some d | c does not divide stay in 0 … d-1, they do not reach the quotient by d:
   (d·A + B) // c = A // (c/d) and (d·A + B) % c = (A % (c/d))·d + B for 0 ≤ B < d;
4. if what c leaves of each coefficient makes a sum with one quotient only, the rest of them is all there is:
   (33·m + q) // 32 = m and (33·m + q) % 32 = m + q for m + q in 0 … 31, as where rows are cut anew that are
   longer by one.
"""

from __future__ import annotations

import math

from morok.ir.bounds import bounds
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops

Terms = list[tuple[UOp, int]]  # term, coefficient


def split_sum(x: UOp) -> tuple[Terms, int]:
    """x as terms with coefficients, and the constant."""
    terms: Terms = []
    constant = 0
    stack = [x]
    while stack:
        t = stack.pop()
        if t.op is Ops.ADD:
            stack += (t.src[1], t.src[0])
        elif t.op is Ops.CONST:
            constant += t.arg
        elif t.op is Ops.MUL and t.src[1].op is Ops.CONST:
            terms.append((t.src[0], t.src[1].arg))
        else:
            terms.append((t, 1))
    return terms, constant


def join_sum(terms: Terms, constant: int, like: UOp) -> UOp:
    """The node for terms and a constant; the order of the terms is kept."""
    total: UOp | None = None
    for term, k in terms:
        part = term if k == 1 else make(Ops.MUL, like.dtype, (term, const(like.dtype, k)))
        total = part if total is None else make(Ops.ADD, like.dtype, (total, part))
    if total is None:
        return const(like.dtype, constant)
    return total if constant == 0 else make(Ops.ADD, like.dtype, (total, const(like.dtype, constant)))


def _interval(terms: Terms, constant: int) -> tuple[float, float]:
    low: float = constant
    high: float = constant
    for term, k in terms:
        a, b = bounds(term)
        low += k * a if k > 0 else k * b
        high += k * b if k > 0 else k * a
    return low, high


def _small_rest(terms: Terms, constant: int, c: int) -> tuple[int, Terms, Terms, int] | None:
    """(d, terms divided by d, the rest, its constant) for the largest useful d | c by step 3, or None."""
    divisors = sorted({math.gcd(k, c) for _, k in terms} - {1, c}, reverse=True)
    for d in divisors:
        large = [(t, k // d) for t, k in terms if k % d == 0]
        rest = [(t, k) for t, k in terms if k % d]
        low, high = _interval(rest, constant % d)
        if large and 0 <= low and high < d:
            return d, large, rest, constant
    return None


def divide_sum(node: UOp, c: UOp) -> UOp | None:
    """sum // c, c > 0."""
    x, divisor = node.src[0], c.arg
    terms, constant = split_sum(x)
    out = [(t, k // divisor) for t, k in terms if k % divisor == 0]
    rest = [(t, k) for t, k in terms if k % divisor]
    whole = constant // divisor
    if out or whole:
        inner = make(Ops.FLOORDIV, node.dtype, (join_sum(rest, constant - whole * divisor, node), c))
        return make(Ops.ADD, node.dtype, (join_sum(out, whole, node), inner))
    g = math.gcd(divisor, *(k for _, k in terms))
    if g > 1:
        smaller = join_sum([(t, k // g) for t, k in terms], constant // g, node)
        return make(Ops.FLOORDIV, node.dtype, (smaller, const(node.dtype, divisor // g)))
    found = _small_rest(terms, constant, divisor)
    if found is None:
        one = _one_quotient(terms, constant, divisor)
        return None if one is None else join_sum(one[0], one[2], node)
    d, large, _, constant = found
    return make(
        Ops.FLOORDIV, node.dtype, (join_sum(large, constant // d, node), const(node.dtype, divisor // d))
    )


def _one_quotient(terms: Terms, constant: int, c: int) -> tuple[Terms, Terms, int] | None:
    """(Terms of the quotient, terms of the remainder, the quotient of what these add up to) by step 4."""
    nearest = [(t, k, round(k / c)) for t, k in terms]
    rest = [(t, k - times * c) for t, k, times in nearest]
    low, high = _interval(rest, constant)
    if not math.isfinite(high - low) or low // c != high // c:
        return None
    return [(t, times) for t, _, times in nearest if times], [(t, k) for t, k in rest if k], int(low // c)


def reduce_sum(node: UOp, c: UOp) -> UOp | None:
    """sum % c, c > 0."""
    x, divisor = node.src[0], c.arg
    terms, constant = split_sum(x)
    rest = [(t, k % divisor if k > 0 else k) for t, k in terms if k % divisor]
    if len(rest) < len(terms) or any(k != old for (_, k), (_, old) in zip(rest, terms, strict=False)):
        return make(Ops.FLOORMOD, node.dtype, (join_sum(rest, constant % divisor, node), c))
    g = math.gcd(divisor, *(k for _, k in terms))
    if g > 1:
        smaller = join_sum([(t, k // g) for t, k in terms], constant // g, node)
        inner = make(Ops.FLOORMOD, node.dtype, (smaller, const(node.dtype, divisor // g)))
        return join_sum([(inner, g)], constant % g, node)
    found = _small_rest(terms, constant, divisor)
    if found is None:
        one = _one_quotient(terms, constant, divisor)
        return None if one is None else join_sum(one[1], constant - one[2] * divisor, node)
    d, large, small, constant = found
    inner = make(
        Ops.FLOORMOD, node.dtype, (join_sum(large, constant // d, node), const(node.dtype, divisor // d))
    )
    return join_sum([(inner, d), *small], constant % d, node)


def loop_quotient(node: UOp, x: UOp, y: UOp) -> UOp | None:
    """r // n for a loop r in 0 … n-1."""
    return const(node.dtype, 0) if _ends_at(x, y) else None


def loop_remainder(node: UOp, x: UOp, y: UOp) -> UOp | None:
    """r % n for a loop r in 0 … n-1."""
    return x if _ends_at(x, y) else None


def _ends_at(x: UOp, y: UOp) -> bool:
    return x.op is Ops.RANGE and x.src[0] is y
