"""Places in sorted rows on a processor, by a kernel that is written by hand.

Halves are chosen without branches, for some numbers side by side: none waits for the memory of the others.
"""

from __future__ import annotations

from morok import dtype as dt
from morok.codegen.written import Code, Value, writes
from morok.machine.machine import Machine
from morok.tensor.arrays.written_order import Block, blocks_of, shared_loop

_BESIDE = 8  # numbers


@writes
def places_of(code: Code, machine: Machine, rows: int, count: int, many: int, after: bool) -> None:
    """(rows, many): how many of a sorted row (rows, count) are smaller than each number, or as large."""
    out = code.memory(dt.int64, rows * many)
    keys = code.memory(dt.int64, rows * count)
    numbers = code.memory(dt.int64, rows * many)

    def look(first: Value, start: Value, beside: int) -> None:
        wanted = [numbers.load(first + n) for n in range(beside)]
        at = [start] * beside

        def below(n: int, offset: int) -> Value:
            key = keys.load(at[n] + offset)
            return (wanted[n] < key).equals(False) if after else key < wanted[n]

        left = count
        while left > 1:
            half = left // 2
            smaller = [below(n, half - 1) for n in range(beside)]
            at = [smaller[n].where(at[n] + half, at[n]) for n in range(beside)]
            left -= half
        for n, more in enumerate([below(n, 0) for n in range(beside)]):
            out.store(first + n, at[n] - start + more.where(code.value(1, dt.int64), 0))

    blocks = blocks_of(machine, rows)
    with code.loop(rows * blocks, shared_loop(machine, rows * blocks)) as b:
        block = Block(code, b, many, blocks)
        groups, start = block.size // _BESIDE, block.row * count
        with code.loop(groups) as g:
            look(block.first + g * _BESIDE, start, _BESIDE)
        with code.loop(block.size - groups * _BESIDE) as n:
            look(block.first + groups * _BESIDE + n, start, 1)
