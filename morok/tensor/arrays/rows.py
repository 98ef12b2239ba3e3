"""Rows of a table, taken and put, as nodes.

Taking rows compares the wanted place with every place, keeps what matches and adds up; the scheduler turns
that into a read at a computed place. Putting rows is an op of its own: it goes through the rows in order, so
that places may come up again. Each is the other's gradient.
"""

from __future__ import annotations

from morok.dtype import DType, float32, int64, uint64
from morok.ir import movement as move
from morok.ir.build import cast
from morok.ir.call import call
from morok.ir.checks import Complaint, check
from morok.ir.infer import Shape, Size, numel
from morok.ir.memory import ALONE, is_alone
from morok.ir.movement import found_rows
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.memory.storage import beside

_FEW = 32  # rows of a table up to which its gradient compares instead of going through the rows in order


def wide_enough(places: UOp, size: Size) -> tuple[UOp, UOp]:
    """Positions in a type that holds all of an axis, and how many there are, in that type."""
    dtype = places.dtype
    if dtype.bits < 64 and (not isinstance(size, int) or size > dtype.max):
        places = cast(places, int64)
    own = places.dtype
    return places, cast(size, own) if isinstance(size, UOp) else const(own, size)


def checked(places: UOp, limit: UOp, complaint: Complaint, nowhere: bool = False) -> UOp:
    """Positions that have to lie below a limit, as ordinary numbers. (There are none beyond 2^63.)

    One that does not is the first until somebody hears of it: a place that may be read. Or it is nowhere.
    """
    node = check(places, limit, complaint, limit if nowhere else None)
    return cast(node, int64) if node.dtype is uint64 else node


def take_rows(table: UOp, places: UOp) -> UOp:
    """(R, …) and places (…) below R → one row per place; zeros for a place that does not exist."""
    return named_rows(found_rows(table, places), table, places)


def named_rows(found: UOp, table: UOp, places: UOp) -> UOp:
    """A lookup under its name, by which its gradient goes."""
    return call("rows", found, table, places)


def put_rows(x: UOp, places: UOp, rows: UOp, op: Op | None = None) -> UOp:
    """x with a row at each of the places, in order: in place of what is there, or joined with it by an op.

    A place that does not exist gets nothing. Beyond 2^63 there are none: as ordinary numbers, negative ones.
    """
    places = cast(places, int64) if places.dtype is uint64 else places
    kept = make(Ops.CONTIGUOUS, places.dtype, (places,))
    return make(Ops.SCATTER, x.dtype, (x, kept, rows), op)


def put_alone(places: UOp, rows: UOp) -> UOp:
    """Rows at places that the caller knows to be all different, and all there are: each is somebody's."""
    nothing = expand_to(const(rows.dtype, 0), require_shape(rows))
    return make(Ops.SCATTER, rows.dtype, (nothing, places, rows), ALONE)


def add_rows(sizes: Shape, places: UOp, rows: UOp) -> UOp:
    """The sums of the rows that go to each place of a table of zeros, carried in 32 bits at least."""
    dtype = rows.dtype
    wide = _wide(dtype)
    zeros = expand_to(const(wide, 0), sizes)
    return cast(put_rows(zeros, places, cast(rows, wide), Ops.ADD), dtype)


def _wide(dtype: DType) -> DType:
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


# --- gradients


def pull_rows(node: UOp, g: UOp, source: int) -> UOp | None:
    """Of taken rows: every row of the table gets the sum of what was taken from it."""
    table, places = node.src[1:]
    if source != 1:
        return None
    sizes = require_shape(table)
    count = sizes[0]
    if not isinstance(count, int) or count > _FEW:
        return add_rows(sizes, places, g)
    where = require_shape(places)
    full = (*where, *sizes)
    hit = alu(
        Ops.CMPEQ,
        expand_to(move.reshape(places, (*where, *(1,) * len(sizes))), full),
        expand_to(iota(full, len(where), places.dtype), full),
    )
    wide = expand_to(move.reshape(g, (*where, 1, *sizes[1:])), full)
    parts = cast(alu(Ops.WHERE, hit, wide, const(g.dtype, 0.0)), _wide(g.dtype))
    return cast(move.reshape(move.reduce_axis(parts, Ops.ADD, tuple(range(len(where)))), sizes), g.dtype)


def pull_scatter(node: UOp, g: UOp, source: int) -> UOp | None:
    """Of rows that were put: what is left of x, and what of each row."""
    if source == 1:
        return None
    x, places, rows = node.src
    if is_alone(node):
        return take_rows(g, places) if source == 2 else None
    op: Op | None = node.arg
    if op is Ops.ADD:
        return g if source == 0 else take_rows(g, places)
    if op is None:
        return _replaced(g, places, rows, source)
    if op is Ops.MUL:
        return _factors(x, places, rows, g, source)
    assert op in (Ops.MAX, Ops.MIN), op
    # Equal extremes share the gradient evenly.
    extreme = beside(node)
    kept, taken = alu(Ops.CMPEQ, x, extreme), alu(Ops.CMPEQ, rows, take_rows(extreme, places))
    count = put_rows(cast(kept, g.dtype), places, cast(taken, g.dtype), Ops.ADD)
    share, zero = alu(Ops.FDIV, g, count), const(g.dtype, 0.0)
    if source == 0:
        return alu(Ops.WHERE, kept, share, zero)
    return alu(Ops.WHERE, taken, take_rows(share, places), zero)


def _replaced(g: UOp, places: UOp, rows: UOp, source: int) -> UOp:
    """Of rows at one place only the last is left."""
    zero = const(g.dtype, 0.0)
    if source == 0:
        return put_rows(g, places, expand_to(zero, require_shape(rows)))
    where = require_shape(places)
    count = numel(where)
    flat = move.reshape(places, (count,))
    number = iota((count,), 0, int64)
    nobody = expand_to(const(int64, -1), require_shape(g)[:1])
    last = alu(Ops.CMPEQ, take_rows(put_rows(nobody, flat, number), flat), number)
    sizes = require_shape(rows)
    mine = move.reshape(last, (*where, *(1,) * (len(sizes) - len(where))))
    return alu(Ops.WHERE, expand_to(mine, sizes), take_rows(g, places), zero)


def _factors(x: UOp, places: UOp, rows: UOp, g: UOp, source: int) -> UOp:
    """Of a product: the product of the others. Zeros are counted, because they cannot be divided by."""
    one, zero = const(g.dtype, 1.0), const(g.dtype, 0.0)
    gone_x, gone = alu(Ops.CMPEQ, x, zero), alu(Ops.CMPEQ, rows, zero)
    full_x, full = alu(Ops.WHERE, gone_x, one, x), alu(Ops.WHERE, gone, one, rows)
    product = put_rows(full_x, places, full, Ops.MUL)
    zeros = put_rows(cast(gone_x, g.dtype), places, cast(gone, g.dtype), Ops.ADD)
    own, is_zero = (full_x, gone_x) if source == 0 else (full, gone)
    if source == 2:
        g, product, zeros = (take_rows(n, places) for n in (g, product, zeros))
    others = alu(Ops.SUB, zeros, cast(is_zero, g.dtype))
    left = alu(Ops.WHERE, alu(Ops.CMPEQ, others, zero), alu(Ops.FDIV, product, own), zero)
    return alu(Ops.MUL, g, left)
