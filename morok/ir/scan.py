"""Scans (running reductions) inside a kernel: what a SCAN holds, and how it is taken apart.

    SCAN(x(r), r)            at each step of r everything up to that step: x(0) ∘ … ∘ x(r)
    SCAN(x(r), start, r)     the same, after `start`
    SCAN(a(r), b(r), r)      the recurrence h = a·h + b, which begins with 0 (op MULACC)
    SCAN(x(r, c), c, r)      the same as the first, carried in a buffer at place c (in a row)

A SCAN lives in its loops and does not close them: the effect around it does, and stores at every step. Its
loops run in order, outer ones first. REDUCE(SCAN(…), *loops) with the op LAST is what the last step has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from morok.dtype import DType, identity
from morok.dtype.records import record
from morok.errors import DTypeError, IRError
from morok.ir.args import register_arg
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place

# Ops that a running reduction may combine with; MULACC takes two values, a factor and what is added.
SCAN_OPS: frozenset[Op] = frozenset((Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.MULACC))
LAST: tuple[Op, ...] = (Ops.PICK,)  # the argument of a REDUCE that takes what the last step has left


@final
@register_arg
@record(frozen=True)
class Scan:
    """The argument of a SCAN: its op, whether a start is given, how many neighbouring lanes are steps.

    In a row, what is carried has a place in a buffer instead of a register, so that loops may lie inside.
    """

    op: Op
    start: bool = False
    lanes: int = 1
    row: bool = False


@final
@record(frozen=True)
class Parts:
    """The sources of a SCAN."""

    values: tuple[UOp, ...]
    start: UOp | None
    place: UOp | None
    loops: tuple[UOp, ...]


def values_of(op: Op) -> int:
    """How many values a step takes."""
    return 2 if op is Ops.MULACC else 1


def parts(node: UOp) -> Parts:
    """A SCAN taken apart."""
    how: Scan = node.arg
    count = values_of(how.op)
    start = node.src[count] if how.start else None
    place = node.src[count + how.start] if how.row else None
    return Parts(node.src[:count], start, place, node.src[count + how.start + how.row :])


def scan(
    values: Sequence[UOp],
    op: Op,
    loops: Sequence[UOp],
    start: UOp | None = None,
    at: UOp | None = None,
) -> UOp:
    """The running reduction of values over loops; over none it is a single step."""
    if op not in SCAN_OPS or len(values) != values_of(op):
        raise IRError(f"{op.name} of {len(values)} values is no running reduction")
    if any(v.dtype is not values[0].dtype for v in values):
        raise DTypeError("the values of a running reduction have one type", place=place(values[0]))
    if not loops:
        return step(op, values, start)
    given = [s for s in (start, at) if s is not None]
    how = Scan(op, start is not None, row=at is not None)
    return make(Ops.SCAN, values[0].dtype, (*values, *given, *loops), how, depth=2)


def step(op: Op, values: Sequence[UOp], before: UOp | None) -> UOp:
    """What one step makes of what was before it."""
    if op is Ops.MULACC:
        nothing = const(values[0].dtype, neutral(op, values[0].dtype))
        return alu(op, values[0], nothing if before is None else before, values[1])
    return values[0] if before is None else alu(op, before, values[0])


def scan_loops(nodes: Iterable[UOp]) -> list[UOp]:
    """The loops of all running reductions among some nodes."""
    found = (r for n in nodes if n.op is Ops.SCAN for r in parts(n).loops if r.op is Ops.RANGE)
    return list(dict.fromkeys(found))


def neutral(op: Op, dtype: DType) -> Any:
    """What changes nothing before the first step. The sum of nothing is -0.0: it keeps the sign of a zero."""
    scalar = dtype.scalar
    if op is Ops.MULACC:
        return 0.0 if scalar.is_float else 0
    return -0.0 if op is Ops.ADD and scalar.is_float else identity(op.name, scalar)
