"""`make mutate`: all mutants, each in a process of its own, two at a time; prints the score and survivors."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from morok.proof.rulebook import all_rules, load_registry
from tests.mutation import code, terms
from tests.mutation.kill import checks, kill_code, kill_term, modules
from tests.mutation.reasons import SURVIVORS

LIMIT = 300.0  # seconds, after which a mutant that never ends counts as noticed


def every_mutant() -> list[Any]:
    """All of them, in one order."""
    load_registry()
    found: list[Any] = []
    for rule in all_rules():
        if rule.unproved is None and not rule.is_code:
            found += terms.mutants(rule)
    for module in modules():
        found += code.mutants(module)
    return found


def judge_one(mutant: Any, known: list[Any]) -> tuple[str, str]:
    """The verdict on a mutant, in this process."""
    return kill_term(mutant) if isinstance(mutant, terms.TermMutant) else kill_code(mutant, known)


def run(mutants: Sequence[Any], jobs: int, told: Any = None) -> dict[str, tuple[str, str]]:
    """Forks a process for each."""
    known = checks(all_rules())
    waiting = list(reversed(mutants))
    running: dict[int, tuple[Any, int, float]] = {}  # by the pipe's number: mutant, process, end
    results: dict[str, tuple[str, str]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            pipe, process = _start(mutant, known)
            running[pipe] = mutant, process, time.monotonic() + LIMIT
        ready, _, _ = select.select(list(running), [], [], 1.0)
        now = time.monotonic()
        late = [pipe for pipe, (_, _, end) in running.items() if end < now and pipe not in ready]
        for pipe in [*ready, *late]:
            mutant, process, _ = running.pop(pipe)
            results[mutant.id] = _finish(pipe, process, pipe in late)
            if told is not None:
                told(mutant, results[mutant.id])
    return results


def _start(mutant: Any, known: list[Any]) -> tuple[int, int]:
    sys.stdout.flush()
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    try:
        os.close(reader)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        try:
            verdict = judge_one(mutant, known)
        except BaseException as error:
            verdict = ("killed", f"{type(error).__name__}: {error}")
        os.write(writer, pickle.dumps(verdict)[:60_000])
    finally:
        os._exit(0)


def _finish(pipe: int, process: int, late: bool) -> tuple[str, str]:
    if late:
        os.kill(process, signal.SIGKILL)
    with os.fdopen(pipe, "rb") as file:
        data = b"" if late else file.read()
    os.waitpid(process, 0)
    if late:
        return "killed", f"did not end within {LIMIT:.0f} s"
    return pickle.loads(data) if data else ("killed", "the process died")


def settled(mutant: Any, verdict: tuple[str, str]) -> tuple[str, str]:
    """A survivor with a written reason is one that may."""
    if verdict[0] == "survived" and mutant.id in SURVIVORS:
        return "equivalent", f"written: {SURVIVORS[mutant.id]}"
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--rule", default="", help="only mutants whose name has this text")
    parser.add_argument("--sample", type=int, default=0, help="so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", default="", help="write all verdicts there")
    parser.add_argument("--list", action="store_true", help="only name the mutants")
    args = parser.parse_args()
    chosen = [m for m in every_mutant() if args.rule in m.id]
    if args.sample:
        chosen = random.Random(args.seed).sample(chosen, min(args.sample, len(chosen)))
    if args.list:
        print("\n".join(m.id for m in chosen), f"\n{len(chosen)} mutants")
        return 0
    start = time.monotonic()

    def told(mutant: Any, verdict: tuple[str, str]) -> None:
        status, by = settled(mutant, verdict)
        if status != "killed":
            print(f"{status}: {mutant.id}" + (f"  ({by})" if by else ""), flush=True)

    raw = run(chosen, args.jobs, told)
    results = {m.id: settled(m, raw[m.id]) for m in chosen}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=0, ensure_ascii=False)
    return report(results, time.monotonic() - start)


def report(results: dict[str, tuple[str, str]], seconds: float) -> int:
    counts = Counter(status for status, _ in results.values())
    by = Counter("prover" if w.startswith("prover") else "tests" if w.startswith("tests") else "at once"
                 for s, w in results.values() if s == "killed")  # fmt: skip
    counted = counts["killed"] + counts["survived"]
    score = 100 * counts["killed"] / counted if counted else 100.0
    how = ", ".join(f"{n} by {who}" if who != "at once" else f"{n} at once" for who, n in by.most_common())
    print(f"{len(results)} mutants: {counts['killed']} killed ({how}), {counts['equivalent']} equivalent, "
          f"{counts['survived']} survived; {score:.1f} % killed, in {seconds:.0f} s")  # fmt: skip
    return int(score < 98.0)


if __name__ == "__main__":
    sys.exit(main())
