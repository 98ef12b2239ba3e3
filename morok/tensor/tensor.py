"""The lazy tensor. Its methods live in one file per family; this one puts them together."""

from __future__ import annotations

from typing import Any, Self, final

from morok.ir.ops import Ops
from morok.tensor.creation.sources import node_of
from morok.tensor.dtypes import as_dtype
from morok.tensor.elementwise.conversion import Conversion
from morok.tensor.gradient.backward import Gradient
from morok.tensor.gradient_track import cut
from morok.tensor.memory.storage import Storage, identified
from morok.tensor.random import Random
from morok.tensor.record import recorded


@final
@recorded
class Tensor(Random, Gradient, Conversion):
    """An array whose values are computed when somebody asks for them.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x + 1).sum().item()
    58.0

    `data` is a number, nested lists, a NumPy array, anything with DLPack or the buffer protocol, or another
    tensor; it is copied (`from_numpy` and its kin share memory). Python floats become float32, integers
    int64; arrays keep their type.
    """

    def __init__(
        self, data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False
    ) -> None:
        node = node_of(data, None if dtype is None else as_dtype(dtype), device)
        self._storage = Storage(cut(identified(node) if node.op is Ops.CONST else node))
        if requires_grad:
            self.requires_grad_()

    def __imatmul__(self, other: Any) -> Self:
        return self._in_place("@", self.__matmul__(other))
