"""Stage 10, tiles of a unit that reads memory: a buffer of sums is filled by one instruction.

BUFFERIZE(REDUCE(WMMA(a[i·r + k], b[k, j]), k), i, j)   →   TILE_PRODUCT(s, address of a, address of b)
"""

from __future__ import annotations

import math

from morok.dtype import void
from morok.ir.bounds import vmax
from morok.ir.build import after, cast, define_local
from morok.ir.infer import closed_ranges
from morok.ir.matrix import TileProduct, TileUnit
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.optimize.loops import stride
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify


def is_tile_product(buffer: UOp) -> bool:
    """A buffer whose sums a unit computes."""
    return buffer.op is Ops.BUFFERIZE and len(buffer.arg) > 2 and isinstance(buffer.arg[2], TileUnit)


def tile_product(buffer: UOp) -> UOp:
    """The memory once the unit has filled it."""
    total, row, column = buffer.src
    unit: TileUnit = buffer.arg[2]
    point, steps = total.src[0], closed_ranges(total)
    left, right = point.src[:2]
    rows, columns = (int(vmax(r)) + 1 for r in (row, column))
    memory = define_local(unit.output, rows * columns, buffer.arg[1])
    first = {r: const(r.dtype, 0) for r in (row, column, *steps)}
    addresses = [make(Ops.INDEX, memory.dtype, (memory, const(row.dtype, 0)))]
    for x in (left, right):
        place = simplify(substitute(x.src[1], first))
        addresses.append(make(Ops.INDEX, x.src[0].dtype, (x.src[0], place), None, x.origin))
    far = stride(left.src[1], row)
    assert far is not None
    how = TileProduct(unit, rows, columns, math.prod(int(vmax(r)) + 1 for r in steps), far)
    return after(memory, make(Ops.TILE_PRODUCT, void, tuple(addresses), how, total.origin))


def plain_product(buffer: UOp) -> UOp:
    """The same as sums of products, where an operand is no memory any more: a constant, say."""
    total = buffer.src[0]
    point = total.src[0]
    x, y = (cast(s, total.dtype) for s in point.src[:2])
    value = total.replace((alu(point.arg.product, x, y), *closed_ranges(total)))
    return make(Ops.BUFFERIZE, buffer.dtype, (value, *buffer.src[1:]), buffer.arg[:2], buffer.origin)


def is_memory(buffer: UOp) -> bool:
    """Whether both operands are plain places in memory."""
    return all(x.op is Ops.INDEX and len(x.src) == 2 for x in buffer.src[0].src[0].src[:2])
