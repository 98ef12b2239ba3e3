"""The table of operators: an ATen overload, and the function of morok's tensors that computes it.

A function takes what the overload's schema says, with tensors of morok's in place of torch's. What has no
effect on values (`layout`, `device`, `memory_format` …) never arrives: results get the strides and the device
that torch has found for them. A parameter `call` gets the node, for those who have to know the type of the
result or who reads it. Every result is converted to the type that torch expects, and compared with its shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, final

import torch

from morok.dtype import DType
from morok.errors import MorokError
from morok.tensor.tensor import Tensor
from morok.torch.private import elementwise_dtypes, promotion_kinds
from morok.torch.types import from_torch, wide


class Unsupported(MorokError):
    """A node that morok cannot compute; torch does it instead."""


@final
@dataclass(frozen=True)
class Row:
    """An overload and its function."""

    name: str  # "aten.add.Tensor"
    family: str
    function: Callable[..., Any]
    takes_call: bool


_TABLE: dict[str, Row] = {}
F = TypeVar("F", bound=Callable[..., Any])
T: TypeAlias = Any  # a tensor of morok's: rows are called through the table, which no checker follows


def op(*names: str, family: str | None = None) -> Callable[[F], F]:
    """A decorator that enters a function under the names of overloads; `aten.` is understood."""

    def enter(function: F) -> F:
        takes_call = "call" in inspect.signature(function).parameters
        for name in names:
            full = name if name.count(".") > 1 else f"aten.{name}"
            where = family or function.__module__.rpartition(".")[2]
            _TABLE[full] = Row(full, where, function, takes_call)
        return function

    return enter


def lookup(target: Any) -> Row | None:
    """The row of an overload."""
    return _TABLE.get(str(target))


def rows() -> Iterable[Row]:
    """All rows, by name."""
    return (_TABLE[name] for name in sorted(_TABLE))


@final
class Call:
    """A node while it is computed; `order` is that of the axes, if they come as they lie in memory."""

    def __init__(self, node: Any, sizes: Callable[[Any], Any], order: tuple[int, ...] | None = None) -> None:
        self.node = node
        self.known = sizes  # a size of torch's as a number
        self.order = order

    @property
    def val(self) -> Any:
        """What torch says about the result: a fake tensor, or several."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> DType:
        """The type of the result."""
        return from_torch(self.val.dtype)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the result."""
        sizes = [self.known(n) for n in self.val.shape]
        return tuple(sizes if self.order is None else [sizes[axis] for axis in self.order])

    @property
    def wide(self) -> DType:
        """The type in which the result is computed."""
        return from_torch(wide(self.val.dtype))

    def arg(self, number: int, name: str = "") -> Any:
        """What torch says about an argument."""
        args = self.node.args
        given = args[number] if number < len(args) else self.node.kwargs.get(name)
        return given.meta["val"] if isinstance(given, torch.fx.Node) else given

    def wants(self, number: int) -> bool:
        """Whether somebody reads one of several results."""
        for user in self.node.users:
            if user.op == "output" or user.args[1:] == (number,) or "getitem" not in str(user.target):
                return True
        return False

    def computation_dtype(self, operands: Sequence[int], floating: bool = False) -> DType:
        """The type in which torch computes with some of the arguments: promoted, narrow floats widened."""
        kind = promotion_kinds.INT_TO_FLOAT if floating else promotion_kinds.DEFAULT
        vals = [v for n in operands if (v := self.arg(n)) is not None]
        found, _ = elementwise_dtypes(*vals, type_promotion_kind=kind)
        return from_torch(wide(found))


def elementwise(*names: str, operands: Sequence[int] = (0, 1), floating: bool = False) -> Callable[[F], F]:
    """As `op`, for functions of numbers: operands (by their positions) arrive in the type of the computation.

    With `floating` whole numbers become floats first.
    """

    def enter(function: F) -> F:
        takes_call = "call" in inspect.signature(function).parameters

        def converted(*args: Any, call: Call, **kwargs: Any) -> Any:
            places = [n for n in operands if n < len(args)]
            kind = call.computation_dtype(places, floating)
            given = list(args)
            for n in places:
                given[n] = as_operand(given[n], kind)
            if takes_call:
                kwargs["call"] = call
            return function(*given, **kwargs)

        converted.__doc__ = function.__doc__
        converted.__module__ = function.__module__
        op(*names)(converted)
        return function

    return enter


def as_operand(value: Any, kind: DType) -> Any:
    """A tensor in a type; a number as one of that kind."""
    if isinstance(value, Tensor):
        return value if value.dtype is kind else value.cast(kind)
    if isinstance(value, bool | int | float):
        if kind.is_float:
            return float(value)
        return bool(value) if kind.bits == 1 or str(kind) == "bool" else int(value)
    return value


def tensor_of(value: Any, kind: DType, like: Tensor | None = None) -> Tensor:
    """A number as a tensor of one element; a tensor as it is."""
    if isinstance(value, Tensor):
        return value.cast(kind)
    return Tensor.full((), value, dtype=kind)
