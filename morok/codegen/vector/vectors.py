"""Lanes: picking, repeating and reading them, simplified while they are built.

Wide vectors come from the expander and are cut to size by the devectoriser. In between nearly every node is
some lanes of another, so these constructors look through what they are given: a lane of a broadcast is the
scalar, lanes of a constant are a constant, lanes of lanes are lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from morok.dtype import DType
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops


def vector_constant(dtype: DType, values: Sequence[Any]) -> UOp:
    """A constant with one value per lane; a CONST where they are all alike."""
    scalar = dtype.scalar
    first = values[0]
    if all(v == first and repr(v) == repr(first) for v in values):  # 0 is not -0, and 1 not 1.0 or true
        return const(scalar.vec(len(values)), first)
    return make(Ops.VCONST, scalar.vec(len(values)), (), tuple(values))


def swizzle(x: UOp, lanes: Sequence[int]) -> UOp:
    """Lanes of x in this order, one or more; the simplest node that says so."""
    n = x.dtype.lanes
    wanted = tuple(lanes)
    if n == 1:
        return splat(x, len(wanted))
    if len(wanted) == n and wanted[0] == 0 and wanted == tuple(range(n)):
        return x
    op = x.op
    if op is Ops.CONST:
        return make(Ops.CONST, x.dtype.scalar.vec(len(wanted)), (), x.arg)
    if op is Ops.VCONST:
        return vector_constant(x.dtype, [x.arg[i] for i in wanted])
    if op is Ops.VECTORIZE:
        return gather([x.src[i] for i in wanted])
    if op is Ops.GEP:
        return swizzle(x.src[0], [x.arg[i] for i in wanted])
    if op is Ops.CAT:
        return _from_parts(x, wanted)
    if len(wanted) > 1 and all(i == wanted[0] for i in wanted):
        return splat(swizzle(x, wanted[:1]), len(wanted))
    return make(Ops.GEP, x.dtype.scalar.vec(len(wanted)), (x,), wanted)


def _from_parts(x: UOp, wanted: tuple[int, ...]) -> UOp:
    """Lanes of a CAT, taken from the parts they lie in."""
    count = x.src[0].dtype.lanes
    if count >= _MANY_ROWS and len(wanted) % count == 0 and wanted[0] % count == wanted[1] % count:
        columns = _columns(x, wanted, count)
        if columns:
            return concat(columns)
    runs: list[tuple[UOp, list[int]]] = []
    start = stop = 0  # of the part that the last lane lies in
    ends: list[int] = []
    for lane in wanted:
        if start <= lane < stop:
            runs[-1][1].append(lane - start)
            continue
        ends = ends or list(accumulate([part.dtype.lanes for part in x.src]))
        number = bisect_right(ends, lane)
        part, stop = x.src[number], ends[number]
        start = stop - part.dtype.lanes
        runs.append((part, [lane - start]))
    return joined([swizzle(part, inner) for part, inner in runs])


def pieces(x: UOp, parts: Sequence[range]) -> list[UOp]:
    """`swizzle(x, part)` for parts that lie side by side and begin at 0: a CAT is gone through once."""
    if x.op is not Ops.CAT:
        if x.op is Ops.CONST or (x.op is Ops.VECTORIZE and x.src.count(x.src[0]) == len(x.src)):
            made = {len(part): swizzle(x, part) for part in parts}
            return [made[len(part)] for part in parts]
        return [swizzle(x, part) for part in parts]
    starts: dict[int, UOp] = {}
    at = 0
    for inner in x.src:
        starts[at] = inner
        at += inner.dtype.lanes
    out = []
    for part in parts:
        whole = starts.get(part[0])
        fits = whole is not None and whole.dtype.lanes == len(part)
        out.append(whole if fits and whole is not None else swizzle(x, part))
    return out


def parts_of(count: int, width: int) -> list[range]:
    """0 … count-1 in parts of `width`; the rest in powers of two."""
    out, start = [], 0
    while start < count:
        size = width
        while size > count - start:
            size //= 2
        out.append(range(start, start + size))
        start += size
    return out


def splat(x: UOp, lanes: int) -> UOp:
    """The scalar x in every lane."""
    if lanes == 1:
        return x
    if x.op is Ops.CONST:
        return make(Ops.CONST, x.dtype.vec(lanes), (), x.arg)
    return make(Ops.VECTORIZE, x.dtype.vec(lanes), (x,) * lanes)


def gather(xs: Sequence[UOp]) -> UOp:
    """A vector of scalars; lanes taken in order out of one vector give that vector back."""
    first = xs[0]
    if all(x is first for x in xs):
        return splat(first, len(xs))
    if all(x.op is Ops.CONST for x in xs):
        return vector_constant(first.dtype, [x.arg for x in xs])
    if all(x.op is Ops.GEP and x.src[0] is first.src[0] for x in xs):
        return swizzle(first.src[0], [x.arg[0] for x in xs])
    return make(Ops.VECTORIZE, first.dtype.vec(len(xs)), tuple(xs))


def concat(xs: Sequence[UOp]) -> UOp:
    """Vectors and scalars one after the other."""
    flat: list[UOp] = []
    for x in xs:
        flat += x.src if x.op is Ops.CAT else (x,)
    if len(flat) == 1:
        return flat[0]
    if all(x.op in (Ops.CONST, Ops.VCONST) for x in flat):
        values = [v for x in flat for v in (x.arg if x.op is Ops.VCONST else (x.arg,) * x.dtype.lanes)]
        return vector_constant(flat[0].dtype, values)
    if all(x.dtype.lanes == 1 for x in flat):
        return gather(flat)
    if all(x.op is Ops.GEP and x.src[0] is flat[0].src[0] for x in flat) and flat[0].src[0].op is not Ops.CAT:
        return swizzle(flat[0].src[0], [i for x in flat for i in x.arg])
    total = sum(x.dtype.lanes for x in flat)
    return make(Ops.CAT, flat[0].dtype.scalar.vec(total), tuple(flat))


def joined(parts: Sequence[UOp]) -> UOp:
    """`concat` of parts, which may all be one scalar in every lane."""
    first = parts[0]
    if first.op is Ops.VECTORIZE or first.dtype.lanes == 1:
        one = first.src[0] if first.op is Ops.VECTORIZE else first
        if all(s is one for part in parts for s in (part.src if part.op is Ops.VECTORIZE else (part,))):
            return splat(one, sum(part.dtype.lanes for part in parts))
    return concat(parts)


_FEWEST_ROWS = 4
_MANY_ROWS = 8  # longer than any vector of a GPU, whose vectors are made of elements


def turned_rows(node: UOp) -> tuple[tuple[UOp, ...], int] | None:
    """As many vectors as a vector has lanes, one lane of each: the rows, and which; None if it is something
    else."""
    count = node.dtype.lanes
    if count < _FEWEST_ROWS or count & (count - 1):
        return None
    if node.op is Ops.GEP and node.src[0].op is Ops.CAT:
        rows, number = node.src[0].src, node.arg[:1]
        same = len(rows) == count and node.arg == tuple(range(number[0], count * count, count))
    elif node.op is Ops.VECTORIZE and node.src[0].op is Ops.GEP:
        number = node.src[0].arg
        same = all(s.op is Ops.GEP and s.arg == number for s in node.src)
        rows = tuple([s.src[0] for s in node.src]) if same else ()
    else:
        return None
    same = same and all(row.dtype.lanes == count for row in rows) and len(set(rows)) == count
    return (rows, number[0]) if same else None


def _columns(x: UOp, wanted: tuple[int, ...], count: int) -> list[UOp]:
    """Lanes of a CAT of rows as vectors of one lane each of as many rows; none if they are something else."""
    if count & (count - 1) or not _may_turn(x.dtype) or any(row.dtype.lanes != count for row in x.src):
        return []
    found = []
    for start in range(0, len(wanted), count):
        lanes = wanted[start : start + count]
        number = lanes[0] % count
        rows = tuple([x.src[lane // count] for lane in lanes])
        if any(lane % count != number for lane in lanes) or len(set(rows)) < count:
            return []
        found.append(_turned(rows, number))
    return found


def _may_turn(dtype: DType) -> bool:
    """Places are taken apart lane by lane, and narrow numbers are made wider."""
    scalar = dtype.scalar
    return scalar.itemsize >= 4 and not scalar.is_index


def _turned(rows: tuple[UOp, ...], number: int) -> UOp:
    count, scalar = len(rows), rows[0].dtype.scalar
    whole = make(Ops.CAT, scalar.vec(count * count), rows)
    return make(Ops.GEP, scalar.vec(count), (whole,), tuple(range(number, count * count, count)))


def turned(x: UOp) -> UOp:
    """A lane of each of many rows as lanes of them all: one node instead of one for every element of every
    row, which stages go through one by one. Others as they are."""
    if x.op is not Ops.VECTORIZE or x.dtype.lanes < _MANY_ROWS or not _may_turn(x.dtype):
        return x
    found = turned_rows(x)
    return x if found is None else _turned(*found)


def by_lanes(x: UOp) -> UOp:
    """What `turned` has made one node, lane by lane."""
    found = turned_rows(x)
    assert found is not None
    rows, number = found
    return make(Ops.VECTORIZE, x.dtype, tuple([swizzle(row, (number,)) for row in rows]))


def repeat(x: UOp, times: int) -> UOp:
    """All lanes of x, `times` times over."""
    return swizzle(x, tuple(range(x.dtype.lanes)) * times)


def lane(x: UOp, i: int) -> UOp:
    """Lane i as a scalar, computed from lanes of the operands. Iterative; shares what lanes share."""
    done: dict[tuple[UOp, int], UOp] = {}
    stack = [(x, i)]
    while stack:
        item = stack[-1]
        node, number = item
        if item in done:
            stack.pop()
            continue
        below = _lane_sources(node, number)
        pending = [s for s in below if s not in done]
        if pending:
            stack += pending
            continue
        stack.pop()
        if not below:
            done[item] = node if node.dtype.lanes == 1 else swizzle(node, (number,))
        elif node.op is Ops.GEP:
            done[item] = done[below[0]]
        else:
            done[item] = make(node.op, node.dtype.scalar, tuple(done[s] for s in below), node.arg)
    return done[x, i]


def _lane_sources(node: UOp, number: int) -> list[tuple[UOp, int]]:
    """The lanes that a lane is computed from; empty where it is simply taken."""
    if node.op is Ops.GEP:
        return [(node.src[0], node.arg[number])]
    if node.dtype.lanes == 1:
        return []
    if node.op.is_alu and all(s.dtype.lanes == node.dtype.lanes for s in node.src):
        return [(s, number) for s in node.src]
    return []
