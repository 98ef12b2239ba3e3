"""An engine between devices that are only planned for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from morok.device.buffer import Array, Buffer
from morok.device.mesh.engine import Engine, Groups, Traffic
from morok.ir.ops import Op


@final
class PlannedEngine(Engine):
    """Between devices that are not there: nothing is carried."""

    name = "planned"

    def __init__(self, count: int) -> None:
        self.count = count
        self.ranks = (0,)
        self.traffic = Traffic()

    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        return

    def reduce_scatter(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        return

    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        return

    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        return

    def send_receive(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, places: int
    ) -> None:
        return

    def broadcast(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, root: int) -> None:
        return

    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        return list(own) * self.count

    def barrier(self) -> None:
        return
