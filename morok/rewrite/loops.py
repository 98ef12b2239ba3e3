"""Loops of a graph: replaced where they are open, and shared by reductions that walk the same memory."""

from __future__ import annotations

from collections.abc import Mapping

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops


def substitute_open(root: UOp, mapping: Mapping[UOp, UOp]) -> UOp:
    """Replaces ranges where they are open, and leaves alone what has closed them already."""
    keys = frozenset(mapping)
    done: dict[UOp, UOp] = dict(mapping)
    for node in toposort(root, stop=lambda n: n in done or keys.isdisjoint(ranges(n))):
        if node in done:
            continue
        if keys.isdisjoint(ranges(node)):
            done[node] = node
            continue
        # a closing node of another scope may close a range of the same name inside: only open uses are ours
        done[node] = node.replace(tuple(done[s] for s in node.src))
    return done[root]


def share_loops(kernel: UOp, ctx: object = None) -> UOp:
    """Reductions over equal loops of the same memory that do not need each other run in the same loop.

    REDUCE(max, x(r, c1), c1), REDUCE(add, x(r, c2), c2) → both over c1

    What lies inside of loops that have become one is looked at again: it may be the same now.
    """
    while (shared := _shared_once(kernel)) is not kernel:
        kernel = shared
    return kernel


def _shared_once(kernel: UOp) -> UOp:
    depth: dict[UOp, int] = {}  # how many reductions lie below one another; equal depth: independent
    groups: dict[object, list[UOp]] = {}
    for node in toposort(kernel):
        below = max((depth[s] for s in node.src), default=0)
        depth[node] = below + (node.op is Ops.REDUCE)
        if node.op is Ops.REDUCE:
            loops = closed_ranges(node)
            if loops and all(r.op is Ops.RANGE for r in loops):
                extent = tuple((r.src[0], r.arg[1]) for r in loops)
                groups.setdefault((depth[node], extent, ranges(node)), []).append(node)
    mapping: dict[UOp, UOp] = {}
    for group in groups.values():
        for family in _families(group):
            first = closed_ranges(family[0])
            for node in family[1:]:
                loops = closed_ranges(node)
                if loops != first:
                    swap = dict(zip(loops, first, strict=True))
                    values = node.src[: len(node.src) - len(loops)]
                    mapping[node] = node.replace((*[substitute_open(v, swap) for v in values], *first))
    return _replaced(kernel, mapping) if mapping else kernel


def _families(group: list[UOp]) -> list[list[UOp]]:
    """Reductions that read the same memory."""
    families: list[tuple[set[UOp], list[UOp]]] = []
    for node in group:
        reads = {n.src[0] for n in toposort(node.src[0]) if n.op is Ops.INDEX}
        for memory, members in families:
            if memory & reads:
                memory |= reads
                members.append(node)
                break
        else:
            families.append((reads, [node]))
    return [members for _, members in families if len(members) > 1]


def _replaced(kernel: UOp, mapping: dict[UOp, UOp]) -> UOp:
    # The values of a replacement may hold reductions of a lower depth that are replaced as well.
    done: dict[UOp, UOp] = {}
    stack = [kernel]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        target = mapping.get(node, node)
        wanted = node.src if target is node else (target,)
        pending = [s for s in wanted if s not in done]
        if pending:
            stack += pending
            continue
        stack.pop()
        done[node] = done[target] if target is not node else node.replace(tuple([done[s] for s in node.src]))
    return done[kernel]
