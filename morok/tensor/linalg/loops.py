"""Sequential algorithms as one compiled step that is run again and again.

    state = steps(state, n, step)        # for k in range(n): state = step(state, k)

The step is traced once, with a variable in place of k: its kernels serve all k and all matrices of a shape.
Two pieces of memory take turns, so nothing is copied, and a step costs its kernels and a few microseconds. It
runs at once. Inside of `jit`, where nothing may run, the steps are written out.

Plans are kept by what the step is, the state's shape and type, and the options that plans depend on.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable
from threading import Lock
from typing import Any, final

from morok.caches import Cache
from morok.device.buffer import Buffer, bind_buffer
from morok.device.registry import get_device
from morok.forks import renewed
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.knobs import compile_environment
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.schedule.schedule import schedule
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.creation.constructors import contiguous
from morok.tensor.elementwise.operators import T
from morok.tensor.export import realize
from morok.tensor.memory.states import view_of
from morok.tensor.realize import new_buffer
from morok.tensor.sizes import Variable, concrete_shape

Step = Callable[..., Any]  # (state, k, *key) → state
_KEPT = 64


@final
class Loop:
    """A step as a plan: from one piece of memory to another of the same shape."""

    def __init__(self, x: Any, shape: tuple[int, ...], count: int, step: Step, key: tuple[Any, ...]) -> None:
        self._source = new_buffer(x.dtype, math.prod(shape), x.device)
        state = x._new(view_of(self._source, shape))
        k = Variable("step", 0, count - 1).bind(0) if count > 1 else 0
        root = contiguous(step(state, k, *key)).uop
        found = schedule([root])
        self._target = base_of(found.results[root])
        self._plan = ExecutionPlan(found)
        self._named = "step" in self._plan.limits
        self._lock = renewed(self, "_lock", Lock)

    def run(self, first: Buffer, count: int) -> Buffer:
        """The state after so many steps; `first` is left as it is."""
        device = get_device(str(self._source.src[1].arg))
        spare = [device.buffer(self._source.arg, self._source.dtype) for _ in range(min(count, 2))]
        now = first
        with self._lock:
            for k in range(count):
                other = spare[k % 2]
                values = {"step": k} if self._named else {}
                self._plan.run({self._source: now, self._target: other}, **values)
                now = other
        return now


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
    state = realize(contiguous(x))
    device = state.device
    name = (step, key, shape, x.dtype, device, count, compile_environment())
    loop = _loops.get(name)
    if loop is None:
        loop = _loops[name] = Loop(state, shape, count, step, key)
    memory = loop.run(buffer_for(base_of(state.uop)), count)
    node: UOp = new_buffer(x.dtype, math.prod(shape), device)
    bind_buffer(node, memory)
    return x._new(view_of(node, shape))
