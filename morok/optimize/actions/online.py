"""The action ONLINE: online softmax. A maximum and the sum of powers below it, or what they weigh, in one
pass.

What is needed for it is found in `schedule/graph/attention/online_softmax.py`. The scores are computed once
for all three; codegen lets what has been added up fall where a larger maximum turns up
(`codegen/reduce/online.py`).
"""

from __future__ import annotations

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.optimize.loops import Loops
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.graph.attention.online_softmax import (
    online_power_sum,
    online_weighted_sum,
    power_sum,
    weighted_sum,
)


def find(loops: Loops, number: int) -> dict[UOp, UOp] | str:
    """What becomes of the nodes that a loop is for, or why it is none for it."""
    r = loops.by_number.get(number)
    if r is None:
        return f"there is no loop {number}"
    closers = loops.closers[r]
    if len(closers) == 1:
        weighted, power = weighted_sum(closers[0]), power_sum(closers[0])
        if weighted is not None:
            return online_weighted_sum(weighted)
        if power is not None:
            return online_power_sum(closers[0], power)
    return f"loop {number} is not that of a sum of powers below their maximum"


def can_online(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    if any(n.op is Ops.BUFFERIZE for n in loops.order):
        return "a value is kept in a buffer already"
    found = find(loops, opt.axis)
    return found if isinstance(found, str) else None


def online(loops: Loops, opt: Opt) -> UOp:
    """Powers below a maximum: it, their sum, and what they weigh where they are weights, share a loop.

    ONLINE(1):   Σ over r1 of exp(s - max over r2 of s)   →   both over r1
    """
    found = find(loops, opt.axis)
    assert not isinstance(found, str)
    return substitute(loops.ast, found)
