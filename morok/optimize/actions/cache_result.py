"""The action CACHE_RESULT: the sums of a register tile go through the cache before something is made of them.

What is done to a sum (bias, activation, rounding to fewer bits) would be written out for every register of
the tile. Out of the cache the tile is walked a row at a time: the code exists once per row and not once per
register, which is less to compile, and has the registers that the sums took. A GPU has STAGE_RESULT.
"""

from __future__ import annotations

import math

from morok.ir.build import bufferize
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.loops import LANE_KINDS, Loops, flat_place, loop, size, sums_over, times
from morok.optimize.record import Opt
from morok.schedule.kernel.ranges import replace_loops

RESULT = "result"  # where the argument of other buffers says "local": its loops compute, and may read copies


def can_cache_result(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if machine.block_threads:
        return "the threads of a block stage results in the memory that they share"
    if len(opt.axes) != 2 or opt.axes[0] == opt.axes[1]:
        return "a tile has rows and columns"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] is not AxisKind.UPCAST or loops.closed_by(r) is not Ops.END:
            return f"loop {number} is no part of a tile of outputs"
    own = [loops.by_number[n] for n in opt.axes]
    amount, count = opt.amount or 1, size(own[0]) or 1
    if count % amount or amount == count:
        return f"{count} rows are not walked {amount} at a time"
    found = sums_over(loops, own)
    if len(found) != 1 or len(found[0].arg) != 1:
        return "there is not exactly one sum over all of these loops"
    if any(r.arg[1] in LANE_KINDS and r not in own for r in ranges(found[0])):
        return "the tile of the sum has more dimensions than these"
    nbytes = math.prod(size(r) or 1 for r in own) * found[0].dtype.itemsize
    if nbytes > machine.local_bytes:
        return f"the tile would take {nbytes} bytes of at most {machine.local_bytes}"
    return None


def cache_result(loops: Loops, opt: Opt) -> UOp:
    """The sums of a tile are kept in the cache and read from there, one row or a few at a time.

    CACHE_RESULT(-1, 1, (1, 2)):   y[(0…11), (0…7)] = f(Σ a[(0…11), (0…7)])
        →   s[(0…11), (0…7)] = Σ a[(0…11), (0…7)];  for r3 < 12: y[r3, (0…7)] = f(s[r3, (0…7)])
    """
    own = [loops.by_number[n] for n in opt.axes]
    (total,) = sums_over(loops, own)
    rows, columns = own
    number, count, amount = loops.next_number(), size(rows) or 1, opt.amount or 1
    row = loop(count // amount, number, AxisKind.LOOP, rows)
    some = loop(amount, number + 1, AxisKind.UPCAST, rows)
    column = loop(columns.src[0], number + 2, AxisKind.UPCAST, columns)
    walk = row if amount == 1 else alu(Ops.ADD, times(row, amount), some)
    kept = bufferize(total, *own, arg=(RESULT, f"result{number}"))
    place = flat_place([walk, column], [count, size(columns) or 1])
    read = make(Ops.INDEX, total.dtype, (kept, place), None, total.origin)
    pair = (row,) if amount == 1 else (row, some)
    return replace_loops(loops.ast, {total: (read, ()), rows: (walk, pair), columns: (column, (column,))})
