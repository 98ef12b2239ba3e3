"""From lazy graphs to memory: bring graphs up to date, schedule, run, and remember what became of the nodes.

Memory that is assigned to has states, see `states.py`. After assignments have run, the memory gets a new
BUFFER node: a node made of the old one and an equal node made later would otherwise be the same node with
different values.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import final

from morok.device.buffer import bind_buffer
from morok.dtype import DType
from morok.errors import IRError, MorokError
from morok.ir.build import buffer
from morok.ir.infer import shape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.rewrite.collection import no_collection
from morok.rewrite.engine import substitute
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.schedule.schedule import Schedule, schedule
from morok.tensor.core import (
    Core,
    any_realized,
    living_tensors,
    realized_as,
    require_shape,
    set_realized,
)
from morok.tensor.gradient_track import is_marked, mark
from morok.tensor.states import (
    base_of,
    is_computed,
    is_memory,
    last_states,
    pending_readers,
    resolve,
    shown,
    store_values,
    view_of,
)
from morok.tensor.tracing import refuse_values

_numbers = itertools.count()


def new_buffer(dtype: DType, size: int, device: str) -> UOp:
    """A BUFFER node that no other equals."""
    return buffer(dtype, size, device, next(_numbers))


def prepare(tensors: Sequence[Core]) -> ExecutionPlan:
    """A plan that computes the tensors; when it has run, they are memory."""
    with no_collection:
        try:
            return _prepare(tensors, along=True)
        except MorokError:
            # Perhaps a tensor that would have been computed along is at fault, and not one of these.
            return _prepare(tensors, along=False)


def _prepare(tensors: Sequence[Core], along: bool) -> ExecutionPlan:
    wanted = list(tensors)
    roots = [t._uop for t in wanted]
    order = toposort(*roots)
    renewed: dict[UOp, UOp] = {}
    if any_realized(order):
        roots = resolve(roots, renewed)
        order = toposort(*roots)
    _refuse_overwritten(order)
    states = last_states(order)
    written = {base_of(state) for state in states}
    kept: dict[UOp, None] = {}
    if states:
        ids = {id(t) for t in wanted}
        others = [t for t in living_tensors() if id(t) not in ids]
        readers, kept = pending_readers(others, written, states, along)
        wanted += readers
        roots += resolve([t._uop for t in readers], renewed)
        order = toposort(*roots)
    # A tensor that shows the memory as it was, and is realised along with the assignment, needs a copy too.
    kept.update(
        dict.fromkeys(base for root in roots if is_memory(root) and (base := base_of(root)) in written)
    )
    lazy = [(tensor, root) for tensor, root in zip(wanted, roots, strict=True) if not is_memory(root)]
    targets = [_target(root, states) for _, root in lazy]
    targets += [make(Ops.CONTIGUOUS, state.dtype, (state,)) for state in kept]
    found, targets = _schedule(targets, states, order if targets == roots else None)
    return ExecutionPlan(found, _Realization(lazy, list(kept), targets, found, states, renewed, order))


@final
class _Realization:
    """What a plan means for tensors: the owner of its first run."""

    def __init__(
        self,
        lazy: list[tuple[Core, UOp]],
        kept: list[UOp],
        targets: list[UOp],
        found: Schedule,
        states: dict[UOp, UOp],
        renewed: dict[UOp, UOp],
        order: list[UOp],
    ) -> None:
        self.lazy = lazy
        self.kept = kept
        self.targets = targets  # of the lazy tensors, then of the states that are kept
        self.found = found
        self.states = states
        self.overwrites = bool(states)
        self.renewed = renewed  # states as other graphs still hold them, and as they were scheduled
        self.memory = [node for node in order if node.op is Ops.BUFFER]
        self.binds = {node.src[0]: node for node in order if node.op is Ops.BIND}
        self.readers = _readers(order, [root for _, root in lazy])

    def begin(self) -> None:
        _refuse_overwritten(self.memory)

    def finish(self) -> None:
        views = _rename(self.states)
        count = len(self.lazy)
        for state, copy in zip(self.kept, self.targets[count:], strict=True):
            set_realized(state, _result(self.found, copy, self.binds, {}))
        for (tensor, root), target in zip(self.lazy, self.targets[:count], strict=True):
            view = _result(self.found, target, self.binds, views)
            _settle(tensor, root, view, root in self.readers)
        for old, new in self.renewed.items():
            reached = realized_as(new)
            if reached is not None and realized_as(old) is None:
                set_realized(old, reached)

    def fail(self) -> None:
        for state in self.states:
            _overwritten[base_of(state)] = place(state)


# BUFFER nodes of states that are gone. Nobody who lives reads them, except through the history of a value
# that was computed long ago, which a gradient may still walk.
_overwritten: weakref.WeakKeyDictionary[UOp, str | None] = weakref.WeakKeyDictionary()


def is_overwritten(memory: UOp) -> bool:
    """Whether a BUFFER node stands for values that are gone."""
    return memory in _overwritten


def _refuse_overwritten(order: Sequence[UOp]) -> None:
    if not _overwritten:
        return
    for node in order:
        if node.op is Ops.BUFFER and node in _overwritten:
            where = _overwritten[node]
            raise IRError(
                f"this needs values that the assignment{f' at {where}' if where else ''} has overwritten; "
                "compute it before the assignment, or keep a copy of them with contiguous()"
            )


def _schedule(
    targets: list[UOp], states: dict[UOp, UOp], order: list[UOp] | None
) -> tuple[Schedule, list[UOp]]:
    """A schedule, and the nodes that it holds the results of."""
    try:
        return schedule(list(dict.fromkeys(targets)), order), targets
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


def _rename(states: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """New BUFFER nodes for memory that was written, as its last state."""
    renamed: dict[UOp, UOp] = {}
    for state in dict.fromkeys(states.values()):
        memory = base_of(state)
        renamed[memory] = fresh = new_buffer(memory.dtype, memory.arg, str(memory.src[1].arg))
        bind_buffer(fresh, buffer_for(memory))
        _overwritten[memory] = place(state)
        if is_marked(memory):
            mark(fresh, fresh=True)
        set_realized(state, view_of(fresh, require_shape(state)))
    return renamed


def _readers(order: Sequence[UOp], roots: Sequence[UOp]) -> set[UOp]:
    """Nodes that read some memory; all such roots are among them."""
    if len(roots) == 1:
        return set(roots) if any(node.op is Ops.BUFFER for node in order) else set()
    found: set[UOp] = set()
    for node in order:
        if node.op is Ops.BUFFER or any(s in found for s in node.src):
            found.add(node)
    return found


def _settle(tensor: Core, root: UOp, view: UOp, reads_memory: bool) -> None:
    """The tensor shows its memory, and graphs that hold its node will do so too."""
    for node in (root, tensor._uop):
        if node is not view and realized_as(node) is None:
            set_realized(node, view, reads_memory)
    tensor._settle(view)


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
    lazy = [t for t in tensors if not is_computed(t._uop)]
    if lazy:
        refuse_values()
        prepare(lazy).run()


_claims: weakref.WeakKeyDictionary[UOp, weakref.ref[Core]] = weakref.WeakKeyDictionary()


def claim(memory: UOp, tensor: Core) -> bool:
    """Whether the tensor may write the memory: the first one that asks, until the writes have run."""
    holder = _claims.get(memory)
    if holder is None:
        _claims[memory] = weakref.ref(tensor)
        return True
    return holder() is tensor
