"""What carries values between the ranks of a mesh: one small interface, and the reference.

An engine has some ranks in this process: all of them if they are virtual, one under MPI or NCCL. Every method
gets the memory of those, in order, and `groups`, the sets of ranks that do it together. All of them work on
rows along axis 0, as they lie in memory. A method starts its work; what it returns, if anything, is waited
for before its memory is touched.

`traffic` counts what was really handed over, call by call: it is not the plan's estimate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from morok.device.buffer import Array, Buffer
from morok.ir.ops import Op, Ops

Groups = tuple[tuple[int, ...], ...]
Pending = Callable[[bool], bool] | None  # asked with True it waits; with False it says whether it is done
REDUCTIONS: dict[Op, Any] = {
    Ops.ADD: np.add,
    Ops.MUL: np.multiply,
    Ops.MAX: np.maximum,
    Ops.MIN: np.minimum,
}


@final
@dataclass
class Traffic:
    """Bytes that one rank (the busiest of this process) has handed to others, by collective."""

    calls: dict[str, int] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)  # the memory that was passed in
    sent: dict[str, int] = field(default_factory=dict)  # of that, what left for other ranks

    def count(self, name: str, given: int, sent: int) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self.given[name] = self.given.get(name, 0) + given
        self.sent[name] = self.sent.get(name, 0) + sent

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def clear(self) -> None:
        for table in (self.calls, self.given, self.sent):
            table.clear()


class Engine(ABC):
    """Collectives between ranks."""

    name: str
    count: int  # of all ranks
    ranks: tuple[int, ...]  # those of this process
    on_stream = False  # whether it works in the order of the device's own stream
    traffic: Traffic

    def begin(self, what: str) -> None:
        """A plan with collectives is about to run: ranks that run different ones find out here."""
        return

    @abstractmethod
    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> Pending:
        """Everybody gets what the op makes of all."""

    @abstractmethod
    def reduce_scatter(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op
    ) -> Pending:
        """Of that, everybody its row."""

    @abstractmethod
    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> Pending:
        """Everybody gets all rows."""

    @abstractmethod
    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> Pending:
        """Row i goes to rank i of a group."""

    @abstractmethod
    def send_receive(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, places: int
    ) -> Pending:
        """Everybody sends to the rank so many places behind it in its group, and gets from the one before.

        Who has nobody before it gets zeros.
        """

    @abstractmethod
    def broadcast(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, root: int) -> Pending:
        """Everybody gets what number `root` of its group has."""

    @abstractmethod
    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        """An array of every rank, for all of them: for reading values, not for kernels."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits for all."""


@final
class VirtualEngine(Engine):
    """All ranks in this process, one after the other: for tests, for debugging, and to compare with.

    Whatever one rank has from another goes through `_Post`, message by message, which counts it. Sums go the
    way that moves least: each rank adds up one row of everybody's, and hands its row to the others.
    """

    name = "virtual"

    def __init__(self, count: int) -> None:
        self.count = count
        self.ranks = tuple(range(count))
        self.traffic = Traffic()

    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        post = _Post("all_reduce", given)
        for ranks in groups:
            rows = {rank: np.array_split(given[rank].copy_out(), len(ranks)) for rank in ranks}
            mine = {
                rank: _joined([post.send(r, rank, rows[r][n]) for r in ranks], op)
                for n, rank in enumerate(ranks)
            }
            for rank in ranks:
                out[rank].copy_in(np.concatenate([post.send(r, rank, mine[r]) for r in ranks]))
        post.close(self.traffic)

    def reduce_scatter(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        post = _Post("reduce_scatter", given)
        for ranks in groups:
            rows = {rank: given[rank].copy_out().reshape(len(ranks), -1) for rank in ranks}
            for n, rank in enumerate(ranks):
                out[rank].copy_in(_joined([post.send(r, rank, rows[r][n]) for r in ranks], op))
        post.close(self.traffic)

    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        post = _Post("all_gather", given)
        for ranks in groups:
            rows = {rank: given[rank].copy_out() for rank in ranks}
            for rank in ranks:
                out[rank].copy_in(np.concatenate([post.send(r, rank, rows[r]) for r in ranks]))
        post.close(self.traffic)

    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        post = _Post("all_to_all", given)
        for ranks in groups:
            rows = {rank: given[rank].copy_out().reshape(len(ranks), -1) for rank in ranks}
            for n, rank in enumerate(ranks):
                out[rank].copy_in(np.concatenate([post.send(r, rank, rows[r][n]) for r in ranks]))
        post.close(self.traffic)

    def send_receive(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, places: int
    ) -> None:
        post = _Post("send_receive", given)
        for ranks in groups:
            rows = {rank: given[rank].copy_out() for rank in ranks}
            for n, rank in enumerate(ranks):
                source = n - places
                inside = 0 <= source < len(ranks)
                from_whom = ranks[source] if inside else rank
                row = post.send(from_whom, rank, rows[from_whom])
                out[rank].copy_in(row if inside else np.zeros_like(row))
        post.close(self.traffic)

    def broadcast(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, root: int) -> None:
        post = _Post("broadcast", given)
        for ranks in groups:  # from one to the next: nobody sends it more than once
            row = given[ranks[root]].copy_out()
            order = (ranks[root], *(r for n, r in enumerate(ranks) if n != root))
            for before, rank in zip((ranks[root], *order), order, strict=False):
                row = post.send(before, rank, row)
                out[rank].copy_in(row)
        post.close(self.traffic)

    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        return list(own)

    def barrier(self) -> None:
        return


@final
class _Post:
    """Carries arrays between virtual ranks during one collective, and counts the bytes by sender."""

    def __init__(self, name: str, given: Sequence[Buffer]) -> None:
        self.name = name
        self.given = max((buffer.nbytes for buffer in given), default=0)
        self._sent: dict[int, int] = {}

    def send(self, source: int, target: int, array: Array) -> Array:
        if source != target:
            self._sent[source] = self._sent.get(source, 0) + array.nbytes
        return array

    def close(self, traffic: Traffic) -> None:
        traffic.count(self.name, self.given, max(self._sent.values(), default=0))


def _joined(values: list[Array], op: Op) -> Array:
    with np.errstate(all="ignore"):
        total = values[0]
        for value in values[1:]:
            total = REDUCTIONS[op](total, value)
    return np.asarray(total)
