"""Many random programs, in processes that may crash: `python -m tests.programs.api --count 20000`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import select
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import IO, Any

from tests.programs.api.judge import draw_any, judge

PATIENCE = 300  # seconds for one program, made small if it fails


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.api", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=1, help="the first program's seed; the others follow")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, default=10, help="the most steps of a program")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long (0: when all are done)")
    parser.add_argument("--log", default="", help="a file to append failures to, as they come")
    parser.add_argument("--show", action="store_true", help="print the programs instead of running them")
    parser.add_argument("--no-shrink", action="store_true", help="print failing programs as they were drawn")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def worker(options: argparse.Namespace) -> None:
    """Seeds come by stdin, one line each; what became of each goes to stdout."""
    faulthandler.enable()
    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        seed = int(line)
        reply.write(json.dumps(judge(seed, options.steps, not options.no_shrink)) + "\n")


class Worker:
    """A process and the seed that it works on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seed: int | None = None
        self.since = 0.0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.programs.api", "--worker", "--steps", str(self.options.steps)]
        command += ["--no-shrink"] * self.options.no_shrink
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def send(self, seed: int) -> None:
        self.seed = seed
        self.since = time.monotonic()
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        try:
            pipe.write(f"{seed}\n")
            pipe.flush()
        except BrokenPipeError:
            pass  # receive tells what became of it

    def receive(self) -> dict[str, Any]:
        pipe: IO[str] = self.process.stdout  # type: ignore[assignment]
        line = pipe.readline()
        if line:
            return dict(json.loads(line))
        code = self.process.wait()
        self.process = self._start()
        return self._failed("crashed", f"the process ended with {code}")

    def give_up(self) -> dict[str, Any]:
        """The program takes too long: another process goes on."""
        self.stop()
        self.process = self._start()
        return self._failed("hung", f"no end after {PATIENCE} s")

    def _failed(self, kind: str, message: str) -> dict[str, Any]:
        program = str(draw_any(self.seed or 0, self.options.steps))
        return {"seed": self.seed, "kind": kind, "message": message, "program": program}

    def stop(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def environment() -> dict[str, str]:
    """One thread for each process, no kernels kept, as hardly any of them is seen twice, and every kernel
    checked before it is lowered: one that is no kernel any more may still compute something."""
    return {
        "MOROK_SPEC": "1",
        "MOROK_CACHE": "0",
        "MOROK_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **os.environ,
    }


def family(message: str) -> str:
    """A message without its numbers, so that equal refusals are counted together."""
    return re.sub(r"\(at .*?\)$", "", re.sub(r"\d+", "N", message.splitlines()[0] if message else ""))[:120]


def main() -> None:
    options = arguments()
    if options.worker:
        return worker(options)
    if options.show:
        for seed in range(options.seed, options.seed + options.count):
            print(f"# seed {seed}\n{draw_any(seed, options.steps)}\n")
        return None
    sys.exit(run_all(options))


@dataclass
class Tally:
    """What became of all programs so far."""

    options: argparse.Namespace
    started: float = field(default_factory=time.monotonic)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def total(self) -> int:
        return self.counts["kind"].total()

    @property
    def late(self) -> bool:
        return bool(self.options.seconds) and time.monotonic() - self.started > self.options.seconds

    def add(self, result: dict[str, Any]) -> None:
        kind = result["kind"]
        self.counts["kind"][kind] += 1
        for part in ("ops", "types", "elements"):
            self.counts[part].update(result.get(part, {}))
        if kind != "right":
            self.counts["message"][f"{kind}: {family(result['message'])}"] += 1
            self.tell(
                f"\n# seed {result['seed']}: {kind}: {result['message']}\n{result.get('program', '')}\n"
            )
        if self.total % 500 == 0:
            print(
                f"… {self.total} in {time.monotonic() - self.started:.0f} s: {dict(self.counts['kind'])}",
                flush=True,
            )

    def tell(self, text: str) -> None:
        print(text, flush=True)
        if self.options.log:
            with open(self.options.log, "a", encoding="utf-8") as file:
                file.write(text)

    def summary(self) -> int:
        for message, count in self.counts["message"].most_common():
            print(f"{count:6} {message}")
        for part in ("types", "ops", "elements"):
            print(f"{part}:", ", ".join(f"{name} {count}" for name, count in self.counts[part].most_common()))
        kinds, seconds = self.counts["kind"], time.monotonic() - self.started
        print(
            f"{self.total} programs in {seconds:.0f} s on {os.environ.get('DEVICE', 'CPU')}:"
            f" {kinds['wrong']} wrong,"
            f" {kinds['refused']} refused, {kinds['raised']} raised what is no MorokError,"
            f" {kinds['crashed']} crashed, {kinds['hung']} hung"
        )
        return int(self.total != kinds["right"])


def run_all(options: argparse.Namespace) -> int:
    tally = Tally(options)
    seeds = iter(range(options.seed, options.seed + options.count))
    busy = [Worker(options) for _ in range(min(options.jobs, options.count))]
    for each in busy:
        each.send(next(seeds))
    while busy:
        pipes = {each.process.stdout: each for each in busy}
        ready, _, _ = select.select(list(pipes), [], [], 5.0)
        done = [(each, each.receive()) for each in (pipes[pipe] for pipe in ready)]
        waiting = [each for each in busy if each.process.stdout not in ready]
        done += [(each, each.give_up()) for each in waiting if time.monotonic() - each.since > PATIENCE]
        for each, result in done:
            tally.add(result)
            seed = None if tally.late else next(seeds, None)
            if seed is None:
                each.stop()
                busy.remove(each)
            else:
                each.send(seed)
    return tally.summary()


if __name__ == "__main__":
    main()
