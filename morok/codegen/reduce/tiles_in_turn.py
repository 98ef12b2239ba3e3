"""Stage 19a, tiles in turn: what is made of one tile of products is computed while units are at the next.

A warp group may have several tiles of rows. Their products are no business of each other, but they were
started together and waited for together, so units had nothing to do while all of them were weighed:

    S1, S2; wait; f(S1), f(S2); O1, O2; wait
    →   S1; S2; wait for S1; f(S1); O1; wait for S2; f(S2); O2; wait

It takes loops with a group of products that needs no other, and one that multiplies what is made of it. By
now values are single numbers, so what belongs to which tile is seen by what they are made of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.matrix import Products
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.rewrite.observe import change


class Group(NamedTuple):
    """Products that are closed and waited for together: chains of them, each of them added up."""

    wait: UOp
    commit: UOp
    chains: tuple[tuple[UOp, ...], ...]  # each first to last

    @property
    def width(self) -> int:
        return self.chains[0][-1].dtype.lanes


def tiles_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 19a as a whole."""
    if len(_groups(toposort(root))) != 2:
        return root
    root = single_shuffles(root)
    first, second = _groups(toposort(root))
    apart = None if not _starts_at_zero(first) or not _is_fenced(second) else _apart(first, second)
    return root if apart is None else tiles_in_turn(root, first, second, apart)


def _groups(order: list[UOp]) -> list[Group]:
    """Groups of products of several tiles, as they are waited for; none where others may still run."""
    found = []
    for node in order:
        if node.op is not Ops.ASYNC_WAIT or not isinstance(node.arg, Products):
            continue
        commit = node.src[0]
        if commit.op is not Ops.ASYNC_COMMIT or commit.src[0].op is not Ops.CAT or node.arg.pending:
            return []
        chains = tuple(map(_chain, commit.src[0].src))
        if any(not c or c[-1].dtype is not chains[0][-1].dtype for c in chains):
            return []
        found.append(Group(node, commit, chains))
    return found


def _chain(last: UOp) -> tuple[UOp, ...]:
    """Products that are added up one after the other."""
    found = []
    while last.op is Ops.WMMA:
        found.append(last)
        last = last.src[2]
    return tuple(reversed(found))


@change
def single_shuffles(root: UOp) -> UOp:
    """Shuffles of several values at once, one by one."""
    done: dict[UOp, UOp] = {}
    for node in toposort(root):
        src = tuple([done[s] for s in node.src])
        shuffle = src[0] if src else node
        if node.op is Ops.GEP and len(node.arg) == 1 and shuffle.op is Ops.SHUFFLE:
            if shuffle.src[0].op is Ops.VECTORIZE and shuffle.src[1].dtype.lanes == 1:
                one = (shuffle.src[0].src[node.arg[0]], shuffle.src[1])
                done[node] = make(Ops.SHUFFLE, node.dtype, one, shuffle.arg, shuffle.origin)
                continue
        done[node] = node.replace(src)
    return done[root]


def _starts_at_zero(group: Group) -> bool:
    return all(chain[0].src[2].op is Ops.CONST for chain in group.chains)


def _is_fenced(group: Group) -> bool:
    """Whether all chains start from lanes of one vector, which a fence hands over."""
    starts = [chain[0].src[2] for chain in group.chains]
    if any(s.op is not Ops.GEP or s.src[0].op is not Ops.AFTER for s in starts):
        return False
    (total, *done) = starts[0].src[0].src
    if any(s.src[0] is not starts[0].src[0] for s in starts) or total.op is not Ops.VECTORIZE:
        return False
    return len(done) == 1 and done[0].op is Ops.FENCE


def _apart(first: Group, second: Group) -> list[list[int]] | None:
    """For each chain of the second products, the first ones that it is made of; None if they share any."""
    waited = {n for n in toposort(second.wait) if n.op is Ops.AFTER and first.wait in n.src}
    made: dict[UOp, frozenset[int]] = {}
    for node in toposort(second.wait):
        if node.op is Ops.GEP and node.src[0] in waited:
            made[node] = frozenset(k // first.width for k in node.arg)
        elif node in waited or node.dtype is void:
            made[node] = frozenset()
        else:
            made[node] = frozenset().union(*(made[s] for s in node.src))
    found = []
    for chain in second.chains:
        start = chain[0].src[2]
        total = start.src[0].src[0]
        needs = [total.src[k] for k in start.arg] + [x for product in chain for x in product.src[:2]]
        found.append(sorted(frozenset().union(*(made[x] for x in needs))))
    each = [n for tile in found for n in tile]
    return found if all(found) and sorted(each) == list(range(len(first.chains))) else None


@change
def tiles_in_turn(root: UOp, first: Group, second: Group, apart: list[list[int]]) -> UOp:
    """Two groups of products, tile by tile."""
    return _InTurn(root, first, second).kernel(apart)


class _InTurn:
    """One kernel on its way."""

    def __init__(self, root: UOp, first: Group, second: Group) -> None:
        self.root, self.first, self.second = root, first, second
        self.order = toposort(root)
        self.done: dict[UOp, UOp] = {}

    def kernel(self, apart: list[list[int]]) -> UOp:
        first, second = self.first, self.second
        tiles: list[list[UOp]] = []
        commits: list[UOp] = []
        for numbers in apart:  # all first products are started, one tile after the other
            tile = [self.started(first.chains[n], commits) for n in numbers]
            tiles.append(tile)
            commits.append(_commit(tile))
        self.done[first.commit] = commits[-1]
        beside = [self.new(s) for s in first.wait.src[1:]]
        sums: list[UOp] = []
        closed: list[UOp] = []
        for number, (tile, chains) in enumerate(zip(tiles, apart, strict=True)):
            later = [*commits[number + 1 :], *closed]
            more = beside if not number else []
            wait = make(Ops.ASYNC_WAIT, void, (commits[number], *later, *more), Products(len(later)))
            for value, chain in zip(tile, chains, strict=True):
                self.lanes(first, chain, value, wait)
            total = self.multiplied(second.chains[number])
            sums.append(total)
            closed.append(_commit([total]))
        ready = [self.new(x) for x in self.beside_sums()]
        wait = make(Ops.ASYNC_WAIT, void, (closed[-1], *closed[:-1], *ready), Products(0))
        for number, total in enumerate(sums):
            self.lanes(second, number, total, wait)
        self.done[second.wait] = wait
        return self.new(self.root)

    def started(self, chain: tuple[UOp, ...], commits: list[UOp]) -> UOp:
        """First products, after those of other tiles have been given to units."""
        value = chain[0].src[2]
        for number, product in enumerate(chain):
            a, b = map(self.new, product.src[:2])
            value = product.replace((a, _late(b, commits[-1]) if commits and not number else b, value))
        return value

    def lanes(self, group: Group, chain: int, value: UOp, wait: UOp) -> None:
        """Lanes of all products that were waited for together: those of one chain are lanes of that."""
        known = make(Ops.AFTER, value.dtype, (value, wait))
        for node in self.order:
            if node.op is Ops.GEP and node.src[0].op is Ops.AFTER and group.wait in node.src[0].src:
                if {k // group.width for k in node.arg} == {chain}:
                    lanes = tuple([k % group.width for k in node.arg])
                    self.done[node] = make(Ops.GEP, node.dtype, (known,), lanes, node.origin)

    def multiplied(self, chain: tuple[UOp, ...]) -> UOp:
        """The second products of one tile, with what was made of its first ones."""
        start = chain[0].src[2]
        total, fence = start.src[0].src
        mine = make(Ops.VECTORIZE, start.dtype, tuple([self.new(total.src[k]) for k in start.arg]))
        held = [self.new(product.src[0]) for product in chain]
        others = [self.new(s) for s in fence.src if s.dtype is void]
        ready = make(Ops.FENCE, void, (mine, *held, *others), fence.arg, fence.origin)
        value = make(Ops.AFTER, mine.dtype, (mine, ready))
        for product in chain:
            a, b = map(self.new, product.src[:2])
            value = product.replace((a, b, value))
        return value

    def beside_sums(self) -> list[UOp]:
        """What registers keep of the first products alone: it is computed under the last of the second."""
        known: set[UOp] = {self.first.wait}
        late: set[UOp] = {self.second.wait}
        for node in self.order:
            for found in (known, late):
                if not found.isdisjoint(node.src):
                    found.add(node)
        kept = (n.src[1] for n in self.order if n.op is Ops.STORE and _is_register(n.src[0]))
        return [x for x in kept if x in known and x not in late]

    def new(self, node: UOp) -> UOp:
        """A node with all that has changed below it."""
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [s for s in top.src if s not in self.done] if top not in self.done else []
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if top not in self.done:
                self.done[top] = top.replace(tuple([self.done[s] for s in top.src]))
        return self.done[node]


def _commit(tile: list[UOp]) -> UOp:
    lanes = sum(x.dtype.lanes for x in tile)
    whole = tile[0] if len(tile) == 1 else make(Ops.CAT, tile[0].dtype.scalar.vec(lanes), tuple(tile))
    return make(Ops.ASYNC_COMMIT, void, (whole,), Products(0))


def _is_register(place: UOp) -> bool:
    return isinstance(place.dtype, PtrDType) and place.dtype.space is AddrSpace.REG


def _late(tile: UOp, commit: UOp) -> UOp:
    """A tile of shared memory that is read when products have been given to units."""
    memory = [n for n in toposort(tile) if n.op is Ops.AFTER and n.src[0].op is Ops.DEFINE_LOCAL]
    return substitute(tile, {n: n.replace((*n.src, commit)) for n in memory})
