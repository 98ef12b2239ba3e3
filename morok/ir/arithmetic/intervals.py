"""Interval arithmetic on integers: what an operation can give when its operands lie between known ends.

An end is an integer or, where nothing is known, `∓math.inf`. The results hold every value that is possible
(soundness); for most operations they are also as narrow as an interval can be. Wrap-around is not looked at
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Number = int | float  # a float only as an infinity
Interval = tuple[Number, Number]
_Part = Callable[[Interval], Interval]

_INF = math.inf
_LONGEST_SHIFT = 4096  # of an index; beyond that the bound would be a silly number


def _finite(end: Number) -> bool:
    return end.__class__ is not float


def _hull(*values: Number) -> Interval:
    return min(values), max(values)


def _times(x: Number, y: Number) -> Number:
    return x * y if x and y else 0


def _negated(a: Interval) -> Interval:
    return -a[1], -a[0]


def mul(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if blo == bhi:
        one, other = _times(alo, blo), _times(ahi, blo)
        return min(one, other), max(one, other)
    return _hull(_times(alo, blo), _times(alo, bhi), _times(ahi, blo), _times(ahi, bhi))


# --- division: what is known for positive divisors is carried over to negative ones by the identities below;
# a divisor of zero gives zero


def _by_sign(a: Interval, positive: _Part, negative: _Part) -> Interval:
    """The hull over the values of an interval: both functions get magnitudes; zero gives zero."""
    low, high = a
    if low > 0:
        return positive(a)
    if high < 0:
        return negative((-high, -low))
    found: list[Number] = [0]
    if high > 0:
        found += positive((1, high))
    if low < 0:
        found += negative((1, -low))
    return _hull(*found)


def _quotient(x: Number, y: Number) -> Number:
    """x // y for y > 0."""
    if _finite(y):
        return x // y if _finite(x) else x
    return -1 if x < 0 else 0


def _quotients(a: Interval, b: Interval) -> Interval:
    """a // b for b > 0: monotone in each operand, so the extremes are at the corners."""
    (alo, ahi), (blo, bhi) = a, b
    if blo == bhi:
        return _quotient(alo, blo), _quotient(ahi, blo)
    return min(_quotient(alo, blo), _quotient(alo, bhi)), max(_quotient(ahi, blo), _quotient(ahi, bhi))


def _remainders(a: Interval, b: Interval) -> Interval:
    """a mod b for b > 0: exact for one divisor, and where no divisor is reached."""
    (alo, ahi), (blo, bhi) = a, b
    if blo == bhi and _finite(alo) and _finite(ahi) and alo // blo == ahi // blo:
        return alo % blo, ahi % blo
    if alo < 0:
        return 0, bhi - 1
    return alo if ahi < blo else 0, min(ahi, bhi - 1)


def floordiv(a: Interval, b: Interval) -> Interval:
    """x // -y = -x // y"""
    return _by_sign(b, lambda y: _quotients(a, y), lambda y: _quotients(_negated(a), y))


def floormod(a: Interval, b: Interval) -> Interval:
    """x mod -y = -(-x mod y)"""
    return _by_sign(b, lambda y: _remainders(a, y), lambda y: _negated(_remainders(_negated(a), y)))


def cdiv(a: Interval, b: Interval) -> Interval:
    """-x / y = x / -y = -(x / y)"""

    def by(y: Interval) -> Interval:
        return _by_sign(a, lambda x: _quotients(x, y), lambda x: _negated(_quotients(x, y)))

    return _by_sign(b, by, lambda y: _negated(by(y)))


def cmod(a: Interval, b: Interval) -> Interval:
    """The remainder of a truncated quotient has the sign of x, whatever the sign of y."""

    def by(y: Interval) -> Interval:
        return _by_sign(a, lambda x: _remainders(x, y), lambda x: _negated(_remainders(x, y)))

    return _by_sign(b, by, by)


# --- bits


def _mirror(a: Interval) -> Interval:
    """The interval of ~x = -1 - x."""
    return -1 - a[1], -1 - a[0]


def _width(*ends: Number) -> Number:
    """2^k such that all integers between the ends lie in -2^k … 2^k - 1."""
    if not all(map(_finite, ends)):
        return _INF
    return 1 << max(int(max(end, -1 - end)).bit_length() for end in ends)


def bit_and(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if alo == ahi and blo != bhi:
        return bit_and(b, a)
    if blo == bhi and isinstance(alo, int) and isinstance(ahi, int) and isinstance(blo, int):
        if alo == ahi or -blo & ~blo == 0:  # clearing low bits is monotone
            return alo & blo, ahi & blo
        if blo & (blo + 1) == 0:  # keeping low bits is a remainder
            return floormod(a, (blo + 1, blo + 1))
    if alo >= 0 and blo >= 0:
        return 0, min(ahi, bhi)
    if alo >= 0 or blo >= 0:
        return 0, ahi if alo >= 0 else bhi
    high = min(ahi, bhi) if ahi < 0 and bhi < 0 else max(ahi, bhi)
    return -_width(alo, blo), high


def bit_or(a: Interval, b: Interval) -> Interval:
    return _mirror(bit_and(*map(_mirror, (a, b))))


def bit_xor(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if alo == ahi and blo == bhi:
        return (int(alo) ^ int(blo),) * 2
    if blo == bhi == -1:
        return _mirror(a)
    if alo == ahi == -1:
        return _mirror(b)
    size = _width(alo, ahi, blo, bhi)
    if (alo >= 0 and blo >= 0) or (ahi < 0 and bhi < 0):
        return 0, size - 1
    if (alo >= 0 and bhi < 0) or (ahi < 0 and blo >= 0):
        return -size, -1
    return -size, size - 1


def shl(a: Interval, b: Interval, width: Number) -> Interval:
    """x · 2^y for 0 <= y < width, otherwise 0."""
    alo, ahi = a
    low, high = max(b[0], 0), min(b[1], width - 1)
    found: list[Number] = [0] if b[0] < 0 or b[1] > width - 1 else []  # an index has no width: ∞ is not > ∞
    if low > high:
        return 0, 0
    for y in (low, high):
        factor: Number = 1 << int(y) if y <= _LONGEST_SHIFT else _INF
        found += (_times(alo, factor), _times(ahi, factor))
    return _hull(*found)


def shr(a: Interval, b: Interval, width: Number) -> Interval:
    """x // 2^y for 0 <= y < width, otherwise 0 or -1 by the sign of x."""
    low, high = max(b[0], 0), min(b[1], width - 1)
    found: list[Number] = []
    if b[0] < 0 or b[1] >= width or high > _LONGEST_SHIFT:
        found += (-(x < 0) for x in a)
    for y in (low, high) if low <= high else ():
        divisor: Number = 1 << int(y) if y <= _LONGEST_SHIFT else _INF
        found += (_quotient(x, divisor) for x in a)
    return _hull(*found)
