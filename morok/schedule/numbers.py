"""Numbers that another one stands in for each time: x * 0.1, x * 0.2, … is one graph from the third on.

A number in a graph is a constant of its kernels, and what is known of it makes them faster. But a loop that
computes with another one at each turn, a rate that falls, a step of a schedule, a temperature, would wait
for a compiler at each. So of graphs that are equal but for their floats it is remembered which of these
differ; when the third one comes, these are read from memory. Only where a number is an operand like any
other: an exponent decides how a power is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from morok.caches import Cache
from morok.dtype import DType
from morok.dtype.records import record
from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.movement import expand, reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import TRANSFERS, Ops
from morok.schedule.signature import Walk, graph_form

_BY_VALUE = frozenset(
    (
        Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.MIN,
        Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE, Ops.WHERE,
    )
)  # fmt: skip
_MOST = 64  # numbers of a graph
_TURNS = 3  # with other numbers, until they are read from memory


@final
@record
class _Seen:
    """Graphs that are equal but for their numbers."""

    values: list[str]  # of the last one
    differ: set[int]
    turns: int


_seen: Cache[int, _Seen] = Cache("schedule.numbers", 256)


def numbers_that_vary(sink: UOp) -> tuple[list[UOp], str]:
    """The CONSTs of a normalised graph that have been others often enough, and where it is computed."""
    walk = Walk([sink])
    order = list(walk.number)
    found = _operands(order)
    if not 0 < len(found) <= _MOST:
        return [], ""
    devices = {str(n.arg[2]) for n in order if n.op is Ops.PARAM}
    device = next(iter(devices), "")
    if len(devices) != 1 or is_mesh(device) or any(n.op in TRANSFERS for n in order):
        return [], ""
    values, which = [repr(c.arg) for c in found], frozenset(found)
    # A number is enough: two forms that share one would share what is known to vary, and nothing else.
    form = hash(graph_form([sink], walk, which))
    seen = _seen.get(form)
    if seen is None or len(seen.values) != len(values):
        _seen[form] = _Seen(values, set(), 1)
        return [], ""
    other = {n for n, (a, b) in enumerate(zip(values, seen.values, strict=True)) if a != b}
    if other:
        seen.values, seen.turns = values, seen.turns + 1
        seen.differ |= other
    return ([found[n] for n in sorted(seen.differ)] if seen.turns >= _TURNS else []), device


def _operands(order: Iterable[UOp]) -> list[UOp]:
    """Numbers that are operands, in the order of the walk."""
    found: dict[UOp, None] = {}
    for node in order:
        if node.op in _BY_VALUE:
            found.update((s, None) for s in node.src if is_operand(s, node))
    return list(found)


def is_operand(number: UOp, user: UOp) -> bool:
    """Whether a node is a number of which its user asks nothing but the value: no size, no exponent."""
    return number.op is Ops.CONST and user.op in _BY_VALUE and _is_number(number.dtype)


def _is_number(dtype: DType) -> bool:
    return dtype.is_float or (dtype.is_int and not dtype.is_index)


def from_memory(outputs: Sequence[UOp], memory: dict[UOp, UOp]) -> list[UOp]:
    """The graph with numbers read from memory of one element each."""
    done: dict[UOp, UOp] = {}
    for node in toposort(*outputs):
        src = [done[s] for s in node.src]
        if node.op in _BY_VALUE:
            src = [
                spread(memory[s], node) if s in memory else new for s, new in zip(node.src, src, strict=True)
            ]
        sources = tuple(src)
        done[node] = (
            node if sources == node.src else make(node.op, node.dtype, sources, node.arg, node.origin)
        )
    return [done[output] for output in outputs]


def spread(memory: UOp, like: UOp) -> UOp:
    """Memory of one element as an operand of a node."""
    sizes = shape(like) or ()
    return expand(reshape(memory, (1,) * len(sizes)), sizes) if sizes else reshape(memory, ())
