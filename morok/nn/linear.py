"""Linear maps, lookups, dropout."""

from __future__ import annotations

from typing import Any

from morok.errors import ArgumentError
from morok.nn.init import parameter, uniform_fan_in
from morok.nn.module import Module, also, is_training
from morok.tensor.tensor import Tensor


class Linear(Module):
    """x · weightᵀ + bias.

    >>> Linear(3, 2)(Tensor.ones(4, 3)).shape
    (4, 2)
    """

    @also(in_features="inputs", out_features="outputs")
    def __init__(self, inputs: int, outputs: int, bias: bool = True, dtype: Any = None) -> None:
        self.weight = parameter(uniform_fan_in(outputs, inputs, dtype=dtype))
        self.bias = parameter(uniform_fan_in(outputs, fan=max(inputs, 1), dtype=dtype)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.linear(self.weight, self.bias)


class Bilinear(Module):
    """x · W_k · y + b_k for every output k.

    >>> Bilinear(3, 2, 5)(Tensor.ones(4, 3), Tensor.ones(4, 2)).shape
    (4, 5)
    """

    @also(in1_features="left", in2_features="right", out_features="outputs")
    def __init__(self, left: int, right: int, outputs: int, bias: bool = True, dtype: Any = None) -> None:
        self.weight = parameter(uniform_fan_in(outputs, left, right, fan=left, dtype=dtype))
        self.bias = parameter(uniform_fan_in(outputs, fan=left, dtype=dtype)) if bias else None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        half = (x.unsqueeze(-2).unsqueeze(-2) @ self.weight).squeeze(-2)  # (…, outputs, right)
        z = (half * y.unsqueeze(-2)).sum(-1)
        return z if self.bias is None else z + self.bias


class Embedding(Module):
    """Rows of a table by their number.

    >>> Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    @also(num_embeddings="count", embedding_dim="width", padding_idx="padding")
    def __init__(self, count: int, width: int, padding: int | None = None, dtype: Any = None) -> None:
        table = Tensor.randn(count, width, dtype=dtype)
        if padding is not None:
            place = Tensor.arange(count).reshape(count, 1)
            table = place.eq(padding).where(0.0, table).cast(table.dtype)
        self.weight = parameter(table)
        self.padding = padding

    def __call__(self, index: Tensor) -> Tensor:
        rows = self.weight.embedding(index)
        if self.padding is None:
            return rows
        return index.ne(self.padding).unsqueeze(-1).where(rows, rows.detach())  # that row does not learn


class Dropout(Module):
    """Zeros with probability p in training, nothing otherwise.

    >>> Dropout(0.5)(Tensor([1.0])).tolist()
    [1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise ArgumentError(f"p is a probability between 0 and 1, not {p}")
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        return x.dropout(self.p, is_training())


class Identity(Module):
    """Nothing, where a layer is wanted.

    >>> Identity()(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """

    def __call__(self, x: Tensor) -> Tensor:
        return x
