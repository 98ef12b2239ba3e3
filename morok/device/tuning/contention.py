"""Contention: whether others have used the processor while something was timed.

A kernel for two threads is as slow as one for a single thread while somebody else has the second core. What
was timed then says nothing about the machine when it is free, so whoever has to decide asks here first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SHARE = 0.15  # of the cores that a kernel runs on: so much is always going on
TICKS = 2.0  # the system counts in ticks, and may be off by some


def monitor(
    threads: int, cores: int = os.cpu_count() or 1, now: Callable[[], float] = time.perf_counter
) -> Callable[[], bool]:
    """From now on; the function says whether others have taken cores that so many threads needed."""
    first = used()
    started = now()

    def contended() -> bool:
        last = used()
        if first is None or last is None:
            return False
        seconds = max(1e-9, now() - started)
        others = (last[0] - first[0] - (last[1] - first[1])) / seconds
        return others > cores - threads + SHARE * threads + TICKS * tick() / seconds

    return contended


def tick() -> float:
    """Seconds between two counts of the system."""
    return 1.0 / os.sysconf("SC_CLK_TCK")


def used() -> tuple[float, float] | None:
    """Seconds that all cores have worked for all processes, and for this one; None where nobody tells."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        times = [int(word) for word in words[1:9]]  # user nice system idle waiting irq softirq stolen
    except (OSError, ValueError):
        return None
    if len(times) < 8:
        return None
    own = os.times()
    return (sum(times) - times[3] - times[4]) * tick(), own.user + own.system
