"""A plan whose kernels were searched for, against the plan that the heuristics make: whoever is faster runs.

A kernel is searched for alone. In a plan it runs after another kernel, on what that has left in the caches,
and with a launch before and after. So the whole plan is raced as it is replayed, on the real inputs; where
it does not keep what its kernels have promised, each of them has to win its place in it, or the heuristics'
kernel stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from morok.optimize.race import Heat, Stopwatch, take_turns

ENOUGH = 0.01  # of a plan's time: who wins so much, wins
PROMISED = 0.5  # or so much of what the kernels have won alone, if that is less
WINS = 0.6  # of the rounds


@final
@dataclass(frozen=True)
class Verdict:
    """Which kernels of a plan run as they were found, which as the heuristics have them, and the figures."""

    kept: frozenset[str]
    dropped: frozenset[str]
    heats: tuple[Heat, ...]  # of all races, the one of the whole plan first

    def __str__(self) -> str:
        whole = self.heats[0]
        kernels = f"{len(self.kept)} of {len(self.kept) + len(self.dropped)} tuned kernels stay"
        return f"{whole.before * 1e6:.1f} µs → {whole.after * 1e6:.1f} µs with all of them; {kernels}"


def holds(heat: Heat, promise: float) -> bool:
    """Whether a plan has become faster: by a percent, or by half of the seconds that were promised."""
    wanted = min(ENOUGH, PROMISED * promise / max(heat.before, 1e-12))
    return heat.ratio <= 1.0 - wanted and heat.wins >= WINS


def contest(
    promises: Mapping[str, float],
    clock: Callable[[frozenset[str]], Stopwatch],
    now: Callable[[], float],
    until: float,
) -> Verdict | None:
    """Races plans against each other. `promises` are the seconds that each kernel should save, `clock` is a
    stopwatch for the plan with some of them. None if there is no time for a single race."""
    nothing: frozenset[str] = frozenset()
    everything = frozenset(promises)
    whole = take_turns("plan", clock(nothing), clock(everything), now, _part(now(), until, len(promises)))
    if whole is None:
        return None
    if holds(whole, sum(promises.values())):
        return Verdict(everything, nothing, (whole,))
    kept, heats = nothing, [whole]
    order = sorted(promises, key=lambda k: (-promises[k], k)) if len(promises) > 1 else []
    for i, key in enumerate(order):
        with_it = kept | {key}
        heat = take_turns("plan", clock(kept), clock(with_it), now, _part(now(), until, len(order) - i - 1))
        if heat is None:  # what there is no time for has not won
            break
        heats.append(heat)
        if holds(heat, promises[key]):
            kept = with_it
    return Verdict(kept, everything - kept, tuple(heats))


def _part(now: float, until: float, others: int) -> float:
    """When a race has to end, so that there is as much time for each of the others."""
    return now + (until - now) / (1 + others)
