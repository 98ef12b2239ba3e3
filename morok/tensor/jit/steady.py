"""Steps that write into memory of their own again and again, a language model's cache above all.

A replay of a function that writes parts of its arguments asks for each of them who else may read it, and
gives it another name. Between two steps of a loop nothing changes but the values of variables and the tensors
that come in. So what the last step has found out is used again, as long as a look at each argument says that
it shows the same memory and that nobody has taken hold of it since; else the step goes the long way once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import gt
from typing import Any, final

from morok.device.buffer import Buffer
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.runtime.profile import current
from morok.tensor.calls.tracing import TRACE_ENVIRONMENT
from morok.tensor.core import Core
from morok.tensor.jit.arguments import arrangement, plain_memory
from morok.tensor.jit.in_place import lose, take_memory
from morok.tensor.jit.jit import Jit
from morok.tensor.jit.pytree import flatten, unflatten
from morok.tensor.jit.stored import Entry, Named, found_on_disk
from morok.tensor.jit.trace import Trace
from morok.tensor.jit.variables import Bound

# Who holds a node is counted. Without a global lock such counts are not exact: those Pythons go the long way.
_EXACT: bool = getattr(sys, "_is_gil_enabled", lambda: True)()

Kept = tuple[UOp, Buffer]  # the node that an argument shows, and its memory


@final
class Steady:
    """A compiled function that is called again and again on the same memory.

    One that is `named` is looked for on disk before it is traced, and kept there afterwards.
    """

    def __init__(self, function: Jit, named: Named | None = None) -> None:
        self.function, self.named = function, named
        self._known: _Known | None = None
        self._stored: dict[Any, Entry] = {}  # by the form of a call

    @property
    def plans(self) -> list[ExecutionPlan]:
        """The plans of all forms that the function was found or traced in."""
        return [*(e.trace.plan for e in self._stored.values() if e.trace is not None), *self.function.plans]

    @property
    def traces(self) -> int:
        """How often it was traced."""
        return self.function.traces

    def __call__(self, *args: Any) -> Any:
        """As the function; all arguments by place."""
        given: list[Core] = []
        bound: Bound = {}
        structure = (tuple, (flatten(args, given, bound), flatten({}, given, bound)))
        known = self._known
        if known is not None and current() is None and known.fits(structure, given):
            return known.replay(given, bound)
        named = self.named if _EXACT and current() is None else None
        form = () if named is None else _call_form(structure, given)
        if named is not None:
            if form not in self._stored:
                self._stored[form] = found_on_disk(named, structure, given, bound)
            stored = self._stored[form].trace
            self._known = known = None if stored is None else _owned(stored, structure, given)
            if known is not None:
                known.holders = known.count()
                return known.replay(given, bound)
        before = self.function.newest
        self.function.forget_latest()  # which may be of another form
        found = self.function(*args)
        if named is not None and self.function.newest is not before:
            self._stored[form].keep(named, self.function.newest, _suits)
        trace = self.function.latest if _EXACT else None
        self._known = known = None if trace is None else _known(trace, structure, given)
        if known is not None:
            known.holders = known.count()
        return found


@final
class _Known:
    """What a call has found out that holds for the next one."""

    def __init__(self, trace: Trace, structure: Any, forms: dict[int, Any], kept: dict[int, Kept]) -> None:
        self.trace, self.structure = trace, structure
        self.forms = forms  # of the arguments that are new each time, by place
        self.kept = kept  # the others, whose memory is written
        self.around = [look() for look in TRACE_ENVIRONMENT]
        self.values: dict[str, int] = {}  # of variables, at the last step
        self.holders: list[int] = []  # what `count` has found right after the call
        self.mark: list[UOp] = []  # on sets of results whose calls know the memory that is kept

    def fits(self, structure: Any, given: Sequence[Core]) -> bool:
        """Whether all is as it was but values of variables, and what the new arguments hold."""
        if structure != self.structure or len(given) != len(self.kept) + len(self.forms):
            return False
        for n, tensor in enumerate(given):
            kept = self.kept.get(n)
            if tensor._chain:
                return False
            if kept is not None:
                if tensor._storage.node is not kept[0] or not kept[1].is_private:
                    return False
            elif _memory_key(tensor) != self.forms[n]:
                return False
        if any(map(gt, self.count(), self.holders)):  # a graph that waits to be computed reads one of them
            return False
        return [look() for look in TRACE_ENVIRONMENT] == self.around

    def count(self) -> list[int]:
        """How many hold the node of each argument that is written, or the memory that it shows."""
        return [_holders(node) for node, _ in self.kept.values()]

    def replay(self, given: Sequence[Core], bound: Bound) -> Any:
        """A run with the memory of last time."""
        trace = self.trace
        results = trace._take_results()
        try:
            launch = results.launch
            assert launch is not None
            again = results.bases is self.mark  # nobody else has used this set since
            for place in trace.inputs:
                if place.number in self.forms:
                    launch.bind(place.node, place.memory(given))
                elif not again:
                    launch.bind(place.node, self.kept[place.number][1])
            results.bases, results.bound = self.mark, bound
            values = {str(variable.arg[0]): int(bind.src[1].arg) for variable, bind in bound.items()}
            values = {name: value for name, value in values.items() if name in trace.plan.limits}
            for name, value in values.items():
                launch.set(name, value)
            try:
                launch()
                trace.plan._bound = {**trace.plan.values, **values}
                trace.plan.hear()
            except BaseException:
                lose([given[n]._storage for n in self.kept])
                raise
            for name, value in values.items():  # most loops count on, and the device is busy now
                step = value - self.values.get(name, value)
                if step and trace.plan.limits[name][0] <= value + step <= trace.plan.limits[name][1]:
                    launch.expect(name, value + step)
            self.values = values
            outputs = [output for output in results.give() if output is not None]
            return unflatten(trace.structure, iter(outputs))
        finally:
            trace._put_back(results)


def _holders(node: UOp) -> int:
    return sys.getrefcount(node) + (sys.getrefcount(node.src[0]) if node.op is Ops.RESHAPE else 0)


def _memory_key(tensor: Core) -> tuple[Any, ...] | None:
    memory = plain_memory(tensor._storage.node)
    return None if memory is None else (tensor.dtype, memory.arg, memory.src[1].arg, tensor._leaf)


def _call_form(structure: Any, given: Sequence[Core]) -> Any:
    """What calls of one stored step have in common."""
    forms = tuple([(t.shape, t.dtype, t.device) for t in given])
    return structure, forms, tuple([look() for look in TRACE_ENVIRONMENT])


def _suits(trace: Trace) -> bool:
    """Whether a call leaves behind nothing but its results and what it writes of its arguments, all apart."""
    own = trace.launch is not None and trace.plain_results and trace.inside == 0
    if not own or trace.changes or trace.draws or not trace.guards.is_empty:
        return False
    return bool(trace.arranged == tuple(range(len(trace.inputs))))


def _owned(trace: Trace, structure: Any, given: Sequence[Core]) -> _Known | None:
    """A form from disk on memory that it may write; None where somebody outside shares one."""
    if trace.arranged != arrangement(given):
        return None
    for number in trace.in_place:
        tensor = given[trace.inputs[number].number]
        if tensor._chain or take_memory(tensor._storage) is None:
            return None
    return _known(trace, structure, given)


def _known(trace: Trace, structure: Any, given: Sequence[Core]) -> _Known | None:
    """What the next call may rely on; None where it has to be looked at anew each time."""
    if not _suits(trace) or len(trace.inputs) != len(given):
        return None
    written = {number - trace.inside for number in trace.in_place}
    kept, forms = {}, {}
    for n, place in enumerate(trace.inputs):
        tensor = given[place.number]
        memory = plain_memory(tensor._storage.node)
        if memory is None or tensor._chain:
            return None
        if n in written:
            kept[place.number] = tensor._storage.node, buffer_for(memory)
        else:
            forms[place.number] = _memory_key(tensor)
    return _Known(trace, structure, forms, kept) if len(kept) + len(forms) == len(given) else None
