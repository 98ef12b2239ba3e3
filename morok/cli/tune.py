"""`morok tune`: run a script, search for the fastest form of every kernel it runs, and say what was won.

`morok tune --machine` measures the processor instead (`tune_machine.py`).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from morok.cli.script import add_script, run_script
from morok.errors import MorokError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from morok.runtime.plan_ab_test import ABResult
    from morok.runtime.tuning import Tuned

NAME = "tune"
HELP = "run a script, search for faster kernels, and print what was won"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--width", type=int, default=4, metavar="N", help="candidates that are kept per round (default: 4)"
    )
    parser.add_argument(
        "--seconds", type=int, default=30, metavar="S", help="seconds per kernel (default: 30)"
    )
    parser.add_argument(
        "--machine", action="store_true", help="measure this processor, and keep its rates for the planner"
    )
    add_script(parser, optional=True)


def run(args: Namespace) -> int:
    from morok import knobs
    from morok.cli import tune_machine
    from morok.runtime.tuning import tuner

    if args.machine:
        if args.script is not None:
            raise MorokError("--machine measures the processor, and takes no script")
        return tune_machine.run()
    if args.script is None:
        raise MorokError("give a script to tune, or --machine")

    start, plans = len(tuner.history), len(tuner.ab_results)
    try:
        with knobs.override(BEAM=args.width, BEAM_SECONDS=args.seconds):
            run_script(args.script, args.arguments)
    finally:
        if len(tuner.history) > start:  # what an error has stopped is told too
            print(table(tuner.history[start:], tuner.ab_results[plans:]))
    if len(tuner.history) == start:
        print(table(()))
    if knobs.CACHE.value and len(tuner.history) > start:
        print(f"Kept on disk: with BEAM={args.width} the script finds these kernels without a search.")
    return 0


def table(history: Sequence[Tuned], ab_results: Sequence[ABResult] = ()) -> str:
    """What was won, for people: the kernels that take longest first, then the plans that they run in."""
    if not history:
        return "The script runs no kernel that can be tuned."
    rows = sorted(history, key=lambda t: -t.found.before)
    lines = [f"{'kernel':<28} {'line':<24} {'before':>12} {'after':>12} {'ratio':>6}  tried"]
    for tuned in rows:
        found = tuned.found
        tried = f"{found.tried}" if tuned.searched else "found on disk"
        tried += ", the machine was busy" if found.contended else ""
        lines.append(
            f"{tuned.name:<28.28} {tuned.place or '-':<24.24} {found.before * 1e6:>9.1f} µs "
            f"{found.after * 1e6:>9.1f} µs {found.ratio:>6.2f}  {tried}"
        )
    faster = sum(t.found.ratio > 1 for t in rows)
    lines.append(f"{faster} of {len(rows)} kernels are faster than what the heuristics chose")
    lines += [f"plan: {ab_result}" for ab_result in ab_results]
    return "\n".join(lines)
