"""The loops of a kernel: which there are, what closes them, how they are replaced.

A loop is a RANGE; its number is its name, and says which loop is further out where the order is free. Loops
over outputs are closed by ENDs, loops of reductions by REDUCEs, loops that fill a local copy by a BUFFERIZE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.caches import Cache
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import simplify

LANE_KINDS = (AxisKind.UPCAST, AxisKind.UNROLL)
LOOP_KINDS = (AxisKind.LOOP, AxisKind.REDUCE)


@final
@dataclass(frozen=True, eq=False)
class Loops:
    """What the actions ask about a kernel, collected in one walk."""

    ast: UOp
    order: list[UOp]
    by_number: dict[int, UOp]
    closers: dict[UOp, list[UOp]]

    def closed_by(self, r: UOp) -> Op | None:
        """The op that closes a loop everywhere; None where it is closed by different ones."""
        ops = {n.op for n in self.closers[r]}
        return ops.pop() if len(ops) == 1 else None

    def next_number(self) -> int:
        """The number of a new loop inside all others."""
        return 1 + max(self.by_number, default=-1)

    def bounds_another(self, r: UOp) -> bool:
        """Whether the end of another loop depends on this one."""
        return any(r in ranges(other.src[0]) for other in self.closers if other is not r)

    def lanes_with(self, r: UOp) -> int:
        """The widest vector among the nodes that depend on a loop, the loop itself not counted."""
        widest = 1
        steps = {n.src[-1] for n in self.order if n.op is Ops.WMMA}  # inside of a matrix unit, so no lanes
        for alive in {ranges(n) for n in self.order}:
            if r not in alive:
                continue
            lanes = 1
            for other in alive:
                if other is not r and other.arg[1] in LANE_KINDS and other not in steps:
                    lanes *= size(other) or 1
            widest = max(widest, lanes)
        return widest


def loops_of(ast: UOp) -> Loops:
    """The loops of a kernel."""
    order = toposort(ast)
    closers: dict[UOp, list[UOp]] = {}
    for node in order:
        for r in closed_ranges(node):
            if r.op is Ops.RANGE:
                closers.setdefault(r, []).append(node)
    return Loops(ast, order, {int(r.arg[0]): r for r in closers}, closers)


def size(r: UOp) -> int | None:
    """The number of iterations; None where it is known only when the kernel runs."""
    return int(r.src[0].arg) if r.src[0].op is Ops.CONST else None


def divides(amount: int, end: UOp) -> bool:
    """Whether a loop splits evenly, also for a size that is not known yet."""
    if end.op is Ops.CONST:
        return int(end.arg) % amount == 0
    remainder = simplify(alu(Ops.FLOORMOD, end, const(end.dtype, amount)))
    return remainder.op is Ops.CONST and remainder.arg == 0


def quotient(end: UOp, amount: int) -> UOp:
    """end // amount, folded."""
    if end.op is Ops.CONST:
        return const(end.dtype, int(end.arg) // amount)
    return simplify(alu(Ops.FLOORDIV, end, const(end.dtype, amount)))


def loop(end: UOp | int, number: int, kind: AxisKind, like: UOp) -> UOp:
    """A RANGE that stands in for another; keeps the origin."""
    stop = end if isinstance(end, UOp) else const(like.dtype, end)
    return make(Ops.RANGE, like.dtype, (stop,), (number, kind), like.origin)


def simplify_places(ast: UOp, r: UOp) -> UOp:
    """The kernel with the indices that depend on a loop simplified, and nothing else touched."""
    done: dict[UOp, UOp] = {}  # nodes that become others
    changed = done.keys()
    for node in toposort(ast):
        if changed.isdisjoint(node.src) and (node.op is not Ops.INDEX or r not in ranges(node)):
            continue
        src = [done.get(s, s) for s in node.src]
        if node.op is Ops.INDEX:
            src[1:] = map(simplify, src[1:])
        new = node.replace(tuple(src))
        if new is not node:
            done[node] = new
    return done.get(ast, ast)


def plus(a: UOp, k: int) -> UOp:
    return a if k == 0 else alu(Ops.ADD, a, const(a.dtype, k))


def times(a: UOp, k: int) -> UOp:
    return a if k == 1 else alu(Ops.MUL, a, const(a.dtype, k))


def sums_over(loops: Loops, own: list[UOp]) -> list[UOp]:
    """Reductions over other loops, for every point of these."""
    return [n for n in loops.order if n.op is Ops.REDUCE and all(r in ranges(n) for r in own)]


def flat_place(indices: list[UOp], sizes: list[int]) -> UOp:
    """The row-major place of a point."""
    place = indices[0]
    for i, n in zip(indices[1:], sizes[1:], strict=True):
        place = alu(Ops.ADD, times(place, n), i)
    return place


def below(r: UOp, end: UOp) -> UOp:
    """The condition r < end."""
    return alu(Ops.CMPLT, r, end)


def both(a: UOp | None, b: UOp) -> UOp:
    """The conjunction of a gate that may be missing and a condition."""
    return b if a is None else alu(Ops.AND, a, b)


def gate_of(place: UOp) -> UOp | None:
    """The condition of an INDEX."""
    return place.src[-1] if len(place.src) > 2 and place.src[-1].dtype.is_bool else None


# Not held weakly by the place: a place that is one loop is a term of itself, and would never be forgotten.
_terms: Cache[UOp, list[tuple[UOp, int]]] = Cache("optimize.terms", 1024)


def terms_of(place: UOp) -> list[tuple[UOp, int]]:
    """A place as a sum of terms with constant factors; remembered, as it is asked for loop by loop."""
    found = _terms.get(place)
    if found is None:
        found = _terms[place] = list(split_sum(simplify(place))[0])
    return found


def stride(place: UOp, r: UOp) -> int | None:
    """The factor of a loop in a place; None where it is not a plain one."""
    total = 0
    for term, k in terms_of(place):
        if term is r:
            total += k
        elif r in ranges(term):
            return None
    return total
