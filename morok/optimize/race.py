"""Two things against each other, by the clock: in turns, over many rounds, judged pair by pair.

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
REST = 0.2  # seconds in which others may come to an end
SPREADS = 3.0  # a win is larger than so many times the uncertainty of the median


@final
@dataclass(frozen=True)
class Heat:
    """What two have shown in one condition. A ratio below one: the new one is faster."""

    condition: str
    before: float  # median seconds of the old one
    after: float
    ratio: float  # median over the pairs
    spread: float  # uncertainty of that ratio
    wins: float  # the part of the pairs that the new one won
    rounds: int
    disturbed: bool = False  # by others, who needed the same cores

    @property
    def is_clear(self) -> bool:
        """Whether the new one is faster beyond what noise would do."""
        return (
            not self.disturbed
            and self.ratio <= MARGIN
            and self.wins >= WINS
            and self.ratio + SPREADS * self.spread < 1.0
        )


def heat_of(condition: str, olds: Sequence[float], news: Sequence[float]) -> Heat:
    """The figures of times that were taken in turns."""
    ratios = [new / max(old, 1e-12) for old, new in zip(olds, news, strict=True)]
    middle = median(ratios)
    deviation = 1.4826 * median([abs(r - middle) for r in ratios])  # as wide as a normal one
    spread = 1.2533 * deviation / math.sqrt(len(ratios))  # and of its median
    wins = sum(r < 1.0 for r in ratios) / len(ratios)
    return Heat(condition, median(olds), median(news), middle, spread, wins, len(ratios))


def take_turns(
    condition: str, old: Stopwatch, new: Stopwatch, now: Callable[[], float], until: float
) -> Heat | None:
    """Times two in turns, each first as often as second; None if there is no time for enough rounds."""
    turns = (_turn(old), _turn(new))
    taken: tuple[list[float], list[float]] = ([], [])
    while len(taken[0]) < ROUNDS and now() < until:
        for who in (0, 1) if len(taken[0]) % 2 == 0 else (1, 0):
            taken[who].append(turns[who]())
        if len(taken[0]) >= LOOK:
            heat = heat_of(condition, *taken)
            if heat.ratio > 1.0 and heat.wins <= HOPELESS:
                return heat
    return heat_of(condition, *taken) if len(taken[0]) >= FEWEST else None


def calm_turns(
    condition: str,
    old: Stopwatch,
    new: Stopwatch,
    now: Callable[[], float],
    until: float,
    listen: Callable[[], Callable[[], bool]],
    rest: Callable[[float], None],
) -> Heat | None:
    """As `take_turns`, again and again while somebody disturbs it; the last heat says so if all were."""
    found: Heat | None = None
    while True:
        is_disturbed = listen()
        heat = take_turns(condition, old, new, now, until)
        if heat is None:
            return found
        if not is_disturbed():
            return heat
        found = replace(heat, disturbed=True)
        rest(max(0.0, min(REST, until - now())))


def _turn(watch: Stopwatch) -> Callable[[], float]:
    """What one of the two does when it is its turn."""
    once = max(watch(1), 1e-9)
    count = max(1, min(MOST_RUNS, math.ceil(BURST / once)))
    bursts = BURSTS if once < LONG else 1
    return lambda: min(watch(count) for _ in range(bursts)) / count


def is_faster(heats: Sequence[Heat]) -> bool:
    """Clearly faster in one of the conditions, and slower in none. What was disturbed says nothing."""
    sound = all(heat.ratio <= SLOWER and not heat.disturbed for heat in heats)
    return sound and any(heat.is_clear for heat in heats)


def gain(heats: Sequence[Heat]) -> float:
    """How much faster the new one is, over all conditions: 1.1 is ten percent."""
    return math.exp(-sum(math.log(max(heat.ratio, 1e-12)) for heat in heats) / max(1, len(heats)))
