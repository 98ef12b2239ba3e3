"""The order of rows of whole numbers on a processor, by kernels that are written by hand: sorted by digits,
least digit first, by counting.

One walk counts all digits of a row. Then every digit has its place among the sorted elements, and a walk for
each digit puts elements there, one after the other: equal ones stay in order. A digit that all elements share
needs no walk. What moves is the key with its position: one word of 64 bits for keys of 32, else two.
"""

from __future__ import annotations

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine

BITS = 8  # of a digit: as many streams are written to at a time as the processor keeps pages of
DIGITS = 1 << BITS


def row_order(code: Code, machine: Machine, key: dt.DType, rows: int, count: int) -> None:
    """(positions, space for words, space for positions) of rows of unsigned keys."""
    wide = key.itemsize == 8
    order = code.memory(dt.int64, rows * count)
    words = code.memory(dt.uint64, 2 * rows * count)
    places = code.memory(dt.uint32, 2 * rows * count if wide else 1)
    keys = code.memory(key, rows * count)
    passes = -(-8 * key.itemsize // BITS)
    counts = code.local(dt.int64, passes * DIGITS)
    kind = AxisKind.THREAD if machine.threads and rows > 1 else AxisKind.LOOP
    with code.loop(rows, kind) as row:
        _Row(code, row * count, count, passes, wide, (order, words, places, keys, counts)).sort()


class _Row:
    """A row, with two spaces of which one is read while the other is written."""

    def __init__(
        self, code: Code, start: Value, count: int, passes: int, wide: bool, memories: tuple[Memory, ...]
    ) -> None:
        self.code, self.start, self.count, self.passes, self.wide = code, start, count, passes, wide
        self.order, self.words, self.places, self.keys, self.counts = memories
        self.low = 0 if wide else 32  # the bit that keys begin at in a word

    def sort(self) -> None:
        code, count = self.code, self.count
        with code.loop(self.passes * DIGITS) as i:
            self.counts.store(i, 0)
        with code.loop(count) as i:
            self._begin(i)
        now = code.register(self.start + self.start)  # where the elements lie
        for turn in range(self.passes):
            first = turn * DIGITS
            word = self.words.load(now.get())
            held = self.counts.load(self._digit(word, turn) + first)
            with code.given(held.differs(count)):
                self._places(first)
                self._walk(now.get(), turn)
                now.set(self.start * 4 + count - now.get())
        with code.loop(count) as i:
            at = now.get() + i
            place = self.places.load(at) if self.wide else self.words.load(at) & 0xFFFFFFFF
            self.order.store(self.start + i, place.cast(dt.int64))

    def _begin(self, i: Value) -> None:
        """An element with its position into the first space; its digits are counted."""
        at = self.start + self.start + i
        word = self.keys.load(self.start + i).cast(dt.uint64)
        if self.wide:
            self.places.store(at, i.cast(dt.uint32))
        else:
            word = (word << 32) | i.cast(dt.uint64)
        self.words.store(at, word)
        for turn in range(self.passes):
            self._count(self._digit(word, turn) + turn * DIGITS)

    def _digit(self, word: Value, turn: int) -> Value:
        return ((word >> (self.low + turn * BITS)) & (DIGITS - 1)).cast(dt.int64)

    def _count(self, place: Value) -> Value:
        before = self.counts.load(place)
        self.counts.store(place, before + 1)
        return before

    def _places(self, first: int) -> None:
        """How many there are of each digit becomes where the first one goes."""
        total = self.code.register(0)
        with self.code.loop(DIGITS) as d:
            held = self.counts.load(d + first)
            before = total.get()
            self.counts.store(d + first, before)
            total.set(before + held)

    def _walk(self, source: Value, turn: int) -> None:
        """Every element to its place in the other space."""
        target = self.start * 4 + self.count - source
        with self.code.loop(self.count) as i:
            word = self.words.load(source + i)
            at = target + self._count(self._digit(word, turn) + turn * DIGITS)
            if self.wide:
                self.places.store(at, self.places.load(source + i))
            self.words.store(at, word)
