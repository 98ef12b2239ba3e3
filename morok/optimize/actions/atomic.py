"""The action ATOMIC: steps that meet in one place, by all threads at once, where no order changes the result.

Whole numbers that are added, and the largest or smallest of some, are the same in every order. So each step
is a thread's own, and the memory joins what arrives (`arg` of the STORE: by which op). Nobody walks through
steps that are others'.
"""

from __future__ import annotations

from morok.ir.infer import ranges
from morok.ir.memory import joined_by, memory_joins
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.partition import Scatter, scatter_of
from morok.optimize.loops import Loops, loop
from morok.optimize.record import Opt
from morok.schedule.kernel.ranges import replace_loops


def can_atomic(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if machine.scatters is None:
        return "the machine's memory joins nothing"
    found = scatter_of(loops, opt.axis)
    if isinstance(found, str):
        return found
    what = _joined(found)
    return what if isinstance(what, str) else None


def _joined(found: Scatter) -> tuple[Op, UOp] | str:
    """The op by which steps join what is there, and with what; or why memory cannot do that."""
    value, address = found.effect.src[0].src[1], found.address
    op, dtype = value.op, value.dtype
    if not memory_joins(op, dtype):
        return f"the order of {op.name} of {dtype} counts, or memory does not join it"
    here, others = [], []
    stack = [value]
    while stack:
        part = stack.pop()
        if part.op is op:
            stack += reversed(part.src)
        elif part.op is Ops.INDEX and part.src[:2] == address.src[:2]:
            here.append(part)
        else:
            others.append(part)
    if len(here) != 1 or not others:
        return "a step does not join its place with one value"
    joined = others[0]
    for part in others[1:]:
        joined = alu(op, joined, part)
    target = address.src[0]
    if any(n is target for n in toposort(joined, address.src[1])):
        return "a step reads what others write"
    ordered = [r for r in found.effect.src[1:] if r.arg[1] is AxisKind.ORDERED]
    if not all(r in ranges(address.src[1]) for r in ordered):
        return "the places of some steps are one place for all"
    return op, joined


def atomic(loops: Loops, opt: Opt) -> UOp:
    """Every step is a thread's, and memory joins what meets.

    ATOMIC(0):   for r0 in order: y[x[r0]] = y[x[r0]] + z[r0]   →   for all r0: y[x[r0]] += z[r0], at once
    """
    found = scatter_of(loops, opt.axis)
    assert not isinstance(found, str)
    what = _joined(found)
    assert not isinstance(what, str)
    op, value = what
    effect = found.effect
    store = make(Ops.STORE, effect.src[0].dtype, (found.address, value), op, effect.src[0].origin)
    ended = make(Ops.END, effect.dtype, (store, *effect.src[1:]), effect.arg, effect.origin)
    kernel = loops.ast.replace(tuple([ended if s is effect else s for s in loops.ast.src]))
    ordered = [r for r in effect.src[1:] if r.arg[1] is AxisKind.ORDERED]
    free = {r: loop(r.src[0], int(r.arg[0]), AxisKind.LOOP, r) for r in ordered}
    return replace_loops(kernel, {old: (new, (new,)) for old, new in free.items()})


def refuses(loops: Loops, opt: Opt) -> str | None:
    """Why what memory joins does not allow an action: each value arrives once, by itself."""
    if opt.name in ("LOCAL", "TILE", "SWAP", "PADTO", "UNROLL", "GROUP", "GROUPTOP", "PARTITION", "ATOMIC"):
        return None
    if any(n.op is Ops.STORE and joined_by(n) is not None for n in loops.order):
        return "memory joins single values, each of which arrives once"
    return None
