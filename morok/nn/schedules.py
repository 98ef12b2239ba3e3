"""Learning rates that change: call `step()` after the optimiser's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from morok.errors import MorokError
from morok.nn.optim import Optimizer


class Schedule:
    """A learning rate as a function of the number of steps so far, in parts of the first one.

    Each group of parameters has its own first one.

    >>> halves = lambda n: 0.5**n
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        self.optimizer, self.factor = optimizer, factor
        self.base, self.count = optimizer.learning_rates(), 0
        self._apply()

    def _apply(self) -> None:
        factor = self.factor(self.count)
        scaled = [b * factor for b in self.base] if isinstance(self.base, list) else self.base * factor
        self.optimizer.set_learning_rates(scaled)

    def step(self) -> float:
        """Move on by one step; returns the new learning rate, of the first group if there are several."""
        self.count += 1
        self._apply()
        return float(self.optimizer.lr)

    def state_dict(self) -> dict[str, Any]:
        """Where it is: the number of steps so far, and the learning rate that it began with."""
        return {"count": self.count, "base": self.base}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the optimiser gets the learning rate of that step."""
        if state.keys() != {"count", "base"} or type(state["count"]) is not int or state["count"] < 0:
            raise MorokError(f"the state of a schedule is a count and a base, not {dict(state)!r}")
        base = state["base"]
        self.count, self.base = (
            state["count"],
            [float(b) for b in base] if isinstance(base, list) else float(base),
        )
        self._apply()


def steps(every: int, factor: float = 0.1) -> Callable[[int], float]:
    """Multiplied by `factor` after every so many steps.

    >>> [steps(2, 0.5)(n) for n in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    return lambda n: float(factor ** (n // every))


def milestones(at: Sequence[int], factor: float = 0.1) -> Callable[[int], float]:
    """Multiplied by `factor` at each of the given steps.

    >>> [milestones([1, 3], 0.5)(n) for n in range(4)]
    [1.0, 0.5, 0.5, 0.25]
    """
    return lambda n: float(factor ** sum(n >= m for m in at))


def exponential(factor: float) -> Callable[[int], float]:
    """Multiplied by `factor` at every step.

    >>> [exponential(0.5)(n) for n in range(3)]
    [1.0, 0.5, 0.25]
    """
    return lambda n: float(factor**n)


def linear(first: float, last: float, count: int) -> Callable[[int], float]:
    """On a straight line from `first` to `last` within `count` steps, constant afterwards.

    >>> [linear(0.0, 1.0, 2)(n) for n in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """
    return lambda n: first + (last - first) * min(n / count, 1.0)


def cosine(count: int, floor: float = 0.0, warmup: int = 0) -> Callable[[int], float]:
    """Up on a line for `warmup` steps, then down on a cosine to `floor` at step `count`.

    >>> [round(cosine(4)(n), 3) for n in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    def factor(n: int) -> float:
        if n < warmup:
            return (n + 1) / warmup
        done = min((n - warmup) / max(count - warmup, 1), 1.0)
        return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))

    return factor


def one_cycle(
    count: int, rise: float = 0.3, start: float = 1 / 25, end: float = 1e-4
) -> Callable[[int], float]:
    """Up on a cosine for the part `rise` of the steps, down to almost nothing for the rest.

    >>> round(one_cycle(10)(3), 3)
    1.0
    """
    peak = max(rise * count, 1.0)

    def factor(n: int) -> float:
        low, done = (
            (start, n / peak) if n < peak else (end, 1.0 - min((n - peak) / max(count - peak, 1.0), 1.0))
        )
        return low + (1.0 - low) * 0.5 * (1.0 - math.cos(math.pi * done))

    return factor
