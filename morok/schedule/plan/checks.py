"""Checks of positions in a schedule: who says what, and kernels for checks that nothing else makes.

A check rides along with the value that needs the position. Where the algebra has found that the value does
not (a table of equal numbers, a product with 0), nobody would hear of a wrong one, so the position is looked
at by itself: the largest and the least that is outside, 0 if there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from morok.dtype import int64
from morok.ir.build import cast
from morok.ir.checks import inside, without_error_flag
from morok.ir.movement import reduce_axis, reshape, shrink
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import Ops
from morok.rewrite.observe import report
from morok.schedule.indexing import known_shape
from morok.schedule.plan.kernels import Kernel, lower, normal_form
from morok.schedule.plan.steps import Check
from morok.schedule.split import CUT, KernelWrite, Split


@final
@dataclass(frozen=True)
class CheckKernel:
    """A kernel that does nothing but look at positions."""

    kernel: Kernel
    numbers: tuple[int, ...]  # of its buffers
    is_late: bool  # it reads what the kernel writes that it was made for


def place_checks(
    split: Split, writes: Sequence[KernelWrite], checks: Sequence[UOp], made: frozenset[int]
) -> tuple[UOp | None, list[Check], list[CheckKernel]]:
    """Of a kernel's checks: memory for notes, what they mean, and kernels for those that it does not make."""
    if not checks:
        return None, [], []
    first = writes[0]
    param = split.new_param(const(int64, 0), len(checks), first.device)
    kernels = []
    noted = set(made)
    for slot, node in enumerate(checks):
        if slot in made:
            continue
        target = shrink(param, ((slot, slot + 1),))
        form = normal_form([KernelWrite(-1, target, _worst(node), first.device, node.origin)])
        report(CUT, split.graph, form.sink)
        kernel = lower(form.sink)
        if any(effect.src[0].src[1].op is not Ops.CONST for effect in kernel.ast.src):
            numbers = tuple(int(form.params[n].arg[0]) for n in kernel.params)
            own = {write.done for write in writes}
            kernels.append(CheckKernel(kernel, numbers, not own.isdisjoint(toposort(node))))
            noted.add(slot)
    if not noted:
        split.params.pop()
        return None, [], []
    number = int(param.arg[0])
    found = [
        Check(number, slot, checks[slot].arg, checks[slot].src[1], checks[slot].dtype, checks[slot].origin)
        for slot in sorted(noted)
    ]
    return param, found, kernels


def without_checks(graph: UOp) -> UOp:
    """A tensor graph that takes positions as they are: those outside read 0 and write nothing."""
    order = toposort(graph)
    if not any(n.op is Ops.CHECK for n in order):
        return graph
    done: dict[UOp, UOp] = {}
    for n in order:
        done[n] = done[n.src[0]] if n.op is Ops.CHECK else n.replace(tuple([done[s] for s in n.src]))
    return done[graph]


def _worst(node: UOp) -> UOp:
    """Of all positions of a CHECK one that is outside; 0 if none is. Its shape is (1,)."""
    done: dict[UOp, UOp] = {}
    for n in toposort(node):
        new = n.replace(tuple([done[s] for s in n.src]))
        done[n] = without_error_flag(new) if n.op is Ops.CHECK and n is not node else new
    node = done[node]
    sizes = known_shape(node)
    wrong = alu(Ops.WHERE, inside(node), const(int64, 0), cast(node.src[0], int64))
    if sizes:
        axes = tuple(range(len(sizes)))
        high, low = (reduce_axis(wrong, op, axes) for op in (Ops.MAX, Ops.MIN))
        wrong = alu(Ops.WHERE, alu(Ops.CMPNE, high, const(int64, 0)), high, low)
    return reshape(wrong, (1,))
