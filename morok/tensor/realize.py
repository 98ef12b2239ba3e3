"""From lazy graphs to memory: bring graphs up to date, schedule, run, and remember what became of the nodes.

Memory that is assigned to has *states*: first what it holds, then one per assignment, in program order:

    root                                a view of the BUFFER: what the memory holds now
    AFTER(root, ASSIGN(part, value))    the next state; `part` is a view of the state before

A graph that holds a state means the values of that state, however late it is realised. When assignments run,
the memory reaches its last state and the others are gone, so whoever still reads one of those is taken care
of first: readers that can be computed right now are computed along, for the rest the state itself is kept as
a copy. Afterwards the memory gets a new BUFFER node. A node made of the old one and of equal later ones
would otherwise be the same node with different values.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence

from morok.device.buffer import bind_buffer
from morok.dtype import DType
from morok.ir.build import buffer
from morok.ir.infer import Shape, numel, shape
from morok.ir.movement import reshape, shrink
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.schedule.schedule import Schedule, schedule
from morok.tensor.core import Core, living_tensors, realized_as, require_shape, set_realized

_numbers = itertools.count()


def new_buffer(dtype: DType, size: int, device: str) -> UOp:
    """A BUFFER node that no other equals."""
    return buffer(dtype, size, device, next(_numbers))


def view_of(memory: UOp, sizes: Shape) -> UOp:
    """A whole buffer in a shape; where sizes are symbolic, the front of it."""
    count = numel(sizes)
    flat = memory if count == memory.arg else shrink(memory, ((0, count),))
    return reshape(flat, sizes)


def base_of(node: UOp) -> UOp:
    """The BUFFER that a view, or a state, or a part of one, stands in."""
    while node.op is not Ops.BUFFER:
        node = node.src[0]
    return node


def _shown(node: UOp) -> UOp:
    """What a view shows: memory, a state of it, or something to be computed."""
    while node.op.is_movement and node.op is not Ops.PAD:
        node = node.src[0]
    return node


def is_memory(node: UOp) -> bool:
    """Whether a node shows memory as it is, so that there is nothing to compute."""
    return _shown(node).op is Ops.BUFFER


# --- graphs brought up to date


def _sources(node: UOp) -> tuple[UOp, ...]:
    # The memory of a state is that of the assignment it waits for; its own first source may be out of date.
    return node.src[1:] if node.op is Ops.AFTER else node.src


def resolve(roots: Sequence[UOp]) -> list[UOp]:
    """The graphs with every node that has been computed replaced by the memory that holds it."""
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


def _readers(
    tensors: Iterable[Core], written: set[UOp], states: dict[UOp, UOp]
) -> tuple[list[Core], dict[UOp, None]]:
    """Tensors that read states which are about to disappear.

    `written` holds the buffers, `states` the states that will have been reached, each with the last state of
    its memory. Returned are tensors that can be computed along, and the states that the others need.
    """
    along: list[Core] = []
    kept: dict[UOp, None] = {}
    for tensor in tensors:
        root = resolve([tensor._uop])[0]
        lost, pending = _lost_states(root, written, states)
        if not lost:
            continue
        if pending or is_memory(root) or not _is_bound(root):
            kept.update(dict.fromkeys(lost))
        else:
            along.append(tensor)
    return along, kept


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


def _last_states(order: Iterable[UOp]) -> dict[UOp, UOp]:
    """Every state that a schedule goes through, with the last one of its memory."""
    by_base: dict[UOp, list[UOp]] = {}
    for node in order:
        if node.op is Ops.AFTER:
            by_base.setdefault(base_of(node.src[0]), []).append(node)
    return {state: group[-1] for group in by_base.values() for state in group}


# --- realising


def prepare(tensors: Sequence[Core]) -> ExecutionPlan:
    """A plan that computes the tensors; when it has run, they are memory."""
    wanted = list(tensors)
    roots = resolve([t._uop for t in wanted])
    order = toposort(*roots)
    states = _last_states(order)
    written = {base_of(state) for state in states}
    kept: dict[UOp, None] = {}
    if states:
        ids = {id(t) for t in wanted}
        others = [t for t in living_tensors() if id(t) not in ids]
        along, kept = _readers(others, written, states)
        wanted += along
        roots += resolve([t._uop for t in along])
    # A tensor that shows the memory as it was, and is realised along with the assignment, needs a copy too.
    kept.update(
        dict.fromkeys(base for root in roots if is_memory(root) and (base := base_of(root)) in written)
    )
    targets = [_target(root, states) for root in roots]
    copies = {state: make(Ops.CONTIGUOUS, state.dtype, (state,)) for state in kept}
    found = schedule(list(dict.fromkeys([*(t for t in targets if not is_memory(t)), *copies.values()])))
    binds = {n.src[0]: n for n in order if n.op is Ops.BIND}

    def finish() -> None:
        views = _rename(states)
        for state, copy in copies.items():
            set_realized(state, _result(found, copy, binds, {}))
        for tensor, root, target in zip(wanted, roots, targets, strict=True):
            if not is_memory(root):
                _settle(tensor, root, _result(found, target, binds, views))

    return ExecutionPlan(found, finish)


def _target(root: UOp, states: dict[UOp, UOp]) -> UOp:
    """What to schedule for a tensor: its node, or a copy of it if it shows a state that will not last."""
    shown = _shown(root)
    passing = shown in states and states[shown] is not shown
    return make(Ops.CONTIGUOUS, root.dtype, (root,)) if passing else root


def _rename(states: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """New BUFFER nodes for memory that was written, as its last state."""
    renamed: dict[UOp, UOp] = {}
    for state in dict.fromkeys(states.values()):
        memory = base_of(state)
        renamed[memory] = fresh = new_buffer(memory.dtype, memory.arg, str(memory.src[1].arg))
        bind_buffer(fresh, buffer_for(memory))
        set_realized(state, view_of(fresh, require_shape(state)))
    return renamed


def _settle(tensor: Core, root: UOp, view: UOp) -> None:
    """The tensor shows its memory, and graphs that hold its node will do so too."""
    for node in (root, tensor._uop):
        if node is not view and realized_as(node) is None:
            set_realized(node, view)
    tensor._uop = view


def _result(found: Schedule, node: UOp, binds: dict[UOp, UOp], renamed: dict[UOp, UOp]) -> UOp:
    """The view that holds a node, in the sizes that the node has, on memory by its current name."""
    view = found.results[node]
    memory = base_of(view)
    mapping = {**binds, **({memory: renamed[memory]} if memory in renamed else {})}
    buffer_for(mapping.get(memory, memory))
    result = substitute(view, mapping)
    assert shape(result) == shape(node), (shape(result), shape(node))
    return result


def realize(tensors: Sequence[Core]) -> None:
    """Compute the tensors that are not memory yet, together."""
    lazy = [t for t in tensors if not is_memory(resolve([t._uop])[0])]
    if lazy:
        prepare(lazy).run()


_claims: weakref.WeakKeyDictionary[UOp, weakref.ref[Core]] = weakref.WeakKeyDictionary()


def claim(memory: UOp, tensor: Core) -> bool:
    """Whether the tensor may write the memory: the first one that asks, until the writes have run."""
    holder = _claims.get(memory)
    if holder is None:
        _claims[memory] = weakref.ref(tensor)
        return True
    return holder() is tensor
