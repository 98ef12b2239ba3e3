"""The action SKIP: tiles that a mask hides are not computed.

A loop over tiles is cut to those that matter. What is reduced is followed under the assumption that a
condition holds, or fails, everywhere in a tile: a masked score is -inf, a power of it 0, and 0 times anything
that is added 0. If that leaves nothing but the identity of every reduction over the loop, such tiles may be
left out. Where the condition compares positions, it says for which tiles that is so: beyond the diagonal, or
outside of a window. What lies in the way of a mask is taken for a number, as everywhere in fused attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from morok.dtype import index
from morok.ir.bounds import bounds
from morok.ir.build import cast
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.optimize.loops import Loops, gate_of, loop, size
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.kernel.ranges import replace_loops
from morok.symbolic.quotients import join_sum, split_sum
from morok.symbolic.sets import simplify


class Limits(NamedTuple):
    """The first tile that matters, and the one behind the last; None: all from there on."""

    low: UOp | None
    high: UOp | None


# --- what is left of a value


def _known(x: UOp, assumed: dict[UOp, bool]) -> bool | None:
    """A condition under assumptions."""
    if x in assumed:
        return assumed[x]
    if x.op is Ops.CONST:
        return bool(x.arg)
    if x.op is Ops.NOT:
        inner = _known(x.src[0], assumed)
        return None if inner is None else not inner
    if x.op in (Ops.AND, Ops.OR):
        parts = [_known(s, assumed) for s in x.src]
        decides = x.op is Ops.OR
        if decides in parts:
            return decides
        return None if None in parts else not decides
    return None


def _value(x: UOp, assumed: dict[UOp, bool], done: dict[UOp, float | None]) -> float | None:
    """The number that a value is under assumptions; None if it depends on more."""
    if x not in done:
        done[x] = _evaluate(x, assumed, done)
    return done[x]


def _evaluate(x: UOp, assumed: dict[UOp, bool], done: dict[UOp, float | None]) -> float | None:
    if x.op is Ops.CONST:
        return float(x.arg) if not x.dtype.is_index else None
    if x.op is Ops.INDEX:  # nothing is read where its gate fails
        gate = gate_of(x)
        return 0.0 if gate is not None and _known(gate, assumed) is False else None
    if x.op is Ops.WHERE:
        chosen = _known(x.src[0], assumed)
        if chosen is not None:
            return _value(x.src[1 if chosen else 2], assumed, done)
        first, second = (_value(s, assumed, done) for s in x.src[1:])
        return first if first == second else None
    if x.op in (Ops.CAST, Ops.EXP, Ops.EXP2):
        inner = _value(x.src[0], assumed, done)
        return inner if x.op is Ops.CAST or inner is None else 0.0 if inner == -math.inf else None
    if x.op in (Ops.MUL, Ops.WMMA):
        first, second = (_value(s, assumed, done) for s in x.src[:2])
        if 0.0 in (first, second):
            return 0.0
        return -math.inf if {first, second} & {-math.inf} and max(first or 0.0, second or 0.0) > 0.0 else None
    if x.op in (Ops.ADD, Ops.SUB):  # a mask may be added: 0 where it shows, -inf where it hides
        parts = x.src if x.op is Ops.ADD else x.src[:1]
        return -math.inf if any(_value(s, assumed, done) == -math.inf for s in parts) else None
    return None


def _vanishes(closers: Iterable[UOp], assumed: dict[UOp, bool]) -> bool:
    """Whether nothing is left of some reductions under assumptions."""
    done: dict[UOp, float | None] = {}
    wanted = {(Ops.ADD,): 0.0, (Ops.MAX,): -math.inf}
    return all(
        n.op is Ops.REDUCE and n.arg in wanted and _value(n.src[0], assumed, done) == wanted[n.arg]
        for n in closers
    )


# --- for which tiles that is


def position(x: UOp, reads: bool = False) -> UOp | None:
    """An integer of the user's as arithmetic on positions; None where it is no such, or might wrap around.

    What is read may be a position as well, where that is asked for.
    """
    if x.dtype.is_index:
        return x
    if x.dtype.is_bool or x.dtype.is_float:
        return None
    if x.op is Ops.CONST:
        return const(index, int(x.arg))
    if x.op is Ops.CAST:
        found = position(x.src[0], reads)
    elif x.op in (Ops.ADD, Ops.SUB, Ops.MUL):
        parts = [position(s, reads) for s in x.src]
        found = None if None in parts else alu(x.op, *(p for p in parts if p is not None))
    else:
        return cast(x, index) if reads else None
    low, high = (-math.inf, math.inf) if found is None else bounds(found)
    fits = x.dtype.min <= low and high <= x.dtype.max
    return found if fits else cast(x, index) if reads else None


def _end(condition: UOp, holds: bool, k: UOp, uniform: frozenset[UOp], reads: bool) -> Limits | None:
    """The tiles along k that are not all masked, if what masks is that a comparison holds, or that it fails.

    A sum s of loops is below 0, or not. Over a tile it is largest, or smallest, at an end of every loop that
    a block has inside; of the other loops the limit is a function.
    """
    if condition.op is not Ops.CMPLT:
        return None
    left, right = (position(s, reads) for s in condition.src)
    if left is None or right is None:
        return None
    terms, constant = split_sum(simplify(alu(Ops.SUB, left, right)))
    step, outer, inner = 0, [], 0
    for term, factor in terms:
        if term is k:
            step += factor
        elif ranges(term) <= uniform and (reads or not any(n.op is Ops.INDEX for n in toposort(term))):
            outer.append((term, factor))
        elif k not in ranges(term) and all(math.isfinite(b) for b in bounds(term)):
            ends = [int(b) * factor for b in bounds(term)]
            inner += max(ends) if holds else min(ends)
        else:
            return None
    if not step:
        return None
    # masked where step·k + rest < 0; or, turned around, where it is at least 0
    rest = join_sum(outer, constant + inner, left)
    if not holds:
        step, rest = -step, alu(Ops.SUB, const(rest.dtype, -1), rest)
    if step < 0:  # masked from k·|step| > rest on
        return Limits(None, _over(alu(Ops.ADD, rest, const(rest.dtype, -step)), -step))
    negated = alu(Ops.SUB, const(rest.dtype, step - 1), rest)  # masked up to k·step < -rest
    return Limits(_over(negated, step), None)


def _over(x: UOp, amount: int) -> UOp:
    return alu(Ops.FLOORDIV, x, const(x.dtype, amount)) if amount > 1 else x


_LOGIC = (Ops.AND, Ops.OR, Ops.NOT)


def limits(loops: Loops, k: UOp, reads: bool = False) -> Limits | None:
    """The tiles along a loop that matter, as functions of the blocks' own loops; None if all of them do.

    Where that is asked for, of what is read for those loops as well.
    """
    low: list[UOp] = []
    high: list[UOp] = []
    for c, holds in _hiding(loops, k, reads):
        found = _end(c, holds, k, _uniform(loops), reads)
        if found is not None:
            low += [found.low] if found.low is not None else []
            high += [found.high] if found.high is not None else []
    if not low and not high:
        return None
    return Limits(_extreme(Ops.MAX, low), _extreme(Ops.MIN, high))


def _uniform(loops: Loops) -> frozenset[UOp]:
    """The loops that a block does not have inside."""
    plain = (AxisKind.LOOP, AxisKind.THREAD)
    return frozenset(r for r in loops.closers if r.arg[1] in plain and loops.closed_by(r) is Ops.END)


def _hiding(loops: Loops, k: UOp, reads: bool) -> Iterator[tuple[UOp, bool]]:
    """Comparisons that leave nothing of what is reduced along a loop, where they hold, or where they fail."""
    closers = loops.closers[k]
    conditions = {
        c
        for n in closers
        for condition in _conditions(n.src[0], reads)
        for c in toposort(condition, stop=lambda x: x.op not in _LOGIC)
        if c.op is Ops.CMPLT and k in ranges(c)
    }
    for c in conditions:
        yield from ((c, holds) for holds in (True, False) if _vanishes(closers, {c: holds}))


# --- tiles of which a mask hides a part


def _at_edges(loops: Loops, k: UOp) -> UOp:
    """A kernel whose masks choose only in tiles that they hide in part: in all others they show everything.

    row < column ? -inf : s   →   row < column and the tile is at the edge ? -inf : s
    """
    shown = {c: not holds for c, holds in _hiding(loops, k, False)}
    edges = {c: _edge(c, holds, k, loops) for c, holds in shown.items()}
    inside = frozenset(toposort(*(closer.src[0] for closer in loops.closers[k])))
    done: dict[UOp, UOp] = {}
    for n in loops.order:
        done[n] = n.replace(tuple([done[s] for s in n.src]))
        if n.op is not Ops.WHERE or n not in inside:
            continue
        known = _known(n.src[0], shown)
        mine = [edges[c] for c in toposort(n.src[0], stop=lambda x: x.op not in _LOGIC) if c in shown]
        edge = None if None in mine else _extreme(Ops.OR, [e for e in mine if e is not None])
        if known is not None and edge is not None:
            condition, *sides = done[n].src
            inner = alu(Ops.OR, condition, alu(Ops.NOT, edge)) if known else alu(Ops.AND, condition, edge)
            done[n] = done[n].replace((inner, *sides))
    return done[loops.ast]


def _edge(condition: UOp, holds: bool, k: UOp, loops: Loops) -> UOp | None:
    """Whether a comparison does not hold, or fail, all over a tile along k; None where that is unknown."""
    found = _end(condition, holds, k, _uniform(loops), False)
    if found is None:
        return None
    if found.high is not None:
        return alu(Ops.CMPLT, k, found.high)
    assert found.low is not None
    return alu(Ops.CMPLT, alu(Ops.SUB, found.low, const(k.dtype, 1)), k)


def _conditions(value: UOp, gates: bool) -> Iterator[UOp]:
    """What choices depend on, and reads as well."""
    for n in toposort(value):
        gate = gate_of(n) if gates and n.op is Ops.INDEX else None
        if n.op is Ops.WHERE or gate is not None:
            yield n.src[0] if gate is None else gate


def _extreme(op: Op, found: list[UOp]) -> UOp | None:
    best: UOp | None = None
    for x in found:
        best = x if best is None else alu(op, best, x)
    return best


def can_skip(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    k = loops.by_number.get(opt.axis)
    if k is None:
        return f"there is no loop {opt.axis}"
    if k.arg[1] is not AxisKind.REDUCE or (size(k) is None and not opt.amount):
        return f"loop {opt.axis} is no loop of a reduction of known size"
    if loops.bounds_another(k):
        return f"the end of another loop depends on loop {opt.axis}"
    return (
        None
        if limits(loops, k, bool(opt.amount)) is not None
        else f"no mask hides whole tiles along loop {opt.axis}"
    )


def skip(loops: Loops, opt: Opt) -> UOp:
    """A loop over tiles goes over those that a mask does not hide as a whole.

    With the amount 1 limits may be read, and it is a loop over rows, not over tiles.

    SKIP(1):   max over r1 < 8 of (r0*64 + r2 < r1*64 + r3 ? -inf : s)   →   the same over r1 < min(8, r0 + 1)
    """
    k = loops.by_number[opt.axis]
    found = limits(loops, k, bool(opt.amount))
    assert found is not None
    end = k.src[0]
    zero = const(end.dtype, 0)
    high = end if found.high is None else alu(Ops.MAX, zero, alu(Ops.MIN, end, found.high))
    low = zero if found.low is None else alu(Ops.MAX, zero, alu(Ops.MIN, end, found.low))
    count = simplify(alu(Ops.MAX, zero, alu(Ops.SUB, high, low)))
    new = loop(count, opt.axis, k.arg[1], k)
    place = new if found.low is None else alu(Ops.ADD, simplify(low), new)
    ast = loops.ast if opt.amount else _at_edges(loops, k)
    ast = replace_loops(ast, {k: (place, (new,))})
    return replace_loops(ast, {r: (_backwards(r), (r,)) for r in _growing(count)})


def _growing(count: UOp) -> list[UOp]:
    """The loops along which there is more and more to do. They are gone through backwards: on a grid whoever
    starts last should not be who works longest."""
    found = []
    for r in ranges(count):
        first, last = (simplify(substitute(count, {r: const(r.dtype, n)})) for n in (0, (size(r) or 1) - 1))
        if size(r) is not None and bounds(first)[1] < bounds(last)[1]:
            found.append(r)
    return found


def _backwards(r: UOp) -> UOp:
    return alu(Ops.SUB, const(r.dtype, (size(r) or 1) - 1), r)
