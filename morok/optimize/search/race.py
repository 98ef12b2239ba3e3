"""Paired timing, an A/B test by the clock: two things in turns, over many rounds, judged pair by pair.

A machine becomes slower and faster while it is measured, so times of different minutes say nothing about each
other; times that were taken side by side do. A lucky run says nothing either, so medians count, and a win has
to be larger than what the pairs themselves differ by.

This room reads no clock: it is given two stopwatches, and something that tells when the time is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import final

Stopwatch = Callable[[int], float]  # seconds that so many runs take

BURST = 1e-3  # seconds that a clock is read for
MOST_RUNS = 1000  # in a burst
BURSTS = 3  # of which the best counts: somebody else may have run in the others
LONG = 1e-2  # seconds: one run of it is a burst, and all bursts
ROUNDS = 24
FEWEST = 5  # fewer say nothing
LOOK = 8  # rounds after which a hopeless race may end
MARGIN = 0.98  # of the old time: less of a win is noise, whatever the figures say
SLOWER = 1.005  # in any of the conditions: not taken
WINS = 0.75  # of the rounds
HOPELESS = 0.25  # of the rounds
PAUSE = 0.2  # seconds in which others may come to an end
SPREADS = 3.0  # a win is larger than so many times the uncertainty of the median


@final
@dataclass(frozen=True)
class PairedTiming:
    """What two have shown in one condition. A ratio below one: the new one is faster."""

    condition: str
    before: float  # median seconds of the old one
    after: float
    ratio: float  # median over the pairs
    spread: float  # uncertainty of that ratio
    wins: float  # the part of the pairs that the new one won
    rounds: int
    contended: bool = False  # by others, who needed the same cores

    @property
    def is_clear(self) -> bool:
        """Whether the new one is faster beyond what noise would do."""
        return (
            not self.contended
            and self.ratio <= MARGIN
            and self.wins >= WINS
            and self.ratio + SPREADS * self.spread < 1.0
        )


def paired_timing(condition: str, olds: Sequence[float], news: Sequence[float]) -> PairedTiming:
    """The figures of times that were taken in turns."""
    ratios = [new / max(old, 1e-12) for old, new in zip(olds, news, strict=True)]
    middle = median(ratios)
    deviation = 1.4826 * median([abs(r - middle) for r in ratios])  # as wide as a normal one
    spread = 1.2533 * deviation / math.sqrt(len(ratios))  # and of its median
    wins = sum(r < 1.0 for r in ratios) / len(ratios)
    return PairedTiming(condition, median(olds), median(news), middle, spread, wins, len(ratios))


def take_turns(
    condition: str, old: Stopwatch, new: Stopwatch, now: Callable[[], float], until: float
) -> PairedTiming | None:
    """Times two in turns, each first as often as second; None if there is no time for enough rounds."""
    turns = (_turn(old), _turn(new))
    taken: tuple[list[float], list[float]] = ([], [])
    while len(taken[0]) < ROUNDS and now() < until:
        for who in (0, 1) if len(taken[0]) % 2 == 0 else (1, 0):
            taken[who].append(turns[who]())
        if len(taken[0]) >= LOOK:
            timing = paired_timing(condition, *taken)
            if timing.ratio > 1.0 and timing.wins <= HOPELESS:
                return timing
    return paired_timing(condition, *taken) if len(taken[0]) >= FEWEST else None


def uncontended_turns(
    condition: str,
    old: Stopwatch,
    new: Stopwatch,
    now: Callable[[], float],
    until: float,
    contention_monitor: Callable[[], Callable[[], bool]],
    pause: Callable[[float], None],
) -> PairedTiming | None:
    """As `take_turns`, again and again while there is contention; the last timing says so if all were
    contended."""
    found: PairedTiming | None = None
    while True:
        is_contended = contention_monitor()
        timing = take_turns(condition, old, new, now, until)
        if timing is None:
            return found
        if not is_contended():
            return timing
        found = replace(timing, contended=True)
        pause(max(0.0, min(PAUSE, until - now())))


def _turn(watch: Stopwatch) -> Callable[[], float]:
    """What one of the two does when it is its turn."""
    once = max(watch(1), 1e-9)
    count = max(1, min(MOST_RUNS, math.ceil(BURST / once)))
    bursts = BURSTS if once < LONG else 1
    return lambda: min(watch(count) for _ in range(bursts)) / count


def is_faster(timings: Sequence[PairedTiming]) -> bool:
    """Clearly faster in one of the conditions, and slower in none. What was contended says nothing."""
    sound = all(timing.ratio <= SLOWER and not timing.contended for timing in timings)
    return sound and any(timing.is_clear for timing in timings)


def gain(timings: Sequence[PairedTiming]) -> float:
    """How much faster the new one is, over all conditions: 1.1 is ten percent."""
    return math.exp(-sum(math.log(max(timing.ratio, 1e-12)) for timing in timings) / max(1, len(timings)))
