"""Attention on a processor: whose scores a thread keeps, how both products are tiled, who shares what.

A block of rows keeps its scores in the second cache. Keys are turned and packed once for all rows of a head
where threads take whole heads, else once for each block, which is the larger for it. Values come by for each
tile of rows; where they are more than the second cache holds beside the scores, some of them at a time are
multiplied with the weights of all rows of a block. By their prices.
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
from morok.optimize.heuristics.sharing import (
    FLOAT_BYTES,
    PRODUCT,
    cycles_of_operation,
    operations_to_copy,
    share_loops,
)
from morok.optimize.heuristics.tiles import tile_shape
from morok.rewrite.engine import substitute
from morok.schedule.graph.attention.cached_scores import CachedScores, cached_scores
from morok.symbolic.sets import simplify

SUMS_OF_EIGHT = 5  # registers of a tile of results: some hold what an exponential is made of all the time
SAMPLES = 8  # blocks that are asked how many keys they look at
BESIDE = 16.0  # operations on a score beside its power: maximum, sum, mask, scale
SHARED = 5.0  # rows that what a tile's rows have in common takes as long as: 6x64 is faster than 5x64
ROOM = 3 / 4  # of the second cache, for what has to stay there
FOR_VALUES = 1 / 4  # of the second cache


class Block(NamedTuple):
    """Rows of a block and of its tiles, keys and columns of a tile; whether keys are packed once for all."""

    rows: int
    high: int  # of a tile of scores
    keys: int
    weighed: int  # rows of a tile of results
    columns: int
    whole_heads: bool
    at_once: int = 0  # keys whose values all rows of a block pass before the next ones come; 0: all keys


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
    some = _at_once(keys, columns, wide, machine)
    most = machine.local_bytes // (2 * FLOAT_BYTES * -(-keys // wide) * wide)
    choices = [
        Block(n * step, _divisor(n * step, high), wide, step, across, whole, at_once)
        for n in range(1, max(1, min(-(-rows // step), most // step)) + 1)
        for whole in ((True, False) if others else (False,))
        for at_once in ({0, some} if n > 1 else (0,))
    ]
    shown = _shown(builder, found, step, wide)
    return min(choices, key=lambda block: _time(block, found, heads, shown, high, builder))


def _at_once(keys: int, columns: int, wide: int, machine: Machine) -> int:
    """Keys whose values stay in the second cache for all rows of a block; 0: all of them."""
    most = max(1, int(machine.l2_bytes * FOR_VALUES) // (columns * FLOAT_BYTES * wide)) * wide
    return most if most < keys else 0


def _divisor(rows: int, most: int) -> int:
    """The highest tile that blocks of so many rows are made of."""
    return max(n for n in range(1, most + 1) if rows % n == 0)


def _time(
    block: Block, found: CachedScores, heads: int, shown: float, highest: int, builder: Builder
) -> float:
    """Simple operations of the thread that has most to do, where rows look at this part of the keys."""
    machine = builder.machine
    inner = math.prod(map(trips, closed_ranges(found.product)))
    every = -(-trips(found.steps) // block.keys) * block.keys
    # a block looks at what any of its rows does, in whole tiles
    keys = every if shown == 1.0 else min(every, shown * every + (block.rows + block.keys) / 2)
    columns = -(-trips(found.columns) // block.columns) * block.columns
    blocks = -(-trips(found.rows) // block.rows)
    far = FLOAT_BYTES * machine.rates.memory_byte / cycles_of_operation(machine)
    near = FLOAT_BYTES * machine.rates.l2_byte / cycles_of_operation(machine)
    room = machine.l2_bytes * ROOM
    rows = block.rows * (2 if block.at_once else 1)  # weights are kept as well
    held, values = (FLOAT_BYTES * keys * n for n in (rows, columns))
    turned = FLOAT_BYTES * keys * inner if block.whole_heads else 0.0
    lower = (1 + SHARED / block.high) / (1 + SHARED / highest)  # beside the tile that registers hold
    score = PRODUCT * (inner * lower + columns) + machine.op_costs.exponential + BESIDE
    # the fuller the cache, the more of it is pushed out: pages lie anywhere
    score += 2 * far * min(1.0, (held + turned + values) / machine.l2_bytes) ** 2
    if held > room:  # what is written comes and goes
        score += (8 if block.at_once else 4) * far * (1 - room / held)
    if block.at_once:  # weights go out and come back, and so do totals
        score += 2 * near + 2 * columns / block.at_once * near
    # a panel of keys comes out of the second cache for each block, or from behind it
    work = keys * (block.rows * score + inner * operations_to_copy(True, machine))
    if not block.whole_heads or held + turned + values > room:
        work += keys * inner * far
    if block.at_once:
        work += keys * columns * far
    elif held + values > room:
        work += keys * columns * far * block.rows / block.weighed
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


def _build(builder: Builder, found: CachedScores, block: Block) -> bool:
    """The actions for a block."""
    i, k, d = (int(r.arg[0]) for r in (found.rows, found.steps, found.columns))
    for loop, amount in ((i, block.rows), (d, block.columns)):
        if trips(builder.loops.by_number[loop]) % amount and not builder.do("PADTO", loop, amount):
            return False
    number = builder.loops.next_number()
    outer, inner = ([i], number) if builder.do("TILE", i, block.rows) else ([], i)
    number = builder.loops.next_number()
    cut = not block.at_once and builder.do("TILE", inner, block.weighed)
    if d < inner and (cut or block.at_once):  # columns inside of rows: weights are computed once
        if not builder.do("SWAP", d, inner):
            return False
        d, inner = inner, d
    axes = (inner, number) if cut else (inner,)
    outputs = [int(r.arg[0]) for r in output_loops(builder.ast.src[0])]
    shared = [n for n in outputs if n not in (*axes, d) and not (block.whole_heads and n in outer)]
    if builder.shares and shared and not share_loops(builder, shared):
        return False
    first = builder.loops.next_number()
    if not builder.do("CACHE_SCORES", k, block.keys, axes):
        return False
    totals = builder.loops.next_number()
    if block.at_once and not builder.do("SPLIT_K", k, block.at_once, (d, inner)):
        return False
    return _tiles(builder, block, first, axes, d, totals)


def _tiles(builder: Builder, block: Block, first: int, axes: tuple[int, ...], d: int, totals: int) -> bool:
    """Lanes and panels of the loops that CACHE_SCORES and SPLIT_K have made, numbered in their order."""
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
    done = [builder.do("UNROLL", top), builder.do("UPCAST", power), builder.do("UNROLL", total)]
    if block.at_once:
        done += [builder.do("UPCAST", totals + 2, block.weighed), builder.do("UPCAST", totals + 1, wide)]
    else:
        done.append(builder.do("UPCAST", axes[-1]))
    return all((*done, builder.do("UPCAST", d, wide)))


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
