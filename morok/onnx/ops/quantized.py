"""Quantised numbers: exact sums in 32 bits, rounding to even, saturation to the type of the result."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from morok import dtype as dt
from morok.errors import ShapeError
from morok.onnx.ops.cast import decoded, encoded, to_float8
from morok.onnx.ops.common import axis_of, back, known, per_channel
from morok.onnx.ops.integers import (
    EXACT,
    Whole,
    added,
    largest,
    largest_sum,
    matmul,
    pieces,
    whole,
    word_convolve,
    word_matmul,
)
from morok.onnx.ops.nn import convolve
from morok.onnx.table import T, as_tensor, op
from morok.onnx.types import dtype_of_elem, int_range, is_coded, is_float
from morok.onnx.values import Coded, Host, Value, elem_of
from morok.onnx.windows import defaults, window_pads
from morok.tensor.tensor import Tensor


def numbers(x: Value) -> Tensor:
    """The numbers of a value of any type: codes are decoded."""
    if isinstance(x, Host):
        x = x.tensor()
    return decoded(x) if isinstance(x, Coded) else as_tensor(x)


def granular(scale: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale, or a zero point, in a shape that fits the numbers: one, or one for each slice or block."""
    if block:
        axis = axis_of(axis, x.ndim)
        wide = scale.unsqueeze(axis + 1)
        shape = [*scale.shape[: axis + 1], block, *scale.shape[axis + 1 :]]
        wide = wide.expand(shape).reshape([n * block if i == axis else n for i, n in enumerate(scale.shape)])
        size = known(x.shape[axis], "blocks of quantisation")
        return wide.shrink(tuple((0, size) if i == axis else (0, n) for i, n in enumerate(wide.shape)))
    if scale.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == 1):
        return scale.reshape(())
    if scale.ndim == 1 and x.ndim > 0:
        axis = axis_of(axis, x.ndim)
        if x.shape[axis] != scale.shape[0]:
            raise ShapeError(f"there are {scale.shape[0]} scales for an axis of size {x.shape[axis]}")
        return scale.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return scale


def quantized(x: Tensor, scale: Tensor, zero: Tensor | None, to: int, saturate: bool = True) -> Value:
    """Numbers over their scale, rounded to even, moved by the zero point and cut to the type."""
    steps = x / scale
    if is_float(to):
        if zero is not None:
            steps = steps + zero.cast(steps.dtype)
        return encoded(steps, to, saturate) if is_coded(to) else to_float8(steps, to, saturate)
    return codes(steps, zero, to)


_HALF = 12582912.0  # 1.5 · 2²³: a float32 from 2²³ to 2²⁴ is a whole number, and its lower bits count them
_HALF_BITS = 0x4B400000


def codes(steps: Tensor, zero: Tensor | None, to: int) -> Value:
    """Steps of a scale as integers: rounded to even, moved by the zero point and cut to the type.

    Limits are whole numbers, so that what is cut first is rounded to the same; and the sum of what is left
    with 1.5 · 2²³ is rounded to even by the addition itself. Two additions take less time than a rounding and
    a conversion, of which most machines do one at a time.
    """
    low, high = int_range(to)
    steps = steps.cast(dt.float32) if steps.dtype.bits < 32 else steps
    offset = None if zero is None else zero.cast(steps.dtype)
    cut = steps.clamp(low, high) if offset is None else steps.maximum(low - offset).minimum(high - offset)
    if cut.dtype is dt.float32 and high - low < 1 << 20:
        whole = (cut + _HALF).bitcast(dt.int32) - _HALF_BITS
    else:
        whole = cut.round().cast(dt.int32)
    if zero is not None:
        whole = whole + zero.cast(dt.int32)
    if is_coded(to):
        return encoded(whole, to, True)
    target = dtype_of_elem(to)
    assert target is not None
    return whole.cast(target)


@op("QuantizeLinear", since=10)
def quantize_linear(
    x: T,
    scale: T,
    zero: Value | None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    to = output_dtype or (elem_of(zero) if zero is not None else TensorProto.UINT8)
    kind = dtype_of_elem(precision) if precision else scale.dtype
    x = x.cast(kind) if x.dtype is not kind else x
    scale = scale.cast(kind) if scale.dtype is not kind else scale
    offset = None if zero is None else granular(numbers(zero), x, axis, block_size)
    return quantized(x, granular(scale, x, axis, block_size), offset, to, bool(saturate))


@op("DequantizeLinear", since=10)
def dequantize_linear(
    x: Value, scale: T, zero: Value | None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Value:
    y = numbers(x)
    target = dtype_of_elem(output_dtype) if output_dtype else scale.dtype
    assert target is not None
    if y.dtype.is_int and zero is not None:
        whole = y.cast(dt.int32)
        y = whole - granular(numbers(zero).cast(dt.int32), y, axis, block_size)
    elif zero is not None:
        y = y.cast(dt.float32) - granular(numbers(zero).cast(dt.float32), y, axis, block_size)
    wide = dt.float32 if target.bits < 32 else target
    made = y.cast(wide) * granular(scale, y, axis, block_size).cast(wide)
    return back(made, target)


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: T) -> Any:
    """uint8 with the scale that the smallest and the largest number, and 0, ask for."""
    low, high = x.min().minimum(0.0), x.max().maximum(0.0)
    scale = (high - low) / 255.0
    zero = (-low / scale).round().clamp(0, 255)
    zero = scale.eq(0).where(0.0, zero)
    safe = scale.eq(0).where(1.0, scale)
    return codes(x / safe, zero, TensorProto.UINT8), scale, zero.cast(dt.uint8)


def shifted(x: Tensor, zero: Tensor | None, last: bool) -> Tensor:
    """Integers less their zero point, in 32 bits; a vector of these belongs to rows, or to columns."""
    y = x.cast(dt.int32)
    return y if zero is None else y - _beside(zero.cast(dt.int32), last)


def _beside(zero: Any, last: bool) -> Any:
    """Zero points beside a matrix: one, one for each column (the last axis), or one for each row."""
    if zero.ndim == 1 and zero.shape[0] != 1:
        return zero.reshape((1, -1)) if last else zero.reshape((-1, 1))
    return zero.reshape(()) if zero.ndim == 1 else zero


def integer_matmul(a: Value, za: Value, b: Value, zb: Value) -> Tensor:
    """The product of integers less their zero points, exactly, in 32 bits."""

    def rows(zero: Any) -> Any:
        return _beside(zero, False)

    def columns(zero: Any) -> Any:
        return _beside(zero, True)

    total = word_matmul(a, za, rows, b, zb, columns)
    if total is not None:
        return total
    left, right = whole(a, za, rows), whole(b, zb, columns)
    found = matmul(left, right) if left is not None and right is not None else None
    if found is not None:
        return found
    zeros = [None if z is None else numbers(z) for z in (za, zb)]
    return shifted(numbers(a), zeros[0], False).matmul(shifted(numbers(b), zeros[1], True)).cast(dt.int32)


@op("MatMulInteger", since=10)
def matmul_integer(a: Value, b: Value, za: Value | None, zb: Value | None) -> T:
    return integer_matmul(a, za, b, zb)


@op("ConvInteger", since=10)
def conv_integer(
    x: Value,
    w: Value,
    zx: Value | None,
    zw: Value | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    return integer_convolution(x, zx, w, zw, auto_pad, dilations, group, pads, strides)


def integer_convolution(*given: Any) -> Tensor:
    """The convolution of integers less their zero points, exactly, in 32 bits."""
    return convolution_sums(*given)[0].cast(dt.int32)


def convolution_sums(
    x: Value,
    zx: Value,
    w: Value,
    zw: Value,
    auto_pad: str,
    dilations: Any,
    group: int,
    pads: Any,
    strides: Any,
) -> tuple[Tensor, int | None]:
    """The convolution of integers less their zero points, exactly: in 32 bits, or in float32 with a bound of
    all sums, which is less than what float32 counts."""

    def run(left: Tensor, right: Tensor) -> Tensor:
        return convolve(left, right, None, auto_pad, dilations, group, pads, strides)

    def channels(zero: Any) -> Any:
        vector = zero.ndim == 1 and zero.shape[0] != 1
        return zero.reshape((-1,) + (1,) * (ndim - 1)) if vector else zero.reshape(())

    ndim = len(w.shape)  # type: ignore[union-attr]
    kernel = [known(n, "a kernel") for n in w.shape[2:]]  # type: ignore[union-attr]
    step, spread = defaults(kernel, strides, dilations)
    around = window_pads(x.shape[2:], kernel, step, spread, pads, auto_pad)  # type: ignore[union-attr]
    total = word_convolve(x, zx, w, zw, channels, around, step, spread, group)
    if total is not None:
        return total, None
    left, right = whole(x, zx, lambda z: z.reshape(())), whole(w, zw, channels)
    if left is not None and right is not None:
        count, each, axes = known(right.numbers.shape[1], "channels"), _of_channels(right), range(1, ndim)
        found = pieces(count, left, each, tuple(axes))
        if len(found) == 1:
            return run(left.numbers, right.numbers), largest_sum(count, left, each, tuple(axes))
        if group == 1:
            parts = [run(left.numbers[:, i:j], right.numbers[:, i:j]) for i, j in found]
            return added(parts), None
    y = numbers(x).cast(dt.int32)
    y = y if zx is None else y - numbers(zx).cast(dt.int32).reshape(())
    k = numbers(w).cast(dt.int32)
    return run(y, k if zw is None else k - channels(numbers(zw).cast(dt.int32))).cast(dt.int32), None


def _of_channels(right: Whole) -> Whole:
    """Weights with a bound for all terms of an input channel."""
    window = 1
    for n in right.numbers.shape[2:]:
        window *= known(n, "a kernel")
    return Whole(right.numbers, right.bound * window, right.array)


@op("QLinearConv", since=10)
def qlinear_conv(
    x: Value,
    sx: T,
    zx: Value,
    w: Value,
    sw: T,
    zw: Value,
    sy: T,
    zy: Value,
    b: Value | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Value:
    sums, bound = convolution_sums(x, zx, w, zw, auto_pad, dilations, group, pads, strides)
    if b is not None:
        known_ = bound is not None and isinstance(b, Host) and bound + largest(b.array) < EXACT
        kind = dt.float32 if known_ else dt.int32  # integers also as floats
        sums = sums.cast(kind) + per_channel(as_tensor(b).cast(kind), sums.ndim)
    factor = sw.reshape(()) if sw.ndim == 0 or sw.shape[0] == 1 else per_channel(sw, sums.ndim)
    steps = sums.cast(dt.float32) * (factor * sx.reshape(()) / sy.reshape(()))
    return codes(steps, numbers(zy).reshape(()), elem_of(zy))


def _line(s: Tensor, last: bool) -> Tensor:
    if s.ndim == 1 and s.shape[0] != 1:
        return s.reshape((1, -1)) if last else s.reshape((-1, 1))
    return s.reshape(()) if s.ndim <= 1 else s


@op("QLinearMatMul", since=10)
def qlinear_matmul(a: Value, sa: T, za: Value, b: Value, sb: T, zb: Value, sy: T, zy: Value) -> Value:
    sums = integer_matmul(a, za, b, zb).cast(dt.float32)
    factor = _line(sa, False).cast(dt.float32) * _line(sb, True).cast(dt.float32)
    steps = sums * (factor / _line(sy, False).cast(dt.float32))
    return codes(steps, _line(numbers(zy), False), elem_of(zy))


def requantized(x: Tensor, scale: Tensor, zero: Value) -> Value:
    """Numbers in the scale and zero point of a result."""
    return quantized(x, scale.reshape(()), numbers(zero).reshape(()), elem_of(zero))
