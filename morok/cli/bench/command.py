"""The CPU benchmark: morok beside NumPy and every other peer that is installed.

All get the same inputs in the same process and take turns; results are checked against NumPy before anything
is timed; the best of the repeats counts. A ratio is the time of the best peer over morok's: more is faster.
The limits of the machine, multiply-adds in registers and copies of memory, are measured in the same run.
"""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace

from morok.errors import ArgumentError

NAME = "bench"
FAST = ("morok", "numpy", "torch")  # those that compile nothing, or quickly
HELP = "the speed of compiled code on the CPU, beside every peer that is installed"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        default="",
        metavar="ROWS",
        help="rows that begin like one of these, with commas; curves; memory",
    )
    parser.add_argument(
        "--peers",
        default="",
        metavar="NAMES",
        help="torch, torch.compile, jax, tinygrad, with commas (default: all that are installed)",
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="for everybody (default: all cores)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.5,
        metavar="S",
        help="measure so long per library and row (default: 0.5)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="after so many the slow peers are left out (default: 10)",
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write everything there")
    parser.add_argument("--plot", default="", metavar="FILE", help="write a roofline there, as SVG")
    parser.add_argument("--no-curves", action="store_true", help="leave out the growth of cost with size")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory of the models")
    parser.add_argument(
        "--roofline",
        metavar="SCRIPT",
        default="",
        help="instead: run this script, or demo, and print its kernels beside what the machine allows",
    )
    parser.add_argument("arguments", metavar="...", nargs=REMAINDER, help="passed on to that script")


def run(args: Namespace) -> int:
    import os

    if args.roofline:
        from morok.cli.bench.roofline import show_roofline

        return show_roofline(args.roofline, args.arguments)
    if args.arguments:
        raise ArgumentError(f"{' '.join(args.arguments)!r} is nothing that this command takes")

    from morok.device.registry import default_device
    from morok.errors import DeviceError

    device = default_device()
    if device != "CPU":
        place = "benchmarks/gpu.py measures GPUs" if device.startswith("CUDA") else "nothing measures that"
        raise DeviceError(f"this benchmark is one of the CPU, and DEVICE says {device}; {place}")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    threads = args.threads or len(cores) or os.cpu_count() or 1
    if cores and threads < len(cores):
        # before anything that starts threads is loaded: libraries count the cores that they may use
        os.sched_setaffinity(0, cores[:threads])
    from morok import knobs

    with knobs.override(DEVICE="CPU", THREADS=threads):
        return _run(args, threads)


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _run(args: Namespace, threads: int) -> int:
    import json
    import platform
    import time

    from morok.cli.bench.curves import curves, show
    from morok.cli.bench.libraries import Broken, libraries, reason
    from morok.cli.bench.memory import peaks
    from morok.cli.bench.report import HEAD, as_json, line, roofline, show_peaks, summary
    from morok.cli.bench.rows import rows
    from morok.cli.bench.timing import run_row
    from morok.device.cpu.limits import measure_limits
    from morok.device.cpu.llvm import host

    chosen = _words(args.only)
    wanted = [row for row in rows(args.quick) if not chosen or row.name.startswith(chosen)]
    if not wanted and not {"curves", "memory"} & set(chosen):
        print("there is no such row; the rows are: " + "; ".join(row.name for row in rows(args.quick)))
        return 2
    libs = libraries(_words(args.peers), threads)
    limits = measure_limits(threads)
    broken = {lib.name: lib for lib in libs if isinstance(lib, Broken)}
    beside = ", ".join(lib.name for lib in libs[1:] if lib.name not in broken)
    roofs = f"{limits.flops / 1e9:.1f} GFLOP/s in registers, {limits.copy / 1e9:.1f} GB/s in a copy"
    print(f"{host().cpu}, {threads} threads: {roofs}; beside {beside}")
    for name, lib in broken.items():
        print(f"{name}: - ({reason(lib.error)})")
    print(HEAD, flush=True)
    results = []
    end = time.perf_counter() + 60 * args.minutes
    for row in wanted:
        late = time.perf_counter() > end
        if late and len(libs) > len(fast := [lib for lib in libs if lib.name in FAST]):
            print(f"the time is over: only {', '.join(FAST)} from here on")
            libs = fast
        results.append(run_row(row.make(), libs, args.seconds))
        print(line(results[-1], limits), flush=True)
    limits = limits.raised(measure_limits(threads))  # somebody else may have been at work the first time
    print(summary(results, limits), flush=True)
    all_of_it = not chosen
    grown = []
    if (all_of_it or "curves" in chosen) and not args.no_curves:
        grown = curves(libs, args.quick, args.seconds / 2)
        print("\n".join(map(show, grown)), flush=True)
    taken = {}
    if (all_of_it or "memory" in chosen) and not args.no_memory:
        models = [row.name for row in rows(args.quick) if row.name.startswith(("ResNet", "GPT"))]
        taken = peaks(
            models,
            [lib.name for lib in libs if lib.name in ("morok", "torch") and lib.name not in broken],
            args.quick,
            threads,
        )
        print(show_peaks(taken), flush=True)
    if args.json:
        about = {"cpu": host().cpu, "threads": threads, "python": platform.python_version()}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(as_json(results, limits, grown, taken, about), file, indent=1)
    if args.plot:
        with open(args.plot, "w", encoding="utf-8") as file:
            file.write(roofline(results, limits))
    return 0
