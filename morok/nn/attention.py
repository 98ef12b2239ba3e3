"""Attention with several heads."""

from __future__ import annotations

from typing import Any

from morok.errors import ShapeError
from morok.nn.init import parameter, xavier_uniform
from morok.nn.linear import Linear
from morok.nn.module import Module, is_training
from morok.tensor.tensor import Tensor


class MultiHeadAttention(Module):
    """softmax(Q Kᵀ) V in several heads side by side, on (batch, length, width).

    The projections of query, key and value are one matrix (3 · width, width), as PyTorch keeps them.

    >>> MultiHeadAttention(8, 2)(Tensor.ones(1, 5, 8)).shape
    (1, 5, 8)
    """

    def __init__(
        self, width: int, heads: int, bias: bool = True, dropout: float = 0.0, dtype: Any = None
    ) -> None:
        if width % heads:
            raise ShapeError(f"{heads} heads do not divide a width of {width}")
        self.heads, self.width, self.dropout = heads, width, dropout
        self.in_proj_weight = parameter(xavier_uniform(3 * width, width, dtype=dtype))
        self.in_proj_bias = parameter(Tensor.zeros(3 * width, dtype=dtype)) if bias else None
        self.out_proj = Linear(width, width, bias, dtype)

    def __call__(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Without key and value the query attends to itself; a boolean mask says where to look."""
        if key is None:
            q, k, v = query.linear(self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            q, k, v = (
                x.linear(w, b)
                for x, w, b in zip(
                    (query, key, key if value is None else value), *self._projections(), strict=True
                )
            )
        y = self._attend(self._split(q), self._split(k), self._split(v), mask, is_causal)
        batch, length = query.shape[:2]
        return self.out_proj(y.transpose(1, 2).reshape(batch, length, self.width))

    def _projections(self) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
        weights = self.in_proj_weight.chunk(3, 0)
        return weights, (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3, 0)

    def _split(self, x: Tensor) -> Tensor:
        """(batch, length, width) as (batch, heads, length, width / heads)."""
        batch, length = x.shape[:2]
        return x.reshape(batch, length, self.heads, self.width // self.heads).transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        if not (self.dropout and is_training()):
            return q.scaled_dot_product_attention(k, v, mask, is_causal)
        scale: float = (self.width // self.heads) ** -0.5
        scores = q.matmul(k.transpose(-1, -2)) * scale
        if is_causal:
            scores = Tensor.ones(*scores.shape[-2:]).tril().cast("bool").where(scores, float("-inf"))
        if mask is not None:
            scores = mask.where(scores, float("-inf")) if mask.dtype.is_bool else scores + mask
        return scores.softmax(-1).dropout(self.dropout).matmul(v)
