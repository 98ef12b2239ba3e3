"""Optimisers: how parameters follow their gradients.

    opt = Adam(parameters(model), lr=1e-3)
    opt.zero_grad(); loss.backward(); opt.step()

All updates of a step are computed together, with everything else that is waiting for them. The learning rate
and the number of steps stand in memory, so a changed one runs the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from morok.errors import ArgumentError, MorokError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.layout import is_mesh
from morok.nn.init import stored
from morok.nn.module import named_tensors, take_updates
from morok.rewrite.gc_pause import gc_paused
from morok.tensor.tensor import Tensor


def wide(tensor: Tensor) -> Any:
    """The type of a parameter's statistics: at least 32 bits."""
    return tensor.dtype if tensor.dtype.bits >= 32 else "float32"


def at_least_zero(name: str, value: float) -> float:
    if not value >= 0.0:
        raise ArgumentError(f"{name} must not be negative, as {value} is")
    return value


def below_one(name: str, value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise ArgumentError(f"{name} lies between 0 and 1 and is not 1, unlike {value}")
    return value


class Optimizer:
    """What all of them share. A subclass says by how much a parameter changes.

    Tensors among the parameters that require no gradient are not touched.

    >>> class Signs(Optimizer):
    ...     def _changed(self, i, p, g):
    ...         return p - g.sign() * self.rate, []
    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = Signs([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> x.tolist()
    [2.5]
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        self.params = list({id(p): p for p in params if p.requires_grad}.values())
        if not self.params:
            raise MorokError("there is nothing to optimise: no tensor here requires gradients")
        for p in self.params:
            if not p.is_leaf:
                raise MorokError(
                    "an optimiser changes tensors that require gradients, not what is made of them"
                )
        self.weight_decay = at_least_zero("weight_decay", weight_decay)
        self.lr = lr
        self.steps = stored(0.0, 1, dtype="float64", device=self.params[0].device)
        self.params[0].realize(*self.params[1:])

    @property
    def lr(self) -> float:
        """The learning rate; it may be set at any time."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = at_least_zero("lr", float(value))
        self.rate = Tensor(np.array([value], dtype=np.float32), device=self.params[0].device)

    def state_dict(self) -> dict[str, Any]:
        """What it has gathered so far, by name: its tensors, and the learning rate as a number.

        >>> sorted(SGD([Tensor([1.0], requires_grad=True)], momentum=0.9).state_dict())
        ['lr', 'steps', 'velocity.0']
        """
        found = named_tensors(self)
        own = {name: t for name, t in found.items() if name != "rate" and not name.startswith("params.")}
        return {"lr": self.lr, **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same optimiser for the same parameters. Nothing changes if it is not."""
        own = self.state_dict()
        if own.keys() != state.keys():
            names = ", ".join(sorted(own.keys() ^ state.keys())[:4])
            raise MorokError(f"this is no state of such an {type(self).__name__}: only one side has {names}")
        tensors = [(name, t) for name, t in own.items() if isinstance(t, Tensor)]
        for name, t in tensors:
            if state[name].shape != t.shape:
                raise ShapeError(
                    f"{name} has shape {show_shape(t.shape)} here and "
                    f"{show_shape(state[name].shape)} in the state"
                )
        self.lr = float(state["lr"])
        for name, t in tensors:
            t.assign(state[name].detach().to(t.device))
        self.steps.realize(*(t for _, t in tensors))

    def _state(self) -> list[Tensor]:
        """Zeros for every parameter, to keep a running average in."""
        return [stored(0.0, *sizes(p), dtype=wide(p), device=p.device) for p in self.params]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.zero_grad()

    def step(self) -> None:
        """Change every parameter that has a gradient, and compute everything that waits for it.

        Gradients stay until `zero_grad`.
        """
        changed = self.update()
        changed[0].realize(*changed[1:], *take_updates())

    def update(self) -> list[Tensor]:
        """As `step`, but nothing is computed yet. Returns the tensors that change."""
        active = [(i, p) for i, p in enumerate(self.params) if p.grad is not None]
        if not active:
            raise MorokError("no parameter has a gradient; call backward() on the loss before step()")
        changed = [self.steps.assign(self.steps + 1.0)]
        with gc_paused:
            for i, p in active:
                assert p.grad is not None
                if is_mesh(p.device):
                    p.grad = _laid_out_as(p, p.grad)
                value, gradient = p.detach().cast(wide(p)), p.grad.detach().cast(wide(p))
                new, states = self._changed(i, value, gradient)
                changed.append(p.assign(new.detach().cast(p.dtype)))
                changed += states
        return changed

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The new value of parameter number i, and the states that were assigned to."""
        raise NotImplementedError

    def _debiased(self, beta: float) -> Tensor:
        """1 - betaⁿ: what an average that began at zero lacks after n steps."""
        exact = -(Tensor(beta, "float64") ** self.steps) + 1.0  # in single precision 1 - 0.999 is off by 5e-5
        return exact.cast("float32")


def _laid_out_as(p: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in its parameter's placement: what devices have summed up each keeps its part of."""
    layout = p.placement
    return gradient if layout is None else gradient.shard(layout.mesh, layout.spec)


def sizes(p: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in p.shape)  # type: ignore[arg-type]
