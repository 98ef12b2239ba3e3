"""What the prover says about a rule or about two graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

PROVED = "proved"
REFUTED = "refuted"  # there is a counterexample, and Python computes different values for it
UNKNOWN = "unknown"  # the solver gave up
OUT_OF_SCOPE = "out of scope"  # with a written reason
LOWERING = (
    "lowering"  # not an equation between values: it moves loops, memory or lanes; with a written reason
)
# not an equation either: a function without a theory, computed with an error that tests measure
APPROXIMATION = "approximation"
VACUOUS = "vacuous"  # the rule cannot fire: its conditions contradict each other

# What must not happen to a rule that ships.
FAILURES = frozenset((REFUTED, UNKNOWN, VACUOUS))


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question."""

    status: str
    note: str = ""
    counterexample: Mapping[str, Any] = field(default_factory=dict)
    cases: int = 0  # proved on so many graphs or constants, not for all

    def __bool__(self) -> bool:
        return self.status == PROVED


@final
@dataclass(frozen=True, slots=True)
class RuleReport:
    """One line of the table."""

    name: str
    place: str
    numeric: str
    theory: str
    verdict: str
    seconds: float
    note: str = ""
    cases: int = 0

    @property
    def text(self) -> str:
        """The verdict, with the number of cases if it rests on cases."""
        return f"{self.verdict}, {self.cases} cases" if self.cases else self.verdict

    @property
    def failed(self) -> bool:
        return self.verdict in FAILURES

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try, in steps of the solver per question."""

    needed: int = 20_000_000  # for what must be proved
    extra: int = 1_400_000  # for wider types, which are a bonus
    slow: bool = False  # also the widest ones
    cases: int = 40  # how often a rule with code has to fire


DEFAULT = Effort()
SLOW = Effort(needed=120_000_000, extra=20_000_000, slow=True, cases=150)
