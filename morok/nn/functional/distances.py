"""Distances between vectors, and the loss of sequences without alignment."""

from __future__ import annotations

import math
from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.nn.losses import cosine_similarity as _cosine
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.sizes import concrete, concrete_shape
from morok.tensor.tensor import Tensor

cdist = Tensor.cdist


@rounded_once
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis.

    >>> cosine_similarity(Tensor([1.0, 0.0]), Tensor([0.0, 2.0]), 0).item()
    0.0
    """
    return _cosine(x1, x2, dim=dim, eps=eps)


@rounded_once
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis.

    >>> pairwise_distance(Tensor([3.0, 4.0]), Tensor([0.0, 0.0]), eps=0.0).item()
    5.0
    """
    return (x1 - x2 + eps).norm(p, -1, keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distances of all pairs of rows, each once.

    >>> pdist(Tensor([[0.0], [3.0], [4.0]])).tolist()
    [3.0, 4.0, 1.0]
    """
    rows = input.shape[0] if input.ndim == 2 else None
    if not isinstance(rows, int):
        raise ShapeError(f"pdist takes a known number of rows (n, m), not {show_shape(input.shape)}")
    first = [i for i in range(rows) for _ in range(i + 1, rows)]
    second = [j for i in range(rows) for j in range(i + 1, rows)]
    if not first:
        return input.reshape(-1)[:0]
    return (input[first] - input[second]).norm(p, -1)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The loss of sequences (T, N, C) of log-probabilities against labels (N, S) without alignment.

    All ways to write the labels with blanks in between are added up, one step of time after the other.

    >>> round(ctc_loss(Tensor([[[0.5, 0.5]]]).log(), Tensor([[1]]), [1], [1]).item(), 4)
    0.6931
    """
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f'reduction is "mean", "sum" or "none", not {reduction!r}')
    lone = log_probs.ndim == 2
    x = log_probs.unsqueeze(1) if lone else log_probs
    steps, batch, _ = concrete_shape(x.shape)
    lengths, sizes = (_numbers(v, batch) for v in (input_lengths, target_lengths))
    labels = _padded(targets, target_lengths, batch)
    width = concrete(labels.shape[1])
    labels = (Tensor.arange(width) < sizes.unsqueeze(1)).where(labels, blank)
    # blank, label, blank, label, …, blank
    states = 2 * width + 1
    spaced = labels.unsqueeze(-1).pad([None, None, (1, 0)], blank).reshape(batch, 2 * width)
    spaced = spaced.pad([None, (0, 1)], blank)
    before = spaced.pad([None, (2, -2)], blank)
    place = Tensor.arange(states)
    skips = spaced.ne(blank) & spaced.ne(before) & (place >= 2)
    emitted = x.gather(2, spaced.unsqueeze(0).expand(steps, batch, states))  # (T, N, states)
    least = -math.inf
    alpha = (place < 2).where(emitted[0], least)
    alpha = ((place < 1) | (sizes.unsqueeze(1) > 0)).where(alpha, least)
    for t in range(1, steps):
        one = alpha.pad([None, (1, -1)], least)
        two = skips.where(alpha.pad([None, (2, -2)], least), least)
        new = _logsumexp(alpha, one, two) + emitted[t]
        alpha = (lengths.unsqueeze(1) > t).where(new, alpha).contiguous()
    last = alpha.gather(1, (sizes * 2).unsqueeze(1)).squeeze(1)
    label = alpha.gather(1, (sizes * 2 - 1).maximum(0).unsqueeze(1)).squeeze(1)
    loss = -_logsumexp(last, (sizes > 0).where(label, least))
    if zero_infinity:
        loss = loss.eq(math.inf).where(0.0, loss)
    if reduction == "mean":
        return (loss / sizes.maximum(1).cast(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if lone else loss


def _logsumexp(*parts: Tensor) -> Tensor:
    """log Σ exp, of which nothing but -inf is -inf, with a gradient of 0."""
    top = parts[0]
    for part in parts[1:]:
        top = top.maximum(part)
    top = top.detach()
    shift = top.eq(-math.inf).where(0.0, top)
    total = (parts[0] - shift).exp()
    for part in parts[1:]:
        total = total + (part - shift).exp()
    nothing = total.eq(0.0)
    return nothing.where(-math.inf, nothing.where(1.0, total).log() + shift)


def _numbers(values: Any, batch: int) -> Tensor:
    found = (
        values
        if isinstance(values, Tensor)
        else Tensor(list(values) if isinstance(values, tuple | list) else [values])
    )
    return found.reshape(batch).cast("int64")


def _padded(targets: Tensor, lengths: Any, batch: int) -> Tensor:
    """Labels (N, S); those in one row are cut by their lengths, which must be numbers then."""
    if targets.ndim == 2:
        return targets.cast("int64")
    known = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else _listed(lengths))]
    if batch == 1:
        return targets.reshape(1, -1).cast("int64")
    most = max([*known, 1])
    at, rows = 0, []
    for n in known:
        rows.append(targets[at : at + n].cast("int64").pad([(0, most - n)]))
        at += n
    return rows[0].stack(*rows[1:])


def _listed(values: Any) -> list[int]:
    return list(values) if isinstance(values, tuple | list) else [values]
