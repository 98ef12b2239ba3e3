"""Optimisers: how parameters follow their gradients.

    opt = Adam(parameters(model), lr=1e-3)
    opt.zero_grad(); loss.backward(); opt.step()

All updates of a step are computed together, with everything else that is waiting for them. The learning rate
and the number of steps stand in memory, so a changed one runs the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from morok.errors import ArgumentError, MorokError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.layout import is_mesh
from morok.nn.init import stored
from morok.nn.module import named_tensors, take_updates
from morok.rewrite.gc_pause import gc_paused
from morok.tensor.tensor import Tensor


def _wide(tensor: Tensor) -> Any:
    """The type of a parameter's statistics: at least 32 bits."""
    return tensor.dtype if tensor.dtype.bits >= 32 else "float32"


def _at_least_zero(name: str, value: float) -> float:
    if not value >= 0.0:
        raise ArgumentError(f"{name} must not be negative, as {value} is")
    return value


def _below_one(name: str, value: float) -> float:
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
        self.weight_decay = _at_least_zero("weight_decay", weight_decay)
        self.lr = lr
        self.steps = stored(0.0, 1, dtype="float64", device=self.params[0].device)
        self.params[0].realize(*self.params[1:])

    @property
    def lr(self) -> float:
        """The learning rate; it may be set at any time."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = _at_least_zero("lr", float(value))
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
        return [stored(0.0, *_sizes(p), dtype=_wide(p), device=p.device) for p in self.params]

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
                value, gradient = p.detach().cast(_wide(p)), p.grad.detach().cast(_wide(p))
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


def _sizes(p: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in p.shape)  # type: ignore[arg-type]


class SGD(Optimizer):
    """p - lr · g, with momentum if asked for.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> opt = SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.item()
    0.0
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay)
        if nesterov and (not momentum or dampening):
            raise ArgumentError("Nesterov's momentum needs a momentum and no dampening")
        self.momentum, self.nesterov, self.dampening = (
            _at_least_zero("momentum", momentum),
            nesterov,
            dampening,
        )
        self.velocity = self._state() if momentum else []

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        if self.weight_decay:
            g = g + p * self.weight_decay
        if not self.momentum:
            return p - g * self.rate, []
        v = self.velocity[i]
        first = self.steps.eq(1.0) if self.dampening else None
        added = g * (1.0 - self.dampening)
        v.assign(v * self.momentum + (added if first is None else first.where(g, added)))
        return p - (g + v * self.momentum if self.nesterov else v) * self.rate, [v]


class Adam(Optimizer):
    """Steps in proportion to the mean gradient over its root mean square.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> opt = Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 6)
    0.5
    """

    decoupled = False  # whether weight decay goes around the averages

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay)
        self.betas = _below_one("the first of betas", betas[0]), _below_one("the second of betas", betas[1])
        self.eps = _at_least_zero("eps", eps)
        self.mean, self.square = self._state(), self._state()

    def _averages(self, i: int, g: Tensor) -> tuple[Tensor, Tensor]:
        (b1, b2), m, v = self.betas, self.mean[i], self.square[i]
        m.assign(m * b1 + g * (1.0 - b1))
        v.assign(v * b2 + g * g * (1.0 - b2))
        return m, v

    def _direction(self, m: Tensor, v: Tensor) -> Tensor:
        b1, b2 = self.betas
        return m / self._debiased(b1) / ((v / self._debiased(b2)).sqrt() + self.eps)

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        if self.weight_decay and not self.decoupled:
            g = g + p * self.weight_decay
        m, v = self._averages(i, g)
        step = self._direction(m, v)
        if self.weight_decay and self.decoupled:
            step = step + p * self.weight_decay
        return p - step * self.rate, [m, v]


class AdamW(Adam):
    """Adam with weight decay that the averages do not see.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = AdamW([x], lr=0.5, weight_decay=0.0)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> round(x.item(), 4)
    2.5
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class LAMB(Adam):
    """AdamW whose step is as long as the parameter: for large batches.

    >>> x = Tensor([3.0, 4.0], requires_grad=True)
    >>> descent = LAMB([x], lr=0.1)
    >>> x.sum().backward()
    >>> descent.step()
    >>> [round(v, 4) for v in x.tolist()]
    [2.6464, 3.6464]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        m, v = self._averages(i, g)
        step = self._direction(m, v) + p * self.weight_decay
        own, length = p.norm(), step.norm()
        trust = ((own > 0.0) & (length > 0.0)).where(own / length, 1.0)
        return p - step * (self.rate * trust), [m, v]


class Muon(Optimizer):
    """Momentum whose step is made orthogonal: for matrices. Vectors and scalars go by AdamW.

    The nearest orthogonal matrix is found by a few steps of an iteration that pulls all singular values
    toward 1 (Newton and Schulz). Convolutions are matrices of (out, everything else).

    >>> x = Tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> descent = Muon([x], lr=0.1)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> bool((x.diagonal() < Tensor([2.0, 1.0])).all().item())
    True
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        iterations: int = 5,
        adam_lr: float = 1e-3,
    ) -> None:
        super().__init__(params, lr, weight_decay)
        self.momentum, self.nesterov = _at_least_zero("momentum", momentum), nesterov
        self.iterations = iterations
        self.velocity = self._state()
        self.square = [v if p.ndim < 2 else None for p, v in zip(self.params, self._state(), strict=True)]
        self.ratio = _at_least_zero("adam_lr", adam_lr) / lr if lr else 0.0

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        v, square = self.velocity[i], self.square[i]
        if square is not None:
            v.assign(v * 0.9 + g * 0.1)
            square.assign(square * 0.999 + g * g * 0.001)
            step = v / self._debiased(0.9) / ((square / self._debiased(0.999)).sqrt() + 1e-8)
            return p - (step + p * self.weight_decay) * (self.rate * self.ratio), [v, square]
        v.assign(v * self.momentum + g * (1.0 - self.momentum))
        mixed = g * (1.0 - self.momentum) + v * self.momentum if self.nesterov else v
        rows = _sizes(p)[0]
        flat = mixed.reshape(rows, -1)
        columns = _sizes(flat)[1]
        step = orthogonal(flat, self.iterations).reshape(*p.shape) * max(1.0, rows / columns) ** 0.5
        return p - (step + p * self.weight_decay) * self.rate, [v]


def orthogonal(x: Tensor, iterations: int = 5) -> Tensor:
    """Nearly the closest matrix with orthonormal rows or columns: singular values near 1, same vectors.

    >>> orthogonal(Tensor([[2.0, 0.0], [0.0, 1.0]])).shape
    (2, 2)
    """
    a, b, c = 3.4445, -4.7750, 2.0315  # the quintic that lifts small singular values fastest
    rows, columns = _sizes(x)
    y = x.T if rows > columns else x
    y = y / (y.norm() + 1e-7)
    for _ in range(iterations):
        gram = (y @ y.T).contiguous()
        y = (y * a + (gram * b + (gram @ gram) * c) @ y).contiguous()
    return y.T if rows > columns else y


def clip_grad_norm(params: Sequence[Tensor], limit: float, eps: float = 1e-6) -> Tensor:
    """Scale all gradients down so that together they are no longer than `limit`; returns their length.

    >>> w = Tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> clip_grad_norm([w], 1.0).item()
    10.0
    """
    found = [(p, p.grad) for p in params if p.grad is not None]
    if not found:
        raise MorokError("there are no gradients to clip; call backward() first")
    squares = [(g.cast(_wide(g)) * g.cast(_wide(g))).sum().reshape(1) for _, g in found]
    total = squares[0].cat(*squares[1:]).sum().sqrt() if len(squares) > 1 else squares[0].sum().sqrt()
    factor = (total + eps).reciprocal().__mul__(limit).minimum(1.0)
    for p, g in found:
        p.grad = (g * factor).cast(g.dtype)
    return total


def clip_grad_value(params: Sequence[Tensor], limit: float) -> None:
    """Keep every element of every gradient between ±limit.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> clip_grad_value([x], 1.0)
    >>> x.grad.tolist()
    [1.0]
    """
    for p in params:
        if p.grad is not None:
            p.grad = p.grad.clamp(-limit, limit)
