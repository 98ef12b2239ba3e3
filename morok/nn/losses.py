"""Losses: predictions and targets to one number, or with reduction="none" to one per element."""

from __future__ import annotations

from morok.errors import ArgumentError, ShapeError
from morok.ir.call import call
from morok.ir.infer import show_shape
from morok.tensor.elementwise.arithmetic import meet
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.tensor import Tensor


def _check_reduction(reduction: str, *more: str) -> None:
    known = ("mean", "sum", "none", *more)
    if reduction not in known:
        raise ArgumentError(f"reduction is one of {', '.join(map(repr, known))}, not {reduction!r}")


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    _check_reduction(reduction)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Of logits (…, classes) against the right classes (…), or against probabilities (…, classes).

    With a weight for each class the mean is over weights. Classes of `ignore_index` count neither in the sum
    nor in the mean; others that there are not are an error.

    >>> cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item()
    0.6931471824645996
    >>> cross_entropy(Tensor([[0.0, 0.0]]), Tensor([[0.5, 0.5]])).item()
    0.6931471824645996
    """
    _check_reduction(reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"label_smoothing lies between 0 and 1, unlike {label_smoothing}")
    if weight is not None and weight.shape != logits.shape[-1:]:
        raise ShapeError(
            f"there is one weight for each of {logits.shape[-1]} classes, not {show_shape(weight.shape)}"
        )
    if target.dtype.is_float:
        return _of_probabilities(logits, target, reduction, label_smoothing, weight)
    if weight is None:
        return logits.cross_entropy(target, reduction, ignore_index, label_smoothing)
    own = _weights(weight, target, ignore_index)
    loss = logits.cross_entropy(target, "none", ignore_index) * own
    if label_smoothing:
        counts = _weights(weight.ones_like(), target, ignore_index).ne(0.0)
        even = counts.where(-(logits.log_softmax(-1) * weight).mean(-1), 0.0)
        loss = loss * (1.0 - label_smoothing) + even * label_smoothing
    return loss.sum() / own.sum() if reduction == "mean" else _reduced(loss, reduction)


def _of_probabilities(
    logits: Tensor, target: Tensor, reduction: str, smoothing: float, weight: Tensor | None
) -> Tensor:
    if target.shape != logits.shape:
        raise ShapeError(
            f"cross_entropy of logits {show_shape(logits.shape)} needs as many probabilities, "
            f"not {show_shape(target.shape)}"
        )
    p = target * (1.0 - smoothing) + smoothing / logits.shape[-1] if smoothing else target
    terms = p * logits.log_softmax(-1)
    return _reduced(-(terms if weight is None else terms * weight).sum(-1), reduction)


def _weights(weight: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    """The weight of each label; none of those that are not counted."""
    if ignore_index is None or not target.dtype.min <= ignore_index <= target.dtype.max:
        return weight[target]
    counts = target.ne(ignore_index)
    return counts.where(weight[counts.where(target, 0)], 0.0)


@rounded_once
def nll_loss(
    logs: Tensor,
    target: Tensor,
    reduction: str = "mean",
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    """Of log-probabilities (…, classes) against the right classes (…), taken as in `cross_entropy`.

    >>> nll_loss(Tensor([[-1.0, -2.0]]), Tensor([1])).item()
    2.0
    """
    if weight is None:
        return logs.nll_loss(target, reduction, ignore_index)
    own = _weights(weight, target, ignore_index)
    loss = logs.nll_loss(target, "none", ignore_index) * own
    return loss.sum() / own.sum() if reduction == "mean" else _reduced(loss, reduction)


@rounded_once
def binary_cross_entropy(
    p: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """Of probabilities against probabilities, each loss times a weight. Logarithms are cut off at -100.

    >>> binary_cross_entropy(Tensor([0.5]), Tensor([1.0])).item()
    0.6931471824645996
    """
    yes, no = p.log().maximum(-100.0), (-p).log1p().maximum(-100.0)
    loss = -(target * yes + (-target + 1.0) * no)
    loss = loss._new(call("binary_cross_entropy", loss.uop, *meet(p, target)))  # the formula's slope is NaN
    return _reduced(loss if weight is None else loss * weight, reduction)


@rounded_once
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    reduction: str = "mean",
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Of logits against probabilities, each loss times a weight, and what speaks for "yes" times another.

    >>> binary_cross_entropy_with_logits(Tensor([0.0]), Tensor([1.0])).item()
    0.6931471824645996
    """
    _check_reduction(reduction)
    if weight is None and pos_weight is None:
        return x.binary_cross_entropy_with_logits(target, reduction)
    yes = target if pos_weight is None else target * pos_weight
    loss = yes * (-x).softplus() + (-target + 1.0) * x.softplus()
    return _reduced(loss if weight is None else loss * weight, reduction)


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared distances.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    2.0
    """
    return x.mse_loss(target, reduction)


@rounded_once
def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Distances.

    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    1.0
    """
    return _reduced((x - target).abs(), reduction)


@rounded_once
def huber_loss(x: Tensor, target: Tensor, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Squared near zero, linear beyond `delta`.

    >>> huber_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), reduction="none").tolist()
    [0.125, 2.5]
    """
    if not delta > 0.0:
        raise ArgumentError(f"delta is above 0, unlike {delta}")
    d = (x - target).abs()
    return _reduced((d < delta).where(d * d * 0.5, d * delta - 0.5 * delta * delta), reduction)


@rounded_once
def smooth_l1_loss(x: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """As `huber_loss`, divided by `beta`; distances if that is 0.

    >>> smooth_l1_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), 0.0, "none").tolist()
    [0.5, 3.0]
    """
    if not beta >= 0.0:
        raise ArgumentError(f"beta is not negative, unlike {beta}")
    d = (x - target).abs()
    return _reduced((d < beta).where(d * d * (0.5 / beta), d - 0.5 * beta) if beta else d, reduction)


@rounded_once
def kl_div(logs: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """How far log-probabilities are from probabilities (or logarithms of them): the sum of t · log(t / p).

    "mean" is over all elements, "batchmean" over the first axis only: that one is the divergence.

    >>> kl_div(Tensor([[0.5, 0.5]]).log(), Tensor([[0.5, 0.5]])).item()
    0.0
    """
    _check_reduction(reduction, "batchmean")
    if log_target:
        loss = target.exp() * (target - logs)
    else:
        safe = (target > 0.0).where(target, 1.0)
        loss = (target > 0.0).where(target * (safe.log() - logs), 0.0)
    if reduction == "batchmean":
        return loss.sum().div(logs.shape[0])
    return _reduced(loss, reduction)


@rounded_once
def hinge_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """max(0, margin - x · target) for targets of -1 and 1.

    >>> hinge_loss(Tensor([0.5, 2.0]), Tensor([1.0, 1.0]), reduction="none").tolist()
    [0.5, 0.0]
    """
    return _reduced((-(x * target) + margin).relu(), reduction)


@rounded_once
def cosine_similarity(
    x: Tensor, y: Tensor, axis: int = -1, eps: float = 1e-8, *, dim: int | None = None
) -> Tensor:
    """The cosine of the angle between vectors. Shapes are broadcast first.

    >>> cosine_similarity(Tensor([1.0, 0.0]), Tensor([0.0, 2.0])).item()
    0.0
    """
    at = axis if dim is None else dim
    product = x * y
    a, b = x.expand(product.shape), y.expand(product.shape)
    sizes = ((v * v).sum(at).sqrt().maximum(eps) for v in (a, b))
    return product.sum(at) / next(sizes) / next(sizes)
