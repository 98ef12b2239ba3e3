"""What rounds of a loop hand on: states in memory, rows that they leave, and where both come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np

from morok.device.buffer import Buffer
from morok.errors import ShapeError
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.onnx.types import Array, numpy_type
from morok.onnx.values import Host, Value
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

Values = Mapping[str, int]
Reader = Callable[[Values], int]
_ROWS = 16  # that there is room for at first


@final
@dataclass
class Held:
    """A state in memory: its elements lie at the front."""

    buffer: Buffer
    sizes: tuple[int, ...]
    given: Tensor | None = None  # that it was at first

    def array(self) -> Array:
        """The values where they lie: who keeps them copies them."""
        return self.buffer.array()[: prod(self.sizes)].reshape(self.sizes)

    @property
    def form(self) -> Any:
        return len(self.sizes), self.buffer.dtype

    def value(self) -> Value:
        return Tensor.from_numpy(self.array().copy()) if self.given is None else self.given


State = Held | Host


def alike(shapes: Sequence[tuple[int, ...]]) -> None:
    """Rows that rounds leave are put side by side, so they have one shape."""
    if len(set(shapes)) > 1:
        shown = " and ".join(map(str, sorted(set(shapes))))
        raise ShapeError(f"the rounds of a loop leave values of different shapes: {shown}")


@final
@dataclass
class Rows:
    """Rows that rounds have left, behind each other."""

    held: Array | None = None
    count: int = 0

    def add(self, row: Array) -> None:
        if self.held is None:
            self.held = np.empty((_ROWS, *row.shape), row.dtype)
        elif self.count == len(self.held):
            self.held = np.concatenate([self.held, np.empty_like(self.held)])
        alike([self.held.shape[1:], row.shape])  # NumPy would repeat a row that is too short
        self.held[self.count] = row
        self.count += 1

    def array(self) -> Array:
        assert self.held is not None
        return self.held[: self.count]


@final
@dataclass
class Made:
    """What a round computes: a result of the plan by its number, in sizes that variables say."""

    number: int
    sizes: list[Reader]


@final
@dataclass
class Known:
    """What the host knows after a round."""

    numbers: list[Reader]
    like: Host

    def host(self, values: Values) -> Host:
        if not self.like.symbolic:
            return self.like
        flat = np.array([read(values) for read in self.numbers], numpy_type(self.like.elem))
        return Host(flat.reshape(self.like.array.shape), self.like.elem)


@final
@dataclass
class Passed:
    """An input of the body that is an output too, by its number."""

    number: int


Source = Made | Known | Passed


def reader(size: Any) -> Reader:
    """A size as a function of variables' values."""
    if not isinstance(size, UOp):
        number = int(size)
        return lambda values: number
    if size.op is Ops.CONST:
        return reader(int(size.arg))
    if size.op is Ops.DEFINE_VAR:
        name = str(size.arg[0])
        return lambda values: values[name]
    if size.op in (Ops.ADD, Ops.MUL) and all(s.dtype is size.dtype for s in size.src):
        a, b = map(reader, size.src)
        if size.op is Ops.ADD:
            return lambda values: a(values) + b(values)
        return lambda values: a(values) * b(values)
    return lambda values: concrete(size, values)
