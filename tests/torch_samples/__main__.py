"""The report: which operators pass torch's samples in full, in part, or not at all."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.torch_samples.judge import Verdict, database, judged, operators


def report(names: list[str], most: int, show: int, gradients: bool) -> int:
    known = database()
    verdicts: list[Verdict] = []
    for name in names:
        started = time.perf_counter()
        verdict = judged(name, known[name], most, gradients)
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
    options = parser.parse_args()
    every = operators()
    names = [n for n in every if not options.names or any(n == p or n.startswith(p) for p in options.names)]
    names = [n for n in names if n not in options.without]
    sys.exit(report(names, options.most, options.show, not options.forward) > 0)


main()
