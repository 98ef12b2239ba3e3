"""Attention: the standard's operator where it needs no more than a fused kernel has, and com.microsoft's."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.errors import UnsupportedModel
from morok.onnx.ops.common import back, known, wide
from morok.onnx.ops.microsoft import MS
from morok.onnx.ops.quantized import integer_matmul
from morok.onnx.table import Call, NeedBody, T, op
from morok.onnx.values import Value
from morok.tensor.tensor import Tensor


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads · size) as (batch, heads, length, size)."""
    b, n, width = x.shape
    return x.reshape((b, n, heads, known(width, "the width of heads") // heads)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """(batch, heads, length, size) as (batch, length, heads · size)."""
    b, h, n, d = x.shape
    return x.transpose(1, 2).reshape((b, n, known(h, "heads") * known(d, "the size of a head")))


def repeated(x: Tensor, times: int) -> Tensor:
    """Each head so many times in a row."""
    if times == 1:
        return x
    b, h, n, d = x.shape
    return x.unsqueeze(2).expand((b, h, times, n, d)).reshape((b, h * times, n, d))


@op("Attention", since=23)
def attention(
    call: Call,
    q: T,
    k: T,
    v: T,
    mask: T | None,
    past_k: T | None,
    past_v: T | None,
    lengths: T | None,
    *,
    is_causal: int = 0,
    kv_num_heads: Any = None,
    left_window_size: int = -1,
    q_num_heads: Any = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: Any = None,
    softcap: float = 0.0,
    softmax_precision: Any = None,
) -> Any:
    """One fused kernel where there is no mask, window or cap; else the specification's body."""
    plain = mask is None and lengths is None and not softcap and softmax_precision is None
    windows = left_window_size != -1 or right_window_size != -1
    if not plain or windows or call.wants(3) or q.dtype.bits < 32:
        raise NeedBody
    flat = q.ndim == 3
    if flat:
        q, k, v = heads_of(q, q_num_heads), heads_of(k, kv_num_heads), heads_of(v, kv_num_heads)
    if past_k is not None and past_v is not None:
        k, v = past_k.cat(k, dim=2), past_v.cat(v, dim=2)
    if is_causal and q.shape[2] is not k.shape[2] and q.shape[2] != k.shape[2]:
        raise NeedBody
    times = known(q.shape[1], "heads") // known(k.shape[1], "heads")
    made = q.scaled_dot_product_attention(
        repeated(k, times), repeated(v, times), is_causal=bool(is_causal), scale=scale
    )
    return joined(made) if flat else made, k, v


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Pairs of the last axis turned; pairs are neighbours, or halves."""
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return (a * cos - b * sin).stack(a * sin + b * cos, dim=-1).reshape(x.shape)
    half = known(x.shape[-1], "the size of a head") // 2
    a, b = x[..., :half], x[..., half:]
    return (a * cos - b * sin).cat(a * sin + b * cos, dim=-1)


@op("RotaryEmbedding", domain=MS)
def rotary_embedding(
    x: T,
    places: T,
    cos: T,
    sin: T,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> T:
    size = 2 * known(cos.shape[1], "rotations")
    flat = x.ndim == 3
    if flat:
        count = num_heads or known(x.shape[2], "the width of heads") // size
        x = heads_of(x, count)
    length = x.shape[2]
    if places.ndim == 1:  # where the first position is
        places = Tensor.arange(length).reshape((1, length)) + places.reshape((1, 1))
    made = turn(x, places, cos, sin, bool(interleaved), rotary_embedding_dim)
    return joined(made) if flat else made


def turn(x: Tensor, places: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, part: int = 0) -> Tensor:
    """(batch, heads, length, size) turned by the angles of the positions."""
    c, s = cos.embedding(places).unsqueeze(1), sin.embedding(places).unsqueeze(1)
    if part and part != x.shape[-1]:
        return rotated(x[..., :part], c, s, interleaved).cat(x[..., part:], dim=-1)
    return rotated(x, c, s, interleaved)


def _weighted(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: bool
) -> Tensor:
    return back(q.scaled_dot_product_attention(k, v, mask=bias, is_causal=causal, scale=scale), q.dtype)


def _key_mask(mask: Tensor | None, b: Any, s: Any, total: Any, low: float) -> Tensor | None:
    """Masks of com.microsoft as something that is added to scores."""
    if mask is None:
        return None
    if mask.ndim == 1:  # the length of each row
        live = Tensor.arange(total).reshape((1, 1, 1, total)) < mask.reshape((-1, 1, 1, 1))
    elif mask.ndim == 2:
        live = mask.reshape((mask.shape[0], 1, 1, mask.shape[1])).ne(0)
    elif mask.ndim == 3:
        live = mask.unsqueeze(1).ne(0)
    else:
        live = mask.ne(0)
    return live.where(0.0, low)


@op("MultiHeadAttention", domain=MS)
def multi_head_attention(
    call: Call,
    q: T,
    k: T | None,
    v: T | None,
    bias: T | None,
    mask: T | None,
    relative: T | None,
    past_k: T | None,
    past_v: T | None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: Any = None,
    unidirectional: int = 0,
) -> Any:
    if q.ndim == 5:  # queries, keys and values packed: (batch, length, heads, 3, size)
        b, n, h, _, d = q.shape
        q, k, v = (q[:, :, :, i].reshape((b, n, h * d)) for i in range(3))
    if k is not None and k.ndim == 5:
        b, n, h, _, d = k.shape
        k, v = (k[:, :, :, i].reshape((b, n, h * d)) for i in range(2))
    if k is None or v is None:
        raise UnsupportedModel("MultiHeadAttention has neither keys nor a packed input")
    if bias is not None:
        w = known(q.shape[-1], "widths")
        q = q + bias[:w]
        k, v = (k + bias[w : 2 * w], v + bias[2 * w :]) if k.ndim == 3 else (k, v)
    q = heads_of(q, num_heads)
    k, v = (heads_of(t, num_heads) if t.ndim == 3 else t for t in (k, v))
    if past_k is not None and past_v is not None:
        k, v = past_k.cat(k, dim=2), past_v.cat(v, dim=2)
    added = _key_mask(mask, q.shape[0], q.shape[2], k.shape[2], mask_filter_value)
    if relative is not None:
        added = relative if added is None else added + relative
    made = _weighted(q, k, v, added, scale or None, bool(unidirectional))
    return joined(made), k, v


@op("Attention", domain=MS)
def attention_ms(
    call: Call,
    x: T,
    w: T,
    bias: T | None,
    mask: T | None,
    past: T | None,
    relative: T | None,
    past_length: T | None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Any = None,
    rotary_embedding_dim: int = 0,
    scale: Any = None,
    unidirectional: int = 0,
) -> Any:
    if do_rotary or past_present_share_buffer:
        raise UnsupportedModel("Attention with rotations or a shared cache is not read")
    return attended(
        x @ w if bias is None else x @ w + bias,
        mask,
        past,
        relative,
        num_heads,
        scale,
        unidirectional,
        mask_filter_value,
        qkv_hidden_sizes,
    )


def attended(
    packed: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    relative: Tensor | None,
    heads: int,
    scale: Any,
    causal: int,
    low: float,
    sizes: Any,
) -> Any:
    """com.microsoft's Attention of queries, keys and values that one product has made."""
    width = known(packed.shape[-1], "widths") // 3
    sizes = list(sizes) if sizes else [width] * 3
    q, k, v = (heads_of(part, heads) for part in packed.split(sizes, dim=-1))
    if past is not None:
        k, v = past[0].cat(k, dim=2), past[1].cat(v, dim=2)
    added: Tensor | None
    if causal and (mask is not None or past is not None):
        n, total = known(q.shape[2], "a causal mask"), known(k.shape[2], "a causal mask")
        rows = Tensor.arange(n).reshape((n, 1)) + (total - n)
        added = (Tensor.arange(total) <= rows).where(0.0, low).reshape((1, 1, n, total))
        keys = _key_mask(mask, packed.shape[0], n, total, low)
        added, causal = (added if keys is None else added + keys), 0
    else:
        added = _key_mask(mask, packed.shape[0], q.shape[2], k.shape[2], low)
    if relative is not None:
        added = relative if added is None else added + relative
    made = joined(_weighted(q, k, v, added, scale or None, bool(causal)))
    return made, k.stack(v)


@op("QAttention", domain=MS)
def qattention(
    x: Value,
    w: Value,
    bias: T,
    sx: T,
    sw: T,
    mask: T | None,
    zx: Value | None,
    zw: Value | None,
    past: T | None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: Any = None,
    unidirectional: int = 0,
) -> Any:
    if do_rotary or past_present_share_buffer:
        raise UnsupportedModel("QAttention with rotations or a shared cache is not read")
    packed = integer_matmul(x, zx, w, zw).cast(dt.float32) * (sx * sw) + bias
    return attended(packed, mask, past, None, num_heads, scale, unidirectional, mask_filter_value, None)


@op("GroupQueryAttention", domain=MS)
def group_query_attention(
    call: Call,
    q: T,
    k: T | None,
    v: T | None,
    past_k: T | None,
    past_v: T | None,
    lengths: T,
    total: T | None,
    cos: T | None,
    sin: T | None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: Any = None,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
) -> Any:
    """Causal attention with a cache that grows; `lengths` are the last positions of the rows."""
    if smooth_softmax:
        raise UnsupportedModel("smooth_softmax is not read")
    if k is None or v is None:  # packed
        size = known(q.shape[-1], "widths") // (num_heads + 2 * kv_num_heads)
        q, k, v = q.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], dim=-1)
    q, k, v = heads_of(q, num_heads), heads_of(k, kv_num_heads), heads_of(v, kv_num_heads)
    n = q.shape[2]
    last = lengths.cast(dt.int64).reshape((-1, 1))
    places = Tensor.arange(n).reshape((1, n)) + (last - (n - 1))
    if do_rotary:
        if cos is None or sin is None:
            raise UnsupportedModel("GroupQueryAttention turns without tables of angles")
        at = places.maximum(0)
        q, k = (turn(t, at, cos, sin, bool(rotary_interleaved)) for t in (q, k))
    if past_k is not None and past_v is not None and past_k.shape[2] != 0:
        k, v = past_k.cat(k, dim=2), past_v.cat(v, dim=2)
    m = k.shape[2]
    keys = Tensor.arange(m).reshape((1, 1, m))
    own = places.unsqueeze(-1)
    live = keys <= own
    if local_window_size > 0:
        live = live & (keys > own - local_window_size)
    times = num_heads // kv_num_heads
    full_k, full_v = repeated(k, times), repeated(v, times)
    bias = live.unsqueeze(1).where(0.0, -10000.0)
    if softcap:
        size = known(q.shape[-1], "the size of a head")
        scores = (wide(q) @ wide(full_k).transpose(-1, -2)) * (scale or size**-0.5)
        scores = (scores / softcap).tanh() * softcap + bias
        made = back(scores.softmax(-1) @ wide(full_v), q.dtype)
    else:
        made = _weighted(q, full_k, full_v, bias.cast(q.dtype), scale or None, False)
    return joined(made), k, v
