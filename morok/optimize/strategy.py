"""How kernels are to be optimised: by the heuristics, by a search that measures, or not at all.

plan = y.prepare(Config(strategy=Beam(width=8, seconds=30)))

Without a Config the knobs decide: `BEAM=8` searches, and `MOROK_NOOPT=1` turns everything off, whatever else
is asked for.
"""

from __future__ import annotations

from typing import final

from morok import knobs
from morok.dtype.records import record
from morok.errors import MorokError


@final
@record(frozen=True)
class Plain:
    """Plain loops."""


@final
@record(frozen=True)
class Heuristic:
    """The default choice: a few milliseconds, nothing is measured."""


@final
@record(frozen=True)
class Beam:
    """A search among sequences of actions, by measuring: so many are kept per round, for so many seconds."""

    width: int = 8
    seconds: float = 30.0  # per kernel

    def __post_init__(self) -> None:
        if self.width < 1 or not self.seconds > 0:
            raise MorokError(f"a search needs a width of at least 1 and some time, not {self}")


Strategy = Plain | Heuristic | Beam


@final
@record(frozen=True)
class Config:
    """What a plan may be told about the way its kernels are compiled. None: what the knobs say."""

    strategy: Strategy | None = None

    @property
    def chosen(self) -> Strategy:
        """The strategy that holds here and now."""
        if knobs.NOOPT.value:
            return Plain()
        if self.strategy is not None:
            return self.strategy
        if knobs.BEAM.value:
            return Beam(knobs.BEAM.value, float(knobs.BEAM_SECONDS.value))
        return Heuristic()


DEFAULT = Config()
