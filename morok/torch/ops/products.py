"""Matrix products and attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from morok import dtype as dt
from morok.tensor.linalg.attention import attention_gradient
from morok.tensor.linalg.solve_gradients import summed_to
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op


@op("mm.default", "bmm.default", "mv.default", "dot.default", "matmul.default", "vdot.default")
def matmul(x: T, y: T) -> T:
    return x.matmul(y)


def _scaled(x: T, by: Any) -> T:
    return x if by == 1 else x * by


@op("addmm.default", "baddbmm.default", "addmv.default")
def addmm(x: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1, call: Call) -> T:
    kind = call.wide
    product = _scaled(a.matmul(b).cast(kind), alpha)
    if beta == 0:
        return product
    return _scaled(x.cast(kind), beta) + product


@op("addbmm.default")
def addbmm(x: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1, call: Call) -> T:
    kind = call.wide
    product = _scaled(a.matmul(b).cast(kind).sum(0), alpha)
    return product if beta == 0 else _scaled(x.cast(kind), beta) + product


@op("addr.default")
def addr(x: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1, call: Call) -> T:
    kind = call.wide
    product = _scaled(a.cast(kind).outer(b.cast(kind)), alpha)
    return product if beta == 0 else _scaled(x.cast(kind), beta) + product


@op("linear.default")
def linear(x: T, weight: T, bias: T | None = None) -> T:
    return x.linear(weight, bias)


# --- attention


def scores_of(q: T, k: T, mask: T | None, causal: bool, scale: float) -> T:
    """softmax's argument, in float32 or wider."""
    own = dt.float64 if q.dtype is dt.float64 else dt.float32
    scores = q.cast(own).matmul(k.cast(own).transpose(-1, -2)) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        scores = Tensor.ones(rows, columns, dtype=dt.bool_).tril().where(scores, -math.inf)
    if mask is not None:
        scores = mask.where(scores, -math.inf) if mask.dtype is dt.bool_ else scores + mask.cast(own)
    return scores


def repeated(x: T, heads: Any) -> T:
    """Keys or values of fewer heads than queries have."""
    own = x.shape[-3]
    if own == heads:
        return x
    batch = x.shape[:-3]
    length, width = x.shape[-2:]
    again = x.unsqueeze(-3).expand(*batch, own, heads // own, length, width)
    return again.reshape(*batch, heads, length, width)


@op("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_for_cpu(
    q: T,
    k: T,
    v: T,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: T | None = None,
    scale: float | None = None,
    call: Call,
) -> Any:
    if dropout_p:
        raise NotImplementedError("attention with dropout inside")
    return _attention(q, k, v, attn_mask, is_causal, scale, call)


def _attention(q: T, k: T, v: T, mask: T | None, causal: bool, scale: float | None, call: Call) -> Any:
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    k, v = repeated(k, q.shape[-3]), repeated(v, q.shape[-3])
    out = q.scaled_dot_product_attention(k, v, mask=mask, is_causal=causal, scale=scale)
    sums = None
    if isinstance(call.val, tuple) and call.wants(1):
        sums = scores_of(q, k, mask, causal, scale).logsumexp(-1)
    if mask is not None:  # a row that looks at nothing is 0 in torch's kernels, not a division of 0 by 0
        looks = _looks(mask, call.node.kwargs.get("attn_mask") or call.node.args[3])
        out = looks.where(out, 0.0)
        sums = None if sums is None else looks.squeeze(-1).where(sums, math.inf)
    return out, sums


def _looks(mask: T, node: Any) -> T:
    """Whether a row of scores has anything left under its mask; the last axis is 1."""
    mask = mask if mask.dtype is dt.bool_ else mask.ne(-math.inf)
    strides = [s if isinstance(s, int) else 1 for s in node.meta["val"].stride()]
    once = [(0, n if s else 1) for n, s in zip(mask.shape, strides, strict=True)]  # rows that are repeated
    return mask.shrink(tuple(once)).any(-1, True)


@op("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_for_cpu_backward(
    grad: T, q: T, k: T, v: T, out: T, logsumexp: T, dropout_p: float, is_causal: bool, *,
    attn_mask: T | None = None, scale: float | None = None, call: Call,
) -> Any:  # fmt: skip
    return attention_backward(grad, q, k, v, out, logsumexp, attn_mask, is_causal, scale)[:3]


@op("_scaled_dot_product_flash_attention.default")
def flash(
    q: T, k: T, v: T, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None, call: Call,
) -> Any:  # fmt: skip
    return _on_gpu(q, k, v, None, dropout_p, is_causal, scale, call)


@op("_scaled_dot_product_cudnn_attention.default", "_scaled_dot_product_efficient_attention.default")
def with_bias(
    q: T, k: T, v: T, attn_bias: T | None = None, compute_log_sumexp: bool = False, dropout_p: float = 0.0,
    is_causal: bool = False, *_: Any, scale: float | None = None, call: Call,
) -> Any:  # fmt: skip
    return _on_gpu(q, k, v, attn_bias, dropout_p, is_causal, scale, call)


def _on_gpu(
    q: T, k: T, v: T, mask: T | None, dropout: float, causal: bool, scale: float | None, call: Call
) -> Any:
    """Attention as torch has it on GPUs: sums in a form of its own, then what only its kernels want."""
    if dropout:
        raise NotImplementedError("attention with dropout inside")
    out, sums = _attention(q, k, v, mask, causal, scale, call)
    made = [out]
    for number, val in enumerate(call.val[1:], 1):
        if not isinstance(val, torch.Tensor):
            made.append(call.known(val))
            continue
        sizes = tuple(map(call.known, val.shape))
        if number == 1 and sums is not None and 0 not in sizes:
            short = sizes[2] - sums.shape[-1]  # rounded up, for some
            sums = sums.pad(((0, 0), (0, 0), (0, short)), value=math.inf) if short else sums
            made.append(sums.reshape(*sizes))
        else:
            made.append(Tensor.zeros(*sizes))
    return made


@op("morok.attention.default")
def masked_attention(q: T, k: T, v: T, mask: T, scale: float, rows_first: bool, call: Call) -> T:
    return _attention(q, k, v, mask, False, scale, call)[0]


@op("_scaled_dot_product_flash_attention_backward.default")
def flash_backward(grad: T, q: T, k: T, v: T, out: T, sums: T, *rest: Any, scale: Any = None) -> Any:
    return _on_gpu_backward(grad, q, k, v, out, sums, None, rest[4], rest[5], scale)[:3]


@op("_scaled_dot_product_cudnn_attention_backward.default")
def cudnn_backward(grad: T, q: T, k: T, v: T, out: T, sums: T, *rest: Any, scale: Any = None) -> Any:
    return _on_gpu_backward(grad, q, k, v, out, sums, rest[2], rest[7], rest[8], scale)[:3]


@op("_scaled_dot_product_efficient_attention_backward.default")
def efficient_backward(
    grad: T, q: T, k: T, v: T, bias: T | None, out: T, sums: T, seed: Any, offset: Any, dropout: float,
    mask: Any, causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    *found, slopes = _on_gpu_backward(grad, q, k, v, out, sums, bias, dropout, causal, scale)
    return *found, summed_to(slopes, bias.shape) if bias is not None and mask[3] else None


def _on_gpu_backward(
    grad: T, q: T, k: T, v: T, out: T, sums: T, mask: T | None, dropout: float, causal: bool, scale: Any
) -> tuple[T, T, T, T]:
    if dropout:
        raise NotImplementedError("attention with dropout inside")
    rows = q.shape[:-1]
    sums = sums.reshape(*sums.shape[:3]).narrow(2, 0, rows[-1])
    return attention_backward(grad, q, k, v, out, sums, mask, causal, scale)


def attention_backward(
    grad: T, q: T, k: T, v: T, out: T, sums: T, mask: T | None, causal: bool, scale: float | None
) -> tuple[T, T, T, T]:
    """The gradients of queries, keys, values, and what is added to the scores; the weights are made again
    from the sums that were kept."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    heads, few = q.shape[-3], k.shape[-3]
    keys, values = repeated(k, heads), repeated(v, heads)
    scores = scores_of(q, keys, mask, causal, scale)
    kind = scores.dtype
    weights = (scores - sums.cast(kind).unsqueeze(-1)).exp()
    g, o = grad.cast(kind), out.cast(kind)
    dv = weights.transpose(-1, -2).matmul(g)
    dw = g.matmul(values.cast(kind).transpose(-1, -2))
    slopes = weights * (dw - (g * o).sum(-1, True))
    ds = slopes * scale
    dq = ds.matmul(keys.cast(kind))
    dk = ds.transpose(-1, -2).matmul(q.cast(kind))
    if few != heads:
        dk, dv = (_grouped(t, few) for t in (dk, dv))
    return dq, dk, dv, slopes


@op("morok.attention_backward.default")
def attention_gradients(
    grad: T, q: T, k: T, v: T, out: T, mask: T | None, causal: bool, scale: float, bias: bool, call: Call
) -> tuple[T, T, T, T]:
    """As above without the sums: scores are computed again, in the operands' type."""
    heads, few = q.shape[-3], k.shape[-3]
    keys, values = repeated(k, heads), repeated(v, heads)
    looks = None if mask is None else _looks(mask, call.node.args[5])
    dq, dk, dv, *slopes = (
        attention_gradient(q, keys, values, mask, causal, scale, grad, out, source, looks)
        for source in ((1, 2, 3, 4) if bias else (1, 2, 3))
    )
    if few != heads:
        dk, dv = (_grouped(t, few) for t in (dk, dv))
    return dq, dk, dv, summed_to(slopes[0], mask.shape) if mask is not None and slopes else Tensor.zeros(0)


def _grouped(x: T, heads: Any) -> T:
    batch = x.shape[:-3]
    own, length, width = x.shape[-3:]
    return x.reshape(*batch, heads, own // heads, length, width).sum(-3)


@op("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped(x: T, weights: T, ends: T | None = None, bias: T | None = None, dtype: Any = None) -> T:
    """Rows times the matrix of their group; `ends` says where groups end, and rows after the last are 0."""
    if ends is None or x.ndim != 2 or weights.ndim not in (2, 3) or bias is not None:
        raise NotImplementedError("groups of columns")
    if weights.ndim == 2:  # a product for each group of what is summed up
        return _group_sums(x.transpose(0, 1), weights, ends)
    return _in_groups(x, ends).matmul(weights).sum(0)


@op("transformers.grouped_mm_fallback_backward.default")
def grouped_gradients(x: T, weights: T, ends: T, grad: T) -> tuple[T, T]:
    """Gradients of rows times the matrix of their group: of the rows, and of the matrices."""
    return grouped(grad, weights.transpose(1, 2), ends), _group_sums(x, grad, ends)


def _group_sums(a: T, b: T, ends: T) -> T:
    """Of each group the sum of the outer products of its rows."""
    return _in_groups(a, ends).transpose(1, 2).matmul(_in_groups(b, ends))


def _in_groups(x: T, ends: T) -> T:
    """The rows once for each group, 0 where they are of another one."""
    rows = Tensor.arange(x.shape[0]).reshape(1, -1)
    last = ends.cast(dt.int64).reshape(-1, 1)
    first = last.narrow(0, 0, last.shape[0] - 1).pad(((1, 0), (0, 0))) if last.shape[0] > 1 else last * 0
    inside = ((rows >= first) & (rows < last)).unsqueeze(-1)
    return inside.where(x.unsqueeze(0), 0.0)
