"""The action CACHE_ROW: a value that two loops over one row compute is kept in a row that stays in the cache.

The sum of a softmax and its result both need exp(x - m) for every column. Kept in a buffer of one row, which
stays in the first cache, it is computed in one loop and read in two.
"""

from __future__ import annotations

from morok.ir.build import bufferize
from morok.ir.infer import ranges
from morok.ir.node import UOp, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.machine.rates import OpCosts
from morok.optimize.facts import trips, weight
from morok.optimize.loops import Loops, loop
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute

USUAL = OpCosts()  # an action means the same on every machine


def shared_value(loops: Loops, k: UOp, c: UOp) -> tuple[UOp, UOp] | None:
    """The most expensive value over k that is the same over c, as the two nodes."""
    known = set(loops.order)
    best: tuple[float, UOp, UOp] | None = None
    for node in loops.order:
        if not node.op.is_alu or node.dtype.is_index or node.dtype.is_bool or k not in ranges(node):
            continue
        other = substitute(node, {k: c})
        if other not in known or c in ranges(node):
            continue
        cost = weight(node, k, USUAL)
        if best is None or cost >= best[0]:
            best = cost, node, other
    return None if best is None else best[1:]


def can_cache_row(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    for number in (opt.axis, opt.amount):
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] not in (AxisKind.LOOP, AxisKind.REDUCE) or loops.closed_by(r) is Ops.BUFFERIZE:
            return f"loop {number} is not a plain loop"
    if any(n.op is Ops.WMMA for n in loops.order):
        return "the lanes of a matrix unit share no buffer"
    k, c = loops.by_number[opt.axis], loops.by_number[opt.amount]
    if k is c or k.src[0] is not c.src[0]:
        return f"loops {opt.axis} and {opt.amount} are not two of the same size"
    found = shared_value(loops, k, c)
    if found is None:
        return f"loops {opt.axis} and {opt.amount} compute nothing in common"
    if trips(k) * found[0].dtype.itemsize > machine.local_bytes:
        return "the row would not fit the memory for copies"
    return None


def cache_row(loops: Loops, opt: Opt) -> UOp:
    """What two loops compute alike is computed in a loop of its own, and read by both.

    CACHE_ROW(2, 1):   Σ over r2 of f(r2);  y[r1] = f(r1)
        →   b[r3] = f(r3);  Σ over r2 of b[r2];  y[r1] = b[r1]
    """
    k, c = loops.by_number[opt.axis], loops.by_number[opt.amount]
    found = shared_value(loops, k, c)
    assert found is not None
    number = loops.next_number()
    fill = loop(k.src[0], number, AxisKind.LOOP, k)
    row = bufferize(substitute(found[0], {k: fill}), fill, arg=("local", f"keep{number}"))
    mapping = {
        node: make(Ops.INDEX, node.dtype, (row, r), None, node.origin)
        for node, r in zip(found, (k, c), strict=True)
    }
    return substitute(loops.ast, mapping)
