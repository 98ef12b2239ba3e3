"""`@jit`: a function of tensors that is traced and compiled once, and replayed afterwards.

The first call runs the function on placeholders, compiles what it computes and remembers the plan. Later
calls with tensors of the same shapes, types and devices replay the plan on the new memory: one native call.
Another shape, type or Python argument is traced again, and so is a tensor given twice, or other options.

What the function takes from outside is watched: tensors are looked up at every call, so a new weight is seen,
and numbers, strings and containers that were read at trace time are compared, so a changed one makes a new
trace. `EXPLAIN=jit` (or DEBUG=2) says why something was traced again.

A function may assign to whole tensors, as a step of training does: parameters, states of an optimiser,
running statistics, gradients. What it assigns becomes a result of the plan, and is put in its place after
each replay. What a replay cannot do right is an error: assigning to parts of tensors, or looking at values.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from functools import update_wrapper
from threading import RLock
from typing import Any, final

from morok import knobs
from morok.device.buffer import Buffer, bind_buffer, bindings, find_buffer, keepers
from morok.device.registry import get_device
from morok.errors import MorokError
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import caller
from morok.rewrite.engine import substitute
from morok.runtime.launch import PlanLaunch, native_launch
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.runtime.profile import current
from morok.tensor.core import Core
from morok.tensor.functional import show_memory, without_states
from morok.tensor.gradient_track import is_tracked, mark
from morok.tensor.random import drawing_from, new_cell, new_cells, skip
from morok.tensor.realize import new_buffer, prepare, realize
from morok.tensor.states import base_of, is_memory, resolve, view_of
from morok.tensor.structures import TENSOR, flatten, unflatten, values_in
from morok.tensor.tracing import SURROUNDINGS, JitError, tracing
from morok.tensor.watch import watched

_KEPT_RESULTS = 4  # sets of results whose memory is used again when nobody holds them any more


def _now(tensor: Core) -> UOp:
    """What a tensor shows now: one that gradients may flow through keeps its node even when it is memory."""
    return resolve([tensor.uop])[0]


def _is_whole(tensor: Core) -> bool:
    """Whether a tensor shows all of its memory, in order."""
    node = tensor._uop
    return is_memory(node) and node is view_of(base_of(node), tensor.shape)


def _memory_of(tensor: Core) -> Buffer:
    """The buffer that holds exactly this tensor; the tensor is computed, or copied, if need be."""
    node = _now(tensor)
    if not is_memory(node):
        realize([tensor])
        node = _now(tensor)
    if node is not view_of(base_of(node), tensor.shape):
        copy: Any = tensor
        return _memory_of(copy.contiguous().realize())
    return buffer_for(base_of(node))


def _seen(source: Core, node: UOp, view: UOp) -> Core:
    """What a view of the stand-in memory `node` shows of a tensor that is given."""
    if view is view_of(node, source.shape):
        return source
    if _is_whole(source):
        memory = base_of(source._uop)
    else:
        memory = new_buffer(source.dtype, node.arg, source.device)
        bind_buffer(memory, _memory_of(source))
    return type(source)._new(substitute(view, {node: memory}))


@final
class _Results:
    """Tensors that a replay has given out, the buffers behind them, and the call that fills them."""

    __slots__ = ("bases", "bindings", "buffers", "counts", "launch", "roots", "seen", "tensors")

    def __init__(self, tensors: list[Core], buffers: list[Buffer], launch: PlanLaunch | None) -> None:
        self.tensors = tensors
        self.buffers = buffers
        self.roots = [b.base or b for b in buffers]
        self.launch = launch
        self.bases: list[UOp] | None = None  # the inputs whose memory the call reads, and the count of all
        self.bindings = -1  # bindings when it was looked up
        # Whoever holds a result holds one of these: the tensor, its node, or the node of its memory.
        self.seen = list({id(o): o for t in tensors for o in (t, t._uop, base_of(t._uop))}.values())
        self.counts: list[int] = []

    def settle(self) -> None:
        """Remembers how many holders there are while nobody outside has seen the results."""
        self.counts = list(map(sys.getrefcount, self.seen))

    def free(self) -> bool:
        """Whether nobody but the jit knows of these results: no tensor, no graph, no array."""
        if list(map(sys.getrefcount, self.seen)) != self.counts:
            return False
        for root in self.roots:
            if (root.borrowed or root._lease is not None) and not root.is_private:
                return False
        return True


def _detached(tensor: Core) -> Core:
    """A result without its history: what a replay gives has none either."""
    if tensor._leaf or not is_tracked(tensor._uop):
        return tensor
    return type(tensor)._new(make(Ops.DETACH, tensor.dtype, (tensor._uop,)))


@final
class _Changes:
    """What a function has assigned: which tensor, what of it, and the nodes of the new values."""

    def __init__(self) -> None:
        self.places: list[tuple[int, str]] = []
        self.nodes: list[UOp] = []


@final
class _Before:
    """Tensors as they were before a function ran."""

    def __init__(self, tensors: list[Core]) -> None:
        self.tensors: list[Any] = tensors
        self.nodes = [t._uop for t in tensors]
        self.gradients = [getattr(t, "_grad", None) for t in tensors]

    def changes(self) -> _Changes:
        found = _Changes()
        for i, (tensor, node, gradient) in enumerate(
            zip(self.tensors, self.nodes, self.gradients, strict=True)
        ):
            if tensor._uop is not node:
                found.places.append((i, "value"))
                found.nodes.append(tensor._uop)
            now = getattr(tensor, "_grad", None)
            if now is not gradient:
                found.places.append((i, "gradient" if now is not None else "none"))
                found.nodes += [now._uop] if now is not None else []
        return found

    def restore(self) -> None:
        for tensor, node, gradient in zip(self.tensors, self.nodes, self.gradients, strict=True):
            tensor._uop = node
            if hasattr(tensor, "_grad"):
                tensor._grad = gradient


def _functional(results: list[UOp], changes: _Changes, kind: type[Core]) -> list[Core]:
    """Results and new values as tensors of one graph without assignments, each with memory of its own."""
    nodes = without_states([*results, *changes.nodes])
    if any(n.op is Ops.ASSIGN for n in toposort(*nodes)):
        raise JitError(
            "a function under jit may assign to whole tensors, not to parts of them; compute the new value, "
            "for example with where() or cat(), and assign that"
        )
    seen = set(nodes[: len(results)])
    made: list[Core] = []
    for i, node in enumerate(nodes):
        if i >= len(results) and (node in seen or is_memory(resolve([node])[0])):
            node = make(Ops.CONTIGUOUS, node.dtype, (node,))  # not somebody else's memory
        seen.add(node)
        made.append(_detached(kind._new(node)))
    return made


def _stand_in(tensor: Core, memory: UOp, leaf: bool) -> Any:
    """A tensor that shows other memory; gradients are wanted for it, if they are for the given one."""
    made: Any = type(tensor)._new(view_of(memory, tensor.shape))
    if leaf:
        made._leaf = True
        mark(memory, fresh=True)
    return made


def _gradient_of(tensor: Core) -> Any:
    return getattr(tensor, "_grad", None) if tensor._leaf else None


def first_of(tensors: Sequence[Core]) -> tuple[int, ...]:
    """For each tensor, where it stands for the first time."""
    places: dict[int, int] = {}
    return tuple([places.setdefault(id(t), n) for n, t in enumerate(tensors)])


@final
class _Trace:
    """One compiled form of a function."""

    def __init__(self, function: Any, structure: Any, given: list[Core], watch_tensors: bool) -> None:
        self.watched = watched(function, watch_tensors, values_in(structure))
        captured = self.watched.tensors()
        for tensor in captured:
            _memory_of(tensor)
        # An argument may stand in several places, and may be one of the tensors from outside.
        self.outside = self._outside(given, captured)
        firsts = first_of(given)
        self.own = [i for i, n in enumerate(firsts) if n == i and self.outside[i] is None]
        own = [given[i] for i in self.own]
        memory = [_memory_of(t) for t in own]
        fresh = [new_buffer(t.dtype, b.size, t.device) for t, b in zip(own, memory, strict=True)]
        for node, buffer in zip(fresh, memory, strict=True):
            bind_buffer(node, buffer)
        stand_ins = [
            _stand_in(t, node, t._leaf and watch_tensors) for node, t in zip(fresh, own, strict=True)
        ]
        shown_as = {id(t): other for t, other in zip(own, stand_ins, strict=True)}
        for tensor, other in zip(own, stand_ins, strict=True):
            gradient = _gradient_of(tensor) if watch_tensors else None
            if gradient is not None:
                other._grad = shown_as.get(id(gradient), gradient)
        args, kwargs = unflatten(structure, iter([shown_as.get(id(t), t) for t in given]))
        cell = new_cell(0)  # random numbers are counted on from here, at every call from somewhere else
        before = _Before([*captured, *stand_ins])
        try:
            with tracing(), drawing_from(cell) as draws:
                result = function(*args, **kwargs)
            found: list[Core] = []
            self.structure = flatten(result, found)
            shown = [t._uop for t in found]  # before the tensors are put back: one of them may be a result
            changes = before.changes()
        finally:
            before.restore()
        self.draws = draws.count
        self.cells = draws.cells
        skip(self.draws)
        self.inputs = fresh
        self.count = len(found)  # of results; the rest is put in its places
        self.changes = changes.places
        detached = {id(t): _detached(t) for t in found}
        self.outputs = (
            [detached[id(t)] for t in found]
            if not changes.places
            else _functional(shown, changes, type(before.tensors[0]))
        )
        plan = prepare(self.outputs)
        plan.run()
        self.plan: ExecutionPlan = plan
        self.nodes = [base_of(t.uop) for t in self.outputs]
        self.views = [_now(t) for t in self.outputs]
        self.launch: PlanLaunch | None = self._new_launch()
        self.captured_nodes = [base_of(_now(t)) for t in captured]
        self.results: list[_Results] = []
        written = set(plan._written)
        self.through = [i for i, n in enumerate(self.nodes) if n not in written]
        changing = captured or self.through or self.draws or self.changes
        self.simple = self.launch is not None and not changing
        self.first = self._first(given)
        self._put(given, self.outputs)
        keepers.add(self)

    def let_go(self) -> None:
        """Results that nobody uses are there only to be filled again."""
        self.results = [results for results in self.results if not results.free()]

    def _outside(self, given: list[Core], captured: list[Core]) -> list[int | None]:
        """Which of the tensors from outside each argument is."""
        numbers = {id(t): n for n, t in enumerate(captured)}
        return [numbers.get(id(t)) for t in given]

    def _first(self, given: list[Core]) -> list[Core]:
        """The results of the first call: nobody else gets memory that the plan goes on reading."""
        kept: dict[int, Core] = {}
        for i in self.through:
            if i < self.count:
                kept.setdefault(id(self.outputs[i]), self._given_back(i, given))
        return [kept.get(id(t), t) for t in self.outputs[: self.count]]

    def _given_back(self, i: int, given: list[Core]) -> Core:
        """A result that no kernel writes: an argument, a tensor from outside, or a constant memory."""
        node, view, old = self.nodes[i], self.views[i], self.outputs[i]
        if node in self.inputs:
            return _seen(given[self.own[self.inputs.index(node)]], node, view)
        if node in self.captured_nodes:
            return _seen(self.watched.tensors()[self.captured_nodes.index(node)], node, view)
        copy = new_buffer(node.dtype, node.arg, str(node.src[1].arg))
        bind_buffer(copy, buffer_for(node).clone())
        return type(old)._new(substitute(view, {node: copy}))

    def _put(self, given: list[Core], tensors: list[Core]) -> None:
        """What the function has assigned goes to its places."""
        if not self.changes:
            return
        holders = [*self.watched.tensors(), *[given[i] for i in self.own]]
        values = iter(tensors[self.count :])
        for number, kind in self.changes:
            holder: Any = holders[number]
            if kind == "value":
                show_memory(holder, next(values)._uop)
            else:
                holder._grad = next(values) if kind == "gradient" else None

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
        changed = self.watched.changed()
        if changed is None and self.watched.getters:
            if self._outside(given, self.watched.tensors()) != self.outside:
                return "an argument is a tensor from outside, or is none any more"
        return changed

    def replay_same(self, given: tuple[Any, ...], bases: list[UOp]) -> list[Core]:
        """A replay on tensors that show the same nodes as last time: the short way."""
        if not self.simple or current() is not None:
            return self.replay(list(given))
        for results in self.results:
            if results.free():
                break
        else:
            results = self._results(list(given))
        launch = results.launch
        assert launch is not None
        if results.bindings != bindings.count or results.bases is not bases:
            now = bindings.count
            for node, i in zip(self.inputs, self.own, strict=True):
                found = find_buffer(bases[i])
                if found is None:
                    return self.replay(list(given))
                launch.bind(node, found)
            results.bindings, results.bases = now, bases
        (launch.steps.run or launch.steps)()
        return results.tensors

    def replay(self, given: list[Core]) -> list[Core]:
        """A replay on any tensors of the right kinds."""
        results = self._results(given)
        memory = {node: _memory_of(given[i]) for node, i in zip(self.inputs, self.own, strict=True)}
        captured = self.watched.tensors()
        memory |= {n: _memory_of(t) for n, t in zip(self.captured_nodes, captured, strict=True)}
        if self.draws:
            cells = zip(self.cells.values(), new_cells(self.draws, list(self.cells)), strict=True)
            memory |= {cell: buffer_for(fresh) for cell, fresh in cells}
        launch = results.launch
        results.bases = None
        if launch is not None and current() is None:
            for node, buffer in memory.items():
                launch.bind(node, buffer)
            launch()
        else:
            memory |= {n: results.buffers[i] for i, n in enumerate(self.nodes) if i not in self.through}
            self.plan.run(memory)
        self._put(given, results.tensors)
        return results.tensors

    def _results(self, given: list[Core]) -> _Results:
        if not self.through:
            for known in self.results:
                if known.free():
                    return known
        tensors: list[Core] = []
        buffers: list[Buffer] = []
        made: dict[UOp, UOp] = {}  # results may share memory
        firsts = first_of(self.outputs)
        for i, (node, old) in enumerate(zip(self.nodes, self.outputs, strict=True)):
            if firsts[i] != i:
                tensors.append(tensors[firsts[i]])
                buffers.append(buffers[firsts[i]])
                continue
            if i in self.through:
                tensors.append(self._given_back(i, given))
                buffers.append(_memory_of(tensors[-1]))
                continue
            fresh = made.get(node)
            if fresh is None:
                fresh = made[node] = new_buffer(node.dtype, node.arg, str(node.src[1].arg))
                bind_buffer(fresh, get_device(str(node.src[1].arg)).buffer(node.arg, node.dtype))
            tensors.append(type(old)._new(substitute(self.views[i], {node: fresh})))
            buffers.append(buffer_for(fresh))
        launch = self._new_launch() if self.launch is not None else None
        if launch is not None:
            for i, node in enumerate(self.nodes):
                if i not in self.through:
                    launch.bind(node, buffers[i])
        results = _Results(tensors, buffers, launch)
        del tensors, buffers, made
        fresh = None  # who counts holders must not be one
        results.settle()
        if not self.through and len(self.results) < _KEPT_RESULTS:
            self.results.append(results)
        return results


@final
class Jit:
    """A compiled function. `traces` counts how often it was traced."""

    def __init__(self, function: Callable[..., Any], watch_tensors: bool = True) -> None:
        self.function = function
        self.watch_tensors = watch_tensors  # whether tensors from outside are looked up, or all are arguments
        self.traces = 0
        self._known: dict[Any, _Trace] = {}
        self._last: (
            tuple[_Trace, list[UOp], list[UOp], list[tuple[Callable[[], object], object]], bool] | None
        ) = None
        self._lock = RLock()  # results are given out one at a time
        update_wrapper(self, function)

    @property
    def plans(self) -> list[ExecutionPlan]:
        """The plans of all forms that the function was traced in."""
        return [trace.plan for trace in self._known.values()]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = instance.__dict__.get("_jit_methods", {}).get(self.function.__name__)
        if bound is None:
            bound = Jit(types.MethodType(self.function, instance))
            instance.__dict__.setdefault("_jit_methods", {})[self.function.__name__] = bound
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._lock:
                last = self._last
                if last is not None and not kwargs and len(args) == len(last[1]):
                    # the very same nodes as last time: same shapes, types and devices, without a look
                    for a, u in zip(args, last[1], strict=True):
                        if getattr(a, "_uop", None) is not u or a._leaf:
                            break
                    else:
                        trace, _, bases, around, alone = last
                        for look, was in around:
                            now = look()
                            if now is not was and now != was:
                                break
                        else:
                            if alone or trace.still_valid(list(args)) is None:
                                tensors = trace.replay_same(args, bases)
                                if trace.structure is TENSOR:
                                    return tensors[0]
                                return unflatten(trace.structure, iter(tensors))
                return self._long_way(args, kwargs)
        except MorokError as error:
            if error.place is None:  # a GPU without room, say: at least the call is known
                error.place = caller()
            raise

    def _long_way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: list[Core] = []
        structure = (tuple, (flatten(args, given), flatten(kwargs, given)))
        count = len(given)
        if self.watch_tensors:  # what the function adds to a gradient depends on the gradient
            given += [g for t in given if (g := _gradient_of(t)) is not None]
        key = self._key(structure, given)
        known = self._known.get(key)
        why = (
            "there is no trace for these shapes, types and arguments"
            if known is None
            else known.still_valid(given)
        )
        if known is None or why is not None:
            self._explain(why or "")
            known = self._known[key] = _Trace(self.function, structure, given, self.watch_tensors)
            self.traces += 1
            self._last = None
            first, known.first = known.first, []
            return unflatten(known.structure, iter(first))
        results = known.replay(given)
        # The short way takes the memory behind a node as it lies there: not turned, not a part, not lazy.
        plain = not kwargs and count == len(given) and not known.changes
        plain = plain and all(isinstance(a, Core) and _is_whole(a) and not a._leaf for a in args)
        nodes = [t._uop for t in given]
        around = [(look, look()) for look in SURROUNDINGS]
        bases = [base_of(n) for n in nodes]
        self._last = (known, nodes, bases, around, known.watched.is_empty) if plain else None
        return unflatten(known.structure, iter(results))

    def _key(self, structure: Any, given: list[Core]) -> Any:
        around = tuple([look() for look in SURROUNDINGS])
        forms = [(type(t), t.shape, t.dtype, t.device, t._leaf, _gradient_of(t) is not None) for t in given]
        key = (structure, around, first_of(given), *forms)
        try:
            hash(key)
        except TypeError:
            raise JitError(
                "arguments of a function under jit are tensors, and values that can be compared"
            ) from None
        return key

    def _explain(self, why: str) -> None:
        if "jit" in knobs.EXPLAIN.value or knobs.DEBUG.value >= 2:
            name = getattr(self.function, "__qualname__", "function")
            print(f"morok: {name} is traced: {why}", file=sys.stderr)


def jit(function: Callable[..., Any]) -> Jit:
    """Compiles a function of tensors at its first call and replays it afterwards.

    >>> @jit
    ... def double(x):
    ...     return x + x
    >>> double(Tensor([1, 2])).tolist(), double(Tensor([3, 4])).tolist()
    ([2, 4], [6, 8])
    """
    return Jit(function)


__all__ = ["Jit", "JitError", "jit"]
