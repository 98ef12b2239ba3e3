"""Who owns which loop. Every RANGE is closed by one node in the end, because a loop is written once.

A kernel may say the same range several times: two reductions over one row, a reduction over a range that a
later one uses again, several stores under the same loops. Independent ones share the loop; a dependent one
gets a loop of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.rewrite.engine import substitute
from morok.rewrite.loops import substitute_open
from morok.rewrite.observe import change


def next_number(root: UOp) -> int:
    """A range number that is free in the kernel."""
    return 1 + max((n.arg[0] for n in toposort(root) if n.op is Ops.RANGE), default=-1)


def _closers(root: UOp) -> list[UOp]:
    return [n for n in toposort(root) if n.op in (Ops.REDUCE, Ops.BUFFERIZE)]


@change
def own_ranges(root: UOp) -> UOp:
    """Gives each reduction and each local buffer loops of its own, unless it can share one with a sibling.

    REDUCE(f(REDUCE(x(c), c)), c) → REDUCE(f(REDUCE(x(c), c)), c') where c' is another loop of the same size.
    """
    number = next_number(root)
    while True:
        owners: dict[UOp, list[UOp]] = {}
        for n in toposort(root):
            if n.op is Ops.END:
                for r in closed_ranges(n):
                    owners[r] = [n]
        clash = None
        below = reductions_below(root)
        for node in _closers(root):
            for r in closed_ranges(node):
                if r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP:
                    continue  # lanes are no loop: they exchange values wherever they are
                others = owners.setdefault(r, [])
                if not all(_may_share(other, node, below) for other in others):
                    clash = node, r
                    break
                others.append(node)
            if clash is not None:
                break
        if clash is None:
            return root
        node, r = clash
        fresh = make(Ops.RANGE, r.dtype, r.src, (number, *r.arg[1:]))
        number += 1
        values = len(node.arg) if node.op is Ops.REDUCE else 1
        sources = [substitute_open(s, {r: fresh}) for s in node.src[:values]]
        sources += [fresh if s is r else s for s in node.src[values:]]
        root = substitute(root, {node: node.replace(tuple(sources))})


def reductions_below(root: UOp) -> dict[UOp, frozenset[UOp]]:
    """For every REDUCE, the REDUCEs that its sources need."""
    reach: dict[UOp, frozenset[UOp]] = {}
    empty: frozenset[UOp] = frozenset()
    for node in toposort(root):
        found = empty
        for s in node.src:
            below = reach[s] | {s} if s.op is Ops.REDUCE else reach[s]
            found = below if found is empty or found <= below else found if below <= found else found | below
        reach[node] = found
    return {n: r for n, r in reach.items() if n.op is Ops.REDUCE}


def _may_share(first: UOp, second: UOp, below: Mapping[UOp, frozenset[UOp]]) -> bool:
    """Two reductions over the same loops, neither of which needs the other."""
    if first.op is not Ops.REDUCE or second.op is not Ops.REDUCE:
        return False
    if closed_ranges(first) != closed_ranges(second) or ranges(first) != ranges(second):
        return False
    return first not in below[second] and second not in below[first]


def merge_sibling_ends(root: UOp) -> UOp:
    """Loops that several nodes close are written once.

    END(a, r, c), END(b, r, c) → END(GROUP(a, b), r, c)
    END(a, r, c), END(b, r) → END(GROUP(END(a, c), b), r)
    """
    while True:
        by_range: dict[UOp, list[UOp]] = {}
        order = toposort(root)
        for node in order:
            if node.op is Ops.END:
                for r in closed_ranges(node):
                    by_range.setdefault(r, []).append(node)
        shared = [(r, ends) for r, ends in by_range.items() if len(ends) > 1]
        if not shared:
            return root
        ends = min(shared, key=lambda item: item[0].arg)[1]
        alike = _alike(ends, order)
        root = _merge_all(root, alike) if len(alike) > 2 else _merge_two(root, ends[0], ends[1])


def _alike(ends: list[UOp], order: list[UOp]) -> list[UOp]:
    """The first of these ENDs, as far as any two have the same loops in common and none needs another.

    They become one however many they are: two at a time, each with a walk through the kernel, would take the
    square of their number, and a loop of a program that is written out stores something at each of its steps,
    as threads that share many pieces of a loop store one after the other.
    """
    wanted = set(ends)
    needs: set[UOp] = set()  # nodes that lie above one of them
    for node in order:
        if any(s in wanted or s in needs for s in node.src):
            needs.add(node)
    common = _in_common(ends)
    closed: set[UOp] = set()  # by those before
    found: list[UOp] = []
    for node in ends:
        own = set(closed_ranges(node))
        if node in needs or (found and own & closed != common):
            break
        closed |= own
        found.append(node)
    return found


def _in_common(ends: list[UOp]) -> set[UOp]:
    """The loops that the first two close."""
    return set(closed_ranges(ends[0])).intersection(closed_ranges(ends[1]))


def _merge_all(root: UOp, ends: list[UOp]) -> UOp:
    """As `_merge_two` of the first two, of what that gives and the third, and so on."""
    inner: dict[UOp, None] = {}
    common = _in_common(ends)
    for node in ends:
        body, rest = node.src[0], [r for r in closed_ranges(node) if r not in common]
        body = make(Ops.END, node.dtype, (body, *rest)) if rest else body
        inner.update(dict.fromkeys(body.src if body.op is Ops.GROUP else (body,)))
    first = ends[0]
    group = make(Ops.GROUP, first.dtype, tuple(inner))
    return _put(
        root, ends, make(Ops.END, first.dtype, (group, *[r for r in closed_ranges(first) if r in common]))
    )


def _merge_two(root: UOp, a: UOp, b: UOp) -> UOp:
    common = [r for r in closed_ranges(a) if r in closed_ranges(b)]
    rest_a = [r for r in closed_ranges(a) if r not in common]
    rest_b = [r for r in closed_ranges(b) if r not in common]
    depends = a in toposort(b) or b in toposort(a)
    if depends:
        # the second gets loops of its own
        later, earlier = (b, a) if a in toposort(b) else (a, b)
        assert earlier is not later
        number = next_number(root)
        fresh = {r: make(Ops.RANGE, r.dtype, r.src, (number + i, *r.arg[1:])) for i, r in enumerate(common)}
        body = substitute_open(later.src[0], fresh)
        mine = [fresh.get(r, r) for r in closed_ranges(later)]
        return substitute(root, {later: make(Ops.END, later.dtype, (body, *mine))})
    inner: list[UOp] = []
    for node, rest in ((a, rest_a), (b, rest_b)):
        body = make(Ops.END, node.dtype, (node.src[0], *rest)) if rest else node.src[0]
        inner += body.src if body.op is Ops.GROUP else (body,)
    merged = make(Ops.END, a.dtype, (make(Ops.GROUP, a.dtype, tuple(dict.fromkeys(inner))), *common))
    return _put(root, [a, b], merged)


def _put(root: UOp, ends: list[UOp], merged: UOp) -> UOp:
    result = substitute(root, dict.fromkeys(ends, merged))
    return result.replace(tuple(dict.fromkeys(result.src))) if result.op is Ops.SINK else result
