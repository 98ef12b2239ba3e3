"""Losses: predictions and targets to one number, or with reduction="none" to one per element."""

from __future__ import annotations

from morok.tensor.tensor import Tensor


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", not {reduction!r}')
    return loss.mean() if reduction == "mean" else loss.sum()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Of logits (…, classes) against the right classes (…).

    >>> cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item()
    0.6931471824645996
    """
    return logits.cross_entropy(target, reduction, ignore_index, label_smoothing)


def nll_loss(logs: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Of log-probabilities (…, classes) against the right classes (…).

    >>> nll_loss(Tensor([[-1.0, -2.0]]), Tensor([1])).item()
    2.0
    """
    return _reduced(-logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), reduction)


def binary_cross_entropy(p: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Of probabilities against probabilities. Logarithms are cut off at -100.

    >>> binary_cross_entropy(Tensor([0.5]), Tensor([1.0])).item()
    0.6931471824645996
    """
    yes, no = p.log().maximum(-100.0), (-p + 1.0).log().maximum(-100.0)
    return _reduced(-(target * yes + (-target + 1.0) * no), reduction)


def binary_cross_entropy_with_logits(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Of logits against probabilities.

    >>> binary_cross_entropy_with_logits(Tensor([0.0]), Tensor([1.0])).item()
    0.6931471824645996
    """
    return x.binary_cross_entropy_with_logits(target, reduction)


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared distances.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    2.0
    """
    return x.mse_loss(target, reduction)


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Distances.

    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    1.0
    """
    return _reduced((x - target).abs(), reduction)


def huber_loss(x: Tensor, target: Tensor, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Squared near zero, linear beyond `delta`.

    >>> huber_loss(Tensor([0.5, 3.0]), Tensor([0.0, 0.0]), reduction="none").tolist()
    [0.125, 2.5]
    """
    d = (x - target).abs()
    return _reduced((d < delta).where(d * d * 0.5, d * delta - 0.5 * delta * delta), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """As `huber_loss`, divided by `beta`."""
    return huber_loss(x, target, beta, reduction) / beta


def kl_div(logs: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The distance of probabilities `target` from log-probabilities `logs`; "mean" is over the batch.

    >>> kl_div(Tensor([[0.5, 0.5]]).log(), Tensor([[0.5, 0.5]])).item()
    0.0
    """
    safe = (target > 0.0).where(target, 1.0)
    loss = (target > 0.0).where(target * (safe.log() - logs), 0.0)
    if reduction == "mean":
        return loss.sum().div(logs.shape[0])
    return _reduced(loss, reduction)


def hinge_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """max(0, margin - x · target) for targets of -1 and 1.

    >>> hinge_loss(Tensor([0.5, 2.0]), Tensor([1.0, 1.0]), reduction="none").tolist()
    [0.5, 0.0]
    """
    return _reduced((-(x * target) + margin).relu(), reduction)


def cosine_similarity(x: Tensor, y: Tensor, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors.

    >>> cosine_similarity(Tensor([1.0, 0.0]), Tensor([0.0, 2.0])).item()
    0.0
    """
    size = ((x * x).sum(axis) * (y * y).sum(axis)).maximum(eps * eps).sqrt()
    return (x * y).sum(axis) / size
