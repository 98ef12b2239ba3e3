"""Positions that are checked where they are used: CHECK, and what becomes of its `arg` on the way down.

    tensor graph     Complaint: what to say about a position that is outside
    one kernel       the number of the check in it
    lowered kernel   Slot: the buffer of notes, and the place in it that a wrong position is written to

A note of 0 says that nothing was wrong, for 0 is outside of nothing but an empty axis, which is refused when
the graph is made. As a value a CHECK is an ordinary op. What is noted besides is looked at by whoever runs
the kernel, so it may be noted often, or by several threads at a time: each of them is right.
"""

from __future__ import annotations

from typing import final

from morok.dtype import DType, PtrDType, int64
from morok.dtype.records import record
from morok.ir.args import register_arg
from morok.ir.build import define_global
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops

NOTE = ("note",)  # the `arg` of a STORE of notes: threads may meet there


@register_arg
@final
@record(frozen=True)
class Complaint:
    """The words for a position that is outside: `text` has a place {} for the number, as it was given."""

    text: str
    from_the_end: bool = False  # negative numbers had the size added to them


@register_arg
@final
@record(frozen=True)
class Slot:
    """Where a kernel notes a wrong position."""

    buffer: int  # its number among the kernel's
    place: int
    size: int  # places of the buffer


def check(x: UOp, limit: UOp, complaint: Complaint, otherwise: UOp | None = None) -> UOp:
    """x, which has to lie in 0 … limit-1; where it does not, something else (0), and a note."""
    other = const(x.dtype, 0) if otherwise is None else otherwise
    return make(Ops.CHECK, x.dtype, (x, limit, other), complaint)


def guarded(node: UOp, gate: UOp, src: tuple[UOp, ...] | None = None) -> UOp:
    """A CHECK that asks only where a condition holds, and of something harmless elsewhere."""
    x, limit, other = node.src if src is None else src
    return node.replace((alu(Ops.WHERE, gate, x, const(x.dtype, 0)), limit, other))


def inside(node: UOp) -> UOp:
    """Whether the position of a CHECK is one."""
    x, limit, _ = node.src
    below = alu(Ops.CMPLT, x, limit)
    if x.dtype.is_unsigned:
        return below
    return alu(Ops.AND, alu(Ops.NOT, alu(Ops.CMPLT, x, const(x.dtype, 0))), below)


def without_error_flag(node: UOp) -> UOp:
    """The value of a CHECK alone."""
    return alu(Ops.WHERE, inside(node), node.src[0], node.src[2])


def error_flags_of(kernel: UOp) -> UOp | None:
    """The buffer of notes of a lowered kernel; None if it checks nothing."""
    for node in toposort(kernel):
        if node.op is Ops.CHECK and isinstance(node.arg, Slot):
            return define_global(int64, node.arg.size, node.arg.buffer)
    return None


def memory_of(kernel: UOp) -> dict[int, tuple[DType, int]]:
    """Type and size of every buffer of a kernel, by number; notes are one of them."""
    found: dict[int, tuple[DType, int]] = {}
    for node in toposort(kernel):
        if node.op is Ops.DEFINE_GLOBAL and isinstance(node.dtype, PtrDType):
            found[int(node.arg)] = node.dtype.elem, node.dtype.size
        elif node.op is Ops.CHECK and isinstance(node.arg, Slot):
            found[node.arg.buffer] = int64, node.arg.size
    return dict(sorted(found.items()))


def count_buffers(kernel: UOp) -> int:
    """How many buffers a kernel is called with."""
    return 1 + max(memory_of(kernel), default=-1)
