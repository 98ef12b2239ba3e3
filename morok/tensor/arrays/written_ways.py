"""How rows are sorted by kernels that are written by hand: the shortest way by the machine's numbers."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

from morok.dtype.records import record
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, What
from morok.tensor.arrays.written_network import effort, held_by, key_type, lanes_of
from morok.tensor.arrays.written_order import best_digit, blocks_of
from morok.tensor.arrays.written_quick import PARTS, can_split, held_elements

_SUM = 0.1  # of an element: one more block of a table that is summed up
_CYCLES = 8.0  # of an element that is counted and put in its place
_COMPARED = 1.0  # cycles of a comparison of two vectors
_WORDS = 3.0  # times as many of words of 64 bits
_PAIRS = 6.0  # and of pairs of them
_FAR = 2.0  # cycles of a vector that comes from the second cache and goes back there; from the first half
_MOVED = 3.0  # cycles of an element that goes to its lane and comes back
_PART = 250.0  # cycles of a part, however short
_REGISTERS = 6.0  # of an element of four bytes that is sorted in registers of 64 bytes
_HALVED = 1.1  # and of one that goes to one side of a pivot
_CUT = 10.0  # and of one that goes to one of the parts of a row
_FULL = 0.7  # of the registers' elements: what parts have in the end
_LONG = 2  # times as many elements as the registers hold, in each part of a row
_LOST = 3.0  # of a float in lanes: rows with NaN or -0 are walked twice more, an element at a time
_TEXT = 100_000.0  # what half a second of compiling is to each of some ten thousand calls


@final
@record(frozen=True)
class Way:
    """How rows are sorted: each in the cache, by digits of so many bits; or in so many blocks; or side by
    side, without digits; or split at pivots, each or in so many blocks."""

    blocks: int
    digit: int
    splits: bool = False


@lru_cache(1024)
def way_to_sort(machine: Machine, rows: int, count: int, what: What, bits: int) -> Way:
    """The shortest of the ways, in time of an element that is put in its place."""
    form = Form(what)
    threads = machine.cores if machine.threads else 1
    blocks = blocks_of(machine, rows)
    turns = -(-rows * blocks // threads)
    wake = machine.rates.wake / _CYCLES
    time, digit = best_digit(machine, bits, -(-count // blocks) * turns, (1 + _SUM * blocks) * turns)
    found = [(time + 2 * wake * -(-bits // digit), Way(blocks, digit))]
    if 2 * count * form.bytes <= machine.l2_bytes:
        turns = -(-rows // threads)
        time, digit = best_digit(machine, bits, count * turns, turns)
        found.append((time + wake, Way(0, digit)))
    lanes = lanes_of(machine, form)
    tile = count * lanes * key_type(form).itemsize * form.width
    if tile <= machine.l2_bytes // 2:
        turns = -(-rows // (lanes * threads))
        vectors = lanes / machine.lanes(key_type(form))
        compared, moved = effort(count, held_by(machine, form))
        each = _PAIRS if form.width > 1 else _WORDS if key_type(form).itemsize == 8 else 1.0
        far = 1 if tile <= machine.l1_bytes else _FAR
        time = vectors * (compared * each * _COMPARED + moved * form.width * far)
        time = turns * (time + count * lanes * form.width * _MOVED)
        found.append((time / _CYCLES + wake, Way(0, 0)))
    if can_split(machine, form):
        if form.is_float:
            found = [
                (time + (not way.digit) * _LOST * rows * count / _CYCLES / threads, way)
                for time, way in found
            ]
        found += _ways_to_split(machine, form, rows, count)
    return min(found, key=lambda pair: pair[0])[1]


def _ways_to_split(machine: Machine, form: Form, rows: int, count: int) -> list[tuple[float, Way]]:
    """With elements that a vector puts side by side: each row by one thread, or cut into parts first."""
    threads = machine.cores if machine.threads else 1
    size = form.memory.itemsize / 4 * 64 / machine.vector_bytes
    wake = (machine.rates.wake + _TEXT) / _CYCLES

    def time(elements: float) -> float:
        halved = max(0.0, math.log2(elements / (_FULL * held_elements(machine, form))))
        return (_PART + elements * size * (_REGISTERS + _HALVED * halved)) / _CYCLES

    found = [(-(-rows // threads) * time(count) + wake, Way(0, 0, True))]
    if count >= _LONG * PARTS * held_elements(machine, form):
        cut = rows * count * size * _CUT / _CYCLES / threads
        each = -(-rows * PARTS // threads) * time(count / PARTS)
        found.append((cut + each + 2 * wake, Way(blocks_of(machine, rows), 0, True)))
    return found
