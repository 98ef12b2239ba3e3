"""Memory planning: intermediate results of a schedule share one arena per device.

The live range of a buffer goes from the kernel that first writes it to the last one that touches it. Buffers
that are alive at the same time get separate places, others may use the same bytes. The largest are placed
first, each at the lowest place where it fits, which is close to the best possible: the most bytes that are
alive at once. Where a kernel's input dies as its output of the same size is written element by element, the
output takes the input's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from morok.dtype.records import record
from morok.ir.node import UOp

ALIGNMENT = 64


@final
@record(frozen=True)
class Placement:
    """Where an intermediate buffer lies in the arena of its device."""

    device: str
    offset: int
    nbytes: int


@final
@record(frozen=True)
class MemoryPlan:
    """Places of the intermediate buffers; outputs have memory of their own, which outlives the schedule."""

    placements: dict[UOp, Placement]
    arenas: dict[str, int]  # bytes per device
    outputs: tuple[UOp, ...]
    output_bytes: int
    live_bytes: int  # the most intermediate bytes that are alive at once: no plan needs less

    @property
    def arena_bytes(self) -> int:
        return sum(self.arenas.values())

    @property
    def peak(self) -> int:
        """Bytes that running the schedule takes on top of its inputs."""
        return self.arena_bytes + self.output_bytes


@final
@record(eq=False)
class LiveRange:
    """One intermediate buffer: a key for the caller, its size, and the first and last step that use it."""

    key: int
    device: str
    nbytes: int
    start: int
    stop: int
    offset: int = -1


def aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def place_live_ranges(
    live_ranges: Sequence[LiveRange], sharing: Sequence[tuple[int, int]] = (), alignment: int = ALIGNMENT
) -> tuple[dict[str, int], int]:
    """Gives every life an offset. Returns the bytes per device and the lower bound over all devices.

    `sharing` holds (output, input) keys: at the step where it dies, the input may give its place away.
    """
    blocks = _share(live_ranges, sharing)
    arenas: dict[str, int] = {}
    bound = 0
    for device in dict.fromkeys(life.device for life in live_ranges):
        own = [block for block in blocks if block[0].device == device]
        arenas[device] = _first_fit(own, alignment)
        bound += _most_alive(own, alignment)
    return arenas, bound


_Block = list[LiveRange]  # lives one after the other at one place; the first is the largest


def _share(live_ranges: Sequence[LiveRange], sharing: Sequence[tuple[int, int]]) -> list[_Block]:
    blocks: dict[int, _Block] = {life.key: [life] for life in live_ranges}
    taken: set[int] = set()
    for out, source in sharing:
        if out not in blocks or source not in blocks or source in taken or blocks[out] is blocks[source]:
            continue
        new, old = blocks[out][0], blocks[source][-1]
        if old.key != source or len(blocks[out]) != 1 or old.stop != new.start or old.nbytes != new.nbytes:
            continue
        taken.add(source)
        blocks[source].append(new)
        blocks[out] = blocks[source]
    return list({id(block): block for block in blocks.values()}.values())


def _span(block: _Block) -> tuple[int, int]:
    return block[0].start, max(life.stop for life in block)


def _first_fit(blocks: list[_Block], alignment: int) -> int:
    """Largest first, each at the lowest offset that is free during its whole life."""
    spots = _Spots(len(blocks))
    top = 0
    for block in sorted(blocks, key=lambda b: (-b[0].nbytes, b[0].start, b[0].key)):
        start, stop = _span(block)
        size = aligned(block[0].nbytes, alignment)
        offset = spots.take(start, stop, size)
        for life in block:
            life.offset = offset
        top = max(top, offset + size)
    return top


@final
class _Spots:
    """Places that are taken and when, sorted by offset. A question is a few operations on whole arrays."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.table = np.empty((4, most), np.int64)  # first step, last step, offset, end

    def take(self, start: int, stop: int, size: int) -> int:
        """The lowest offset with room for so many bytes from one step to another; it is taken from now on."""
        known = self.table[:, : self.count]
        rivals = known[2:, (known[0] <= stop) & (known[1] >= start)]
        offset = 0
        if rivals.shape[1]:
            ends = np.maximum.accumulate(rivals[1])
            room = rivals[0] - np.concatenate(([0], ends[:-1])) >= size
            n = int(room.argmax())
            offset = int(ends[-1]) if not room[n] else int(ends[n - 1]) if n else 0
        at = int(np.searchsorted(known[2], offset))
        self.table[:, at + 1 : self.count + 1] = known[:, at:].copy()
        self.table[:, at] = start, stop, offset, offset + size
        self.count += 1
        return offset


def _most_alive(blocks: list[_Block], alignment: int) -> int:
    changes: dict[int, int] = {}
    for block in blocks:
        start, stop = _span(block)
        size = aligned(block[0].nbytes, alignment)
        changes[start] = changes.get(start, 0) + size
        changes[stop + 1] = changes.get(stop + 1, 0) - size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most
