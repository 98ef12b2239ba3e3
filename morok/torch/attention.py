"""The gradient of attention without the sums that torch keeps for it.

torch's own operators get the logarithms of all rows' sums from the forward pass. Where scores are computed
again in registers (on GPUs) these are cheaper found again than kept: asked for them, the forward pass is no
longer one kernel. So there the gradient is an operator of morok's that does not take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

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
