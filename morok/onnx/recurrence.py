"""States one after the other: a compiled step that is run again and again, and every state kept.

    trail = Trail(step, first, inputs, count)     # state = step(state, k, *inputs), for k in range(count)
    trail.run(first, inputs)                      # (count, *state): what each step has made

The step is traced once with a variable for k, so that its kernels serve all steps, and a long sequence takes
no longer to compile than a short one. Each step writes its state behind the one before, where the next one
reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from morok.device.buffer import ALIGNMENT, bind_buffer
from morok.device.registry import get_device
from morok.ir.memory import base_of
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.schedule.schedule import schedule
from morok.tensor.memory.states import view_of
from morok.tensor.realize import new_buffer
from morok.tensor.sizes import Variable, concrete_shape
from morok.tensor.tensor import Tensor

Step = Callable[..., Tensor]  # (state, k, *inputs) → state


@final
class Trail:
    """A step as a plan, for states and inputs of known shapes."""

    def __init__(self, step: Step, first: Tensor, inputs: list[Tensor], count: int) -> None:
        self.count, self.shape, self.dtype = count, concrete_shape(first.shape), first.dtype
        self.device = first.device
        self._state, state = self._held(first)
        held = [self._held(x) for x in inputs]
        self._inputs = [node for node, _ in held]
        k = Variable("step", 0, count - 1).bind(0) if count > 1 else 0
        root = step(state, k, *(x for _, x in held)).contiguous().uop
        found = schedule([root])
        self._target = base_of(found.results[root])
        self._plan = ExecutionPlan(found)
        self._named = "step" in self._plan.limits

    def _held(self, x: Tensor) -> tuple[Any, Tensor]:
        node = new_buffer(x.dtype, math.prod(concrete_shape(x.shape)), x.device)
        return node, Tensor(view_of(node, x.shape))

    def run(self, first: Tensor, inputs: list[Tensor]) -> Tensor:
        """All states, the first step's first, as (count, *shape)."""
        given = [first, *inputs]
        given = [t.contiguous() for t in given]
        given[0].realize(*given[1:])
        size, width = math.prod(self.shape), self.dtype.itemsize
        stride = -(-size * width // ALIGNMENT) * ALIGNMENT // width  # each state begins with a cache line
        whole = get_device(self.device).buffer(self.count * stride, self.dtype)
        now, *others = (buffer_for(base_of(t.uop)) for t in given)
        found = dict(zip(self._inputs, others, strict=True))
        for k in range(self.count):
            other = whole.view(size, self.dtype, k * stride * width)
            found[self._state], found[self._target] = now, other
            self._plan.run(found, **({"step": k} if self._named else {}))
            now = other
        node = new_buffer(self.dtype, self.count * stride, self.device)
        bind_buffer(node, whole)
        rows = Tensor(view_of(node, (self.count, stride)))
        return rows[:, :size].reshape((self.count, *self.shape))
