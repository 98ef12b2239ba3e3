"""Distances between vectors."""

from __future__ import annotations

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.nn.losses import cosine_similarity as _cosine
from morok.tensor.elementwise.once import rounded_once
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
