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

from morok.optimize.race import Heat, Stopwatch, calm_turns

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

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy. Then it holds for now, and is not remembered."""
        return any(heat.disturbed for heat in self.heats)

    def __str__(self) -> str:
        whole = self.heats[0]
        kernels = f"{len(self.kept)} of {len(self.kept) + len(self.dropped)} tuned kernels stay"
        busy = "; the machine was busy" if self.disturbed else ""
        return f"{whole.before * 1e6:.1f} µs → {whole.after * 1e6:.1f} µs with all of them; {kernels}{busy}"


def holds(heat: Heat, promise: float) -> bool:
    """Whether a plan has become faster: by a percent, or by half of the seconds that were promised."""
    wanted = min(ENOUGH, PROMISED * promise / max(heat.before, 1e-12))
    return heat.ratio <= 1.0 - wanted and heat.wins >= WINS and not heat.disturbed


def contest(
    promises: Mapping[str, float],
    clock: Callable[[frozenset[str]], Stopwatch],
    now: Callable[[], float],
    until: float,
    listen: Callable[[], Callable[[], bool]],
    rest: Callable[[float], None],
) -> Verdict | None:
    """Races plans against each other. `promises` are the seconds that each kernel should save, `clock` is a
    stopwatch for the plan with some of them. None if there is no time for a single race."""
    nothing: frozenset[str] = frozenset()
    everything = frozenset(promises)

    def race(old: frozenset[str], new: frozenset[str], others: int) -> Heat | None:
        """With as much time as there is for each of the others."""
        end = now() + (until - now()) / (1 + others)
        return calm_turns("plan", clock(old), clock(new), now, end, listen, rest)

    order = sorted(promises, key=lambda k: (-promises[k], k)) if len(promises) > 1 else []
    whole = race(nothing, everything, len(order))
    if whole is None:
        return None
    if holds(whole, sum(promises.values())):
        return Verdict(everything, nothing, (whole,))
    kept, heats = nothing, [whole]
    for i, key in enumerate(order):
        heat = race(kept, kept | {key}, len(order) - i - 1)
        if heat is None:  # what there is no time for has not won
            break
        heats.append(heat)
        if holds(heat, promises[key]):
            kept |= {key}
    return Verdict(kept, everything - kept, tuple(heats))
