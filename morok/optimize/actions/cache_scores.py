"""The action CACHE_SCORES: attention on a processor, with the scores of a block of rows in the cache.

    for a block of rows:
        s[row, key] = scores of all its rows and keys         a tile of registers, as any product
        for some of its rows:
            p[row, key] = exp(s - max s);  l[row] = Σ p       rows that lie in order
            Σ over keys of p · v, over l                      a tile of registers

A whole row is there before it is weighed, so nothing has to be taken back when a larger maximum turns up.
Keys come in tiles. Tiles that a mask hides from all rows of the block (`skip.py`) are in none of the loops.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.bounds import vmax
from morok.ir.build import WEIGHT, bufferize
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.cache_result import RESULT
from morok.optimize.actions.skip import Limits, limits, position
from morok.optimize.facts import trips
from morok.optimize.loops import Loops, below, both, flat_place, gate_of, loop, loops_of, size, times
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.graph.attention.cached_scores import CachedScores, cached_scores
from morok.schedule.kernel.ranges import replace_loops
from morok.symbolic.sets import simplify


def can_cache_scores(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if machine.block_threads:
        return "the threads of a block have no cache of their own"
    found = cached_scores(loops.ast)
    if found is None:
        return "the kernel is no softmax between two products"
    if opt.axis != int(found.steps.arg[0]):
        return f"loop {opt.axis} is not that of the keys"
    if opt.amount < 1 or not opt.axes:
        return "keys come in tiles, and rows in loops"
    for number in opt.axes:
        r = loops.by_number.get(number)
        if r is None or r.arg[1] is not AxisKind.LOOP or size(r) is None:
            return f"there is no plain loop {number} of known size"
        if loops.closed_by(r) is not Ops.END or r not in ranges(found.product) or _moves_keys(found, r):
            return f"loop {number} is none over rows"
    if any(n.op is Ops.BUFFERIZE for n in loops.order):
        return "a value is kept in a buffer already"
    rows = [loops.by_number[n] for n in opt.axes]
    tiles = -(-trips(found.steps) // opt.amount)
    nbytes = tiles * opt.amount * math.prod(map(trips, rows)) * found.weighted.power.scores.dtype.itemsize
    return f"the scores would take {nbytes} bytes" if nbytes > machine.local_bytes else None


def _moves_keys(found: CachedScores, r: UOp) -> bool:
    return any(r in ranges(f) for f in found.product.src[0].src if found.steps in ranges(f))


class Keys(NamedTuple):
    """The keys that a block of rows looks at: tiles from the first one on, which a loop counts from 0."""

    width: int
    tiles: UOp  # how many
    first: UOp | None  # the key that the first tile begins with
    every: int  # how many keys there are

    @property
    def padded(self) -> int:
        """The most keys, in whole tiles."""
        return int(vmax(self.tiles)) * self.width

    def place(self, tile: UOp, lane: UOp) -> UOp:
        """A key's place among those that are looked at."""
        return alu(Ops.ADD, times(tile, self.width), lane)

    def key(self, place: UOp) -> UOp:
        return place if self.first is None else simplify(alu(Ops.ADD, self.first, place))

    def inside(self, key: UOp) -> UOp | None:
        """Whether there is such a key, where the last tile is not full."""
        return below(key, const(key.dtype, self.every)) if self.every % self.width else None

    def number(self) -> UOp:
        """How many keys are looked at, without those that fill up the last tile."""
        whole = simplify(alu(Ops.MUL, self.tiles, const(self.tiles.dtype, self.width)))
        if self.every % self.width == 0:
            return whole
        left: UOp = const(whole.dtype, self.every)
        if self.first is not None:
            left = alu(Ops.SUB, left, self.first)
        return simplify(alu(Ops.MAX, const(whole.dtype, 0), alu(Ops.MIN, whole, left)))


def keys_of(loops: Loops, found: CachedScores, rows: list[UOp], width: int) -> Keys:
    """The tiles of keys that no mask hides from all rows of a block."""
    k, count = found.steps, trips(found.steps)
    tiles: UOp = const(k.dtype, -(-count // width))
    limit = _limits(loops, found, rows, width)
    if limit is None:
        return Keys(width, tiles, None, count)
    zero = const(k.dtype, 0)
    high = tiles if limit.high is None else alu(Ops.MAX, zero, alu(Ops.MIN, tiles, limit.high))
    low = zero if limit.low is None else alu(Ops.MAX, zero, alu(Ops.MIN, tiles, limit.low))
    number = simplify(alu(Ops.MAX, zero, alu(Ops.SUB, high, low)))
    first = None if limit.low is None else simplify(alu(Ops.MUL, low, const(k.dtype, width)))
    return Keys(width, number, first, count)


def _limits(loops: Loops, found: CachedScores, rows: list[UOp], width: int) -> Limits | None:
    """Which tiles matter for a block whose rows are lanes: asked of a kernel that is like it."""
    k, number = found.steps, loops.next_number()
    lanes = {r: loop(r.src[0], int(r.arg[0]), AxisKind.UPCAST, r) for r in rows}
    tile = loop(-(-trips(k) // width), int(k.arg[0]), AxisKind.REDUCE, k)
    lane = loop(width, number, AxisKind.REDUCE, k)
    cut = {k: (alu(Ops.ADD, times(tile, width), lane), (tile, lane))}
    weighted = found.weighted
    value = substitute(weighted.sum.src[0], {weighted.weights: weighted.power.node})
    alike = substitute(loops.ast, {weighted.sum: weighted.sum.replace((value, k))})
    alike = replace_loops(alike, cut | {r: (new, (new,)) for r, new in lanes.items()})
    again = loops_of(alike)
    return limits(again, again.by_number[int(k.arg[0])])


def cache_scores(loops: Loops, opt: Opt) -> UOp:
    """Scores of the rows that are named are kept for all keys, as are the weights of those of the last loop.

    CACHE_SCORES(3, 64, (1, 4)):   Σ over r3 of exp(s(r1, r4, r3) - max s) / Σ exp(s - max s) · v(r3)
        →   b[r5, r6, r7] = s(r5, r6, r7);  p[r8, r9] = exp(b[r1, r8, r9] - max b);  l[r8] = Σ p[r8];
            Σ over r3 of p[r4, r3] · v(r3) over l[r4]
    """
    found = cached_scores(loops.ast)
    assert found is not None
    rows = [loops.by_number[n] for n in opt.axes]
    keys = keys_of(loops, found, rows, opt.amount)
    number = loops.next_number()
    weighted, power, k = found.weighted, found.weighted.power, found.steps
    last, sizes = rows[-1], [size(r) or 1 for r in rows]

    def tiles(kind: AxisKind) -> tuple[UOp, UOp]:
        nonlocal number
        number += 2
        return loop(keys.tiles, number - 2, kind, k), loop(keys.width, number - 1, kind, k)

    # the scores: tiles of keys outside of the rows, so that a tile's panel serves all of them
    tile = loop(keys.tiles, number, AxisKind.LOOP, k)
    every = loop(math.prod(sizes), number + 1, AxisKind.LOOP, last)
    lane = loop(keys.width, number + 2, AxisKind.LOOP, k)
    number += 3
    key = keys.key(keys.place(tile, lane))
    score = substitute(power.scores, {k: key, **_digits(every, rows, sizes)})
    score = _gated(_with_places(score), keys.inside(key), {tile, lane})
    kept = bufferize(score, every, tile, lane, arg=(RESULT, f"scores{number}"))

    def read(row: UOp, place: UOp) -> UOp:
        where = flat_place([*rows[:-1], row], sizes)
        where = alu(Ops.ADD, times(where, keys.padded), place)
        return make(Ops.INDEX, score.dtype, (kept, where), None, score.origin)

    # their powers
    row = loop(last.src[0], number, AxisKind.LOOP, last)
    number += 1
    top_tile, top_lane = tiles(AxisKind.REDUCE)
    every_score = read(row, keys.place(top_tile, top_lane)), top_tile, top_lane
    top = make(Ops.REDUCE, score.dtype, every_score, power.top.arg, power.top.origin)
    tile, lane = tiles(AxisKind.LOOP)
    each = substitute(power.node, {power.scores: read(row, keys.place(tile, lane)), power.top: top})
    if each.op is Ops.EXP:  # beside the largest weight, which is 1, the smallest numbers are nothing
        each = make(Ops.EXP, each.dtype, each.src, WEIGHT, each.origin)
    powers = bufferize(each, row, tile, lane, arg=("local", f"powers{number}"))

    def weight(row: UOp, place: UOp) -> UOp:
        where = alu(Ops.ADD, times(row, keys.padded), place)
        return make(Ops.INDEX, each.dtype, (powers, where), None, each.origin)

    # their sums
    row = loop(last.src[0], number, AxisKind.LOOP, last)
    number += 1
    tile, lane = tiles(AxisKind.REDUCE)
    each_of_row = weight(row, keys.place(tile, lane)), tile, lane
    total = make(Ops.REDUCE, each.dtype, each_of_row, weighted.total.arg, weighted.total.origin)
    totals = bufferize(total, row, arg=("local", f"totals{number}"))
    divisor = make(Ops.INDEX, total.dtype, (totals, last), None, total.origin)

    # what they weigh
    step = loop(keys.number(), int(k.arg[0]), AxisKind.REDUCE, k)
    weights = substitute(weighted.weights, {weighted.weight: weight(last, step)})
    product = substitute(weighted.sum.src[0], {weighted.weights: weights})
    product = (
        substitute(product, {k: keys.key(step)}) if keys.first is not None else substitute(product, {k: step})
    )
    result = weighted.sum.replace((product, step))
    if weighted.weight.op is Ops.FDIV:
        result = alu(Ops.FDIV, result, divisor)
    else:
        result = alu(Ops.MUL, result, alu(Ops.RECIP, divisor))
    return substitute(loops.ast, {weighted.sum: result})


def _digits(every: UOp, rows: list[UOp], sizes: list[int]) -> dict[UOp, UOp]:
    """Several loops over rows as parts of one."""
    found: dict[UOp, UOp] = {}
    rest = every
    for r, count in reversed(list(zip(rows[1:], sizes[1:], strict=True))):
        width = const(every.dtype, count)
        found[r] = alu(Ops.FLOORMOD, rest, width)
        rest = alu(Ops.FLOORDIV, rest, width)
    return {rows[0]: rest, **found}


def _with_places(value: UOp) -> UOp:
    """A value with its places simplified, and positions compared as such, whatever type they were given."""
    done: dict[UOp, UOp] = {}
    for n in toposort(value):
        sources = tuple([done[s] for s in n.src])
        if n.op in _COMPARISONS:
            places = [position(s) for s in sources]
            if all(p is not None for p in places):
                sources = tuple([p for p in places if p is not None])
        if not n.dtype.is_index:
            sources = tuple([simplify(s) if s.dtype.is_index else s for s in sources])
        done[n] = n.replace(sources)
    return done[value]


_COMPARISONS = (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)


def _gated(score: UOp, inside: UOp | None, own: set[UOp]) -> UOp:
    """A score that hides itself where there is no such key; nothing is read there."""
    if inside is None:
        return score
    done: dict[UOp, UOp] = {}
    for n in toposort(score):
        done[n] = new = n.replace(tuple([done[s] for s in n.src]))
        if n.op is Ops.INDEX and not own.isdisjoint(toposort(n.src[1])):
            done[n] = make(Ops.INDEX, n.dtype, (*new.src[:2], both(gate_of(new), inside)), n.arg, n.origin)
    return alu(Ops.WHERE, inside, done[score], const(score.dtype, -math.inf))
