"""Attention on a processor: whose scores a thread keeps, how both products are tiled, who shares what.

A block of rows keeps its scores in the second cache. Keys are turned and packed once for all rows of a head
where threads take whole heads, else once for each block, which is the larger for it. By their prices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.bounds import vmax
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, const
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.optimize.actions.cache_scores import keys_of
from morok.optimize.actions.pack import packed_value
from morok.optimize.facts import Access, output_loops, reads_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.packing import pack, steps_of
from morok.optimize.heuristics.sharing import FLOAT_BYTES, PRODUCT, operations_to_copy, share_loops
from morok.optimize.heuristics.tiles import tile_shape
from morok.rewrite.engine import substitute
from morok.schedule.graph.cached_scores import CachedScores, cached_scores
from morok.symbolic.sets import simplify

SUMS_OF_EIGHT = 5  # registers of a tile of results: some hold what an exponential is made of all the time
SAMPLES = 8  # blocks that are asked how many keys they look at
BESIDE = 16.0  # operations on a score beside its power: maximum, sum, mask, scale


class Block(NamedTuple):
    """Rows of a block and of its tiles, keys and columns of a tile; whether keys are packed once for all."""

    rows: int
    high: int  # of a tile of scores
    keys: int
    weighed: int  # rows of a tile of results
    columns: int
    whole_heads: bool


def attention(builder: Builder) -> bool:
    """Tiles for attention; False, and the kernel as it was, if it is none."""
    found = cached_scores(builder.ast)
    if found is None:
        return False
    before = builder.loops
    if _build(builder, found, _best(builder, found)):
        return True
    builder.loops = before
    return False


def _best(builder: Builder, found: CachedScores) -> Block:
    """The block whose busiest thread has least to do."""
    machine = builder.machine
    rows, keys, columns = trips(found.rows), trips(found.steps), trips(found.columns)
    lanes = machine.lanes(found.product.dtype)
    high, wide = tile_shape(rows, keys, lanes, machine)
    sums = machine.registers * SUMS_OF_EIGHT // 8
    step, across = tile_shape(rows, columns, lanes, machine, sums=sums)
    others = [r for r in output_loops(builder.ast.src[0]) if r not in (found.rows, found.columns)]
    heads = math.prod(map(trips, others))
    choices = [
        Block(n * step, _divisor(n * step, high), wide, step, across, whole)
        for n in range(1, -(-rows // step) + 1)
        for whole in ((True, False) if others else (False,))
    ]
    fitting = [block for block in choices if _fits(block, found, machine)] or choices[:1]
    shown = _shown(builder, found, step, wide)
    return min(fitting, key=lambda block: _time(block, found, heads, shown, builder))


def _divisor(rows: int, most: int) -> int:
    """The highest tile that blocks of so many rows are made of."""
    return max(n for n in range(1, most + 1) if rows % n == 0)


def _time(block: Block, found: CachedScores, heads: int, shown: float, builder: Builder) -> float:
    """Simple operations of the thread that has most to do, where rows look at this part of the keys."""
    machine = builder.machine
    inner = math.prod(map(trips, closed_ranges(found.product)))
    every = -(-trips(found.steps) // block.keys) * block.keys
    # a block looks at what any of its rows does, in whole tiles
    keys = every if shown == 1.0 else min(every, shown * every + (block.rows + block.keys) / 2)
    columns = -(-trips(found.columns) // block.columns) * block.columns
    blocks = -(-trips(found.rows) // block.rows)
    score = PRODUCT * (inner + columns) + machine.op_costs.exponential + BESIDE
    # a panel of keys comes out of the second cache for each block
    work = keys * (block.rows * score + inner * operations_to_copy(True, machine))
    packing = inner * operations_to_copy(False, machine)
    cores = machine.cores if builder.shares else 1
    if block.whole_heads:
        return -(-heads // cores) * (blocks * work + every * packing)
    return -(-heads * blocks // cores) * (work + keys * packing)


def _shown(builder: Builder, found: CachedScores, rows: int, keys: int) -> float:
    """The part of the keys that rows look at, by the tiles of some blocks."""
    scratch = Builder(builder.ast, builder.machine)
    i, number = int(found.rows.arg[0]), scratch.loops.next_number()
    if trips(found.rows) % rows:
        scratch.do("PADTO", i, rows)
    again = cached_scores(scratch.ast) if scratch.do("TILE", i, rows) else None
    if again is None:
        return 1.0
    block, inside = (scratch.loops.by_number[n] for n in (i, number))
    seen = keys_of(scratch.loops, again, [inside], keys)
    if not ranges(seen.tiles):
        return float(vmax(seen.tiles)) / -(-seen.every // keys)
    others = {r: const(r.dtype, 0) for r in ranges(seen.tiles) if r is not block}
    last = trips(block) - 1
    counts = [
        vmax(simplify(substitute(seen.tiles, {**others, block: const(block.dtype, last * n // SAMPLES)})))
        for n in range(SAMPLES + 1)
    ]
    mean: float = sum(counts) / len(counts) * keys - (rows + keys) / 2
    return min(1.0, max(float(keys), mean) / seen.every)


def _fits(block: Block, found: CachedScores, machine: Machine) -> bool:
    """Whether a block's scores stay in the second cache, beside the keys that all blocks go over."""
    keys = -(-trips(found.steps) // block.keys) * block.keys
    inner = math.prod(map(trips, closed_ranges(found.product))) if block.whole_heads else block.keys
    return keys * (block.rows + inner) * FLOAT_BYTES <= machine.l2_bytes * 3 // 4


def _build(builder: Builder, found: CachedScores, block: Block) -> bool:
    """The actions for a block."""
    i, k, d = (int(r.arg[0]) for r in (found.rows, found.steps, found.columns))
    for loop, amount in ((i, block.rows), (d, block.columns)):
        if trips(builder.loops.by_number[loop]) % amount and not builder.do("PADTO", loop, amount):
            return False
    number = builder.loops.next_number()
    outer, inner = ([i], number) if builder.do("TILE", i, block.rows) else ([], i)
    number = builder.loops.next_number()
    axes = (inner, number) if builder.do("TILE", inner, block.weighed) else (inner,)
    if d < inner and len(axes) > 1:  # columns inside of rows: the weights of some rows are computed once
        if not builder.do("SWAP", d, inner):
            return False
        d, axes = inner, (d, number)
    outputs = [int(r.arg[0]) for r in output_loops(builder.ast.src[0])]
    shared = [n for n in outputs if n not in (*axes, d) and not (block.whole_heads and n in outer)]
    if builder.shares and shared and not share_loops(builder, shared):
        return False
    first = builder.loops.next_number()
    if not builder.do("CACHE_SCORES", k, block.keys, axes):
        return False
    return _tiles(builder, block, first, axes, d)


def _tiles(builder: Builder, block: Block, first: int, axes: tuple[int, ...], d: int) -> bool:
    """Lanes and panels of the loops that CACHE_SCORES has made, which are numbered in their order."""
    tile, rows, lane, top, power, total = (first + n for n in (0, 1, 2, 5, 7, 10))
    high = builder.loops.next_number()
    if not builder.do("UPCAST", rows, block.high):
        return False
    panel = builder.loops.next_number()
    if not builder.do("UPCAST", lane):
        return False
    _pack(builder, panel, [tile] if block.whole_heads else [], plain=True)
    _pack(builder, high, [rows] if rows in builder.loops.by_number else [], plain=False)
    wide = min(block.columns, trips(builder.loops.by_number[d]))
    done = [
        builder.do("UNROLL", top), builder.do("UPCAST", power), builder.do("UNROLL", total),
        builder.do("UPCAST", axes[-1]), builder.do("UPCAST", d, wide),
    ]  # fmt: skip
    return all(done)


def _pack(builder: Builder, axis: int, outer: list[int], plain: bool) -> None:
    """Copies a factor of the scores with its lanes along this axis side by side.

    What it is computed of, by other reads perhaps, is packed with the widest one if it can be. If `plain` is
    false, what lies in memory as it is wanted stays there.
    """
    packed: set[int] = set()
    while True:
        lane = builder.loops.by_number[axis]
        product = next(n for n in builder.loops.order if n.op is Ops.REDUCE and lane in ranges(n))
        inner = closed_ranges(product)
        moving = [a for a in reads_of(product.src[0]) if a.buffer >= 0 and lane in ranges(a.node)]
        left = [a for a in moving if a.buffer not in packed and not ranges(a.node).isdisjoint(inner)]
        if not left or not (plain or _is_computed(builder, left, inner)):
            return
        read = max(left, key=lambda a: len(ranges(a.node)))
        packed.add(read.buffer)
        before, steps = builder.loops, [int(k.arg[0]) for k in steps_of(product)]
        pack(builder, read, [*outer, *steps], axis)
        if outer and builder.loops is before:  # which keys there are depends on the rows
            pack(builder, read, steps, axis)


def _is_computed(builder: Builder, reads: list[Access], steps: tuple[UOp, ...]) -> bool:
    """Whether something is made of these reads first, or what is read lies apart."""
    if len(reads) > 1 or all(reads[0].step(k) != 1 for k in steps):
        return True
    return packed_value(builder.loops, reads[0].node) is not reads[0].node
