"""The lazy tensor. Its methods live in one file per family; this one puts them together."""

from __future__ import annotations

from typing import Any, final

from morok.tensor.conversion import Conversion
from morok.tensor.creation import node_of
from morok.tensor.dtypes import as_dtype
from morok.tensor.gradient import Gradient
from morok.tensor.random import Random
from morok.tensor.record import recorded


@final
@recorded
class Tensor(Random, Gradient, Conversion):
    """An array whose values are computed when somebody asks for them.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x + 1).sum().item()
    58.0

    `data` is a number, nested lists, a NumPy array (whose memory is used where its layout allows), anything
    with DLPack or the buffer protocol, or another tensor. Python floats become float32, integers int64;
    arrays keep their type.
    """

    def __init__(
        self, data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False
    ) -> None:
        self._enter(node_of(data, None if dtype is None else as_dtype(dtype), device))
        if requires_grad:
            self.requires_grad_()
