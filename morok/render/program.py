"""What a renderer hands on: the text, and what one must know to call what is compiled from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import final

from morok.dtype import DType
from morok.dtype.records import record
from morok.dtype.types import parse
from morok.errors import CompileError, VariableError
from morok.ir.arithmetic.alu import evaluate
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops, op_by_name
from morok.ir.provenance import place
from morok.ir.warp_roles import Box

# A buffer's number, its element type, and how TMA sees it.
Described = tuple[int, str, Box]
# A number that may depend on variables: steps of a stack machine, made of plain values so that it can be
# stored. A number pushes itself, "$n" the variable n, "ADD int32" applies an op to what lies on top.
Extent = tuple[int | str, ...]


@final
@record(frozen=True)
class Argument:
    """A buffer that a kernel takes: its number, element type, size in elements, and whether it is written."""

    number: int
    dtype: DType
    size: int
    written: bool


@final
@record(frozen=True)
class Program:
    """A kernel as text. `variables` are passed after the buffers, in this order, each in 64 bits."""

    name: str
    text: str
    arguments: tuple[Argument, ...]  # the buffers that it uses
    variables: tuple[str, ...]
    buffers: int = 0  # how many buffers the caller passes
    scratch: int = 0  # bytes of working memory that each thread needs
    threaded: bool = False  # has an axis that workers share
    grid: tuple[Extent, ...] = ()  # blocks in each dimension
    block: tuple[int, ...] = ()  # threads in each dimension
    shared: int = 0  # bytes of shared memory that the launch has to ask for
    tensor_maps: tuple[Described, ...] = ()  # descriptions of buffers that it takes after the variables
    starts: tuple[
        int, ...
    ] = ()  # the line of the text at which each instruction begins, and the last one's end


def line_numbers(lines: Sequence[str], starts: Sequence[int], first: int) -> tuple[int, ...]:
    """Where positions in a list of lines are in the text, which begins with line `first` of it, from 0."""
    breaks = list(accumulate([line.count("\n") for line in lines], initial=0))
    return tuple([first + n + breaks[n] for n in starts])


def extent_of(node: UOp) -> Extent:
    """An integer expression over variables as steps."""
    steps: dict[UOp, Extent] = {}
    for n in toposort(node):
        if n.op is Ops.CONST:
            steps[n] = (int(n.arg),)
        elif n.op is Ops.DEFINE_VAR:
            steps[n] = (f"${n.arg[0]}",)
        elif n.op.is_alu and n.op is not Ops.CAST:
            operands = tuple(step for s in n.src for step in steps[s])
            steps[n] = (*operands, f"{n.op.name} {n.src[-1].dtype.name}")
        elif n.op is Ops.CAST and n.dtype.is_int and n.src[0].dtype.is_int:
            steps[n] = steps[n.src[0]]  # the bounds of a size allow both types
        else:
            raise CompileError(f"the size of a grid cannot depend on {n.op.name}", place=place(n))
    return steps[node]


def extent_value(extent: Extent, values: Mapping[str, int]) -> int:
    """The number for these values of the variables."""
    stack: list[int] = []
    for step in extent:
        if isinstance(step, int):
            stack.append(step)
        elif step.startswith("$"):
            if step[1:] not in values:
                raise VariableError(f"a kernel needs a value for the variable {step[1:]}")
            stack.append(values[step[1:]])
        else:
            name, dtype = step.split()
            op = op_by_name(name)
            operands = stack[-op.arity :]
            del stack[-op.arity :]
            stack.append(int(evaluate(op, parse(dtype), *operands)))
    return stack[-1]
