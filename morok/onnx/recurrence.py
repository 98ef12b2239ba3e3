"""States one after the other: a compiled step that is run again and again, in one native call.

    walk = Recurrence(before, step, after, given, count)
    walk.run(given)                               # what `after` makes of all states

    states, inputs = before(*given)               # once
    states = step(states, k, inputs, *given)      # for k in range(count)
    after(histories, states, *given)              # once; a history is (count, *state)

Each of the three is traced once, the step with a variable for k, so that its kernels serve all steps, and a
long sequence takes no longer to compile than a short one. Each step writes its states behind those before,
where the next one reads them. All memory but what is given and what comes out is taken once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from morok.device.buffer import ALIGNMENT, Buffer
from morok.device.registry import get_device
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.runtime import chain
from morok.runtime.plan import ExecutionPlan
from morok.schedule.schedule import schedule
from morok.tensor.core import require_shape
from morok.tensor.jit.arguments import memory_of, plain_memory, whole_memory
from morok.tensor.jit.results import OutputSpec, Results
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.memory.strides import Chain, moved, step_of
from morok.tensor.sizes import Variable, concrete_shape
from morok.tensor.tensor import Tensor

Before = Callable[..., tuple[list[Tensor], list[Tensor]]]  # (*given) → states, inputs
Step = Callable[..., list[Tensor]]  # (states, k, inputs, *given) → states
After = Callable[..., list[Tensor]]  # (histories, states, *given) → results
_KEPT = 4  # sets of results


@final
class Recurrence:
    """Before, steps and after as plans, for tensors of known shapes."""

    def __init__(self, before: Before, step: Step, after: After, given: list[Tensor], count: int) -> None:
        self._device = given[0].device
        self._given, held = [], list[Tensor]()
        for t in given:
            sizes, view = form(t)
            node = new_buffer(t.dtype, math.prod(sizes), t.device)
            self._given.append(node)
            held.append(Tensor(moved(view_of(node, sizes), view)))
        states, inputs = before(*held)
        plan, targets = self._planned([*states, *inputs])
        begun: dict[UOp, Buffer | UOp] = {  # equal ones, such as zeros, are one node
            node: node if node in self._given else self._memory(node) for node in targets
        }
        links = [chain.Link(plan, begun, {})]

        k = Variable("step", 0, count - 1).bind(0) if count > 1 else 0
        nodes, placed = _placed([*states, *inputs])
        old, taken = nodes[: len(states)], {n: begun[t] for n, t in zip(nodes, targets, strict=True)}
        plan, new = self._planned(step(placed[: len(states)], k, placed[len(states) :], *held))
        named = "step" in plan.limits
        histories = {node: self._history(node, count) for node in new}
        for number in range(count):
            now = {node: views[number] for node, (_, views) in histories.items()}
            links.append(chain.Link(plan, {**taken, **now}, {"step": number} if named else {}))
            taken.update({o: now[n] for o, n in zip(old, new, strict=True)})

        rows, self._histories = [], dict[UOp, Buffer]()
        for node, state in zip(new, states, strict=True):
            whole, _ = histories[node]
            place = new_buffer(whole.dtype, whole.size, self._device)
            self._histories[place] = whole
            rows.append(_rows(place, count, concrete_shape(state.shape)))
        results = after(rows, [row[count - 1] for row in rows], *held)
        plan, self._results = self._planned(results)
        unique = list(dict.fromkeys(self._results))
        self._made = unique
        memory = tuple([(node.dtype, int(node.arg), self._device) for node in unique])
        steps = [step_of(view_of(node, t.shape)) for node, t in zip(self._results, results, strict=True)]
        outputs = zip(map(unique.index, self._results), steps, strict=True)
        self._spec = OutputSpec(memory, tuple([(n, (one,)) for n, one in outputs]), Tensor)
        self._idle: list[Results] = []  # filled again when nobody knows of them
        links.append(chain.Link(plan, self._histories, {}))
        self._links = links
        self._calls = chain.Chain(links)

    def tables(self, memory: Mapping[UOp, Buffer]) -> chain.Tables | None:
        """All calls in order, for memory that somebody else binds; None where a device has no such."""
        return chain.tables(self._links, memory)

    @property
    def plans(self) -> list[ExecutionPlan]:
        return self._calls.plans

    def places(self, given: Sequence[Buffer]) -> tuple[dict[UOp, Buffer], list[Buffer], list[Buffer]]:
        """Memory by its nodes for a run of one's own, where each result lies, and which of it is new."""
        fresh = [self._memory(node) for node in self._made if node not in self._histories]
        new = dict(zip([node for node in self._made if node not in self._histories], fresh, strict=True))
        where = {**new, **self._histories}
        return {**dict(zip(self._given, given, strict=True)), **new}, [where[n] for n in self._results], fresh

    def _planned(self, tensors: Sequence[Tensor]) -> tuple[ExecutionPlan, list[UOp]]:
        """A plan that computes tensors, and the memory that each of them is in afterwards."""
        roots = [x.contiguous().uop for x in tensors]
        found = schedule(roots)
        return ExecutionPlan(found), [base_of(found.results[root]) for root in roots]

    def _memory(self, node: UOp) -> Buffer:
        return get_device(self._device).buffer(node.arg, node.dtype)

    def _history(self, state: UOp, count: int) -> tuple[Buffer, list[Buffer]]:
        """Memory for what all steps make of a state: the whole, and its places, each on a line of its own."""
        size, width = int(state.arg), state.dtype.itemsize
        stride = -(-size * width // ALIGNMENT) * ALIGNMENT // width
        whole = get_device(self._device).buffer(count * stride, state.dtype)
        return whole, [whole.view(size, state.dtype, k * stride * width) for k in range(count)]

    def run(self, given: Sequence[Tensor]) -> list[Any]:
        """The results for other values of what is given."""
        memory = {
            node: whole_memory(t._storage) if form(t)[1] else memory_of(t)
            for node, t in zip(self._given, given, strict=True)
        }
        results = self._taken()
        made = dict(zip(self._made, results.buffers, strict=True))
        memory.update({node: own for node, own in made.items() if node not in self._histories})
        self._calls.run(memory)
        for node in made.keys() & self._histories.keys():  # the next run writes there
            made[node].copy_from(self._histories[node])
        return results.give()

    def _taken(self) -> Results:
        """Results that nobody knows of any more, or new ones."""
        self._idle = [r for r in self._idle if not r.lost()][-_KEPT:]
        found = next((r for r in self._idle if r.free()), None)
        if found is None:
            found = Results(self._spec, None)
            self._idle.append(found)
        return found


def written_out(before: Before, step: Step, after: After, given: list[Tensor], count: int) -> list[Tensor]:
    """The same, all steps after one another in the graph around."""
    states, inputs = before(*given)
    histories: list[list[Tensor]] = [[] for _ in states]
    for k in range(count):
        states = [x.contiguous() for x in step(states, k, inputs, *given)]
        for history, state in zip(histories, states, strict=True):
            history.append(state)
    rows = [own[0].stack(*own[1:]) if count > 1 else own[0].unsqueeze(0) for own in histories]
    return after(rows, states, *given)


def _placed(tensors: Sequence[Tensor]) -> tuple[list[UOp], list[Tensor]]:
    """Memory to be named later, one for each tensor, and tensors in it."""
    nodes = [new_buffer(x.dtype, math.prod(concrete_shape(x.shape)), x.device) for x in tensors]
    return nodes, [Tensor(view_of(n, x.shape)) for n, x in zip(nodes, tensors, strict=True)]


def form(tensor: Tensor) -> tuple[tuple[int, ...], Chain]:
    """The sizes of the memory that a tensor lies in, and what of it, in which order, the tensor shows.

    What is not in memory will be, as it is.
    """
    storage = tensor._storage.node
    if tensor._chain and plain_memory(storage) is not None:
        return concrete_shape(require_shape(storage)), tensor._chain
    return concrete_shape(tensor.shape), ()


def _rows(node: UOp, count: int, shape: tuple[int, ...]) -> Tensor:
    """All states of a history, (count, *shape)."""
    size: Any = math.prod(shape)
    rows = Tensor(view_of(node, (count, node.arg // count)))
    return rows[:, :size].reshape((count, *shape))
