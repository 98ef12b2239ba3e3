"""How cost grows with size: time per unit of work from small to large, and where it jumps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from morok.cli.bench.libraries import Library
from morok.cli.bench.rows import Work, data
from morok.cli.bench.timing import run_row

CLIFF = 1.8  # times more expensive per unit than a neighbour of half the size, where peers are not


@final
@dataclass(frozen=True)
class Point:
    size: int
    seconds: float
    unit: float  # nanoseconds per unit of work
    peer: float  # the best peer's seconds
    is_cliff: bool


@final
@dataclass(frozen=True)
class Curve:
    name: str
    unit: str
    points: tuple[Point, ...]

    @property
    def cliffs(self) -> list[int]:
        return [p.size for p in self.points if p.is_cliff]


def find_cliffs(units: Sequence[float], peers: Sequence[float]) -> list[bool]:
    """Where a unit of work gets much more expensive from one size to the next, and much more so than for the
    peer.

    The step from the caches to memory makes work more expensive for everybody; that is the machine's and no
    cliff.
    """
    found = [False]
    for (a, b), (p, q) in zip(_pairs(units), _pairs(peers), strict=True):
        machine = max(1.0, q / p) if math.isfinite(p) and math.isfinite(q) else 1.0
        found.append(b / a > CLIFF * machine)
    return found


def _pairs(values: Sequence[float]) -> list[tuple[float, float]]:
    return list(pairwise(values))


def _curve(name: str, unit: str, works: Iterable[tuple[int, float, Work]], libs: Sequence[Library],
           seconds: float) -> Curve:  # fmt: skip
    sizes, own, peers, units, peer_units = [], [], [], [], []
    for size, count, work in works:
        result = run_row(work, libs, seconds)
        others = [t for who, t in result.seconds.items() if who != "morok"]
        sizes.append(size)
        own.append(result.own)
        peers.append(min(others, default=math.inf))
        units.append(result.own / count * 1e9)
        peer_units.append(peers[-1] / count * 1e9)
    cliffs = find_cliffs(units, peer_units)
    rows = zip(sizes, own, units, peers, cliffs, strict=True)
    return Curve(name, unit, tuple(Point(*row) for row in rows))


def _product(n: int) -> Work:
    return Work(f"matmul {n}", (data(n, n), data(n, n)), lambda _, a, b: a @ b, 2.0 * n**3)


def _sum(n: int) -> Work:
    return Work(f"sum {n}", (data(n),), lambda lib, x: lib.sum(x), float(n))


def curves(libs: Sequence[Library], quick: bool, seconds: float) -> list[Curve]:
    """Matrix products from 128 to 4096 and sums from 1 K to 256 M, beside NumPy and torch."""
    few = [lib for lib in libs if lib.name in ("morok", "numpy", "torch")]
    sides = (
        (128, 192, 256, 384, 512) if quick else (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
    )
    counts = [1 << k for k in range(10, 21 if quick else 29, 2)]
    products = ((n, float(n) ** 3, _product(n)) for n in sides)
    sums = ((n, float(n), _sum(n)) for n in counts)
    return [
        _curve("matmul", "ns per multiply-add", products, few, seconds),
        _curve("sum", "ns per element", sums, few, seconds),
    ]


def show(curve: Curve) -> str:
    """The curve as a table."""
    lines = [f"{curve.name}: {'size':>12} {'morok':>12} {'best peer':>12} {curve.unit:>20}"]
    for p in curve.points:
        mark = "  cliff" if p.is_cliff else ""
        lines.append(
            f"{'':<{len(curve.name) + 1}} {p.size:>12} {p.seconds * 1e3:>9.3f} ms {p.peer * 1e3:>9.3f} ms "
            f"{p.unit:>20.4f}{mark}"
        )
    lines.append(f"{curve.name}: " + (f"cliffs at {curve.cliffs}" if curve.cliffs else "no cliffs"))
    return "\n".join(lines)
