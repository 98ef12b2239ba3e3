"""Activation functions: what networks put between their layers."""

from __future__ import annotations

import math
from typing import Any

from morok.dtype import float32
from morok.errors import ArgumentError, ShapeError
from morok.ir import movement as move
from morok.ir.build import approximate_op
from morok.ir.infer import show_shape
from morok.ir.node import alu, const
from morok.ir.ops import Ops
from morok.tensor.creation.constructors import as_operand
from morok.tensor.elementwise import arithmetic, functions
from morok.tensor.elementwise.comparison import between, maximum, minimum, where
from morok.tensor.elementwise.floats import floating, named, rounded_to, widen
from morok.tensor.elementwise.functions import erf, exp, expm1, log1p, tanh
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axis

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


def _approximate_sigmoid(x: T, scale: float, end: int) -> T:
    """1 / (1 + 2^(-scale · x)), for a result that is rounded to a narrower type.

    `end`: that type's exponents. If they are float32's, all is 2^-32 of itself on the way: what the power
    overflows for has results that are not 0 yet.
    """
    if end < float32.exponent_bits:
        power = approximate_op(Ops.EXP2, (x * -scale).uop)
        return x._new(approximate_op(Ops.RECIP, (x._new(power) + 1.0).uop))
    power = approximate_op(Ops.EXP2, (x * -scale - 32.0).uop)
    return x._new(approximate_op(Ops.RECIP, (x._new(power) + _PART).uop)) * _PART


def _logistic(x: T) -> T:
    """1 / (1 + exp(-x)) from something that never overflows, so that no result is lost."""
    e = exp(-arithmetic.abs(x))
    return where(x < 0.0, e, 1.0) / (e + 1.0)


def relu(x: T) -> T:
    """The larger of x and 0.

    >>> Tensor([-1.0, 2.0]).relu().tolist()
    [0.0, 2.0]
    """
    value = maximum(x, 0)
    return named(x, "relu", value) if x.dtype.is_float else value


def relu6(x: T) -> T:
    """Between 0 and 6.

    >>> Tensor([-1.0, 9.0]).relu6().tolist()
    [0.0, 6.0]
    """
    return between(x, 0, 6)


@rounded_once
def leaky_relu(x: T, slope: float = 0.01) -> T:
    """x above zero, `slope` · x below.

    >>> Tensor([-1.0, 2.0]).leaky_relu(0.5).tolist()
    [-0.5, 2.0]
    """
    x = floating(x)
    return where(x > 0.0, x, x * slope)


def sigmoid(t: T) -> T:
    """1 / (1 + exp(-x)).

    >>> Tensor([0.0]).sigmoid().tolist()
    [0.5]
    """
    x = floating(t)
    if x.dtype.bits < 32:
        return named(
            x, "sigmoid", rounded_to(_approximate_sigmoid(widen(t), _LOG2_E, x.dtype.exponent_bits), x)
        )
    return named(x, "sigmoid", _logistic(x))


@rounded_once
def logsigmoid(x: T) -> T:
    """log(sigmoid(x)) without overflow.

    >>> Tensor([100.0]).logsigmoid().tolist()
    [-3.783505853677006e-44]
    """
    return -softplus(-floating(x))


@rounded_once
def softplus(x: T, beta: float = 1.0, threshold: float | None = None) -> T:
    """log(1 + exp(beta · x)) / beta without overflow; where beta · x is above a threshold, x itself.

    >>> Tensor([-200.0, 100.0]).softplus().tolist()
    [0.0, 100.0]
    """
    x = floating(x)
    if beta != 1.0 or threshold is not None:
        inner = x * beta
        bent = softplus(inner) / beta
        return bent if threshold is None else where(inner > threshold, x, bent)
    return named(x, "softplus", maximum(x, 0.0) + log1p(exp(-arithmetic.abs(x))))


def silu(t: T) -> T:
    """x · sigmoid(x), the sigmoid rounded: where it is subnormal, its digits are all there are.

    >>> Tensor([0.0, 100.0]).silu().tolist()
    [0.0, 100.0]
    """
    x = floating(t)
    if x.dtype.bits < 32:
        wide = widen(t)
        return named(
            x, "silu", rounded_to(wide * _approximate_sigmoid(wide, _LOG2_E, x.dtype.exponent_bits), x)
        )
    return named(x, "silu", x * _logistic(x))


def gelu(t: T, approximate: str = "none") -> T:
    """x times the probability that a normal variable is below it; "tanh" for the older approximation.

    >>> Tensor([0.0, 100.0]).gelu().tolist()
    [0.0, 100.0]
    """
    given, x = floating(t), widen(t)
    if approximate == "tanh":
        # (tanh(u) + 1) / 2 = sigmoid(2u), where nothing cancels
        if given.dtype.bits < 32:
            inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
            share = _approximate_sigmoid(inner, 2.0 * _LOG2_E, given.dtype.exponent_bits)
            return named(given, "gelu_tanh", rounded_to(x * share, given))
        steep = math.sqrt(8.0 / math.pi)
        return named(x, "gelu_tanh", x * _logistic(x * (x * x * (0.044715 * steep) + steep)))
    if approximate != "none":
        raise ArgumentError(f'approximate must be "none" or "tanh", not {approximate!r}')
    if given.dtype.bits < 32:
        square = minimum(x * x, _NORMAL_END)
        slope = const(float32, _NORMAL[-1])
        for c in reversed(_NORMAL[:-1]):
            slope = alu(Ops.MULACC, slope, square.uop, const(float32, c))
        share = _approximate_sigmoid(x * x._new(slope), 1.0, 0)  # the square ends where half precision does
        return named(given, "gelu", rounded_to(x * share, given))
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


def quick_gelu(t: T) -> T:
    """x · sigmoid(1.702 x), the sigmoid rounded.

    >>> Tensor([0.0, 100.0]).quick_gelu().tolist()
    [0.0, 100.0]
    """
    given, x = floating(t), widen(t)
    if given.dtype.bits < 32:
        share = _approximate_sigmoid(x, 1.702 * _LOG2_E, given.dtype.exponent_bits)
        return named(given, "quick_gelu", rounded_to(x * share, given))
    return named(x, "quick_gelu", x * _logistic(x * 1.702))


@rounded_once
def elu(x: T, alpha: float = 1.0) -> T:
    """x above zero, alpha · (exp(x) - 1) below.

    >>> Tensor([-100.0, 2.0]).elu().tolist()
    [-1.0, 2.0]
    """
    x = floating(x)
    return where(x > 0.0, x, expm1(where(x > 0.0, 0.0, x)) * alpha)


def mish(t: T) -> T:
    """x · tanh(softplus(x)).

    >>> Tensor([0.0, 100.0]).mish().tolist()
    [0.0, 100.0]
    """
    x = widen(t)
    # tanh(log(1 + e)) = w / (w + 2) with w = e·(e + 2); it is 1 long before that overflows
    e = exp(minimum(x, 40.0))
    w = e * (e + 2.0)
    return rounded_to(x * (w / (w + 2.0)), floating(t))


@rounded_once
def hardsigmoid(x: T) -> T:
    """Between 0 and 1, linear from -3 to 3.

    >>> Tensor([-3.0, 0.0, 3.0]).hardsigmoid().tolist()
    [0.0, 0.5, 1.0]
    """
    return between(floating(x) + 3.0, 0.0, 6.0) / 6.0


@rounded_once
def hardswish(x: T) -> T:
    """x · hardsigmoid(x).

    >>> Tensor([-3.0, 0.0, 4.0]).hardswish().tolist()
    [-0.0, 0.0, 4.0]
    """
    x = floating(x)
    return x * hardsigmoid(x)


@rounded_once
def softsign(x: T) -> T:
    """x / (1 + |x|).

    >>> Tensor([1.0, -3.0]).softsign().tolist()
    [0.5, -0.75]
    """
    x = floating(x)
    return x / (arithmetic.abs(x) + 1.0)


# --- with parameters, and the less common ones


def hardtanh(x: T, min_val: float = -1.0, max_val: float = 1.0) -> T:
    """Between two limits.

    >>> Tensor([-3.0, 0.5, 3.0]).hardtanh().tolist()
    [-1.0, 0.5, 1.0]
    """
    return between(x, min_val, max_val)


@rounded_once
def celu(x: T, alpha: float = 1.0) -> T:
    """x above zero, alpha · (exp(x / alpha) - 1) below.

    >>> Tensor([-100.0, 2.0]).celu(0.5).tolist()
    [-0.5, 2.0]
    """
    x = floating(x)
    return where(x > 0.0, x, expm1(where(x > 0.0, 0.0, x) / alpha) * alpha)


@rounded_once
def selu(x: T) -> T:
    """Scaled `elu` that keeps mean 0 and variance 1.

    >>> Tensor([0.0]).selu().tolist()
    [0.0]
    """
    scale, alpha = _SELU
    return elu(x, alpha) * scale


@rounded_once
def prelu(x: T, weight: Any) -> T:
    """x above zero, weight · x below; several weights belong to the channels (axis 1).

    >>> Tensor([-2.0, 2.0]).prelu(Tensor([0.25])).tolist()
    [-0.5, 2.0]
    """
    w = as_operand(x, weight)
    if w.ndim == 1 and w.shape != (1,) and x.ndim > 1:
        w = w._new(move.reshape(w.uop, (w.shape[0], *(1,) * (x.ndim - 2))))
    x = floating(x)
    return where(x > 0.0, x, x * w)


@rounded_once
def softshrink(x: T, lambd: float = 0.5) -> T:
    """x moved toward zero by lambd, 0 within it.

    >>> Tensor([-2.0, 0.25, 2.0]).softshrink().tolist()
    [-1.5, 0.0, 1.5]
    """
    x = floating(x)
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0))


@rounded_once
def hardshrink(x: T, lambd: float = 0.5) -> T:
    """x, or 0 within lambd of it.

    >>> Tensor([-2.0, 0.25]).hardshrink().tolist()
    [-2.0, 0.0]
    """
    x = floating(x)
    return where(arithmetic.abs(x) <= lambd, 0.0, x)


@rounded_once
def tanhshrink(x: T) -> T:
    """x - tanh(x).

    >>> Tensor([0.0]).tanhshrink().tolist()
    [0.0]
    """
    x = floating(x)
    # near zero both are nearly equal: with Lambert's fraction k = x²/(3 + x²/(5 + …)),
    # tanh(x) = x / (1 + k)
    near = arithmetic.abs(x) < 1.0
    square = functions.square(where(near, x, 0.0))
    fraction = square * 0.0
    for odd in range(21 if x.dtype.bits == 64 else 13, 1, -2):
        fraction = square / (fraction + float(odd))
    return where(near, x * (fraction / (fraction + 1.0)), x - tanh(x))


@rounded_once
def threshold(x: T, threshold: float, value: float) -> T:
    """x above a threshold, else a value.

    >>> Tensor([0.5, 2.0]).threshold(1.0, 9.0).tolist()
    [9.0, 2.0]
    """
    return where(x <= threshold, value, x)


@rounded_once
def glu(x: T, dim: int = -1, *, axis: int | None = None) -> T:
    """One half of an axis times the sigmoid of the other.

    >>> Tensor([2.0, 0.0]).glu().tolist()
    [1.0]
    """
    own = x.shape
    at = as_axis(dim if axis is None else axis, len(own), own)
    size = own[at]
    if not isinstance(size, int) or size % 2:
        raise ShapeError(f"glu along axis {at} needs an even size, not shape {show_shape(own)}")
    first, second = (
        x._new(
            move.shrink(
                x.uop,
                [(k * size // 2, (k + 1) * size // 2) if i == at else (0, n) for i, n in enumerate(own)],
            )
        )
        for k in (0, 1)
    )
    return first * sigmoid(second)
