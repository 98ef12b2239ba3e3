"""A/B test of whole plans: kernels that a search has found against the heuristics'; whoever is faster runs.

A kernel is searched for alone. In a plan it runs after another kernel, on what that has left in the caches,
and with a launch before and after. So the whole plan is raced as it is replayed, on the real inputs; where
it does not keep what its kernels have promised, each of them has to win its place in it, or the heuristics'
kernel stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from morok.optimize.search.race import PairedTiming, Stopwatch, uncontended_turns

ENOUGH = 0.01  # of a plan's time: who wins so much, wins
PROMISED = 0.5  # or so much of what the kernels have won alone, if that is less
WINS = 0.6  # of the rounds


@final
@dataclass(frozen=True)
class ABResult:
    """Which kernels of a plan run as they were found, which as the heuristics have them, and the figures."""

    kept: frozenset[str]
    dropped: frozenset[str]
    timings: tuple[PairedTiming, ...]  # of all races, the one of the whole plan first

    @property
    def contended(self) -> bool:
        """Whether the machine was busy. Then it holds for now, and is not remembered."""
        return any(timing.contended for timing in self.timings)

    def __str__(self) -> str:
        whole = self.timings[0]
        kernels = f"{len(self.kept)} of {len(self.kept) + len(self.dropped)} tuned kernels stay"
        busy = "; the machine was busy" if self.contended else ""
        return f"{whole.before * 1e6:.1f} µs → {whole.after * 1e6:.1f} µs with all of them; {kernels}{busy}"


def holds(timing: PairedTiming, promise: float) -> bool:
    """Whether a plan has become faster: by a percent, or by half of the seconds that were promised."""
    wanted = min(ENOUGH, PROMISED * promise / max(timing.before, 1e-12))
    return timing.ratio <= 1.0 - wanted and timing.wins >= WINS and not timing.contended


def plan_ab_test(
    promises: Mapping[str, float],
    clock: Callable[[frozenset[str]], Stopwatch],
    now: Callable[[], float],
    until: float,
    contention_monitor: Callable[[], Callable[[], bool]],
    pause: Callable[[float], None],
) -> ABResult | None:
    """Races plans against each other. `promises` are the seconds that each kernel should save, `clock` is a
    stopwatch for the plan with some of them. None if there is no time for a single race."""
    nothing: frozenset[str] = frozenset()
    everything = frozenset(promises)

    def race(old: frozenset[str], new: frozenset[str], others: int) -> PairedTiming | None:
        """With as much time as there is for each of the others."""
        end = now() + (until - now()) / (1 + others)
        return uncontended_turns("plan", clock(old), clock(new), now, end, contention_monitor, pause)

    order = sorted(promises, key=lambda k: (-promises[k], k)) if len(promises) > 1 else []
    whole = race(nothing, everything, len(order))
    if whole is None:
        return None
    if holds(whole, sum(promises.values())):
        return ABResult(everything, nothing, (whole,))
    kept, timings = nothing, [whole]
    for i, key in enumerate(order):
        timing = race(kept, kept | {key}, len(order) - i - 1)
        if timing is None:  # what there is no time for has not won
            break
        timings.append(timing)
        if holds(timing, promises[key]):
            kept |= {key}
    return ABResult(kept, everything - kept, tuple(timings))
