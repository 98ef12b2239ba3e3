"""Load collapse: reductions whose value does not need the loop.

`Σₖ (k = i ? table[k] : 0)` is `table[i]` if i is a row of the table, else 0: a gather with a gate. `Σₖ k` is
arithmetic. So is a sum over a condition `k < e`, which counts, and a maximum of something that does not
depend on k at all. One loop is solved at a time, for one reduction; the rest is the algebra of conditions.

Sums of floats are replaced where every term is a whole number that its type holds, so that the closed form
differs from the loop by no more than the loop's own rounding. Products of a float with 0 or 1 are left alone,
because 0 times infinity is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from morok.dtype import DType, bool_, identity
from morok.dtype import index as index_dtype
from morok.ir.bounds import bounds
from morok.ir.build import cast
from morok.ir.checks import guarded
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS
from morok.symbolic.quotients import join_sum, split_sum

_IDEMPOTENT = frozenset((Ops.MAX, Ops.MIN, Ops.AND, Ops.OR))


def collapse_reduce(node: UOp) -> UOp | None:
    """The reduction with one loop less; None if every loop is needed."""
    if len(node.arg) != 1:
        return None
    op, value, loops = node.arg[0], node.src[0], node.src[1:]
    for r in loops:
        if r.op is not Ops.RANGE:
            continue
        found = without_loop(Sum(node, r, op is Ops.ADD), value)
        if found is not None:
            rest = tuple([other for other in loops if other is not r])
            return make(Ops.REDUCE, node.dtype, (found, *rest), node.arg) if rest else found
    return None


@final
class Sum(NamedTuple):
    """One loop of one reduction."""

    node: UOp
    loop: UOp
    is_sum: bool

    @property
    def neutral(self) -> UOp:
        return const(self.node.dtype, identity(self.node.arg[0].name, self.node.dtype))

    @property
    def stop(self) -> UOp:
        return self.loop.src[0]


def without_loop(what: Sum, value: UOp) -> UOp | None:
    """The value reduced over the loop, without it."""
    loop = what.loop
    if loop not in ranges(value):
        return _constant(what, value)
    condition, inner = _as_choice(what, value)
    if condition is not None:
        return _chosen(what, condition, inner)
    if not what.is_sum:
        return None
    if value.op is Ops.ADD and value.dtype.is_bounded_int:
        parts = [without_loop(what, s) for s in value.src]
        return None if None in parts else alu(Ops.ADD, *(p for p in parts if p is not None))
    return _sum_between(what, value, const(index_dtype, 0), what.stop)


def _constant(what: Sum, value: UOp) -> UOp | None:
    """A value that is the same in every step."""
    op = what.node.arg[0]
    runs = bounds(what.stop)[0] >= 1
    if op in _IDEMPOTENT:
        return value if runs else None
    if not what.is_sum:
        return None
    return _times(value, what.stop)


def _times(value: UOp, count: UOp) -> UOp | None:
    """value added up `count` times; a truth holds if there is a step."""
    dtype = value.dtype
    if value.op is Ops.CONST and value.arg == 0:
        return const(dtype, 0)  # also where the type has no such count: 0 times infinity is no number
    if dtype.is_float and not (value.op is Ops.CONST and _is_whole(value.arg, bounds(count)[1], dtype)):
        return None
    return alu(Ops.MUL, value, cast(count, dtype))


def _is_whole(value: float, count: float, dtype: DType) -> bool:
    """Whether all partial sums are whole numbers that the type holds exactly."""
    return abs(value) * count < exact_limit(dtype) and float(value).is_integer()


def exact_limit(dtype: DType) -> int:
    """Whole numbers up to this one are exact in a float type."""
    return 1 << (dtype.mantissa_bits + 1)


# --- choices


def conjuncts(condition: UOp) -> Iterator[UOp]:
    stack = [condition]
    while stack:
        part = stack.pop()
        if part.op is Ops.AND:
            stack += reversed(part.src)
        else:
            yield part


def _as_choice(what: Sum, value: UOp) -> tuple[UOp | None, UOp]:
    """(condition, x) if the value is x where the condition holds and changes nothing elsewhere."""
    neutral = what.neutral
    op, dtype = value.op, value.dtype
    if op is Ops.WHERE:
        if value.src[2] is neutral:
            return value.src[0], value.src[1]
        if value.src[1] is neutral:
            return alu(Ops.NOT, value.src[0]), value.src[2]
    if op is Ops.NEG and what.is_sum:  # no step adds -0 to a sum, or takes it away
        condition, x = _as_choice(what, value.src[0])
        return condition, value if condition is None else alu(Ops.NEG, x)
    if op is Ops.CAST and value.src[0].dtype.is_bool and what.is_sum:
        return value.src[0], const(dtype, 1)
    if op is Ops.MUL and dtype.is_bounded_int and what.is_sum:
        for mask, x in (value.src, value.src[::-1]):
            if mask.op is Ops.CAST and mask.src[0].dtype.is_bool:
                return mask.src[0], x
    if what.node.arg[0] is Ops.OR:  # numbers are no conditions: no part of them is solved
        return value, const(bool_, True)
    return None, value


def _chosen(what: Sum, condition: UOp, x: UOp) -> UOp | None:
    """Reduces x over the steps in which the condition holds."""
    outside: list[UOp] = []
    inside: list[UOp] = []
    for part in conjuncts(condition):
        (inside if what.loop in ranges(part) else outside).append(part)
    found = _at_one_place(what, inside, x)
    if found is None:
        found = _between(what, inside, x)
    if found is None:
        return None
    for part in outside:
        found = alu(Ops.WHERE, part, found, what.neutral)
    return found


def _at_one_place(what: Sum, inside: list[UOp], x: UOp) -> UOp | None:
    """A condition that holds in at most one step: k = e."""
    for part in inside:
        place = _solve(part, what.loop)
        if place is None:
            continue
        where, valid = place
        valid = alu(Ops.AND, valid, alu(Ops.CMPLT, const(index_dtype, -1), where))
        valid = alu(Ops.AND, valid, alu(Ops.CMPLT, where, what.stop))
        for other in inside:
            if other is not part:
                valid = alu(Ops.AND, valid, put(other, what.loop, where, valid))
        return alu(Ops.WHERE, valid, put(x, what.loop, where, valid), what.neutral)
    return None


def put(root: UOp, loop: UOp, where: UOp, valid: UOp) -> UOp:
    """The value at one step of the loop. Memory is read only if the step exists."""
    if loop not in ranges(root):
        return root
    done: dict[UOp, UOp] = {loop: where}
    for node in toposort(root, stop=lambda n: n is loop):
        if node in done:
            continue
        src = tuple([done[s] for s in node.src])
        if src != node.src and node.op is Ops.INDEX:
            gated = len(src) > 2
            src = (*src[:2], alu(Ops.AND, src[2], valid) if gated else valid)
        done[node] = node.replace(src)
        if src != node.src and node.op is Ops.CHECK:
            done[node] = guarded(done[node], valid)
    return done[root]


def _unwrapped(x: UOp) -> UOp | None:
    """An integer without its casts: the index it was made from; None if a cast could have changed it."""
    while x.op is Ops.CAST:
        inner = x.src[0]
        if not _holds(x.dtype, *bounds(inner)):
            return None
        x = inner
    return x if x.dtype.is_index else None


def _holds(dtype: DType, low: float, high: float) -> bool:
    if dtype.is_index:
        return True
    if dtype.is_float:
        return max(abs(low), abs(high)) <= exact_limit(dtype)
    return bool(dtype.min <= low and high <= dtype.max)


def _linear(x: UOp, loop: UOp) -> tuple[int, UOp] | None:
    """(a, b) with x = a·loop + b and b free of the loop."""
    terms, constant = split_sum(x)
    factor, rest = 0, []
    for term, k in terms:
        if term is loop:
            factor += k
        elif loop in ranges(term):
            return None
        else:
            rest.append((term, k))
    return factor, join_sum(rest, constant, x)


def _solve(part: UOp, loop: UOp) -> tuple[UOp, UOp] | None:
    """(e, condition) if `part` says that the loop's index is e, provided the condition."""
    if part.op is not Ops.CMPEQ:
        return None
    for left, right in (part.src, part.src[::-1]):
        if loop in ranges(right) or not right.dtype.is_int:
            continue
        inner = _unwrapped(left)
        line = _linear(inner, loop) if inner is not None else None
        if line is None or line[0] == 0:
            continue
        factor, rest = line
        distance = alu(Ops.SUB, cast(right, index_dtype), rest)
        if abs(factor) == 1:
            always = const(bool_, True)
            return alu(Ops.MUL, distance, const(index_dtype, factor)), always
        step = const(index_dtype, factor)
        fits = alu(Ops.CMPEQ, alu(Ops.FLOORMOD, distance, step), const(index_dtype, 0))
        return alu(Ops.FLOORDIV, distance, step), fits
    return None


# --- intervals


def _between(what: Sum, inside: list[UOp], x: UOp) -> UOp | None:
    """Conditions that hold in an interval of steps."""
    if not what.is_sum:
        return None
    low: UOp = const(index_dtype, 0)
    high: UOp = what.stop
    for part in inside:
        limit = _limit(part, what.loop)
        if limit is None:
            return None
        is_upper, value = limit
        if is_upper:
            high = alu(Ops.MIN, high, value)
        else:
            low = alu(Ops.MAX, low, value)
    return _sum_between(what, x, low, alu(Ops.MAX, low, high))


def _limit(part: UOp, loop: UOp) -> tuple[bool, UOp] | None:
    """(True, e) for loop < e, (False, e) for loop >= e."""
    negated = part.op is Ops.NOT
    comparison = part.src[0] if negated else part
    if comparison.op is not Ops.CMPLT:
        return None
    left, right = (_unwrapped(s) for s in comparison.src)
    if left is None or right is None:
        return None
    # left < right, or right < left + 1
    less, more = (right, alu(Ops.ADD, left, const(index_dtype, 1))) if negated else (left, right)
    line = _linear(_difference(less, more), loop)
    if line is None or abs(line[0]) != 1:
        return None
    factor, rest = line  # factor·loop + rest < 0
    if factor == 1:
        return True, alu(Ops.MUL, rest, const(index_dtype, -1))
    return False, alu(Ops.ADD, rest, const(index_dtype, 1))


def _difference(a: UOp, b: UOp) -> UOp:
    terms, constant = split_sum(a)
    others, minus = split_sum(b)
    return join_sum([*terms, *((t, -k) for t, k in others)], constant - minus, a)


def _sum_between(what: Sum, x: UOp, low: UOp, high: UOp) -> UOp | None:
    """Σ x for low ≤ loop < high, where x is constant or linear in the loop."""
    count = alu(Ops.SUB, high, low)
    if what.loop not in ranges(x):
        return _times(x, count)
    if x.op is Ops.MUL and x.dtype.is_bounded_int:
        for y, factor in (x.src, x.src[::-1]):
            if what.loop not in ranges(factor):
                inner = _sum_between(what, y, low, high)
                return None if inner is None else alu(Ops.MUL, inner, factor)
    inner_index = _unwrapped(x)
    line = _linear(inner_index, what.loop) if inner_index is not None else None
    if line is None:
        return None
    slope, rest = line
    last = alu(Ops.SUB, alu(Ops.ADD, low, high), const(index_dtype, 1))
    steps = alu(Ops.FLOORDIV, alu(Ops.MUL, last, count), const(index_dtype, 2))
    total = alu(Ops.ADD, alu(Ops.MUL, steps, const(index_dtype, slope)), alu(Ops.MUL, rest, count))
    return cast(total, x.dtype)


@rules("schedule.collapse")
def collapse_rules() -> Rules:
    """Reductions without their loops."""
    # Σₖ [k = i] x(k) = x(i) for 0 ≤ i < n; Σₖ a·k + b = a·n(n-1)/2 + b·n; maxₖ x = x
    yield (
        "reduce",
        HEADS["Reduce"].any() >> collapse_reduce,
        why("solves the loop's index for any number of conditions"),
    )
