"""Products, convolutions, pools and norms."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.device.registry import default_device
from morok.errors import ShapeError, UnsupportedModel
from morok.ir.infer import show_shape
from morok.onnx.ops.common import (
    axes_of,
    axis_of,
    back,
    kept,
    known,
    per_channel,
    product,
    wide,
)
from morok.onnx.panels import in_blocks, layer
from morok.onnx.table import Call, Ints, T, as_tensor, op
from morok.onnx.values import Host, Value
from morok.onnx.windows import adds, beyond, defaults, pad_spatial, pooled, window_pads
from morok.tensor.tensor import Tensor


@op("MatMul", since=1)
def matmul(call: Call, a: T, b: Value) -> T:
    x = stored(_layer_input(a) if call.is_constant(1) else a)
    made = layer(x, b, False)
    return back(x.matmul(stored(as_tensor(b))) if made is None else made, a.dtype)


def _layer_input(x: Tensor) -> Tensor:
    """What goes into a layer: a norm before it is computed once, not again for every panel of its weights.

    A softmax before a product of two results, as in attention, stays inside of that.
    """
    return kept(x) if default_device() == "CPU" else x


def stored(x: Tensor) -> Tensor:
    """An operand of a product, in memory if a size is symbolic.

    Nobody knows then how often its elements are read, so that it would be computed again for each reader.
    """
    return x if all(isinstance(n, int) for n in x.shape) else x.contiguous()


@op("Gemm", since=1)
def gemm(
    a: T,
    b: Value,
    c: T | None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> T:
    a = stored(_layer_input(a))
    a = a.T if transA else a
    product_ = layer(a, b, bool(transB))
    if product_ is None:
        w = stored(as_tensor(b))
        product_ = a @ (w.T if transB else w)
    whole = not a.dtype.is_float
    if alpha != 1.0:
        product_ = back(product_ * (int(alpha) if whole and alpha == int(alpha) else alpha), a.dtype)
    if c is None or beta == 0.0:
        return product_
    return product_ + (c if beta == 1.0 else back(c * (int(beta) if whole else beta), a.dtype))


@op("Einsum", since=12)
def einsum(*xs: T, equation: str) -> T:
    formula = equation.replace(" ", "")
    return back(xs[0].einsum(formula, *xs[1:]), xs[0].dtype)


# --- windows


@op("Conv", since=1)
def conv(
    x: T,
    w: Value,
    b: T | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    return convolve(x, w, b, auto_pad, dilations, group, pads, strides)


def convolve(
    x: Tensor, w: Value, b: Tensor | None, auto_pad: str, dilations: Any, group: int, pads: Any, strides: Any
) -> Tensor:
    """The convolution of (N, C, …) with weights (M, C / group, …)."""
    given, w = w, as_tensor(w)
    kernel = [known(n, "a kernel") for n in w.shape[2:]]
    strides, dilations = defaults(kernel, strides, dilations)
    around = window_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    if x.shape[1] != w.shape[1] * group:
        raise ShapeError(f"weights {show_shape(w.shape)} in {group} groups do not fit {show_shape(x.shape)}")
    padding: Any = 0
    if default_device() != "CPU" and all(isinstance(a, int) and a == b and a >= 0 for a, b in around):
        padding = tuple(a for a, _ in around)  # reads outside of the image are free there
    elif adds(around):
        x = pad_spatial(kept(x), around)
    if max(kernel, default=1) > 1:  # each element is read by many windows: it is computed once, before
        x = x.contiguous()
    if isinstance(given, Host) and given.lasting and padding == 0:
        reached = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        sizes = zip(x.shape[2:], reached, strides, strict=True)
        places = [(n - k) // s + 1 if isinstance(n, int) else 0 for n, k, s in sizes]
        w = in_blocks(given, group, x.shape[0], places)
    return x.conv2d(w, b, tuple(strides), padding, tuple(dilations), group)


@op("ConvTranspose", since=1)
def conv_transpose(
    x: T,
    w: T,
    b: T | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Any = None,
    output_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    kernel = [known(n, "a kernel") for n in w.shape[2:]]
    strides, dilations = defaults(kernel, strides, dilations)
    extra = list(output_padding) if output_padding else [0] * len(kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    around = []
    for i, size in enumerate(x.shape[2:]):
        if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            size = known(size, "an output shape")
            wanted = output_shape[-len(kernel) :][i] if output_shape else size * strides[i]
            total = strides[i] * (size - 1) + extra[i] + reach[i] - wanted
            half = total // 2
            around.append((half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half))
        else:
            n = len(kernel)
            around.append((0, 0) if not pads or auto_pad == "VALID" else (pads[i], pads[i + n]))
    full = x.conv_transpose(w, None, tuple(strides), 0, 0, group, tuple(dilations))
    full = pad_spatial(full, [(-a, e - z) for (a, z), e in zip(around, extra, strict=True)])
    return full if b is None else full + per_channel(b, x.ndim)


@op("AveragePool", since=1)
def average_pool(
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    kernel = list(kernel_shape)
    strides, dilations = defaults(kernel, strides, dilations)
    around = window_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    axes = tuple(range(-len(kernel), 0))
    windows = pooled(wide(x), kernel, strides, dilations, around, ceil_mode, 0)
    total = windows.sum(axes)
    if not ceil_mode and (count_include_pad or not adds(around)):
        return back(total / product(kernel), x.dtype)
    ones = Tensor.ones(1, 1, *x.shape[2:])
    if count_include_pad:  # the border counts; what a rounded-up size adds beyond it does not
        ones = Tensor.ones(1, 1, *(n + a + z for n, (a, z) in zip(x.shape[2:], around, strict=True)))
        counted = pooled(
            ones, kernel, strides, dilations, beyond(x, around, kernel, strides, dilations), 0, 0
        )
    else:
        counted = pooled(ones, kernel, strides, dilations, around, ceil_mode, 0)
    return back(total / counted.sum(axes), x.dtype)


@op("MaxPool", since=1)
def max_pool(
    call: Call,
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    pads: Any = None,
    storage_order: int = 0,
    strides: Any = None,
) -> Any:
    kernel = list(kernel_shape)
    strides, dilations = defaults(kernel, strides, dilations)
    around = window_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    axes = tuple(range(-len(kernel), 0))
    least = x.dtype.min if not x.dtype.is_float else float("-inf")
    windows = pooled(x, kernel, strides, dilations, around, ceil_mode, least)
    best = windows.max(axes)
    if not call.wants(1):
        return best
    flat = windows.flatten(-len(kernel)) if len(kernel) > 1 else windows
    sizes = [known(n, "indices of a pool") for n in x.shape[2:]]
    order = list(range(len(sizes)))[:: -1 if storage_order else 1]
    places = _places(sizes, order).reshape([1, 1, *sizes])
    named = pooled(places, kernel, strides, dilations, around, ceil_mode, -1)
    named = named.flatten(-len(kernel)) if len(kernel) > 1 else named
    first = flat.argmax(-1, keepdim=True)
    found = named.expand(flat.shape).gather(-1, first).squeeze(-1)
    rows = Tensor.arange(product(x.shape[:2])).reshape((*x.shape[:2], *(1,) * len(sizes)))
    return best, found + rows * product(sizes)


def _places(sizes: list[int], order: list[int]) -> Tensor:
    """The number of each place of a grid, counted along axes in an order, the last one fastest."""
    total = Tensor.zeros(*sizes, dtype=dt.int64)
    step = 1
    for axis in reversed(order):
        shape = [sizes[axis] if i == axis else 1 for i in range(len(sizes))]
        total = total + Tensor.arange(sizes[axis]).reshape(shape) * step
        step *= sizes[axis]
    return total


@op("LpPool", since=1)
def lp_pool(
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    p: float = 2,
    pads: Any = None,
    strides: Any = None,
) -> T:
    kernel = list(kernel_shape)
    strides, dilations = defaults(kernel, strides, dilations)
    around = window_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    windows = pooled(wide(x).abs() ** p, kernel, strides, dilations, around, ceil_mode, 0)
    return back(windows.sum(tuple(range(-len(kernel), 0))) ** (1.0 / p), x.dtype)


@op("GlobalAveragePool", since=1)
def global_average_pool(x: T) -> T:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@op("GlobalMaxPool", since=1)
def global_max_pool(x: T) -> T:
    return x.max(tuple(range(2, x.ndim)), keepdim=True)


@op("GlobalLpPool", since=1)
def global_lp_pool(x: T, *, p: float = 2) -> T:
    total = (wide(x).abs() ** p).sum(tuple(range(2, x.ndim)), keepdim=True)
    return back(total ** (1.0 / p), x.dtype)


@op("MaxUnpool", since=9)
def max_unpool(
    x: T, places: T, shape: Ints | None, *, kernel_shape: Any, pads: Any = None, strides: Any = None
) -> T:
    """Values back at the places that a pool has noted, zero elsewhere."""
    n = len(kernel_shape)
    (strides,) = defaults(kernel_shape, strides)
    around = pads or [0] * 2 * n
    sizes = [
        (known(m, "MaxUnpool") - 1) * s + k - around[i] - around[i + n]
        for i, (m, s, k) in enumerate(zip(x.shape[2:], strides, kernel_shape, strict=True))
    ]
    # Places were counted in the shape that the attributes say; a larger one takes it in at its front.
    rows = product(x.shape[:2])
    empty = Tensor.zeros(rows * product(sizes), dtype=x.dtype)
    full = empty.scatter(0, places.reshape(-1), x.reshape(-1)).reshape((*x.shape[:2], *sizes))
    if shape is None:
        return full
    return pad_spatial(full, [(0, known(m, "MaxUnpool") - k) for m, k in zip(shape[2:], sizes, strict=True)])


# --- norms


@op("BatchNormalization", since=14)
def batch_norm(
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    return _batch_norm(x, scale, bias, mean, var, epsilon, momentum, bool(training_mode))


@op("BatchNormalization", until=13)
def batch_norm_old(
    call: Call,
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: Any = None,
) -> Any:
    if not spatial:
        raise UnsupportedModel("statistics of each place (spatial = 0) are not read")
    training = (call.wants(1) and not is_test and call.version < 7) or call.wants(1)
    made = _batch_norm(x, scale, bias, mean, var, epsilon, momentum, training)
    return (*made, made[1], made[2]) if training else made


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    momentum: float,
    training: bool,
) -> Any:
    if not training:
        factor = scale / (var + eps).sqrt()
        shift = bias - mean * factor
        return back(x * per_channel(factor, x.ndim) + per_channel(shift, x.ndim), x.dtype)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    own_mean, own_var = x.mean(axes), x.var(axes, correction=0)
    centred = (x - per_channel(own_mean, x.ndim)) / per_channel((own_var + eps).sqrt(), x.ndim)
    y = centred * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
    new_mean = mean * momentum + own_mean * (1 - momentum)
    new_var = var * momentum + own_var * (1 - momentum)
    return back(y, x.dtype), back(new_mean, mean.dtype), back(new_var, var.dtype)


@op("InstanceNormalization", since=1)
def instance_norm(x: T, scale: T, bias: T, *, epsilon: float = 1e-5, consumed_inputs: Any = None) -> T:
    axes = tuple(range(2, x.ndim))
    return _normalised(x, axes, epsilon, per_channel(scale, x.ndim), per_channel(bias, x.ndim))


def _normalised(x: Tensor, axes: Any, eps: float, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    y = wide(x)
    mean = y.mean(axes, keepdim=True)
    y = (y - mean) / ((y - mean).square().mean(axes, keepdim=True) + eps).sqrt()
    if scale is not None:
        y = y * scale
    return back(y if bias is None else y + bias, x.dtype)


@op("LayerNormalization", since=17)
def layer_norm(
    call: Call, x: T, scale: T, bias: T | None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    axes = tuple(range(axis_of(axis, x.ndim), x.ndim))
    y = wide(x) if stash_type == 1 else x
    y = y.cast(dt.float32) if stash_type == 1 and y.dtype is dt.float64 else y
    mean = y.mean(axes, keepdim=True)
    inverse = ((y - mean).square().mean(axes, keepdim=True) + epsilon).rsqrt()
    made = back((y - mean) * inverse, x.dtype) * scale
    if bias is not None:
        made = made + bias
    return (made, mean, inverse) if call.wants(1) or call.wants(2) else made


@op("RMSNormalization", since=23)
def rms_norm(x: T, scale: T, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> T:
    axes = tuple(range(axis_of(axis, x.ndim), x.ndim))
    y = wide(x)
    return back(y * (y.square().mean(axes, keepdim=True) + epsilon).rsqrt(), x.dtype) * scale


@op("GroupNormalization", since=21)
def group_norm(x: T, scale: T, bias: T, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1) -> T:
    y = _grouped(x, num_groups, epsilon)
    return back(y * per_channel(scale, x.ndim) + per_channel(bias, x.ndim), x.dtype)


@op("GroupNormalization", since=18, until=20)
def group_norm_18(x: T, scale: T, bias: T, *, epsilon: float = 1e-5, num_groups: int) -> T:
    each = known(x.shape[1], "channels") // num_groups
    scale, bias = (t.reshape(-1, 1).expand(num_groups, each).reshape(-1) for t in (scale, bias))
    y = _grouped(x, num_groups, epsilon)
    return back(y * per_channel(scale, x.ndim) + per_channel(bias, x.ndim), x.dtype)


def _grouped(x: Tensor, groups: int, eps: float) -> Tensor:
    n, c = x.shape[:2]
    inside = (n, groups, known(c, "channels") // groups * product(x.shape[2:]))
    return _normalised(wide(x).reshape(inside), (2,), eps, None, None).reshape(x.shape)


@op("LpNormalization", since=1)
def lp_norm(x: T, *, axis: int = -1, p: int = 2) -> T:
    y = wide(x)
    length = y.abs().sum(axis, keepdim=True) if p == 1 else y.square().sum(axis, keepdim=True).sqrt()
    return back(length.eq(0).where(0.0, y / length), x.dtype)


@op("MeanVarianceNormalization", since=9)
def mean_variance_norm(x: T, *, axes: Any = (0, 2, 3)) -> T:
    places = axes_of(axes, x.ndim)
    y = wide(x)
    mean = y.mean(places, keepdim=True)
    deviation = ((y * y).mean(places, keepdim=True) - mean * mean).sqrt()
    return back((y - mean) / (deviation + 1e-9), x.dtype)


@op("LRN", since=1)
def lrn(x: T, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> T:
    y = wide(x)
    before, after = (size - 1) // 2, size // 2
    around = ((0, 0), (before, after)) + ((0, 0),) * (x.ndim - 2)
    squares = y.square().pad(around).unfold(1, size, 1).sum(-1)
    return back(y / (squares * (alpha / size) + bias) ** beta, x.dtype)
