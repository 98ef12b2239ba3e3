"""Functions of one number: exponentials, trigonometry, rounding.

Where the IR has an op for it, the op is used; the rest are the formulas that keep their accuracy near zero.
Integers and booleans are taken as float32.
"""

from __future__ import annotations

import math
from typing import Any, Self

from morok.dtype import DType, float32
from morok.ir.build import cast
from morok.ir.node import UOp, alu, make
from morok.ir.ops import Op, Ops
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise.arithmetic import Elementwise
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.rounding import rounded
from morok.tensor.record import pure

_LN10 = math.log(10.0)
_FAR = 1e9  # from here on x² + 1 is x², and not yet infinite


def _steep(dtype: DType) -> float:
    """From here on a hyperbolic sine is half an exponential, and that is not infinite yet."""
    return 700.0 if dtype.bits == 64 else 80.0


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

    @rounded_once
    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> Tensor([1.0, 100.0]).log10().tolist()
        [0.0, 2.0]
        """
        return self.log() / _LN10

    @rounded_once
    def expm1(self) -> Self:
        """exp(x) - 1, accurate near zero.

        >>> Tensor([0.0, 1e-8]).expm1().tolist()
        [0.0, 9.99999993922529e-09]
        """
        x = self._floating()
        return x._named("expm1", (x * 0.5).tanh() * (x.exp() + 1.0))

    @rounded_once
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

    @rounded_once
    def asin(self) -> Self:
        """The angle whose sine is x; NaN outside of -1 … 1.

        >>> Tensor([0.0]).asin().tolist()
        [0.0]
        """
        x = self._floating()
        return x._named("asin", x.atan2(((-x + 1.0) * (x + 1.0)).sqrt()))

    @rounded_once
    def acos(self) -> Self:
        """The angle whose cosine is x; NaN outside of -1 … 1.

        >>> Tensor([1.0]).acos().tolist()
        [0.0]
        """
        x = self._floating()
        return x._named("acos", ((-x + 1.0) * (x + 1.0)).sqrt().atan2(x))

    @rounded_once
    def sinh(self) -> Self:
        """The hyperbolic sine.

        >>> Tensor([0.0]).sinh().tolist()
        [0.0]
        """
        x = self._floating()
        size = x.abs()
        e = size.expm1()
        size = (size > _steep(x.dtype)).where(size._half_exponential(), (e + e / (e + 1.0)) * 0.5)
        return x._named("sinh", size.copysign(x))

    @rounded_once
    def cosh(self) -> Self:
        """The hyperbolic cosine.

        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        x = self._floating()
        size = x.abs()
        e = size.exp()
        steep = size > _steep(x.dtype)
        return x._named("cosh", steep.where(size._half_exponential(), (e + e.reciprocal()) * 0.5))

    def _half_exponential(self) -> Self:
        """e^x / 2, which may be a number where e^x is none."""
        root = (self * 0.5).exp()
        return root * 0.5 * root

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0]).tanh().tolist()
        [0.0]
        """
        return self._function(Ops.TANH)

    @rounded_once
    def asinh(self) -> Self:
        """The number whose hyperbolic sine is x.

        >>> Tensor([0.0]).asinh().tolist()
        [0.0]
        """
        x = self._floating()
        size = x.abs()
        value = (size + size * size / ((size * size + 1.0).sqrt() + 1.0)).log1p()
        big = size.log() + math.log(2.0)  # where the square overflows
        return x._named("asinh", (size > _FAR).where(big, value).copysign(x))

    @rounded_once
    def acosh(self) -> Self:
        """The number of 0 or more whose hyperbolic cosine is x; NaN below 1.

        >>> Tensor([1.0]).acosh().tolist()
        [0.0]
        """
        x = self._floating()
        t = x - 1.0
        value = (x > _FAR).where(x.log() + math.log(2.0), (t + (t * (x + 1.0)).sqrt()).log1p())
        return x._named("acosh", (x < 1.0).where(math.nan, value))

    @rounded_once
    def atanh(self) -> Self:
        """The number whose hyperbolic tangent is x; NaN outside of -1 … 1.

        >>> Tensor([0.0]).atanh().tolist()
        [0.0]
        """
        x = self._floating()
        size = x.abs()  # a quotient near -1 would cancel in log1p
        return x._named("atanh", ((size * 2.0 / (-size + 1.0)).log1p() * 0.5).copysign(x))

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

    def round(self, decimals: int = 0) -> Self:
        """To the nearest whole number, or number with so many decimals (tens for -1), halves to even.

        >>> Tensor([0.5, 1.5, 2.4]).round().tolist()
        [0.0, 2.0, 2.0]
        >>> Tensor([15, 25, -7]).round(decimals=-1).tolist()
        [20, 20, -10]
        """
        if not decimals:
            return self._whole(Ops.RINT)
        result: Self = rounded(self, decimals)
        return result

    @rounded_once
    def __round__(self, digits: int = 0) -> Self:
        return self.round(digits)

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

    @rounded_once
    def lerp(self, end: Any, weight: Any) -> Self:
        """From x toward `end` by `weight`.

        >>> Tensor([0.0]).lerp(Tensor([4.0]), 0.25).tolist()
        [1.0]
        """
        start, stop = (self._new(x) for x in self._meet(end, floating=True))
        moved: Self = (stop - start).__mul__(weight)
        return start + moved
