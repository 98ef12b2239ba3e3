"""What carries values between the ranks of a mesh: one small interface, and the reference.

An engine has some ranks in this process: all of them if they are virtual, one under MPI or NCCL. Every method
gets the memory of those, in order, and `groups`, the sets of ranks that do it together. All four work on rows
along axis 0, as they lie in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from morok.device.buffer import Array, Buffer
from morok.ir.ops import Op, Ops

Groups = tuple[tuple[int, ...], ...]
REDUCTIONS: dict[Op, Any] = {
    Ops.ADD: np.add,
    Ops.MUL: np.multiply,
    Ops.MAX: np.maximum,
    Ops.MIN: np.minimum,
}


class Engine(ABC):
    """Collectives between ranks."""

    name: str
    count: int  # of all ranks
    ranks: tuple[int, ...]  # those of this process
    on_stream = False  # whether it works in the order of the device's own stream

    def begin(self, what: str) -> None:
        """A plan with collectives is about to run: ranks that run different ones find out here."""
        return

    def at(self, place: str | None) -> None:
        """Remembers where the program is, for whoever asks why a rank does not come."""
        return

    @abstractmethod
    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        """Everybody gets what the op makes of all."""

    @abstractmethod
    def reduce_scatter(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        """Of that, everybody its row."""

    @abstractmethod
    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        """Everybody gets all rows."""

    @abstractmethod
    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        """Row i goes to rank i of a group."""

    @abstractmethod
    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        """An array of every rank, for all of them: for reading values, not for kernels."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits for all."""


@final
class VirtualEngine(Engine):
    """All ranks in this process, one after the other: for tests, for debugging, and to compare with."""

    name = "virtual"

    def __init__(self, count: int) -> None:
        self.count = count
        self.ranks = tuple(range(count))

    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        for ranks in groups:
            total = _joined([given[rank].copy_out() for rank in ranks], op)
            for rank in ranks:
                out[rank].copy_in(total)

    def reduce_scatter(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        for ranks in groups:
            total = _joined([given[rank].copy_out() for rank in ranks], op)
            for rank, row in zip(ranks, total.reshape(len(ranks), -1), strict=True):
                out[rank].copy_in(row)

    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        for ranks in groups:
            rows = np.concatenate([given[rank].copy_out() for rank in ranks])
            for rank in ranks:
                out[rank].copy_in(rows)

    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        for ranks in groups:
            rows = [given[rank].copy_out().reshape(len(ranks), -1) for rank in ranks]
            for number, rank in enumerate(ranks):
                out[rank].copy_in(np.concatenate([row[number] for row in rows]))

    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        return list(own)

    def barrier(self) -> None:
        return


def _joined(values: list[Array], op: Op) -> Array:
    with np.errstate(all="ignore"):
        total = values[0]
        for value in values[1:]:
            total = REDUCTIONS[op](total, value)
    return np.asarray(total)
