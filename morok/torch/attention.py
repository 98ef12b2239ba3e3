"""Attention as operators of morok's own, where scores stay in registers (on GPUs).

The gradient does without the sums that torch keeps for it: its own operators get the logarithms of all rows'
sums from the forward pass. Where scores are computed again these are cheaper found again than kept: asked for
them, the forward pass is no longer one kernel.

The forward pass is an operator of ours where there is a mask. torch chooses among kernels before we see the
graph, and where none of its own takes a mask it writes all scores to memory in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from morok.machine.devices import machine_of
from morok.torch.types import device_of


@torch.library.custom_op("morok::attention_backward", mutates_args=())  # type: ignore[untyped-decorator]
def attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As torch would compute it, for graphs whose types are not morok's; the last one, which the mask gets,
    is empty unless the mask is a `bias` that learns."""
    # gradients are below autograd here, so by hand
    heads, few = q.shape[-3], k.shape[-3]
    wide = [t.float() for t in (q, k, v, grad, out)]
    if few != heads:
        wide[1:3] = (t.repeat_interleave(heads // few, -3) for t in wide[1:3])
    queries, keys, values, g, made = wide
    scores = queries @ keys.mT * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = scores.softmax(-1).nan_to_num(0.0)  # rows that look at nothing
    slopes = weights * (g @ values.mT - (g * made).sum(-1, keepdim=True))
    dk, dv = (
        t.unflatten(-3, (few, heads // few)).sum(-3) for t in (slopes.mT @ queries * scale, weights.mT @ g)
    )
    found = [_like(d, t) for d, t in ((slopes @ keys * scale, q), (dk, k), (dv, v))]
    last = q.new_empty(0) if mask is None or not bias else slopes.sum_to_size(mask.shape).to(mask.dtype)
    return found[0], found[1], found[2], last


def _like(x: Any, other: Any) -> Any:
    return torch.empty_like(other).copy_(x)


@attention_backward.register_fake  # type: ignore[untyped-decorator]
def _(
    grad: Any, q: Any, k: Any, v: Any, out: Any, mask: Any, causal: Any, scale: Any, bias: bool
) -> tuple[Any, Any, Any, Any]:
    slopes = mask.new_empty(mask.shape) if bias else q.new_empty(0)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), slopes


_NARROW = (torch.float16, torch.bfloat16)


def _ours(
    grad: Any, q: Any, k: Any, v: Any, out: Any, mask: Any, causal: bool, scale: float | None,
    bias: bool = False,
) -> Any:  # fmt: skip
    """The operator above where scores are computed again; else torch's own stays as it is."""
    if q.dtype not in _NARROW or machine_of(device_of(q)).attention is None:
        return NotImplemented
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    found = torch.ops.morok.attention_backward(grad, q, k, v, out, mask, causal, scale, bias)
    return found if bias else found[:3]


def _for_cpu(
    grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dropout: float, causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    return NotImplemented if dropout else _ours(grad, q, k, v, out, attn_mask, causal, scale)


def _flash(grad: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any, scale: float | None = None) -> Any:
    dropout, causal = rest[5:7]
    return NotImplemented if dropout else _ours(grad, q, k, v, out, None, causal, scale)


def _cudnn(grad: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any, scale: float | None = None) -> Any:
    mask, dropout, causal = rest[3], rest[8], rest[9]
    return NotImplemented if dropout else _ours(grad, q, k, v, out, mask, causal, scale)


def _efficient(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, sums: Any, seed: Any, offset: Any, dropout: float,
    wanted: Any, causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout:
        return NotImplemented
    learns = mask is not None and wanted[3]
    found = _ours(grad, q, k, v, out, mask, causal, scale, learns)
    return found if found is NotImplemented or learns else (*found, None)


def attention_gradients() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """torch's operators of the gradient of attention, and how ours takes their place."""
    aten = torch.ops.aten
    yield aten._scaled_dot_product_flash_attention_for_cpu_backward.default, _for_cpu
    yield aten._scaled_dot_product_flash_attention_backward.default, _flash
    yield aten._scaled_dot_product_cudnn_attention_backward.default, _cudnn
    yield aten._scaled_dot_product_efficient_attention_backward.default, _efficient


@torch.library.custom_op("morok::attention", mutates_args=())  # type: ignore[untyped-decorator]
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    rows_first: bool,
) -> torch.Tensor:
    """As torch computes it, for graphs whose types are not morok's; with `rows_first`, heads are within rows
    in memory."""
    found = scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=k.shape[-3] != q.shape[-3])
    return _laid_out(q, v, rows_first).copy_(found)


def _laid_out(q: Any, v: Any, rows_first: bool) -> Any:
    batch, heads, rows = q.shape[:3]
    width = v.shape[3]
    if rows_first:
        return q.new_empty((batch, rows, heads, width)).transpose(1, 2)
    return q.new_empty((batch, heads, rows, width))


@attention.register_fake  # type: ignore[untyped-decorator]
def _(q: Any, k: Any, v: Any, mask: Any, scale: float, rows_first: bool) -> Any:
    return _laid_out(q, v, rows_first)


def _kept(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, v, mask, ctx.scale, _ = inputs
    ctx.save_for_backward(q, k, v, output, mask)


def _gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    q, k, v, out, mask = ctx.saved_tensors
    learns = ctx.needs_input_grad[3]
    found = torch.ops.morok.attention_backward(grad, q, k, v, out, mask, False, ctx.scale, learns)
    return *found[:3], found[3] if learns else None, None, None


attention.register_autograd(_gradients, setup_context=_kept)


def with_own_attention(gm: Any) -> None:
    """Attention with a mask, as a user's graph has it, becomes the operator above."""
    nodes = list(gm.graph.nodes)
    if any("sdpa_kernel" in getattr(node.target, "__name__", "") for node in nodes):
        return  # the user says which kernels may be used
    for node in nodes:
        if node.op == "call_function" and node.target is scaled_dot_product_attention:
            given = _given(*node.args, **node.kwargs)
            if given is not None:
                rows_first = _rows_first(node.meta.get("example_value"))
                node.target, node.kwargs = torch.ops.morok.attention.default, {}
                node.args = (*given, rows_first)
    gm.recompile()


def _given(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False,
    scale: Any = None, enable_gqa: Any = False,
) -> tuple[Any, ...] | None:  # fmt: skip
    """What the operator takes besides the layout; None where it does not stand for the call."""
    if not isinstance(attn_mask, torch.fx.Node) or dropout_p != 0.0 or is_causal is not False:
        return None
    values = [node.meta.get("example_value") for node in (q, k, v, attn_mask)]
    if any(not isinstance(value, torch.Tensor) for value in values):
        return None
    queries, keys, others, mask = values
    if {queries.dtype, keys.dtype, others.dtype} - set(_NARROW) or queries.dtype is not keys.dtype:
        return None
    if any(value.ndim != 4 for value in (queries, keys, others)) or mask.ndim > 4:
        return None
    if not _same(queries, keys, 0, 3) or not _same(queries, others, 0) or not _same(keys, others, 1, 2):
        return None  # something is repeated
    if mask.dtype not in (torch.bool, queries.dtype) or machine_of(device_of(queries)).attention is None:
        return None
    if not isinstance(scale, (int, float, type(None))):
        return None
    if scale is None:
        if not isinstance(queries.shape[-1], int):
            return None
        scale = 1.0 / math.sqrt(queries.shape[-1])
    return q, k, v, attn_mask, float(scale)


def _same(one: Any, other: Any, *axes: int) -> bool:
    """Whether sizes are the same, as far as they say so themselves: no question is asked of those to come."""
    return all(str(one.shape[axis]) == str(other.shape[axis]) for axis in axes)


def _rows_first(value: Any) -> bool:
    """Whether torch would have laid the result out so, with heads within rows."""
    return isinstance(value, torch.Tensor) and value.ndim == 4 and not value.is_contiguous()
