"""Rows that are added at places, in order: sorted by their places first, so that each place has a segment.

How many rows come before a row is its place in the sorted list: every pair of places is compared, which for
some thousands is less than a pass over the table. Then each place of the table adds up the rows of its own
segment and of no other, from the first to the last; most have none, and only write. Nothing waits for
anything, every sum has one order, and what is done with it (a cast, a second gradient that is added) is done
on the way.

A segment may be long: where most rows go to few places. So the sums of runs of rows, whoever they belong to,
are there as well, and a segment is some rows, whole runs, and some rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from morok.dtype import int32, int64
from morok.ir.build import cast
from morok.ir.infer import Shape, Size, size_node
from morok.ir.memory import ALONE
from morok.ir.movement import found_rows, iota, reduce_axis, reshape, shrink, spread_to
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.ir.sizes import combine
from morok.schedule.costs import STORED, elements
from morok.schedule.indexing import known_shape

RUN = 32  # rows of which there is a sum, for segments that have all of them
LONG = 4  # runs, from which on a segment may be long
PAIR = 6  # operations that a pair of places takes
KERNELS = 7  # of all of this
MOVED = 4  # times that a row is read or written
WHY = "rows in the order of their places"


def kept(x: UOp) -> UOp:
    return make(Ops.CONTIGUOUS, x.dtype, (x,), WHY, x.origin)


def segment_sums(keys: UOp, rows: UOp, height: Size) -> tuple[UOp, UOp]:
    """The sums of rows (n, …) that go to each of `height` places, by keys (n,) of 32 bits, and whether any
    did. Other rows have keys below 0, and go nowhere."""
    (count,) = known_shape(keys)
    rank = _rank(keys, count)
    # a key and the number of its row in one word; no two have the same rank, so each has a place of its own
    both = alu(Ops.ADD, alu(Ops.MUL, cast(keys, int64), const(int64, 1 << 32)), iota((count,), 0, int64))
    pairs = make(Ops.SCATTER, int64, (spread_to(const(int64, 0), (count,)), rank, both), ALONE)
    order = cast(alu(Ops.AND, pairs, const(int64, (1 << 32) - 1)), int32)
    starts = kept(_smaller(pairs, count, height))
    ordered = cast(kept(found_rows(bare_rows(rows), order)), rows.dtype)
    return _sums(ordered, starts, count, height), alu(Ops.CMPLT, *starts_and_ends(starts, height))


def bare_rows(rows: UOp) -> UOp:
    """Rows as they are stored: in a narrower type than they are added up in."""
    narrow = rows.op is Ops.CAST and rows.src[0].dtype.itemsize < rows.dtype.itemsize
    return rows.src[0] if narrow else rows


def _rank(keys: UOp, count: Size) -> UOp:
    """For each row how many come before it: to smaller places, or earlier to the same."""
    pairs = (count, count)
    mine, others = (spread_to(reshape(keys, sizes), pairs) for sizes in ((count, 1), (1, count)))
    earlier = alu(Ops.CMPLT, iota(pairs, 1, int32), iota(pairs, 0, int32))
    before = alu(Ops.CMPLT, others, alu(Ops.ADD, mine, cast(earlier, int32)))
    return kept(reshape(reduce_axis(cast(before, int32), Ops.ADD, (1,)), (count,)))


def _smaller(keys: UOp, count: Size, height: Size) -> UOp:
    """For each place, and one behind the last, how many of the sorted keys are smaller. These are the upper
    halves of words."""
    sizes = (combine(Ops.ADD, height, 1),)
    mine = alu(Ops.MUL, iota(sizes, 0, int64), const(int64, 1 << 32))
    end = spread_to(cast(size_node(count), int32), sizes)
    found = spread_to(const(int32, 0), sizes)
    step = 1 << (elements((count,)).bit_length() - 1)
    while step:
        look = alu(Ops.ADD, found, const(int32, step - 1))
        key = found_rows(keys, look)  # 0 where there is none
        further = alu(Ops.AND, alu(Ops.CMPLT, look, end), alu(Ops.CMPLT, key, mine))
        found = alu(Ops.ADD, found, alu(Ops.WHERE, further, const(int32, step), const(int32, 0)))
        step //= 2
    return found


def _sums(rows: UOp, starts: UOp, count: Size, height: Size) -> UOp:
    """Sums of the rows from one start to the next."""
    first, last = starts_and_ends(starts, height)
    if not isinstance(count, int) or count < LONG * RUN:
        number = _number(count, height)
        own = found_rows(rows, alu(Ops.ADD, number, _beside(first, number)))
        return _added(own, alu(Ops.SUB, last, first), number)
    runs, rest = count // RUN, known_shape(rows)[1:]
    whole = reshape(shrink(rows, ((0, runs * RUN), *((0, n) for n in rest))), (runs, RUN, *rest))
    totals = kept(reshape(reduce_axis(whole, Ops.ADD, (1,)), (runs, *rest)))
    from_run, to_run = _over(alu(Ops.ADD, first, const(int32, RUN - 1))), _over(last)
    begin = alu(Ops.MUL, from_run, const(int32, RUN))
    end = alu(Ops.MAX, begin, alu(Ops.MUL, to_run, const(int32, RUN)))
    before = alu(Ops.SUB, alu(Ops.MIN, last, begin), first)  # rows; then runs; then rows
    until = alu(Ops.ADD, before, alu(Ops.MAX, alu(Ops.SUB, to_run, from_run), const(int32, 0)))
    total = alu(Ops.ADD, until, alu(Ops.MAX, alu(Ops.SUB, last, end), const(int32, 0)))
    number = _number(runs + 2 * RUN, height)
    early = alu(Ops.CMPLT, number, _beside(before, number))
    inside = alu(Ops.AND, alu(Ops.NOT, early), alu(Ops.CMPLT, number, _beside(until, number)))
    origin = alu(Ops.WHERE, early, _beside(first, number), _beside(alu(Ops.SUB, end, until), number))
    nowhere = spread_to(const(int32, -1), known_shape(number))
    single = found_rows(rows, alu(Ops.WHERE, inside, nowhere, alu(Ops.ADD, number, origin)))
    at = alu(Ops.ADD, number, _beside(alu(Ops.SUB, from_run, before), number))
    run = found_rows(totals, alu(Ops.WHERE, inside, at, nowhere))
    chosen = alu(Ops.WHERE, spread_to(_wide(inside, rest), known_shape(run)), run, single)
    return _added(chosen, total, number)


def _added(x: UOp, total: UOp, number: UOp) -> UOp:
    """For each place the sum of as many of its steps as it has."""
    sizes = known_shape(x)
    taken = alu(Ops.CMPLT, number, _beside(total, number))
    coming = alu(Ops.WHERE, spread_to(_wide(taken, sizes[2:]), sizes), x, const(x.dtype, 0))
    return reshape(reduce_axis(coming, Ops.ADD, (1,)), (sizes[0], *sizes[2:]))


def _number(steps: Size, height: Size) -> UOp:
    """Of each step of each place."""
    return iota((height, steps), 1, int32)


def _beside(x: UOp, number: UOp) -> UOp:
    """Something of each place, for each of its steps."""
    sizes = known_shape(number)
    return spread_to(reshape(x, (sizes[0], 1)), sizes)


def _wide(x: UOp, rest: Shape) -> UOp:
    return reshape(x, (*known_shape(x), *(1 for _ in rest)))


def starts_and_ends(starts: UOp, height: Size) -> tuple[UOp, UOp]:
    return shrink(starts, ((0, height),)), shrink(starts, ((1, combine(Ops.ADD, height, 1)),))


def _over(x: UOp) -> UOp:
    return alu(Ops.FLOORDIV, x, const(int32, RUN))


# --- how fusion sees them


def limits_of_segments(order: Iterable[UOp], collapsed: Collection[UOp]) -> frozenset[UOp]:
    """What says which rows a sum takes, where it takes them up to a limit that is read: that is never memory,
    but becomes the limits of a loop, and places inside of it."""
    found: set[UOp] = set()
    for node in order:
        if (
            node.op is not Ops.REDUCE_AXIS
            or node.src[0].op is not Ops.WHERE
            or not _limits(node.src[0].src[0])
        ):
            continue
        inside = toposort(node.src[0], stop=lambda n: n.op in STORED or _is_sum(n, collapsed))
        found.update(n for n in inside if not n.dtype.is_float and n.op not in STORED)
    return frozenset(n for n in found if not _is_sum(n, collapsed))


def _is_sum(x: UOp, collapsed: Collection[UOp]) -> bool:
    return x.op in (Ops.REDUCE_AXIS, Ops.SCAN_AXIS) and x not in collapsed


def _limits(x: UOp) -> bool:
    """Whether a condition is that a number that counts is below what is read, or not below."""
    if x.op.is_movement or x.op is Ops.NOT:
        return _limits(x.src[0])
    if x.op is Ops.AND:
        return _limits(x.src[0]) and _limits(x.src[1])
    if x.op is not Ops.CMPLT:
        return False
    number, limit = map(_moved, x.src)
    return number.op is Ops.IOTA and any(n.op in STORED for n in toposort(limit))


def _moved(x: UOp) -> UOp:
    while x.op.is_movement:
        x = x.src[0]
    return x
