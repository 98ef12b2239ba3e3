"""The report: which operators pass torch's samples in full, in part, or not at all."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.torch_samples.judge import Verdict, database, judged, operators


def recorded(record: Path | None) -> dict[str, Verdict]:
    """Verdicts that an earlier run has written, by name; the last one of a name counts."""
    if record is None or not record.exists():
        return {}
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: Verdict(**line) for line in lines}


def report(names: list[str], most: int, show: int, gradients: bool, record: Path | None) -> int:
    known = database()
    verdicts: list[Verdict] = []
    done = recorded(record)
    for name in names:
        started = time.perf_counter()
        verdict = done.get(name) or judged(name, known[name], most, gradients)
        if record is not None and name not in done:
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")
        verdicts.append(verdict)
        taken = time.perf_counter() - started
        total = verdict.passed + len(verdict.wrong) + len(verdict.raised)
        if verdict.state != "full" or len(names) < 20:
            print(f"{verdict.state:8} {name}  {verdict.passed} of {total} ({taken:.1f} s)", flush=True)
        for kind, lines in (("wrong", verdict.wrong), ("raises", verdict.raised)):
            for line in lines[:show]:
                print(f"    {kind} {line}", flush=True)
    counts = Counter(v.state for v in verdicts)
    print(", ".join(f"{count} {state}" for state, count in counts.most_common()), f"of {len(names)}")
    return counts["wrong"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all of names.txt if there are none")
    parser.add_argument("--most", type=int, default=0, help="samples of each operator")
    parser.add_argument("--show", type=int, default=1, help="failures that are told of each")
    parser.add_argument("--without", nargs="*", default=[], help="operators to leave out")
    parser.add_argument("--forward", action="store_true", help="values only, no gradients")
    parser.add_argument("--record", type=Path, help="a file of verdicts; operators in it are not run again")
    parser.add_argument("--part", default="0/1", help="1/4: the second quarter of the names")
    options = parser.parse_args()
    every = operators()
    names = [n for n in every if not options.names or any(n == p or n.startswith(p) for p in options.names)]
    names = [n for n in names if n not in options.without]
    part, parts = map(int, options.part.split("/"))
    names = names[part::parts]
    wrong = report(names, options.most, options.show, not options.forward, options.record)
    sys.exit(wrong > 0)


main()
