"""The report: which operators pass torch's samples in full, in part, or not at all."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.torch_samples.judge import Verdict, database, judged, operators
from tests.torch_samples.workers import judged_by_many


def recorded(record: Path | None) -> dict[str, Verdict]:
    """Verdicts that an earlier run has written, by name; the last one of a name counts."""
    if record is None or not record.exists():
        return {}
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: Verdict(**line) for line in lines}


def verdicts(names: list[str], options: argparse.Namespace) -> Iterator[Verdict]:
    """One for each name, as they are found."""
    how = (options.most, not options.forward)
    if options.workers > 1:
        yield from judged_by_many(names, options.workers, *how, options.seconds)
        return
    known = database()
    for name in names:
        yield judged(name, known.get(name), *how, seconds=options.seconds)


def report(names: list[str], options: argparse.Namespace) -> int:
    done = recorded(options.record)
    found = [done[name] for name in names if name in done]
    for verdict in found:
        tell(verdict, options.show, len(names) < 20)
    for verdict in verdicts([name for name in names if name not in done], options):
        if options.record is not None:
            with options.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")
        found.append(verdict)
        tell(verdict, options.show, len(names) < 20)
    counts = Counter(v.state for v in found)
    print(", ".join(f"{count} {state}" for state, count in counts.most_common()), f"of {len(names)}")
    samples = (
        sum(v.passed for v in found),
        sum(len(v.wrong) for v in found),
        sum(len(v.raised) for v in found),
    )
    print("samples: {} right, {} wrong, {} raise".format(*samples))
    return counts["wrong"]


def tell(verdict: Verdict, show: int, always: bool) -> None:
    """A line for an operator that is not full, and what it failed at."""
    total = verdict.passed + len(verdict.wrong) + len(verdict.raised)
    if verdict.state != "full" or always:
        left = f", {verdict.left} left" if verdict.left else ""
        print(f"{verdict.state:8} {verdict.name}  {verdict.passed} of {total}{left}", flush=True)
    for kind, lines in (("wrong", verdict.wrong), ("raises", verdict.raised)):
        for line in lines[:show]:
            print(f"    {kind} {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all of names.txt if there are none")
    parser.add_argument("--most", type=int, default=0, help="samples of each operator")
    parser.add_argument("--show", type=int, default=1, help="failures that are told of each")
    parser.add_argument("--without", nargs="*", default=[], help="operators to leave out")
    parser.add_argument("--forward", action="store_true", help="values only, no gradients")
    parser.add_argument("--record", type=Path, help="a file of verdicts; operators in it are not run again")
    parser.add_argument("--part", default="0/1", help="1/4: the second quarter of the names")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for one share of samples")
    options = parser.parse_args()
    every = operators()
    names = [n for n in every if not options.names or any(n == p or n.startswith(p) for p in options.names)]
    names = [n for n in names if n not in options.without]
    part, parts = map(int, options.part.split("/"))
    sys.exit(report(names[part::parts], options) > 0)


if __name__ == "__main__":
    main()
