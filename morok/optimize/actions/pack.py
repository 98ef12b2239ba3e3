"""The action PACK: a tile is copied once into memory of its own, contiguous and aligned, where it is reused.

This is what LOCAL means on a processor with caches, and the shared-memory tile of a GPU: a BUFFERIZE around a
read. The loops that are named become its dimensions; it is filled once per point of the other loops that the
value lives in, so the order of those decides how often. What is computed from the read alone is packed along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from morok.ir.bounds import vmin
from morok.ir.build import bufferize
from morok.ir.infer import ranges, summed
from morok.ir.matrix import shared_tiles
from morok.ir.node import UOp, alu, const, make, toposort, users
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.cache_result import RESULT
from morok.optimize.facts import trips
from morok.optimize.loops import Loops, below, both, flat_place, loop, size
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify

MOST_PACKED = 256  # operations, between a read and what is packed of it


def in_tiles(loops: Loops) -> set[UOp]:
    """What all threads of a block fill shared tiles with: it is dealt out, so nobody has all of it."""
    return {n for b in shared_tiles(loops.order) for n in toposort(b.src[0])}


def reads_of(loops: Loops, opt: Opt) -> list[UOp]:
    """Reads of the buffer that depend on all of the loops, and are not part of a shared tile already."""
    wanted = frozenset(loops.by_number[n] for n in opt.axes)
    taken = in_tiles(loops)
    return [
        node
        for node in loops.order
        if node.op is Ops.INDEX
        and not node.dtype.is_ptr
        and node.src[0].op is Ops.DEFINE_GLOBAL
        and node.src[0].arg == opt.axis
        and wanted <= ranges(node)
        and node not in taken
    ]


def written(loops: Loops) -> frozenset[int]:
    """The numbers of the buffers that the kernel writes."""
    stores = (effect.src[0] if effect.op is Ops.END else effect for effect in loops.ast.src)
    return frozenset(store.src[0].src[0].arg for store in stores)


def packed_value(loops: Loops, read: UOp) -> UOp:
    """The read, or what is computed from it in the same loops and used nowhere else, by however many ways:
    x * sigmoid(x), say."""
    above = users(loops.order)
    changing = written(loops)
    place = {n: i for i, n in enumerate(loops.order)}
    node, inside = read, {read}
    opened = {read}  # of those inside, which others read
    while len(inside) < MOST_PACKED:
        outside = {u for n in opened for u in above.get(n, []) if u not in inside}  # none of what was cut
        if not outside:
            return node
        first = min(outside, key=place.__getitem__)
        if not first.op.is_alu or ranges(first) != ranges(read):
            return node
        if first.dtype.is_index:  # an index has no type in memory
            return node
        if any(n.op is Ops.DEFINE_GLOBAL and n.arg in changing for n in toposort(first)):
            return node
        inside.add(first)
        opened = {n for n in (*opened, first) if any(u not in inside for u in above.get(n, []))}
        if opened == {first}:
            node = first
    return node


def _computes(buffer: UOp) -> bool:
    """Whether the loops of a buffer compute sums rather than copy."""
    return buffer.arg[0] == RESULT or bool(summed(buffer))


def can_pack(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not opt.axes or len(set(opt.axes)) != len(opt.axes):
        return "a copy needs loops for its dimensions, each once"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if size(r) is None and (number != opt.axes[0] or machine.block_threads):
            # of the outermost dimension a bound is enough: nothing lies behind it
            return f"the size of loop {number} is not known, so a copy over it has no size"
        if loops.closed_by(r) is Ops.BUFFERIZE and not all(map(_computes, loops.closers[r])):
            return f"loop {number} fills a copy itself"
        if r.arg[1] in (AxisKind.THREAD, AxisKind.GLOBAL):
            return f"loop {number} is shared, and a copy belongs to one thread"
    if opt.axis in written(loops):
        return f"buffer {opt.axis} is written, so a copy would grow old"
    reads = reads_of(loops, opt)
    if not reads:
        return f"no read of buffer {opt.axis} runs over all of these loops"
    ends = loops.by_number[opt.axes[0]]
    if ranges(ends.src[0]) and not all(_serves_all(read, ends) for read in reads):
        return f"the end of loop {opt.axes[0]} says what may be read, so a copy cannot go on to its bound"
    points = math.prod(trips(loops.by_number[n]) for n in opt.axes)
    nbytes = points * reads[0].dtype.itemsize * len(reads)
    if nbytes > machine.local_bytes:
        return f"the copy would have {nbytes} bytes of at most {machine.local_bytes}"
    return None


def _serves_all(read: UOp, r: UOp) -> bool:
    """Whether all steps that a loop may have read the same whatever its end depends on, and some has all."""
    whole = {r: _to_bound(r)}
    if any(not ranges(substitute(s, whole)).isdisjoint(ranges(r.src[0])) for s in read.src[1:]):
        return False
    corners = ({s: const(s.dtype, n) for s, n in ends} for ends in _corners(r))
    return any(int(vmin(simplify(substitute(r.src[0], at)))) == trips(r) for at in corners)


def _corners(r: UOp) -> list[list[tuple[UOp, int]]]:
    """The loops that an end depends on, all at their first step, and all at their last."""
    around = [s for s in ranges(r.src[0]) if s.op is Ops.RANGE]
    return [[(s, 0) for s in around], [(s, trips(s) - 1) for s in around]]


def _to_bound(r: UOp) -> UOp:
    """A loop whose end depends on others, up to the most that it may be."""
    return r if not ranges(r.src[0]) else loop(trips(r), int(r.arg[0]), r.arg[1], r)


def pack(loops: Loops, opt: Opt) -> UOp:
    """A tile of a buffer is copied into contiguous memory, once per point of the loops around it.

    PACK(1, (2, 3)):   x[r0*4 + r2*64 + r3]   →   p[r2*4 + r3],  where p[c2*4 + c3] = x[r0*4 + c2*64 + c3]
    """
    values = [packed_value(loops, read) for read in reads_of(loops, opt)]
    return copied(loops, opt, values, "pack")


def _same_copy(loops: Loops, value: UOp, fill: list[UOp], layout: tuple[object, ...]) -> UOp | None:
    """A copy of the same values that others read already, over loops of their own; None if there is none."""
    for n in loops.order:
        if n.op is not Ops.BUFFERIZE or n.arg[0] != "local" or n.arg[2:] != layout:
            continue
        mine = n.src[1:]
        if [(r.src, r.arg[1]) for r in mine] != [(r.src, r.arg[1]) for r in fill]:
            continue
        if same_read(substitute(n.src[0], dict(zip(mine, fill, strict=True))), value):
            return n
    return None


def same_read(x: UOp, y: UOp) -> bool:
    """Whether two values are the same, or reads of one place, whatever the order of its terms."""
    if x is y or x.op is not Ops.INDEX or y.op is not Ops.INDEX:
        return x is y
    if x.src[0] is not y.src[0] or x.dtype is not y.dtype or x.src[2:] != y.src[2:]:
        return False
    apart = simplify(alu(Ops.SUB, x.src[1], y.src[1]))
    return apart.op is Ops.CONST and apart.arg == 0


def _until(x: UOp, r: UOp, end: int) -> UOp:
    """A value whose reads have a condition: nothing is read beyond the end of a loop."""
    inside = below(r, const(r.dtype, end))
    reads = [n for n in toposort(x) if n.op is Ops.INDEX and not n.dtype.is_ptr and r in ranges(n)]
    gates = {n: both(n.src[2] if len(n.src) > 2 else None, inside) for n in reads}
    return substitute(x, {n: n.replace((*n.src[:2], gate)) for n, gate in gates.items()})


def copied(
    loops: Loops, opt: Opt, values: Sequence[UOp], name: str, *layout: object, row: int | None = None
) -> UOp:
    """The kernel with each value kept in a local buffer over the action's loops; `layout` says more of it.

    A row may be longer than its loop: nobody looks at what lies behind.
    """
    own = [loops.by_number[n] for n in opt.axes]
    sizes = [size(r) or 1 for r in own]
    longer = row is not None and row > sizes[-1]
    number = loops.next_number()
    mapping: dict[UOp, UOp] = {}
    for value in dict.fromkeys(values):
        fill = [loop(_to_bound(r).src[0], number + i, AxisKind.LOOP, r) for i, r in enumerate(own)]
        if longer:
            fill[-1] = loop(row or 1, number + len(own) - 1, AxisKind.LOOP, own[-1])
        inner = substitute(value, dict(zip(own, fill, strict=True)))
        if longer:
            inner = _until(inner, fill[-1], sizes[-1])
        copy = _same_copy(loops, inner, fill, layout)
        if copy is None:
            copy = bufferize(inner, *fill, arg=("local", f"{name}{opt.axis}_{number}", *layout))
        mapping[value] = make(
            Ops.INDEX,
            value.dtype,
            (copy, flat_place(own, [*sizes[:-1], row or sizes[-1]])),
            None,
            value.origin,
        )
        number += len(fill)
    return substitute(loops.ast, mapping)
