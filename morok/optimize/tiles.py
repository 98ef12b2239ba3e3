"""Register tiles and packed panels: matrix products, convolutions and whatever reuses its inputs like them.

A reduction reuses its inputs if there are two loops over outputs, i and j, such that one read moves with i
only and another with j only. Then a tile of MR × NR outputs needs MR + NR elements per step instead of
2·MR·NR: the accumulators stay in registers, the reads along j are vectors, those along i are spread over one.

The reads along j come out of a panel that has been packed once, contiguous and aligned, and is used by all
tiles along i, which therefore is the innermost loop over outputs. Edges cost nothing inside: the panel is
filled up with zeros, rows beyond the end read the last row again, and only the stores are guarded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.optimize.builder import Builder
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, trips, value_bytes
from morok.optimize.host import Host
from morok.optimize.loops import size

FEWEST_STEPS = 4  # of a reduction that is worth a tile
FEWEST_OUTPUTS = 32
FEWEST_REUSES = 4  # of a panel that is worth packing


@final
@dataclass(frozen=True, eq=False)
class Product:
    """A reduction that reuses its inputs: which loops, which reads."""

    reduce: UOp
    effect: UOp
    i: UOp
    j: UOp
    along_i: tuple[Access, ...]  # reads that move with i and not with j
    along_j: tuple[Access, ...]


def find_product(effect: UOp, reduce: UOp) -> Product | None:
    """The two loops that a tile would be cut from; None if the reduction has no such reuse."""
    if effect.op is not Ops.END or len(reduce.arg) != 1:
        return None
    steps = math.prod(trips(k) for k in closed_ranges(reduce))
    if steps < FEWEST_STEPS:
        return None
    outputs = [r for r in output_loops(effect) if r.arg[1] is AxisKind.LOOP and r in ranges(reduce)]
    store = access(store_of(effect).src[0])
    reads = reads_of(reduce.src[0])
    best: tuple[int, Product] | None = None
    for j in outputs:
        if store.step(j) != 1:
            continue
        for i in outputs:
            along_i = tuple(a for a in reads if a.moves(i) and not a.moves(j))
            along_j = tuple(a for a in reads if a.moves(j) and not a.moves(i))
            both = any(a.moves(i) and a.moves(j) for a in reads)
            outputs_ij = trips(i) * trips(j)
            if i is j or not along_i or not along_j or both or outputs_ij < FEWEST_OUTPUTS:
                continue
            if best is None or outputs_ij > best[0]:
                best = outputs_ij, Product(reduce, effect, i, j, along_i, along_j)
    return None if best is None else best[1]


def tile_shape(rows: int, columns: int, lanes: int, host: Host) -> tuple[int, int]:
    """(MR, NR) for so many rows and columns: the most work per loaded element that fits the registers.

    A tile that does not divide the columns needs guarded stores, one that does not divide the rows only a
    clamped index, so the first weighs more.
    """
    best, shape = 0.0, (1, lanes)
    for vectors in range(1, 7):
        width = vectors * lanes
        for height in range(1, 17):
            if height * vectors + vectors + 1 > host.registers or height > max(1, rows):
                continue
            reuse = height * vectors / (height + vectors)
            filled = columns / (-(-columns // width) * width) * rows / (-(-rows // height) * height)
            score = reuse * filled * (1.0 if columns % width == 0 else 0.85)
            if score > best + 1e-9:
                best, shape = score, (height, width)
    return shape


def tile(builder: Builder, product: Product) -> bool:
    """Cuts the register tile and packs the panel."""
    host = builder.host
    rows, columns = size(product.i), size(product.j)
    if rows is None or columns is None:
        return False
    lanes = max(1, host.vector_bytes // value_bytes(product.reduce))
    height, width = tile_shape(rows, columns, lanes, host)
    i, j = int(product.i.arg[0]), int(product.j.arg[0])
    panel = _panel(product, height, width, host)
    if panel is None and any(a.step(product.j) != 1 for a in product.along_j):
        return False  # vectors along j would be gathered at every step
    if panel is not None:
        i, j = _innermost(builder, product, i, j)
    if rows % height:
        builder.do("PADTO", i, height)
    if columns % width:
        builder.do("PADTO", j, width)
    if height > 1:
        builder.do("UPCAST", i, height)
    lane_axis = builder.loops.next_number()
    if not builder.do("UPCAST", j, width):
        return False
    if panel is not None:
        _pack(builder, panel, product, lane_axis)
    return True


def _panel(product: Product, height: int, width: int, host: Host) -> Access | None:
    """The read along j that is worth packing."""
    if len(product.along_j) != 1 or product.along_j[0].buffer < 0:
        return None
    read = product.along_j[0]
    if trips(product.i) < FEWEST_REUSES * height:
        return None
    steps = math.prod(trips(k) for k in closed_ranges(product.reduce) if k in ranges(read.node))
    if any(size(k) is None for k in closed_ranges(product.reduce)):
        return None
    return read if steps * width * value_bytes(product.reduce) <= host.l2_bytes // 2 else None


def _innermost(builder: Builder, product: Product, i: int, j: int) -> tuple[int, int]:
    """Moves the loop over rows inside all other output loops, so that a panel serves all of it."""
    for other in sorted(int(r.arg[0]) for r in output_loops(product.effect)):
        if other <= i or not builder.do("SWAP", i, other):
            continue
        j = i if j == other else j
        i = other
    return i, j


def _pack(builder: Builder, read: Access, product: Product, lane_axis: int) -> None:
    steps = [int(k.arg[0]) for k in closed_ranges(product.reduce) if k in ranges(read.node)]
    last = builder.loops.next_number() + len(steps)
    if not builder.do("PACK", read.buffer, 0, (*sorted(steps), lane_axis)):
        return
    builder.do("UPCAST", last)
