"""`make mutate`: all mutants, each in a process of its own; prints the score and the survivors."""

from __future__ import annotations

import argparse
import os
import random
import sys

# Before anything of morok is imported: machine code of a mutant must not be kept for anybody else.
os.environ["MOROK_CACHE"] = "0"
os.environ.setdefault("MOROK_SPEC", "2")

from tests.mutation import kill
from tests.mutation.reports import read, report
from tests.mutation.run import every_mutant, measured, run
from tests.mutation.suite import Suite, inside


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--rule", default="", help="only mutants whose name has this text")
    parser.add_argument("--sample", type=int, default=0, help="so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", default="", help="append verdicts there as they come, one a line")
    parser.add_argument(
        "--resume", default="", help="leave out whom this file has a verdict on, and count it"
    )
    parser.add_argument(
        "--only-survivors", default="", help="judge again whom this file says to have survived"
    )
    parser.add_argument("--report", default="", help="only count what such a file says")
    parser.add_argument("--costs", default="", help="keep there what judges cost, which is measured first")
    parser.add_argument("--list", action="store_true", help="only name the mutants")
    args = parser.parse_args()
    every = every_mutant()
    chosen = [m for m in every if args.rule in m.id]
    known = read(args.report or args.resume or args.only_survivors)
    if args.report:
        return report({m.id: known[m.id] for m in every if m.id in known}, 0.0)
    if args.only_survivors:
        chosen = [m for m in chosen if m.id in known and known[m.id].status == kill.SURVIVED]
    if args.sample:
        chosen = random.Random(args.seed).sample(chosen, min(args.sample, len(chosen)))
    kept = {m.id: known[m.id] for m in every if m.id in known}
    if args.resume:
        chosen = [m for m in chosen if m.id not in kept]
    else:
        kept = {}
    random.Random(0).shuffle(chosen)  # what has been judged is a fair sample, whenever a run ends
    if args.list:
        print("\n".join(m.id for m in chosen), f"\n{len(chosen)} mutants")
        return 0

    def then(suite: Suite) -> int:
        baseline = measured(suite, args.jobs, chosen, args.costs)
        results, seconds = run(chosen, args.jobs, baseline, args.json)
        return report({**kept, **results}, seconds)

    return inside([p for paths in kill.ALL_TESTED_BY.values() for p in paths], then)


if __name__ == "__main__":
    sys.exit(main())
