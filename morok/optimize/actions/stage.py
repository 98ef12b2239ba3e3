"""The action STAGE: a tile is copied into the memory that the threads of a block share, where it is reused.

It is what PACK is on a processor, with two differences: all threads fill the tile together, and the tile
may be one of a ring (double buffering), so that the next ones are under way while this one is used. What is
stored is the narrowest form of the value: a read, or what is computed from it, but not its conversion to a
wider type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import PANEL, Shared, shared_tiles
from morok.ir.node import UOp, alu, toposort, users
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.matrix import factors
from morok.optimize.actions.pack import copied, reads_of, written
from morok.optimize.loops import LOOP_KINDS, Loops, loops_of, size
from morok.optimize.record import Opt

DEEPEST = 8
PANELS = 16  # more in the amount: rows of the tile are filled up with zeros to whole panels
_PARALLEL = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE, AxisKind.UPCAST, AxisKind.UNROLL)


def staged_value(loops: Loops, read: UOp) -> UOp:
    """The read, or what is computed from it in the same loops, used nowhere else and no wider."""
    above = users(loops.order)
    changing = written(loops)
    node = read
    while True:
        found = above[node]
        if len(found) != 1 or not found[0].op.is_alu or ranges(found[0]) != ranges(read):
            return node
        new = found[0]
        if new.dtype.is_index or new.dtype.is_bool or new.dtype.itemsize > node.dtype.itemsize:
            return node
        if any(n.op is Ops.DEFINE_GLOBAL and n.arg in changing for n in toposort(new)):
            return node
        node = new


def gated_products(loops: Loops) -> Loops:
    """Sums of products under a condition: it goes to both factors, so that tiles hold zeros."""
    done: dict[UOp, UOp] = {}
    for node in loops.order:  # products of products as well: both sums
        new = node.replace(tuple([done[s] for s in node.src]))
        if new.op is Ops.REDUCE and new.arg == (Ops.ADD,):
            found = factors(new.src[0])
            if found is not None and found != new.src[0].src:
                new = new.replace((alu(Ops.MUL, *found), *new.src[1:]))
        done[node] = new
    return loops if done[loops.ast] is loops.ast else loops_of(done[loops.ast])


def can_stage(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    loops = gated_products(loops)
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    depth, filled = opt.amount % PANELS, opt.amount >= PANELS
    if not 0 <= opt.amount < 2 * PANELS or depth > DEEPEST:
        return f"a ring has at most {DEEPEST} tiles"
    if not opt.axes or len(set(opt.axes)) != len(opt.axes):
        return "a tile needs loops for its dimensions, each once"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if size(r) is None:
            return f"the size of loop {number} is not known, so a tile over it has no size"
        if loops.closed_by(r) is Ops.BUFFERIZE:
            return f"loop {number} fills a tile itself"
        if r.arg[1] not in LOOP_KINDS:
            return f"loop {number} is {r.arg[1].value} already"
    if opt.axis in written(loops):
        return f"buffer {opt.axis} is written, so a tile would grow old"
    reads = reads_of(loops, opt)
    if not reads:
        return f"no read of buffer {opt.axis} runs over all of these loops"
    own = frozenset(loops.by_number[n] for n in opt.axes)
    values = {staged_value(loops, read) for read in reads}
    for value in values:
        if any(r.arg[1] in _PARALLEL for r in ranges(value) - own):
            return "the value differs between the threads of a block"
        if shared_tiles(toposort(value)):
            return "the value reads another tile, which is dealt out to the threads of a block itself"
    if any(_is_shared(n) and not values <= set(toposort(n)) for n in loops.order):
        return "a reduction that threads share does not read the tile, which they would fill"
    *outer, row = (size(loops.by_number[n]) or 1 for n in opt.axes)
    points = math.prod(outer) * max(1, depth)
    used = sum(map(staged_bytes, (n for n in loops.order if n.op is Ops.BUFFERIZE)))
    rows = (v.dtype.itemsize * (in_panels(row, v.dtype.itemsize) if filled else row) for v in values)
    nbytes = points * sum(rows) + used
    if nbytes > machine.local_bytes:
        return f"tiles would take {nbytes} bytes of at most {machine.local_bytes}"
    if depth > 1:
        for value in values:
            around = [r for r in ranges(value) - own if r.arg[1] is AxisKind.REDUCE]
            if not around or sum(size(r) is None for r in around) > 1:
                return "a ring needs a loop of a reduction around the tile, and all but one of known size"
    return None


def in_panels(row: int, itemsize: int) -> int:
    """The elements of a row that is filled up to whole panels."""
    panel = PANEL // itemsize
    return -(-row // panel) * panel


def holders_first(loops: Loops, numbers: Iterable[int], axes: tuple[int, ...]) -> list[int]:
    """Buffers in the order in which they become tiles over these loops: a mask comes after what it chooses.

    The tile of that holds zeros; a tile of the mask would be read to fill it, which nobody has whole.
    """
    loops = gated_products(loops)
    reads = {n: reads_of(loops, Opt("STAGE", n, 1, axes)) for n in dict.fromkeys(numbers)}
    held = {
        n: {x for read in found for x in toposort(staged_value(loops, read))} for n, found in reads.items()
    }

    def is_held(number: int) -> bool:
        mine = set(reads[number])
        others = (n for n in reads if n != number and held[number].isdisjoint(reads[n]))
        return bool(mine) and any(mine <= held[n] for n in others)

    return sorted(reads, key=is_held)


def _is_shared(node: UOp) -> bool:
    """Whether the threads of a block share a reduction."""
    return node.op is Ops.REDUCE and any(
        r.op is Ops.RANGE and r.arg[1] is AxisKind.GROUP_REDUCE for r in closed_ranges(node)
    )


def staged_bytes(buffer: UOp) -> int:
    """The bytes that a local buffer takes."""
    depth = buffer.arg[2].depth if len(buffer.arg) > 2 else 1
    return int(math.prod(size(r) or 1 for r in buffer.src[1:]) * buffer.src[0].dtype.itemsize * depth)


def stage(loops: Loops, opt: Opt) -> UOp:
    """A tile of a buffer is filled by all threads of a block, once per step of the loops around it.

    STAGE(1, 3, (2, 3)):   x[r0*64 + r2*8 + r3]   →   s[r2*8 + r3],  s[c2*8 + c3] = x[r0*64 + c2*8 + c3]
    STAGE(1, 19, (2, 3)):   the same with rows of 64 for elements of two bytes, 0 where c3 is 8 or more
    """
    loops = gated_products(loops)
    values = [staged_value(loops, read) for read in reads_of(loops, opt)]
    row = None
    if opt.amount >= PANELS:
        row = in_panels(size(loops.by_number[opt.axes[-1]]) or 1, max(v.dtype.itemsize for v in values))
    return copied(loops, opt, values, "tile", Shared(max(1, opt.amount % PANELS)), row=row)
