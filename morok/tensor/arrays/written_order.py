"""Rows of words in order on a processor, by kernels that are written by hand: sorted by digits, the least one
first, by counting.

A word is a whole number of 64 bits, or two of them: the first has the digits, the other goes along. What they
hold is a matter of who asks; equal digits stay in order. Or it is an element as it lies (`written_keys.py`).

Short rows stay in the cache: one walk counts all digits of a row, and a walk for each digit puts words in
their places, one after the other. Long ones are cut into blocks: one kernel counts a digit of all blocks,
another sums up what comes before each block and puts its words. A digit that all words share needs no walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value, writes
from morok.dtype import DType
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, What

_TOGETHER = 4  # elements whose digits are found at once
TABLES = 2  # that count by turns: an element does not wait for the one before it
_ENTRIES = 4  # tables of a digit that the first cache holds half full
_TURNS = 2  # blocks for each thread
_ENTRY = 0.4  # what an entry of a table costs, in elements that are put in their places


def blocks_of(machine: Machine, rows: int) -> int:
    """Of each row, so that all threads have some."""
    return max(1, -(-_TURNS * machine.cores // rows)) if machine.threads else 1


def best_digit(machine: Machine, bits: int, elements: float, tables: float) -> tuple[float, int]:
    """The time of all passes with the digits for which it is shortest, and these."""
    most = max(1, int(math.log2(machine.l1_bytes // 2 // (4 * _ENTRIES))))
    found = []
    for passes in range(-(-bits // most), bits + 1):
        digit = -(-bits // passes)
        found.append((passes * (elements + _ENTRY * tables * (1 << digit)), digit))
    return min(found)


def shifts_of(first: int, bits: int, digit: int) -> list[tuple[int, int]]:
    """Where digits begin and how many bits they have, the least one first."""
    return [(at, min(digit, first + bits - at)) for at in range(first, first + bits, digit)]


def _digit(form: Form, word: Value, shift: int, bits: int) -> Value:
    return ((form.digits_of(word) >> shift) & ((1 << bits) - 1)).cast(dt.int64)


def _each(
    code: Code,
    form: Form,
    words: tuple[Memory, Value],
    size: int | Value,
    digits: list[tuple[int, int]],
    use: Callable[[Value, list[Value], int], None],
) -> None:
    """Goes through words one after the other: `use(place, digits, turn)`. Digits of elements are computed
    for some of them at once, in vectors."""
    memory, start = words
    together = _TOGETHER if form.width == 1 else TABLES
    groups = code.value(size, dt.int64) // together
    with code.loop(groups) as i:
        at = start + i * (together * form.width)
        if isinstance(form.what, int):
            found = [
                [_digit(form, memory.load(at + k * form.width), *own) for own in digits]
                for k in range(together)
            ]
        else:
            key = form.digits_of(memory.load(at, together))
            wide = [(key >> shift) & ((1 << bits) - 1) for shift, bits in digits]
            found = [[one.lane(k).cast(dt.int64) for one in wide] for k in range(together)]
        for k in range(together):
            use(at + k * form.width, found[k], k)
    with code.loop(code.value(size, dt.int64) - groups * together) as i:
        at = start + (groups * together + i) * form.width
        use(at, [_digit(form, memory.load(at), *own) for own in digits], 0)


def _next(table: Memory, place: Value) -> Value:
    """What a table says, which says one more from now on."""
    before = table.load(place)
    table.store(place, before + 1)
    return before.cast(dt.int64)


def clear(code: Code, machine: Machine, table: Memory, size: int, kind: DType) -> None:
    """So many entries of a table say 0."""
    lanes = _lanes(machine, kind, size)
    with code.loop(size // lanes) as i:
        table.store(i * lanes, code.value(0, kind).spread(lanes))


def _lanes(machine: Machine, kind: DType, size: int) -> int:
    return math.gcd(machine.lanes(kind), size)


def shared_loop(machine: Machine, turns: int) -> AxisKind:
    """What becomes of a loop whose turns are independent."""
    return AxisKind.THREAD if machine.threads and turns > 1 else AxisKind.LOOP


def count_type(count: int) -> DType:
    """That counts up to so many."""
    return dt.int32 if count < 1 << 31 else dt.int64


# --- rows that stay in the cache


@writes
def sort_rows(
    code: Code, machine: Machine, what: What, rows: int, count: int, first: int, bits: int, digit: int
) -> None:
    """Rows of words in the order of some bits."""
    form = Form(what)
    width = form.width
    out = code.memory(form.memory, rows * count * width)
    words = code.memory(form.memory, rows * count * width)
    space = code.local(form.memory, 2 * count * width)
    digits = shifts_of(first, bits, digit)
    size, kind = 1 << digit, count_type(count)
    counts = code.local(kind, len(digits) * size)
    with code.loop(rows, shared_loop(machine, rows)) as row:
        clear(code, machine, counts, len(digits) * size, kind)
        start = row * (count * width)

        def count_all(at: Value, found: list[Value], turn: int) -> None:
            for n, one in enumerate(found):
                _next(counts, one + n * size)

        _each(code, form, (words, start), count, digits, count_all)
        now = code.register(0)  # where the words lie in the space
        for n, (shift, own) in enumerate(digits):
            source, base = (words, start) if n == 0 else (space, now.get())
            last = n + 1 == len(digits)
            other = code.value(0, dt.int64) if n == 0 else code.value(count * width, dt.int64) - now.get()
            target, goal = (out, start) if last else (space, other)
            some = counts.load(_digit(form, source.load(base), shift, own) + n * size)
            same = some.equals(count)
            if n == 0 or last:
                with code.given(same):
                    _copy(code, machine, (target, goal), (source, base), count * width)
            with code.given(some.differs(count)):
                _begin_at(code, counts, n * size, 1 << own)

                def put(
                    at: Value,
                    found: list[Value],
                    turn: int,
                    n: int = n,
                    to: tuple[Memory, Value] = (target, goal),
                    source: Memory = source,
                ) -> None:
                    place = _next(counts, found[0] + n * size)
                    to[0].store(to[1] + place * width, source.load(at, width))

                _each(code, form, (source, base), count, [(shift, own)], put)
                if not last:
                    now.set(goal)


def _begin_at(code: Code, counts: Memory, first: int, size: int) -> None:
    """How many there are of each digit becomes where the first one goes."""
    total = code.register(0, counts.dtype)
    with code.loop(size) as d:
        held = counts.load(d + first)
        before = total.get()
        counts.store(d + first, before)
        total.set(before + held)


def _copy(
    code: Code, machine: Machine, to: tuple[Memory, Value], source: tuple[Memory, Value], count: int | Value
) -> None:
    """So many numbers as they lie."""
    lanes = _lanes(machine, to[0].dtype, count) if isinstance(count, int) else 1
    with code.loop(count // lanes if isinstance(count, int) else count) as i:
        to[0].store(to[1] + i * lanes, source[0].load(source[1] + i * lanes, lanes))


# --- long rows, in blocks


@final
class Block:
    """A part of a row, by its number."""

    def __init__(self, code: Code, number: Value, count: int, blocks: int) -> None:
        size = -(-count // blocks)
        self.row = number // blocks
        self.number = number - self.row * blocks
        first = self.number * size
        left = code.value(count, dt.int64) - first
        left = (left < 0).where(0, left)
        self.size = (left < size).where(left, size)
        self.start = self.row * count  # of the row
        self.first = self.start + first


@writes
def count_digits(
    code: Code, machine: Machine, what: What, rows: int, count: int, blocks: int, shift: int, bits: int
) -> None:
    """(rows, blocks, digits): how often blocks of rows have each digit."""
    size, kind = 1 << bits, count_type(count)
    form = Form(what)
    width = form.width
    out = code.memory(kind, rows * blocks * size)
    words = code.memory(form.memory, rows * count * width)
    own = code.local(kind, TABLES * size)
    lanes = _lanes(machine, kind, size)
    with code.loop(rows * blocks, shared_loop(machine, rows * blocks)) as b:
        clear(code, machine, own, TABLES * size, kind)
        block = Block(code, b, count, blocks)

        def count_one(at: Value, found: list[Value], turn: int) -> None:
            _next(own, found[0] + turn % TABLES * size)

        first = block.first * width
        _each(code, form, (words, first), block.size, [(shift, bits)], count_one)
        with code.loop(size // lanes) as d:
            at = d * lanes
            out.store(b * size + at, own.load(at, lanes) + own.load(at + size, lanes))


@writes
def put_digits(
    code: Code, machine: Machine, what: What, rows: int, count: int, blocks: int, shift: int, bits: int
) -> None:
    """Rows of words in the order of a digit, of which is known how often blocks have it."""
    size, kind = 1 << bits, count_type(count)
    form = Form(what)
    width = form.width
    out = code.memory(form.memory, rows * count * width)
    words = code.memory(form.memory, rows * count * width)
    counts = code.memory(kind, rows * blocks * size)
    mine, total = code.local(kind, size), code.local(kind, size)
    lanes = _lanes(machine, kind, size)
    with code.loop(rows * blocks, shared_loop(machine, rows * blocks)) as b:
        block = Block(code, b, count, blocks)
        clear(code, machine, mine, size, kind)
        clear(code, machine, total, size, kind)
        with code.loop(blocks) as other, code.loop(size // lanes) as d:
            at = d * lanes
            held = counts.load((block.row * blocks + other) * size + at, lanes)
            total.store(at, total.load(at, lanes) + held)
            before = (other < block.number).where(held, 0)
            mine.store(at, mine.load(at, lanes) + before)
        so_far, shared = code.register(0, kind), code.register(0)
        with code.loop(size) as d:
            held = total.load(d)
            mine.store(d, mine.load(d) + so_far.get())
            so_far.set(so_far.get() + held)
            shared.set(held.equals(count).where(1, shared.get()))
        is_shared = shared.get()
        with code.given(is_shared.equals(1)):
            at = block.first * width
            _copy(code, machine, (out, at), (words, at), block.size * width)

        def put(at: Value, found: list[Value], turn: int, start: Value = block.start) -> None:
            place = _next(mine, found[0])
            out.store((start + place) * width, words.load(at, width))

        with code.given(is_shared.equals(0)):
            _each(code, form, (words, block.first * width), block.size, [(shift, bits)], put)


# --- what keys have lost


@writes
def mend_lost(
    code: Code, machine: Machine, itemsize: int, largest: int, rows: int, count: int, width: int
) -> None:
    """The bits of floats that sorted keys tell; zeros, which have signs, and NaN from where they came from,
    as the last numbers of the words say. There are few of them, or they lie side by side."""
    kind = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[itemsize]
    out, found = code.memory(kind, rows * count), code.memory(kind, rows * count)
    words = code.memory(dt.int64, rows * count * width)
    given = code.memory(kind, rows * count)
    blocks = blocks_of(machine, rows)
    lanes = 2 * machine.lanes(kind)
    most = (1 << (8 * itemsize - 1)) - 1

    def lost(bits: Value) -> Value:
        return (bits & most).equals(0) | ((bits & most) > largest)

    def look(at: Value, start: Value) -> None:
        bits = found.load(at)
        with code.given(lost(bits)):
            word = words.load(at * width + (width - 1))
            place = word if width > 1 else word & 0xFFFFFFFF
            out.store(at, given.load(start + place))

    with code.loop(rows * blocks, shared_loop(machine, rows * blocks)) as b:
        block = Block(code, b, count, blocks)
        groups = block.size // lanes
        with code.loop(groups) as g:
            at = block.first + g * lanes
            bits = found.load(at, lanes)
            out.store(at, bits)
            with code.given(lost(bits).any()), code.loop(lanes) as k:
                look(at + k, block.start)
        with code.loop(block.size - groups * lanes) as k:
            at = block.first + groups * lanes + k
            out.store(at, found.load(at))
            look(at, block.start)
