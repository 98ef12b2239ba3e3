"""Gates of reads: what padding leaves behind, made small.

A read under a gate is 0 where the gate does not hold, so choosing 0 there once more changes nothing. Under
its gate a place may be simpler than without it.
"""

from __future__ import annotations

from morok.ir.infer import ranges
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.sizes import below_in_loops
from morok.rewrite.rules import Rules, grows, when, why
from morok.rewrite.ruleset import RuleSet, join, rules
from morok.rewrite.terms import HEADS, Bool, Cmplt, Index, Var, Where, dtype, false, true, zero
from morok.symbolic.sets import symbolic
from morok.symbolic.validity import conjuncts, simplify_under

_Index = HEADS["Index"]


def holds_under(p: UOp, g: UOp) -> bool:
    """Whether every part of p is a part of g, so that p holds wherever g does."""
    return set(conjuncts(p)) <= set(conjuncts(g))


def is_read(n: UOp) -> bool:
    """Not an address."""
    return not n.dtype.is_ptr


def in_open_loops(x: UOp, y: UOp) -> bool:
    """Whether a loop around has a symbolic end: bounds say all about others."""
    return any(r.src[0].op is not Ops.CONST for n in (x, y) for r in ranges(n))


def simpler_place(n: UOp, b: UOp, i: UOp, g: UOp) -> UOp | None:
    """The place, simplified with what the gate says. Where it is itself read from stays."""
    better = simplify_under(g, i, symbolic)
    return None if better is i else n.replace((b, better, g))


_SMALLER = grows("a part of what was there; the check does not see that one name stands for the inside")


@rules("schedule.gates")
def gate_rules(n: Var, b: Var, i: Index, p: Bool, g: Bool, x: Index, y: Index) -> Rules:
    """Reads under conditions."""
    # p ? read(i | g) : 0 = read(i | g) where g implies p: it is 0 there already
    yield (
        "zero-twice",
        Where(p, n @ _Index(b, i, g), zero) >> n,
        when(holds_under, is_read),
        _SMALLER,
    )
    # a gate that always holds
    yield "open", n @ _Index(b, i, true) >> _Index(b, i, dtype=dtype(n))
    # a gate that never holds
    yield "closed", n @ _Index(b, i, false) >> zero, when(is_read)
    # p*s + k < n  where  p < (n - k - 1)//s + 1: it holds wherever the loops run
    yield "loop-ends", Cmplt(x, y) >> true, when(in_open_loops, below_in_loops)
    # the place may use that the gate holds
    yield (
        "place",
        n @ _Index(b, i, g) >> simpler_place,
        why("simplifies with the other rules under tighter bounds"),
    )


gates: RuleSet = join("gates", symbolic, gate_rules)
