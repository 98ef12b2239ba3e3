"""`@jit`: a function of tensors that is traced and compiled once, and replayed afterwards.

The first call runs the function on placeholders, compiles what it computes and remembers the plan. Later
calls with tensors of the same shapes, types and devices replay the plan on the new memory: one native call.
Another shape, type or Python argument is traced again, and so is a tensor given twice, or other options. A
`Variable` that is bound is an argument like a tensor: one trace serves all of its values (`variables.py`).

What the function takes from outside is guarded: tensors are looked up at every call, so a new weight is seen,
and numbers, strings and containers that were read at trace time are compared, so a changed one makes a new
trace. `EXPLAIN=jit` (or DEBUG=2) says why something was traced again.

A function may assign to tensors and to views of them, as a step of training does: parameters, states of an
optimiser, running statistics, gradients, a cache. Memory that arguments share stays shared. What it assigns
becomes a result of the plan, and is put in its place after each replay (see `trace.py`); parts of a tensor
are written where they are (`in_place.py`), and names get the tensors that the function gives them
(`rebinding.py`). What a replay cannot do right is an error: looking at values. A compiled function that
another one calls is a part of it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import update_wrapper
from threading import RLock
from typing import Any, final

from morok import knobs
from morok.errors import MorokError
from morok.forks import renewed
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.ir.provenance import caller
from morok.runtime.plan import ExecutionPlan
from morok.tensor.calls.tracing import TRACE_ENVIRONMENT, JitError, is_tracing
from morok.tensor.core import Core
from morok.tensor.gradient_track import changes, is_paused, is_tracked
from morok.tensor.jit.arguments import arrangement, gradient_of, home, is_whole_memory
from morok.tensor.jit.explain import difference
from morok.tensor.jit.forms import Form, memory_like, plain_forms
from morok.tensor.jit.pytree import TENSOR, flatten, follow, unflatten
from morok.tensor.jit.quick import Quick, quick_way
from morok.tensor.jit.trace import Trace
from morok.tensor.jit.variables import Bound, unbound_shape

_MOST_TRACES = 1024  # of one function; the oldest goes first

# What the last call ran: the trace, the structure of its arguments where they are not tensors one by one,
# their nodes, the memory of these, what was looked at around it, and whether that is all it depends on.
_Last = tuple[Trace, Any, list[UOp], list[UOp], list[tuple[Callable[[], object], object]], bool]
# The same of a call whose arguments need only lie in memory like those of the last one.
_Like = tuple[Trace, Any, list[Form], list[tuple[Callable[[], object], object]]]


@final
class Jit:
    """A compiled function. `traces` counts how often it was traced."""

    def __init__(self, function: Callable[..., Any], guard_tensors: bool = True) -> None:
        self.function = function
        self.guard_tensors = guard_tensors  # whether tensors from outside are looked up, or all are arguments
        self.traces = 0
        self._known: dict[Any, Trace] = {}
        self.latest: Trace | None = None  # that was replayed the long way
        self.newest: Trace | None = None  # that was made
        self._last: _Last | None = None
        self._like: _Like | None = None
        self._quick: Quick | None = None
        self._lock = renewed(self, "_lock", RLock)  # results are given out one at a time
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
            quick = self._quick
            if quick is not None and not kwargs:
                result = quick(args)
                if result is not None:
                    return result
            with self._lock:
                last = self._last
                if last is not None:
                    trace, form, nodes, bases, around, alone = last
                    given: Any = args
                    bound: Bound = {}
                    if form is not None or kwargs:  # tensors in containers, or by name; variables
                        given = []
                        if form is None or not follow((args, kwargs), form, given, bound):
                            return self._other_way(args, kwargs)
                    n = 0  # counted by hand: every call comes along here
                    try:
                        for a in given:  # the very same nodes as last time: same shapes, types and devices
                            if (a._uop if a._chain else a._storage.node) is not nodes[n] or a._leaf:
                                n = -1
                                break
                            n += 1
                    except (AttributeError, IndexError):  # not a tensor, or one too many
                        n = -1
                    if n == len(nodes):
                        for look, was in around:
                            now = look()
                            if now is not was and now != was:
                                break
                        else:
                            if alone or trace.still_valid(list(given), bound) is None:
                                tensors = trace.replay_same(given, bases, bound)
                                if trace.structure is TENSOR:
                                    return tensors[0]
                                return unflatten(trace.structure, iter(tensors))
                return self._other_way(args, kwargs)
        except MorokError as error:
            if error.place is None:  # a GPU without room, say: at least the call is known
                error.place = caller()
            raise

    def forget_latest(self) -> None:
        """Whoever asks for the latest trace after a call asks for that call's."""
        self.latest = None

    def _other_way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """New memory of the same form as last time; or anything."""
        if self._like is None:
            return self._long_way(args, kwargs)
        trace, form, forms, around = self._like
        given: Any = args
        bound: Bound = {}
        if form is not None or kwargs:
            given = []
            if form is None or not follow((args, kwargs), form, given, bound):
                return self._long_way(args, kwargs)
        elif any(not isinstance(a, Core) for a in args):
            return self._long_way(args, kwargs)
        bases = memory_like(given, forms)
        if bases is None or any(look() != was for look, was in around):
            return self._long_way(args, kwargs)
        if not trace.guards.is_empty and trace.still_valid(list(given), bound) is not None:
            return self._long_way(args, kwargs)
        return unflatten(trace.structure, iter(trace.replay_same(given, bases, bound, once=True)))

    def _long_way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_tracing():  # a part of another function that is compiled
            return self.function(*args, **kwargs)
        given: list[Core] = []
        bound: Bound = {}  # the values of variables: one trace serves them all
        structure = (tuple, (flatten(args, given, bound), flatten(kwargs, given, bound)))
        count = len(given)
        if not is_paused() and any(not t._leaf and is_tracked(t._uop) for t in given):
            return self.function(
                *args, **kwargs
            )  # a gradient flows through it: the graph is part of a larger one
        if self.guard_tensors:  # what the function adds to a gradient depends on the gradient
            given += [g for t in given if (g := gradient_of(t)) is not None]
        key = self._key(structure, given, bound)
        known = self._known.get(key)
        why = self._unknown(key) if known is None else known.still_valid(given, bound)
        if known is None or why is not None:
            self._explain(why or "")
            if len(self._known) >= _MOST_TRACES:
                del self._known[next(iter(self._known))]
            known = self._known[key] = Trace(self.function, structure, given, self.guard_tensors, bound)
            self.newest = known
            self.traces += 1
            self._last = self._like = self._quick = None
            first, known.first = known.first, []
            return unflatten(known.structure, iter(first))
        self.latest = known
        results = known.replay(given, bound)
        # The short way takes the memory behind a node as it lies there: not turned, not a part, not lazy.
        self._last = self._like = self._quick = None
        short = count == len(given) and not known.writes
        if bound:  # those in shapes of tensors are not looked for on a short way
            short = short and all(n.__class__ is int for t in given for n in t.shape)
        form = None if not kwargs and all(isinstance(a, Core) for a in args) else structure
        around = [(look, look()) for look in (*TRACE_ENVIRONMENT, is_tracing, changes)]
        forms = plain_forms(given) if short and known.simple else None
        if forms is not None:
            self._like = (known, form, forms, around[:-1])
        if short and all(is_whole_memory(t) and not t._leaf for t in given):
            nodes = [t._uop for t in given]
            bases = [base_of(n) for n in nodes]
            self._last = (known, form, nodes, bases, around, known.guards.is_empty)
            if form is None and known.structure is TENSOR and not any(t._chain for t in given):
                self._quick = quick_way(known, nodes, bases, around)
        return unflatten(known.structure, iter(results))

    def _unknown(self, key: Any) -> str:
        if not self._known:
            return "it was never called"
        return difference(key, next(reversed(self._known)))

    def _key(self, structure: Any, given: list[Core], bound: Bound) -> Any:
        around = tuple([look() for look in TRACE_ENVIRONMENT])
        forms = [
            (type(t), unbound_shape(t.shape, bound), t.dtype, home(t), t._leaf, gradient_of(t) is not None)
            for t in given
        ]
        key = (structure, around, arrangement(given, (), bound), *forms)
        try:
            hash(key)
        except TypeError:
            raise JitError(
                "arguments of a function under jit are tensors, and values that can be compared"
            ) from None
        return key

    def __reduce__(self) -> Any:
        """What is pickled is the function: it is traced again where it is used."""
        name = getattr(self.function, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self.function, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Jit, (self.function, self.guard_tensors))

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

    Results have no history: what needs their gradients belongs into the function. But a function that is
    called on the way from a parameter to a loss runs as it is written, and gradients flow through it.
    """
    return Jit(function)


__all__ = ["Jit", "JitError", "jit"]
