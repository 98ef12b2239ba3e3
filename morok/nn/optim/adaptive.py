"""Optimisers that scale each parameter's step by what its gradients have been."""

from __future__ import annotations

from morok.nn.init import stored
from morok.nn.optim.base import (
    Optimizer,
    Option,
    Parameters,
    at_least_zero,
    below_one,
    two_below_one,
)
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
    betas = Option(two_below_one)
    eps = Option(at_least_zero)
    amsgrad = Option()

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps, amsgrad=amsgrad)
        self.mean, self.square, self.largest = self._state(), self._state(), self._state_where("amsgrad")

    def _averages(self, i: int, g: Tensor) -> tuple[Tensor, Tensor]:
        (b1, b2), m, v = self.betas, self.mean[i], self.square[i]
        m.assign(m * b1 + g * (1.0 - b1))
        v.assign(v * b2 + g * g * (1.0 - b2))
        return m, v

    def _direction(self, m: Tensor, v: Tensor) -> Tensor:
        b1, b2 = self.betas
        step: Tensor = m / self._debiased(b1) / ((v / self._debiased(b2)).sqrt() + self.eps)
        return step

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        if self.weight_decay and not self.decoupled:
            g = g + p * self.weight_decay
        m, v = self._averages(i, g)
        changed, largest = [m, v], self.largest[i]
        if self.amsgrad and largest is not None:
            largest.assign(largest.maximum(v))
            changed, v = [m, v, largest], largest
        step = self._direction(m, v)
        if self.weight_decay and self.decoupled:
            step = step + p * self.weight_decay
        return p - step * self.rate, changed


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
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


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
        params: Parameters,
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


class NAdam(Adam):
    """Adam that looks ahead by its momentum, as Nesterov's does; the momentum warms up.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = NAdam([x], lr=0.1)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> 2.8 < x.item() < 3.0
    True
    """

    momentum_decay = Option(at_least_zero)

    def __init__(
        self,
        params: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
    ) -> None:
        Optimizer.__init__(
            self, params, lr, weight_decay, betas=betas, eps=eps, momentum_decay=momentum_decay
        )
        self.decoupled = decoupled_weight_decay
        self.mean, self.square = self._state(), self._state()
        self.product = [stored(1.0, 1, dtype="float64", device=p.device) for p in self.params]

    def _momentum(self, ahead: float) -> Tensor:
        exponent = (self.steps + ahead) * self.momentum_decay
        momentum: Tensor = (1.0 - (Tensor(0.96, "float64") ** exponent) * 0.5) * self.betas[0]
        return momentum

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        if self.weight_decay:
            if self.decoupled:
                p = p - p * (self.rate * self.weight_decay)
            else:
                g = g + p * self.weight_decay
        m, v = self._averages(i, g)
        now, then, product = self._momentum(0.0), self._momentum(1.0), self.product[i]
        product.assign(product * now)
        of_gradient = ((1.0 - now) / (1.0 - product)).cast("float32")
        of_mean = (then / (1.0 - product * then)).cast("float32")
        root = (v / self._debiased(self.betas[1])).sqrt() + self.eps
        return p - (g * of_gradient + m * of_mean) / root * self.rate, [m, v, product]


class RAdam(Adam):
    """Adam whose steps are scaled only once the mean of squares is worth something.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = RAdam([x], lr=0.1)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> round(x.item(), 4)
    2.4
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        self.decoupled = decoupled_weight_decay

    def _direction(self, m: Tensor, v: Tensor) -> Tensor:
        b1, b2 = self.betas
        power = Tensor(b2, "float64") ** self.steps
        longest = 2.0 / (1.0 - b2) - 1.0
        length = longest - self.steps * 2.0 * power / (1.0 - power)
        worth = length > 5.0
        kept = worth.where(length, 6.0)  # no root of what is negative
        scale = ((kept - 4.0) * (kept - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * kept)).sqrt()
        scale = (scale * (1.0 - power).sqrt()).cast("float32")
        mean = m / self._debiased(b1)
        step: Tensor = worth.where(mean * scale / (v.sqrt() + self.eps), mean)
        return step


class Adamax(Optimizer):
    """Adam with the largest recent gradient in place of a mean square.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = Adamax([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> round(x.item(), 4)
    2.5
    """

    betas = Option(two_below_one)
    eps = Option(at_least_zero)

    def __init__(
        self,
        params: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps)
        self.mean, self.largest = self._state(), self._state()

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        g = self._decayed(p, g)
        (b1, b2), m, u = self.betas, self.mean[i], self.largest[i]
        m.assign(m * b1 + g * (1.0 - b1))
        u.assign((u * b2).maximum(g.abs() + self.eps))
        return p - m / self._debiased(b1) / u * self.rate, [m, u]


class RMSprop(Optimizer):
    """Steps in proportion to the gradient over its root mean square.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = RMSprop([x], lr=0.1)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> round(x.item(), 4)
    2.0
    """

    alpha = Option(below_one)
    eps = Option(at_least_zero)
    momentum = Option(at_least_zero)
    centered = Option()

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(params, lr, weight_decay, alpha=alpha, eps=eps, momentum=momentum, centered=centered)
        self.square = self._state()
        self.mean, self.velocity = self._state_where("centered"), self._state_where("momentum")

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        g = self._decayed(p, g)
        square, mean, velocity = self.square[i], self.mean[i], self.velocity[i]
        square.assign(square * self.alpha + g * g * (1.0 - self.alpha))
        changed, spread = [square], square
        if self.centered and mean is not None:
            mean.assign(mean * self.alpha + g * (1.0 - self.alpha))
            changed, spread = [*changed, mean], square - mean * mean
        step = g / (spread.sqrt() + self.eps)
        if self.momentum and velocity is not None:
            velocity.assign(velocity * self.momentum + step)
            changed, step = [*changed, velocity], velocity
        return p - step * self.rate, changed


class Adagrad(Optimizer):
    """Steps in proportion to the gradient over the root of all its squares so far.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = Adagrad([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> round(x.item(), 4)
    2.5
    """

    lr_decay = Option(at_least_zero)
    eps = Option(at_least_zero)

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(params, lr, weight_decay, lr_decay=lr_decay, eps=eps)
        self.square = self._state(at_least_zero("initial_accumulator_value", initial_accumulator_value))

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        g = self._decayed(p, g)
        square = self.square[i]
        square.assign(square + g * g)
        rate = self.rate
        if self.lr_decay:
            rate = rate / ((self.steps - 1.0) * self.lr_decay + 1.0).cast("float32")
        return p - g / (square.sqrt() + self.eps) * rate, [square]


class Adadelta(Optimizer):
    """Steps as long as the mean of the last ones, in proportion to the gradient over its own mean.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = Adadelta([x])
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> 2.9 < x.item() < 3.0
    True
    """

    rho = Option(below_one)
    eps = Option(at_least_zero)

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, rho=rho, eps=eps)
        self.square, self.moved = self._state(), self._state()

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        g = self._decayed(p, g)
        square, moved = self.square[i], self.moved[i]
        square.assign(square * self.rho + g * g * (1.0 - self.rho))
        step = (moved + self.eps).sqrt() / (square + self.eps).sqrt() * g
        moved.assign(moved * self.rho + step * step * (1.0 - self.rho))
        return p - step * self.rate, [square, moved]
