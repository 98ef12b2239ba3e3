"""Sorting by digits (radix sort, least digit first), and the k largest without sorting everything.

A pass puts rows in the order of one digit of 4 bits and keeps the order of equals. Elements are taken in
tiles of 16. What the tiles hold of each digit, summed up digit by digit, is where their elements begin.

How often each digit came before an element in its tile is one running sum on a processor: a word of 64 bits
holds 16 counters of 4 bits, and an element adds 1 to its own. On a grid tiles are longer, and each bit of the
digits of 32 elements is a word: every thread counts for itself what is before its element in two of them.

No two elements have the same place, and none is left out: that is what a SCATTER is told (`ALONE`).

The k largest are found by their smallest: a few bits of it at a time, by counting how many elements are at
least as large; a processor finds a few one after the other. Then only these are sorted. Long rows are cut
into runs first: the k largest lie in the k runs with the largest maxima, so most elements are looked at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from morok import dtype as dt
from morok.ir.node import alu, const, toposort
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.tensor.arrays import reduce
from morok.tensor.arrays.index import gather
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.movement import expand, narrow, permute, reshape, unsqueeze
from morok.tensor.arrays.rows import put_alone
from morok.tensor.arrays.written_keys import Form, What, values_of
from morok.tensor.arrays.written_largest import largest_rows
from morok.tensor.arrays.written_network import sort_lanes
from morok.tensor.arrays.written_order import (
    count_digits,
    count_type,
    put_digits,
    shifts_of,
    sort_rows,
)
from morok.tensor.arrays.written_quick import PARTS, count_parts, put_parts, quick_rows, sort_parts
from morok.tensor.arrays.written_search import places_of
from morok.tensor.arrays.written_ways import way_to_sort
from morok.tensor.core import expand_to, iota
from morok.tensor.creation.constructors import contiguous, zeros_like
from morok.tensor.creation.written import made_by
from morok.tensor.elementwise.comparison import clamp, eq, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.export import realize
from morok.tensor.sizes import concrete_shape

# not to be done twice
_MUCH = frozenset((Ops.REDUCE_AXIS, Ops.SCAN_AXIS, Ops.SCATTER, Ops.WRITTEN, Ops.COPY))
BITS = 4  # of a digit
DIGITS = 1 << BITS
TILE = 16  # elements: a counter of 4 bits holds how many of them come before one
WORD = 32  # elements that a bit each of is a word, on a grid
PAIR = 2  # of these are a group
GROUP = PAIR * WORD
LEAST, MOST = 4, 16  # groups of a tile
MANY = 1 << 18  # elements in all for each group of a tile
SOME = 8  # tiles of a row at least
SHORT = 64  # elements of a sorted row that are all looked at instead of searched
AT_ONCE = 2  # bits of a bound that one pass over the elements decides; of few elements twice as many
SMALL = 1 << 16  # elements that take a pass less time than its kernel
FEW = 8  # that are found one by one: in no more passes than the bits of their smallest need
LONG = 2048  # elements of rows in which a kernel that is written by hand finds a few in less time
SHORTEST = (
    8  # elements of runs whose maxima are compared first; others are a multiple, so that lanes are full
)


def counting(x: T, size: int, dtype: dt.DType) -> T:
    """0 … size - 1, on the device of a tensor."""
    return x._new(expand_to(iota((size,), 0, dtype), (size,)))


def sorted_by_digits(x: T, bits: int, first: int, *wanted: Callable[[T], T]) -> list[T]:
    """What is wanted of rows of whole numbers of 64 bits, in the order of so many of their bits, from bit
    `first` on; equal ones stay in order."""
    rows, count = concrete_shape(x.shape)
    on_grid = bool(machine_of(x.device).block_threads)
    groups = _groups(rows, count)
    extra = -count % (GROUP * groups if on_grid else TILE)
    if extra:  # behind everything that is as large
        tail = x._new(expand_to(const(dt.int64, -1), (rows, extra)))
        x = cat(x, tail, dim=1)
    if extra or not on_grid:
        x = contiguous(x)
    alone = on_grid and len(wanted) == 1  # then the last pass puts it in the places, and no numbers
    for shift in range(first, first + bits, BITS):
        of = wanted[0] if alone and shift + BITS >= first + bits else None
        x = _placed(x, shift, groups, of) if on_grid else _sorted_by_digit(x, shift)
    found = [x] if alone else [of(x) for of in wanted]
    return [narrow(y, 1, 0, count) for y in found]


def is_written(x: T) -> bool:
    """Whether kernels that are written by hand sort rows: on a processor."""
    return bool(x.device == "CPU")


def sorted_words(x: T, width: int, bits: int, first: int) -> T:
    """Rows (rows, count) of words, or (rows, count, 2) of pairs, in the order of so many bits of the word, or
    of the first of two, from bit `first` on; equal ones stay in order.

    They are sorted at once, unless a function is traced: who asks for positions may ask for values later.
    What they are made of is computed for that, and again by whoever looks for values, so it is little.
    """
    much = any(n.op in _MUCH for n in toposort(x.uop))
    found = _in_order(x, width, bits, first)
    return found if much else realize(found)


def sorted_values(x: T, descending: bool) -> T:
    """Rows (rows, count) of elements in order, when somebody wants them; nobody knows where they were."""
    what = values_of(x.dtype, descending)
    return _in_order(x, what, 8 * x.dtype.itemsize, Form(what).first)


def _in_order(x: T, what: What, bits: int, first: int) -> T:
    shape = concrete_shape(x.shape)
    rows, count = shape[:2]
    way = way_to_sort(machine_of(x.device), rows, count, what, bits)
    if way.splits:
        return _split(x, what, way.blocks)
    if not way.digit:
        found: T = made_by(sort_lanes, (what, rows, count), shape, x.dtype, x)
        return found
    if not way.blocks:
        found = made_by(sort_rows, (what, rows, count, first, bits, way.digit), shape, x.dtype, x)
        return found
    for shift, own in shifts_of(first, bits, way.digit):
        key = (what, rows, count, way.blocks, shift, own)
        held = made_by(count_digits, key, (rows, way.blocks, 1 << own), count_type(count), x)
        x = made_by(put_digits, key, shape, x.dtype, x, held)
    return x


def _split(x: T, what: What, blocks: int) -> T:
    rows, count = shape = concrete_shape(x.shape)
    found: T
    if not blocks:
        found = made_by(quick_rows, (what, rows, count), shape, x.dtype, x)
        return found
    key = (what, rows, count, blocks)
    held = made_by(count_parts, key, (rows, blocks, PARTS), count_type(count), x)
    keys = made_by(put_parts, key, shape, x.dtype, x, held)
    found = made_by(sort_parts, key, shape, x.dtype, keys, x, held)
    return found


def _sorted_by_digit(x: T, shift: int) -> T:
    rows, count = concrete_shape(x.shape)
    tiles = count // TILE
    digit = contiguous(cast((reshape(x, rows, tiles, TILE) >> shift) & (DIGITS - 1), dt.int32))
    bit = cast(digit, dt.int64) * BITS
    one = x._new(expand_to(const(dt.int64, 1), (rows, tiles, TILE))) << bit
    before = contiguous(reduce.cumsum(one, -1) - one)  # 16 counters in a word
    # of each tile the last element, side by side: every digit asks all of them
    last, own = (contiguous(reshape(narrow(y, -1, TILE - 1, 1), rows, 1, tiles)) for y in (before, digit))
    places = reshape(counting(x, DIGITS, dt.int64), 1, DIGITS, 1)
    counted = (last >> (places * BITS)) & (DIGITS - 1)
    held = cast(counted, dt.int32) + cast(eq(cast(places, dt.int32), own), dt.int32)
    held = reshape(contiguous(held), rows, DIGITS * tiles)
    starts = reduce.cumsum(held, -1, dtype=dt.int32) - held
    return _put(x, starts, before, digit)


def _put(x: T, starts: T, before: T, digit: T) -> T:
    """Every element in its place."""
    rows, count = concrete_shape(x.shape)
    tiles = count // TILE
    rank = cast((before >> (cast(digit, dt.int64) * BITS)) & (DIGITS - 1), dt.int32)
    tile = reshape(counting(x, tiles, dt.int32), 1, tiles, 1)
    start = gather(starts, -1, reshape(digit * tiles + tile, rows, count))
    row = reshape(counting(x, rows, dt.int64), rows, 1) * count
    flat = reshape(cast(start + reshape(rank, rows, count), dt.int64) + row, rows * count)
    return reshape(x._new(put_alone(flat.uop, reshape(x, rows * count).uop)), rows, count)


def _placed(x: T, shift: int, groups: int, wanted: Callable[[T], T] | None = None) -> T:
    """Every element in its place, by all threads at once: no two have the same.

    Each bit of the digits of 32 elements is a word; which of these equal a digit is found for all at once.
    Two words of each bit are a group, and some groups are a tile. How many of each digit come before a group
    in its tile is walked along; where the elements of a tile begin is summed up over all of them.
    """
    rows, count = concrete_shape(x.shape)
    tiles = count // (groups * GROUP)
    kind = cast((x >> shift) & (DIGITS - 1), dt.int32)
    words = _words(kind)
    each = reshape(words, rows, tiles, groups, PAIR, BITS)
    held = contiguous(cast(_held(each), dt.uint8))
    along = cast(permute(held, [0, 2, 1, 3]), dt.int32)  # neighbours walk beside each other
    before = permute(reduce.cumsum(along, 1, dtype=dt.int32) - along, [0, 2, 1, 3])
    before = contiguous(cast(before, dt.int16))
    last = [cast(narrow(y, 2, groups - 1, 1), dt.int32) for y in (before, held)]
    totals = permute(reshape(last[0] + last[1], rows, tiles, DIGITS), [0, 2, 1])
    totals = reshape(totals, rows, DIGITS * tiles)
    starts = reshape(reduce.cumsum(totals, -1, dtype=dt.int32) - totals, rows, DIGITS, tiles)
    starts = reshape(contiguous(permute(starts, [0, 2, 1])), rows, tiles * DIGITS)
    mine = reshape(kind, rows, tiles, groups, GROUP)
    rank = _rank(each, mine)
    tile = reshape(counting(x, tiles, dt.int32), 1, tiles, 1, 1) * DIGITS
    group = reshape(counting(x, tiles * groups, dt.int32), 1, tiles, groups, 1) * DIGITS
    start = gather(starts, -1, reshape(mine + tile, rows, count))
    inside = gather(reshape(before, rows, tiles * groups * DIGITS), -1, reshape(mine + group, rows, count))
    wide = dt.int32 if rows * count < 1 << 31 else dt.int64
    row = reshape(counting(x, rows, wide), rows, 1) * count
    place = start + cast(inside, dt.int32) + reshape(rank, rows, count)
    places = reshape(cast(place, wide) + row, rows * count)
    put = x if wanted is None else wanted(x)
    return reshape(x._new(put_alone(places.uop, reshape(put, rows * count).uop)), rows, count)


def _groups(rows: int, count: int) -> int:
    """Of a tile: more where there are many elements, so that there are few sums; but rows are some tiles."""
    groups = LEAST
    while groups < MOST and rows * count >= 2 * groups * MANY and count >= 2 * groups * GROUP * SOME:
        groups *= 2
    return groups


def _words(kind: T) -> T:
    """Of each bit of 32 digits a word."""
    rows, count = concrete_shape(kind.shape)
    number = counting(kind, WORD, dt.int32)
    bit = reshape(kind, rows, count // WORD, 1, WORD) >> reshape(counting(kind, BITS, dt.int32), BITS, 1)
    return contiguous(reduce.sum((bit & 1) << number, -1, dtype=dt.int32))


def _held(words: T) -> T:
    """How many of each digit are in each group."""
    every = reshape(counting(words, DIGITS, dt.int32), 1, 1, 1, DIGITS)
    return reduce.sum(_popcount(_equal(words, every)), -1, dtype=dt.int32)


def _rank(words: T, kind: T) -> T:
    """For each element of a group how many of its digit come before it there."""
    number = reshape(counting(kind, GROUP, dt.int32), GROUP, 1)
    first = counting(kind, PAIR, dt.int32) * WORD
    below = ~(kind._new(const(dt.int32, -1)) << (number & (WORD - 1)))  # the elements before one
    before = where(number >= first + WORD, -1, where(number >= first, below, 0))
    return reduce.sum(_popcount(_equal(words, kind) & before), -1, dtype=dt.int32)


def _equal(words: T, kind: T) -> T:
    """Of the elements whose digits are words (…, pair), which have the digit of each (…, n)."""
    own = reshape(kind, *concrete_shape(kind.shape), 1, 1)
    mine = -((own >> counting(kind, BITS, dt.int32)) & 1)  # a bit, as all bits of a word
    return ~reduce.reduce_axes(unsqueeze(words, 3) ^ mine, Ops.OR, (5,), False)


def _popcount(x: T) -> T:
    found: T = x._new(alu(Ops.POPCOUNT, x.uop))
    return found


def _total(parts: list[T]) -> T:
    while len(parts) > 1:
        parts = [_plus(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def _plus(pair: list[T]) -> T:
    return pair[0] + pair[1] if len(pair) > 1 else pair[0]


def places_in_rows(x: T, values: T, right: bool) -> T:
    """For values (…, m) and sorted rows (…, n), how many of the row are smaller (or as large)."""
    size = x.shape[-1]
    assert isinstance(size, int)
    if size <= SHORT:
        mine, other = unsqueeze(values, -1), unsqueeze(x, -2)
        return reduce.sum((other <= mine) if right else (other < mine), -1)
    if is_written(x):
        *lead, many = concrete_shape(values.shape)
        what = math.prod(lead), size, many, right
        found: T = made_by(places_of, what, (math.prod(lead), many), dt.int64, x, values)
        return reshape(found, values.shape)
    place = zeros_like(values, dt.int64)
    step = 1 << (size.bit_length() - 1)
    while step:
        look = place + (step - 1)
        found = gather(x, -1, clamp(look, max=size - 1))
        below = (found <= values) if right else (found < values)
        place = place + where(below & (look < size), step, 0)
        step //= 2
    return place


# --- the k largest


def bound_of(keys: T, k: int, bits: int) -> T:
    """The k-th largest of rows of numbers of 0 … 2^bits - 1, by a few bits at a time: (rows, 1).

    What one more in these bits is worth is memory, so that all passes are one kernel.
    """
    rows, count = concrete_shape(keys.shape)
    digit = AT_ONCE if rows * count > SMALL else 2 * AT_ONCE
    bound = contiguous(keys._new(expand_to(const(keys.dtype, 0), (rows, 1))))
    unit = contiguous(keys._new(expand_to(const(keys.dtype, 1 << (bits - digit)), (1, 1))))
    for turn in range(bits // digit):
        unit = contiguous(unit >> digit) if turn else unit
        found = []
        for step in range(1, 1 << digit):
            enough = _count(keys >= bound + unit * step) >= k
            found.append(cast(enough, keys.dtype))
        bound = contiguous(bound + _total(found) * unit)
    return bound


def _count(x: T) -> T:
    return reduce.sum(cast(x, dt.int32), -1, True, dtype=dt.int32)


def largest_of(keys: T, k: int, bits: int) -> T:
    """The positions of the k largest numbers of each row, in order; of equal ones the first."""
    rows, count = concrete_shape(keys.shape)
    keys = contiguous(keys)
    if k == 1:
        return reduce.argmax(keys, -1, True)
    if is_written(keys) and (k > FEW or count >= LONG):
        found: T = made_by(
            largest_rows, (keys.dtype.itemsize, rows, count, k, bits), (rows, k), dt.int64, keys
        )
        return found
    run = math.isqrt(count // k) // SHORTEST * SHORTEST
    if run:
        return _largest_by_runs(keys, k, bits, run)
    if k <= FEW and not machine_of(keys.device).block_threads:
        return _one_by_one(keys, k)
    bound = bound_of(keys, k, bits)
    above, same = keys > bound, eq(keys, bound)
    wanted = contiguous(k - _count(above))
    turn = reduce.cumsum(cast(same, dt.int32), -1, dtype=dt.int32)
    taken = cast(above | (same & (turn <= wanted)), dt.int32)
    so_far = contiguous(reduce.cumsum(taken, -1, dtype=dt.int32))
    number = expand(reshape(counting(keys, k, dt.int32), 1, k), rows, k)
    return places_in_rows(so_far, number, True)


def _one_by_one(keys: T, k: int) -> T:
    """The same of a few: each is the first of the largest behind the one before it."""
    count = concrete_shape(keys.shape)[1]
    place = reshape(counting(keys, count, dt.int32), 1, count)
    left = most = None
    found: list[T] = []
    for _ in range(k):
        if most is not None:
            left = (keys < most) | (eq(keys, most) & (place > found[-1]))
        most = contiguous(reduce.max(keys if left is None else where(left, keys, 0), -1, True))
        same = eq(keys, most) if left is None else left & eq(keys, most)
        found.append(contiguous(reduce.min(where(same, place, count - 1), -1, True)))
    taken = contiguous(cat(found[0], *found[1:], dim=1))
    before = reduce.sum(unsqueeze(taken, -2) < unsqueeze(taken, -1), -1, True)
    mine = eq(before, reshape(counting(keys, k, dt.int64), 1, 1, k))
    return cast(reduce.sum(where(mine, unsqueeze(taken, -1), 0), -2), dt.int64)


def _largest_by_runs(keys: T, k: int, bits: int, run: int) -> T:
    """The same of long rows, most of which are looked at once: the k largest lie in the k runs with the
    largest maxima (of equal ones the first). For any other run k elements come before all of its own."""
    rows, count = concrete_shape(keys.shape)
    runs, rest = divmod(count, run)
    whole = reshape(narrow(keys, 1, 0, runs * run), rows, runs, run)
    most = contiguous(reduce.max(whole, -1))
    if rest:
        most = cat(most, contiguous(reduce.max(narrow(keys, 1, runs * run, rest), -1, True)), dim=1)
    best = contiguous(largest_of(most, k, bits))
    places = reshape(unsqueeze(best * run, -1) + counting(keys, run, dt.int64), rows, k * run)
    found = gather(keys, -1, clamp(places, max=count - 1))
    if rest:  # beyond the end, and behind everything that is as small
        found = where(places < count, found, 0)
    inner = contiguous(largest_of(contiguous(found), k, bits))
    return gather(best, -1, inner // run) * run + inner % run
