"""Interval arithmetic on integers: what an operation can give when its operands lie between known ends.

An end is an integer or, where nothing is known, `∓math.inf`. The results hold every value that is possible
(soundness); for most operations they are also as narrow as an interval can be. Wrap-around is not looked at
here.
"""

from __future__ import annotations

import math

Number = int | float  # a float only as an infinity
Interval = tuple[Number, Number]

_INF = math.inf
_LONGEST_SHIFT = 4096  # of an index; beyond that the bound would be a silly number


def _finite(*ends: Number) -> bool:
    return all(end.__class__ is not float for end in ends)


def _hull(*values: Number) -> Interval:
    return min(values), max(values)


def _times(x: Number, y: Number) -> Number:
    return x * y if x and y else 0


def mul(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if alo >= 0 and blo >= 0:
        return _times(alo, blo), _times(ahi, bhi)
    return _hull(_times(alo, blo), _times(alo, bhi), _times(ahi, blo), _times(ahi, bhi))


# --- division: the operation is monotone in each operand as long as the divisor keeps its sign, so the
# extremes are at the corners; a divisor of zero gives zero


def _signed_parts(b: Interval) -> list[Interval]:
    blo, bhi = b
    parts: list[Interval] = []
    if bhi > 0:
        parts.append((max(blo, 1), bhi))
    if blo < 0:
        parts.append((blo, min(bhi, -1)))
    return parts


def _floor_quotient(x: Number, y: Number) -> Number:
    if _finite(x, y):
        return x // y
    if x and _finite(y):
        return _INF if (x > 0) == (y > 0) else -_INF
    return 0 if x == 0 or (x > 0) == (y > 0) else -1


def _truncated_quotient(x: Number, y: Number) -> Number:
    if _finite(x, y):
        return x // y if (x < 0) == (y < 0) else -(-x // y)
    if x and _finite(y):
        return _INF if (x > 0) == (y > 0) else -_INF
    return 0


def floordiv(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if blo == bhi and blo > 0:
        return _floor_quotient(alo, blo), _floor_quotient(ahi, blo)
    found: list[Number] = [0] if blo <= 0 <= bhi else []
    for ylo, yhi in _signed_parts(b):
        found += (_floor_quotient(x, y) for x in a for y in (ylo, yhi))
    return _hull(*found)


def cdiv(a: Interval, b: Interval) -> Interval:
    blo, bhi = b
    found: list[Number] = [0] if blo <= 0 <= bhi else []
    for ylo, yhi in _signed_parts(b):
        found += (_truncated_quotient(x, y) for x in a for y in (ylo, yhi))
    return _hull(*found)


def floormod(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if blo > 0:
        return _mod_positive(alo, ahi, blo, bhi)
    found: list[Number] = [0] if bhi >= 0 else []
    for ylo, yhi in _signed_parts(b):
        if ylo > 0:
            found += _mod_positive(alo, ahi, ylo, yhi)
        else:  # x mod y = -((-x) mod (-y))
            low, high = _mod_positive(-ahi, -alo, -yhi, -ylo)
            found += (-high, -low)
    return _hull(*found)


def _mod_positive(alo: Number, ahi: Number, ylo: Number, yhi: Number) -> Interval:
    if alo >= 0 and ahi < ylo:
        return alo, ahi
    if ylo == yhi and _finite(alo, ahi) and alo // ylo == ahi // ylo:
        return alo % ylo, ahi % ylo
    return 0, min(yhi - 1, ahi) if alo >= 0 else yhi - 1


def cmod(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    largest = max(-blo, bhi)  # of |y|, unless y is 0
    smallest = 0 if blo <= 0 <= bhi else min(abs(blo), abs(bhi))
    if largest == 0:
        return 0, 0
    if max(-alo, ahi) < smallest:
        return a
    if blo == bhi and _finite(alo, ahi) and (alo >= 0 or ahi <= 0):
        quotient = _truncated_quotient(alo, blo)
        if quotient == _truncated_quotient(ahi, blo):
            return alo - quotient * blo, ahi - quotient * blo
    low = 0 if alo >= 0 else -min(-alo, largest - 1)
    return low, 0 if ahi <= 0 else min(ahi, largest - 1)


# --- bits


def _mirror(a: Interval) -> Interval:
    """The interval of ~x = -1 - x."""
    return -1 - a[1], -1 - a[0]


def _width(*ends: Number) -> Number:
    """2^k such that all integers between the ends lie in -2^k … 2^k - 1."""
    if not _finite(*ends):
        return _INF
    return 1 << max(int(end if end >= 0 else ~int(end)).bit_length() for end in ends)


def bit_and(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if alo == ahi and blo != bhi:
        return bit_and(b, a)
    if blo == bhi and isinstance(alo, int) and isinstance(ahi, int) and isinstance(blo, int):
        if alo == ahi or (blo < 0 and -blo & (-blo - 1) == 0):  # clearing low bits is monotone
            return alo & blo, ahi & blo
        if blo >= 0 and blo & (blo + 1) == 0:  # keeping low bits is a remainder
            return floormod(a, (blo + 1, blo + 1))
    if alo >= 0 and blo >= 0:
        return 0, min(ahi, bhi)
    if alo >= 0 or blo >= 0:
        return 0, ahi if alo >= 0 else bhi
    high = min(ahi, bhi) if ahi < 0 and bhi < 0 else max(ahi, bhi)
    return -_width(alo, blo), high


def bit_or(a: Interval, b: Interval) -> Interval:
    return _mirror(bit_and(_mirror(a), _mirror(b)))


def bit_xor(a: Interval, b: Interval) -> Interval:
    alo, ahi = a
    blo, bhi = b
    if alo == ahi and blo == bhi:
        return (int(alo) ^ int(blo),) * 2
    if -1 in (alo, blo) and (alo == ahi or blo == bhi):
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
        found += (_floor_quotient(x, divisor) for x in a)
    return _hull(*found)
