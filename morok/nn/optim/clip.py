"""Gradients that are too long, made shorter."""

from __future__ import annotations

from collections.abc import Sequence

from morok.errors import MorokError
from morok.nn.optim.base import wide
from morok.tensor.tensor import Tensor


def clip_grad_norm(params: Sequence[Tensor], limit: float, eps: float = 1e-6) -> Tensor:
    """Scale all gradients down so that together they are no longer than `limit`; returns their length.

    >>> w = Tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> clip_grad_norm([w], 1.0).item()
    10.0
    """
    found = [(p, p.grad) for p in params if p.grad is not None]
    if not found:
        raise MorokError("there are no gradients to clip; call backward() first")
    squares = [(g.cast(wide(g)) * g.cast(wide(g))).sum().reshape(1) for _, g in found]
    total = squares[0].cat(*squares[1:]).sum().sqrt() if len(squares) > 1 else squares[0].sum().sqrt()
    factor = (total + eps).reciprocal().__mul__(limit).minimum(1.0)
    for p, g in found:
        p.grad = (g * factor).cast(g.dtype)
    return total


def clip_grad_value(params: Sequence[Tensor], limit: float) -> None:
    """Keep every element of every gradient between ±limit.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> clip_grad_value([x], 1.0)
    >>> x.grad.tolist()
    [1.0]
    """
    for p in params:
        if p.grad is not None:
            p.grad = p.grad.clamp(-limit, limit)
