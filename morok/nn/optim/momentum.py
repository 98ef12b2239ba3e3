"""Optimisers that follow a momentum: plain descent, and steps that are made orthogonal."""

from __future__ import annotations

from morok.errors import ArgumentError
from morok.nn.optim.base import Optimizer, Option, Parameters, at_least_zero, sizes
from morok.tensor.tensor import Tensor


class SGD(Optimizer):
    """p - lr · g, with momentum if asked for.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> opt = SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.item()
    0.0
    """

    momentum = Option(at_least_zero)
    nesterov = Option()
    dampening = Option()

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, momentum=momentum, nesterov=nesterov, dampening=dampening)
        for group in self.param_groups:
            if group["nesterov"] and (not group["momentum"] or group["dampening"]):
                raise ArgumentError("Nesterov's momentum needs a momentum and no dampening")
        self.velocity = self._state_where("momentum")

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        g = self._decayed(p, g)
        v = self.velocity[i]
        if v is None or not self.momentum:
            return p - g * self.rate, []
        first = self.steps.eq(1.0) if self.dampening else None
        added = g * (1.0 - self.dampening)
        v.assign(v * self.momentum + (added if first is None else first.where(g, added)))
        return p - (g + v * self.momentum if self.nesterov else v) * self.rate, [v]


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

    momentum = Option(at_least_zero)
    nesterov = Option()
    adam_lr = Option(at_least_zero)

    def __init__(
        self,
        params: Parameters,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        iterations: int = 5,
        adam_lr: float = 1e-3,
    ) -> None:
        super().__init__(params, lr, weight_decay, momentum=momentum, nesterov=nesterov, adam_lr=adam_lr)
        self.iterations = iterations
        self.velocity = self._state()
        self.square = [v if p.ndim < 2 else None for p, v in zip(self.params, self._state(), strict=True)]
        # What AdamW's rate is of the group's: a schedule changes both.
        self._ratios = [group["adam_lr"] / group["lr"] if group["lr"] else 0.0 for group in self._group_of]

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        v, square = self.velocity[i], self.square[i]
        if square is not None:
            v.assign(v * 0.9 + g * 0.1)
            square.assign(square * 0.999 + g * g * 0.001)
            step = v / self._debiased(0.9) / ((square / self._debiased(0.999)).sqrt() + 1e-8)
            return p - (step + p * self.weight_decay) * (self.rate * self._ratios[i]), [v, square]
        v.assign(v * self.momentum + g * (1.0 - self.momentum))
        mixed = g * (1.0 - self.momentum) + v * self.momentum if self.nesterov else v
        rows = sizes(p)[0]
        flat = mixed.reshape(rows, -1)
        columns = sizes(flat)[1]
        step = orthogonal(flat, self.iterations).reshape(*p.shape) * max(1.0, rows / columns) ** 0.5
        return p - (step + p * self.weight_decay) * self.rate, [v]


def orthogonal(x: Tensor, iterations: int = 5) -> Tensor:
    """Nearly the closest matrix with orthonormal rows or columns: singular values near 1, same vectors.

    >>> orthogonal(Tensor([[2.0, 0.0], [0.0, 1.0]])).shape
    (2, 2)
    """
    a, b, c = 3.4445, -4.7750, 2.0315  # the quintic that lifts small singular values fastest
    rows, columns = sizes(x)
    y = x.T if rows > columns else x
    y = y / (y.norm() + 1e-7)
    for _ in range(iterations):
        gram = (y @ y.T).contiguous()
        y = (y * a + (gram * b + (gram @ gram) * c) @ y).contiguous()
    return y.T if rows > columns else y
