"""The reference's functions of elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.programs.api.formats import FORMATS, INTS, NUMPY, Array, float_of, is_float, meet
from tests.programs.api.reference import Core, Reject, number

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sinc(x: Array) -> Array:
    return np.sinc(x)


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _gelu(x: Array) -> Array:
    # erfc keeps the digits of the left tail
    tail = np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))
    return np.where(np.isneginf(x), np.nan, 0.5 * x * tail)


def _selu(x: Array) -> Array:
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))


# name: (function of doubles, ulps, how uncertain an operand may be)
SMOOTH: dict[str, tuple[Any, float, float]] = {
    "exp": (np.exp, 4, 1.0), "exp2": (np.exp2, 4, 1.0), "log": (np.log, 4, np.inf),
    "log2": (np.log2, 4, np.inf), "log10": (np.log10, 4, np.inf), "expm1": (np.expm1, 4, 1.0),
    "log1p": (np.log1p, 4, np.inf),
    "sin": (np.sin, 4, 0.3), "cos": (np.cos, 4, 0.3), "tan": (np.tan, 6, 0.1), "atan": (np.arctan, 4, np.inf),
    "asin": (np.arcsin, 4, np.inf), "acos": (np.arccos, 4, np.inf), "sinh": (np.sinh, 6, 1.0),
    "cosh": (np.cosh, 6, 1.0), "tanh": (np.tanh, 6, np.inf), "asinh": (np.arcsinh, 6, np.inf),
    "acosh": (np.arccosh, 6, np.inf), "atanh": (np.arctanh, 6, np.inf), "erf": (_erf, 6, np.inf),
    "sqrt": (np.sqrt, 1, np.inf), "rsqrt": (lambda x: 1 / np.sqrt(x), 3, np.inf),
    "reciprocal": (lambda x: 1 / x, 2, np.inf), "sigmoid": (_sigmoid, 6, 1.0),
    "softplus": (_softplus, 6, 1.0), "logsigmoid": (lambda x: -_softplus(-x), 6, 1.0),
    "silu": (lambda x: x * _sigmoid(x), 8, 1.0), "gelu": (_gelu, 16, 1.0),
    "softsign": (lambda x: x / (1 + np.abs(x)), 4, np.inf),
    "mish": (lambda x: x * np.tanh(_softplus(x)), 12, 1.0),
    "deg2rad": (np.deg2rad, 4, np.inf), "rad2deg": (np.rad2deg, 4, np.inf), "sinc": (_sinc, 8, 0.05),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, 4, np.inf),
    "hardswish": (lambda x: x * (np.clip(x + 3, 0, 6) / 6), 6, np.inf),
    "tanhshrink": (lambda x: x - np.tanh(x), 6, 1.0), "selu": (_selu, 8, 1.0),
}  # fmt: skip
# Their size says nothing about the error: terms cancel that are so many times x, or so large.
CANCELS = {"tanhshrink": (4, 1), "mish": (4, 0), "gelu": (4, 0), "hardswish": (4, 0.5), "sinc": (0, 4)}

STEPWISE = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "rint": np.rint,
    "fix": np.trunc,
}
TESTS = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "isposinf": np.isposinf,
    "isneginf": np.isneginf,
}


class Elementwise(Core):
    """Arithmetic, comparisons, bits and functions."""

    __slots__ = ()

    # --- arithmetic

    def _arithmetic(self, value: Any, function: Any, ulps: float = 1.0) -> Any:
        a, b, kind = self.both(value)
        if kind == "bool":
            return a.together(function, (b,), "bool")
        return a.lift(function, (b,), kind, ulps) if is_float(kind) else a.together(function, (b,), kind)

    def __add__(self, value: Any) -> Any:
        return self._arithmetic(value, np.add)

    def __mul__(self, value: Any) -> Any:
        return self._arithmetic(value, np.multiply)

    def __sub__(self, value: Any) -> Any:
        _a, _b, kind = self.both(value)
        if kind == "bool":
            raise Reject("booleans have no -")
        return self._arithmetic(value, np.subtract)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, value: Any) -> Any:
        first, second = self.before(value)
        return first - second

    def __truediv__(self, value: Any) -> Any:
        a, b, kind = self.both(value)
        kind = float_of(kind)
        a, b = a.cast(kind), b.cast(kind)
        return _unsure(a.lift(np.divide, (b,), kind, 2.0), _crosses_zero(b))

    def __rtruediv__(self, value: Any) -> Any:
        first, second = self.before(value)
        return first / second

    def __floordiv__(self, value: Any) -> Any:
        a, b, kind = self.both(value)
        if not is_float(kind):
            kind = "int8" if kind == "bool" else kind
            return a.cast(kind).together(np.floor_divide, (b.cast(kind),), kind)
        quotient = a.jump(np.floor_divide, (b,), kind)
        # A quotient too large for its type's integers is rounded like any other number.
        return _unsure(self.rounded(kind, quotient.x, quotient.e), _crosses_zero(b))

    def __rfloordiv__(self, value: Any) -> Any:
        first, second = self.before(value)
        return first // second

    def _rest(self, value: Any, function: Any, quotient: Any) -> Any:
        a, b, kind = self.both(value)
        if not is_float(kind):
            kind = "int8" if kind == "bool" else kind
            return a.cast(kind).together(function, (b.cast(kind),), kind)
        result = a.lift(function, (b,), kind, 1.0)
        whole = a.jump(lambda x, y: quotient(x / y), (b,), kind)
        inexact = np.broadcast_to((a.e > 0) | (b.e > 0), result.shape)
        return _unsure(result, _crosses_zero(b) | (inexact & (np.isinf(whole.e) | ~np.isfinite(whole.x))))

    def __mod__(self, value: Any) -> Any:
        return self._rest(value, np.mod, np.floor)

    def __rmod__(self, value: Any) -> Any:
        first, second = self.before(value)
        return first % second

    def fmod(self, value: Any) -> Any:
        return self._rest(value, np.fmod, np.trunc)

    def __pow__(self, value: Any) -> Any:
        a, b, kind = self.both(value)
        if not is_float(kind):
            kind = "int8" if kind == "bool" else kind
            if (b.x < 0).any():
                raise Reject("a negative power of an integer")
            return a.cast(kind).together(np.power, (b.cast(kind),), kind)
        # 1 to any power and any number to the power 0 are 1, NaN or not: there a rounding decides.
        one, zero = (a.e > 0) & (np.abs(a.x - 1) <= a.e), (b.e > 0) & (np.abs(b.x) <= b.e)
        jumps = (np.isnan(b.x) & one) | (np.isnan(a.x) & zero)
        return _unsure(a.lift(np.power, (b,), kind, 8.0, reach=1.0), _crosses_zero(a) | jumps)

    def __rpow__(self, value: Any) -> Any:
        first, second = self.before(value)
        return first**second

    def __neg__(self) -> Any:
        if self.type == "bool":
            raise Reject("booleans have no -")
        with np.errstate(all="ignore"):
            return self.like(np.negative(self.x), self.e)

    def abs(self) -> Any:
        with np.errstate(all="ignore"):
            return self.like(np.abs(self.x), self.e)

    def square(self) -> Any:
        return self * self

    # --- order and comparison

    def maximum(self, value: Any) -> Any:
        return self._pick(value, np.maximum)

    def minimum(self, value: Any) -> Any:
        return self._pick(value, np.minimum)

    def fmax(self, value: Any) -> Any:
        return self._pick(value, np.fmax)

    def fmin(self, value: Any) -> Any:
        return self._pick(value, np.fmin)

    def _pick(self, value: Any, function: Any) -> Any:
        a, b, kind = self.both(value)
        if not is_float(kind):
            return a.together(function, (b,), kind)
        x = function(a.x, b.x)
        return self.like(x, np.maximum(*np.broadcast_arrays(a.e, b.e)), kind)

    def clip(self, low: Any = None, high: Any = None) -> Any:
        result = self
        if self.type in INTS:
            info = np.iinfo(NUMPY[self.type])
            low = None if isinstance(low, int) and low < info.min else low
            high = None if isinstance(high, int) and high > info.max else high
        if low is not None:
            result = result.maximum(low)
        return result if high is None else result.minimum(high)

    def _compare(self, value: Any, function: Any) -> Any:
        b = value if isinstance(value, Core) else self._number(value)
        a = self
        with np.errstate(all="ignore"):
            x = function(a.x, b.x)
            if is_float(a.type) != is_float(b.type):
                kind = meet(a.type, b.type)
                a, b = a.cast(kind), b.cast(kind)
                x = function(a.x, b.x)
            e = a.e + b.e
            near = (np.abs(a.wide() - b.wide()) <= e) & (e > 0) | np.isinf(e)
        return self.like(x, np.where(near, np.inf, 0.0), "bool")

    def _number(self, value: Any) -> Any:
        """NumPy compares with any integer, whether the type holds it or not."""
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and not is_float(self.type)
            and self.type != "bool"
        ):
            info = np.iinfo(NUMPY[self.type])
            if not info.min <= value <= info.max:
                return (
                    self.like(np.asarray(float(value)), np.zeros(()), "float64")
                    if abs(value) < 1 << 53
                    else number(self, value, "int64")
                )
        return self.other(value)

    def __lt__(self, value: Any) -> Any:
        return self._compare(value, np.less)

    def __le__(self, value: Any) -> Any:
        return self._compare(value, np.less_equal)

    def __gt__(self, value: Any) -> Any:
        return self._compare(value, np.greater)

    def __ge__(self, value: Any) -> Any:
        return self._compare(value, np.greater_equal)

    def eq(self, value: Any) -> Any:
        return self._compare(value, np.equal)

    def ne(self, value: Any) -> Any:
        return self._compare(value, np.not_equal)

    def where(self, x: Any, y: Any) -> Any:
        if self.type != "bool":
            raise Reject("a condition is bool")
        if not isinstance(x, Core) and not isinstance(y, Core):
            kinds = {type(x), type(y)}
            kind = "float32" if float in kinds else "int64" if int in kinds else "bool"
            a, b = number(self, x, kind), number(self, y, kind)
        elif isinstance(x, Core):
            a, b, kind = x.both(y)
        else:
            b, a, kind = y.both(x)
        e = np.maximum(np.where(self.x, a.e, b.e), np.where(self.e > 0, np.inf, 0.0))
        return self.like(np.where(self.x, a.x, b.x), e, kind)

    def masked_fill(self, mask: Any, value: Any) -> Any:
        filled = mask.where(value, self)
        if filled.type != self.type:
            raise Reject("another type")
        return filled

    # --- truths and bits

    def _bits(self, value: Any, function: Any) -> Any:
        a, b, kind = self.both(value)
        if is_float(kind):
            raise Reject("floats have no bits")
        return a.together(function, (b,), kind)

    def __and__(self, value: Any) -> Any:
        return self._bits(value, np.bitwise_and)

    def __or__(self, value: Any) -> Any:
        return self._bits(value, np.bitwise_or)

    def __xor__(self, value: Any) -> Any:
        return self._bits(value, np.bitwise_xor)

    def __invert__(self) -> Any:
        if is_float(self.type):
            raise Reject("floats have no bits")
        return self.like(np.invert(self.x), self.e)

    def _shift(self, value: Any, function: Any) -> Any:
        a, b, kind = self.both(value)
        if is_float(kind) or (b.x < 0).any():
            raise Reject("no shift")
        kind = "int8" if kind == "bool" else kind
        return a.cast(kind).together(function, (b.cast(kind),), kind)

    def __lshift__(self, value: Any) -> Any:
        return self._shift(value, np.left_shift)

    def __rshift__(self, value: Any) -> Any:
        return self._shift(value, np.right_shift)

    def _truth(self) -> Any:
        return self.cast("bool")

    def logical_not(self) -> Any:
        return ~self._truth()

    def logical_and(self, value: Any) -> Any:
        return self._truth() & value._truth()

    def logical_or(self, value: Any) -> Any:
        return self._truth() | value._truth()

    def logical_xor(self, value: Any) -> Any:
        return self._truth() ^ value._truth()

    def bitcast(self, to: str) -> Any:
        source, target = NUMPY[self.type], NUMPY[to]
        if source.itemsize != target.itemsize or not self.exact or "bool" in (self.type, to):
            raise Reject("bits of something uncertain")
        if is_float(to):
            bits = self.x.astype(source).view(target).astype(np.float64)
            if not np.isfinite(bits).all():
                raise Reject("a NaN by its bits")
            return self.like(bits, np.zeros(self.shape), to)
        if np.isnan(self.wide()).any() or (self.x == 0).any():
            raise Reject("the bits of a NaN or a zero")
        return self.like(self.x.astype(source).view(target), np.zeros(self.shape), to)

    # --- functions of one number

    def stepwise(self, name: str) -> Any:
        return self.jump(STEPWISE[name]) if is_float(self.type) else self

    def smooth(self, name: str) -> Any:
        function, ulps, reach = SMOOTH[name]
        if name == "silu":  # x times a rounded sigmoid, which may have few digits
            wide = FORMATS["float64" if self.type == "float64" else "float32"]
            return _add(self.lift(function, (), None, ulps, reach), 2 * wide.step * np.abs(self.wide()))
        if name in CANCELS:
            by, least = CANCELS[name]
            extra = FORMATS[float_of(self.type)].eps * (by * np.abs(self.wide()) + least)
            result = self.lift(function, (), None, ulps, reach)
            with np.errstate(all="ignore"):
                return self.like(
                    result.x, np.where(np.isfinite(result.x), result.e + extra, result.e), result.type
                )
        result = self.lift(function, (), None, ulps, reach)
        return _unsure(result, _crosses_zero(self)) if name in ("rsqrt", "reciprocal") else result

    def tested(self, name: str) -> Any:
        if not is_float(self.type):
            return self.like(np.zeros(self.shape, bool) | (name == "isfinite"), self.e, "bool")
        return self.like(TESTS[name](self.x), np.where(np.isinf(self.e), np.inf, 0.0), "bool")

    def sign(self) -> Any:
        if self.type == "bool":
            return self
        return self.jump(np.sign)

    def signbit(self) -> Any:
        if not is_float(self.type):
            return self < 0 if self.type != "bool" else self.tested("isnan")
        result = self < 0
        return _unsure(result, (self.x == 0) | np.isnan(self.x))

    def relu(self) -> Any:
        return self.maximum(0)

    def relu6(self) -> Any:
        return self.clip(0, 6)

    def leaky_relu(self, slope: float) -> Any:
        return self.lift(lambda x: np.where(x > 0, x, slope * x), (), None, 2.0)

    def elu(self, alpha: float) -> Any:
        return self.lift(lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), (), None, 6.0)

    def hardtanh(self, low: float, high: float) -> Any:
        return self.cast(float_of(self.type)).clip(low, high)

    # --- functions of two numbers

    def _floats(self, value: Any) -> tuple[Any, Any, str]:
        a, b, kind = self.both(value)
        kind = float_of(kind)
        return a.cast(kind), b.cast(kind), kind

    def atan2(self, value: Any) -> Any:
        a, b, kind = self._floats(value)
        result = a.lift(np.arctan2, (b,), kind, 6.0)
        return _unsure(result, (a.x == 0) | (np.abs(a.x) <= a.e) | (np.isinf(a.x) & np.isinf(b.x)))

    def hypot(self, value: Any) -> Any:
        a, b, kind = self._floats(value)
        return a.lift(np.hypot, (b,), kind, 4.0)

    def logaddexp(self, value: Any) -> Any:
        a, b, kind = self._floats(value)
        result = a.lift(np.logaddexp, (b,), kind, 6.0)
        return _more(result, a, b)

    def copysign(self, value: Any) -> Any:
        a, b, kind = self._floats(value)
        return _unsure(a.lift(np.copysign, (b,), kind, 0.0), (np.abs(b.x) <= b.e) | np.isnan(b.x))

    def lerp(self, end: Any, weight: Any) -> Any:
        a, b, kind = self._floats(end)
        w = a.other(weight)
        kind = meet(kind, w.type) if isinstance(weight, Core) else kind
        result = a.cast(kind).lift(lambda x, y, t: x + t * (y - x), (b.cast(kind), w.cast(kind)), kind, 4.0)
        size = (np.abs(a.x) + np.abs(b.x)) * (1 + np.abs(w.x))
        return _add(result, 4 * FORMATS[kind].eps * size)

    def addcmul(self, x: Any, y: Any, value: Any = 1) -> Any:
        return self + x * y * value

    def nan_to_num(self) -> Any:
        if not is_float(self.type):
            return self
        top = FORMATS[self.type].largest
        return self.like(np.nan_to_num(self.x, nan=0.0, posinf=top, neginf=-top), self.e)

    def isclose(self, value: Any) -> Any:
        a, b, _kind = self._floats(value)
        x = np.isclose(a.x, b.x)
        if (np.abs(a.x - b.x) > 1e-6).any() and not (a.exact and b.exact):
            raise Reject("near the limit")
        return self.like(x, np.where(np.broadcast_to(a.e + b.e, x.shape) > 0, np.inf, 0.0), "bool")

    # --- where a program says that it wants the values

    def realize(self) -> Any:
        return self

    contiguous = realize


def _unsure(result: Any, where: Array) -> Any:
    return result.like(
        result.x, np.where(np.broadcast_to(where, result.shape), np.inf, result.e), result.type
    )


def _add(result: Any, extra: Array) -> Any:
    with np.errstate(all="ignore"):
        e = np.where(np.isfinite(result.x), result.e + extra, result.e)
    return result.like(result.x, np.where(np.isnan(e), np.inf, e), result.type)


def _more(result: Any, a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return _add(result, 4 * FORMATS[result.type].eps * np.maximum(np.abs(a.x), np.abs(b.x)))


def _crosses_zero(b: Any) -> Array:
    """Where an infinity's sign hangs on the sign of a zero, or on an error."""
    return np.abs(b.x) <= b.e


def _install() -> None:
    for names, way in ((SMOOTH, "smooth"), (STEPWISE, "stepwise"), (TESTS, "tested")):
        for name in names:
            setattr(Elementwise, name, lambda self, name=name, way=way: getattr(self, way)(name))


_install()
