"""Every rule of the installed package, proved once each, in parallel; known proofs are not made again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from morok import knobs
from morok.errors import ProofError
from morok.proof import cache
from morok.proof.intervals import PLACE, laws, prove_intervals
from morok.proof.prove import prove_rule
from morok.proof.rulebook import all_rules, load_registry
from morok.proof.verdicts import DEFAULT, Effort, RuleReport
from morok.rewrite.rules import Rule

INTERVALS = "ir.bounds"  # how the names of laws of interval arithmetic begin
_FEW = 8  # so few that starting processes takes longer


def prove_all(
    chosen: Sequence[Rule], effort: Effort = DEFAULT, jobs: int = 1, use_cache: bool = True
) -> Iterator[RuleReport]:
    """A report for every rule, as they come."""
    keys = {id(rule): cache.key_of(rule, effort) for rule in chosen}
    known = cache.load() if use_cache else {}
    missing = []
    for rule in chosen:
        entry = known.get(keys[id(rule)])
        if entry is None:
            missing.append(rule)
        else:
            yield cache.recalled(rule.name, rule.place, rule.numeric.value, entry)
    found: dict[str, RuleReport] = {}
    try:
        for rule, report in _prove(missing, effort, jobs):
            found[keys[id(rule)]] = report
            yield report
    finally:
        if use_cache:
            cache.save(found)


def prove_interval_laws(part: str = "", use_cache: bool = True) -> Iterator[RuleReport]:
    """A report for every op of interval arithmetic whose name has the part."""
    known = cache.load() if use_cache else {}
    found: dict[str, RuleReport] = {}
    missing = []
    by_name = {law.name: law for law in laws() if part in law.name}
    for name in by_name:
        entry = known.get(cache.key_of_law(name))
        if entry is None:
            missing.append(name)
        else:
            yield cache.recalled(name, PLACE, "exact", entry)
    try:
        for report in prove_intervals(law for law in laws() if law.name in missing):
            found[cache.key_of_law(report.name)] = report
            yield report
    finally:
        if use_cache:
            cache.save(found)


def _prove(missing: Sequence[Rule], effort: Effort, jobs: int) -> Iterator[tuple[Rule, RuleReport]]:
    if jobs <= 1 or len(missing) <= _FEW:
        for rule in missing:
            yield rule, prove_rule(rule, effort)
        return
    # Rules hold functions, which do not travel; a worker finds them again in its own registry.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=load_registry) as pool:
        running = {}
        for rule in sorted(missing, key=lambda r: not r.is_code):  # what takes longest comes first
            running[pool.submit(_prove_named, rule.name, rule.place, effort, knobs.overridden())] = rule
        for done in as_completed(running):
            yield running[done], done.result()


def _prove_named(name: str, place: str, effort: Effort, overridden: dict[str, object]) -> RuleReport:
    with knobs.override(**overridden):
        for rule in all_rules():
            if rule.name == name and rule.place == place:
                return prove_rule(rule, effort)
    raise ProofError(f"a worker does not know the rule {name} of {place}")
