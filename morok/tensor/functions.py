"""Functions of one number: exponentials, trigonometry, rounding, activations.

Where the IR has an op for it, the op is used; the rest are the formulas that keep their accuracy near zero.
Integers and booleans are taken as float32.
"""

from __future__ import annotations

import math
from typing import Any, Self

from morok.dtype import DType, float32
from morok.ir.build import cast, rough
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise import Elementwise
from morok.tensor.record import pure

_LN10 = math.log(10.0)
_LOG2_E = math.log2(math.e)
# The chance that a normal variable is below x is 1 / (1 + 2^(-x·p(x²))) with this polynomial p: its relative
# error is below 1.0e-4 up to x² = 33, where half precision ends, and the absolute one below 1e-8 beyond.
_NORMAL_END = 33.0
_NORMAL = (
    2.30178689e00, 1.05449863e-01, -3.47499098e-04, -1.15670987e-04, 7.90458783e-06, -2.61603583e-07,
    4.47335894e-09, -3.14192951e-11,
)  # fmt: skip


def _far(dtype: DType) -> float:
    """From here on x² + 1 is x², and not yet infinite."""
    return 1e9 if dtype.largest > 1e18 else 100.0 if dtype.largest > 6e4 else 10.0


@pure
class Functions(Elementwise):
    """Functions that apply to every element on its own."""

    def _float(self) -> UOp:
        return cast(self.uop, float_of(self.dtype))

    def _function(self, op: Op) -> Self:
        return self._new(alu(op, self._float()))

    def _floating(self) -> Self:
        return self if self.dtype.is_float else self._new(self._float())

    def _wide(self) -> Self:
        """x in a type in which a formula of several steps is rounded once, at its end."""
        x = self._floating()
        return x._new(cast(x.uop, float32)) if x.dtype.bits < 32 else x

    def _rounded(self, x: Self) -> Self:
        """A result in the type of what it was computed from."""
        return self if self.dtype is x.dtype else self._new(cast(self.uop, x.dtype))

    def _rough_sigmoid(self, scale: float) -> Self:
        """1 / (1 + 2^(-scale · x)), for a result that is rounded to a narrower type."""
        power = rough(Ops.EXP2, (self * -scale).uop)
        return self._new(rough(Ops.RECIP, (self._new(power) + 1.0).uop))

    def _named(self, name: str, result: Self) -> Self:
        """A result under the name of the function of x that it is.

        Gradients go by the name: the chain rule through a formula that guards against overflow gives NaN
        where the guard is at work.
        """
        return self._new(make(Ops.NOOP, result.dtype, (result.uop, self.uop), name))

    # --- exponential and logarithm

    def exp(self) -> Self:
        """e to the power x.

        >>> Tensor([0.0, 1.0]).exp().tolist()
        [1.0, 2.7182817459106445]
        """
        return self._function(Ops.EXP)

    def exp2(self) -> Self:
        """2 to the power x.

        >>> Tensor([0.0, 3.0]).exp2().tolist()
        [1.0, 8.0]
        """
        return self._function(Ops.EXP2)

    def log(self) -> Self:
        """The natural logarithm; NaN below zero.

        >>> Tensor([1.0, 0.0]).log().tolist()
        [0.0, -inf]
        """
        return self._function(Ops.LOG)

    def log2(self) -> Self:
        """The logarithm to base 2.

        >>> Tensor([1.0, 8.0]).log2().tolist()
        [0.0, 3.0]
        """
        return self._function(Ops.LOG2)

    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> Tensor([1.0, 100.0]).log10().tolist()
        [0.0, 2.0]
        """
        return self.log() / _LN10

    def expm1(self) -> Self:
        """exp(x) - 1, accurate near zero.

        >>> Tensor([0.0, 1e-8]).expm1().tolist()
        [0.0, 9.99999993922529e-09]
        """
        x = self._floating()
        return x._named("expm1", (x * 0.5).tanh() * (x.exp() + 1.0))

    def log1p(self) -> Self:
        """log(1 + x), accurate near zero.

        >>> Tensor([0.0, 1e-8]).log1p().tolist()
        [0.0, 9.99999993922529e-09]
        """
        x = self._floating()
        y = x + 1.0
        # The error of 1 + x cancels in x / ((1 + x) - 1).
        value = y.eq(1.0).where(x, y.eq(math.inf).where(math.inf, y.log() * (x / (y - 1.0))))
        return x._named("log1p", value)

    def sqrt(self) -> Self:
        """The square root; NaN below zero.

        >>> Tensor([4.0, 9.0]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self._function(Ops.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(x).

        >>> Tensor([4.0, 0.25]).rsqrt().tolist()
        [0.5, 2.0]
        """
        return self._function(Ops.RSQRT)

    def square(self) -> Self:
        """x · x.

        >>> Tensor([2.0, -3.0]).square().tolist()
        [4.0, 9.0]
        """
        return self * self

    def reciprocal(self) -> Self:
        """1 / x.

        >>> Tensor([2.0, -4.0]).reciprocal().tolist()
        [0.5, -0.25]
        """
        return self._function(Ops.RECIP)

    # --- trigonometry

    def sin(self) -> Self:
        """The sine of radians.

        >>> Tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._function(Ops.SIN)

    def cos(self) -> Self:
        """The cosine of radians.

        >>> Tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._function(Ops.COS)

    def tan(self) -> Self:
        """The tangent of radians.

        >>> Tensor([0.0]).tan().tolist()
        [0.0]
        """
        return self._function(Ops.TAN)

    def atan(self) -> Self:
        """The angle whose tangent is x.

        >>> Tensor([0.0]).atan().tolist()
        [0.0]
        """
        return self.atan2(1.0)

    def atan2(self, other: Any) -> Self:
        """The angle of the point (other, self).

        >>> Tensor([0.0]).atan2(Tensor([1.0])).tolist()
        [0.0]
        """
        return self._binary(Ops.ATAN2, other, floating=True)

    def asin(self) -> Self:
        """The angle whose sine is x; NaN outside of -1 … 1.

        >>> Tensor([0.0]).asin().tolist()
        [0.0]
        """
        x = self._floating()
        return x._named("asin", x.atan2(((-x + 1.0) * (x + 1.0)).sqrt()))

    def acos(self) -> Self:
        """The angle whose cosine is x; NaN outside of -1 … 1.

        >>> Tensor([1.0]).acos().tolist()
        [0.0]
        """
        x = self._floating()
        return x._named("acos", ((-x + 1.0) * (x + 1.0)).sqrt().atan2(x))

    def sinh(self) -> Self:
        """The hyperbolic sine.

        >>> Tensor([0.0]).sinh().tolist()
        [0.0]
        """
        x = self._floating()
        e = x.abs().expm1()
        size = e.eq(math.inf).where(math.inf, (e + e / (e + 1.0)) * 0.5)
        return x._named("sinh", size.copysign(x))

    def cosh(self) -> Self:
        """The hyperbolic cosine.

        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        x = self._floating()
        e = x.abs().exp()
        return x._named("cosh", (e + e.reciprocal()) * 0.5)

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0]).tanh().tolist()
        [0.0]
        """
        return self._function(Ops.TANH)

    def asinh(self) -> Self:
        """The number whose hyperbolic sine is x.

        >>> Tensor([0.0]).asinh().tolist()
        [0.0]
        """
        x = self._floating()
        size = x.abs()
        value = (size + size * size / ((size * size + 1.0).sqrt() + 1.0)).log1p()
        big = size.log() + math.log(2.0)  # where the square overflows
        return x._named("asinh", (size > _far(x.dtype)).where(big, value).copysign(x))

    def acosh(self) -> Self:
        """The number of 0 or more whose hyperbolic cosine is x; NaN below 1.

        >>> Tensor([1.0]).acosh().tolist()
        [0.0]
        """
        x = self._floating()
        t = x - 1.0
        value = (x > _far(x.dtype)).where(x.log() + math.log(2.0), (t + (t * (x + 1.0)).sqrt()).log1p())
        return x._named("acosh", (x < 1.0).where(math.nan, value))

    def atanh(self) -> Self:
        """The number whose hyperbolic tangent is x; NaN outside of -1 … 1.

        >>> Tensor([0.0]).atanh().tolist()
        [0.0]
        """
        x = self._floating()
        return x._named("atanh", (x * 2.0 / (-x + 1.0)).log1p() * 0.5)

    def erf(self) -> Self:
        """The error function.

        >>> Tensor([0.0, 10.0]).erf().tolist()
        [0.0, 1.0]
        """
        return self._function(Ops.ERF)

    # --- rounding and signs

    def _whole(self, op: Op) -> Self:
        return self._new(alu(op, self.uop)) if self.dtype.is_float else self

    def floor(self) -> Self:
        """Down to a whole number.

        >>> Tensor([1.5, -1.5]).floor().tolist()
        [1.0, -2.0]
        """
        return self._whole(Ops.FLOOR)

    def ceil(self) -> Self:
        """Up to a whole number.

        >>> Tensor([1.5, -1.5]).ceil().tolist()
        [2.0, -1.0]
        """
        return self._whole(Ops.CEIL)

    def trunc(self) -> Self:
        """Toward zero to a whole number.

        >>> Tensor([1.5, -1.5]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._whole(Ops.TRUNC)

    def round(self) -> Self:
        """To the nearest whole number, halves to even.

        >>> Tensor([0.5, 1.5, 2.4]).round().tolist()
        [0.0, 2.0, 2.0]
        """
        return self._whole(Ops.RINT)

    def __round__(self, digits: int = 0) -> Self:
        return self.round() if not digits else (self * 10.0**digits).round() / 10.0**digits

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays NaN.

        >>> Tensor([-2.0, 0.0, 3.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype.is_bool:
            return self
        one = (self > 0).cast(self.dtype)
        if self.dtype.is_unsigned:
            return one
        value = one - (self < 0).cast(self.dtype)
        return self.isnan().where(self, value) if self.dtype.is_float else value

    def signbit(self) -> Self:
        """Whether the sign is negative, of zeros and NaNs too.

        >>> Tensor([-0.0, 0.0]).signbit().tolist()
        [True, False]
        """
        if not self.dtype.is_float:
            return self < 0 if not self.dtype.is_bool else self & False
        return self.bitcast(f"int{self.dtype.bits}") < 0

    def copysign(self, other: Any) -> Self:
        """The size of x with the sign of `other`.

        >>> Tensor([1.0, 2.0]).copysign(-1.0).tolist()
        [-1.0, -2.0]
        """
        x, y = self._meet(other, floating=True)
        size = self._new(x).abs()
        return self._new(y).signbit().where(-size, size)

    def isnan(self) -> Self:
        """Where x is not a number.

        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self.ne(self)

    def isinf(self) -> Self:
        """Where x is infinite.

        >>> Tensor([1.0, float("-inf")]).isinf().tolist()
        [False, True]
        """
        return self.abs().eq(math.inf) if self.dtype.is_float else self.ne(self)

    def isfinite(self) -> Self:
        """Where x is neither infinite nor NaN.

        >>> Tensor([1.0, float("nan")]).isfinite().tolist()
        [True, False]
        """
        bounded = not self.dtype.is_float or self.dtype.max == self.dtype.largest  # some have no infinity
        return self.eq(self) if bounded else self.abs() < math.inf

    def lerp(self, end: Any, weight: Any) -> Self:
        """From x toward `end` by `weight`.

        >>> Tensor([0.0]).lerp(Tensor([4.0]), 0.25).tolist()
        [1.0]
        """
        start, stop = (self._new(x) for x in self._meet(end, floating=True))
        moved: Self = (stop - start).__mul__(weight)
        return start + moved

    # --- activations

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
            return x._named("sigmoid", self._wide()._rough_sigmoid(_LOG2_E)._rounded(x))
        return x._named("sigmoid", ((-x).exp() + 1.0).reciprocal())

    def logsigmoid(self) -> Self:
        """log(sigmoid(x)) without overflow.

        >>> Tensor([100.0]).logsigmoid().tolist()
        [-3.783505853677006e-44]
        """
        return -(-self._floating()).softplus()

    def softplus(self) -> Self:
        """log(1 + exp(x)) without overflow.

        >>> Tensor([-200.0, 100.0]).softplus().tolist()
        [0.0, 100.0]
        """
        x = self._floating()
        return x._named("softplus", x.maximum(0.0) + (-x.abs()).exp().log1p())

    def silu(self) -> Self:
        """x · sigmoid(x).

        >>> Tensor([0.0, 100.0]).silu().tolist()
        [0.0, 100.0]
        """
        x = self._floating()
        if x.dtype.bits < 32:
            wide = self._wide()
            return x._named("silu", (wide * wide._rough_sigmoid(_LOG2_E))._rounded(x))
        return x._named("silu", x / ((-x).exp() + 1.0))

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
                return given._named("gelu_tanh", (x * inner._rough_sigmoid(2.0 * _LOG2_E))._rounded(given))
            steep = math.sqrt(8.0 / math.pi)
            power = (x * (x * x * (-0.044715 * steep) - steep)).exp()
            return x._named("gelu_tanh", x / (power + 1.0))
        if approximate != "none":
            raise ValueError(f'approximate must be "none" or "tanh", not {approximate!r}')
        if given.dtype.bits < 32:
            square = (x * x).minimum(_NORMAL_END)
            slope = const(float32, _NORMAL[-1])
            for c in reversed(_NORMAL[:-1]):
                slope = alu(Ops.MULACC, slope, square.uop, const(float32, c))
            return given._named("gelu", (x * (x * x._new(slope))._rough_sigmoid(1.0))._rounded(given))
        return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)

    def quick_gelu(self) -> Self:
        """x · sigmoid(1.702 x).

        >>> Tensor([0.0, 100.0]).quick_gelu().tolist()
        [0.0, 100.0]
        """
        x = self._wide()
        if self._floating().dtype.bits < 32:
            return (x * x._rough_sigmoid(1.702 * _LOG2_E))._rounded(self._floating())
        return x * (x * 1.702).sigmoid()

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
        return (x * x.softplus().tanh())._rounded(self._floating())

    def hardsigmoid(self) -> Self:
        """Between 0 and 1, linear from -3 to 3.

        >>> Tensor([-3.0, 0.0, 3.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        return (self._floating() + 3.0).clamp(0.0, 6.0) / 6.0

    def hardswish(self) -> Self:
        """x · hardsigmoid(x).

        >>> Tensor([-3.0, 0.0, 4.0]).hardswish().tolist()
        [-0.0, 0.0, 4.0]
        """
        x = self._floating()
        return x * x.hardsigmoid()

    def softsign(self) -> Self:
        """x / (1 + |x|).

        >>> Tensor([1.0, -3.0]).softsign().tolist()
        [0.5, -0.75]
        """
        x = self._floating()
        return x / (x.abs() + 1.0)
