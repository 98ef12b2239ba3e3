"""From lazy graphs to memory: bring graphs up to date, schedule, run, and remember what became of the nodes.

Memory that is assigned to has states, see `tensor/memory/states.py`. After assignments have run, the memory
gets a new BUFFER node: a node made of the old one and an equal node made later would otherwise be the same
node with different values.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

from morok.device.buffer import Buffer, bind_buffer
from morok.errors import IRError, MorokError
from morok.ir.infer import shape
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.rewrite.engine import substitute
from morok.rewrite.gc_pause import gc_paused
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.schedule.schedule import Schedule, schedule
from morok.schedule.signature import Walk
from morok.schedule.varying import refuse
from morok.tensor.calls.tracing import refuse_values
from morok.tensor.core import Core, bind_to_memory, require_shape
from morok.tensor.gradient_track import is_tracked
from morok.tensor.memory.again import Along
from morok.tensor.memory.cuts import cuts
from morok.tensor.memory.names import another_name, is_exposed, new_buffer, read_from_outside, renewed_buffer
from morok.tensor.memory.states import (
    go_on_from,
    is_computed,
    is_memory,
    last_states,
    pending_readers,
    reaching,
    resolve,
    shown,
    shown_memory,
    store_values,
    view_of,
)
from morok.tensor.memory.storage import (
    Storage,
    add_guest,
    any_realized,
    claim,
    done_values,
    forget_values,
    is_deviceless,
    living_storages,
    owner_of,
    realized_as,
    set_realized,
    show_value,
    take_guests,
    values_in,
)


def prepare(tensors: Sequence[Core], alone: bool = False) -> ExecutionPlan:
    """A plan that computes the tensors; when it has run, they are memory. `alone`: it will run again."""
    with gc_paused:
        try:
            return _prepare(tensors, True, alone)
        except MorokError:
            # Perhaps a tensor that would have been computed along is at fault, and not one of these.
            return _prepare(tensors, False, alone)


def _prepare(tensors: Sequence[Core], along: bool, alone: bool) -> ExecutionPlan:
    # A view is computed for its own sake; the storage that it shows stays as it is.
    wanted = [(t._storage, not t._chain) for t in tensors]
    nodes = [t._uop for t in tensors]
    roots = list(nodes)
    walk = Walk(roots, done_values)
    pieces = [] if alone else [Storage(node) for node in cuts(walk.number)]
    if pieces and not any(is_tracked(root) for root in roots):
        for piece in pieces:
            realize_storages([piece])
        nodes = [t._uop for t in tensors]
        roots = list(nodes)
        walk = Walk(roots, done_values)
    renewed: dict[UOp, UOp] = {}
    beside = None if alone else Along([t._storage for t in tensors if not t._chain], walk.number)
    inner = [] if beside is None else [storage.node for storage in beside.storages]
    if any_realized(walk.number):
        found = resolve([*roots, *inner], renewed, alone)
        roots, inner = found[: len(roots)], found[len(roots) :]
        walk = Walk(roots)
    named = _named(walk.number)
    _refuse_overwritten(named)
    states = last_states(named)
    if states:
        beside = None  # readers are taken care of below
    elif beside is not None:
        for storage, root in beside.stored(walk, roots, inner):
            wanted.append((storage, True))
            nodes.append(storage.node)
            roots = [*roots, root]
    kept: dict[UOp, None] = {}
    readers: list[tuple[Storage, UOp]] = []
    if states:
        ids = {id(t._storage) for t in tensors if not t._chain}
        others = [s for s in living_storages() if id(s) not in ids]
        while True:
            found_along, kept = pending_readers(others, walk.number, states, renewed, along)
            readers += found_along
            wanted += [(storage, True) for storage, _ in found_along]
            nodes += [storage.node for storage, _ in found_along]
            roots += [root for _, root in found_along]
            known = len(walk.number)
            walk.extend(roots)
            if len(walk.number) == known:
                break
            named = _named(walk.number)  # of what others hold, what is computed along
            reached = last_states(named)
            if len(reached) == len(states):
                break
            states = reached  # assignments that wait run along, and others may read what they overwrite
            taken = {id(storage) for storage, _ in found_along}
            others = [s for s in others if id(s) not in taken]
    written = {base_of(state) for state in states}
    # A tensor that shows the memory as it was, and is realised along with the assignment, needs a copy too.
    kept.update(
        dict.fromkeys(base for root in roots if is_memory(root) and (base := base_of(root)) in written)
    )
    asked = zip(wanted, nodes, roots, strict=True)
    lazy = [_Asked(*who, node, root) for who, node, root in asked if not is_memory(root)]
    targets = [_target(asked.root, states) for asked in lazy]
    targets += [make(Ops.CONTIGUOUS, state.dtype, (state,)) for state in kept]
    made, targets = _schedule(targets, states, walk if targets == roots else None, not alone)
    reading = {root for _, root in readers}
    owner = _Realization(lazy, list(kept), targets, made, states, renewed, named, reading, beside)
    return ExecutionPlan(made, owner)


_NAMED = frozenset((Ops.BUFFER, Ops.AFTER, Ops.BIND))


def _named(order: Iterable[UOp]) -> list[UOp]:
    """Of all nodes the few that are asked for: memory, its states, and values of variables."""
    return [node for node in order if node.op in _NAMED]


class _Asked(NamedTuple):
    """What a plan computes, a storage or a view of it alone: the node, and as it was scheduled."""

    storage: Storage
    whole: bool
    node: UOp
    root: UOp


@final
class _Realization:
    """What a plan means for tensors: the owner of its first run."""

    def __init__(
        self,
        lazy: list[_Asked],
        kept: list[UOp],
        targets: list[UOp],
        found: Schedule,
        states: dict[UOp, UOp],
        renewed: dict[UOp, UOp],
        named: list[UOp],
        readers: set[UOp],
        beside: Along | None,
    ) -> None:
        self.beside = beside
        self.lazy = lazy
        self.kept = kept
        self.targets = targets  # of what was asked for, then of the states that are kept
        self.found = found
        self.states = states
        self.overwrites = bool(states)
        self.renewed = renewed  # states as other graphs still hold them, and as they were scheduled
        self.memory = [node for node in named if node.op is Ops.BUFFER]
        self.binds = {node.src[0]: node for node in named if node.op is Ops.BIND}
        unknown = [a.root for a in lazy if a.root.op is not Ops.AFTER and a.root not in readers]
        self.readers = readers | reaching(unknown, frozenset(self.memory))

    def begin(self) -> None:
        _refuse_overwritten(self.memory)

    def finish(self) -> None:
        with gc_paused:
            self._finish()

    def _finish(self) -> None:
        views = _rename(self.states, set(self.kept))
        count = len(self.lazy)
        for state, copy in zip(self.kept, self.targets[count:], strict=True):
            set_realized(state, _result(self.found, copy, self.binds, {}))
        for asked, target in zip(self.lazy, self.targets[:count], strict=True):
            view = _result(self.found, target, self.binds, views)
            _found(asked, view, asked.root.op is Ops.AFTER or asked.root in self.readers)
        for old, new in self.renewed.items():
            reached = realized_as(new)
            if reached is not None and realized_as(old) is None:
                set_realized(old, reached)
        self._let_go_of_history()
        if self.beside is not None:
            self.beside.finish()
        read_from_outside(self.memory)

    def _let_go_of_history(self) -> None:
        """Storages that were written along are their memory now, or go on from it.

        Steps of a loop would hang on each other else: each assigns to what the one before has left, and what
        is pending on memory by an old name could not be written in place.
        """
        waiting: list[Storage] = []
        for state in dict.fromkeys(self.states.values()):
            view = realized_as(state)
            owner = None if view is None else owner_of(base_of(view))
            if view is None or owner is None:
                continue
            node = owner.node
            if node is state or self.renewed.get(node) is state:
                bind_to_memory(owner, view)
            elif node.op is Ops.AFTER and (owner.leaf or not is_tracked(node)):
                waiting.append(owner)
        go_on_from(waiting)

    def fail(self) -> None:
        for state in self.states:
            lose_values(base_of(state), place(state))


def places(plan: ExecutionPlan) -> dict[UOp, UOp]:
    """What a prepared plan computes for tensors, each node with the memory that it will lie in."""
    owner = plan._owner
    assert isinstance(owner, _Realization)
    return {
        asked.node: base_of(owner.found.results[target])
        for asked, target in zip(owner.lazy, owner.targets, strict=False)
    }


# BUFFER nodes of states that are gone. Nobody who lives reads them, except through the history of a value
# that was computed long ago, which a gradient may still walk.
_overwritten: weakref.WeakKeyDictionary[UOp, str | None] = weakref.WeakKeyDictionary()


def lose_values(memory: UOp, where: str | None = None) -> None:
    """A BUFFER node stands for values that are gone, overwritten by the assignment at a line."""
    _overwritten[memory] = where
    forget_values(memory)


def is_overwritten(memory: UOp) -> bool:
    """Whether a BUFFER node stands for values that are gone."""
    return memory in _overwritten


def _refuse_overwritten(memory: Sequence[UOp]) -> None:
    if not _overwritten:
        return
    for node in memory:
        if node.op is Ops.BUFFER and node in _overwritten:
            where = _overwritten[node]
            raise IRError(
                f"this needs values that the assignment{f' at {where}' if where else ''} has overwritten; "
                "compute it before the assignment, or keep a copy of them with contiguous()"
            )


def _schedule(
    targets: list[UOp], states: dict[UOp, UOp], walk: Walk | None, with_sizes: bool
) -> tuple[Schedule, list[UOp]]:
    """A schedule, and the nodes that it holds the results of."""
    try:
        return schedule(list(dict.fromkeys(targets)), walk, True, with_sizes), targets
    except IRError:
        if len({base_of(state) for state in states}) < 2:
            raise
        stored = store_values(targets)  # perhaps assignments wait for each other's old values
        return schedule(list(dict.fromkeys(stored))), stored


def _target(root: UOp, states: dict[UOp, UOp]) -> UOp:
    """What to schedule for a tensor: its node, or a copy of it if it shows a state that will not last."""
    state = shown(root)
    passing = state in states and states[state] is not state
    return make(Ops.CONTIGUOUS, root.dtype, (root,)) if passing else root


def _rename(states: dict[UOp, UOp], kept: set[UOp]) -> dict[UOp, UOp]:
    """New BUFFER nodes for memory that was written, as its last state."""
    renamed: dict[UOp, UOp] = {}
    for state in dict.fromkeys(states.values()):
        memory = base_of(state)
        renamed[memory] = fresh = new_buffer(memory.dtype, memory.arg, str(memory.src[1].arg))
        another_name(memory, fresh, buffer_for(memory))
        _overwritten[memory] = place(state)
        if memory not in kept:
            forget_values(memory)
        set_realized(state, view_of(fresh, require_shape(state)))
    return renamed


_FREE = frozenset((Ops.CONST, Ops.IOTA))


def _found(asked: _Asked, view: UOp, reads_memory: bool) -> None:
    """The storage is its memory now, and graphs that hold its node read it there."""
    for node in (asked.root, asked.node) if asked.root is not asked.node else (asked.node,):
        # A constant costs nothing, and is part of many graphs: it is not looked for in memory.
        if node is not view and node.op not in _FREE and realized_as(node) is None:
            set_realized(node, view, reads_memory or is_tracked(node))
    storage = asked.storage
    if not asked.whole:
        storage.alone = [*(storage.alone or ()), (asked.node, view)]
    elif storage.node is asked.node:
        bind_to_memory(storage, view)
        if not claim(base_of(view), storage):  # two tensors of one value were computed together
            add_guest(base_of(view), storage)


def _result(found: Schedule, node: UOp, binds: dict[UOp, UOp], renamed: dict[UOp, UOp]) -> UOp:
    """The view that holds a node, in the sizes that the node has, on memory by its current name."""
    view = found.results[node]
    memory = base_of(view)
    mapping = {**binds, **({memory: renamed[memory]} if memory in renamed else {})}
    buffer_for(mapping.get(memory, memory))
    result = substitute(view, mapping)
    assert shape(result) == shape(node), (shape(result), shape(node))
    return result


def memory_of(tensor: Core) -> Buffer:
    """What a tensor that was computed lies in, to be read: its own memory, or that of an equal one."""
    return buffer_for(base_of(resolve([tensor.uop])[0]))


def realize_storages(storages: Sequence[Storage]) -> None:
    """Compute storages that are not memory yet, whoever shows them."""
    tensors = []
    for storage in storages:
        tensor = object.__new__(Core)
        tensor._storage = storage
        tensors.append(tensor)
    realize(tensors)


def _hold(tensor: Core) -> None:
    """A view's value that somebody else has computed, and may drop, is this tensor's from now on."""
    node = tensor._uop
    view = realized_as(node)
    if view is not None:
        known = tensor._storage.alone or []
        if not any(held is node for held, _ in known):
            tensor._storage.alone = [*known, (node, view)]


def _part_from(storage: Storage) -> None:
    """A value that lies in memory of another storage gets its own where somebody outside could change it."""
    node = storage.node
    memory = shown_memory(node)
    if memory is None:
        return
    if claim(memory, storage):
        return
    if is_exposed(memory):
        become_copy(storage)
    else:
        add_guest(memory, storage)


def become_copy(storage: Storage) -> bool:
    """The storage is no part of other memory any more, once it is realised; not if it has a history."""
    free = storage.leaf or not is_tracked(storage.node)
    if free:
        node = storage.node
        storage.become(make(Ops.CONTIGUOUS, node.dtype, (node,), "its memory may change"))
    return free


def part_guests(memory: UOp) -> None:
    """Memory is shown to somebody outside, who can write to it: values that lie there go elsewhere before."""
    owner = owner_of(memory)  # perhaps once a guest itself, when the memory was another one's
    guests = [g for g in take_guests(memory) if g is not owner and shown_memory(g.node) is memory]
    for guest in guests:
        become_copy(guest)
    if guests:
        realize_storages(guests)
    _lend_values(memory)


def _lend_values(memory: UOp) -> None:
    """Values of graphs that are found in memory which is shown are found elsewhere, or computed again."""
    found = [(node, view) for node, view in values_in(memory) if node.op not in _NAMED]
    if not found:
        return
    copy: UOp | None = None
    for node, view in found:
        if is_tracked(node):  # a gradient asks how it was computed; torch gives no array of such a tensor
            continue
        if is_deviceless(node):  # reads no memory, and many may have it
            show_value(node, None)
            continue
        if copy is None:
            copy = renewed_buffer(memory)
            bind_buffer(copy, buffer_for(memory).clone())
        show_value(node, substitute(view, {memory: copy}))


def realize(tensors: Sequence[Core]) -> None:
    """Compute the tensors that are not memory yet, together."""
    for t in tensors:
        _ = t.uop
        if t._chain:
            _hold(t)
    # A view that is computed alone is found by its node. If its storage was computed along with it, as a
    # reader of memory that was overwritten, the view is another node now, of memory: with gaps, once more.
    for _ in range(3):
        for t in tensors:
            if not t._chain:
                _part_from(t._storage)
        lazy = [t for t in tensors if not is_computed(t._uop)]
        if not lazy:
            return
        refuse_values()
        plan = prepare(lazy)
        if plan.schedule.varied is not None:
            plan = _or_plain(plan, lazy)
        plan.run()


def _or_plain(plan: ExecutionPlan, tensors: Sequence[Core]) -> ExecutionPlan:
    """A plan whose sizes may vary, if its kernels can be made; nobody has asked for those."""
    varied = plan.schedule.varied
    try:
        plan.compile()
    except Exception:
        assert varied is not None
        refuse(varied.of)
        return prepare(tensors)
    return plan
