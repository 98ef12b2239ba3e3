"""The action PARTITION: rows that go to places known when it runs, in parallel and in order.

Steps that may meet in one place keep their order, so one thread takes all of them. But which place a step
goes to tells who takes it: each of several threads walks through all steps, and takes those whose row,
divided by their number, leaves its own number. Two steps of one place are still one after the other, so a sum
is the same every time; and what a thread does not take it does not read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.bounds import bounds
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import scan_loops
from morok.machine.machine import Machine
from morok.optimize.loops import Loops, both, gate_of, loop, terms_of
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.symbolic.quotients import join_sum

MOST = 1 << 16


class Scatter(NamedTuple):
    """An effect whose steps keep their order: the store's address, and the number of the row it goes to."""

    effect: UOp
    address: UOp
    row: UOp


def scatter_of(loops: Loops, number: int) -> Scatter | str:
    """What goes to places that are read, in the order of a loop; or why that is not so."""
    r = loops.by_number.get(number)
    if r is None:
        return f"there is no loop {number}"
    if r.arg[1] is not AxisKind.ORDERED or r in scan_loops(loops.order):
        return f"loop {number} is none whose steps go to places that are read"
    if len(loops.closers[r]) != 1 or loops.closers[r][0].op is not Ops.END:
        return f"several effects have loop {number}"
    (effect,) = loops.closers[r]
    if effect.src[0].op is not Ops.STORE:
        return f"loop {number} does not end with one store"
    ordered = {s for s in effect.src[1:] if s.arg[1] is AxisKind.ORDERED}
    address = effect.src[0].src[0]
    terms = terms_of(address.src[1])
    moving = [(t, k) for t, k in terms if not ordered.isdisjoint(ranges(t))]
    step = math.gcd(*(k for _, k in moving)) if moving else 0
    low, high = bounds(join_sum([p for p in terms if p not in moving], 0, address.src[1]))
    if not moving or not 0 <= low <= high < step:
        return "two rows might meet in one place"
    target = address.src[0]
    for n in toposort(effect.src[0].src[1]):
        if n.op is Ops.INDEX and n.src[0] is target and n.src[1] is not address.src[1]:
            return "a step reads what others write"
    return Scatter(effect, address, join_sum([(t, k // step) for t, k in moving], 0, address.src[1]))


def can_partition(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    if not 2 <= opt.amount <= MOST:
        return f"so many threads share the steps: 2 to {MOST}, not {opt.amount}"
    found = scatter_of(loops, opt.axis)
    return found if isinstance(found, str) else None


def partition(loops: Loops, opt: Opt) -> UOp:
    """Every thread takes the steps of its own rows.

    PARTITION(0, 4):   y[x[r0]] += z[r0]   →   for r1 < 4: if x[r0] % 4 = r1: y[x[r0]] += z[r0]
    """
    found = scatter_of(loops, opt.axis)
    assert not isinstance(found, str)
    mine = loop(opt.amount, loops.next_number(), AxisKind.LOOP, loops.by_number[opt.axis])
    turn = alu(Ops.FLOORMOD, found.row, const(found.row.dtype, opt.amount))
    taken = alu(Ops.CMPEQ, turn, mine)
    store = found.effect.src[0]
    place = _under(found.address, taken)
    value = store.src[1]
    asked = set(toposort(found.row))  # these say whose turn it is
    reads = [n for n in toposort(value) if n.op is Ops.INDEX and n not in asked and not n.dtype.is_ptr]
    done: dict[UOp, UOp] = {}
    for n in toposort(value):
        new = n.replace(tuple([done[s] for s in n.src]))
        done[n] = _under(new, taken) if n in reads else new
    effect = make(
        Ops.END,
        found.effect.dtype,
        (store.replace((place, done[value])), *found.effect.src[1:], mine),
        found.effect.arg,
        found.effect.origin,
    )
    return substitute(loops.ast, {found.effect: effect})


def _under(address: UOp, condition: UOp) -> UOp:
    """A place that is touched where a condition holds as well."""
    gate = both(gate_of(address), condition)
    return make(Ops.INDEX, address.dtype, (*address.src[:2], gate), address.arg, address.origin)
