"""The action SPLIT_K: the K loop of a long sum in blocks, whose totals stay in the cache in between.

A register holds a total for all steps, so every output walks through all of what it needs before the next one
begins. Where rows of a matrix are long and outputs few, that is a jump in memory at every step. (BLIS calls
it K blocking; one thread has all blocks. Parts that several threads or blocks of a grid sum are
`schedule/graph/split_reductions.py`.) In blocks, all outputs take a few steps each, again and again: memory
is walked in order, and what is packed stays small.
"""

from __future__ import annotations

import math

from morok.ir.bounds import vmin
from morok.ir.build import bufferize
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.pack import written
from morok.optimize.loops import Loops, divides, flat_place, loop, plus, quotient, size, times
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute


def can_split_k(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if machine.block_threads:
        return "threads of a block would share the totals"
    k = loops.by_number.get(opt.axis)
    if k is None:
        return f"there is no loop {opt.axis}"
    if k.arg[1] is not AxisKind.REDUCE:
        return f"loop {opt.axis} is no plain loop of a reduction"
    if opt.amount < 1 or opt.amount >= (size(k) or math.inf):
        return f"{opt.amount} steps do not cut the {size(k) or 'unknown number'} of loop {opt.axis}"
    if loops.bounds_another(k) or len(loops.closers[k]) != 1 or loops.closed_by(k) is not Ops.REDUCE:
        return f"loop {opt.axis} is closed by more than a reduction"
    (total,) = loops.closers[k]
    if total.arg != (Ops.ADD,):
        return "only sums go in blocks"
    if not opt.axes or len(set(opt.axes)) != len(opt.axes):
        return "totals need loops for their dimensions, each once"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None or r not in ranges(total):
            return f"the sum does not depend on a loop {number}"
        if r.arg[1] is not AxisKind.LOOP or loops.closed_by(r) is not Ops.END or size(r) is None:
            return f"loop {number} is no plain loop over outputs"
        if loops.bounds_another(r):
            return f"the end of another loop depends on loop {number}"
    changing = written(loops)
    if any(n.op is Ops.DEFINE_GLOBAL and n.arg in changing for n in toposort(total)):
        return "the sum reads what the kernel writes"
    nbytes = math.prod(size(loops.by_number[n]) or 1 for n in opt.axes) * total.dtype.itemsize
    if nbytes > machine.local_bytes:
        return f"the totals would have {nbytes} bytes of at most {machine.local_bytes}"
    return None


def split_k(loops: Loops, opt: Opt) -> UOp:
    """A sum is taken some steps at a time, for all points of some loops, before the next steps come.

    SPLIT_K(1, 8, (0,)):   y[r0] = Σ over r1 < 64 of x(r0, r1)
                         →   for b < 8, for c0: t[c0] += Σ over r1 < 8 of x(c0, b*8 + r1);   y[r0] = t[r0]

    Where the steps are no multiple of that many, the last block has fewer.
    """
    k = loops.by_number[opt.axis]
    (total,) = loops.closers[k]
    own = [loops.by_number[n] for n in opt.axes]
    number = loops.next_number()
    end, whole = k.src[0], divides(opt.amount, k.src[0])
    count = quotient(end if whole else plus(end, opt.amount - 1), opt.amount)
    blocks = loop(count, number, AxisKind.ORDERED, k)
    left = alu(Ops.SUB, end, times(blocks, opt.amount))
    each: UOp | int = opt.amount if whole else alu(Ops.MIN, left, const(k.dtype, opt.amount))
    steps = loop(each, opt.axis, AxisKind.REDUCE, k)
    fill = [loop(r.src[0], number + 1 + i, AxisKind.LOOP, r) for i, r in enumerate(own)]
    where = alu(Ops.ADD, times(blocks, opt.amount), steps)
    value = substitute(total.src[0], {k: where, **dict(zip(own, fill, strict=True))})
    inner = total.replace((value, *(steps if r is k else r for r in total.src[1:])))
    totals = bufferize(inner, blocks, *fill, arg=("local", f"total{number}"))
    place = flat_place(own, [size(r) or 1 for r in own])
    found = make(Ops.INDEX, total.dtype, (totals, place), None, total.origin)
    if vmin(blocks.src[0]) < 1:  # without a block nobody has written a total
        some = alu(Ops.CMPLT, const(blocks.dtype, 0), blocks.src[0])
        found = alu(Ops.WHERE, some, found, const(total.dtype, 0))
    return substitute(loops.ast, {total: found})
