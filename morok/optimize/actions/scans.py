"""Scans: what the actions may do with loops that something runs along (SCAN).

Their steps follow each other, so no threads share them, and nothing changes their order. Neighbouring steps
may be lanes of a vector (UPCAST), which are combined inside of it. What is no multiple of a vector is peeled
off (PEEL): a loop of its own that goes on where the main part has ended. Across rows, what is carried may lie
in a row of the cache instead of registers (ACCUMULATE_IN_CACHE), and the rows are walked as they lie.
"""

from __future__ import annotations

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import LAST, parts, scan, scan_loops
from morok.optimize.loops import LANE_KINDS, Loops, divides, loop, size
from morok.optimize.record import Opt
from morok.schedule.kernel.ranges import replace_loops


def runs_along(loops: Loops, r: UOp | None) -> bool:
    """Whether something runs along a loop, which is no vector yet."""
    return r is not None and r.arg[1] is AxisKind.ORDERED and r in scan_loops(loops.order)


_COPIES = frozenset(("PACK", "HALO", "CACHE_ROW", "STAGE", "STAGE_RESULT"))


def refuses(loops: Loops, opt: Opt) -> str | None:
    """Why a kernel in which something runs along a loop does not allow an action."""
    found = scan_loops(loops.order)
    if not found:
        return None
    if opt.name in _COPIES or (
        opt.name == "ACCUMULATE_IN_CACHE" and not runs_along(loops, loops.by_number.get(opt.axis))
    ):
        return "a copy would be filled at every step of a loop that something runs along"
    if opt.name == "SWAP" and any(int(r.arg[0]) in (opt.axis, opt.amount) for r in found):
        return "a loop that something runs along is the innermost one"
    if in_a_row(loops) and (opt.name in _AROUND or (opt.name == "UPCAST" and _is_around(loops, opt))):
        return "what runs along a loop is carried in a row, for one point of the loops around it"
    return None


_AROUND = frozenset(("SWAP", "JOIN", "PEEL", "PADTO", "ACCUMULATE_IN_CACHE"))


def _is_around(loops: Loops, opt: Opt) -> bool:
    """Whether a loop is not over the places of a row. Its number does not say: a tile's is higher, too."""
    return loops.by_number.get(opt.axis) not in row_places(loops)


def in_a_row(loops: Loops) -> bool:
    """Whether something is carried in a buffer along a loop."""
    return any(n.op is Ops.SCAN and n.arg.row for n in loops.order)


def row_places(loops: Loops) -> frozenset[UOp]:
    """The loops over the places of rows that are carried along."""
    places = [parts(n).place for n in loops.order if n.op is Ops.SCAN]
    return frozenset().union(*(ranges(p) for p in places if p is not None))


def can_carry_in_cache(loops: Loops, opt: Opt) -> str | None:
    """Why what runs along a loop cannot be carried in a row of a buffer, with another loop inside."""
    r, c = loops.by_number[opt.axis], loops.by_number.get(opt.amount)
    if c is None or c.arg[1] is not AxisKind.LOOP or loops.closers[c] != loops.closers[r]:
        return f"loop {opt.amount} is not beside loop {opt.axis}"
    if len(loops.closers[r]) != 1 or is_continued(loops) or in_a_row(loops):
        return "a running reduction goes on in another effect, or in a row already"
    effect = loops.closers[r][0]
    if any(q.arg[1] in LANE_KINDS for q in closed_ranges(effect)) or scan_loops_of(loops, effect) != [r]:
        return "lanes, or steps of another loop, would share the row"
    if loops.bounds_another(c) or ranges(c.src[0]) or size(c) is None:
        return f"the size of loop {opt.amount} is not known"
    return None


def carry_in_cache(loops: Loops, opt: Opt) -> UOp:
    """What runs along a loop is carried in a buffer, and another loop lies inside."""
    r, c = loops.by_number[opt.axis], loops.by_number[opt.amount]
    column = loop(c.src[0], loops.next_number(), AxisKind.LOOP, c)
    inside = replace_loops(loops.ast, {c: (column, (column,))})
    done: dict[UOp, UOp] = {}
    for node in toposort(inside):
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.SCAN and r in parts(node).loops:
            found = parts(new)
            new = scan(found.values, node.arg.op, found.loops, found.start, column)
        done[node] = new
    return done[inside]


def is_continued(loops: Loops) -> bool:
    """Whether the rest of a running reduction has been peeled off."""
    return any(n.op is Ops.REDUCE and n.arg == LAST for n in loops.order)


def can_be_lanes(loops: Loops, opt: Opt) -> str | None:
    """Why steps of a loop that something runs along cannot be lanes."""
    r = loops.by_number[opt.axis]
    if in_a_row(loops):
        return "what runs along the loop is carried in a row"
    if opt.amount and not divides(opt.amount, r.src[0]):
        return f"{opt.amount} does not divide the {size(r) or 'unknown'} iterations of loop {opt.axis}"
    return None


def can_peel(loops: Loops, opt: Opt) -> str | None:
    """Why the rest of such a loop cannot be peeled off."""
    r = loops.by_number[opt.axis]
    known = size(r)
    if known is None:
        return f"the size of loop {opt.axis} is not known"
    if opt.amount < 2 or known % opt.amount == 0 or known < opt.amount:
        return f"{opt.amount} leaves nothing of the {known} iterations of loop {opt.axis}, or all of them"
    for effect in loops.ast.src:
        if r in closed_ranges(effect) and scan_loops_of(loops, effect) != [r]:
            return "something runs along several loops"
    return None


def scan_loops_of(loops: Loops, effect: UOp) -> list[UOp]:
    """The loops of an effect that something runs along."""
    return [r for r in scan_loops(loops.order) if r in closed_ranges(effect)]


def peel(loops: Loops, opt: Opt) -> UOp:
    """A loop that something runs along stops at the last multiple; another one goes on from there.

    PEEL(1, 4):   for r1 < 10: a ∘= x[r1], y[r1] = a   →   for r1 < 8: …;  for r2 < 2: a ∘= x[8 + r2], …
    """
    r = loops.by_number[opt.axis]
    count = size(r)
    assert count is not None
    whole = count // opt.amount * opt.amount
    main = loop(whole, opt.axis, r.arg[1], r)
    tail = loop(count - whole, loops.next_number(), r.arg[1], r)
    place = const(r.dtype, whole)
    remainders = () if count - whole == 1 else (tail,)
    where = place if not remainders else alu(Ops.ADD, tail, place)
    effects: list[UOp] = []
    for effect in loops.ast.src:
        if r not in closed_ranges(effect):
            effects.append(effect)
            continue
        effects.append(replace_loops(effect, {r: (main, (main,))}))
        effects.append(_remainder(effect, r, main, where, remainders))
    return loops.ast.replace(tuple(effects))


def _remainder(effect: UOp, r: UOp, main: UOp, where: UOp, remainders: tuple[UOp, ...]) -> UOp:
    """The effect on the rest: what runs along begins with what the main part has left."""
    done: dict[UOp, UOp] = {r: where}
    stack = [effect]
    while stack:
        node = stack[-1]
        pending = [s for s in node.src if s not in done] if node not in done else []
        if pending:
            stack += pending
            continue
        stack.pop()
        if node in done:
            continue
        if r not in ranges(node) and r not in closed_ranges(node):
            done[node] = node
        elif node.op is Ops.SCAN and r in parts(node).loops:
            found = parts(node)
            before = replace_loops(node, {r: (main, (main,))})
            left = make(Ops.REDUCE, node.dtype, (before, main), LAST)
            done[node] = scan([done[v] for v in found.values], node.arg.op, remainders, left)
        elif node is effect:
            others = [s for s in closed_ranges(node) if s is not r]
            body = done[node.src[0]]
            done[node] = node.replace((body, *others, *remainders)) if others or remainders else body
        else:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    return done[effect]
