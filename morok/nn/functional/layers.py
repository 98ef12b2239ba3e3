"""Linear maps, lookups, norms and attention with PyTorch's arguments."""

from __future__ import annotations

import math
from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.nn.module import note_update
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

linear = Tensor.linear


@rounded_once
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · W_k · y + b_k for every output k.

    >>> bilinear(Tensor([[1.0, 2.0]]), Tensor([[3.0]]), Tensor.ones(1, 2, 1)).tolist()
    [[9.0]]
    """
    half = (input1.unsqueeze(-2).unsqueeze(-2) @ weight).squeeze(-2)  # (…, outputs, right)
    found = (half * input2.unsqueeze(-2)).sum(-1)
    return found if bias is None else found + bias


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A new last axis with 1 at the place that the element names; without a number, as many as are needed.

    >>> one_hot(Tensor([1, 0]), 2).tolist()
    [[0, 1], [1, 0]]
    """
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    return tensor.one_hot(num_classes)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table by their number; the row `padding_idx` does not learn.

    With `max_norm` the rows that are looked up are scaled down in the table itself where they are longer.

    >>> embedding(Tensor([1]), Tensor([[1.0], [2.0]])).tolist()
    [[2.0]]
    """
    if max_norm is not None:
        _shorten(weight, input, max_norm, norm_type)
    rows = weight.embedding(input)
    if scale_grad_by_freq:
        rows = _by_frequency(rows, input, weight.shape[0])
    if padding_idx is None:
        return rows
    at = padding_idx % concrete(weight.shape[0])
    return input.ne(at).unsqueeze(-1).where(rows, rows.detach())


def _by_frequency(rows: Tensor, index: Tensor, count: Any) -> Tensor:
    """The same rows, whose gradients are divided by how often the row is looked up."""
    often = index.flatten().bincount(count).cast(rows.dtype)
    share = often.reciprocal()[index].unsqueeze(-1)
    return rows.detach() * (1.0 - share) + rows * share


def _shorten(weight: Tensor, index: Tensor, most: float, p: float) -> None:
    """The rows that are named, scaled down in place to a norm."""
    named = index.flatten().bincount(weight.shape[0]).ne(0).unsqueeze(-1)
    table = weight.detach()
    length = table.norm(p, -1, keepdim=True)
    scaled = (named & (length > most)).where(table * (most / (length + 1e-7)), table)
    weight.assign(scaled)
    note_update(weight)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of rows of a table, in bags: rows of `input`, or from each offset to the next.

    >>> embedding_bag(Tensor([[0, 1]]), Tensor([[1.0], [2.0]]), mode="sum").tolist()
    [[3.0]]
    """
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f'mode is "sum", "mean" or "max", not {mode!r}')
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError('per_sample_weights go with mode="sum"')
    if input.ndim == 2:
        bags, width = input.shape
        flat = input.flatten()
        bag: Any = Tensor.arange(bags).reshape(bags, 1).expand(bags, width).reshape(flat.shape[0])
        given = None if per_sample_weights is None else per_sample_weights.flatten()
    else:
        if input.ndim != 1 or offsets is None:
            raise ShapeError(f"bags are rows of {show_shape(input.shape)}, or one row with offsets")
        starts = offsets[:-1] if include_last_offset else offsets
        flat, bags, given = input, starts.shape[0], per_sample_weights
        bag = starts.searchsorted(Tensor.arange(flat.shape[0]), right=True) - 1
    rows = embedding(flat, weight, None, max_norm, norm_type, scale_grad_by_freq)
    counted = None
    if padding_idx is not None:
        counted = flat.ne(padding_idx % concrete(weight.shape[0]))
        bag = counted.where(bag, bags)
        rows = counted.unsqueeze(-1).where(rows, rows.detach())
    rows = rows if given is None else rows * given.unsqueeze(-1)
    size = bags if counted is None else bags + 1
    zero = Tensor.zeros(size, weight.shape[1], dtype=weight.dtype)
    count = bag.bincount(size)[:bags].unsqueeze(-1)
    if mode == "max":
        place = bag.unsqueeze(-1).expand(-1, weight.shape[1])
        top = zero.scatter_reduce(0, place, rows, "amax", include_self=False)[:bags]
        largest: Tensor = count.ne(0).where(top, 0.0)
        return largest
    total = zero.index_add(0, bag, rows)[:bags]
    return total if mode == "sum" else total / count.maximum(1).cast(total.dtype)


# --- norms


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over the last axes, scaled and shifted.

    >>> layer_norm(Tensor([1.0, 3.0]), (2,), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    return input.layer_norm(_last(input, normalized_shape), weight, bias, eps)


def rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Mean square 1 over the last axes, scaled.

    >>> rms_norm(Tensor([2.0, 2.0]), (2,), eps=0.0).tolist()
    [1.0, 1.0]
    """
    least = float(input.dtype.eps) if eps is None else eps
    return input.rms_norm(_last(input, normalized_shape), weight, least)


def _last(x: Tensor, sizes: Any) -> tuple[int, ...]:
    shape = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if x.ndim < len(shape) or x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError(f"this norm takes (…, {', '.join(map(str, shape))}), not {show_shape(x.shape)}")
    return tuple(range(-len(shape), 0))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Channels (axis 1) normalised by the running statistics, or in training by their own.

    In training the running statistics are assigned their averages with the batch's.

    >>> batch_norm(Tensor([[3.0]]), Tensor([1.0]), Tensor([4.0]), eps=0.0).tolist()
    [[1.0]]
    """
    if input.ndim < 2:
        if 0 in input.shape:
            return input
        raise ShapeError(f"batch_norm takes (N, C, …), not {show_shape(input.shape)}")
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("batch_norm outside of training needs running_mean and running_var")
        return input.batch_norm(running_mean, running_var, weight, bias, eps)
    axes = tuple(axis for axis in range(input.ndim) if axis != 1)
    mean, var = _statistics(input, axes)
    count = input.numel() / input.shape[1]
    for running, new, factor in ((running_mean, mean, 1.0), (running_var, var, count / max(count - 1, 1))):
        if running is not None:
            new = new.detach() * factor
            running.assign((running.detach() * (1.0 - momentum) + new * momentum).cast(running.dtype))
            note_update(running)
    return input.batch_norm(mean, var, weight, bias, eps)


@rounded_once
def _statistics(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return x.mean(axes), x.var(axes, correction=0)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Every channel of each sample with mean 0 and variance 1, scaled and shifted.

    >>> instance_norm(Tensor([[[1.0, 3.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0]]]
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = tuple(range(2, input.ndim))
    if running_mean is not None or running_var is not None:
        own = input.detach()
        for running, new in ((running_mean, own.mean(axes).mean(0)), (running_var, own.var(axes).mean(0))):
            if running is not None:
                running.assign((running.detach() * (1.0 - momentum) + new * momentum).cast(running.dtype))
                note_update(running)
    return group_norm(input, concrete(input.shape[1]), weight, bias, eps)


@rounded_once
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Groups of channels of each sample with mean 0 and variance 1, scaled and shifted.

    >>> group_norm(Tensor([[1.0, 3.0]]), 1, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    channels = input.shape[1] if input.ndim > 1 else None
    if not isinstance(channels, int) or num_groups < 1 or channels % num_groups:
        raise ShapeError(f"{num_groups} groups do not divide the channels of {show_shape(input.shape)}")
    sizes = (1, channels, *(1,) * (input.ndim - 2))
    if 0 in input.shape:
        y = input
    else:
        y = input.reshape(input.shape[0], num_groups, -1).layer_norm(-1, eps=eps).reshape(*input.shape)
    y = y if weight is None else y * weight.reshape(*sizes)
    return y if bias is None else y + bias.reshape(*sizes)


@rounded_once
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x over (k + alpha · mean of squares of `size` neighbouring channels)^beta.

    >>> local_response_norm(Tensor([[[2.0]]]), 1, alpha=1.0, beta=1.0).tolist()
    [[[0.4000000059604645]]]
    """
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm takes (N, C, …), not {show_shape(input.shape)}")
    none: list[Any] = [None] * (input.ndim - 2)
    if 0 in input.shape:
        return input
    squares = (input * input).pad([None, (size // 2, (size - 1) // 2), *none])
    around = squares.unfold(1, size, 1).mean(-1)
    return input / (around * alpha + k) ** beta


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along an axis over their p-norm, or over eps if that is larger.

    >>> [round(x, 4) for x in normalize(Tensor([3.0, 4.0]), dim=0).tolist()]
    [0.6, 0.8]
    """
    return input / input.norm(p, dim, keepdim=True).maximum(eps)


# --- attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(Q Kᵀ · scale + mask) V; a boolean mask says where to look.

    >>> x = Tensor.ones(1, 2, 4)
    >>> scaled_dot_product_attention(x, x, x).shape
    (1, 2, 4)
    """
    if enable_gqa:
        times = concrete(query.shape[-3]) // concrete(key.shape[-3])
        key, value = (x.repeat_interleave(times, -3) for x in (key, value))
    boolean = attn_mask is not None and attn_mask.dtype.is_bool
    looks = attn_mask.any(-1, keepdim=True) if attn_mask is not None and boolean else None
    if not dropout_p:
        out = query.scaled_dot_product_attention(key, value, attn_mask, is_causal, scale)
        return out if looks is None else looks.where(out, 0.0)  # a row that looks at nothing
    factor = 1.0 / math.sqrt(concrete(query.shape[-1])) if scale is None else scale
    scores = (query @ key.mT) * factor
    if is_causal:
        scores = Tensor.ones(*scores.shape[-2:]).tril().cast("bool").where(scores, -math.inf)
    if attn_mask is not None:
        scores = attn_mask.where(scores, -math.inf) if boolean else scores + attn_mask
    weights = scores.softmax(-1)
    weights = weights if looks is None else looks.where(weights, 0.0)
    return weights.dropout(dropout_p) @ value


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention in several heads on (length, batch, width): (result, weights or None).

    Masks of truths say where not to look; others are added to the scores.

    >>> x, w = Tensor.ones(3, 1, 4), Tensor.ones(12, 4)
    >>> found, weights = multi_head_attention_forward(
    ...     x, x, x, 4, 2, w, None, None, None, False, 0.0, Tensor.eye(4), None
    ... )
    >>> found.shape, weights.shape
    ((3, 1, 4), (1, 3, 3))
    """
    lone = query.ndim == 2
    if lone:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, width = query.shape
    if width != embed_dim_to_check or concrete(width) % num_heads:
        raise ShapeError(f"{num_heads} heads of {embed_dim_to_check} do not fit a width of {width}")
    projected = _projected(
        (query, key, value),
        (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight,
        in_proj_bias,
    )
    q, k, v = (x.contiguous() for x in projected)  # as large ones are; tiny ones would be computed again
    if bias_k is not None and bias_v is not None:
        k, v = (
            x.cat(b.reshape(1, 1, -1).expand(1, batch, width), dim=0) for x, b in ((k, bias_k), (v, bias_v))
        )
        attn_mask, key_padding_mask = _one_more(attn_mask), _one_more(key_padding_mask)
    head = concrete(width) // num_heads
    q = q.reshape(length, batch * num_heads, head).transpose(0, 1)
    k = (k.reshape(-1, batch * num_heads, head).transpose(0, 1)) if static_k is None else static_k
    v = (v.reshape(-1, batch * num_heads, head).transpose(0, 1)) if static_v is None else static_v
    if add_zero_attn:
        k, v = (x.pad([None, (0, 1), None]) for x in (k, v))
        attn_mask, key_padding_mask = _one_more(attn_mask), _one_more(key_padding_mask)
    scores = (q @ k.mT) * (head**-0.5)
    scores = _unseen(scores, attn_mask)
    if key_padding_mask is not None:
        mask = key_padding_mask.reshape(batch, 1, 1, -1).expand(batch, num_heads, 1, -1)
        scores = _unseen(scores, mask.reshape(batch * num_heads, 1, -1))
    weights = scores.softmax(-1)
    found = (weights.dropout(dropout_p, training) if dropout_p else weights) @ v
    joined = found.transpose(0, 1).reshape(length, batch, width).contiguous()
    out = joined.linear(out_proj_weight, out_proj_bias)
    shown: Tensor | None = None
    if need_weights:
        shown = weights.reshape(batch, num_heads, length, -1)
        shown = shown.mean(1) if average_attn_weights else shown
        shown = shown.squeeze(0) if lone else shown
    return out.squeeze(1) if lone else out, shown


def _projected(inputs: tuple[Tensor, ...], weights: Any, bias: Tensor | None) -> tuple[Tensor, ...]:
    parts = weights if isinstance(weights, tuple) else weights.chunk(3, 0)
    biases = (None,) * 3 if bias is None else bias.chunk(3, 0)
    return tuple(x.linear(w, b) for x, w, b in zip(inputs, parts, biases, strict=True))


def _one_more(mask: Tensor | None) -> Tensor | None:
    """A mask with one more place that may be seen."""
    return None if mask is None else mask.pad([*[None] * (mask.ndim - 1), (0, 1)])


def _unseen(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    return mask.where(-math.inf, scores) if mask.dtype.is_bool else scores + mask
