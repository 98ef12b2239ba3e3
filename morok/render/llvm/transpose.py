"""Vectors that are turned: as many rows as lanes, of which each lane becomes a vector.

Lane by lane that would be an insertion for every element, which LLVM turns into shuffles as it meets them:
more than are needed, and with vectors on the stack. Here all vectors are made at once by a network: pairs of
rows are interleaved, log2(n) times. Blocks of 16 bytes come first, within which every processor interleaves
in one instruction, and then the blocks themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from morok.codegen.vector.vectors import turned_rows
from morok.ir.node import UOp
from morok.ir.ops import Ops

BLOCK = 16  # bytes
FEWEST = 4  # rows

Shuffle = Callable[[str, str, list[int]], str]


def only_turned(instructions: tuple[UOp, ...]) -> frozenset[UOp]:
    """Lanes and rows side by side that nobody wants but vectors that are made of whole rows."""
    whole = {n for n in instructions if n.op in (Ops.GEP, Ops.VECTORIZE) and turned_rows(n) is not None}
    found = {s for n in whole for s in n.src}
    for node in instructions if found else ():
        if node not in whole and not found.isdisjoint(node.src):
            found.difference_update(node.src)
    return frozenset(found)


def turned_groups(node: UOp) -> tuple[tuple[UOp, ...], int, int] | None:
    """The same where some neighbouring lanes of each row stay together: the rows, which group, and its
    lanes."""
    count = len(node.src)
    if node.op is not Ops.CAT or count < FEWEST or count & (count - 1):
        return None
    taken = {s.arg if s.op is Ops.GEP else None for s in node.src}
    lanes = taken.pop()
    if taken or lanes is None or lanes != tuple(range(lanes[0], lanes[0] + len(lanes))):
        return None
    together, rows = len(lanes), tuple(s.src[0] for s in node.src)
    square = all(row.dtype.lanes == count * together for row in rows) and len(set(rows)) == count
    if not square or lanes[0] % together or together & (together - 1):
        return None
    return rows, lanes[0] // together, together


def transposed(rows: list[str], itemsize: int, shuffle: Shuffle) -> list[str]:
    """The lanes of the rows as vectors, made with shuffles of two vectors."""
    lanes = len(rows)
    block = min(lanes, max(1, BLOCK // itemsize))
    inside = [
        _interleaved(rows[first : first + block], 1, block, lanes, shuffle)
        for first in range(0, lanes, block)
    ]
    # vector c of a group has lane c of each block of its rows: blocks of equal c are one vector in the end
    columns = [
        _interleaved([group[c] for group in inside], block, lanes, lanes, shuffle) for c in range(block)
    ]
    return [columns[i % block][i // block] for i in range(lanes)]


def _interleaved(rows: list[str], unit: int, block: int, lanes: int, shuffle: Shuffle) -> list[str]:
    """Units of some lanes out of all rows, one row after the other, within blocks."""
    groups = [[row] for row in rows]
    while len(groups) > 1:
        half = len(groups) // 2
        groups = [
            [
                shuffle(a, b, _halves(unit, block, lanes, high))
                for a, b in zip(*pair, strict=True)
                for high in (0, 1)
            ]
            for pair in zip(groups[:half], groups[half:], strict=True)
        ]
    return groups[0]


def _halves(unit: int, block: int, lanes: int, high: int) -> list[int]:
    """Lanes of two vectors: units by turns, out of the lower or upper half of each block."""
    found = []
    for start in range(0, lanes, block):
        first = start + high * (block // 2)
        for at in range(first, first + block // 2, unit):
            found += [*range(at, at + unit), *range(lanes + at, lanes + at + unit)]
    return found
