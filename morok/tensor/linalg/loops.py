"""Sequential algorithms as one compiled step that is run again and again.

    state = steps(state, n, step)        # for k in range(n): state = step(state, k)

The step is traced once, with a variable in place of k: its kernels serve all k and all matrices of a shape.
`all_steps` keeps every state, and its steps may read other tensors.
Two pieces of memory take turns, so nothing is copied, and a step costs its kernels and a few microseconds. It
runs at once. Inside of `jit`, where nothing may run, the steps are written out.

Plans are kept by what the step is, the state's shape and type, and the options that plans depend on.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, final

from morok.caches import Cache
from morok.device.buffer import ALIGNMENT, Buffer, bind_buffer
from morok.device.registry import get_device
from morok.errors import ShapeError
from morok.forks import renewed
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.knobs import compile_environment
from morok.runtime.plan import ExecutionPlan
from morok.runtime.turns import Turns
from morok.schedule.schedule import schedule
from morok.tensor.arrays.joining import stack
from morok.tensor.arrays.movement import permute, reshape
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.creation.constructors import contiguous
from morok.tensor.creation.written import tensor_of
from morok.tensor.elementwise.operators import T
from morok.tensor.export import realize
from morok.tensor.linalg.steps import batch_is_last
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.realize import memory_of
from morok.tensor.sizes import Variable, concrete_shape

Step = Callable[..., Any]  # (state, k, *key) → state
_KEPT = 64


@final
class Loop:
    """A step as a plan: from one piece of memory to another of the same shape."""

    def __init__(
        self,
        x: Any,
        shape: tuple[int, ...],
        count: int,
        step: Step,
        key: tuple[Any, ...],
        given: Sequence[Any] = (),
        turned: bool = False,
    ) -> None:
        self._source = new_buffer(x.dtype, math.prod(shape), x.device)
        self._given = [new_buffer(t.dtype, math.prod(t.shape), x.device) for t in given]
        state = x._new(view_of(self._source, shape))
        others = [x._new(view_of(node, t.shape)) for node, t in zip(self._given, given, strict=True)]
        k = Variable("step", 0, count - 1).bind(0) if count > 1 else 0
        if turned:  # (rows, columns, batch) in memory
            new = permute(step(permute(state, 2, 0, 1), k, *others, *key), 1, 2, 0)
        else:
            new = step(state, k, *others, *key)
        root = contiguous(new).uop
        found = schedule([root])
        self._target = base_of(found.results[root])
        plan = ExecutionPlan(found)
        self._turns = Turns(plan)
        self._named = "step" in plan.limits
        self._lock = renewed(self, "_lock", Lock)

    def run(
        self, first: Buffer, count: int, given: Sequence[Buffer] = (), history: Buffer | None = None
    ) -> Buffer:
        """The state after so many steps; `first` is left as it is. A history gets all states."""
        size, dtype = self._source.arg, self._source.dtype
        memory = dict(zip(self._given, given, strict=True))
        if history is None:
            device = get_device(str(self._source.src[1].arg))
            a, b = (device.buffer(size, dtype) for _ in range(2))
            pairs = [(first, a), (a, b), (b, a)]
        else:
            places = [
                first,
                *(history.view(size, dtype, (k + 1) * size * dtype.itemsize) for k in range(count)),
            ]
            pairs = list(pairwise(places))
        turns = [{**memory, self._source: old, self._target: new} for old, new in pairs]
        with self._lock:
            if history is None:
                self._turns.begin(turns)
                for k in range(count):
                    self._turns.run(0 if not k else 2 - k % 2, {"step": k} if self._named else {})
                self._turns.end()
                return a if count % 2 else b
            for k, turn in enumerate(turns):
                self._turns.begin([turn])
                self._turns.run(0, {"step": k} if self._named else {})
            self._turns.end()
        return places[-1]


_loops: Cache[Any, Loop] = Cache("linalg.loops", _KEPT)
atexit.register(_loops.clear)  # their memory is given back while there is somebody to take it


def steps(x: T, count: int, step: Step, *key: Any) -> T:
    """The state after `count` steps; `key` says what the step depends on besides the state's shape."""
    shape = concrete_shape(x.shape)
    if not count or 0 in shape:
        return x
    if is_tracing():
        for k in range(count):
            x = contiguous(step(x, k, *key))
        return x
    flat = (math.prod(shape[:-2]), *shape[-2:])
    if len(shape) > 2 and batch_is_last(flat):  # vectors hold elements of as many matrices
        turned = permute(reshape(x, flat), 1, 2, 0)
        state = realize(contiguous(turned))
        loop = _loop(state, concrete_shape(state.shape), count, step, key, (), True)
        memory = loop.run(memory_of(state), count)
        return reshape(permute(tensor_on(x, memory, concrete_shape(state.shape)), 2, 0, 1), shape)
    state = realize(contiguous(x))
    loop = _loop(state, shape, count, step, key, ())
    memory = loop.run(memory_of(state), count)
    return tensor_on(x, memory, shape)


def all_steps(x: T, count: int, step: Step, given: Sequence[Any], *key: Any) -> T:
    """The first state and those after each step, along a new first axis; all steps read what is given."""
    shape = concrete_shape(x.shape)
    if is_tracing() or not count or 0 in shape:
        states = [x]
        for k in range(count):
            states.append(contiguous(step(states[-1], k, *given, *key)))
        return stack(states[0], *states[1:])
    state, held = realize(contiguous(x)), [realize(contiguous(t)) for t in given]
    loop = _loop(state, shape, count, step, key, held)
    size, device = math.prod(shape), state.device
    if size * x.dtype.itemsize % ALIGNMENT:
        raise ShapeError(f"states of which all are kept fill whole lines of memory, unlike {shape}")
    history = get_device(device).buffer((count + 1) * size, x.dtype)
    node: UOp = new_buffer(x.dtype, (count + 1) * size, device)
    bind_buffer(node, history)
    first = memory_of(state)
    history.view(size, x.dtype, 0).copy_from(first)
    loop.run(first, count, [memory_of(t) for t in held], history)
    return x._new(view_of(node, (count + 1, *shape)))


def _loop(
    state: Any,
    shape: tuple[int, ...],
    count: int,
    step: Step,
    key: tuple[Any, ...],
    given: Sequence[Any],
    turned: bool = False,
) -> Loop:
    facts = tuple((t.shape, t.dtype) for t in given)
    name = (step, key, shape, state.dtype, state.device, count, facts, turned, compile_environment())
    loop = _loops.get(name)
    if loop is None:
        loop = _loops[name] = Loop(state, shape, count, step, key, given, turned)
    return loop


def tensor_on(x: T, memory: Buffer, shape: tuple[int, ...]) -> T:
    """A tensor of x's kind on memory that has been filled."""
    return tensor_of(x, memory, shape, x.dtype)
