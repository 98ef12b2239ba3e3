"""Operators by name, and functions of two numbers and more."""

from __future__ import annotations

import math
from typing import Any, Self

from morok import dtype as dt
from morok.errors import DTypeError
from morok.ir.node import alu, make
from morok.ir.ops import Op, Ops
from morok.tensor.core import expand_to
from morok.tensor.elementwise.functions import Functions
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.remainders import named_remainder, remainder_toward_zero
from morok.tensor.record import pure

_LN2 = math.log(2.0)


@pure
class Named(Functions):
    """What Python has an operator for, under the name that NumPy and PyTorch have for it; and more."""

    def _beside(self, other: Any) -> Self:
        """The other operand as a tensor; a Python number takes this tensor's type."""
        return self._new(self._meet(other)[1])

    # --- comparison

    def lt(self, other: Any) -> Self:
        """`x < y`, element by element.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        return self.__lt__(other)

    def le(self, other: Any) -> Self:
        """`x <= y`, element by element.

        >>> Tensor([1, 3]).le(2).tolist()
        [True, False]
        """
        return self.__le__(other)

    def gt(self, other: Any) -> Self:
        """`x > y`, element by element.

        >>> Tensor([1, 3]).gt(2).tolist()
        [False, True]
        """
        return self.__gt__(other)

    def ge(self, other: Any) -> Self:
        """`x >= y`, element by element.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        return self.__ge__(other)

    @rounded_once
    def isclose(self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Self:
        """Where |x - y| <= atol + rtol · |y|; infinities are close to themselves only.

        >>> Tensor([1.0, 2.0]).isclose(Tensor([1.000001, 2.1])).tolist()
        [True, False]
        """
        x, y = (self._new(node) for node in self._meet(other))
        same = x.eq(y)
        if not x.dtype.is_float:
            wide = x.cast(dt.float64), y.cast(dt.float64)
            return same | ((wide[0] - wide[1]).abs() <= wide[1].abs() * rtol + atol)
        near = y.isfinite() & ((x - y).abs() <= y.abs() * rtol + atol)
        return same | near | (x.isnan() & y.isnan()) if equal_nan else same | near

    # --- truths and bits

    def _truths(self, op: Op, other: Any) -> Self:
        y = other if isinstance(other, Named) else self._beside(other)
        return self.cast(dt.bool_)._binary(op, y.cast(dt.bool_))

    def logical_and(self, other: Any) -> Self:
        """Where neither is zero.

        >>> Tensor([0, 2]).logical_and(Tensor([1, 1])).tolist()
        [False, True]
        """
        return self._truths(Ops.AND, other)

    def logical_or(self, other: Any) -> Self:
        """Where one is not zero.

        >>> Tensor([0, 2]).logical_or(Tensor([0, 0])).tolist()
        [False, True]
        """
        return self._truths(Ops.OR, other)

    def logical_xor(self, other: Any) -> Self:
        """Where exactly one is not zero.

        >>> Tensor([0, 2]).logical_xor(Tensor([1, 1])).tolist()
        [True, False]
        """
        return self._truths(Ops.XOR, other)

    def bitwise_and(self, other: Any) -> Self:
        """`x & y`.

        >>> Tensor([6, 3]).bitwise_and(2).tolist()
        [2, 2]
        """
        return self.__and__(other)

    def bitwise_or(self, other: Any) -> Self:
        """`x | y`.

        >>> Tensor([4, 3]).bitwise_or(2).tolist()
        [6, 3]
        """
        return self.__or__(other)

    def bitwise_xor(self, other: Any) -> Self:
        """`x ^ y`.

        >>> Tensor([6, 3]).bitwise_xor(2).tolist()
        [4, 1]
        """
        return self.__xor__(other)

    def bitwise_not(self) -> Self:
        """`~x`.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        return ~self

    def bitwise_left_shift(self, other: Any) -> Self:
        """`x << y`; 0 where y is not less than the number of bits.

        >>> Tensor([1, 3]).bitwise_left_shift(2).tolist()
        [4, 12]
        """
        return self.__lshift__(other)

    def bitwise_right_shift(self, other: Any) -> Self:
        """`x >> y`, rounded down.

        >>> Tensor([8, -3]).bitwise_right_shift(1).tolist()
        [4, -2]
        """
        return self.__rshift__(other)

    # --- remainders

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        quotient, rest = self._divmod(other, False)
        return self._new(quotient), self._new(rest)

    def fmod(self, other: Any) -> Self:
        """What is left of x after taking whole y away, with the sign of x (as C's).

        >>> Tensor([7.0, -7.0]).fmod(3.0).tolist()
        [1.0, -1.0]
        """
        x, y = (self._new(node) for node in self._meet(other))
        if x.dtype.is_float:
            return self._new(named_remainder(remainder_toward_zero(x.uop, y.uop), x.uop, y.uop))
        if x.dtype.is_bool:
            x, y = x.cast(dt.int8), y.cast(dt.int8)
        return self._new(alu(Ops.CMOD, x.uop, y.uop))

    def frac(self) -> Self:
        """What is left of x without its whole part, with the sign of x.

        >>> Tensor([1.5, -2.25]).frac().tolist()
        [0.5, -0.25]
        """
        return self - self.trunc() if self.dtype.is_float else self * 0

    # --- NaN and infinity

    def fmax(self, other: Any) -> Self:
        """The larger of two; a NaN gives way to the other.

        >>> Tensor([1.0, float("nan")]).fmax(Tensor([3.0, 2.0])).tolist()
        [3.0, 2.0]
        """
        return self._rather(Ops.MAX, other)

    def fmin(self, other: Any) -> Self:
        """The smaller of two; a NaN gives way to the other.

        >>> Tensor([1.0, float("nan")]).fmin(Tensor([3.0, 2.0])).tolist()
        [1.0, 2.0]
        """
        return self._rather(Ops.MIN, other)

    def _rather(self, op: Op, other: Any) -> Self:
        x, y = (self._new(node) for node in self._meet(other))
        best = x._binary(op, y)
        return x.isnan().where(y, y.isnan().where(x, best)) if x.dtype.is_float else best

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """NaN and infinities replaced by numbers, infinities by the largest ones unless said otherwise.

        >>> Tensor([float("nan"), 1.0]).nan_to_num(7.0).tolist()
        [7.0, 1.0]
        """
        if not self.dtype.is_float:
            return self
        top = float(self.dtype.largest)
        high, low = (top if posinf is None else posinf), (-top if neginf is None else neginf)
        limited = self.eq(math.inf).where(high, self.eq(-math.inf).where(low, self))
        return self.isnan().where(nan, limited)

    def isposinf(self) -> Self:
        """Where x is infinite and positive.

        >>> Tensor([1.0, float("inf")]).isposinf().tolist()
        [False, True]
        """
        return self.eq(math.inf) if self.dtype.is_float else self.ne(self)

    def isneginf(self) -> Self:
        """Where x is infinite and negative.

        >>> Tensor([1.0, float("-inf")]).isneginf().tolist()
        [False, True]
        """
        return self.eq(-math.inf) if self.dtype.is_float else self.ne(self)

    # --- of two numbers

    @rounded_once
    def hypot(self, other: Any) -> Self:
        """sqrt(x² + y²) without overflow.

        >>> Tensor([3.0]).hypot(4.0).tolist()
        [5.0]
        """
        x, y = (self._new(node).abs() for node in self._meet(other, floating=True))
        high, low = x._rather(Ops.MAX, y), x._rather(Ops.MIN, y)
        flat = high.eq(0.0) | high.eq(math.inf)
        ratio = low / flat.where(1.0, high)
        length = high * (ratio * ratio + 1.0).sqrt()
        broken = (x.isnan() | y.isnan()) & high.ne(math.inf)
        return broken.where(math.nan, flat.where(high, length))

    @rounded_once
    def logaddexp(self, other: Any) -> Self:
        """log(exp(x) + exp(y)) without overflow.

        >>> round(Tensor([1000.0]).logaddexp(1000.0).item(), 2)
        1000.69
        """
        x, y = (self._new(node) for node in self._meet(other, floating=True))
        value = x.eq(y).where(x + _LN2, x.maximum(y) + (-(x - y).abs()).exp().log1p())
        return self._of_two("logaddexp", value, x, y)

    def _of_two(self, name: str, value: Self, x: Self, y: Self) -> Self:
        """As `_named`, of a function of two numbers."""
        sizes = value.shape
        return self._new(
            make(Ops.NOOP, value.dtype, (value.uop, expand_to(x.uop, sizes), expand_to(y.uop, sizes)), name)
        )

    @rounded_once
    def logaddexp2(self, other: Any) -> Self:
        """log2(2^x + 2^y) without overflow.

        >>> Tensor([10.0]).logaddexp2(10.0).tolist()
        [11.0]
        """
        x, y = (self._new(node) for node in self._meet(other, floating=True))
        small = (-(x - y).abs()).exp2().log1p() * (1.0 / _LN2)
        value = x.eq(y).where(x + 1.0, x.maximum(y) + small)
        return self._of_two("logaddexp2", value, x, y)

    @rounded_once
    def xlogy(self, other: Any) -> Self:
        """x · log(y), 0 where x is 0.

        >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
        [0.0, 0.0]
        """
        x, y = (self._new(node) for node in self._meet(other, floating=True))
        nothing = x.eq(0.0) & ~y.isnan()
        return nothing.where(0.0, x * nothing.where(1.0, y).log())

    def heaviside(self, values: Any) -> Self:
        """0 below zero, 1 above, `values` at zero; NaN stays NaN.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(0.5).tolist()
        [0.0, 0.5, 1.0]
        """
        x, v = (self._new(node) for node in self._meet(values))
        step = x.eq(0).where(v, (x > 0).cast(x.dtype))
        return x.isnan().where(x, step) if x.dtype.is_float else step

    def ldexp(self, other: Any) -> Self:
        """x · 2^y.

        >>> Tensor([1.0, 3.0]).ldexp(Tensor([2, -1])).tolist()
        [4.0, 1.5]
        """
        y = self._new((other if isinstance(other, Named) else self._beside(other)).uop)._floating()
        x = self._floating()
        wide = dt.float32 if x.dtype.bits < 32 else x.dtype
        y = y.cast(wide)
        half = (y * 0.5).trunc()  # in two steps, because 2^y may overflow where the product does not
        return (x.cast(wide) * half.exp2() * (y - half).exp2()).cast(x.dtype)

    def float_power(self, other: Any) -> Self:
        """x to the power y in double precision.

        >>> Tensor([2, 3]).float_power(0.5).dtype.name
        'float64'
        """
        y = other.cast(dt.float64) if isinstance(other, Named) else other
        return self.cast(dt.float64).pow(y)

    @rounded_once
    def addcmul(self, first: Any, second: Any, value: float = 1) -> Self:
        """x + value · first · second.

        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), 0.5).tolist()
        [4.0]
        """
        product = self._new(first.uop).mul(second) * value
        return self + product

    @rounded_once
    def addcdiv(self, first: Any, second: Any, value: float = 1) -> Self:
        """x + value · first / second.

        >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0]), 0.5).tolist()
        [2.0]
        """
        quotient = self._new(first.uop).div(second) * value
        return self + quotient

    # --- of one number

    @rounded_once
    def deg2rad(self) -> Self:
        """Degrees as radians.

        >>> round(Tensor([180.0]).deg2rad().item(), 4)
        3.1416
        """
        return self._floating() * (math.pi / 180.0)

    @rounded_once
    def rad2deg(self) -> Self:
        """Radians as degrees.

        >>> round(Tensor([3.14159265]).rad2deg().item(), 2)
        180.0
        """
        return self._floating() * (180.0 / math.pi)

    @rounded_once
    def sinc(self) -> Self:
        """sin(πx) / (πx), 1 at zero.

        >>> Tensor([0.0]).sinc().tolist()
        [1.0]
        """
        x = self._floating()
        zero = x.eq(0.0)
        # sin(π(n + f)) = ±sin(πf), where f is exact and small: πx itself would be rounded, or overflow
        whole = x.round()
        half = whole * 0.5
        wave = ((x - whole) * math.pi).sin()
        wave = half.ne(half.round()).where(-wave, wave)
        return zero.where(1.0, wave / (zero.where(1.0, x) * math.pi))

    @rounded_once
    def logit(self, eps: float | None = None) -> Self:
        """log(x / (1 - x)), the opposite of sigmoid; with eps, x is kept between eps and 1 - eps.

        >>> Tensor([0.5]).logit().tolist()
        [0.0]
        """
        x = self._floating()
        x = x if eps is None else x.clamp(eps, 1.0 - eps)
        # where the quotient is near 1 its logarithm is taken of what it differs by, which is exact
        middle = (x > 0.25) & (x < 0.75)
        apart = (middle.where(x, 0.5) * 2.0 - 1.0) / middle.where(-x + 1.0, 0.5)
        return middle.where(apart.log1p(), (x / (-x + 1.0)).log())

    def positive(self) -> Self:
        """`+x`: the tensor itself.

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        if self.dtype.is_bool:
            raise DTypeError("booleans have no +; cast them first")
        return self

    subtract, multiply, divide, true_divide = Functions.sub, Functions.mul, Functions.div, Functions.div
    negative, absolute, power = Functions.neg, Functions.abs, Functions.pow
    not_equal, equal = Functions.ne, Functions.eq
    less, less_equal, greater, greater_equal = lt, le, gt, ge
    arcsin, arccos, arctan, arctan2 = Functions.asin, Functions.acos, Functions.atan, Functions.atan2
    arcsinh, arccosh, arctanh = Functions.asinh, Functions.acosh, Functions.atanh
    fix, rint, sgn, mod = Functions.trunc, Functions.round, Functions.sign, Functions.remainder
    invert, left_shift, right_shift = bitwise_not, bitwise_left_shift, bitwise_right_shift
    degrees, radians = rad2deg, deg2rad
