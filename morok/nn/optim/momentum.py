"""Optimisers that follow a momentum: plain descent, and steps that are made orthogonal."""

from __future__ import annotations

from collections.abc import Iterable

from morok.errors import ArgumentError
from morok.nn.optim.base import Optimizer, at_least_zero, sizes
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
            at_least_zero("momentum", momentum),
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
        self.momentum, self.nesterov = at_least_zero("momentum", momentum), nesterov
        self.iterations = iterations
        self.velocity = self._state()
        self.square = [v if p.ndim < 2 else None for p, v in zip(self.params, self._state(), strict=True)]
        self.ratio = at_least_zero("adam_lr", adam_lr) / lr if lr else 0.0

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        v, square = self.velocity[i], self.square[i]
        if square is not None:
            v.assign(v * 0.9 + g * 0.1)
            square.assign(square * 0.999 + g * g * 0.001)
            step = v / self._debiased(0.9) / ((square / self._debiased(0.999)).sqrt() + 1e-8)
            return p - (step + p * self.weight_decay) * (self.rate * self.ratio), [v, square]
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
