"""All mutants, and all of them judged in processes of their own."""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from morok import knobs
from morok.proof.rulebook import all_rules, load_registry
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Term
from tests.mutation import code, pool, terms
from tests.mutation.kill import (
    BY_TIME,
    KILLED,
    REACHED_TESTED_BY,
    SURVIVED,
    Baseline,
    Found,
    all_judges,
    kill_code,
    kill_term,
    measure,
    modules,
    reached,
)
from tests.mutation.reports import line, settled
from tests.mutation.suite import Suite

MOST = 90.0  # seconds of the processor; each judge has its own limit, far below
_TOGETHER = 12  # tests that are measured in one process


def every_mutant() -> list[Any]:
    """All of them, in one order."""
    load_registry()
    found: list[Any] = []
    for rule in all_rules():
        if rule.unproved is None and not rule.is_code:
            found += terms.mutants(rule)
    known = reached(*(f for rule in all_rules() if rule.unproved is None for f in code_of(rule)))
    for module in modules():
        some = code.mutants(module)
        if module.__name__ in REACHED_TESTED_BY:
            some = [m for m in some if (module.__name__, m.function.split(".<locals>.")[0]) in known]
        found += some
    return found


def code_of(rule: Rule) -> list[Any]:
    """The functions of a rule."""
    return [f for f in (rule.after, *rule.conditions) if not isinstance(f, Term)]


def say(text: str) -> None:
    print(text, flush=True)


def measured(
    suite: Suite, jobs: int, mutants: Sequence[Any], path: str = "", told: Callable[[str], None] = say
) -> Baseline:
    """What every judge of some mutants costs and looks at while nothing is changed.

    It is kept in a file, if one is named.
    """
    start = time.monotonic()
    load_registry()
    wanted = {getattr(m, "module", "") for m in mutants}  # rules that are data have no module
    baseline = Baseline(all_judges(all_rules(), suite, wanted))
    if path and os.path.exists(path):
        with open(path, "rb") as file:
            baseline.seconds, baseline.functions = pickle.load(file)
    judges = [j for j in baseline.judges.values() if j.name not in baseline.seconds]
    if not judges:
        return baseline
    tests = [j for j in judges if j.is_test]
    groups = [[j] for j in judges if not j.is_test]
    groups += [tests[i : i + _TOGETHER] for i in range(0, len(tests), _TOGETHER)]
    told(f"{len(judges)} judges are measured, {len(tests)} of them tests, in {len(groups)} processes")
    work = ((tuple(j.name for j in group), partial(_quietly, measure, group)) for group in groups)
    for number, (names, found) in enumerate(pool.run(work, jobs, 10 * MOST), 1):
        if number % 50 == 0:
            told(f"-- {number} of {len(groups)} after {time.monotonic() - start:.0f} s")
        if isinstance(found, (str, pool.Late)):
            baseline.broken.update(dict.fromkeys(names, str(found)))
            continue
        for name, seconds, functions, wrong in found:
            if wrong:
                baseline.broken[name] = wrong
            else:
                baseline.seconds[name], baseline.functions[name] = seconds, functions
    for name, wrong in baseline.broken.items():
        told(f"judges nobody, fails on the rules as they are: {name}  ({wrong})")
    spent = sum(baseline.seconds.values())
    if path:
        with open(path, "wb") as file:
            pickle.dump((baseline.seconds, baseline.functions), file)
    told(f"{len(baseline.seconds)} judges, {spent:.0f} s of the processor, {time.monotonic() - start:.0f} s")
    return baseline


def _quietly(job: Callable[..., Any], *args: Any) -> Any:
    with knobs.override(CACHE=False):
        return job(*args)


def judge_one(mutant: Any, baseline: Baseline) -> Found:
    """The verdict on a mutant, in this process, which is never used for anything else."""
    start = time.process_time()
    if isinstance(mutant, terms.TermMutant):
        found = kill_term(mutant, baseline)
    else:
        found = kill_code(mutant, baseline)
    return replace(found, seconds=time.process_time() - start)


def run(
    mutants: Sequence[Any], jobs: int, baseline: Baseline, path: str = "", told: Callable[[str], None] = say
) -> tuple[dict[str, Found], float]:
    """The verdicts, and seconds on the clock; each is written to a file as soon as it is known."""
    start = time.monotonic()
    results: dict[str, Found] = {}
    for mutant, found in verdicts(mutants, jobs, baseline):
        results[mutant.id] = found = settled(mutant.id, found)
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(line(mutant.id, found) + "\n")
        if found.status == SURVIVED:
            told(f"survived: {mutant.id}  ({found.note}; {found.seconds:.1f} s)")
        if len(results) % 50 == 0:
            counts = Counter(f.status for f in results.values())
            text = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            told(f"-- {len(results)} of {len(mutants)} after {time.monotonic() - start:.0f} s: {text}")
    return results, time.monotonic() - start


def verdicts(mutants: Sequence[Any], jobs: int, baseline: Baseline) -> Iterator[tuple[Any, Found]]:
    """As they come."""
    work = ((m, partial(_quietly, judge_one, m, baseline)) for m in mutants)
    for mutant, found in pool.run(work, jobs, MOST):
        if isinstance(found, Found):
            yield mutant, found
        elif found == pool.LOST:
            yield mutant, Found(KILLED, BY_TIME, f"died, or took more than {MOST:.0f} s", MOST)
        else:
            yield mutant, Found(SURVIVED, "", f"could not be judged: {found!r}")
