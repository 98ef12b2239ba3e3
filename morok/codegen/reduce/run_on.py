"""Stage 19b, products run on: what is added up in a step is waited for in the next one.

The last products of a step go to sums that nobody looks at before the first products of the next step have
arrived. Units finish groups in the order in which they were started, so the wait for these is a wait for the
last ones as well, and units go from one step to the next without a gap:

    for k: S; fill; wait; f(S); O += …; wait   →   for k: S; wait; barrier; fill; f(S); O += …    wait

Tiles that the last products read may then be overwritten only when all warps have waited, so copies begin
later: that pays where a multiprocessor has so many blocks that others hide it, and where a step waits once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.build import after
from morok.ir.matrix import Products
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.rewrite.observe import change


class Loop(NamedTuple):
    """A loop of a step's products: its end, the first wait in it, and those for sums."""

    end: UOp
    first: UOp
    last: tuple[UOp, ...]


def run_on_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 19b as a whole."""
    order = toposort(root)
    waits = [n for n in order if _is_wait(n)]
    rates = ctx.machine.attention
    if len(waits) != 2 or rates is None or _blocks(order, ctx.machine) < rates.run_on:
        return root
    for end in [n for n in order if n.op is Ops.END]:
        found = _loop(end)
        if found is not None:
            root = products_run_on(root, found)
    return root


def _blocks(order: list[UOp], machine: Machine) -> int:
    """How many blocks have room in a multiprocessor's shared memory."""
    tiles = [n.dtype for n in order if n.op is Ops.DEFINE_LOCAL and isinstance(n.dtype, PtrDType)]
    return machine.local_bytes // max(1, sum(t.size * t.elem.itemsize for t in tiles))


def _is_wait(node: UOp) -> bool:
    return node.op is Ops.ASYNC_WAIT and isinstance(node.arg, Products)


def _is_fill(node: UOp) -> bool:
    return node.op is Ops.ASYNC_COMMIT and node.arg is None


def _loop(end: UOp) -> Loop | None:
    """A loop whose last products can run on; None if there is none of them, or if somebody needs them."""
    order = toposort(end.src[0])
    waits = [n for n in order if _is_wait(n) and n.src[0].op is Ops.ASYNC_COMMIT]
    users: dict[UOp, list[UOp]] = {}
    for n in order:
        for s in n.src:
            users.setdefault(s, []).append(n)
    last = tuple(w for w in waits if _only_stored(w, users))
    firsts = [w for w in waits if w not in last]
    if not last or not firsts or not any(map(_is_fill, firsts[0].src)):
        return None
    if any(later.src[0] in toposort(firsts[0]) for later in last):
        return None
    known: set[UOp] = set(firsts)  # what waits for first products
    for n in order:
        if not known.isdisjoint(n.src):
            known.add(n)
    sums = {_memory(store.src[0]) for w in last for store in _stores(w, users)}
    reads = [n for n in order if n.op is Ops.LOAD and _memory(n.src[0]) in sums]
    if not all(u in known for n in reads for u in _looks(n, users)):
        return None
    return Loop(end, firsts[0], last)


def _stores(wait: UOp, users: dict[UOp, list[UOp]]) -> list[UOp]:
    """Who uses what is there after a wait, through lanes."""
    found = []
    stack = list(users.get(wait, ()))
    while stack:
        n = stack.pop()
        if n.op in (Ops.AFTER, Ops.GEP) and n.src[0].op is not Ops.DEFINE_LOCAL:
            stack += users.get(n, ())
        else:
            found.append(n)
    return found


def _only_stored(wait: UOp, users: dict[UOp, list[UOp]]) -> bool:
    found = _stores(wait, users)
    return bool(found) and all(n.op is Ops.STORE and _is_register(n.src[0]) for n in found)


def _looks(node: UOp, users: dict[UOp, list[UOp]]) -> list[UOp]:
    """Arithmetic with what was read; units add to it by themselves."""
    found = []
    stack = list(users.get(node, ()))
    while stack:
        n = stack.pop()
        if n.op in (Ops.GEP, Ops.VECTORIZE, Ops.CAT) or (n.op is Ops.AFTER and n.dtype is not void):
            stack += users.get(n, ())
        elif n.op not in (Ops.WMMA, Ops.FENCE):
            found.append(n)
    return found


def _is_register(place: UOp) -> bool:
    return isinstance(place.dtype, PtrDType) and place.dtype.space is AddrSpace.REG


def _memory(address: UOp) -> UOp:
    node = address
    while node.op in (Ops.INDEX, Ops.AFTER):
        node = node.src[0]
    return node


@change
def products_run_on(root: UOp, found: Loop) -> UOp:
    """A loop whose last products are waited for in its next step, and behind it."""
    fills = [s for s in found.first.src if _is_fill(s)]
    done: dict[UOp, UOp] = {}

    def new(node: UOp) -> UOp:
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [s for s in top.src if s not in done] if top not in done else []
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if top not in done:
                done[top] = changed(top, tuple([done[s] for s in top.src]))
        return done[node]

    def changed(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is Ops.AFTER and any(s in found.last for s in node.src):  # what waits is the next step
            started = [
                x for s, y in zip(node.src, src, strict=True) for x in (y.src if s in found.last else [y])
            ]
            return node.replace(tuple(started))
        if node.op is Ops.AFTER and found.end in node.src[1:]:
            every = make(Ops.ASYNC_WAIT, void, (done[found.end],), Products(0))
            return node.replace(tuple([every if s is found.end else done[s] for s in node.src]))
        return node.replace(src)

    first = [new(s) for s in found.first.src if s not in fills]
    wait = make(Ops.ASYNC_WAIT, void, tuple(first), found.first.arg, found.first.origin)
    everybody = make(Ops.BARRIER, void, (wait,))
    later = []
    for fill in fills:
        memories = {n: after(new(n), everybody) for n in _targets(fill)}
        later.append(_with(fill, memories, new))
    for node in toposort(root):
        if node.op is Ops.AFTER and found.first in node.src:
            done[node] = node.replace((*(new(s) for s in node.src if s is not found.first), wait, *later))
    return new(root)


def _targets(fill: UOp) -> list[UOp]:
    """The memory that copies of a group go to, as they wait for it."""
    return [c.src[0].src[0] for c in fill.src if c.op is Ops.ASYNC_COPY]


def _with(fill: UOp, memories: dict[UOp, UOp], new: Any) -> UOp:
    """A group of copies to memory that is free later."""
    copies = []
    for c in fill.src:
        if c.op is not Ops.ASYNC_COPY:
            copies.append(new(c))
            continue
        target = c.src[0]
        place = target.replace((memories[target.src[0]], *map(new, target.src[1:])))
        copies.append(c.replace((place, *map(new, c.src[1:]))))
    return fill.replace(tuple(copies))
