"""Softmax and norms."""

from __future__ import annotations

import math
from typing import Any

from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op
from morok.torch.types import from_torch, wide


@op("_softmax.default", "_safe_softmax.default")
def softmax(x: T, dim: int, half_to_float: Any = False, *, dtype: Any = None, call: Call) -> T:
    if not x.ndim:
        return x.cast(call.wide) * 0 + 1
    kind = call.wide
    made = x.cast(kind).softmax(dim)
    if "_safe" in str(call.node.target):  # a row of nothing but -inf is 0
        made = x.max(dim, True).eq(-math.inf).where(0.0, made)
    return made


@op("_log_softmax.default")
def log_softmax(x: T, dim: int, half_to_float: bool = False, *, call: Call) -> T:
    return x.cast(call.wide).log_softmax(dim) if x.ndim else x * 0


@op("_softmax_backward_data.default")
def softmax_backward(grad: T, output: T, dim: int, input_dtype: Any, call: Call) -> T:
    if not grad.ndim:
        return grad * 0
    kind = call.wide
    g, y = grad.cast(kind), output.cast(kind)
    product = g * y
    return product - y * product.sum(dim, True)


@op("_log_softmax_backward_data.default")
def log_softmax_backward(grad: T, output: T, dim: int, input_dtype: Any, call: Call) -> T:
    if not grad.ndim:
        return grad * 0
    kind = call.wide
    g, y = grad.cast(kind), output.cast(kind)
    return g - y.exp() * g.sum(dim, True)


def _wide(x: T, val: Any) -> T:
    return x.cast(from_torch(wide(val.dtype)))


@op("native_layer_norm.default")
def layer_norm(x: T, shape: Any, weight: T | None, bias: T | None, eps: float, call: Call) -> Any:
    values = _wide(x, call.arg(0))
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    if not x.numel():
        raise NotImplementedError("a layer norm of nothing")
    mean = values.mean(axes, True)
    off = values - mean
    rstd = ((off * off).mean(axes, True) + eps).rsqrt()
    out = off * rstd
    out = out * weight.cast(out.dtype) if weight is not None else out
    out = out + bias.cast(out.dtype) if bias is not None else out
    return out, mean, rstd


@op("native_layer_norm_backward.default")
def layer_norm_backward(
    grad: T, x: T, shape: Any, mean: T, rstd: T, weight: T | None, bias: T | None, mask: Any, call: Call
) -> Any:
    val = call.arg(1)
    g, values, m, r = (_wide(t, val) for t in (grad, x, mean, rstd))
    first = x.ndim - len(shape)
    axes, outer = tuple(range(first, x.ndim)), tuple(range(first))
    normed = (values - m) * r
    gw = g * weight.cast(g.dtype) if weight is not None else g
    dx = None
    if mask[0]:
        inner = gw - gw.mean(axes, True) - normed * (gw * normed).mean(axes, True)
        dx = inner * r
    dw = (g * normed).sum(outer) if mask[1] and outer else g * normed if mask[1] else None
    db = g.sum(outer) if mask[2] and outer else g if mask[2] else None
    return dx, dw, db


@op("native_group_norm.default")
def group_norm(
    x: T, weight: T | None, bias: T | None, n: Any, c: Any, hxw: Any, groups: int, eps: float, call: Call
) -> Any:
    if not x.numel():
        mean = Tensor.zeros(n, groups) if not n else Tensor.full((n, groups), math.nan)
        return x, mean, mean
    values = _wide(x, call.arg(0)).reshape(n, groups, -1)
    mean = values.mean(2, True)
    off = values - mean
    rstd = ((off * off).mean(2, True) + eps).rsqrt()
    out = (off * rstd).reshape(*x.shape)
    shape = (1, c) + (1,) * (x.ndim - 2)
    out = out * weight.cast(out.dtype).reshape(*shape) if weight is not None else out
    out = out + bias.cast(out.dtype).reshape(*shape) if bias is not None else out
    return out, mean.reshape(n, groups), rstd.reshape(n, groups)


def _channels(x: T, values: T) -> T:
    return values.reshape(*(1, -1, *(1,) * (x.ndim - 2)))


@op("native_batch_norm.default", "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit_no_training.default", "_native_batch_norm_legit.no_stats",
    "_batch_norm_with_update_functional.default", "_batch_norm_no_update.default")  # fmt: skip
def batch_norm(x: T, weight: T | None, bias: T | None, *rest: Any, call: Call) -> Any:
    name = str(call.node.target)
    mean = var = None
    training = True
    if "no_training" in name or "no_update" in name:
        mean, var, momentum, eps = rest
        training = False
    elif "no_stats" in name:
        training, momentum, eps = rest
    elif "with_update" in name:
        mean, var, momentum, eps = rest
    else:
        mean, var, training, momentum, eps = rest
    values = _wide(x, call.arg(0))
    axes = (0, *range(2, x.ndim))
    if training:
        middle = values.mean(axes)
        off = values - _channels(x, middle)
        spread = (off * off).mean(axes)
        rstd = (spread + eps).rsqrt()
        saved = middle, rstd
    else:
        assert mean is not None and var is not None
        middle, spread = mean.cast(values.dtype), var.cast(values.dtype)
        off = values - _channels(x, middle)
        rstd = (spread + eps).rsqrt()
        # what is kept for the backward pass has no elements on the CPU, and a GPU's library keeps these
        size = tuple(map(call.known, call.val[1].shape))
        saved = (middle, rstd) if size == middle.shape else (Tensor.zeros(*size), Tensor.zeros(*size))
    scale = rstd if weight is None else rstd * weight.cast(rstd.dtype)
    out = off * _channels(x, scale)
    out = out + _channels(x, bias.cast(out.dtype)) if bias is not None else out
    if "functional" in name and training and mean is not None and var is not None:
        count = math.prod([x.shape[a] for a in axes])
        unbiased = spread * (count / (count - 1)) if count > 1 else spread * math.nan
        new = mean * (1 - momentum) + middle * momentum, var * (1 - momentum) + unbiased * momentum
        reserve = (Tensor.zeros(0),) if "with_update" in name else ()
        return out, *saved, *reserve, *new
    if "functional" in name:
        return out, *saved, mean, var
    return (out, *saved, Tensor.zeros(0)) if "no_update" in name else (out, *saved)


@op("native_batch_norm_backward.default", "batch_norm_backward.default")
def batch_norm_backward(
    grad: T, x: T, weight: T | None, mean: T | None, var: T | None, saved_mean: T | None,
    saved_rstd: T | None, training: bool, eps: float, mask: Any, reserve: Any = None, *, call: Call,
) -> Any:  # fmt: skip
    val = call.arg(1)
    g, values = _wide(grad, val), _wide(x, val)
    axes = (0, *range(2, x.ndim))
    count = math.prod([x.shape[a] for a in axes])
    if training:
        assert saved_mean is not None and saved_rstd is not None
        middle, rstd = saved_mean.cast(g.dtype), saved_rstd.cast(g.dtype)
    else:
        assert mean is not None and var is not None
        middle, rstd = mean.cast(g.dtype), (var.cast(g.dtype) + eps).rsqrt()
    normed = (values - _channels(x, middle)) * _channels(x, rstd)
    db = g.sum(axes)
    dw = (g * normed).sum(axes)
    dx = None
    if mask[0]:
        scale = rstd if weight is None else rstd * weight.cast(rstd.dtype)
        inner = g
        if training:
            inner = g - _channels(x, db / count) - normed * _channels(x, dw / count)
        dx = inner * _channels(x, scale)
    return dx, dw if mask[1] else None, db if mask[2] else None
