"""States of memory that is assigned to, and graphs that hold them.

    root                                a view of the BUFFER: what the memory holds now
    AFTER(root, ASSIGN(part, value))    the next state; `part` is a view of PLACE(the state before)

A graph that holds a state means the values of that state, however late it is realised. When assignments run,
the memory reaches its last state and the others are gone, so whoever still reads one of those is taken care
of first: readers that can be computed right now are computed along, for the rest the state itself is kept as
a copy. Readers are storages: a view of one that is written goes along with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain

from morok.ir.infer import Shape, numel
from morok.ir.memory import base_of, own_device
from morok.ir.movement import reshape, shrink
from morok.ir.node import UOp, extend_order, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.tensor.memory.storage import Storage, any_realized, is_deviceless, is_done, realized_as


def view_of(memory: UOp, sizes: Shape) -> UOp:
    """A whole buffer in a shape; where sizes are symbolic, the front of it."""
    count = numel(sizes)
    flat = memory if count == memory.arg else shrink(memory, ((0, count),))
    return reshape(flat, sizes)


def _only_shows(node: UOp) -> bool:
    """Whether a node is a view of its source, or another name for it."""
    op = node.op
    if op.is_movement:
        return op is not Ops.PAD
    return op is Ops.DETACH or op is Ops.IDENTITY


def shown(node: UOp) -> UOp:
    """What a view shows: memory, a state of it, or something to be computed."""
    while _only_shows(node):
        node = node.src[0]
    return node


def is_memory(node: UOp) -> bool:
    """Whether a node shows memory as it is, so that there is nothing to compute."""
    return shown(node).op is Ops.BUFFER


def shown_memory(node: UOp) -> UOp | None:
    """The BUFFER that a node, brought up to date, would show; None if there is something to compute."""
    while True:
        view = realized_as(node)
        if view is not None:
            node = view
        elif _only_shows(node):
            node = node.src[0]
        else:
            return node if node.op is Ops.BUFFER else None


def is_computed(node: UOp) -> bool:
    """Whether a node, brought up to date, would show memory."""
    return shown_memory(node) is not None


# --- graphs brought up to date


def _sources(node: UOp) -> tuple[UOp, ...]:
    # The memory of a state is that of the assignment it waits for; its own first source may be out of date.
    return node.src[1:] if node.op is Ops.AFTER else node.src


def resolve(roots: Sequence[UOp], states: dict[UOp, UOp] | None = None, alone: bool = False) -> list[UOp]:
    """The graphs with every node that has been computed replaced by the memory that holds it.

    `states` gets the states of memory that are made anew on the way, with what became of them. What reads no
    memory is left as it is for a graph that stands `alone`, and may run when somebody has written there.
    """
    order: dict[UOp, None] = {}
    extend_order(order, roots, _is_computed)
    if not any_realized(order):
        return list(roots)
    homes: set[str] | None = None
    done: dict[UOp, UOp] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        view = realized_as(node)
        if view is not None and alone and is_deviceless(node):
            view = None
        elif view is not None and is_deviceless(node):  # a mask, say: of use only where all the others are
            if homes is None:
                homes = {own for n in order if (own := _home(n))}
            view = view if not homes or homes == {own_device(base_of(view))} else None
        if view is not None:
            if view in done:
                done[node] = done[view]
                stack.pop()
            else:
                stack.append(view)  # the memory itself may have been replaced by a copy
            continue
        pending = [s for s in _sources(node) if s not in done]
        if pending:
            stack += pending
            continue
        stack.pop()
        done[node] = _rebuilt(node, done)
        if states is not None and node.op is Ops.AFTER and done[node] is not node:
            states[node] = done[node]
    return [done[root] for root in roots]


def _is_computed(node: UOp) -> bool:
    return is_done(id(node)) and realized_as(node) is not None


def _home(node: UOp) -> str:
    """The device of a node that has been computed, or is memory; else nothing."""
    view = None if is_deviceless(node) else realized_as(node)
    return own_device(node if view is None else base_of(view))


def _rebuilt(node: UOp, done: dict[UOp, UOp]) -> UOp:
    if node.op is not Ops.AFTER:
        return node.replace(tuple([done[s] for s in node.src]))
    waits = tuple([done[s] for s in node.src[1:]])
    if waits == node.src[1:]:
        return node
    old, new = base_of(node.src[0]), base_of(waits[0])
    return node.replace((substitute(node.src[0], {old: new}), *waits))


# What waits to be written to a leaf, as graphs hold it, and as the leaf has it since the memory got another
# name: gradients look for the leaf. An entry goes with the last graph that holds the node.
_later: weakref.WeakKeyDictionary[UOp, UOp] = weakref.WeakKeyDictionary()


def go_on_from(storages: Sequence[Storage]) -> None:
    """Storages that wait for assignments do so on their memory by its present name."""
    for storage, node in zip(storages, resolve([storage.node for storage in storages]), strict=True):
        if storage.leaf and node is not storage.node:
            _later[storage.node] = node
        storage.become(node)


def later_name(node: UOp) -> UOp | None:
    """What a leaf has instead of a node that waits; None if nothing was brought up to date."""
    return _later.get(node)


# --- states of memory


def pending_readers(
    storages: Iterable[Storage],
    order: Mapping[UOp, object],
    states: dict[UOp, UOp],
    renewed: dict[UOp, UOp],
    along: bool,
) -> tuple[list[tuple[Storage, UOp]], dict[UOp, None]]:
    """Storages that read states which are about to disappear.

    `order` is what is about to run. `states` are the states that will have been reached, each with the last
    one of its memory. Returned are storages that can be computed along, if that is wanted, with their graphs
    brought up to date, and the states that the others need.
    """
    gone = {base_of(state) for state in states}
    kept: dict[UOp, None] = {}
    lazy: list[Storage] = []
    for storage in storages:
        memory = shown_memory(storage.node)
        if memory is None:
            lazy.append(storage)
        elif memory in gone:
            kept[memory] = None
    if not lazy:
        return [], kept
    # Most of what others hold is a part of what is about to run: it has been walked, and is up to date.
    roots = [storage.node for storage in lazy]
    more = _beyond(order, roots)
    if any_realized(more):
        roots = resolve(roots, renewed)
        more = _beyond(order, roots)
    gone.update([state for state, last in states.items() if state is not last])
    lasting = set(states.values())
    lost = reaching(roots, gone, lasting)
    is_bound = _bound(order, more)
    computed: list[tuple[Storage, UOp]] = []
    seen: set[UOp] = set()
    for storage, root in zip(lazy, roots, strict=True):
        if root in lost:
            if along and is_bound(root):
                computed.append((storage, root))
            else:
                _keep_below(root, gone, lasting, seen, kept)
    return computed, kept


def _beyond(order: Mapping[UOp, object], roots: Iterable[UOp]) -> list[UOp]:
    """Nodes of graphs that are no part of what has been walked, sources first."""
    found: dict[UOp, None] = {}
    extend_order(found, [root for root in roots if root not in order], order.__contains__)
    return [node for node in found if node not in order]


def reaching(roots: Iterable[UOp], ends: Set[UOp], past: Set[UOp] = frozenset()) -> set[UOp]:
    """Nodes that reach one of the ends; all such roots are among them. Nothing is looked for below `past`.

    Every node is looked at once at most, and few are: the search for a root is over at its first end.
    """
    found: set[UOp] = set()
    seen: set[UOp] = set(past)
    after = Ops.AFTER
    for root in roots:
        path = [(root, iter((root,)))]  # down to the first end: all above reach it
        while path:
            for node in path[-1][1]:
                if node in ends or node in found:
                    found.update([above for above, _ in path])
                    found.add(node)
                    path.clear()
                elif node not in seen:
                    seen.add(node)
                    path.append((node, iter(node.src[1:] if node.op is after else node.src)))
                else:
                    continue
                break
            else:
                path.pop()
    return found


def _keep_below(root: UOp, gone: Set[UOp], lasting: Set[UOp], seen: set[UOp], kept: dict[UOp, None]) -> None:
    """The states below a node that will be gone, without those below nodes that were seen before."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen or node in lasting:
            continue
        seen.add(node)
        if node in gone:
            kept[node] = None
        else:
            stack += _sources(node)


def _bound(order: Iterable[UOp], more: Iterable[UOp]) -> Callable[[UOp], bool]:
    """Asks whether every variable below a node has a value. The graph is looked through at the first
    question."""
    if Ops.DEFINE_VAR not in {node.op for node in chain(order, more)}:
        return lambda root: True
    none: frozenset[UOp] = frozenset()
    used: dict[UOp, frozenset[UOp]] = {}
    known: dict[UOp, frozenset[UOp]] = {}

    def is_bound(root: UOp) -> bool:
        for node in () if used else chain(order, more):
            own = frozenset((node,)) if node.op is Ops.DEFINE_VAR else none
            used[node] = own.union(*[used[s] for s in node.src])
            own = frozenset(node.src[:1]) if node.op is Ops.BIND else none
            known[node] = own.union(*[known[s] for s in node.src])
        return used[root] <= known[root]

    return is_bound


def last_states(order: Iterable[UOp]) -> dict[UOp, UOp]:
    """Every state that a schedule goes through, with the last one of its memory."""
    by_base: dict[UOp, list[UOp]] = {}
    for node in order:
        if node.op is Ops.AFTER:
            by_base.setdefault(base_of(node.src[0]), []).append(node)
    return {state: group[-1] for group in by_base.values() for state in group}


# --- assignments that wait for each other


def store_values(roots: Sequence[UOp]) -> list[UOp]:
    """The graphs with everything that is assigned stored before it is written.

    `t = a * 1; a.assign(b); b.assign(t)` reads both memories as they were; without a place for one of the
    values no order of the two writes would be right.
    """
    done: dict[UOp, UOp] = {}
    for node in toposort(*roots):
        src = tuple([done[s] for s in node.src])
        if node.op is Ops.ASSIGN:
            src = (src[0], make(Ops.CONTIGUOUS, node.dtype, (src[1],), None, node.origin))
        done[node] = node.replace(src)
    return [done[root] for root in roots]
