"""Functions of numbers: arithmetic, comparison, bits, functions and activations."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import DTypeError
from morok.onnx.table import Call, Nums, T, as_tensor, op
from morok.onnx.values import Host, Value
from morok.tensor.tensor import Tensor


def _aligned(a: Tensor, b: Tensor, axis: int | None, broadcast: int) -> Tensor:
    """The second operand of the old rule: its axes lie at `axis` of the first."""
    if not broadcast or axis is None or b.ndim == 0:
        return b
    axis = axis + a.ndim if axis < 0 else axis
    return b.reshape((*b.shape, *(1,) * (a.ndim - axis - b.ndim)))


def _binary(name: str, compute: Any) -> None:
    @op(name, since=7)
    def modern(a: T, b: T) -> T:
        return compute(a, b)  # type: ignore[no-any-return]

    @op(name, until=6)
    def old(a: T, b: T, *, axis: Any = None, broadcast: int = 0, consumed_inputs: Any = None) -> T:
        return compute(a, _aligned(a, b, axis, broadcast))  # type: ignore[no-any-return]


def truncated_div(a: Tensor, b: Tensor) -> Tensor:
    """Division as C does it: whole numbers toward zero."""
    return a / b if a.dtype.is_float else a.div(b, rounding_mode="trunc")


_binary("Add", Tensor.add)
_binary("Sub", Tensor.sub)
_binary("Mul", Tensor.mul)
_binary("Div", truncated_div)
_binary("And", Tensor.logical_and)
_binary("Or", Tensor.logical_or)
_binary("Xor", Tensor.logical_xor)
_binary("Less", Tensor.lt)
_binary("Greater", Tensor.gt)


@op("Equal", since=7)
def equal(a: Value, b: Value) -> Value:
    if isinstance(a, Host) and isinstance(b, Host) and (a.is_text or b.is_text):
        return Host(np.asarray(a.array == b.array, dtype=bool))
    return as_tensor(a).eq(as_tensor(b))


@op("Equal", until=6)
def equal_old(a: T, b: T, *, axis: Any = None, broadcast: int = 0) -> T:
    return a.eq(_aligned(a, b, axis, broadcast))


@op("LessOrEqual", since=12)
def less_or_equal(a: T, b: T) -> T:
    return a.le(b)


@op("GreaterOrEqual", since=12)
def greater_or_equal(a: T, b: T) -> T:
    return a.ge(b)


@op("Pow", since=7)
def power(a: T, b: T) -> T:
    return _power(a, b)


@op("Pow", until=6)
def power_old(a: T, b: T, *, axis: Any = None, broadcast: int = 0) -> T:
    return _power(a, _aligned(a, b, axis, broadcast))


def _power(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_int and b.dtype.is_float:
        wider = dt.float64 if a.dtype.bits > 24 else b.dtype
        return a.cast(wider).pow(b.cast(wider)).trunc().cast(a.dtype)
    if a.dtype.is_float:
        return a.pow(b.cast(a.dtype))
    return a.pow(b.cast(a.dtype))


@op("Mod", since=10)
def mod(call: Call, a: T, b: T, *, fmod: int = 0) -> T:
    """The remainder, with the sign of the divisor, or of the dividend with `fmod`."""
    if not fmod and a.dtype.is_float and call.version < 28:
        raise DTypeError("the remainder of floats takes fmod = 1")
    return a.fmod(b) if fmod else a.remainder(b)


@op("Max", "Min", since=1)
def extreme(call: Call, *xs: T, consumed_inputs: Any = None) -> T:
    join = Tensor.maximum if call.node.op == "Max" else Tensor.minimum
    return reduce(join, xs)


@op("Sum", since=1)
def total(*xs: T, consumed_inputs: Any = None) -> T:
    return reduce(Tensor.add, xs)


@op("Mean", since=1)
def mean(*xs: T, consumed_inputs: Any = None) -> T:
    return reduce(Tensor.add, xs) / len(xs)


@op("BitwiseAnd", since=18)
def bitwise_and(a: T, b: T) -> T:
    return a.bitwise_and(b)


@op("BitwiseOr", since=18)
def bitwise_or(a: T, b: T) -> T:
    return a.bitwise_or(b)


@op("BitwiseXor", since=18)
def bitwise_xor(a: T, b: T) -> T:
    return a.bitwise_xor(b)


@op("BitwiseNot", since=18)
def bitwise_not(x: T) -> T:
    return x.bitwise_not()


@op("BitShift", since=11)
def bit_shift(a: T, b: T, *, direction: str) -> T:
    return a.bitwise_left_shift(b) if direction == "LEFT" else a.bitwise_right_shift(b)


# --- functions of one number


def _neg(x: Tensor) -> Tensor:
    return -x


_UNARY: dict[str, tuple[int, Any]] = {
    "Abs": (1, Tensor.abs), "Neg": (1, _neg), "Sqrt": (1, Tensor.sqrt), "Exp": (1, Tensor.exp),
    "Log": (1, Tensor.log), "Reciprocal": (1, Tensor.reciprocal), "Floor": (1, Tensor.floor),
    "Ceil": (1, Tensor.ceil), "Sin": (7, Tensor.sin), "Cos": (7, Tensor.cos), "Tan": (7, Tensor.tan),
    "Asin": (7, Tensor.asin), "Acos": (7, Tensor.acos), "Atan": (7, Tensor.atan), "Sinh": (9, Tensor.sinh),
    "Cosh": (9, Tensor.cosh), "Asinh": (9, Tensor.asinh), "Acosh": (9, Tensor.acosh),
    "Atanh": (9, Tensor.atanh), "Erf": (9, Tensor.erf), "Sign": (9, Tensor.sign), "Round": (11, Tensor.round),
    "Not": (1, Tensor.logical_not), "IsNaN": (9, Tensor.isnan), "Relu": (1, Tensor.relu),
    "Sigmoid": (1, Tensor.sigmoid), "Tanh": (1, Tensor.tanh), "Softsign": (1, Tensor.softsign),
    "Softplus": (1, Tensor.softplus), "HardSwish": (14, Tensor.hardswish), "Mish": (18, Tensor.mish),
}  # fmt: skip


def _unary(name: str, since: int, compute: Any) -> None:
    @op(name, since=since)
    def function(x: T, *, consumed_inputs: Any = None) -> T:
        return compute(x)  # type: ignore[no-any-return]


for _name, (_since, _function) in _UNARY.items():
    _unary(_name, _since, _function)


@op("IsInf", since=10)
def is_inf(x: T, *, detect_negative: int = 1, detect_positive: int = 1) -> T:
    found = x.isinf()
    if not detect_negative:
        found = found & (x > 0)
    if not detect_positive:
        found = found & (x < 0)
    return found


@op("Clip", since=11)
def clip(x: T, low: T | None, high: T | None) -> T:
    if low is not None:
        x = x.maximum(low)
    return x if high is None else x.minimum(high)


@op("Clip", until=10)
def clip_old(
    x: T,
    *,
    min: float = -3.4028234663852886e38,
    max: float = 3.4028234663852886e38,
    consumed_inputs: Any = None,
) -> T:
    return x.clamp(min, max)


@op("Elu", since=1)
def elu(x: T, *, alpha: float = 1.0, consumed_inputs: Any = None) -> T:
    return (x > 0).where(x, (x.exp() - 1) * alpha) if x.dtype.bits < 32 else x.elu(alpha)


@op("Celu", since=12)
def celu(x: T, *, alpha: float = 1.0) -> T:
    return x.celu(alpha)


@op("Selu", since=6)
def selu(x: T, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> T:
    return (x > 0).where(x, x.expm1() * alpha) * gamma


@op("Selu", until=5)
def selu_old(x: T, *, alpha: float = 1.6732, gamma: float = 1.0507, consumed_inputs: Any = None) -> T:
    return (x > 0).where(x, x.expm1() * alpha) * gamma


@op("LeakyRelu", since=1)
def leaky_relu(x: T, *, alpha: float = 0.01, consumed_inputs: Any = None) -> T:
    return x.leaky_relu(alpha)


@op("ThresholdedRelu", since=10)
def thresholded_relu(x: T, *, alpha: float = 1.0) -> T:
    return (x > alpha).where(x, 0)


@op("HardSigmoid", since=1)
def hard_sigmoid(x: T, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None) -> T:
    return (x * alpha + beta).clamp(0, 1)


@op("PRelu", since=7)
def prelu(x: T, slope: T) -> T:
    return (x < 0).where(x * slope, x)


@op("PRelu", until=6)
def prelu_old(x: T, slope: T, *, consumed_inputs: Any = None) -> T:
    if slope.ndim == 1 and x.ndim > 1 and slope.shape[0] != 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    return (x < 0).where(x * slope, x)


@op("Gelu", since=20)
def gelu(x: T, *, approximate: str = "none") -> T:
    return x.gelu(approximate)


@op("Swish", since=24)
def swish(x: T, *, alpha: float = 1.0) -> T:
    return x.silu() if alpha == 1.0 else x * (x * alpha).sigmoid()


@op("Shrink", since=9)
def shrink(x: T, *, bias: float = 0.0, lambd: float = 0.5) -> T:
    return (x < -lambd).where(x + bias, (x > lambd).where(x - bias, 0)).cast(x.dtype)


@op("Where", since=9)
def where(condition: T, a: T, b: T) -> T:
    return condition.where(a, b)


@op("Identity", since=1)
def identity(x: Value) -> Value:
    return x


@op("Affine", since=1)
def affine(x: T, *, alpha: float = 1.0, beta: float = 0.0) -> T:
    return x * alpha + beta


@op("ParametricSoftplus", since=1)
def parametric_softplus(x: T, *, alpha: float, beta: float) -> T:
    return (x * beta).softplus() * alpha


@op("Scale", since=1)
def scale(x: T, *, scale: float = 1.0) -> T:
    return x * scale


@op("ScaledTanh", since=1)
def scaled_tanh(x: T, *, alpha: float, beta: float) -> T:
    return (x * beta).tanh() * alpha


# --- softmax and its kin


def _flat_rows(x: Tensor, axis: int) -> tuple[Tensor, tuple[Any, ...]]:
    """The old rule: axes before `axis` are rows, the rest is what is normalised."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.flatten(axis) if axis < x.ndim - 1 else x, x.shape


@op("Softmax", since=13)
def softmax(x: T, *, axis: int = -1) -> T:
    return x.softmax(axis)


@op("Softmax", until=12)
def softmax_old(x: T, *, axis: int = 1) -> T:
    rows, shape = _flat_rows(x, axis)
    return rows.softmax(-1).reshape(shape)


@op("LogSoftmax", since=13)
def log_softmax(x: T, *, axis: int = -1) -> T:
    return x.log_softmax(axis)


@op("LogSoftmax", until=12)
def log_softmax_old(x: T, *, axis: int = 1) -> T:
    rows, shape = _flat_rows(x, axis)
    return rows.log_softmax(-1).reshape(shape)


@op("Hardmax", since=13)
def hardmax(x: T, *, axis: int = -1) -> T:
    return _hardmax(x, axis)


@op("Hardmax", until=12)
def hardmax_old(x: T, *, axis: int = 1) -> T:
    rows, shape = _flat_rows(x, axis)
    return _hardmax(rows, -1).reshape(shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    first = x.argmax(axis, keepdim=True)
    sizes = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    places = Tensor.arange(sizes[axis]).reshape(sizes)
    return places.eq(first).cast(x.dtype)


@op("CumSum", since=11)
def cumsum(x: T, axis: Nums, *, exclusive: int = 0, reverse: int = 0) -> T:
    return _running(x, int(axis[0]), exclusive, reverse, Tensor.cumsum, 0)


@op("CumProd", since=26)
def cumprod(x: T, axis: Nums, *, exclusive: int = 0, reverse: int = 0) -> T:
    return _running(x, int(axis[0]), exclusive, reverse, Tensor.cumprod, 1)


def _running(x: Tensor, axis: int, exclusive: int, reverse: int, fold: Any, start: int) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    if reverse:
        x = x.flip(axis)
    made: Tensor = fold(x, axis, dtype=x.dtype)
    if exclusive:
        size = x.shape[axis]
        inside = tuple((0, n - 1) if i == axis else (0, n) for i, n in enumerate(x.shape))
        first = Tensor.full(tuple(1 if i == axis else n for i, n in enumerate(x.shape)), start, dtype=x.dtype)
        made = first.cat(made.shrink(inside), dim=axis) if size != 1 else first
    return made.flip(axis) if reverse else made


@op("Det", since=11)
def det(x: T) -> T:
    return x.det()


@op("SwiGLU", since=28)
def swiglu(gate: T, x: T, *, alpha: float = 1.0) -> T:
    return swish(gate, alpha=alpha) * x
