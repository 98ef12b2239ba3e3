"""The action HALO: what overlapping windows read, halo and padding included, is copied once.

A convolution reads x[p·s + k·d] for every place p and offset k, under a condition where the image is padded.
In terms of u = p·s + k·d the same read is made many times over. Here u becomes a dimension of a local copy,
filled once per point of the loops around it; the windows then read the copy, and zeros where padding was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from morok.ir.build import bufferize
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.pack import written
from morok.optimize.loops import Loops, below, both, flat_place, gate_of, loop, size, stride, times
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """Two loops that a read depends on by place·step + offset·gap only."""

    place: UOp
    offset: UOp
    step: int
    gap: int

    @property
    def extent(self) -> int:
        """How many different values the sum has, at most."""
        places, offsets = size(self.place), size(self.offset)
        assert places is not None and offsets is not None
        return (places - 1) * self.step + (offsets - 1) * self.gap + 1

    @property
    def sum(self) -> UOp:
        return alu(Ops.ADD, times(self.place, self.step), times(self.offset, self.gap))


def find_pair(read: UOp, place: UOp, offset: UOp) -> Pair | None:
    """The two loops as a pair, if the read knows only their sum."""
    steps = stride(read.src[1], place), stride(read.src[1], offset)
    if steps[0] is None or steps[1] is None or min(steps[0], steps[1]) < 1:
        return None
    if size(place) is None or size(offset) is None:
        return None
    common = math.gcd(steps[0], steps[1])
    pair = Pair(place, offset, steps[0] // common, steps[1] // common)
    return pair if _in_terms_of(read, pair, place) is not None else None


def _in_terms_of(read: UOp, pair: Pair, total: UOp) -> UOp | None:
    """The read with the sum of the pair as one variable; None if something of the pair is left."""
    if pair.step == 1:
        away, kept, factor = pair.place, pair.offset, pair.gap
    elif pair.gap == 1:
        away, kept, factor = pair.offset, pair.place, pair.step
    else:
        return None
    # by another name first, because `total` may be one of the two
    name = loop(pair.extent, -1 - int(total.arg[0]), AxisKind.LOOP, pair.place)
    solved = alu(Ops.SUB, name, times(kept, factor))
    parts = [simplify(substitute(s, {away: solved})) for s in read.src[1:]]
    if any(kept in ranges(part) or away in ranges(part) for part in parts):
        return None
    parts = [substitute(part, {name: total}) for part in parts]
    return make(read.op, read.dtype, (read.src[0], *parts), read.arg, read.origin)


def read_of(loops: Loops, buffer: int, numbers: tuple[int, ...]) -> UOp | None:
    """The one read of a buffer that depends on these loops."""
    wanted = frozenset(loops.by_number[n] for n in numbers)
    found = [
        node
        for node in loops.order
        if node.op is Ops.INDEX
        and not node.dtype.is_ptr
        and node.src[0].op is Ops.DEFINE_GLOBAL
        and node.src[0].arg == buffer
        and wanted <= ranges(node)
    ]
    return found[0] if len(found) == 1 else None


def _pairs(loops: Loops, read: UOp, opt: Opt) -> list[Pair] | None:
    named = [loops.by_number[n] for n in opt.axes]
    found = [find_pair(read, p, k) for p, k in zip(named[::2], named[1::2], strict=True)]
    pairs = [pair for pair in found if pair is not None]
    return pairs if len(pairs) == len(found) else None


def steps_beside(loops: Loops, read: UOp, pairs: list[Pair]) -> list[UOp]:
    """The other loops of reductions that the read depends on: dimensions of the copy, too."""
    taken = {r for pair in pairs for r in (pair.place, pair.offset)}
    others = [r for r in ranges(read) if r not in taken and loops.closed_by(r) is Ops.REDUCE]
    return sorted(others, key=lambda r: int(r.arg[0]))


def _extents(pairs: list[Pair], multiple: int) -> list[int]:
    """The dimensions of the copy that windows move along, the last one rounded up to whole vectors."""
    *outer, last = [pair.extent for pair in pairs]
    return [*outer, -(-last // max(1, multiple)) * max(1, multiple)]


def copy_bytes(loops: Loops, read: UOp, pairs: list[Pair], multiple: int = 1) -> int | None:
    """The size of the copy; None if it is not known."""
    sizes = [size(r) for r in steps_beside(loops, read, pairs)] + _extents(pairs, multiple)
    known = [n for n in sizes if n is not None]
    return math.prod(known) * read.dtype.itemsize if len(known) == len(sizes) else None


def can_halo(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not opt.axes or len(opt.axes) % 2 or len(set(opt.axes)) != len(opt.axes):
        return "windows are named by pairs of loops, a place and an offset, each once"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] not in (AxisKind.LOOP, AxisKind.REDUCE) or loops.closed_by(r) is Ops.BUFFERIZE:
            return f"loop {number} is not a plain loop"
    if opt.axis in written(loops):
        return f"buffer {opt.axis} is written, so a copy would grow old"
    read = read_of(loops, opt.axis, opt.axes)
    if read is None:
        return f"there is not exactly one read of buffer {opt.axis} that runs over all of these loops"
    pairs = _pairs(loops, read, opt)
    if pairs is None:
        return "the read depends on more than the sums of places and offsets"
    nbytes = copy_bytes(loops, read, pairs, opt.amount)
    if nbytes is None:
        return "a copy over a loop of unknown size has no size"
    if nbytes > machine.local_bytes:
        return f"the copy would have {nbytes} bytes of at most {machine.local_bytes}"
    return None


def halo(loops: Loops, opt: Opt) -> UOp:
    """What windows read is copied once, zeros of the padding included; in rows of whole vectors, if an amount
    says so, with zeros at their ends.

    HALO(1, (0, 2)):   x[r0 + r2 - 1 if 0 < r0 + r2]   →   w[r0 + r2],  where w[u] = x[u - 1 if 0 < u]
    """
    read = read_of(loops, opt.axis, opt.axes)
    assert read is not None
    pairs = _pairs(loops, read, opt)
    assert pairs is not None
    beside = steps_beside(loops, read, pairs)
    number = loops.next_number()
    fill = [loop(r.src[0], number + i, AxisKind.LOOP, r) for i, r in enumerate(beside)]
    extents = _extents(pairs, opt.amount)
    sums = [
        loop(extent, number + len(fill) + i, AxisKind.LOOP, pair.place)
        for i, (pair, extent) in enumerate(zip(pairs, extents, strict=True))
    ]
    inner = substitute(read, dict(zip(beside, fill, strict=True)))
    for pair, total in zip(pairs, sums, strict=True):
        moved = _in_terms_of(inner, pair, total)
        assert moved is not None
        inner = moved
    if extents[-1] > pairs[-1].extent:
        inside = both(gate_of(inner), below(sums[-1], const(sums[-1].dtype, pairs[-1].extent)))
        inner = make(inner.op, inner.dtype, (*inner.src[:2], inside), inner.arg, inner.origin)
    copy = bufferize(inner, *fill, *sums, arg=("local", f"window{opt.axis}_{number}"))
    sizes = [size(r) or 1 for r in beside] + extents
    place = flat_place([*beside, *(pair.sum for pair in pairs)], sizes)
    return substitute(
        loops.ast, {read: make(Ops.INDEX, read.dtype, (copy, simplify(place)), None, read.origin)}
    )


def is_guarded(read: UOp, r: UOp) -> bool:
    """Whether the condition of a read depends on a loop."""
    gate = gate_of(read)
    return gate is not None and r in ranges(gate)
