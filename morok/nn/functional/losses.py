"""Losses with PyTorch's arguments: classes are axis 1, and `reduction` comes last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.nn import losses as own
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.sizes import concrete, concrete_shape
from morok.tensor.tensor import Tensor


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f'reduction is "mean", "sum" or "none", not {reduction!r}')
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _classes_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1) if x.ndim > 2 else x


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Of logits (N, C, …) against classes (N, …), or against probabilities (N, C, …).

    >>> cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item()
    0.6931471824645996
    """
    if target.dtype.is_float:
        shape = target.shape
        if input.shape != shape:
            raise ShapeError(
                f"probabilities for {show_shape(input.shape)} have its shape, not {show_shape(shape)}"
            )
        logits, p = (_classes_last(x) for x in (input, target))
        loss = own.cross_entropy(logits, p, "none", None, label_smoothing, weight)
        count = math.prod(concrete_shape(logits.shape[:-1]))
        return loss.sum() / count if reduction == "mean" else _reduced(loss, reduction)
    return own.cross_entropy(_classes_last(input), target, reduction, ignore_index, label_smoothing, weight)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    **options: Any,
) -> Tensor:
    """`cross_entropy` of a linear layer's results: rows (N, width) with weights (classes, …, width).

    >>> linear_cross_entropy(Tensor([[1.0]]), Tensor([[0.0], [0.0]]), Tensor([1])).item()
    0.6931471824645996
    """
    classes, *rest, width = linear_weight.shape
    flat = input.linear(linear_weight.reshape(-1, width))
    logits = flat.reshape(*input.shape[:-1], classes, *rest)
    if linear_bias is not None:
        logits = logits + linear_bias
    return cross_entropy(logits, target, weight, None, ignore_index, None, reduction, label_smoothing)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """Of log-probabilities (N, C, …) against classes (N, …).

    >>> nll_loss(Tensor([[-1.0, -2.0]]), Tensor([1])).item()
    2.0
    """
    return own.nll_loss(_classes_last(input), target, reduction, weight, ignore_index)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """Of probabilities against probabilities.

    >>> binary_cross_entropy(Tensor([0.5]), Tensor([1.0])).item()
    0.6931471824645996
    """
    return own.binary_cross_entropy(input, target, reduction, weight)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Of logits against probabilities.

    >>> binary_cross_entropy_with_logits(Tensor([0.0]), Tensor([1.0])).item()
    0.6931471824645996
    """
    return own.binary_cross_entropy_with_logits(input, target, reduction, weight, pos_weight)


def _weighted(loss: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    if weight is None:
        return _reduced(loss, reduction)
    weighted = loss * weight
    return (
        weighted.sum() / weight.expand(weighted.shape).sum()
        if reduction == "mean"
        else _reduced(weighted, reduction)
    )


@rounded_once
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Squared distances.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    2.0
    """
    return _weighted((input - target) ** 2, weight, reduction)


@rounded_once
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Distances.

    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    1.0
    """
    return _weighted((input - target).abs(), weight, reduction)


@rounded_once
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Squared near zero, linear beyond `delta`.

    >>> huber_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), reduction="none").tolist()
    [0.125, 2.5]
    """
    return _weighted(own.huber_loss(input, target, delta, "none"), weight, reduction)


@rounded_once
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """As `huber_loss`, divided by `beta`; distances if that is 0.

    >>> smooth_l1_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), reduction="none").tolist()
    [0.125, 2.5]
    """
    return own.smooth_l1_loss(input, target, beta, reduction)


@rounded_once
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """How far log-probabilities are from probabilities; "batchmean" is the divergence.

    >>> kl_div(Tensor([[0.5, 0.5]]).log(), Tensor([[0.5, 0.5]])).item()
    0.0
    """
    return own.kl_div(input, target, reduction, log_target)


@rounded_once
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: None = None,
    eps: float = 1e-8,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """Of the logarithms of a Poisson distribution's rates (or the rates) against counts.

    >>> poisson_nll_loss(Tensor([0.0]), Tensor([2.0])).item()
    1.0
    """
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        safe = (target > 1.0).where(target, 1.0)
        rest = target * safe.log() - target + (safe * (2.0 * math.pi)).log() * 0.5
        loss = loss + (target > 1.0).where(rest, 0.0)
    return _reduced(loss, reduction)


@rounded_once
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Of means and variances of normal distributions against values.

    >>> gaussian_nll_loss(Tensor([0.0]), Tensor([2.0]), Tensor([1.0])).item()
    2.0
    """
    variance = var if isinstance(var, Tensor) else input * 0.0 + var
    if variance.ndim == input.ndim - 1 and variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    kept = variance + (variance.detach().maximum(eps) - variance.detach())  # the bound has no gradient
    loss = (kept.log() + (input - target) ** 2 / kept) * 0.5
    return _reduced(loss + 0.5 * math.log(2.0 * math.pi) if full else loss, reduction)


# --- margins


@rounded_once
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin - y · (x₁ - x₂)) for targets y of 1 and -1.

    >>> margin_ranking_loss(Tensor([1.0]), Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """
    return _reduced((-(target * (input1 - input2)) + margin).maximum(0.0), reduction)


@rounded_once
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1.

    >>> hinge_embedding_loss(Tensor([0.25, 0.25]), Tensor([1.0, -1.0]), reduction="none").tolist()
    [0.25, 0.75]
    """
    near = target.ne(-1.0).where(input, 0.0)
    far = target.ne(1.0).where((-input + margin).maximum(0.0), 0.0)
    return _reduced(near + far, reduction)


@rounded_once
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: None = None, reduce: None = None, reduction: str = "mean"
) -> Tensor:
    """log(1 + exp(-y · x)) for targets y of 1 and -1.

    >>> soft_margin_loss(Tensor([0.0]), Tensor([1.0])).item()
    0.6931471824645996
    """
    return _reduced((-(target * input)).softplus(), reduction)


@rounded_once
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over the other classes of max(0, margin - x[y] + x[i])^p.

    >>> multi_margin_loss(Tensor([[0.0, 2.0]]), Tensor([1])).item()
    0.0
    """
    lone = input.ndim < 2
    x, y = (input.reshape(1, -1), target.reshape(1)) if lone else (input, target)
    classes = concrete(x.shape[1])
    right = x.gather(1, y.unsqueeze(1))
    terms = (x - right + margin).maximum(0.0) ** p
    if weight is not None:
        terms = terms * weight[y].unsqueeze(1)
    loss = y.one_hot(classes).cast("bool").where(0.0, terms).sum(1) / classes
    return _reduced(loss.squeeze(0) if lone else loss, reduction)


@rounded_once
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: None = None, reduce: None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over pairs of a label and a class that is none of max(0, 1 - x[label] + x[class]).

    The labels of a row end with the first -1.

    >>> multilabel_margin_loss(Tensor([0.0, 1.0]), Tensor([1, -1])).item()
    0.0
    """
    lone = input.ndim < 2
    x, y = (v.reshape(1, -1) if lone else v for v in (input, target))
    classes = concrete(x.shape[1])
    counts = (y < 0).cast("int64").cumsum(1).eq(0)  # labels before the first -1
    labels = counts.where(y, 0)
    places = Tensor.arange(classes)
    is_label = (labels.unsqueeze(-1).eq(places) & counts.unsqueeze(-1)).any(1)
    right = x.gather(1, labels).unsqueeze(-1)
    terms = (-right + x.unsqueeze(1) + 1.0).maximum(0.0)
    pairs = counts.unsqueeze(-1) & ~is_label.unsqueeze(1)
    loss = pairs.where(terms, 0.0).sum((1, 2)) / classes
    return _reduced(loss.squeeze(0) if lone else loss, reduction)


@rounded_once
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of the binary cross entropy of logits.

    >>> multilabel_soft_margin_loss(Tensor([[0.0]]), Tensor([[1.0]])).item()
    0.6931471824645996
    """
    loss = -(target * input.logsigmoid() + (-target + 1.0) * (-input).logsigmoid())
    loss = loss if weight is None else loss * weight
    return _reduced(loss.mean(-1), reduction)


@rounded_once
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1.

    >>> cosine_embedding_loss(Tensor([[1.0, 0.0]]), Tensor([[0.0, 1.0]]), Tensor([1])).item()
    1.0
    """
    small = 1e-12
    lengths = ((input1 * input1).sum(-1) + small) * ((input2 * input2).sum(-1) + small)
    cosine = (input1 * input2).sum(-1) / lengths.sqrt()
    near = target.eq(1).where(-cosine + 1.0, 0.0)
    return _reduced(near + target.eq(-1).where((cosine - margin).maximum(0.0), 0.0), reduction)


@rounded_once
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin).

    >>> triplet_margin_loss(Tensor([[0.0]]), Tensor([[0.0]]), Tensor([[5.0]])).item()
    0.0
    """
    from morok.nn.functional.distances import pairwise_distance

    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = far.minimum(pairwise_distance(positive, negative, p, eps))
    return _reduced((near - far + margin).maximum(0.0), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) with a distance that is given.

    >>> triplet_margin_with_distance_loss(Tensor([[0.0]]), Tensor([[0.0]]), Tensor([[5.0]])).item()
    0.0
    """
    from morok.nn.functional.distances import pairwise_distance

    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return _reduced((near - far + margin).maximum(0.0), reduction)
