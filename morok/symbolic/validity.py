"""Simplifying a value under the condition that guards it: in `p ? x : y`, x may use that p holds.

A condition is read as a conjunction of `e < c` and `c < e` with constant c. Each e is replaced by a variable
that has the tighter bounds, x is simplified, and e is put back. What a condition says about sums is used on
its single term as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from morok.ir.bounds import vmax, vmin
from morok.ir.cached_graph import placeholder
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.rules import Rules, why
from morok.rewrite.ruleset import RuleSet, rules
from morok.rewrite.terms import Bool, Index, Where
from morok.symbolic.cost import cost


def conjuncts(condition: UOp) -> Iterator[UOp]:
    """The parts of a conjunction."""
    stack = [condition]
    while stack:
        c = stack.pop()
        if c.op is Ops.AND and c.dtype.is_bool:
            stack += reversed(c.src)
        else:
            yield c


def known_bounds(condition: UOp) -> dict[UOp, tuple[int, int]]:
    """What a condition says about index expressions: the interval of each, where it is smaller than
    before."""
    found: dict[UOp, tuple[int, int]] = {}

    def narrow(e: UOp, low: float, high: float) -> None:
        old_low, old_high = found.get(e, (vmin(e), vmax(e)))
        new = (max(low, old_low), min(high, old_high))
        if new != (old_low, old_high) and abs(new[0]) != float("inf") and abs(new[1]) != float("inf"):
            found[e] = (int(new[0]), int(new[1]))

    for part in conjuncts(condition):
        if part.op is Ops.CMPLT and part.src[0].dtype.is_index:
            left, right = part.src
            if right.op is Ops.CONST:
                narrow(left, float("-inf"), right.arg - 1)
            elif left.op is Ops.CONST:
                narrow(right, left.arg + 1, float("inf"))
        elif part.op is Ops.CMPEQ and part.src[0].dtype.is_index and part.src[1].op is Ops.CONST:
            narrow(part.src[0], part.src[1].arg, part.src[1].arg)
    return found


def _stand_in(e: UOp, number: int, low: int, high: int) -> UOp:
    """A variable with the tighter bounds, or their only value. No variable of a user can have such a name."""
    if low == high:
        return const(e.dtype, low)
    return make(Ops.DEFINE_VAR, e.dtype, (), (f"in place of {number}", low, high))


def _is_read(n: UOp) -> bool:
    # a running sum needs its earlier steps as they were, and a check asks wherever it stands
    return n.op in (Ops.INDEX, Ops.LOAD, Ops.SCAN, Ops.CHECK)


def simplify_under(condition: UOp, x: UOp, ruleset: RuleSet) -> UOp:
    """x, simplified with what the condition says. Equal to x wherever the condition holds.

    Memory that x reads is read wherever x is computed, so places and gates of reads stay as they are.
    """
    reads = [n for n in toposort(x, stop=_is_read) if _is_read(n)]
    if reads:
        hidden = {n: placeholder(number, n.dtype, ()) for number, n in enumerate(reads)}
        found = simplify_under(substitute(condition, hidden), substitute(x, hidden), ruleset)
        return substitute(found, {name: n for n, name in hidden.items()})
    inside = set(toposort(x))
    for number, (e, (low, high)) in enumerate(known_bounds(condition).items()):
        if e not in inside or low > high:
            continue
        stand_in = _stand_in(e, number, low, high)
        narrowed = rewrite(substitute(x, {e: stand_in}), ruleset)
        better = narrowed if low == high else rewrite(substitute(narrowed, {stand_in: e}), ruleset)
        if cost(better) < cost(x):  # anything else would only be another way to write it
            x = better
            inside = set(toposort(x))
    return x


def make_validity_rules(inner: Callable[[], RuleSet]) -> RuleSet:
    """The rules, given the set that simplifies inside a choice."""

    def simplify_branch(node: UOp, p: UOp, x: UOp, y: UOp) -> UOp | None:
        """The branch that is taken where p holds, simplified under p."""
        better = simplify_under(p, x, inner())
        return None if better is x else node.replace((p, better, y))

    @rules("symbolic.validity")
    def validity_rules(p: Bool, x: Index, y: Index) -> Rules:
        """A value under its guard."""
        yield (
            "branch",
            Where(p, x, y) >> simplify_branch,
            why("simplifies with the other rules under tighter bounds"),
        )

    return validity_rules
