"""States of memory that is assigned to, and graphs that hold them.

    root                                a view of the BUFFER: what the memory holds now
    AFTER(root, ASSIGN(part, value))    the next state; `part` is a view of PLACE(the state before)

A graph that holds a state means the values of that state, however late it is realised. When assignments run,
the memory reaches its last state and the others are gone, so whoever still reads one of those is taken care
of first: readers that can be computed right now are computed along, for the rest the state itself is kept as
a copy. Readers are storages: a view of one that is written goes along with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from morok.ir.infer import Shape, numel
from morok.ir.memory import base_of
from morok.ir.movement import reshape, shrink
from morok.ir.node import UOp, is_identity, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.tensor.memory.storage import Storage, any_realized, realized_as


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
    return op is Ops.DETACH or (op is Ops.NOOP and is_identity(node))


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


def resolve(roots: Sequence[UOp], states: dict[UOp, UOp] | None = None) -> list[UOp]:
    """The graphs with every node that has been computed replaced by the memory that holds it.

    `states` gets the states of memory that are made anew on the way, with what became of them.
    """
    if not any_realized(toposort(*roots)):
        return list(roots)
    done: dict[UOp, UOp] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        view = realized_as(node)
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


def _rebuilt(node: UOp, done: dict[UOp, UOp]) -> UOp:
    if node.op is not Ops.AFTER:
        return node.replace(tuple([done[s] for s in node.src]))
    waits = tuple([done[s] for s in node.src[1:]])
    if waits == node.src[1:]:
        return node
    old, new = base_of(node.src[0]), base_of(waits[0])
    return node.replace((substitute(node.src[0], {old: new}), *waits))


# --- states of memory


def pending_readers(
    storages: Iterable[Storage], written: set[UOp], states: dict[UOp, UOp], along: bool
) -> tuple[list[Storage], dict[UOp, None]]:
    """Storages that read states which are about to disappear.

    `written` holds the buffers, `states` the states that will have been reached, each with the last state of
    its memory. Returned are storages that can be computed along, if that is wanted, and the states that the
    others need.
    """
    computed: list[Storage] = []
    kept: dict[UOp, None] = {}
    for storage in storages:
        memory = shown_memory(storage.node)
        if memory is not None:
            if memory in written:
                kept[memory] = None
            continue
        root = resolve([storage.node])[0]
        lost, pending = _lost_states(root, written, states)
        if not lost:
            continue
        if along and not pending and _is_bound(root):
            computed.append(storage)
        else:
            kept.update(dict.fromkeys(lost))
    return computed, kept


def _lost_states(root: UOp, written: set[UOp], states: dict[UOp, UOp]) -> tuple[list[UOp], bool]:
    """The states in a graph that will be gone, and whether the graph has assignments of its own to run."""
    lost: list[UOp] = []
    pending = False
    seen: set[UOp] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is Ops.BUFFER:
            if node in written:
                lost.append(node)
        elif node in states:
            if states[node] is not node:
                lost.append(node)
        else:
            pending = pending or node.op is Ops.ASSIGN
            stack += _sources(node)
    return lost, pending


def _is_bound(root: UOp) -> bool:
    """Whether every variable in a graph has a value."""
    bound = {n.src[0] for n in toposort(root) if n.op is Ops.BIND}
    return all(n in bound for n in toposort(root) if n.op is Ops.DEFINE_VAR)


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
