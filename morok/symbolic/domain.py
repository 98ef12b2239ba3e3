"""Where processors divide and shift at all: what has to be shown of the operands before an instruction may.

Division, remainder and shifts have a value for all operands in the IR. The instructions do not: they want a
divisor that is not 0, not the least integer by -1, and an amount below the width. An operand counts as proved
by its interval, or by the choice that it comes from: in `where(c, 1, y)` y is used where c is false, so it is
not 0 if c says `y = 0` among other things, and may be 0 if c says something else.
"""

from __future__ import annotations

from typing import Any

from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.ir.ops import Ops

Facts = tuple[tuple[UOp, bool], ...]  # conditions, and whether they hold
_DEPTH = 4  # choices in choices that are looked through


def divides(x: UOp, y: UOp, facts: Facts = (), depth: int = _DEPTH) -> bool:
    """Is y never 0, and never -1 where x is the least integer, wherever the facts hold?"""
    if _divides(x, y, facts):
        return True
    if y.op is not Ops.WHERE or not depth:
        return False
    condition, yes, no = y.src
    known = divides(x, yes, facts + implied(condition, True), depth - 1)
    return known and divides(x, no, facts + implied(condition, False), depth - 1)


def _divides(x: UOp, y: UOp, facts: Facts) -> bool:
    low, high = _interval(y, facts)
    never = {_different(c, holds, y) for c, holds in facts}
    if low <= 0 <= high and 0 not in never:
        return False
    if not low <= -1 <= high or -1 in never:
        return True
    least = x.dtype.scalar.min
    if _interval(x, facts)[0] > least:
        return True
    return any(not holds and _both(c, (y, -1), (x, least)) for c, holds in facts)


def shifts(x: UOp, y: UOp) -> bool:
    """Is y always an amount below the width of x?"""
    low, high = bounds(y)
    return bool(low >= 0 and high < x.dtype.scalar.bits)


def implied(condition: UOp, holds: bool) -> Facts:
    """What is known of the parts of a condition that holds, or does not."""
    if condition.op is Ops.NOT:
        return implied(condition.src[0], not holds)
    if condition.op is (Ops.AND if holds else Ops.OR):
        return implied(condition.src[0], holds) + implied(condition.src[1], holds)
    return ((condition, holds),)


def _constant(x: UOp) -> bool:
    return x.op is Ops.CONST


def _interval(x: UOp, facts: Facts) -> tuple[Any, Any]:
    """The bounds of x, made narrower by comparisons of x with constants."""
    low, high = bounds(x)
    for _ in range(2):  # an end that is excluded may be met a second time
        for condition, holds in facts:
            if len(condition.src) != 2:
                continue
            a, b = condition.src
            if condition.op is Ops.CMPLT:
                if a is x and _constant(b):
                    low, high = (low, min(high, b.arg - 1)) if holds else (max(low, b.arg), high)
                elif b is x and _constant(a):
                    low, high = (max(low, a.arg + 1), high) if holds else (low, min(high, a.arg))
                continue
            value = _compared(condition, x)
            if value is None or condition.op not in (Ops.CMPEQ, Ops.CMPNE):
                continue
            if holds is (condition.op is Ops.CMPEQ):
                low, high = max(low, value), min(high, value)
            else:
                low, high = low + (low == value), high - (high == value)
    return low, high


def _compared(condition: UOp, x: UOp) -> int | None:
    """The constant that x is compared with."""
    a, b = condition.src
    if a is x and _constant(b):
        return int(b.arg)
    return int(a.arg) if b is x and _constant(a) else None


def _different(condition: UOp, holds: bool, x: UOp) -> int | None:
    """A constant that x is not."""
    if condition.op not in (Ops.CMPEQ, Ops.CMPNE) or holds is (condition.op is Ops.CMPEQ):
        return None
    return _compared(condition, x)


def _both(condition: UOp, *wanted: tuple[UOp, int]) -> bool:
    """Does the condition say no more than that these have these values?"""
    parts = implied(condition, True)
    allowed = {(x, value) for x, value in wanted}
    for part, holds in parts:
        if not holds or part.op is not Ops.CMPEQ:
            return False
        a, b = part.src
        x, c = (a, b) if _constant(b) else (b, a)
        if not _constant(c) or (x, int(c.arg)) not in allowed:
            return False
    return True
