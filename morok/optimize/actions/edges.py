"""Actions for sizes that are no multiple of a tile, and for edges that are guarded: PADTO, PEEL, PEEL_FIRST.

PADTO rounds a loop up and guards what lies beyond: fit for register tiles, where one body serves all tiles.
PEEL cuts the rest off into a loop of its own: fit for long loops, whose body then needs no guard at all.
PEEL_FIRST does so with what comes first, such as the border of an array that is filled up all around.
"""

from __future__ import annotations

from collections.abc import Mapping

from morok.dtype import identity
from morok.ir.bounds import vmin
from morok.ir.checks import guarded
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import shared_layout
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import scan_loops
from morok.machine.machine import Machine
from morok.optimize.actions import scans
from morok.optimize.loops import (
    LOOP_KINDS,
    Loops,
    below,
    both,
    divides,
    gate_of,
    loop,
    plus,
    quotient,
    size,
    stride,
    times,
)  # fmt: skip
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.kernel.ranges import replace_loops
from morok.symbolic.sets import simplify

NEAR = 4  # elements from one step of a loop to the next that are read as vectors with what lies between


def _has_remainder(loops: Loops, opt: Opt) -> str | None:
    """What both actions ask: a plain loop over outputs or of a reduction, with a rest."""
    r = loops.by_number.get(opt.axis)
    if r is None:
        return f"there is no loop {opt.axis}"
    if opt.amount < 2:
        return "a multiple of one is every size"
    if r.arg[1] not in LOOP_KINDS:
        return f"loop {opt.axis} is {r.arg[1].value} already"
    if loops.closed_by(r) not in (Ops.END, Ops.REDUCE):
        return f"loop {opt.axis} is neither over outputs nor of a reduction alone"
    if loops.bounds_another(r) or ranges(r.src[0]):
        return f"loop {opt.axis} is bound to another loop"
    if divides(opt.amount, r.src[0]):
        return f"loop {opt.axis} is a multiple of {opt.amount} already"
    return None


# --- PADTO


def can_pad(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    r = loops.by_number.get(opt.axis)
    if r is not None and any(n.op is Ops.WMMA and r in ranges(n) for n in loops.order):
        return f"a matrix unit takes whole tiles along loop {opt.axis}"
    return _has_remainder(loops, opt)


def pad(loops: Loops, opt: Opt) -> UOp:
    """A loop runs on to a multiple; stores beyond the end are masked, reductions add nothing there.

    Reads along which the loop is contiguous, or moves by a few elements, are guarded, which is a mask of a
    vector; all others read the last element again, which costs nothing inside.

    PADTO(0, 4):   for r0 < 5: y[r0] = x[r0]   →   for r0 < 8: y[r0] = x[r0 if r0 < 5]   if r0 < 5
    """
    r = loops.by_number[opt.axis]
    end = r.src[0]
    whole = simplify(times(quotient(plus(end, opt.amount - 1), opt.amount), opt.amount))
    wide = loop(whole, opt.axis, r.arg[1], r)
    if end.op is Ops.CONST:
        wide = loop(-(-int(end.arg) // opt.amount) * opt.amount, opt.axis, r.arg[1], r)
    inside = below(wide, end)
    clamped = alu(Ops.MIN, wide, plus(end, -1))
    if vmin(end) < 1:  # nothing may be left; a read that is taken out of the loop happens all the same
        clamped = alu(Ops.MAX, clamped, const(end.dtype, 0))
    done: dict[UOp, UOp] = {r: wide}
    for node in loops.order:
        if node in done:
            continue
        src = tuple([done[s] for s in node.src])
        if node.op is Ops.INDEX and not node.dtype.is_ptr and r in _alive(node.src[1:]):
            done[node] = _guarded_read(node, done, r, inside, clamped)
        elif node.op is Ops.CHECK and r in ranges(node):
            done[node] = guarded(node, inside, src)
        elif node.op is Ops.END and r in closed_ranges(node):
            done[node] = node.replace((_guarded_store(src[0], inside), *src[1:]))
        elif node.op is Ops.REDUCE and r in closed_ranges(node):
            values = [
                alu(Ops.WHERE, inside, value, const(value.dtype, identity(op.name, value.dtype)))
                for op, value in zip(node.arg, src, strict=False)
            ]
            done[node] = node.replace((*values, *src[len(values) :]))
        else:
            done[node] = node.replace(src)
    return done[loops.ast]


def _alive(nodes: tuple[UOp, ...]) -> frozenset[UOp]:
    return frozenset().union(*map(ranges, nodes))


def _guarded_read(node: UOp, done: Mapping[UOp, UOp], r: UOp, inside: UOp, clamped: UOp) -> UOp:
    """The read under a condition where the loop is contiguous, of the last element where it is not."""
    source, place = done[node.src[0]], node.src[1]
    if 1 <= (stride(place, r) or 0) <= NEAR:
        gate = gate_of(make(node.op, node.dtype, tuple([done[s] for s in node.src])))
        return make(Ops.INDEX, node.dtype, (source, done[place], both(gate, inside)), node.arg, node.origin)
    # A reduction over the same loop that a condition asks for has a loop of its own, which is not limited.
    limited: dict[UOp, UOp] = {r: clamped}
    for n in toposort(*node.src[1:], stop=lambda n: r not in ranges(n)):
        if n not in limited:
            new = n.replace(tuple([limited[s] for s in n.src])) if r in ranges(n) else done[n]
            limited[n] = new
    return make(Ops.INDEX, node.dtype, (source, *(limited[s] for s in node.src[1:])), node.arg, node.origin)


def _guarded_store(store: UOp, inside: UOp) -> UOp:
    where, value = store.src
    gated = make(Ops.INDEX, where.dtype, (*where.src[:2], both(gate_of(where), inside)), where.arg)
    return store.replace((gated, value))


# --- PEEL


def can_peel(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if scans.is_continued(loops):
        return "a running reduction goes on in another effect"
    if scans.runs_along(loops, loops.by_number.get(opt.axis)):
        return scans.can_peel(loops, opt)
    reason = _has_remainder(loops, opt)
    if reason is not None:
        return reason
    r = loops.by_number[opt.axis]
    known = size(r)
    if known is not None and known < opt.amount:
        return f"loop {opt.axis} has only {known} iterations"
    if any(node.op is Ops.END and node not in loops.ast.src for node in loops.closers[r]):
        return "an effect lies inside another one"
    if loops.closed_by(r) is Ops.END and any(shared_layout(n) is not None for n in loops.order):
        return "the rest would have tiles of its own, which not all threads would fill"
    return None


def peel(loops: Loops, opt: Opt) -> UOp:
    """A loop runs to the last multiple, and a second one over the rest.

    PEEL(0, 4):   for r0 < 10: f(r0)   →   for r0 < 8: f(r0);  for r1 < 2: f(8 + r1)
    """
    r = loops.by_number[opt.axis]
    if scans.runs_along(loops, r):
        return scans.peel(loops, opt)
    end = r.src[0]
    number = loops.next_number()
    count = const(end.dtype, opt.amount)
    if end.op is Ops.CONST:
        whole = const(end.dtype, int(end.arg) // opt.amount * opt.amount)
        remainder = const(end.dtype, int(end.arg) % opt.amount)
    else:
        whole = simplify(alu(Ops.MUL, alu(Ops.FLOORDIV, end, count), count))
        remainder = simplify(alu(Ops.FLOORMOD, end, count))
    main = loop(whole, opt.axis, r.arg[1], r)
    tail = loop(remainder, number, r.arg[1], r)
    single = remainder.op is Ops.CONST and remainder.arg == 1
    where = whole if single else alu(Ops.ADD, tail, whole)
    parts = _Parts(r, main, where, () if single else (tail,), number + 1)
    if loops.closed_by(r) is Ops.REDUCE:
        return parts.reductions(loops)
    return parts.effects(loops)


# --- PEEL_FIRST


def can_peel_first(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    r = loops.by_number.get(opt.axis)
    if r is None:
        return f"there is no loop {opt.axis}"
    if scans.is_continued(loops) or scans.runs_along(loops, r):
        return "a running reduction begins there"
    if r.arg[1] not in LOOP_KINDS or loops.closed_by(r) not in (Ops.END, Ops.REDUCE):
        return f"loop {opt.axis} is no plain loop"
    if loops.bounds_another(r):
        return f"loop {opt.axis} is bound to another loop"
    known = size(r)
    if known is None or not 0 < opt.amount < known:
        return f"loop {opt.axis} has {'no known number of' if known is None else known} iterations"
    if any(node.op is Ops.END and node not in loops.ast.src for node in loops.closers[r]):
        return "an effect lies inside another one"
    if any(shared_layout(n) is not None for n in loops.order):
        return "the first ones would have tiles of their own, which not all threads would fill"
    return None


def peel_first(loops: Loops, opt: Opt) -> UOp:
    """The first iterations have a loop of their own, and the old one begins behind them.

    PEEL_FIRST(0, 1):   for r0 < 10: f(r0)   →   for r0 < 9: f(1 + r0);  f(0)
    """
    r = loops.by_number[opt.axis]
    kind = r.src[0].dtype
    number = loops.next_number()
    main = loop(const(kind, int(r.src[0].arg) - opt.amount), opt.axis, r.arg[1], r)
    first = loop(const(kind, opt.amount), number, r.arg[1], r)
    single = opt.amount == 1
    where = const(kind, 0) if single else first
    behind = alu(Ops.ADD, main, const(kind, opt.amount)) if size(main) != 1 else const(kind, opt.amount)
    parts = _Parts(r, main, where, () if single else (first,), number + 1, behind)
    # guards that all of a part fulfils, or none, go at once
    if loops.closed_by(r) is Ops.REDUCE:
        return simplify(parts.reductions(loops))
    before = set(loops.ast.src)
    cut = parts.effects(loops)
    return cut.replace(tuple([effect if effect in before else simplify(effect) for effect in cut.src]))


class _Parts:
    """The two halves of a peeled loop, and what is made of a node in each.

    `at`: the place that the main part's loop stands for, if that is another than its count.
    """

    def __init__(
        self, r: UOp, main: UOp, where: UOp, tail: tuple[UOp, ...], number: int, at: UOp | None = None
    ) -> None:
        self.r, self.main, self.where, self.tail, self.number = r, main, where, tail, number
        self.at = main if at is None else at

    def main_of(self, node: UOp) -> UOp:
        loops = (self.main,) if self.main in ranges(self.at) else ()
        return _closing_nothing(replace_loops(node, {self.r: (self.at, loops)}))

    def effects(self, loops: Loops) -> UOp:
        """Each effect over the loop becomes two."""
        effects: list[UOp] = []
        others: list[UOp] = []
        for effect in loops.ast.src:
            if self.r in closed_ranges(effect):
                effects.append(self.main_of(effect))
                others.append(self.tail_of(effect))
            else:
                effects.append(effect)
        return loops.ast.replace((*effects, *others))

    def tail_of(self, node: UOp) -> UOp:
        """The node on the rest; loops and copies inside get names of their own, as they run elsewhere."""
        closers: dict[UOp, list[UOp]] = {}
        renamed: dict[UOp, UOp] = {}
        for inner in toposort(node):
            if inner.op in (Ops.REDUCE, Ops.BUFFERIZE) and inner is not node:
                for c in closed_ranges(inner):
                    closers.setdefault(c, []).append(inner)
        mapping = {self.r: (self.where, self.tail)}
        innermost = scan_loops(toposort(node))
        for c in closed_ranges(node):  # output loops around are shared with the main part, all others not
            inside = c in innermost or (c.arg[0] > self.r.arg[0] and c.arg[1] is not AxisKind.THREAD)
            if inside or (node.op is Ops.REDUCE and c is not self.r):
                mapping[c] = self.fresh(c)
        waiting = [c for c in closers if c not in mapping]
        while changed := [c for c in waiting if any(_touches(n, mapping) for n in closers[c])]:
            mapping.update((c, self.fresh(c)) for c in changed)
            waiting = [c for c in waiting if c not in mapping]
        new = replace_loops(node, mapping)
        before = set(toposort(node))
        for inner in toposort(new):
            if inner.op is Ops.BUFFERIZE and inner not in before:
                kind, name, *more = inner.arg
                renamed[inner] = make(
                    inner.op, inner.dtype, inner.src, (kind, f"{name}_rest{self.number}", *more), inner.origin
                )
        result = substitute(new, renamed) if renamed else new
        return _closing_nothing(result)

    def fresh(self, c: UOp) -> tuple[UOp, tuple[UOp, ...]]:
        """The same loop under a new number."""
        new = loop(c.src[0], self.number, c.arg[1], c)
        self.number += 1
        return new, (new,)

    def reductions(self, loops: Loops) -> UOp:
        """Each reduction over the loop becomes two, whose results are combined."""
        done: dict[UOp, UOp] = {}
        halves: dict[UOp, tuple[UOp, UOp]] = {}
        for node in loops.order:
            if node.op is Ops.PICK and node.src[0] in halves:
                a, b = halves[node.src[0]]
                whole = node.src[0]
                parts = [
                    make(Ops.PICK, node.dtype, (half,), node.arg)
                    if closed_ranges(half)
                    else half.src[node.arg]
                    for half in (a, b)
                ]
                done[node] = alu(whole.arg[node.arg], *parts)
                continue
            new = node.replace(tuple([done[s] for s in node.src]))
            if node.op is not Ops.REDUCE or self.r not in closed_ranges(node):
                done[node] = new
                continue
            pair = self.main_of(new), self.tail_of(new)
            if len(node.arg) == 1:
                done[node] = alu(node.arg[0], *pair)
            else:
                done[node] = new
                halves[node] = pair
        return done[loops.ast]


def _touches(node: UOp, mapping: Mapping[UOp, object]) -> bool:
    """Whether a node depends on a loop that is replaced."""
    return not ranges(node).isdisjoint(mapping)


def _closing_nothing(node: UOp) -> UOp:
    """A reduction or an END whose last loop was a single step needs no loop."""
    if closed_ranges(node):
        return node
    return node.src[0] if node.op is Ops.END or (node.op is Ops.REDUCE and len(node.arg) == 1) else node
