"""One compiled form of a function: traced on placeholders, replayed on what it is called with.

What a function works on are storages: those of its arguments, and those of tensors that it takes from
outside. Arguments stand behind placeholders while it is traced, tensors from outside are put back afterwards.
Arguments that show one storage, or one from outside, keep doing so; any other argument is a storage of its
own, so that a part of a larger tensor is traced once for all parts of that shape.

What a storage holds afterwards becomes a result of the plan and is put in its place after each replay.
Results that show a storage that was there before go on showing it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from morok.device.base import as_host
from morok.device.buffer import Buffer, bind_buffer, bind_fresh, bindings, find_buffer, keepers
from morok.device.registry import get_device
from morok.dtype import DType
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.runtime.launch import PlanLaunch, native_launch
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.runtime.profile import current
from morok.tensor.calls.tracing import tracing
from morok.tensor.core import Core
from morok.tensor.gradient_track import is_tracked
from morok.tensor.jit.arguments import (
    arrangement,
    gradient_of,
    placeholders,
    run_writes,
    showing,
    whole_memory,
)
from morok.tensor.jit.functionalize import put, without_states
from morok.tensor.jit.guards import guards_of
from morok.tensor.jit.pytree import flatten, unflatten, values_in
from morok.tensor.memory.states import is_memory, resolve
from morok.tensor.memory.storage import Storage, claim
from morok.tensor.memory.strides import Chain, moved, step_of
from morok.tensor.random import drawing_from, new_cell, new_cells, skip
from morok.tensor.realize import new_buffer, prepare

_new, _ref = object.__new__, weakref.ref
_KEPT_RESULTS = 4  # sets of results whose memory is used again when nobody holds them any more


# --- what a function leaves behind


@final
class _Before:
    """Storages and gradients as they were before a function ran."""

    def __init__(self, storages: list[Storage], tensors: list[Core]) -> None:
        self.storages, self.tensors = storages, tensors
        self.nodes = [s.node for s in storages]
        self.gradients = [getattr(t, "_grad", None) for t in tensors]

    def changes(self) -> tuple[list[tuple[int, str]], list[UOp]]:
        """What was assigned, a storage or the gradient of a tensor by its number, and the nodes."""
        places: list[tuple[int, str]] = []
        nodes: list[UOp] = []
        for i, (storage, node) in enumerate(zip(self.storages, self.nodes, strict=True)):
            if storage.node is not node:
                places.append((i, "value"))
                nodes.append(storage.node)
        for i, (tensor, gradient) in enumerate(zip(self.tensors, self.gradients, strict=True)):
            now = getattr(tensor, "_grad", None)
            if now is not gradient:
                places.append((i, "gradient" if now is not None else "none"))
                nodes += [now._uop] if now is not None else []
        return places, nodes

    def restore(self) -> None:
        for storage, node in zip(self.storages, self.nodes, strict=True):
            storage.node, storage.views = node, None
        for tensor, gradient in zip(self.tensors, self.gradients, strict=True):
            if hasattr(tensor, "_grad"):
                tensor._grad = gradient


@final
@dataclass
class _Result:
    """How a result is made: an argument, a view of a storage that was there, or one of what was computed."""

    kind: str  # "given", "captured", "storage", "output"
    number: int
    chain: Chain = ()


def _describe(
    found: Sequence[Core], tensors: Sequence[tuple[str, int, Core]], storages: Sequence[Storage]
) -> tuple[list[_Result], list[UOp]]:
    """How the results are made, and the nodes that have to be computed for them."""
    same = {id(t): (kind, n) for kind, n, t in tensors}
    known = {id(s): n for n, s in enumerate(storages)}
    users: dict[int, set[int]] = {}
    for t in found:
        users.setdefault(id(t._storage), set()).add(id(t))
    results: list[_Result] = []
    nodes: list[UOp] = []
    made: dict[int, int] = {}
    for t in found:
        if id(t) in same:
            results.append(_Result(*same[id(t)]))
        elif id(t._storage) in known:
            results.append(_Result("storage", known[id(t._storage)], t._chain))
        else:  # of a storage that only one result shows, no more than that is computed
            alone = len(users[id(t._storage)]) == 1
            key = id(t) if alone else id(t._storage)
            if key not in made:
                made[key] = len(nodes)
                nodes.append(t._uop if alone else t._storage.node)
            results.append(_Result("output", made[key], () if alone else t._chain))
    return results, nodes


def _detached(tensor: Core) -> Core:
    """A result without its history: what a replay gives has none either."""
    if not is_tracked(tensor._uop):
        return tensor
    return type(tensor)._new(make(Ops.DETACH, tensor.dtype, (tensor._uop,)))


def _functional(nodes: list[UOp], count: int, kind: type[Core]) -> list[Core]:
    """Results, then new values with memory of their own, as tensors of one graph without assignments."""
    plain = without_states(nodes)
    seen = set(plain[:count])
    made: list[Core] = []
    for i, node in enumerate(plain):
        if i >= count and (node in seen or is_memory(resolve([node])[0])):
            node = make(Ops.CONTIGUOUS, node.dtype, (node,))  # not somebody else's memory
        seen.add(node)
        made.append(_detached(kind._new(node)))
    return made


# --- results


@final
@dataclass(frozen=True)
class _OutputSpec:
    """What every replay makes anew: memory, and the tensors that show it."""

    memory: tuple[tuple[DType, int, str], ...]
    outputs: tuple[tuple[int, Chain] | None, ...]  # which memory; None: nothing is computed for it
    kind: type[Core]

    def sizes(self, number: int) -> Any:
        """The shape of an output that is all of its memory, in order; None of another one."""
        output = self.outputs[number]
        if output is None or any(step.op is not Ops.RESHAPE for step in output[1]):
            return None
        sizes = output[1][-1].shape if output[1] else (self.memory[output[0]][1],)
        return sizes if all(isinstance(n, int) for n in sizes) else None


@final
class _Results:
    """Memory for the results of a replay, and the call that fills it.

    Whoever holds a result holds its tensor, its storage, or, as a graph does, the node of its memory. All are
    made for each replay and held weakly here, so the memory is free when they are gone and no array shows it.
    """

    __slots__ = ("bases", "bindings", "buffers", "held", "launch", "nodes", "output_spec")

    def __init__(self, output_spec: _OutputSpec, launch: PlanLaunch | None) -> None:
        self.output_spec = output_spec
        self.buffers = [get_device(device).buffer(size, dtype) for dtype, size, device in output_spec.memory]
        self.launch = launch
        self.bases: list[UOp] | None = None  # the inputs whose memory the call reads, and the count of all
        self.bindings = -1  # bindings when it was looked up
        self.held: list[weakref.ref[Any]] = []
        self.nodes: dict[int, weakref.ref[UOp]] = {}

    def lost(self) -> bool:
        """Whether a result has been assigned to: its memory has another name then, and stays its tensor's."""
        return any(b.renamed for b in self.buffers)

    def free(self) -> bool:
        """Whether nobody knows of these results, no tensor, no graph, no array, and none is lost."""
        for held in self.held:
            if held() is not None:
                return False
        for buffer in self.buffers:
            if buffer.renamed or (buffer._lease is not None and not buffer.is_private):
                return False
        return True

    def give(self) -> list[Core | None]:
        """New tensors on the memory, without storages until somebody looks at them."""
        if self.nodes:
            self.nodes = {}
        kind = self.output_spec.kind
        made: list[Core | None] = []
        self.held = held = []
        number = 0
        for output in self.output_spec.outputs:
            if output is None:
                made.append(None)
            else:
                tensor = _new(kind)
                tensor._made_by = (self, number)
                held.append(_ref(tensor))
                made.append(tensor)
            number += 1  # noqa: SIM113 - by hand is faster
        return made

    def storage(self, number: int) -> Storage:
        """The storage of a result."""
        node = self._node(number)
        storage = Storage(node)
        self.held.append(_ref(storage))
        claim(base_of(node), storage)
        return storage

    def array(self, number: int) -> Any:
        """The values of a result as an array that has borrowed the memory; None if they lie otherwise."""
        sizes = self.output_spec.sizes(number)
        output = self.output_spec.outputs[number]
        return None if sizes is None or output is None else as_host(self.buffers[output[0]]).reshape(sizes)

    def _node(self, number: int) -> UOp:
        """The node of a result; results may share memory."""
        output = self.output_spec.outputs[number]
        assert output is not None
        place, chain = output
        known = self.nodes.get(place)
        memory = None if known is None else known()
        if memory is None:
            memory = new_buffer(*self.output_spec.memory[place])
            bind_fresh(memory, self.buffers[place])
            self.nodes[place] = ref = _ref(memory)
            self.held.append(ref)
        return moved(memory, chain)


def _unique(tensors: Sequence[Core]) -> list[Storage]:
    """The storages that tensors show, each once."""
    return list({id(t._storage): t._storage for t in tensors}.values())


def _chain_over(view: UOp) -> Chain:
    """A view of memory as a chain over it."""
    steps = []
    while view.op is not Ops.BUFFER:
        steps.append(step_of(view))
        view = view.src[0]
    return tuple(reversed(steps))


@final
class Trace:
    """One compiled form of a function."""

    def __init__(self, function: Any, structure: Any, given: list[Core], guard_tensors: bool) -> None:
        self.guards = guards_of(function, guard_tensors, values_in(structure))
        captured = self.guards.tensors()
        outside = _unique(captured)
        run_writes(_unique([*captured, *given]))
        for storage in outside:
            whole_memory(storage)
        self.arranged = arrangement(given, outside)
        self.inputs, shown = placeholders(given, self.arranged, guard_tensors)
        for tensor in given if guard_tensors else ():
            gradient = gradient_of(tensor)
            if gradient is not None and id(tensor) in shown:
                shown[id(tensor)]._grad = shown.get(id(gradient), gradient)
        self.given = list({id(t): n for n, t in reversed(list(enumerate(given))) if id(t) in shown}.values())
        self.storages = [*outside, *(i.storage for i in self.inputs)]
        nodes, values, kind = self._traced(function, structure, given, captured, shown)
        self.inside = len(outside)  # the number of the first storage of arguments
        self.count = len(nodes)  # of what is computed for results; the rest is put in its places
        self.outputs = _functional([*nodes, *values], self.count, kind)
        self.plan: ExecutionPlan = prepare(self.outputs)
        self.plan.run()
        self.checks = bool(self.plan.schedule.checks)
        self.word = self.plan.word  # a look at it is shorter than a call
        self.views = [resolve([t.uop])[0] for t in self.outputs]
        self.launch: PlanLaunch | None = self._new_launch()
        self.outside_nodes = [base_of(resolve([s.node])[0]) for s in outside]
        self.output_spec = self._output_spec(kind)
        self.results: list[_Results] = []
        computed = [
            made.kind == "output" and not made.chain and made.number == n for n, made in enumerate(self.made)
        ]
        plain = all(computed) and len(computed) == len(self.outputs) and None not in self.output_spec.outputs
        self.simple = self.launch is not None and plain and not (outside or self.draws or self.changes)
        found: list[Core] = [
            self._passed_on(i, given) if out is None else t
            for i, (out, t) in enumerate(zip(self.output_spec.outputs, self.outputs, strict=True))
        ]
        self.first = self._given_out(given, found)
        self.storages = []  # they were there for the trace only
        keepers.add(self)

    def _traced(
        self, function: Any, structure: Any, given: list[Core], captured: list[Core], shown: dict[int, Any]
    ) -> tuple[list[UOp], list[UOp], type[Core]]:
        """The nodes of results and of new values, and the class of tensors."""
        args, kwargs = unflatten(structure, iter([shown.get(id(t), t) for t in given]))
        cell = new_cell(0)  # random numbers are counted on from here, at every call from somewhere else
        stand_ins = [shown[id(given[n])] for n in self.given]
        before = _Before(self.storages, [*captured, *stand_ins])
        try:
            with tracing(), drawing_from(cell) as draws:
                result = function(*args, **kwargs)
            found: list[Core] = []
            self.structure = flatten(result, found)
            names = [("captured", n, t) for n, t in enumerate(captured)]
            names += [("given", n, shown[id(given[n])]) for n in self.given]
            self.made, nodes = _describe(found, names, self.storages)
            self.changes, values = before.changes()
        finally:
            before.restore()
        self.draws, self.cells = draws.count, draws.cells
        skip(self.draws)
        return nodes, values, type([*found, *captured, *given][0]) if found or captured or given else Core

    def _output_spec(self, kind: type[Core]) -> _OutputSpec:
        """What a replay makes anew: memory that the plan writes, and what shows it."""
        written = set(self.plan._written)
        numbers: dict[UOp, int] = {}
        outputs: list[tuple[int, Chain] | None] = []
        for view in self.views:
            node = base_of(view)
            if node in written:
                outputs.append((numbers.setdefault(node, len(numbers)), _chain_over(view)))
            else:
                outputs.append(None)
        self.written = list(numbers)
        memory = tuple([(node.dtype, node.arg, str(node.src[1].arg)) for node in numbers])
        return _OutputSpec(memory, tuple(outputs), kind)

    def drop_unused(self) -> None:
        """Results that nobody uses are there only to be filled again."""
        self.results = [results for results in self.results if not results.free()]

    # --- what a call gives back

    def _passed_on(self, i: int, given: list[Core]) -> Core:
        """A result that no kernel writes: values of an argument, of a tensor from outside, or constants."""
        view = self.views[i]
        node = base_of(view)
        for place in self.inputs:
            if place.node is node:
                memory = place.memory(given)
                break
        else:
            if node in self.outside_nodes:
                outside = _unique(self.guards.tensors())
                memory = whole_memory(outside[self.outside_nodes.index(node)])
            else:
                memory = buffer_for(node)
        return self.output_spec.kind._new(substitute(view, {node: self._showing_values(memory, node)}))

    def _showing_values(self, memory: Buffer, like: UOp) -> UOp:
        """A BUFFER node for values in somebody's memory."""
        node = new_buffer(like.dtype, like.arg, str(like.src[1].arg))
        bind_buffer(node, memory.clone())
        return node

    def _storage(self, number: int, given: list[Core]) -> tuple[Storage, Chain]:
        """A storage of the trace at this call, and what of it the trace has seen."""
        if number < self.inside:
            return _unique(self.guards.tensors())[number], ()
        place = self.inputs[number - self.inside]
        tensor = given[place.number]
        return tensor._storage, () if place.whole else tensor._chain

    def _given_out(self, given: list[Core], outputs: list[Core]) -> list[Core]:
        """Puts what was assigned in its places, and makes the results."""
        values = iter(outputs[self.count :])
        for number, kind in self.changes:
            if kind == "value":
                put(*self._storage(number, given), next(values)._uop)
                continue
            captured = self.guards.tensors()
            holder: Any = (
                captured[number] if number < len(captured) else given[self.given[number - len(captured)]]
            )
            holder._grad = next(values) if kind == "gradient" else None
        if self.simple:
            return outputs
        return [self._result(made, given, outputs) for made in self.made]

    def _result(self, made: _Result, given: list[Core], outputs: list[Core]) -> Core:
        if made.kind == "given":
            return given[made.number]
        if made.kind == "captured":
            return self.guards.tensors()[made.number]
        if made.kind == "output":
            output = outputs[made.number]
            return showing(output, output._storage, made.chain) if made.chain else output
        storage, seen = self._storage(made.number, given)
        like: Any = object.__new__(self.output_spec.kind)
        return showing(like, storage, seen + made.chain)  # type: ignore[no-any-return]

    # --- running

    def _new_launch(self) -> PlanLaunch | None:
        """The plan as one call, with its own memory bound."""
        plan = self.plan
        assert plan._programs is not None
        items = list(zip(plan._programs, (i.buffers for i in plan.schedule.items), strict=True))
        launch = native_launch(items, plan.values)
        if launch is not None:
            for node in launch.nodes:
                launch.bind(node, plan._memory(node))
        return launch

    def still_valid(self, given: list[Core]) -> str | None:
        """None, or what has changed since the function was traced."""
        changed = self.guards.changed()
        if changed is None and self.guards.getters:
            if arrangement(given, _unique(self.guards.tensors())) != self.arranged:
                return "arguments share memory with tensors from outside in another way"
        return changed

    def replay_same(self, given: tuple[Any, ...], bases: list[UOp]) -> list[Core]:
        """A replay on tensors that show the same nodes as last time: the short way."""
        if not self.simple or current() is not None:
            return self.replay(list(given))
        for results in self.results:
            if results.free():
                break
        else:
            results = self._new_results()
        launch = results.launch
        assert launch is not None
        if results.bindings != bindings.count or results.bases is not bases:
            now = bindings.count
            for place in self.inputs:
                found = find_buffer(bases[place.number])
                if found is None:
                    return self.replay(list(given))
                launch.bind(place.node, found)
            results.bindings, results.bases = now, bases
        (launch.steps.run or launch.steps)()
        if self.checks and (self.word is None or self.word[0]):
            self.plan.hear()
        return results.give()  # type: ignore[return-value]

    def replay(self, given: list[Core]) -> list[Core]:
        """A replay on any tensors of the right kinds."""
        captured = self.guards.tensors()
        run_writes(_unique([*captured, *given]))
        memory = {place.node: place.memory(given) for place in self.inputs}
        outside = _unique(captured)
        memory |= {n: whole_memory(s) for n, s in zip(self.outside_nodes, outside, strict=True)}
        if self.draws:
            cells = zip(self.cells.values(), new_cells(self.draws, list(self.cells)), strict=True)
            memory |= {cell: buffer_for(fresh) for cell, fresh in cells}
        results = next((known for known in self.results if known.free()), None) or self._new_results()
        launch = results.launch
        results.bases = None
        if launch is not None and current() is None:
            for node, buffer in memory.items():
                launch.bind(node, buffer)
            launch()
            self.plan.hear()
        else:
            memory |= dict(zip(self.written, results.buffers, strict=True))
            self.plan.run(memory)
        outputs = [self._passed_on(i, given) if t is None else t for i, t in enumerate(results.give())]
        return self._given_out(given, outputs)

    def _new_results(self) -> _Results:
        self.results = [results for results in self.results if not results.lost()]
        results = _Results(self.output_spec, self._new_launch() if self.launch is not None else None)
        if results.launch is not None:
            for node, buffer in zip(self.written, results.buffers, strict=True):
                results.launch.bind(node, buffer)
        if len(self.results) < _KEPT_RESULTS:
            self.results.append(results)
        return results
