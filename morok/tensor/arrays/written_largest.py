"""The k largest of rows of whole numbers on a processor, by a kernel that is written by hand.

The smallest of them is found digit by digit, the highest one first: how often each digit occurs among the
numbers that begin as it does says which digit is its next. One more walk takes what is larger, and of equal
ones the first.

Of a long row few numbers are looked at so closely. Lanes that walk along it keep their largest ones; as many
numbers as are wanted are not smaller than the k-th largest of these, so that all others are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Register, Value, writes
from morok.machine.machine import Machine
from morok.tensor.arrays.written_order import best_digit, clear, count_type, shared_loop, shifts_of

_SAMPLES = 4  # maxima for each number that is wanted
_STEPS = 8  # of a lane, at least: else all numbers are looked at
_ROOM = 16  # numbers for each that is wanted, of which it may be one
_MORE = 256


class _Numbers(NamedTuple):
    """Some numbers that lie side by side."""

    keys: Memory
    start: Value
    size: int | Value
    places: Memory | None = None  # of them in their row, if not their own


class _Search:
    """For the smallest of the wanted numbers, with a table of how often digits occur."""

    def __init__(self, code: Code, machine: Machine, table: Memory, digits: list[tuple[int, int]]) -> None:
        self.code, self.machine, self.table, self.digits = code, machine, table, digits

    def bound(self, among: _Numbers, k: int) -> tuple[Register, Register]:
        """That number, and how many that equal it are wanted."""
        code, table, kind = self.code, self.table, among.keys.dtype
        bound, wanted = code.register(0, kind), code.register(k)
        searching = code.register(1)
        for n, (shift, own) in enumerate(self.digits):
            with code.given(searching.get().equals(1)):
                clear(code, self.machine, table, 1 << own, table.dtype)
                begins = bound.get() >> (shift + own) if n else None
                with code.loop(among.size) as i:
                    key = among.keys.load(among.start + i)
                    place = ((key >> shift) & ((1 << own) - 1)).cast(dt.int64)
                    one = code.value(1, table.dtype)
                    if begins is not None:
                        one = (key >> (shift + own)).equals(begins).where(one, 0)
                    table.store(place, table.load(place) + one)
                self._next_digit(own, shift, bound, wanted, searching)
        return bound, wanted

    def _next_digit(
        self, bits: int, shift: int, bound: Register, wanted: Register, searching: Register
    ) -> None:
        """The digit among whose numbers the last one is; if all of them are wanted, the search has ended."""
        code = self.code
        found, there, left = code.register(-1), code.register(0), code.register(wanted.get())
        with code.loop(1 << bits) as d:
            digit = code.value((1 << bits) - 1, dt.int64) - d
            held, still = self.table.load(digit).cast(dt.int64), left.get()
            open_, fewer = found.get() < 0, held < still
            here = open_ & fewer.equals(False)
            left.set((open_ & fewer).where(still - held, still))
            there.set(here.where(held, there.get()))
            found.set(here.where(digit, found.get()))
        bound.set(bound.get() | (found.get().cast(bound.dtype) << shift))
        wanted.set(left.get())
        searching.set(there.get().equals(left.get()).where(code.value(0, dt.int64), 1))


@writes
def largest_rows(
    code: Code, machine: Machine, itemsize: int, rows: int, count: int, k: int, bits: int
) -> None:
    """(rows, k): the positions of the k largest numbers of each row, in order."""
    kind = dt.uint64 if itemsize == 8 else dt.uint32
    out = code.memory(dt.int64, rows * k)
    keys = code.memory(kind, rows * count)
    lanes = 2 * machine.lanes(kind)
    groups = -(-_SAMPLES * k // lanes)
    steps, room = count // (groups * lanes), _ROOM * k + _MORE
    sampled = steps >= _STEPS
    digit = best_digit(machine, bits, room if sampled else count, 1)[1]
    table = code.local(count_type(count), 1 << digit)
    search = _Search(code, machine, table, shifts_of(0, bits, digit)[::-1])
    maxima = code.local(kind, groups * lanes if sampled else 1)
    some, places = (code.local(t, room if sampled else 1) for t in (kind, dt.int64))
    with code.loop(rows, shared_loop(machine, rows)) as row:
        whole = _Numbers(keys, row * count, count)
        if sampled:
            with code.loop(groups) as g:
                most = code.register(code.value(0, kind).spread(lanes), kind)
                with code.loop(steps) as s:
                    here, now = keys.load(row * count + (g * steps + s) * lanes, lanes), most.get()
                    most.set((now < here).where(here, now))
                maxima.store(g * lanes, most.get())
            nothing = code.value(0, dt.int64)
            least = search.bound(_Numbers(maxima, nothing, groups * lanes), k)[0].get()
            found = _filtered(code, whole, least, (some, places, room))
            fits = found < room + 1
            with code.given(fits):
                few = _Numbers(some, nothing, found, places)
                _take(code, out, row * k, few, search.bound(few, k))
            with code.given(fits.equals(False)):
                _take(code, out, row * k, whole, search.bound(whole, k))
        else:
            _take(code, out, row * k, whole, search.bound(whole, k))


def _filtered(code: Code, row: _Numbers, least: Value, to: tuple[Memory, Memory, int]) -> Value:
    """What is not smaller, and where, as far as there is room for it; how many there are."""
    (some, places, room), total = to, code.register(0)

    def keep(i: Value) -> None:
        key, before = row.keys.load(row.start + i), total.get()
        with code.given((key < least).equals(False)):
            with code.given(before < room):
                some.store(before, key)
                places.store(before, i)
            total.set(before + 1)

    _where_any(code, row, least, keep)
    return total.get()


def _where_any(code: Code, row: _Numbers, least: Value, look: Callable[[Value], None]) -> None:
    """Looks at all numbers that lie beside one that is not smaller."""
    assert isinstance(row.size, int)
    lanes = 32 // row.keys.dtype.itemsize
    with code.loop(row.size // lanes) as g:
        below = row.keys.load(row.start + g * lanes, lanes) < least
        with code.given(below.equals(False).any()), code.loop(lanes) as n:
            look(g * lanes + n)
    with code.loop(row.size % lanes) as n:
        look(n + row.size // lanes * lanes)


def _take(code: Code, out: Memory, first: Value, among: _Numbers, limit: tuple[Register, Register]) -> None:
    """The positions of what is larger than the bound, and of so many that are equal."""
    bound, wanted = limit[0].get(), limit[1]
    put = code.register(first)

    def look(i: Value) -> None:
        key = among.keys.load(among.start + i)
        with code.given((key < bound).equals(False)):
            same, left = key.equals(bound), wanted.get()
            with code.given((same & (left < 1)).equals(False)):
                out.store(put.get(), i if among.places is None else among.places.load(i))
                put.set(put.get() + 1)
                wanted.set(same.where(left - 1, left))

    if among.places is None:
        _where_any(code, among, bound, look)
    else:
        with code.loop(among.size) as i:
            look(i)
