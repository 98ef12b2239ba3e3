"""Stage 6: loops and buffers of a kernel have numbers that follow from the kernel alone."""

from __future__ import annotations

from morok.ir import movement
from morok.ir.node import alu, toposort
from morok.ir.ops import AxisKind, Ops
from morok.schedule.kernel.numbering import number_buffers, number_ranges
from tests.schedule.test_passes import kernel, param, reduced, simple


def test_ranges_are_numbered_outer_ones_first() -> None:
    x = param(1, 8, 16)
    column = movement.expand(reduced(x, 0), (8, 16))
    after = number_ranges(simple(kernel(alu(Ops.SUB, x, column))))
    (effect,) = after.src
    assert [(r.arg[0], r.src[0].arg) for r in effect.src[1:]] == [(0, 16), (1, 8)]
    numbers = [n.arg[0] for n in toposort(after) if n.op is Ops.RANGE]
    assert sorted(numbers) == [0, 1, 2]
    assert all(n.arg[1] is AxisKind.REDUCE for n in toposort(after) if n.op is Ops.RANGE and n.arg[0] == 2)


def test_buffers_are_numbered_outputs_first() -> None:
    graph = kernel(alu(Ops.SUB, param(7, 4), param(3, 4)))
    after, old = number_buffers(graph)
    assert old == (0, 7, 3)
    assert sorted(n.arg for n in toposort(after) if n.op is Ops.DEFINE_GLOBAL) == [0, 1, 2]
