"""Activation functions: what networks put between their layers."""

from __future__ import annotations

import math
from typing import Any, Self

from morok.dtype import float32
from morok.errors import ArgumentError
from morok.ir.build import approximate_op
from morok.ir.node import alu, const
from morok.ir.ops import Ops
from morok.tensor.elementwise.named import Named
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.record import pure

_LOG2_E = math.log2(math.e)
# The chance that a normal variable is below x is 1 / (1 + 2^(-x·p(x²))) with this polynomial p: its relative
# error is below 1.0e-4 up to x² = 33, where half precision ends, and the absolute one below 1e-8 beyond.
_NORMAL_END = 33.0
_NORMAL = (
    2.30178689e00, 1.05449863e-01, -3.47499098e-04, -1.15670987e-04, 7.90458783e-06, -2.61603583e-07,
    4.47335894e-09, -3.14192951e-11,
)  # fmt: skip
_PART = 2.0**-32
_SELU = (1.0507009873554805, 1.6732632423543772)  # scale and alpha that keep mean 0 and variance 1


@pure
class Activations(Named):
    """Functions of one number that networks put between their layers."""

    def _approximate_sigmoid(self, scale: float, end: int) -> Self:
        """1 / (1 + 2^(-scale · x)), for a result that is rounded to a narrower type.

        `end`: that type's exponents. If they are float32's, all is 2^-32 of itself on the way: what the power
        overflows for has results that are not 0 yet.
        """
        if end < float32.exponent_bits:
            power = approximate_op(Ops.EXP2, (self * -scale).uop)
            return self._new(approximate_op(Ops.RECIP, (self._new(power) + 1.0).uop))
        power = approximate_op(Ops.EXP2, (self * -scale - 32.0).uop)
        return self._new(approximate_op(Ops.RECIP, (self._new(power) + _PART).uop)) * _PART

    def _logistic(self) -> Self:
        """1 / (1 + exp(-x)) from something that never overflows, so that no result is lost."""
        e = (-self.abs()).exp()
        return (self < 0.0).where(e, 1.0) / (e + 1.0)

    def relu(self) -> Self:
        """The larger of x and 0.

        >>> Tensor([-1.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        value = self.maximum(0)
        return self._named("relu", value) if self.dtype.is_float else value

    def relu6(self) -> Self:
        """Between 0 and 6.

        >>> Tensor([-1.0, 9.0]).relu6().tolist()
        [0.0, 6.0]
        """
        return self.clamp(0, 6)

    @rounded_once
    def leaky_relu(self, slope: float = 0.01) -> Self:
        """x above zero, `slope` · x below.

        >>> Tensor([-1.0, 2.0]).leaky_relu(0.5).tolist()
        [-0.5, 2.0]
        """
        x = self._floating()
        return (x > 0.0).where(x, x * slope)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)).

        >>> Tensor([0.0]).sigmoid().tolist()
        [0.5]
        """
        x = self._floating()
        if x.dtype.bits < 32:
            return x._named(
                "sigmoid", self._wide()._approximate_sigmoid(_LOG2_E, x.dtype.exponent_bits)._rounded(x)
            )
        return x._named("sigmoid", x._logistic())

    @rounded_once
    def logsigmoid(self) -> Self:
        """log(sigmoid(x)) without overflow.

        >>> Tensor([100.0]).logsigmoid().tolist()
        [-3.783505853677006e-44]
        """
        return -(-self._floating()).softplus()

    @rounded_once
    def softplus(self, beta: float = 1.0, threshold: float | None = None) -> Self:
        """log(1 + exp(beta · x)) / beta without overflow; where beta · x is above a threshold, x itself.

        >>> Tensor([-200.0, 100.0]).softplus().tolist()
        [0.0, 100.0]
        """
        x = self._floating()
        if beta != 1.0 or threshold is not None:
            inner = x * beta
            bent = inner.softplus() / beta
            return bent if threshold is None else (inner > threshold).where(x, bent)
        return x._named("softplus", x.maximum(0.0) + (-x.abs()).exp().log1p())

    def silu(self) -> Self:
        """x · sigmoid(x), the sigmoid rounded: where it is subnormal, its digits are all there are.

        >>> Tensor([0.0, 100.0]).silu().tolist()
        [0.0, 100.0]
        """
        x = self._floating()
        if x.dtype.bits < 32:
            wide = self._wide()
            return x._named(
                "silu", (wide * wide._approximate_sigmoid(_LOG2_E, x.dtype.exponent_bits))._rounded(x)
            )
        return x._named("silu", x * x._logistic())

    swish = silu

    def gelu(self, approximate: str = "none") -> Self:
        """x times the probability that a normal variable is below it; "tanh" for the older approximation.

        >>> Tensor([0.0, 100.0]).gelu().tolist()
        [0.0, 100.0]
        """
        given, x = self._floating(), self._wide()
        if approximate == "tanh":
            # (tanh(u) + 1) / 2 = sigmoid(2u), where nothing cancels
            if given.dtype.bits < 32:
                inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
                share = inner._approximate_sigmoid(2.0 * _LOG2_E, given.dtype.exponent_bits)
                return given._named("gelu_tanh", (x * share)._rounded(given))
            steep = math.sqrt(8.0 / math.pi)
            return x._named("gelu_tanh", x * (x * (x * x * (0.044715 * steep) + steep))._logistic())
        if approximate != "none":
            raise ArgumentError(f'approximate must be "none" or "tanh", not {approximate!r}')
        if given.dtype.bits < 32:
            square = (x * x).minimum(_NORMAL_END)
            slope = const(float32, _NORMAL[-1])
            for c in reversed(_NORMAL[:-1]):
                slope = alu(Ops.MULACC, slope, square.uop, const(float32, c))
            share = (x * x._new(slope))._approximate_sigmoid(
                1.0, 0
            )  # the square ends where half precision does
            return given._named("gelu", (x * share)._rounded(given))
        return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)

    def quick_gelu(self) -> Self:
        """x · sigmoid(1.702 x), the sigmoid rounded.

        >>> Tensor([0.0, 100.0]).quick_gelu().tolist()
        [0.0, 100.0]
        """
        given, x = self._floating(), self._wide()
        if given.dtype.bits < 32:
            share = x._approximate_sigmoid(1.702 * _LOG2_E, given.dtype.exponent_bits)
            return given._named("quick_gelu", (x * share)._rounded(given))
        return x._named("quick_gelu", x * (x * 1.702)._logistic())

    @rounded_once
    def elu(self, alpha: float = 1.0) -> Self:
        """x above zero, alpha · (exp(x) - 1) below.

        >>> Tensor([-100.0, 2.0]).elu().tolist()
        [-1.0, 2.0]
        """
        x = self._floating()
        return (x > 0.0).where(x, (x > 0.0).where(0.0, x).expm1() * alpha)

    def mish(self) -> Self:
        """x · tanh(softplus(x)).

        >>> Tensor([0.0, 100.0]).mish().tolist()
        [0.0, 100.0]
        """
        x = self._wide()
        # tanh(log(1 + e)) = w / (w + 2) with w = e·(e + 2); it is 1 long before that overflows
        e = x.minimum(40.0).exp()
        w = e * (e + 2.0)
        return (x * (w / (w + 2.0)))._rounded(self._floating())

    @rounded_once
    def hardsigmoid(self) -> Self:
        """Between 0 and 1, linear from -3 to 3.

        >>> Tensor([-3.0, 0.0, 3.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        return (self._floating() + 3.0).clamp(0.0, 6.0) / 6.0

    @rounded_once
    def hardswish(self) -> Self:
        """x · hardsigmoid(x).

        >>> Tensor([-3.0, 0.0, 4.0]).hardswish().tolist()
        [-0.0, 0.0, 4.0]
        """
        x = self._floating()
        return x * x.hardsigmoid()

    @rounded_once
    def softsign(self) -> Self:
        """x / (1 + |x|).

        >>> Tensor([1.0, -3.0]).softsign().tolist()
        [0.5, -0.75]
        """
        x = self._floating()
        return x / (x.abs() + 1.0)

    # --- with parameters, and the less common ones

    def hardtanh(self, min_val: float = -1.0, max_val: float = 1.0) -> Self:
        """Between two limits.

        >>> Tensor([-3.0, 0.5, 3.0]).hardtanh().tolist()
        [-1.0, 0.5, 1.0]
        """
        return self.clamp(min_val, max_val)

    @rounded_once
    def celu(self, alpha: float = 1.0) -> Self:
        """x above zero, alpha · (exp(x / alpha) - 1) below.

        >>> Tensor([-100.0, 2.0]).celu(0.5).tolist()
        [-0.5, 2.0]
        """
        x = self._floating()
        return (x > 0.0).where(x, ((x > 0.0).where(0.0, x) / alpha).expm1() * alpha)

    @rounded_once
    def selu(self) -> Self:
        """Scaled `elu` that keeps mean 0 and variance 1.

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        scale, alpha = _SELU
        return self.elu(alpha) * scale

    @rounded_once
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

    @rounded_once
    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward zero by lambd, 0 within it.

        >>> Tensor([-2.0, 0.25, 2.0]).softshrink().tolist()
        [-1.5, 0.0, 1.5]
        """
        x = self._floating()
        return (x > lambd).where(x - lambd, (x < -lambd).where(x + lambd, x * 0.0))

    @rounded_once
    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x, or 0 within lambd of it.

        >>> Tensor([-2.0, 0.25]).hardshrink().tolist()
        [-2.0, 0.0]
        """
        x = self._floating()
        return (x.abs() <= lambd).where(0.0, x)

    @rounded_once
    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> Tensor([0.0]).tanhshrink().tolist()
        [0.0]
        """
        x = self._floating()
        # near zero both are nearly equal: with Lambert's fraction k = x²/(3 + x²/(5 + …)),
        # tanh(x) = x / (1 + k)
        near = x.abs() < 1.0
        square = near.where(x, 0.0).square()
        fraction = square * 0.0
        for odd in range(21 if x.dtype.bits == 64 else 13, 1, -2):
            fraction = square / (fraction + float(odd))
        return near.where(x * (fraction / (fraction + 1.0)), x - x.tanh())

    @rounded_once
    def threshold(self, threshold: float, value: float) -> Self:
        """x above a threshold, else a value.

        >>> Tensor([0.5, 2.0]).threshold(1.0, 9.0).tolist()
        [9.0, 2.0]
        """
        return (self <= threshold).where(value, self)

    log_sigmoid = logsigmoid
