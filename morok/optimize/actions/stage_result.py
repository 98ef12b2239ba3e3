"""The action STAGE_RESULT: the result of a tile goes through shared memory before it is written.

Registers of a matrix unit hold scattered pieces of a tile. Staged in shared memory, the tile is walked
by all threads in whole vectors: the epilogue (bias, activation, residual) reads and writes
memory in order, and its code exists once per vector and not once per register. The memory is that of the
operands' tiles, which nobody needs any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from morok.ir.build import bufferize
from morok.ir.infer import ranges
from morok.ir.matrix import Shared
from morok.ir.node import UOp, make, toposort, users
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.pack import written
from morok.optimize.loops import Loops, flat_place, loop, size, sums_over
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute

CHEAP_STEPS = 6
_CHEAP = frozenset((Ops.CAST, Ops.ADD, Ops.MUL, Ops.SUB, Ops.NEG, Ops.MAX, Ops.MIN))
_SIDES = _CHEAP | {Ops.CONST, Ops.INDEX}


def staged_value(loops: Loops, total: UOp, own: Sequence[UOp]) -> UOp:
    """The sum, or a narrower value that is computed from it in a few cheap steps.

    What else these need belongs to a row or to a column of the tile (a bias, a scale), not to a point of it:
    that is better read in order, when the tile is walked.
    """
    above = users(loops.order)
    changing = written(loops)
    best = node = total
    for _ in range(CHEAP_STEPS):
        found = above[node]
        if len(found) != 1 or found[0].op not in _CHEAP or ranges(found[0]) != ranges(total):
            break
        if any(s is not node and not _is_side(s, own, changing) for s in found[0].src):
            break
        node = found[0]
        if node.dtype.itemsize < best.dtype.itemsize and not node.dtype.is_bool:
            best = node
    return best


def _is_side(x: UOp, own: Sequence[UOp], changing: Collection[int]) -> bool:
    """Whether a value is cheap and the same along a row or a column of a tile."""
    if all(r in ranges(x) for r in own):
        return False
    below = toposort(x)
    if any(n.op is Ops.DEFINE_GLOBAL and n.arg in changing for n in below):
        return False
    return all(n.dtype.is_index or n.dtype.is_ptr or n.op in _SIDES for n in below)


def can_stage_result(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    if len(opt.axes) < 1 or len(set(opt.axes)) != len(opt.axes):
        return "a tile needs loops for its dimensions, each once"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] is not AxisKind.LOOP or loops.closed_by(r) is not Ops.END:
            return f"loop {number} is no plain loop over outputs"
        if size(r) is None:
            return f"the size of loop {number} is not known, so a tile over it has no size"
    own = [loops.by_number[n] for n in opt.axes]
    found = sums_over(loops, own)
    if len(found) != 1 or len(found[0].arg) != 1:
        return "there is not exactly one sum over all of these loops"
    if any(r.arg[1] in (AxisKind.LOCAL, AxisKind.WARP, AxisKind.UPCAST) for r in ranges(found[0])):
        return "the threads of the block have been given work already"
    nbytes = math.prod(size(r) or 1 for r in own) * staged_value(loops, found[0], own).dtype.itemsize
    if nbytes > machine.local_bytes:
        return f"the tile would take {nbytes} bytes of at most {machine.local_bytes}"
    return None


def stage_result(loops: Loops, opt: Opt) -> UOp:
    """A sum is computed for a whole tile, kept in shared memory, and read from there.

    STAGE_RESULT((1, 2)):   y[r1, r2] = f(Σ a[r1, r2])
        →   s[c1, c2] = Σ a[c1, c2];  y[r1, r2] = f(s[r1, r2])
    """
    own = [loops.by_number[n] for n in opt.axes]
    total = staged_value(loops, sums_over(loops, own)[0], own)
    number = loops.next_number()
    fill = [loop(r.src[0], number + i, AxisKind.LOOP, r) for i, r in enumerate(own)]
    sizes = [size(r) or 1 for r in own]
    inner = substitute(total, dict(zip(own, fill, strict=True)))
    kept = bufferize(inner, *fill, arg=("local", f"result{number}", Shared(0, sizes[-1])))
    read = make(Ops.INDEX, total.dtype, (kept, flat_place(own, sizes)), None, total.origin)
    return substitute(loops.ast, {total: read})


def is_result(loops: Loops, r: UOp) -> bool:
    """Whether a loop computes a staged result."""
    return all(n.op is Ops.BUFFERIZE and len(n.arg) > 2 and n.arg[2].depth == 0 for n in loops.closers[r])
