"""Products of warp groups under way together, at the end of stage 11.

A unit works while the threads go on, so nobody should wait for a product before the next one is started, if
that does not need it: the first products of a chain are started one after the other, and what is made of the
one is computed under the other.

    S; commit; wait 0; D; commit; wait 0; f(S, D)   →   S; commit; D; commit; wait 1; … S …; wait 0; … D …

Tiles of the next step are asked for when the first products of this one have been started: the copies are
many instructions, and units would have nothing to do meanwhile.

A wait names how many of the last groups may still run. It is safe to name one more group if that one is
started after the group that is waited for and before the wait, in every order: both become dependencies.
"""

from __future__ import annotations

from typing import NamedTuple

from morok.ir.infer import ranges
from morok.ir.matrix import Products
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.rewrite.engine import substitute
from morok.rewrite.observe import change


class Group(NamedTuple):
    """Products that are waited for together: the wait, and the first of them."""

    wait: UOp
    first: UOp


@change
def overlap_products(root: UOp) -> UOp:
    """Groups of one loop, each started before anybody waits for the one before."""
    order = toposort(root)
    found: dict[frozenset[UOp], list[Group]] = {}
    for node in order:
        if node.op is Ops.ASYNC_WAIT and node.arg == Products(0) and node.src[0].op is Ops.ASYNC_COMMIT:
            first = _first(node.src[0].src[0])
            loops = frozenset(r for r in ranges(node.src[0]) if r.arg[1] is AxisKind.REDUCE)
            if first is not None and loops:
                found.setdefault(loops, []).append(Group(node, first))
    follows: dict[UOp, UOp] = {}  # the first product of a group, and the commit that it comes after
    pending: dict[UOp, tuple[UOp, ...]] = {}  # a wait, and the commits of what may still run
    beside: dict[UOp, tuple[UOp, ...]] = {}  # a wait, and what can be computed before it
    for groups in map(_in_turn, found.values()):
        under = [set(toposort(group.wait.src[0])) for group in groups]
        for n, group in enumerate(groups):
            last = n
            while last + 1 < len(groups) and group.wait not in under[last + 1]:
                last += 1
            pending[group.wait] = tuple(g.wait.src[0] for g in groups[n + 1 : last + 1])
            if n and pending[groups[n - 1].wait]:
                follows[group.first] = groups[n - 1].wait.src[0]
                beside[group.wait] = _known_before(group.wait, groups[n - 1].wait, order)
    if not follows:
        return root
    done: dict[UOp, UOp] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        more = (*pending.get(node, ()), *beside.get(node, ()))
        if node in follows:
            more = (*more, follows[node])
        waiting = [s for s in (*node.src, *more) if s not in done]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        new = node.replace(tuple([done[s] for s in node.src]))
        if node in follows:
            new = _after(new, done[follows[node]])
        elif more:
            products = Products(len(pending[node]))
            new = make(
                Ops.ASYNC_WAIT, node.dtype, (*new.src, *(done[s] for s in more)), products, node.origin
            )
        done[node] = new
    return done[root]


@change
def fill_under_products(root: UOp) -> UOp:
    """Rings are filled after the first products of a step have been started, and before they are waited for.

    Whoever read a tile after the ring had been filled for the next step reads it after the barrier before.
    """
    order = toposort(root)
    for fill in order:
        if fill.op is Ops.ASYNC_COMMIT and fill.arg is None and fill.src[-1].op is Ops.BARRIER:
            wait = _first_wait(fill, order)
            if wait is not None:
                return fill_under_products(_filled_before(root, fill, wait))
    return root


def _first_wait(fill: UOp, order: list[UOp]) -> UOp | None:
    """The first wait of a step for products of tiles of a ring; None where it is no chain, or others fill."""
    if any(n.op is not Ops.ASYNC_COPY for n in fill.src[:-1]) or any(map(_is_group, toposort(fill))):
        return None
    waits = (n for n in order if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products))
    wait = next((n for n in waits if fill in toposort(n)), None)
    if wait is None or wait.src[0].op is not Ops.ASYNC_COMMIT:
        return None
    first = _first(wait.src[0].src[0])
    return wait if first is not None and first.src[2].op is Ops.CONST else None


def _is_group(node: UOp) -> bool:
    return node.op is Ops.ASYNC_COMMIT and isinstance(node.arg, Products)


def _filled_before(root: UOp, fill: UOp, wait: UOp) -> UOp:
    """The kernel with a ring that is filled between the last products before a wait and that."""
    barrier = fill.src[-1]
    soon = substitute(wait, {fill: barrier})
    started = [n for n in soon.src if _is_group(n)]
    rings = [n for n in toposort(fill) if n.op is Ops.AFTER and barrier in n.src]
    late = substitute(fill, {n: n.replace((*n.src, started[-1])) for n in rings})
    return substitute(substitute(root, {fill: barrier}), {soon: soon.replace((*soon.src, late))})


def _in_turn(groups: list[Group]) -> list[Group]:
    """Groups as they are started: those first that need none, or one that began long ago."""
    waits = {group.wait: n for n, group in enumerate(groups)}
    needs = [{waits[n] for n in toposort(group.wait) if n in waits} - {k} for k, group in enumerate(groups)]
    turn: list[int] = []
    while len(turn) < len(groups):
        ready = [k for k in range(len(groups)) if k not in turn and needs[k].issubset(turn)]
        turn.append(min(ready, key=lambda k: max((turn.index(n) for n in needs[k]), default=-1)))
    return [groups[k] for k in turn]


def _known_before(wait: UOp, earlier: UOp, order: list[UOp]) -> tuple[UOp, ...]:
    """What is made of an earlier group's results and of nothing later, and meets those of a wait: computed
    while that group's products run."""
    mine: set[UOp] = set()
    theirs: set[UOp] = set()
    for node in order:
        if node is wait or not mine.isdisjoint(node.src):
            mine.add(node)
        elif node is earlier or not theirs.isdisjoint(node.src):
            theirs.add(node)
    met = (s for node in order if node in mine for s in node.src if s in theirs and s.op.is_alu)
    return tuple(dict.fromkeys(met))


def _first(total: UOp) -> UOp | None:
    """The first of the products that are added up one after the other; None where it is not known."""
    node = total
    while node.op is Ops.WMMA and node.src[2].op is Ops.WMMA:
        node = node.src[2]
    return node if node.op is Ops.WMMA else None


def _after(product: UOp, commit: UOp) -> UOp:
    """A product that starts after something: its accumulator waits, or the tile that it reads."""
    a, b, total = product.src
    if total.op is Ops.AFTER:
        return product.replace((a, b, total.replace((*total.src, commit))))
    tiles = [n for n in toposort(b) if n.op is Ops.AFTER and n.src[0].op is Ops.DEFINE_LOCAL]
    return product.replace((a, substitute(b, {n: n.replace((*n.src, commit)) for n in tiles}), total))
