"""`morok prove`: every rule of every rule set, and interval arithmetic, proved."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from morok.proof.verdicts import RuleReport

NAME = "prove"
HELP = "prove rewrite rules and interval arithmetic; fails if one is refuted or unproved without a reason"

_HEADING = ("rule", "place", "class", "theory", "verdict", "seconds")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--set", metavar="NAME", help="only the rules of this set")
    parser.add_argument("--rule", metavar="NAME", help="only this rule, or all whose names contain the text")
    parser.add_argument("--slow", action="store_true", help="also the wide types, with more patience")
    parser.add_argument("--no-cache", action="store_true", help="prove again what was proved before")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the reports there as well")


def run(args: Namespace) -> int:
    from morok.proof.registry import INTERVALS, prove_all, prove_interval_laws
    from morok.proof.rulebook import SKIPPED, select
    from morok.proof.verdicts import DEFAULT, SLOW

    start = time.perf_counter()
    intervals = args.set == INTERVALS or (args.rule or "").startswith(INTERVALS)
    chosen = [] if intervals else select(args.set, args.rule)
    for module, reason in SKIPPED.items():
        print(f"skipped {module}: {reason}", file=sys.stderr)
    effort = SLOW if args.slow else DEFAULT
    order = {(rule.name, rule.place): number for number, rule in enumerate(chosen)}
    reports = list(prove_all(chosen, effort, args.jobs, use_cache=not args.no_cache))
    reports.sort(key=lambda r: order[r.name, r.place])
    laws = []
    if intervals or (args.set is None and args.rule is None):
        laws = list(prove_interval_laws(args.rule or "", use_cache=not args.no_cache))
    _print_table([*reports, *laws])
    _print_summary(reports, laws, time.perf_counter() - start)
    reports += laws
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([r.as_json() for r in reports], file, indent=1)
    return int(any(r.failed for r in reports))


def _print_table(reports: list[RuleReport]) -> None:
    rows = [
        _HEADING,
        *((r.name, r.place, r.numeric, r.theory, r.text, f"{r.seconds:.2f}") for r in reports),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    notes = ["", *(r.note for r in reports)]
    for row, note in zip(rows, notes, strict=True):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"{line}  {note}".rstrip())


def _rules(count: int) -> str:
    return f"{count} rule" if count == 1 else f"{count} rules"


def _part(verdict: str, count: int, by_cases: int) -> str:
    return f"{count} {verdict}" + (
        f", of them {by_cases} by cases" if verdict == "proved" and by_cases else ""
    )


def _print_summary(reports: list[RuleReport], intervals: list[RuleReport], seconds: float) -> None:
    from morok.proof.verdicts import APPROXIMATION, LOWERING, PROVED

    laws = [r for r in reports if r.verdict not in (LOWERING, APPROXIMATION)]
    counts = Counter(r.verdict for r in laws)
    by_cases = sum(r.verdict == PROVED and r.cases > 0 for r in laws)
    parts = ", ".join(_part(verdict, count, by_cases) for verdict, count in counts.most_common())
    share = 100 * counts[PROVED] / len(laws) if laws else 0.0
    print(f"\n{_rules(len(laws))}: {parts or 'none'}; {share:.1f} % proved, in {seconds:.1f} s")
    steps = [r for r in reports if r.verdict == LOWERING]
    if steps:
        print(
            f"{len(steps)} lowering steps beside them: they move loops, memory or lanes, so there are no two"
        )
        print("values to compare; tests run them against the interpreter")
    approximations = [r for r in reports if r.verdict == APPROXIMATION]
    if approximations:
        reasons = "; ".join(dict.fromkeys(r.note for r in approximations))
        print(f"{len(approximations)} approximations of functions beside them: {reasons}")
    by_room: dict[str, list[RuleReport]] = {}
    for report in laws:
        by_room.setdefault(report.name.partition(".")[0], []).append(report)
    if len(by_room) > 1:
        for room, part in sorted(by_room.items()):
            proved = sum(r.verdict == "proved" for r in part)
            print(f"  {room}: {proved} of {len(part)} proved, {100 * proved / len(part):.1f} %")
    if intervals:
        proved = sum(r.verdict == PROVED for r in intervals)
        print(f"interval arithmetic: {proved} of {len(intervals)} ops proved")
    partly = [r for r in reports if r.verdict == PROVED and r.cases and r.note]
    if partly:
        print("where the solver gave up on a case, at the widths of programs mostly, values are compared:")
    for report in partly:
        print(f"  {report.name}: {report.cases} cases, {report.note}")
    for report in (*reports, *intervals):
        if report.failed:
            print(f"{report.verdict}: {report.name} ({report.place}): {report.note}")
