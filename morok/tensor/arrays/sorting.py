"""Order: sort, the k largest, medians, and search in sorted rows.

Long rows are sorted digit by digit: on a processor at once, by a kernel that counts (`written_order.py`),
else, and inside of functions that are traced, as a graph (`radix.py`). In short ones every pair is compared:
an element's place in the result is the number of elements before it.

What is sorted are whole numbers of 64 bits: the upper half orders as the elements do (NaN last, -0 and 0
equal), the lower half is the position, so no two are equal and equal elements stay in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.dtype import promote
from morok.errors import ArgumentError, ShapeError
from morok.ir import movement as move
from morok.ir.call import attributes, call
from morok.ir.infer import show_shape
from morok.ir.movement import found_rows
from morok.ir.node import UOp
from morok.ir.provenance import here, scope
from morok.machine.devices import machine_of
from morok.tensor.arrays import reduce
from morok.tensor.arrays.index import gather, gathered
from morok.tensor.arrays.joining import stack
from morok.tensor.arrays.movement import expand, narrow, reshape, transpose, unsqueeze
from morok.tensor.arrays.radix import (
    FEW,
    counting,
    is_written,
    largest_of,
    places_in_rows,
    sorted_by_digits,
    sorted_values,
    sorted_words,
)
from morok.tensor.arrays.rows import named_rows, pull_rows, put_alone
from morok.tensor.arrays.sorted import Sorted
from morok.tensor.arrays.written_order import mend_lost
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.creation.constructors import as_operand, contiguous, zeros_like
from morok.tensor.creation.written import made_by
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.conversion import bitcast, cast
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isnan
from morok.tensor.gradient_track import is_tracked
from morok.tensor.sizes import as_axis, concrete_shape

_RUN = 256  # elements of which every pair is compared
_PAIRS = 16  # and of which a processor compares them for a few of the largest, too
_WORTH_SELECTING = 8  # times as many elements as are wanted: fewer are sorted
# lower bits of a narrow float's key that say nothing new: it is ordered as a float32
_SPARE_BITS = {dt.float16: 12, dt.bfloat16: 16}


# --- keys


def _order_key(x: T) -> T:
    """A whole number of 64 bits per element that orders as the elements do."""
    own = x.dtype
    if not own.is_float:
        if own is dt.uint64:
            return bitcast(x ^ (1 << 63), dt.int64)
        return cast(x, dt.int64)
    return cast(_float_key(x), dt.int64)


def _unsigned_key(x: T) -> T:
    """An unsigned number of 32 bits per element, or of 64 where it is as wide, that orders as they do."""
    own = x.dtype
    if not own.is_float and (own.is_unsigned or not own.is_int):
        return cast(x, dt.uint64 if own.itemsize == 8 else dt.uint32)
    signed, unsigned = (dt.int64, dt.uint64) if own.itemsize == 8 else (dt.int32, dt.uint32)
    key = _float_key(x) if own.is_float else cast(x, signed)
    found: T = bitcast(key ^ signed.min, unsigned)
    return found


def _float_key(x: T) -> T:
    """A whole number of 32 bits, or of 64, that orders as floats do."""
    own = x.dtype
    wide = x if own is dt.float64 else cast(x, dt.float32)
    bits = bitcast(wide + 0.0, dt.int64 if own is dt.float64 else dt.int32)  # -0 becomes 0
    most, last = bits.dtype.max, bits.dtype.bits - 1
    infinite = most & (most << wide.dtype.mantissa_bits)
    is_nan = (infinite - (bits & most)) >> last  # all bits, or none: what is read twice is computed twice
    key = bits ^ ((bits >> last) & most)
    found: T = (key & ~is_nan) | (is_nan & most)
    return found


def _sort_keys(x: T, descending: bool) -> list[tuple[T, int, int]]:
    """Keys of 32 bits, in 64: one, or the lower and the upper half of a wide one. With each, of which bit on
    and how many bits decide: keys of fewer than 32 are no smaller than 0."""
    own, key = x.dtype, _order_key(x)
    key = ~key if descending else key
    if own.itemsize == 8:
        return [((key & 0xFFFFFFFF) - (1 << 31), 0, 32), (key >> 32, 0, 32)]
    if own.is_float:
        spare = _SPARE_BITS.get(own, 0)
        return [(key, spare, 32 - spare)]
    return [(key - _least(own, descending), 0, 8 * own.itemsize)]


def _least(own: dt.DType, descending: bool) -> int:
    """What is taken from a whole number: the key of 32 bits has a sign then, and others have none."""
    bits = 8 * own.itemsize
    least = -(1 << (bits - 1)) if own.is_int and not own.is_unsigned else -(1 << bits) if descending else 0
    return least + (1 << 31) if bits == 32 else least


def _element(key: T, own: dt.DType, descending: bool) -> T:
    """The element whose key it is. (Of a float that is 0 or NaN some bits are lost.)"""
    key = key if own.is_float or own.itemsize == 8 else key + _least(own, descending)
    key = ~key if descending else key
    if own is dt.uint64:
        return bitcast(key, own) ^ (1 << 63)
    if own is dt.float64:
        wide: T = bitcast(key ^ ((key >> 63) & dt.int64.max), own)
        return wide
    if not own.is_float:
        return cast(key, own)
    bits = cast(key, dt.int32)
    found: T = cast(bitcast(bits ^ ((bits >> 31) & dt.int32.max), dt.float32), own)
    return found


def _row_order(x: T, descending: bool) -> T:
    """For rows (…, n), the positions of the elements in order."""
    if is_written(x):
        return reshape(_sorted_by_hand(x, descending)[2], x.shape)
    return _sorted_rows(x, descending, _place)[0]


def _place(word: T) -> T:
    return word & 0xFFFFFFFF


def _sorted_rows(x: T, descending: bool, *wanted: Callable[[T], T]) -> list[T]:
    """For rows (…, n), what is wanted of the sorted words: the key, or its upper half, above the position."""
    *lead, count = concrete_shape(x.shape)
    place = counting(x, count, dt.int64)
    (key, first, bits), *more = _sort_keys(x, descending)
    words = (key << 32) | place
    if not more:
        return _sorted_by_key(words, first, bits, *wanted)
    upper, then, others = more[0]
    if count <= _RUN:  # positions tell equal keys apart
        (order,) = _sorted_by_key(words, first, bits, _place)
        (turn,) = _sorted_by_key((gather(upper, -1, order) << 32) | place, then, others, _place)
        return [gather(order, -1, turn)]
    rows = reshape(upper, math.prod(lead), count)

    def with_upper(word: T) -> T:
        where_from = _place(word)
        return (gathered(rows, 1, where_from) << 32) | where_from

    (words,) = _sorted_by_key(words, first, bits, with_upper)
    return _sorted_by_key(words, then, others, *wanted)


def _sorted_by_hand(x: T, descending: bool) -> tuple[T, T, T]:
    """Rows (…, n) in order by kernels of a processor: words (rows, n), or (rows, n, 2), of keys and
    positions; and both of them by themselves."""
    *lead, count = concrete_shape(x.shape)
    rows = math.prod(lead)
    place = expand(reshape(counting(x, count, dt.int64), 1, count), rows, count)
    if x.dtype.itemsize == 8 or count >= 1 << 32:  # a word has no room for both
        key = reshape(_order_key(x), rows, count) ^ dt.int64.min
        words = stack(~key if descending else key, place, dim=-1)
        words = sorted_words(words, 2, 64, 0)
        key, place = (reshape(narrow(words, 2, n, 1), rows, count) for n in range(2))
        return words, key ^ dt.int64.min, place
    ((key, first, bits),) = _sort_keys(x, descending)
    sign = dt.int64.min if first + bits == 32 else 0
    words = ((reshape(key, rows, count) << 32) | place) ^ sign
    words = sorted_words(words, 1, bits, 32 + first)
    return words, (words ^ sign) >> 32, _place(words)


def _sorted_by_key(x: T, first: int, bits: int, *wanted: Callable[[T], T]) -> list[T]:
    """What is wanted of rows of words, in the order of so many bits of their upper half, from one on; equal
    ones stay in order. Short rows are of different words, in the order of all of it."""
    *lead, count = concrete_shape(x.shape)
    rows = reshape(x, math.prod(lead), count)
    if count <= _RUN:
        words = _sorted_by_pairs(rows)
        found = [of(words) for of in wanted]
    elif first + bits == 32:  # with a sign
        signed = [lambda word, of=of: of(word ^ dt.int64.min) for of in wanted]
        found = sorted_by_digits(rows ^ dt.int64.min, bits, 32 + first, *signed)
    else:
        found = sorted_by_digits(rows, bits, 32 + first, *wanted)
    return [reshape(y, *lead, count) for y in found]


def _sorted_by_pairs(t: T) -> T:
    """Short rows of different numbers, each sorted: an element's place is the number of smaller ones."""
    x = contiguous(t)  # numbers are compared many times
    lead, size = concrete_shape(x.shape)
    places = reduce.sum(unsqueeze(x, -2) < unsqueeze(x, -1), -1)
    row = x._new(expand_to(iota((lead, size), 0, dt.int64), (lead, size)))
    flat = contiguous(reshape(places + row * size, lead * size))
    return reshape(x._new(put_alone(flat.uop, reshape(x, lead * size).uop)), lead, size)


# --- sorting


def _rows_of(x: T, axis: Any, what: str) -> tuple[T, int]:
    """The axis moved to the end; a scalar counts as one element."""
    x = reshape(x, 1) if not x.ndim else x
    at = as_axis(axis, x.ndim, x.shape)
    if not isinstance(x.shape[at], int):
        raise ShapeError(f"{what} along axis {at} of shape {show_shape(x.shape)} needs a known size")
    return transpose(x, at, -1), at


def argsort(
    t: T, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int | None = None
) -> T:
    """The positions that would sort an axis (the last one); equal elements stay in order.

    >>> Tensor([3, 1, 2]).argsort().tolist()
    [1, 2, 0]
    """
    x, at = _rows_of(t, dim if axis is None else axis, "argsort")
    if x.numel() == 0:
        return zeros_like(t, dt.int64)
    return reshape(transpose(_row_order(x, descending), at, -1), t.shape)


def sort(
    x: T, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int | None = None
) -> Sorted:
    """(values, indices) of an axis (the last one) in order, NaN at the end; equal elements stay in order.

    >>> values, indices = Tensor([3, 1, 2]).sort()
    >>> values.tolist(), indices.tolist()
    ([1, 2, 3], [1, 2, 0])
    """
    rows, at = _rows_of(x, dim if axis is None else axis, "sort")
    wide = x.dtype.itemsize == 8 and not is_written(x)
    if rows.numel() == 0 or x.ndim == 0 or wide:
        order = argsort(x, dim, descending, stable, axis=axis)
        return Sorted(gathered(x, at, order) if x.ndim else x, order)
    if not is_written(x) or is_tracked(x.uop):
        return _both(rows, at, descending)
    origin = here.origin  # of this line, whoever asks later

    def alone() -> T:
        with scope(origin):
            return _values(rows, at, descending)

    def both() -> Sorted:
        with scope(origin):
            return _both(rows, at, descending)

    return Sorted.later(alone, both)


def _values(x: T, at: int, descending: bool) -> T:
    """Of rows (…, n) that are turned back."""
    *lead, count = concrete_shape(x.shape)
    found = reshape(sorted_values(reshape(x, math.prod(lead), count), descending), x.shape)
    if x.dtype.is_float:
        found = x._new(call("sorted", found.uop, x.uop, descending=descending))
    return transpose(found, at, -1)


def pull_sorted(new: Callable[[UOp], T], node: UOp, g: UOp, source: int) -> UOp:
    """The gradient of values that were sorted without their positions: these are found now."""
    x = new(node.src[source])
    *lead, count = concrete_shape(x.shape)
    order = reshape(_row_order(x, attributes(node)["descending"]), math.prod(lead), count)
    row = reshape(counting(x, math.prod(lead), dt.int64), math.prod(lead), 1) * count
    places = reshape(order + row, x.numel()).uop
    flat = reshape(x, x.numel()).uop
    pulled = pull_rows(named_rows(flat, flat, places), move.reshape(g, (x.numel(),)), 1)
    assert pulled is not None
    return move.reshape(pulled, require_shape(node))


def _both(rows: T, at: int, descending: bool) -> Sorted:
    count = concrete_shape(rows.shape)[-1]
    row = reshape(counting(rows, rows.numel() // count, dt.int64), rows.numel() // count, 1) * count
    flat = reshape(rows, rows.numel())

    if is_written(rows):
        order, values = _elements_by_hand(rows, descending)
    else:

        def element(word: T) -> T:
            return _element_of(word, flat, row, descending)

        order, values = _sorted_rows(rows, descending, _place, element)
    if rows.dtype.is_float:
        where_from = reshape(reshape(order, rows.numel() // count, count) + row, rows.shape)
        values = rows._new(named_rows(values.uop, flat.uop, where_from.uop))
    return Sorted(transpose(values, at, -1), transpose(order, at, -1))


def _elements_by_hand(x: T, descending: bool) -> tuple[T, T]:
    """Positions and elements of rows (…, n) in order."""
    words, key, place = _sorted_by_hand(x, descending)
    found, own = _element(key, x.dtype, descending), x.dtype
    if own.is_float:
        kind = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[own.itemsize]
        most = (1 << (8 * own.itemsize - 1)) - 1
        largest = most >> own.mantissa_bits << own.mantissa_bits if own.has_inf else most - 1
        what = kind.itemsize, largest, *concrete_shape(key.shape), 2 if words.ndim > 2 else 1
        given = (bitcast(found, kind), words, bitcast(reshape(x, key.shape), kind))
        found = bitcast(made_by(mend_lost, what, concrete_shape(key.shape), kind, *given), own)
    return reshape(place, x.shape), reshape(found, x.shape)


def _element_of(word: T, flat: T, row: T, descending: bool) -> T:
    """The element, from its key: only zeros, which have signs, and NaN are looked for."""
    found = _element(word >> 32, flat.dtype, descending)
    if not flat.dtype.is_float:
        return found
    lost = eq(found, 0.0) | isnan(found)
    own = flat._new(found_rows(flat.uop, where(lost, _place(word) + row, -1).uop))
    return where(lost, own, found)


def topk(
    t: T, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, axis: int | None = None
) -> Sorted:
    """(values, indices) of the k largest elements of an axis, or of the smallest, in order.

    >>> Tensor([3, 1, 2]).topk(2).values.tolist()
    [3, 2]
    """
    x, at = _rows_of(t, dim if axis is None else axis, "topk")
    size = x.shape[-1]
    if not isinstance(size, int) or not 0 <= k <= size:
        raise ShapeError(f"topk of axis {at} of shape {show_shape(t.shape)} has k in 0 … {size}, not {k}")
    one_by_one = k <= FEW and size > _PAIRS and not machine_of(t.device).block_threads
    if (size > _RUN or one_by_one) and 0 < k * _WORTH_SELECTING <= size and 0 not in x.shape:
        order = transpose(_selected(x, k, largest), at, -1)
    else:
        order = narrow(argsort(t, at, descending=largest), at, 0, k) if t.ndim else argsort(t)
    if t.ndim and is_written(t):
        return Sorted(gathered(t, at, order), order)
    return Sorted(gather(t, at, order) if t.ndim else t, order)


def _selected(x: T, k: int, descending: bool) -> T:
    """The positions of the first k of rows (…, n) in order, found without sorting the others."""
    *lead, count = concrete_shape(x.shape)
    wide = _unsigned_key(x)
    keys = reshape(wide if descending else ~wide, math.prod(lead), count)
    bits = 8 * wide.dtype.itemsize
    chosen = largest_of(keys, k, bits)
    if k == 1 and is_written(x):
        return reshape(chosen, *lead, 1)
    if is_written(x):
        place = _place_among(~gathered(keys, 1, chosen))
        return reshape(gathered(chosen, 1, place), *lead, k)
    found = contiguous(reshape(chosen, *lead, k))
    ordered: T = gather(found, -1, _row_order(gather(x, -1, found), descending))
    return ordered


def _place_among(keys: T) -> T:
    """The positions that sort rows of unsigned numbers, by kernels of a processor."""
    rows, count = concrete_shape(keys.shape)
    place = expand(reshape(counting(keys, count, dt.int64), 1, count), rows, count)
    if keys.dtype is dt.uint64:
        pairs = sorted_words(stack(bitcast(keys, dt.int64), place, dim=-1), 2, 64, 0)
        return reshape(narrow(pairs, 2, 1, 1), rows, count)
    return _place(sorted_words((cast(keys, dt.int64) << 32) | place, 1, 32, 32))


def searchsorted(
    x: T,
    values: Any,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
    out_int32: bool = False,
) -> T:
    """For sorted rows (…, n), where values (…, m) would go: before equal elements, or after them.

    A single sorted row serves values of any shape. Rows that are not sorted need a `sorter`, the
    positions that sort them.

    >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 4])).tolist()
    [1, 2]
    """
    if out_int32:
        return cast(searchsorted(x, values, right, side, sorter), dt.int32)
    v = as_operand(x, values)
    after = right if side is None else side == "right"
    if side not in (None, "left", "right"):
        raise ArgumentError(f'side must be "left" or "right", not {side!r}')
    if x.ndim == 0 or (x.ndim > 1 and x.shape[:-1] != v.shape[:-1]):
        raise ShapeError(
            f"searchsorted in rows of shape {show_shape(x.shape)} needs values of shape "
            f"{show_shape(x.shape[:-1])[:-1]}, m), not {show_shape(v.shape)}"
        )
    if sorter is not None:
        order = as_operand(x, sorter)
        if order.shape != x.shape:
            raise ShapeError(
                f"the sorter of rows of shape {show_shape(x.shape)} has that shape, "
                f"not {show_shape(order.shape)}"
            )
        return searchsorted(gather(x, -1, order), v, after)
    kind = promote(x.dtype, v.dtype)
    rows, wanted = _order_key(cast(x, kind)), x._new(_order_key(cast(v, kind)).uop)
    if x.ndim > 1:
        return places_in_rows(rows, wanted, after)
    return reshape(places_in_rows(rows, reshape(wanted, wanted.numel()), after), v.shape)


def bucketize(x: T, boundaries: Any, right: bool = False, out_int32: bool = False) -> T:
    """For each element, the number of the interval between sorted boundaries that it lies in.

    >>> Tensor([1, 4, 9]).bucketize(Tensor([2, 5])).tolist()
    [0, 1, 2]
    """
    edges = as_operand(x, boundaries)
    found = searchsorted(edges, x, right)
    return x._new((cast(found, dt.int32) if out_int32 else found).uop)
