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
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from morok.device.buffer import Buffer, bind_buffer, bindings, find_buffer, keepers
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.rewrite.gc_pause import gc_paused
from morok.runtime.launch import PlanLaunch
from morok.runtime.mesh_launch import plan_launch
from morok.runtime.plan import buffer_for
from morok.runtime.profile import current
from morok.tensor.calls.tracing import tracing
from morok.tensor.core import Core, require_shape
from morok.tensor.jit.arguments import (
    arrangement,
    gradient_of,
    placeholders,
    plain_buffers,
    run_writes,
    showing,
    whole_memory,
)
from morok.tensor.jit.functionalize import prepared, put
from morok.tensor.jit.guards import Guard, guards_of
from morok.tensor.jit.in_place import lose, take_memory, written_in_place
from morok.tensor.jit.pytree import flatten, unflatten, values_in
from morok.tensor.jit.rebinding import MISSING, Rebound, put_back
from morok.tensor.jit.results import Made, OutputSpec, Results, describe
from morok.tensor.jit.variables import Bound, rebound_chain, rebound_nodes, unbound_chain
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import resolve, view_of
from morok.tensor.memory.storage import Storage
from morok.tensor.memory.strides import Chain, step_of
from morok.tensor.random import drawing_from, new_cell, new_cells, skip

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

    def changes(self) -> tuple[list[tuple[int, str]], list[UOp], list[tuple[int, UOp, UOp]]]:
        """What was assigned, a storage or the gradient of a tensor by its number, and the nodes.

        Then storages of which parts were written: the number, the memory, and its last state.
        """
        places: list[tuple[int, str]] = []
        nodes: list[UOp] = []
        parts: list[tuple[int, UOp, UOp]] = []
        for i, (storage, node) in enumerate(zip(self.storages, self.nodes, strict=True)):
            if storage.node is not node:
                memory = written_in_place(storage, node)
                if memory is not None:
                    parts.append((i, memory, storage.node))
                    continue
                places.append((i, "value"))
                nodes.append(storage.node)
        for i, (tensor, gradient) in enumerate(zip(self.tensors, self.gradients, strict=True)):
            now = getattr(tensor, "_grad", None)
            if now is not gradient:
                places.append((i, "gradient" if now is not None else "none"))
                nodes += [now._uop] if now is not None else []
        return places, nodes, parts

    def restore(self) -> None:
        for storage, node in zip(self.storages, self.nodes, strict=True):
            storage.node, storage.views = node, None
        for tensor, gradient in zip(self.tensors, self.gradients, strict=True):
            if hasattr(tensor, "_grad"):
                tensor._grad = gradient


def _base(storage: Storage) -> UOp:
    return base_of(resolve([storage.node])[0])


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

    def __init__(
        self, function: Any, structure: Any, given: list[Core], guard_tensors: bool, bound: Bound
    ) -> None:
        self.guards = guards_of(function, guard_tensors, values_in(structure))
        self.now: list[Storage] | None = None  # what tensors from outside show, between a look and a replay
        captured = self.guards.tensors()
        outside = _unique(captured)
        run_writes(_unique([*captured, *given]))
        for storage in outside:
            whole_memory(storage)
        self.arranged = arrangement(given, outside, bound)
        self.inputs, shown = placeholders(given, self.arranged, guard_tensors)
        for tensor in given if guard_tensors else ():
            gradient = gradient_of(tensor)
            if gradient is not None and id(tensor) in shown:
                shown[id(tensor)]._grad = shown.get(id(gradient), gradient)
        self.given = list({id(t): n for n, t in reversed(list(enumerate(given))) if id(t) in shown}.values())
        self.storages = [*outside, *(i.storage for i in self.inputs)]
        nodes, values, parts, kind = self._traced(function, structure, given, captured, shown)
        self.inside = len(outside)  # the number of the first storage of arguments
        self.count = len(nodes)  # of what is computed for results; the rest is put in its places
        kept = self._written_parts(parts)
        self.outside_nodes = [kept.get(base, base) for base in map(_base, outside)]
        with gc_paused:
            wanted = [*nodes, *values]
            states = [state for _, _, state in parts]
            self.plan, self.outputs = prepared(wanted, self.count, kept, states, bound, kind)
        # A graph that holds the memory as it was would count as somebody who reads it.
        del wanted, nodes, values, parts, states
        kept.clear()
        with self._writing(given) as memory:
            for node, buffer in memory.items():
                bind_buffer(node, buffer)
            self.plan.run()
        self.checks = bool(self.plan.schedule.checks)
        self.word = self.plan.word  # a look at it is shorter than a call
        self.views = [resolve([t._uop])[0] for t in self.outputs]
        self.launch: PlanLaunch | None = self._new_launch()
        self.output_spec = self._output_spec(kind)
        self.idle: deque[Results] = deque()  # sets of results that no thread is filling
        computed = [
            made.kind == "output" and not made.chain and made.number == n for n, made in enumerate(self.made)
        ]
        plain = all(computed) and len(computed) == len(self.outputs) and None not in self.output_spec.outputs
        self.plain_results = plain and not self.rebound  # all are new memory, and nothing else
        self.simple = self.launch is not None and plain and not (outside or self.draws or self.writes)
        self.single = self.simple and len(self.outputs) == 1
        found: list[Core] = [
            self._passed_on(i, given, bound) if out is None else t
            for i, (out, t) in enumerate(zip(self.output_spec.outputs, self.outputs, strict=True))
        ]
        self.first = self._given_out(given, found, bound)
        self.storages = []  # they were there for the trace only
        keepers.add(self)

    def _traced(
        self, function: Any, structure: Any, given: list[Core], captured: list[Core], shown: dict[int, Any]
    ) -> tuple[list[UOp], list[UOp], list[tuple[int, UOp, UOp]], type[Core]]:
        """The nodes of results and of new values, memory that is written in place, the class of tensors."""
        args, kwargs = unflatten(structure, iter([shown.get(id(t), t) for t in given]))
        cell = new_cell(0)  # random numbers are counted on from here, at every call from somewhere else
        stand_ins = [shown[id(given[n])] for n in self.given]
        before, around = _Before(self.storages, [*captured, *stand_ins]), self.guards.before()
        try:
            with tracing(), drawing_from(cell) as draws:
                result = function(*args, **kwargs)
            found: list[Core] = []
            self.structure = flatten(result, found)
            self.own = len(found)  # results that the caller gets
            self.rebound: list[Rebound] = around.changes(found)
            self.guards.values += [Guard(name, get, MISSING) for name, get in around.new.items()]
            names = [("captured", n, t) for n, t in enumerate(captured)]
            names += [("given", n, shown[id(given[n])]) for n in self.given]
            self.made, nodes = describe(found, names, self.storages)
            self.changes, values, parts = before.changes()
        finally:
            before.restore()
            around.restore()
        self.draws, self.cells = draws.count, draws.cells
        skip(self.draws)
        kind = type([*found, *captured, *given][0]) if found or captured or given else Core
        return nodes, values, parts, kind

    def _written_parts(self, parts: list[tuple[int, UOp, UOp]]) -> dict[UOp, UOp]:
        """Memory that is written in place, with nodes of the trace's own in its stead."""
        kept: dict[UOp, UOp] = {}
        self.in_place: dict[int, UOp] = {}
        for number, memory, _ in parts:
            node = kept[memory] = new_buffer(memory.dtype, memory.arg, str(memory.src[1].arg))
            self.in_place[number] = node
            if number >= self.inside:
                self.inputs[number - self.inside].node = node
        self.writes = bool(
            self.changes or kept or self.rebound
        )  # whether a call leaves more behind than its results
        return kept

    @contextmanager
    def _writing(self, given: list[Core]) -> Iterator[dict[UOp, Buffer]]:
        """The memory that is written in place, for one run."""
        memory: dict[UOp, Buffer] = {}
        own: list[Storage] = []
        copies: list[tuple[Storage, Chain, UOp]] = []
        for number, node in self.in_place.items():
            storage, chain = self._storage(number, given)
            buffer = None if chain else take_memory(storage)
            if buffer is not None:
                own.append(storage)
            else:  # a part of a larger tensor, or somebody else's memory: an assignment at the end
                place = None if number < self.inside else self.inputs[number - self.inside]
                buffer = (whole_memory(storage) if place is None else place.memory(given)).clone()
                copy = new_buffer(node.dtype, node.arg, str(node.src[1].arg))
                bind_buffer(copy, buffer)
                sizes = given[place.number].shape if place and chain else require_shape(storage.node)
                copies.append((storage, chain, view_of(copy, sizes)))
            memory[node] = buffer
        try:
            yield memory
        except BaseException:
            lose(own)
            raise
        for storage, chain, node in copies:
            put(storage, chain, node)

    def _output_spec(self, kind: type[Core]) -> OutputSpec:
        """What a replay makes anew: memory that the plan writes, and what shows it."""
        written = set(self.plan._written)
        numbers: dict[UOp, int] = {}
        outputs: list[tuple[int, Chain] | None] = []
        for view in self.views:
            node = base_of(view)
            if node in written:
                outputs.append((numbers.setdefault(node, len(numbers)), unbound_chain(_chain_over(view))))
            else:
                outputs.append(None)
        self.written = list(numbers)
        memory = tuple([(node.dtype, node.arg, str(node.src[1].arg)) for node in numbers])
        return OutputSpec(memory, tuple(outputs), kind)

    def drop_unused(self) -> None:
        """Results that nobody uses are there only to be filled again."""
        for _ in range(len(self.idle)):
            results = self._next_idle()
            if results is not None and not results.free():
                self.idle.append(results)

    # --- what a call gives back

    def _passed_on(self, i: int, given: list[Core], bound: Bound) -> Core:
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
        shown = substitute(view, {node: self._showing_values(memory, node)})
        return self.output_spec.kind._new(rebound_nodes([shown], bound)[0])

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

    def _given_out(self, given: list[Core], outputs: list[Core], bound: Bound) -> list[Core]:
        """Puts what was assigned in its places, and makes the results."""
        values = iter(outputs[self.count :])
        for number, kind in self.changes:
            if kind == "value":
                put(*self._storage(number, given), next(values)._result)
                continue
            captured = self.guards.tensors()
            holder: Any = (
                captured[number] if number < len(captured) else given[self.given[number - len(captured)]]
            )
            holder._grad = next(values) if kind == "gradient" else None
        if self.simple:
            return outputs
        results = [self._result(made, given, outputs, bound) for made in self.made]
        return put_back(self.rebound, results, self.own) if self.rebound else results

    def _result(self, made: Made, given: list[Core], outputs: list[Core], bound: Bound) -> Core:
        if made.kind == "given":
            return given[made.number]
        if made.kind == "captured":
            return self.guards.tensors()[made.number]
        if made.kind == "output":
            output = outputs[made.number]
            chain = rebound_chain(made.chain, bound)
            return showing(output, output._storage, chain) if made.chain else output
        storage, seen = self._storage(made.number, given)
        like: Any = object.__new__(self.output_spec.kind)
        return showing(like, storage, seen + rebound_chain(made.chain, bound))  # type: ignore[no-any-return]

    # --- running

    def _new_launch(self) -> PlanLaunch | None:
        """The plan as one call, with its own memory bound."""
        plan = self.plan
        assert plan._programs is not None
        items = list(zip(plan._programs, (i.buffers for i in plan.schedule.items), strict=True))
        launch = plan_launch(items, plan.values)
        if launch is not None:
            for node in launch.nodes:
                launch.bind(node, plan._memory(node))
        return launch

    def still_valid(self, given: list[Core], bound: Bound | None = None) -> str | None:
        """None, or what has changed since the function was traced."""
        now = self.guards.tensors()
        changed = self.guards.changed(now)
        if changed is None and now:
            self.now = outside = _unique(now)
            if arrangement(given, outside, bound) != self.arranged:
                return "arguments share memory with tensors from outside in another way"
        return changed

    def replay_same(
        self, given: Sequence[Core], bases: list[UOp], bound: Bound, once: bool = False
    ) -> list[Core]:
        """A replay on tensors that show the same nodes as last time: the short way.

        Nodes that are used `once` are not held, which would keep memory that may be used again.
        """
        if not self.simple or current() is not None:
            return self.replay(list(given), bound)
        self.now = None
        results = self._take_results()
        try:
            if results.bindings != bindings.count or results.bases is not bases:
                if not self._look_up(results, bases):
                    return self.replay(list(given), bound)
                if once:
                    results.bases = None
            if bound:
                self._set(results, bound)
            results.run()
            if self.checks and (self.word is None or self.word[0]):
                self.plan.hear()
            return [results.give_one()] if self.single else results.give()  # type: ignore[return-value]
        finally:
            self._put_back(results)

    def _set(self, results: Results, bound: Bound) -> None:
        """Other values of variables."""
        assert results.launch is not None
        results.bound = bound
        values = self._values(bound)
        for name, value in values.items():
            results.launch.set(name, value)
        self.plan._bound = {**self.plan.values, **values}

    def _values(self, bound: Bound) -> dict[str, int]:
        """Those that the plan asks for."""
        names = {str(variable.arg[0]): int(bind.src[1].arg) for variable, bind in bound.items()}
        return {name: value for name, value in names.items() if name in self.plan.limits}

    def _look_up(self, results: Results, bases: list[UOp]) -> bool:
        """Binds the memory of inputs; False if one has none yet."""
        assert results.launch is not None
        now = bindings.count
        for place in self.inputs:
            found = find_buffer(bases[place.number])
            if found is None:
                return False
            results.launch.bind(place.node, found)
        results.bindings, results.bases = now, bases
        return True

    def replay(self, given: list[Core], bound: Bound) -> list[Core]:
        """A replay on any tensors of the right kinds, with these values of variables."""
        found, self.now = self.now, None
        outside = _unique(self.guards.tensors()) if found is None else found
        run_writes(_unique(given))
        buffers = plain_buffers(outside)
        if buffers is None:
            run_writes(outside)
            buffers = [whole_memory(s) for s in outside]
        own = set(self.in_place.values())  # taken below, when nothing else can fail
        memory = {n: b for n, b in zip(self.outside_nodes, buffers, strict=True) if n not in own}
        memory |= {place.node: place.memory(given) for place in self.inputs if place.node not in own}
        if self.draws:
            cells = zip(self.cells.values(), new_cells(self.draws, list(self.cells)), strict=True)
            memory |= {cell: buffer_for(fresh) for cell, fresh in cells}
        results = self._take_results()
        try:
            return self._replay(results, memory, given, bound)
        finally:
            self._put_back(results)

    def _replay(
        self, results: Results, memory: dict[UOp, Buffer], given: list[Core], bound: Bound
    ) -> list[Core]:
        """Fills a set of results from the memory of all that the plan reads."""
        launch = results.launch
        results.bases, results.bound = None, bound
        with self._writing(given) as taken:
            memory |= taken
            if launch is not None and current() is None:
                for node, buffer in memory.items():
                    launch.bind(node, buffer)
                self._set(results, bound)
                launch()
                self.plan.hear()
            else:
                memory |= dict(zip(self.written, results.buffers, strict=True))
                self.plan.run(memory, **self._values(bound))
        outputs = [self._passed_on(i, given, bound) if t is None else t for i, t in enumerate(results.give())]
        return self._given_out(given, outputs, bound)

    def _next_idle(self) -> Results | None:
        """A set of results that belongs to the caller from now on."""
        try:
            return self.idle.popleft()  # no two threads get the same one
        except IndexError:
            return None

    def _take_results(self) -> Results:
        """A set of results to be filled: one that nobody knows of, or a new one."""
        for _ in range(len(self.idle)):
            results = self._next_idle()
            if results is None:
                break
            if results.free():
                return results
            if not results.lost():
                self.idle.append(results)
        return self._new_results(self._new_launch() if self.launch is not None else None)

    def _new_results(self, launch: PlanLaunch | None) -> Results:
        results = Results(self.output_spec, launch)
        if results.launch is not None:
            for node, buffer in zip(self.written, results.buffers, strict=True):
                results.launch.bind(node, buffer)
        return results

    def _put_back(self, results: Results) -> None:
        """The set may be filled again when nobody knows of these results any more."""
        if len(self.idle) < _KEPT_RESULTS:
            self.idle.append(results)
