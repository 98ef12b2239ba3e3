"""Everybody gets the same inputs and takes turns; results are checked before anything is timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from morok.cli.bench.libraries import Library, mapped, reason
from morok.cli.bench.rows import Work
from morok.device.cpu.limits import Limits

Call = Callable[[], Any]
TOLERANCE = 1e-3  # of the largest value: sums may be in another order
SHORTEST = 2e-4  # seconds that a clock is read for
SLOW = 8.0  # times the fastest: a few rounds are enough
FEW = 3
PAUSE = 0.1  # seconds in which the threads of a library go to sleep
BURST = 8  # measurements after each pause


@final
@dataclass
class Result:
    """A row, measured."""

    name: str
    seconds: dict[str, float]
    first: dict[str, float]  # seconds of the first call, which compiles
    flops: float
    bytes: float
    target: tuple[float, str] | None
    of_copy: float
    most_seconds: float
    absent: dict[str, str] = field(default_factory=dict)  # peers that could not, and why

    @property
    def own(self) -> float:
        return self.seconds["morok"]

    def ratio(self, peer: str = "") -> float | None:
        """The peer's time over morok's: more is faster. No name: the best peer."""
        peers = {name: t for name, t in self.seconds.items() if name != "morok"}
        if peer:
            return peers[peer] / self.own if peer in peers else None
        return min(peers.values()) / self.own if peers else None

    @property
    def best_peer(self) -> str:
        peers = {name: t for name, t in self.seconds.items() if name != "morok"}
        return min(peers, key=lambda name: peers[name]) if peers else "-"

    def share(self, limits: Limits) -> tuple[float, str]:
        """The part of the machine's limit that is reached, and which limit that is: the one that binds."""
        compute = self.flops / limits.flops
        memory = self.bytes / limits.copy
        least, name = max((compute, "FMA"), (memory, "copy"))
        return least / self.own, name

    def verdicts(self, limits: Limits) -> list[tuple[str, bool]]:
        """What is asked for, and whether it is reached."""
        found = []
        if self.target is not None:
            wanted, peer = self.target
            ratio = self.ratio(peer)
            if ratio is not None:
                found.append((f"{wanted:.2f} of {peer or 'the best peer'}", ratio >= wanted))
        if self.of_copy:
            found.append((f"{self.of_copy:.1f} of copy", self.bytes / self.own >= self.of_copy * limits.copy))
        if self.most_seconds:
            found.append((f"under {self.most_seconds * 1e6:.0f} µs", self.own < self.most_seconds))
        return found


def run_row(work: Work, taking_part: Sequence[Library], seconds: float) -> Result:
    """One row: builds a call per library, checks all results, then times them in turns."""
    calls: dict[str, Call] = {}
    first: dict[str, float] = {}
    absent: dict[str, str] = {}
    wanted: Any = None
    for lib in sorted(
        taking_part, key=lambda lib: lib.name != "numpy"
    ):  # it is what others are checked against
        try:
            call, took, result = _prepare(work, lib)
        except Exception as error:
            if lib.name in ("morok", "numpy"):
                raise
            absent[lib.name] = reason(error)
            continue
        if wanted is None:
            wanted = result
        else:
            check(work.name, lib.name, result, wanted)
        calls[lib.name], first[lib.name] = call, took
    times = measure(calls, seconds)
    return Result(
        work.name, times, first, work.flops, work.bytes, work.target, work.of_copy, work.most_seconds, absent
    )


def _prepare(work: Work, lib: Library) -> tuple[Call, float, Any]:
    tensors = [mapped(lib.tensor, value) for value in work.inputs]
    function = lib.compiled(work.function)
    started = time.perf_counter()
    result = function(*tensors)
    took = time.perf_counter() - started
    return (lambda: function(*tensors)), took, lib.array(result)


def check(name: str, who: str, got: Any, want: Any) -> None:
    """Everybody computes the same; sums of n numbers may differ by their order."""
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        raise SystemExit(f"{name}: {who} gives the shape {a.shape}, NumPy {b.shape}")
    if b.dtype.kind in "iu":
        worst = float((a != b).mean()) if b.size else 0.0
    else:
        size = max(1.0, float(np.abs(b.astype(np.float64)).max()))
        worst = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) / size
    if not worst < TOLERANCE:
        raise SystemExit(f"{name}: {who} differs from NumPy by {worst:.1e} of the largest value")


def measure(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """The best time of each, in bursts and in turns, so that all see the same machine."""
    best = dict.fromkeys(calls, math.inf)
    loops = {}
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        took = time.perf_counter() - started
        best[name] = took
        loops[name] = max(1, int(SHORTEST / max(1e-7, took)))
    fastest = min(best.values())
    end = time.perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < FEW or time.perf_counter() < end:
        for name, call in calls.items():
            few = FEW if best[name] < 1.0 else 1
            if rounds >= few and best[name] > SLOW * fastest:
                continue
            # Threads of the one before spin for a while and would take a core away from this one.
            time.sleep(PAUSE)
            call()
            for _ in range(BURST if best[name] < PAUSE else 1):
                started = time.perf_counter()
                for _ in range(loops[name]):
                    call()
                best[name] = min(best[name], (time.perf_counter() - started) / loops[name])
        fastest = min(best.values())
        rounds += 1
    return best
