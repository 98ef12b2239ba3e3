"""A whole step of training as one plan: forward, backward, update, and nothing of Python in between.

    step = TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    for x, y in batches:
        loss = step(x, y)

The first call records what a step computes, as a function of everything that it changes: parameters,
averages, running statistics, random numbers. Later calls replay it and put the results in their places.
What a step reads from Python (a dropout's probability, a weight decay) is watched: a changed one is recorded
anew. Learning rates are not among these, they stand in memory and may change at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from morok.errors import MorokError
from morok.ir.layout import is_mesh, mesh_of
from morok.ir.memory import base_of
from morok.ir.provenance import capture, scope
from morok.nn.module import named_tensors, take_updates, training
from morok.nn.optim import Optimizer
from morok.runtime.plan import ExecutionPlan
from morok.tensor.gradient_track import mark
from morok.tensor.jit.functionalize import put, without_states
from morok.tensor.jit.jit import Jit
from morok.tensor.random import drawing_from, new_cell, skip
from morok.tensor.tensor import Tensor


@final
class TrainStep:
    """One step of training, compiled. `loss(*batch)` computes the loss from tensors.

    Batches of another shape are compiled anew.

    >>> from morok.nn import Linear, SGD, parameters
    >>> model = Linear(2, 1)
    >>> step = TrainStep(model, SGD(parameters(model), lr=0.1), lambda x: (model(x) ** 2).mean())
    >>> first, second = step(Tensor.ones(4, 2)).item(), step(Tensor.ones(4, 2)).item()
    >>> second < first
    True
    """

    def __init__(self, model: Any, optimizer: Optimizer, loss: Callable[..., Tensor]) -> None:
        self.optimizer, self.loss = optimizer, loss
        found = [*named_tensors(model).values(), *named_tensors(optimizer).values()]
        rates = {id(rate) for rate in optimizer.rates}
        # Every storage once, as a whole: views of it go along.
        self.state = list({id(t._storage): _whole(t) for t in found if id(t) not in rates}.values())
        self._known: dict[Any, tuple[list[int], int]] = {}  # by batch: what changes, how many random numbers
        self._cell: Tensor | None = None  # of the last step
        self._recorded = Jit(self._record, guard_tensors=False)

    def __call__(self, *batch: Tensor) -> Tensor:
        """The loss before the step."""
        for x in batch:
            if not isinstance(x, Tensor):
                raise MorokError(f"a batch is made of tensors, not of a {type(x).__name__}")
        with scope(capture(2)):  # the line is looked for once, not for every value that the step makes
            return self._step(batch)

    def _step(self, batch: tuple[Tensor, ...]) -> Tensor:
        form = _form(batch)
        known = self._known.get(form)
        cell = self._cell if known is not None and known[1] == 0 else None
        if cell is None:  # one that no numbers are drawn from serves every step
            cell = self._cell = Tensor._new(new_cell(known[1] if known else 0, self.state[0].device))
        loss, *values = self._recorded(self.state, self.optimizer.rates, cell, *batch)
        changed, draws = self._known[form]
        if known is None:
            skip(draws)  # recorded just now: only now is it known how many numbers were drawn
        for i, value in zip(changed, values, strict=True):
            put(self.state[i]._storage, (), value._result)
        return loss  # type: ignore[no-any-return]

    @property
    def plans(self) -> list[ExecutionPlan]:
        """What was compiled, one plan per form of batch."""
        return self._recorded.plans

    def _record(self, state: list[Tensor], rates: list[Tensor], cell: Tensor, *batch: Tensor) -> list[Tensor]:
        """What a step computes: the loss, then the new values of the tensors that change."""
        stand_ins = _stand_ins([*self.state, *self.optimizer.rates], [*state, *rates])
        with scope(None), stand_ins, drawing_from(cell.uop) as draws:  # what is recorded has lines of its own
            before = [t._uop for t in self.state]
            self.optimizer.zero_grad()
            with training():
                loss = self.loss(*batch)
            loss.backward()
            self.optimizer.update()
            take_updates()
            self.optimizer.zero_grad()
            changed = [i for i, t in enumerate(self.state) if t._uop is not before[i]]
            nodes = without_states([loss.uop, *(self.state[i]._uop for i in changed)])
        self._known[_form(batch)] = changed, draws.count
        return [Tensor._new(node).detach() for node in nodes]


def _form(batch: tuple[Tensor, ...]) -> Any:
    """What batches that share a recording have in common."""
    return tuple([(x.shape, x.dtype, _where(x.device)) for x in batch])


def _where(device: str) -> str:
    """A device, or the mesh alone: how a batch lies there changes neither draws nor what is updated."""
    return mesh_of(device).name if is_mesh(device) else device


@contextmanager
def _stand_ins(tensors: list[Tensor], others: list[Tensor]) -> Iterator[None]:
    """Inside, the tensors show what the others do."""
    own = [t._storage.node for t in tensors]
    for tensor, other in zip(tensors, others, strict=True):
        tensor._storage.node = other._uop
        if tensor._storage.leaf:
            mark(base_of(other._uop), fresh=True)
    try:
        yield
    finally:
        for tensor, node in zip(tensors, own, strict=True):
            tensor._storage.node, tensor._storage.views = node, None


def _whole(tensor: Tensor) -> Tensor:
    """The whole storage that a tensor shows."""
    if not tensor._chain:
        return tensor
    whole = object.__new__(Tensor)
    whole._storage = tensor._storage
    return whole


def batches(count: int, size: int, seed: int = 0) -> Iterator[Any]:
    """Positions 0 … count-1 in random order, `size` at a time; what is left over waits for the next round.

    >>> [len(batch) for batch in batches(10, 4)]
    [4, 4]
    """
    order = np.random.default_rng(seed).permutation(count)
    for start in range(0, count - size + 1, size):
        yield order[start : start + size]
