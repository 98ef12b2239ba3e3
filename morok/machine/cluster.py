"""Several devices as a plan sees them: what one reaches, and what the links between them cost.

The model of a link is the usual one, a time for every message and a time for every byte (alpha and beta). A
group of devices that lies in one node uses the node's links, a larger one those between nodes, where the
devices of the group in one node carry the bytes together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from morok.errors import MachineError

_FILE = Path(__file__).parent / "clusters.toml"


@final
@dataclass(frozen=True)
class Cluster:
    """Devices of one kind, and their links."""

    name: str
    chip: str
    products: Mapping[str, float]
    other: float
    memory: float
    room: float
    launch: float
    links: tuple[tuple[int, float, float], ...]

    def kernel_seconds(self, ops: int, nbytes: int, factors: str | None) -> float:
        """By what a kernel computes, or by its memory; `factors` is the type that a product's have."""
        rate = self.other if factors is None else self.products.get(factors, self.other)
        return self.launch + max(ops / rate, nbytes / self.memory)

    def collective_seconds(self, kind: str, sent: int, group: Sequence[int]) -> float:
        """How long a group of devices takes for a collective of which each sends so many bytes."""
        count = len(group)
        if count < 2:
            return 0.0
        latency, rate = self._link(group)
        steps = math.ceil(math.log2(count)) if kind != "SEND_RECEIVE" else 1
        return latency * steps * (2 if kind == "ALLREDUCE" else 1) + sent / rate

    def _link(self, group: Sequence[int]) -> tuple[float, float]:
        """Seconds of a message, and bytes per second of one device."""
        nearest = self.links[0]
        for devices, latency, rate in self.links:
            nodes = {rank // devices for rank in group}
            if len(nodes) == 1:
                if devices == nearest[0]:
                    return latency, rate
                together = len(group) / len({rank // nearest[0] for rank in group})
                return latency, min(rate * together, nearest[2])
        raise MachineError(f"{self.name} connects {self.links[-1][0]} devices, not {max(group) + 1}")


@cache
def _tables() -> dict[str, dict[str, Any]]:
    import tomllib

    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def clusters() -> list[str]:
    """The names of those that come along."""
    return sorted(_tables())


def cluster(name: str) -> Cluster:
    """The one of a name, or of a file with one table, whose name it has."""
    tables = _tables()
    if name.endswith(".toml"):
        import tomllib

        try:
            tables = tomllib.loads(Path(name).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise MachineError(f"{name} describes no machine: {error}") from None
        name = next(iter(tables), name)
    if name not in tables:
        raise MachineError(f"there is no machine {name!r} to plan for; there are {', '.join(clusters())}")
    table = dict(tables[name])
    table["links"] = tuple((int(n), float(a), float(b)) for n, a, b in table["links"])
    try:
        return Cluster(name, **table)
    except TypeError as error:
        raise MachineError(f"machine {name}: {error}") from None
