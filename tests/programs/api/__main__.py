"""Many random programs, in processes that may crash: `python -m tests.programs.api --count 20000`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from typing import IO, Any


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
    from tests.programs.api.judge import judge

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
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.programs.api", "--worker", "--steps", str(self.options.steps)]
        command += ["--no-shrink"] * self.options.no_shrink
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def send(self, seed: int) -> None:
        self.seed = seed
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
        return {
            "seed": self.seed,
            "kind": "crashed",
            "message": f"the process ended with {code}",
            "ops": {},
            "types": {},
        }

    def stop(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def environment() -> dict[str, str]:
    """One thread for each process, and no kernels kept: hardly any of them is seen twice."""
    return {
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
        from tests.programs.api.judge import draw_any

        for seed in range(options.seed, options.seed + options.count):
            print(f"# seed {seed}\n{draw_any(seed, options.steps)}\n")
        return None
    sys.exit(run_all(options))


def run_all(options: argparse.Namespace) -> int:
    import selectors

    started = time.monotonic()
    seeds = iter(range(options.seed, options.seed + options.count))
    kinds: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    types: Counter[str] = Counter()
    with selectors.DefaultSelector() as selector:
        workers = [Worker(options) for _ in range(min(options.jobs, options.count))]
        for each in workers:
            each.send(next(seeds))
            selector.register(each.process.stdout, selectors.EVENT_READ, each)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select():
                each = key.data
                selector.unregister(key.fileobj)
                result = each.receive()
                kinds[result["kind"]] += 1
                ops.update(result["ops"])
                types.update(result["types"])
                if result["kind"] != "right":
                    messages[f"{result['kind']}: {family(result['message'])}"] += 1
                    tell(result, options)
                if sum(kinds.values()) % 500 == 0:
                    print(
                        f"… {sum(kinds.values())} in {time.monotonic() - started:.0f} s: {dict(kinds)}",
                        flush=True,
                    )
                seed = next(seeds, None)
                late = options.seconds and time.monotonic() - started > options.seconds
                if seed is not None and not late:
                    each.send(seed)
                    selector.register(each.process.stdout, selectors.EVENT_READ, each)
        for each in workers:
            each.stop()
    return summary(kinds, messages, ops, types, time.monotonic() - started)


def tell(result: dict[str, Any], options: argparse.Namespace) -> None:
    text = f"\n# seed {result['seed']}: {result['kind']}: {result['message']}\n{result.get('program', '')}\n"
    print(text, flush=True)
    if options.log:
        with open(options.log, "a", encoding="utf-8") as file:
            file.write(text)


def summary(
    kinds: Counter[str], messages: Counter[str], ops: Counter[str], types: Counter[str], seconds: float
) -> int:
    total = sum(kinds.values())
    for message, count in messages.most_common():
        print(f"{count:6} {message}")
    print("types:", ", ".join(f"{name} {count}" for name, count in types.most_common()))
    print("ops:", ", ".join(f"{name} {count}" for name, count in ops.most_common()))
    print(
        f"{total} programs in {seconds:.0f} s on {os.environ.get('DEVICE', 'CPU')}: {kinds['wrong']} wrong,"
        f" {kinds['refused']} refused, {kinds['raised']} raised what is no MorokError,"
        f" {kinds['crashed']} crashed"
    )
    return int(total != kinds["right"])


if __name__ == "__main__":
    main()
