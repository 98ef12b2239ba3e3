"""Activation functions with parameters and the less common ones; the usual ones are in `functions.py`."""

from __future__ import annotations

from typing import Any, Self

from morok.tensor.named import Named
from morok.tensor.record import pure

_SELU = (1.0507009873554805, 1.6732632423543772)  # scale and alpha that keep mean 0 and variance 1


@pure
class Activations(Named):
    """Functions of one number that networks put between their layers."""

    def hardtanh(self, min_val: float = -1.0, max_val: float = 1.0) -> Self:
        """Between two limits.

        >>> Tensor([-3.0, 0.5, 3.0]).hardtanh().tolist()
        [-1.0, 0.5, 1.0]
        """
        return self.clamp(min_val, max_val)

    def celu(self, alpha: float = 1.0) -> Self:
        """x above zero, alpha · (exp(x / alpha) - 1) below.

        >>> Tensor([-100.0, 2.0]).celu(0.5).tolist()
        [-0.5, 2.0]
        """
        x = self._floating()
        return (x > 0.0).where(x, ((x > 0.0).where(0.0, x) / alpha).expm1() * alpha)

    def selu(self) -> Self:
        """Scaled `elu` that keeps mean 0 and variance 1.

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        scale, alpha = _SELU
        return self.elu(alpha) * scale

    def prelu(self, weight: Any) -> Self:
        """x above zero, weight · x below; several weights belong to the channels (axis 1).

        >>> Tensor([-2.0, 2.0]).prelu(Tensor([0.25])).tolist()
        [-0.5, 2.0]
        """
        w = self._new(weight.uop) if isinstance(weight, Named) else self._from_data(weight)
        if w.ndim == 1 and w.shape != (1,) and self.ndim > 1:
            w = w.reshape(-1, *(1,) * (self.ndim - 2))  # type: ignore[attr-defined]
        x = self._floating()
        return (x > 0.0).where(x, x * w)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward zero by lambd, 0 within it.

        >>> Tensor([-2.0, 0.25, 2.0]).softshrink().tolist()
        [-1.5, 0.0, 1.5]
        """
        x = self._floating()
        return (x > lambd).where(x - lambd, (x < -lambd).where(x + lambd, x * 0.0))

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x, or 0 within lambd of it.

        >>> Tensor([-2.0, 0.25]).hardshrink().tolist()
        [-2.0, 0.0]
        """
        x = self._floating()
        return (x.abs() <= lambd).where(0.0, x)

    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> Tensor([0.0]).tanhshrink().tolist()
        [0.0]
        """
        x = self._floating()
        return x - x.tanh()

    def threshold(self, threshold: float, value: float) -> Self:
        """x above a threshold, else a value.

        >>> Tensor([0.5, 2.0]).threshold(1.0, 9.0).tolist()
        [9.0, 2.0]
        """
        return (self <= threshold).where(value, self)

    log_sigmoid = Named.logsigmoid
