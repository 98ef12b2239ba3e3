"""The action ONLINE: a maximum, the sum of powers below it and what they weigh are found in one pass.

What is needed for it is found in `schedule/weighted.py`. The scores are computed once for all three; codegen
lets what has been added up fall where a larger maximum turns up (`codegen/online.py`).
"""

from __future__ import annotations

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.host import Host
from morok.optimize.loops import Loops
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.weighted import Weighted, in_one_pass, weighted_sum


def find(loops: Loops, number: int) -> Weighted | str:
    """The weighted sum over a loop, or why there is none."""
    r = loops.by_number.get(number)
    if r is None:
        return f"there is no loop {number}"
    closers = loops.closers[r]
    found = weighted_sum(closers[0]) if len(closers) == 1 else None
    return f"loop {number} is not that of a sum weighed by powers over their sum" if found is None else found


def can_online(loops: Loops, opt: Opt, host: Host) -> str | None:
    if not host.block_threads:
        return "the machine has no blocks of threads"
    if any(n.op is Ops.BUFFERIZE for n in loops.order):
        return "a value is kept in a buffer already"
    found = find(loops, opt.axis)
    return found if isinstance(found, str) else None


def online(loops: Loops, opt: Opt) -> UOp:
    """Weights that are powers over their sum: the maximum, their sum and what they weigh share a loop.

    ONLINE(1):   Σ over r1 of exp(s - max over r2 of s) / (Σ over r3 of exp(…)) · v   →   all over r1
    """
    found = find(loops, opt.axis)
    assert isinstance(found, Weighted)
    return substitute(loops.ast, {found.sum: in_one_pass(found)})
