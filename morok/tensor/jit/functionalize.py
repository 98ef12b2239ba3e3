"""Functionalisation: assignments taken out of a graph; what a traced function assigns is one of its
results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from morok.device.buffer import bind_buffer, find_buffer
from morok.ir.memory import base_of
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.schedule.graph.views import OWN
from morok.tensor.assign import write
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.core import Core, require_shape
from morok.tensor.gradient_track import is_tracked, mark
from morok.tensor.jit.arguments import plain_memory
from morok.tensor.jit.in_place import shows_written
from morok.tensor.jit.variables import Bound
from morok.tensor.memory.names import renewed_buffer
from morok.tensor.memory.states import is_computed, is_memory, resolve, shown, shown_memory, view_of
from morok.tensor.memory.storage import Storage, hand_over
from morok.tensor.memory.strides import Chain, replaced, step_of
from morok.tensor.realize import places, prepare


def without_states(
    roots: Sequence[UOp], kept: Mapping[UOp, UOp] | None = None, bound: Bound | None = None
) -> list[UOp]:
    """Graphs in which memory that was overwritten is the value that this makes of it.

    `kept` is memory that is written in place, with the node that is to stand for it; `bound` are values for
    variables, also for those that have other values.
    """
    values: Bound = bound or {}
    done: dict[UOp, UOp] = {**(kept or {}), **values}
    for node in toposort(*roots, stop=done.__contains__):
        if node in done:
            continue
        op = node.op
        if op is Ops.AFTER and len(node.src) == 2 and node.src[1].op is Ops.ASSIGN:
            if kept and base_of(node) in kept:
                done[node] = node.replace(tuple([done[s] for s in node.src]))
            else:
                done[node] = _overwritten(done[node.src[1]])
        elif op is Ops.BIND:
            done[node] = values.get(node.src[0], node)
        else:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    return [done[root] for root in roots]


def _overwritten(write: UOp) -> UOp:
    """What a write makes of the state before."""
    part, value = write.src
    steps = []
    while part.op is not Ops.PLACE:
        steps.append(step_of(part))
        part = part.src[0]
    return replaced(part.src[0], tuple(reversed(steps)), value)


def _detached(tensor: Core) -> Core:
    """A result without its history: what a replay gives has none either."""
    if not is_tracked(tensor._uop):
        return tensor
    return type(tensor)._new(make(Ops.DETACH, tensor.dtype, (tensor._uop,)))


def prepared(
    nodes: list[UOp], count: int, kept: dict[UOp, UOp], states: list[UOp], bound: Bound, kind: type[Core]
) -> tuple[ExecutionPlan, list[Core]]:
    """The plan of a function, and the tensors that it computes, none in the memory of another one."""
    apart: set[int] = set()
    while True:
        made = _functional(nodes, count, kept, states, bound, kind, apart)
        plan = prepare(made, alone=True)
        known = places(plan)
        first: dict[UOp, int] = {}
        memory = [(i, known.get(t._uop)) for i, t in enumerate(made[: len(nodes)])]
        again = {i for i, m in memory if m is not None and first.setdefault(m, i) != i}
        if not again:  # nearly always; some are seen to be equal only when they are simplified
            return plan, made[: len(nodes)]
        assert not again <= apart, "results have one memory"
        apart |= again


def _functional(
    nodes: list[UOp],
    count: int,
    kept: dict[UOp, UOp],
    states: list[UOp],
    bound: Bound,
    kind: type[Core],
    apart: set[int],
) -> list[Core]:
    """Results, then new values with memory of their own, as tensors of one graph without assignments.

    Last come the states of memory that is written in place. `apart` are results that get a copy.
    """
    plain = without_states([*nodes, *states], kept, bound)
    own = set(kept.values())
    seen: set[UOp] = set()
    made: list[Core] = []
    for i, node in enumerate(plain):
        if i < len(nodes):
            value = shown(node)
            passed = i < count and is_computed(node)  # a result that is memory is given as a copy of it
            if i in apart or (value in seen and not passed):  # equal ones are not one
                node = make(Ops.CONTIGUOUS, node.dtype, (node,), f"{OWN}{i}")
            elif (i >= count and is_memory(resolve([node])[0])) or shows_written(node, own):
                node = make(Ops.CONTIGUOUS, node.dtype, (node,))  # not somebody else's memory
            seen.add(value)
        made.append(_detached(kind._new(node)))
    return made


def put(storage: Storage, chain: Chain, node: UOp) -> None:
    """What a recorded program has assigned goes to its place: other memory, or a write where that is seen."""
    memory = shown_memory(storage.node)
    found = None if memory is None else find_buffer(memory)
    hand_over(base_of(node), storage)
    if chain or (found is not None and found.is_shared):
        write(storage, chain, node)
        return
    storage.become(node)
    if storage.leaf:
        mark(base_of(node), fresh=True)


def copy_whole(target: Core, value: Core) -> bool:
    """Gives a tensor a copy of another one's memory, where both are whole: no graph, and no kernel.

    False if that cannot be done, and nothing has happened; an assignment does it then.
    """
    memory = None if value._chain or is_tracing() else plain_memory(value._storage.node)
    frozen = target._frozen or target._storage.frozen
    if memory is None or target._chain or frozen is not None or target.dtype is not value.dtype:
        return False
    if target.device != value.device or (is_tracked(target._uop) and not target._leaf):
        return False
    own = shown_memory(target._storage.node)
    held = None if own is None else find_buffer(own)
    if held is not None and held.is_shared:  # somebody outside looks at that very memory
        return False
    fresh = renewed_buffer(memory)
    bind_buffer(fresh, buffer_for(memory).clone())
    put(target._storage, (), view_of(fresh, require_shape(value._storage.node)))
    return True
