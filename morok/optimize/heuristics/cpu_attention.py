"""Attention on a processor: which rows a thread keeps the scores of, and how both products are tiled."""

from __future__ import annotations

from morok.optimize.facts import output_loops, reads_of, trips, value_bytes
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.packing import pack
from morok.optimize.heuristics.sharing import share_loops
from morok.optimize.heuristics.tiles import tile_shape
from morok.optimize.loops import size
from morok.ir.infer import closed_ranges, ranges
from morok.ir.ops import AxisKind, Ops
from morok.schedule.graph.cached_scores import cached_scores
from morok.optimize.facts import access
import os


def attention(builder: Builder) -> bool:
    found = cached_scores(builder.ast)
    if found is None:
        return False
    before = builder.loops
    if _attention(builder, found):
        return True
    builder.loops = before
    return False


def _attention(builder, found) -> bool:
    machine = builder.machine
    lanes = machine.lanes(found.product.dtype)
    rows, keys, columns = trips(found.rows), trips(found.steps), trips(found.columns)
    i, k, d = (int(r.arg[0]) for r in (found.rows, found.steps, found.columns))
    high, wide = tile_shape(rows, keys, lanes, machine)
    high2, wide2 = tile_shape(rows, columns, lanes, machine)
    R = int(os.environ.get("ROWS", "48"))
    R = -(-R // high) * high
    R = min(R, -(-rows // high) * high)
    while R % high2: high2 -= 1
    print("tiles", high, wide, high2, wide2, "rows", R)
    if rows % R and not builder.do("PADTO", i, R):
        return False
    inner = i
    n = builder.loops.next_number()
    if builder.do("TILE", i, R):
        inner = n
    n = builder.loops.next_number()
    axes = (inner,)
    if builder.do("TILE", inner, high2):
        axes = (inner, n)
    # threads
    others = [int(r.arg[0]) for r in output_loops(builder.ast.src[0]) if int(r.arg[0]) not in (*axes, d)]
    if builder.shares and others:
        share_loops(builder, others)
    first = builder.loops.next_number()
    from morok.optimize.actions.table import can
    from morok.optimize.record import Opt
    print(can(builder.ast, Opt("CACHE_SCORES", k, wide, axes), machine))
    if not builder.do("CACHE_SCORES", k, wide, axes):
        return False
    return tiles(builder, k, d, axes, first, (high, wide), wide2)

def tiles(builder, k, d, axes, first, shape, wide2):
    high, wide = shape
    # scores
    tile = first
    own = [first + 1 + n for n in range(len(axes))]
    lane = own[-1] + 1
    ok = builder.do
    if len(own) == 2 and False:
        pass
    row_axis = own[-1]
    print("rows", ok("UPCAST", own[-1]), [builder.loops.by_number[n].src[0].arg for n in own if n in builder.loops.by_number])
    print(ok("UPCAST", lane))
    lane_axis = lane
    lane_axis = max(builder.loops.by_number)
    keyed = next(n for n in builder.loops.order if n.op is Ops.REDUCE and builder.loops.by_number[lane_axis] in ranges(n))
    e = [int(r.arg[0]) for r in closed_ranges(keyed)]
    reads = [a for a in reads_of(keyed.src[0]) if builder.loops.by_number[lane_axis] in ranges(a.node)]
    pack(builder, reads[0], e, lane_axis)
    # powers
    row = lane + 1
    lanes = builder.machine.lanes(keyed.dtype)
    print("top", ok("UNROLL", row + 2)); 
    print("pow", ok("UPCAST", row + 4))
    srow = row + 5
    print("sum", ok("UNROLL", srow + 2))
    print("out rows", ok("UPCAST", axes[-1]))
    print("out columns", builder.do("UPCAST", d, min(wide2, size(builder.loops.by_number[d]))))
    return True
