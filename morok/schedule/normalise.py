"""A tensor graph without identities: buffers become numbered PARAMs, bound variables lose their values, calls
their names.

Two computations of the same form on different buffers become the same node, which is what the schedule cache
is keyed by. The walk is the only work that a cached schedule costs, so it is kept tight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from morok.dtype import void
from morok.dtype.records import record
from morok.errors import IRError, VariableError
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.ir.provenance import place


@final
@record(frozen=True)
class Normalised:
    """The graph (a SINK over the outputs), what its PARAMs stand for, and the values of its variables."""

    sink: UOp
    buffers: tuple[UOp, ...]
    values: dict[str, int]
    made: dict[UOp, UOp]  # from nodes as they were, which have the lines of who asks, to those of the graph


def normalise(outputs: Sequence[UOp]) -> Normalised:
    """Replaces every BUFFER by a PARAM, in the order of a walk, and every BIND by its variable."""
    buffers: list[UOp] = []
    values: dict[str, int] = {}
    variables: dict[UOp, UOp] = {}  # with the first node that uses each
    done: dict[UOp, UOp] = {node: node for node in outputs if not node.src}
    for node in done:
        _refuse_place(node)
    stack: list[UOp] = [node for node in reversed(outputs) if node.src]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        op = node.op
        if op is Ops.BUFFER:
            param = (len(buffers), node.arg, node.src[1].arg)
            done[node] = make(Ops.PARAM, node.dtype, (), param, node.origin)
            buffers.append(node)
            stack.pop()
            continue
        if op is Ops.BIND:
            _record(values, node)
            done[node] = node.src[0]
            stack.pop()
            continue
        if op is Ops.IDENTITY or op is Ops.CALL:
            value = node.src[0]  # a number like that of a buffer; a name that no kernel needs
            if value in done:
                done[node] = done[value]
                stack.pop()
            else:
                stack.append(value)
            continue
        waiting = len(stack)
        for s in node.src:
            if s not in done:
                if s.src:
                    stack.append(s)
                else:
                    done[s] = s
                    if s.op is Ops.DEFINE_VAR:
                        variables.setdefault(s, node)
                    else:
                        _refuse_place(s)
        if len(stack) == waiting:
            stack.pop()
            src = tuple([done[s] for s in node.src])
            done[node] = node if src == node.src else make(op, node.dtype, src, node.arg, node.origin)
    for variable, user in variables.items():
        name, low, high = variable.arg
        if name not in values:
            raise VariableError(
                f"variable {name} has no value; bind it to one of {low} … {high}",
                place=place(user) or place(variable),
            )
    sink = make(Ops.SINK, void, tuple([done[node] for node in outputs]))
    return Normalised(sink, tuple(buffers), values, done)


def _refuse_place(node: UOp) -> None:
    if node.op is Ops.PARAM:
        raise IRError("this has no value: it stands for a tensor that is not there yet")


def _record(values: dict[str, int], node: UOp) -> None:
    name, value = node.src[0].arg[0], node.src[1]
    if value.op is not Ops.CONST:
        raise VariableError(f"variable {name} is bound to an expression, not to a number", place=place(node))
    old = values.setdefault(name, value.arg)
    if old != value.arg:
        low, high = sorted((old, value.arg))
        raise VariableError(
            f"variable {name} is bound to {low} and to {high} in one computation", place=place(node)
        )
