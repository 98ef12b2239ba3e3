"""Optimisers that scale each parameter's step by what its gradients have been."""

from __future__ import annotations

from collections.abc import Iterable

from morok.nn.optim.base import Optimizer, at_least_zero, below_one
from morok.tensor.tensor import Tensor


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
        self.betas = below_one("the first of betas", betas[0]), below_one("the second of betas", betas[1])
        self.eps = at_least_zero("eps", eps)
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
