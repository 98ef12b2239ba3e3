"""Rates of a processor from measurements on it: `morok tune --machine`.

Rates were fitted by hand on one machine, by what made programs fast there, so they are more than times. What
carries over to another machine is the relation: where a byte from memory takes twice as many simple
operations as it did there, it is given twice the price. `[probes]` of the file with the rates has the times
of that machine, measured by the same programs; on it nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, final

from morok.machine.files import Source
from morok.machine.machine import Machine
from morok.machine.rates import OpCosts, Rates


@final
@dataclass(frozen=True)
class Probes:
    """Seconds on one core, of float32 where nothing else is said. 0: it could not be measured."""

    operation: float  # a simple operation on one element in registers, as kernels compute it
    division: float  # the same for ops that take longer
    integer_division: float
    exponential: float
    trigonometric: float
    power: float
    dependent: float  # a vector's multiply-add that waits for the one before
    memory: float  # a byte of a copy from memory to memory
    l2: float  # and of one that stays in the second cache
    gather: float  # an element whose place is read first
    launch: float  # one more kernel of a plan
    wake: float  # until all threads work
    lanes: float = 4.0  # elements of a vector: not a time


# A rate, what it is proportional to, and the unit that this is counted in.
_OPERATION, _CYCLE = "operation", "cycle"
_RATES = (
    ("ops_per_byte", "memory", _OPERATION),
    ("launch", "launch", _OPERATION),
    ("gather", "gather", _OPERATION),
    ("shared_work", "wake", _OPERATION),
    ("latency", "dependent", _CYCLE),
    ("memory_byte", "memory", _CYCLE),
    ("l2_byte", "l2", _CYCLE),
    ("wake", "wake", _CYCLE),
)


def probes_of(source: Source) -> Probes:
    """The times of the machine that a file's rates were fitted on."""
    return Probes(**source.probes)


def fit(machine: Machine, there: Probes, here: Probes) -> Machine:
    """The machine with the rates of where it was measured; those that could not be measured stay."""

    def carried(value: float, what: str, unit: str) -> float:
        times = [_in(unit, probes, getattr(probes, what)) for probes in (there, here)]
        return _rounded(value * times[1] / times[0]) if min(times) > 0.0 else value

    costs = {f.name: carried(getattr(machine.op_costs, f.name), f.name, _OPERATION) for f in fields(OpCosts)}
    costs = {name: max(1.0, cost) for name, cost in costs.items()}
    rates: dict[str, Any] = {
        name: carried(getattr(machine.rates, name), what, unit) for name, what, unit in _RATES
    }
    whole = {name: round(rate) for name, rate in rates.items() if type(getattr(Rates, name)) is int}
    return replace(machine, op_costs=OpCosts(**costs), rates=replace(machine.rates, **{**rates, **whole}))


def _in(unit: str, probes: Probes, seconds: float) -> float:
    """A time in simple operations on an element, or on a vector, which take a known part of a cycle."""
    one = probes.operation * (probes.lanes if unit == _CYCLE else 1.0)
    return seconds / one if one > 0.0 else 0.0


def _rounded(value: float) -> float:
    """Three digits: the rest is noise, and would only make other keys."""
    return float(f"{value:.3g}")


def changes(before: Machine, after: Machine) -> list[tuple[str, float, float]]:
    """The rates that a fit may change: name, before and after."""
    found = []
    for table in ("op_costs", "rates"):
        old, new = asdict(getattr(before, table)), asdict(getattr(after, table))
        names = {name for name, _, _ in _RATES} if table == "rates" else set(old)
        found += [(name, old[name], new[name]) for name in old if name in names]
    return found


def as_file(machine: Machine, base: str, probes: Probes) -> str:
    """The text of a file with a machine's fitted rates."""
    lines = ["# Written by `morok tune --machine`; without this file the one that came along counts."]
    lines.append(f'base = "{base}"')
    for table, values in (
        ("op_costs", asdict(machine.op_costs)),
        ("rates", {name: getattr(machine.rates, name) for name, _, _ in _RATES}),
        ("probes", asdict(probes)),
    ):
        lines += ["", f"[{table}]" + ("  # seconds" if table == "probes" else ""), *_assignments(values)]
    return "\n".join(lines) + "\n"


def _assignments(values: Mapping[str, float]) -> list[str]:
    return [f"{name} = {value!r}" for name, value in values.items()]
