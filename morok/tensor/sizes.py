"""Sizes and axes as users write them: ints, variables with bounds, axes from either end.

A size inside of a shape is a Python int or an index node. Everything that is wrong with one is said here, in
one sentence with the shapes in it and with what would fit.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from morok.errors import MorokError, ShapeError, SizesDiffer, VariableError
from morok.ir.arithmetic.alu import evaluate
from morok.ir.build import bind, variable
from morok.ir.infer import Shape, Size, show_shape
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.operators import Operators
from morok.ir.ops import ALU, Op, Ops
from morok.ir.provenance import caller
from morok.ir.sizes import canonical, negative_at


@final
class Variable(Operators[UOp]):
    """A size that is known when the program runs, between `low` and `high` (both included).

    >>> n = Variable("n", 1, 128)
    >>> x = Tensor.ones(128)[: n.bind(5)]

    Arithmetic gives expressions, which are sizes too. One compiled kernel serves the whole interval.
    """

    __slots__ = ("uop",)

    def __init__(self, name: str, low: int, high: int) -> None:
        self.uop = variable(name, low, high)

    @property
    def name(self) -> str:
        return str(self.uop.arg[0])

    @property
    def bounds(self) -> tuple[int, int]:
        return self.uop.arg[1], self.uop.arg[2]

    def bind(self, value: int) -> UOp:
        """The variable with the value that it has in this run."""
        try:
            return bind(self.uop, as_size(value, f"the value of variable {self.name}"))
        except MorokError as error:
            error.place = caller()
            raise

    def _combine(self, op: Op, *operands: Any) -> UOp:
        nodes = (x.uop if isinstance(x, Variable) else x for x in operands)
        return alu(op, *(x if isinstance(x, UOp) else const(self.uop.dtype, x) for x in nodes))

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.uop.arg[1]}, {self.uop.arg[2]})"


SizeLike = Any  # int, NumPy integer, index node or Variable


def as_size(value: SizeLike, what: str = "a size") -> Size:
    """A size that may be symbolic; its sign is not looked at."""
    if isinstance(value, Variable):
        return value.uop
    if isinstance(value, UOp):
        if not value.dtype.is_index:
            raise ShapeError(f"{what} must be a whole number or a variable, not a {value.dtype}")
        return canonical(value)
    if isinstance(value, bool):
        raise ShapeError(f"{what} must be a whole number, not {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise ShapeError(f"{what} must be a whole number, not {value!r}") from None


def flat_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`f(2, 3)` and `f((2, 3))` mean the same."""
    if len(args) == 1 and isinstance(args[0], tuple | list):
        return tuple(args[0])
    return args


def as_shape(args: Sequence[SizeLike]) -> Shape:
    """Sizes of a new tensor: whole and not negative."""
    sizes = tuple(as_size(size) for size in args)
    for size in sizes:
        if size < 0 if size.__class__ is int else negative_at(size) is not None:
            raise ShapeError(f"shape {show_shape(sizes)} has a negative size; sizes are 0 or more")
    return sizes


def as_axis(axis: Any, ndim: int, shape: Shape) -> int:
    """An axis counted from the front; negative ones count from the end."""
    try:
        number = operator.index(axis)
    except TypeError:
        raise ShapeError(f"an axis must be a whole number, not {axis!r}") from None
    if isinstance(axis, bool | np.bool_):  # most likely meant for another parameter, in torch's order
        raise ShapeError(f"an axis must be a whole number, not {axis!r}")
    if not -ndim <= number < ndim:
        fitting = f"use {-ndim} … {ndim - 1}" if ndim else "a scalar has none"
        raise ShapeError(f"axis {number} does not exist in shape {show_shape(shape)}; {fitting}")
    return number + ndim if number < 0 else number


def as_axes(axes: Any, shape: Shape) -> tuple[int, ...]:
    """One axis, several, or None for all; each once."""
    ndim = len(shape)
    if axes is None:
        return tuple(range(ndim))
    many = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    found = tuple(as_axis(axis, max(ndim, 1), shape) for axis in many)
    if len(set(found)) != len(found):
        raise ShapeError(f"axes {many} of shape {show_shape(shape)} name an axis twice; name each once")
    return found if ndim else ()  # a scalar has an axis 0 by courtesy, as in NumPy and PyTorch


_UNSET: Any = object()


def axis_or_dim(axis: Any, dim: Any) -> Any:
    """`axis=` and `dim=` are two names of one argument."""
    if dim is _UNSET:
        return axis
    if axis is not None:
        raise ShapeError(f"axis={axis!r} and dim={dim!r} are the same argument; give one of them")
    return dim


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all of them expand to, or an error that says which sizes differ."""
    ndim = max(map(len, shapes), default=0)
    result: list[Size] = []
    for axis in range(-ndim, 0):
        size: Size = 1
        for shape in shapes:
            own = shape[axis] if len(shape) >= -axis else 1
            if own == 1 or own == size:
                continue
            if size != 1:
                raise SizesDiffer(_no_broadcast(shapes, axis, size, own))
            size = own
        result.append(size)
    return tuple(result)


def _no_broadcast(shapes: tuple[Shape, ...], axis: int, a: Size, b: Size) -> str:
    listed = " and ".join(map(show_shape, shapes))
    one, other = (show_shape((size,))[1:-2] for size in (a, b))
    return (
        f"shapes {listed} do not broadcast: axis {axis} has sizes {one} and {other}, "
        "which must be equal, or one of them 1"
    )


def concrete(size: Size, values: Mapping[str, int] | None = None) -> int:
    """A size as a number, with the values that its variables are bound to."""
    if isinstance(size, int):
        return size
    known: dict[UOp, Any] = {}
    for node in toposort(size, stop=lambda n: n.op is Ops.BIND):
        if node.op is Ops.CONST:
            known[node] = node.arg
        elif node.op is Ops.BIND:
            known[node] = concrete(node.src[1], values)
        elif node.op is Ops.DEFINE_VAR:
            known[node] = _value_of(node, values or {})
        elif node.op in ALU:
            known[node] = evaluate(node.op, node.src[-1].dtype, *(known[s] for s in node.src), to=node.dtype)
        else:
            raise ShapeError(f"{node.op.name} is not a size")
    return int(known[size])


def _value_of(node: UOp, values: Mapping[str, int]) -> int:
    name, low, high = node.arg
    if name not in values:
        raise VariableError(f"variable {name} has no value; bind it to one of {low} … {high}")
    value = values[name]
    if not low <= value <= high:
        raise VariableError(f"variable {name} lies in {low} … {high}, so it cannot be {value}")
    return value


def concrete_shape(shape: Shape, values: Mapping[str, int] | None = None) -> tuple[int, ...]:
    return tuple(concrete(size, values) for size in shape)
