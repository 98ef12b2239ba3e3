"""com.microsoft: what exporters and quantisers write for ONNX Runtime. Norms, activations, fused products."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import UnsupportedModel
from morok.onnx.ops.common import axis_of, back, known, product, wide
from morok.onnx.ops.index import gather
from morok.onnx.ops.nn import average_pool, convolve, gemm, layer_norm
from morok.onnx.ops.quantized import (
    dequantize_linear,
    dynamic_quantize_linear,
    granular,
    integer_matmul,
    numbers,
    quantize_linear,
    quantized,
    requantized,
)
from morok.onnx.table import Call, T, as_tensor, op
from morok.onnx.values import Host, Value, elem_of
from morok.tensor.tensor import Tensor

MS = "com.microsoft"


@op("Gelu", domain=MS)
def gelu(x: T) -> T:
    return x.gelu()


@op("BiasGelu", domain=MS)
def bias_gelu(x: T, bias: T) -> T:
    return (x + bias).gelu()


@op("FastGelu", domain=MS)
def fast_gelu(x: T, bias: T | None) -> T:
    return (x if bias is None else x + bias).gelu("tanh")


@op("QuickGelu", domain=MS)
def quick_gelu(x: T, *, alpha: float = 1.702) -> T:
    return x * (x * alpha).sigmoid()


@op("BiasAdd", domain=MS)
def bias_add(x: T, bias: T, skip: T) -> T:
    return x + bias + skip


@op("BiasSplitGelu", domain=MS)
def bias_split_gelu(x: T, bias: T) -> T:
    left, right = (x + bias).chunk(2, -1)
    return left * right.gelu()


@op("SimplifiedLayerNormalization", domain=MS)
@op("SimplifiedLayerNormalization")
def simplified_layer_norm(
    call: Call, x: T, scale: T, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    axes = tuple(range(axis_of(axis, x.ndim), x.ndim))
    y = wide(x)
    inverse = (y.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    made = back(y * inverse, x.dtype) * scale
    return (made, inverse) if call.wants(1) else made


@op("LayerNormalization", domain=MS)
def layer_norm_ms(
    call: Call, x: T, scale: T, bias: T | None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    return layer_norm(call, x, scale, bias, axis=axis, epsilon=epsilon, stash_type=stash_type)


@op("SkipSimplifiedLayerNormalization", domain=MS)
def skip_simplified_layer_norm(x: T, skip: T, scale: T, bias: T | None, *, epsilon: float = 1e-5) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = wide(total)
    inverse = (y.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return back(y * inverse, x.dtype) * scale, None, inverse, total


@op("SkipLayerNormalization", domain=MS)
def skip_layer_norm(x: T, skip: T, scale: T, beta: T | None, bias: T | None, *, epsilon: float = 1e-5) -> Any:
    total = x + skip if bias is None else x + skip + bias
    made, mean, inverse = _normed(total, scale, beta, epsilon)
    return made, mean, inverse, total


def _normed(x: Tensor, scale: Tensor, beta: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    y = wide(x)
    mean = y.mean(-1, keepdim=True)
    inverse = ((y - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    made = back((y - mean) * inverse, x.dtype) * scale
    return made if beta is None else made + beta, mean, inverse


@op("EmbedLayerNormalization", domain=MS)
def embed_layer_norm(
    ids: T,
    segments: T | None,
    words: T,
    positions: T,
    kinds: T | None,
    gamma: T,
    beta: T,
    mask: T | None,
    places: T | None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Any:
    length = ids.shape[1]
    total = words.embedding(ids)
    at = places if places is not None else Tensor.arange(length).reshape((1, length))
    total = total + positions.embedding(at)
    if segments is not None and kinds is not None:
        total = total + kinds.embedding(segments)
    made, _, _ = _normed(total, gamma, beta, epsilon)
    counted = mask.sum(1).cast(dt.int32) if mask is not None else Tensor.zeros(ids.shape[0], dtype=dt.int32)
    return made, counted, total


@op("GroupNorm", domain=MS)
def group_norm(
    x: T,
    gamma: T,
    beta: T,
    *,
    activation: int = 0,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> T:
    y = wide(x.movedim(-1, 1) if channels_last else x)
    n, c = y.shape[:2]
    flat = y.reshape((n, groups, known(c, "channels") // groups * product(y.shape[2:])))
    mean = flat.mean(2, keepdim=True)
    flat = (flat - mean) * ((flat - mean).square().mean(2, keepdim=True) + epsilon).rsqrt()
    ones = (1,) * (y.ndim - 2)
    made = flat.reshape(y.shape) * gamma.reshape((1, -1, *ones)) + beta.reshape((1, -1, *ones))
    made = back(made.silu() if activation else made, x.dtype)
    return made.movedim(1, -1) if channels_last else made


# --- fused products


@op("FusedMatMul", domain=MS)
@op("TransposeMatMul", domain=MS)
def fused_matmul(
    a: T,
    b: T,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> T:
    if transBatchA or transBatchB:
        raise UnsupportedModel("a FusedMatMul that moves batches is not read")
    made = (a.transpose(-1, -2) if transA else a) @ (b.transpose(-1, -2) if transB else b)
    return made if alpha == 1.0 else made * alpha


def activated(x: Tensor, name: str, alpha: Any = None, beta: Any = None, params: Any = None) -> Tensor:
    """The activation that is fused into another operator."""
    first = params[0] if params else alpha
    second = params[1] if params and len(params) > 1 else beta
    if name in ("", None):
        return x
    if name == "LeakyRelu":
        return x.leaky_relu(0.01 if first is None else first)
    if name == "Clip":
        return x.clamp(first, second)
    if name == "HardSigmoid":
        return (x * (0.2 if first is None else first) + (0.5 if second is None else second)).clamp(0, 1)
    simple: dict[str, Any] = {
        "Relu": Tensor.relu, "Sigmoid": Tensor.sigmoid, "Tanh": Tensor.tanh, "HardSwish": Tensor.hardswish,
    }  # fmt: skip
    if name not in simple:
        raise UnsupportedModel(f"activation {name!r} is not known")
    return simple[name](x)  # type: ignore[no-any-return]


@op("FusedGemm", domain=MS)
def fused_gemm(
    a: T,
    b: T,
    c: T | None,
    *,
    activation: str = "",
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activation_gamma: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> T:
    made = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(made, activation, activation_alpha, activation_beta)


@op("FusedConv", domain=MS)
def fused_conv(
    x: T,
    w: Value,
    b: T | None,
    z: T | None,
    *,
    activation: str = "",
    activation_params: Any = None,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    made = convolve(x, w, b, auto_pad, dilations, group, pads, strides)
    return activated(made if z is None else made + z, activation, params=activation_params)


# --- quantised


@op("DynamicQuantizeMatMul", domain=MS)
def dynamic_quantize_matmul(a: T, b: Value, scale: T, zero: Value | None, bias: T | None) -> T:
    """The left side is quantised to uint8 on the way; sums are exact in 32 bits."""
    whole, step, offset = dynamic_quantize_linear(a)
    made: Tensor = integer_matmul(whole, offset, b, zero).cast(dt.float32) * (scale * step)
    return made if bias is None else made + bias


@op("MatMulIntegerToFloat", domain=MS)
def matmul_integer_to_float(
    a: Value, b: Value, sa: T, sb: T, za: Value | None, zb: Value | None, bias: T | None
) -> T:
    made = integer_matmul(a, za, b, zb).cast(sa.dtype) * (sa * sb)
    return made if bias is None else made + bias


def _real(x: Value, scale: Tensor, zero: Value) -> Tensor:
    """The numbers that quantised ones stand for."""
    y = numbers(x).cast(dt.int32)
    if zero is not None:
        y = y - numbers(zero).cast(dt.int32).reshape(())
    return y.cast(dt.float32) * scale.reshape(())


@op("QLinearAdd", "QLinearMul", domain=MS)
def qlinear_arithmetic(
    call: Call, a: Value, sa: T, za: Value | None, b: Value, sb: T, zb: Value | None, sy: T, zy: Value | None
) -> Value:
    left, right = _real(a, sa, za), _real(b, sb, zb)
    made = left + right if call.node.op == "QLinearAdd" else left * right
    return _quantised_like(made, sy, zy, a)


def _quantised_like(x: Tensor, scale: Tensor, zero: Value, like: Value) -> Value:
    if zero is None:
        return quantized(x, scale.reshape(()), None, elem_of(like))
    return requantized(x, scale, zero)


@op("QLinearSigmoid", "QLinearLeakyRelu", domain=MS)
def qlinear_function(
    call: Call, x: Value, sx: T, zx: Value | None, sy: T, zy: Value | None, *, alpha: float = 0.01
) -> Value:
    y = _real(x, sx, zx)
    made = y.sigmoid() if call.node.op == "QLinearSigmoid" else y.leaky_relu(alpha)
    return _quantised_like(made, sy, zy, x)


@op("QLinearSoftmax", domain=MS)
def qlinear_softmax(
    x: Value, sx: T, zx: Value | None, sy: T, zy: Value, *, axis: int = -1, opset: int = 13
) -> Value:
    y = _real(x, sx, zx)
    if opset < 13:
        axis = axis_of(axis, y.ndim)
        return requantized(y.flatten(axis).softmax(-1).reshape(y.shape), sy, zy)
    return requantized(y.softmax(axis), sy, zy)


@op("QLinearGlobalAveragePool", domain=MS)
def qlinear_global_average_pool(
    x: Value, sx: T, zx: Value | None, sy: T, zy: Value, *, channels_last: int = 0
) -> Value:
    y = _real(x, sx, zx)
    axes = tuple(range(1, y.ndim - 1)) if channels_last else tuple(range(2, y.ndim))
    return requantized(y.mean(axes, keepdim=True), sy, zy)


@op("QLinearAveragePool", domain=MS)
def qlinear_average_pool(
    x: Value,
    sx: T,
    zx: Value | None,
    sy: T,
    zy: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Any,
    pads: Any = None,
    strides: Any = None,
) -> Value:
    y = _real(x, sx, zx)
    y = y.movedim(-1, 1) if channels_last else y
    made = average_pool(
        y,
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    return requantized(made.movedim(1, -1) if channels_last else made, sy, zy)


@op("QLinearConcat", domain=MS)
def qlinear_concat(sy: T, zy: Value, *xs: Value, axis: int) -> Value:
    parts = [_real(xs[i], as_tensor(xs[i + 1]), xs[i + 2]) for i in range(0, len(xs), 3)]
    return requantized(parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else parts[0], sy, zy)


def turned(x: Value) -> Value:
    """A matrix with rows for columns; a constant stays one."""
    if isinstance(x, Host):
        return Host(np.ascontiguousarray(x.array.T), x.elem, x.lasting)
    return as_tensor(x).T


@op("QGemm", domain=MS)
def qgemm(
    a: Value,
    sa: T,
    za: Value | None,
    b: Value,
    sb: T,
    zb: Value | None,
    c: T | None,
    sy: T | None,
    zy: Value | None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    sums = integer_matmul(turned(a) if transA else a, za, turned(b) if transB else b, zb)
    if c is not None:
        sums = sums + c
    columns = sb.reshape((1, -1)) if sb.ndim and sb.shape[0] != 1 else sb.reshape(())
    made = sums.cast(dt.float32) * (sa.reshape(()) * columns * alpha)
    return made if sy is None or zy is None else requantized(made, sy, zy)


@op("QuantizeLinear", domain=MS)
def quantize_linear_ms(x: T, scale: T, zero: Value | None, *, axis: int = 1, block_size: int = 0) -> Value:
    return quantize_linear(x, scale, zero, axis=axis, block_size=block_size)


@op("DequantizeLinear", domain=MS)
def dequantize_linear_ms(
    x: Value, scale: T, zero: Value | None, *, axis: int = 1, block_size: int = 0
) -> Value:
    return dequantize_linear(x, scale, zero, axis=axis, block_size=block_size)


# --- weights in blocks of few bits


def unpacked(codes: Tensor, bits: int) -> Tensor:
    """Numbers of few bits from bytes along the last axis, the lowest bits first."""
    each = 8 // bits
    mask = (1 << bits) - 1
    parts = [(codes >> (bits * k)) & mask for k in range(each)] if each > 1 else [codes]
    made = parts[0].stack(*parts[1:], dim=-1) if each > 1 else codes
    return made.reshape((*codes.shape[:-1], known(codes.shape[-1], "packed weights") * each))


@op("MatMulNBits", domain=MS)
def matmul_nbits(
    a: T,
    b: T,
    scales: T,
    zeros: Value | None,
    groups: T | None,
    bias: T | None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> T:
    """A product with weights of few bits, a scale for each block of a row."""
    if groups is not None or weight_prepacked:
        raise UnsupportedModel("weights in another order than that of their blocks are not read")
    blocks = -(-K // block_size)
    whole = unpacked(b.reshape((N, blocks, -1)), bits).cast(dt.float32)
    if zeros is None:
        zero: Any = float(1 << (bits - 1))
    else:
        held = numbers(zeros)
        if held.dtype.is_float:
            zero = held.reshape((N, blocks, 1)).cast(dt.float32)
        else:
            zero = unpacked(held.reshape((N, -1)), bits)[:, :blocks].reshape((N, blocks, 1)).cast(dt.float32)
    weights = (whole - zero) * scales.reshape((N, blocks, 1)).cast(dt.float32)
    weights = weights.reshape((N, blocks * block_size))[:, :K]
    made = back(wide(a) @ weights.T, a.dtype)
    return made if bias is None else made + bias


@op("GatherBlockQuantized", domain=MS)
def gather_block_quantized(
    x: Value,
    places: T,
    scales: T,
    zeros: Value | None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> T:
    codes = numbers(x)
    packed = codes.dtype is dt.uint8 and elem_of(x) == 2
    whole = unpacked(codes, bits) if packed and bits < 8 else codes
    axis = axis_of(quantize_axis, whole.ndim)
    y = whole.cast(dt.float32)
    if zeros is not None:
        held = numbers(zeros)
        held = unpacked(held, bits) if packed and bits < 8 else held
        y = y - granular(held.cast(dt.float32)[..., : scales.shape[axis]], y, axis, block_size)
    elif packed:
        y = y - float(1 << (bits - 1))
    made = back(y * granular(scales.cast(dt.float32), y, axis, block_size), scales.dtype)
    return gather(made, places, axis=gather_axis)
