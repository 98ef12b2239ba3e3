"""What a search wins over the heuristics: the rows of the CPU table, or of the GPU table, once with each.

Both are timed in turns, as replayed plans, after the results were compared. A search gets so many seconds for
every kernel of a row; with --total the seconds are cut so that all rows fit, and what a row got is printed.

    python benchmarks/beam.py [--device cuda] [--width 4] [--seconds 30] [--total 540] [--only sum,softmax]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from morok import knobs
from morok.device.registry import get_device
from morok.device.tuning.worker import is_same
from morok.errors import MorokError
from morok.optimize.search.race import PairedTiming, uncontended_turns
from morok.runtime.tuning import tuner
from morok.tensor.jit.jit import jit
from morok.tensor.tensor import Tensor

HEATS = 3
RACE_SECONDS = 2.0  # at most, for one of them
LONG_RACE = 60.0  # for calls that are too long for these
OVERHEAD = 4.0  # seconds of a row besides its search: data, first calls, the race
KERNELS = 1.2  # of a row that has not been looked at yet
USED = 0.6  # of its time: most searches end before
SHORT = 2e-4  # seconds: calls that are also timed one by one
SINGLES = 60
COMPLAINTS = 8  # different ones of a kernel's candidates that are written down
PATTERN = 1 << 24  # random numbers, repeated where there are more


@dataclass(frozen=True)
class Case:
    """One row: how its inputs are made, and the function of them."""

    name: str
    make: Callable[[], tuple[list[Any], Callable[..., Any]]]  # its data may be large
    knobs: dict[str, Any] = field(default_factory=dict)


def gpu_cases() -> list[Case]:
    """The rows of `benchmarks/gpu.py`."""
    from gpu import Work, works

    def make(work: Work) -> tuple[list[Any], Callable[..., Any]]:
        random = np.random.default_rng(7)
        found = []
        for shape in work.shapes:
            pattern = random.standard_normal(min(PATTERN, math.prod(shape)), dtype=np.float32) * work.scale
            data = np.resize(pattern.astype(np.float32), shape)
            found.append(Tensor(data, device="cuda").cast(work.dtype).realize())
        return found, work.morok

    # Two kernels, of which the second is over before a host could start it: what is hard to time.
    small = Work("sum 16M", ((1 << 24,),), lambda a: a.sum(), lambda t, a: a.sum())
    return [Case(work.name, partial(make, work), work.knobs) for work in (small, *works())]


def cpu_cases(models: bool) -> list[Case]:
    """The rows of `morok bench`."""
    from morok.cli.bench.libraries import Morok, mapped
    from morok.cli.bench.rows import Row, rows

    library = Morok()

    def make(row: Row) -> tuple[list[Any], Callable[..., Any]]:
        work = row.make()
        function = work.function
        return [mapped(library.tensor, v) for v in work.inputs], lambda *xs: function(library, *xs)

    wanted = [r for r in rows(False) if models or not r.name.startswith(("ResNet", "GPT"))]
    return [Case(row.name, partial(make, row)) for row in wanted]


# --- one row


def check(got: Any, want: Any) -> None:
    """Equal, up to the order of sums and what a type rounds."""
    pairs = [(got, want)] if not isinstance(got, list | tuple) else list(zip(got, want, strict=True))
    for a, b in pairs:
        if not is_same(a.numpy().reshape(-1), b.numpy().reshape(-1)):
            raise SystemExit("the results of the tuned plan differ from those of the heuristics' plan")


def compare(
    device: Any, calls: list[Callable[[], Any]], settings: list[dict[str, Any]]
) -> tuple[PairedTiming, list[float]]:
    """The middle one of some heats; and medians of single calls in turns, where calls are short."""

    def clock(call: Callable[[], Any], options: dict[str, Any]) -> Callable[[int], float]:
        def burst(count: int) -> None:
            for _ in range(count):
                call()

        def seconds(count: int) -> float:
            with knobs.override(**options):
                return float(device.measure(lambda: burst(count)))

        return seconds

    old, new = map(clock, calls, settings)
    timings: list[PairedTiming] = []
    for seconds in (*[RACE_SECONDS] * HEATS, LONG_RACE):
        if seconds < LONG_RACE or not timings:
            now = time.perf_counter
            timing = uncontended_turns("plan", old, new, now, now() + seconds, device.listen, time.sleep)
            timings += [] if timing is None else [timing]
    timings = [timing for timing in timings if not timing.contended] or timings
    middle = sorted(timings, key=lambda h: h.ratio)[len(timings) // 2]
    singles: list[float] = []
    if middle.before < SHORT:
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(SINGLES):
            for times, watch in zip(taken, (old, new), strict=True):
                times.append(watch(1))
        singles = [median(times) for times in taken]
    return middle, singles


def run(case: Case, device: Any, width: int, allowed: Callable[[int], float]) -> dict[str, Any]:
    """One row: the heuristics' plan, the search, the race between both."""
    tensors, function = case.make()
    lazy = function(*tensors)
    first = lazy[0] if isinstance(lazy, list | tuple) else lazy
    kernels = len(first.prepare())
    del lazy, first
    seconds = max(1, int(allowed(kernels)))
    plain, tuned = jit(function), jit(function)
    settings = [{**case.knobs, "BEAM": beam, "BEAM_SECONDS": seconds} for beam in (0, width)]
    with knobs.override(**settings[0]):
        want = plain(*tensors)
    start, plans = len(tuner.history), len(tuner.ab_results)
    started = time.perf_counter()
    with knobs.override(**settings[1]):
        got = tuned(*tensors)
        device.synchronize()
    took = time.perf_counter() - started
    check(got, want)
    del got, want
    history, ab_results = tuner.history[start:], tuner.ab_results[plans:]

    kept = {key for ab_result in ab_results for key in ab_result.kept}
    raced = any(t.found.race for t in history)
    timing, singles = compare(device, [lambda: plain(*tensors), lambda: tuned(*tensors)], settings)
    return {
        "work": case.name, "kernels": kernels, "seconds per kernel": seconds, "search s": took,
        "heuristics s": timing.before, "beam s": timing.after, "ratio": timing.ratio, "spread": timing.spread,
        "wins": timing.wins, "same": not raced or (bool(ab_results) and not kept),
        "contended": timing.contended, "single calls s": singles, "plan": [str(v) for v in ab_results],
        "tuned": [
            {"name": t.name, "tried": t.found.tried, "failed": t.found.failed, "ratio": t.found.ratio,
             "complete": t.found.complete, "race": [str(h) for h in t.found.race],
             "complaints": list(t.complaints)[:COMPLAINTS], "opts": " ".join(map(str, t.found.opts))}
            for t in history
        ],
    }  # fmt: skip


def show(row: dict[str, Any]) -> str:
    tried = "+".join(str(t["tried"]) for t in row["tuned"])
    failed = sum(t["failed"] for t in row["tuned"])
    alone = ", ".join(f"{t['ratio']:.2f}" for t in row["tuned"])
    # Where the heuristics' kernels stay, the same code ran twice, and the ratio shows how noise looks here.
    slower = row["ratio"] > 1.02 and row["ratio"] - 3 * row["spread"] > 1.0
    single = "  single " + " → ".join(f"{s * 1e6:.1f}" for s in row["single calls s"])
    nothing = "".join(
        f" nothing worked: {t['complaints'][:1]}" for t in row["tuned"] if t["failed"] == t["tried"]
    )
    mark = "busy" if row["contended"] else "same" if row["same"] else "SLOWER" if slower else "ok"
    return (
        f"{mark:<6} {row['work']:<38} {row['heuristics s'] * 1e6:>9.1f} → "
        f"{row['beam s'] * 1e6:>9.1f} µs  ratio {row['ratio']:.3f} ± {row['spread']:.3f} "
        f"won {row['wins']:.0%}{single if row['single calls s'] else ''}  search {row['search s']:.0f} s "
        f"({row['kernels']} × {row['seconds per kernel']} s, tried {tried or 0}, failed {failed}, "
        f"alone {alone or '-'}) {'; '.join(row['plan'])}{nothing}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="whose table")
    parser.add_argument("--width", type=int, default=4, help="of the beam")
    parser.add_argument("--seconds", type=float, default=30.0, help="for every kernel")
    parser.add_argument("--total", type=float, default=math.inf, help="seconds for everything")
    parser.add_argument("--only", default="", help="rows whose names contain one of these, by commas")
    parser.add_argument("--models", action="store_true", help="the models too (CPU): many kernels each")
    parser.add_argument("--json", default="", help="where to write all figures")
    args = parser.parse_args()
    started = time.perf_counter()
    cases = gpu_cases() if args.device == "cuda" else cpu_cases(args.models)
    wanted = [w for w in args.only.split(",") if w]
    cases = [c for c in cases if not wanted or any(w in c.name for w in wanted)]
    found: list[dict[str, Any]] = []
    with knobs.override(DEVICE=args.device.upper()):
        try:
            device = get_device(args.device.upper())
        except MorokError as error:
            raise SystemExit(f"there is nothing to search on: {error}") from None
        for number, case in enumerate(cases):

            def allowed(kernels: int, number: int = number) -> float:
                others = len(cases) - number - 1
                left = args.total - (time.perf_counter() - started) - OVERHEAD * (others + 1)
                return float(min(args.seconds, left / (kernels + USED * KERNELS * others)))

            try:
                row = run(case, device, args.width, allowed)
                print(show(row), flush=True)
            except Exception as error:  # one row that fails must not hide the others
                row = {"work": case.name, "failed": f"{type(error).__name__}: {error}"[:300]}
                print(f"BAD    {case.name:<38} {row['failed']}", flush=True)
            found.append(row)
            gc.collect()
            if args.json:
                with open(args.json, "w", encoding="utf-8") as file:
                    json.dump(found, file, indent=1)
    rated = [row for row in found if "ratio" in row]
    ratios = [1.0 if row["same"] else row["ratio"] for row in rated]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(
            f"{len(ratios)} rows: beam / heuristics {mean:.3f} on average, {max(ratios):.3f} at worst; "
            f"{sum(r < 0.98 for r in ratios)} faster, {sum(r > 1.02 for r in ratios)} slower by 2 %, "
            f"{sum(row['same'] for row in rated)} with the heuristics' kernels; "
            f"{time.perf_counter() - started:.0f} s in all"
        )


if __name__ == "__main__":
    main()
