"""Grouped, depthwise and first convolutions beside torch's (cuDNN), on a GPU: kernel by kernel.

    python benchmarks/grouped.py [--kernels] [case ...]

Kernels are compiled by many processes, then timed one by one on cold buffers, as graphs of launches; torch by
events. The floor is the time of reading and writing everything once at 4.1 TB/s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

# name: batch, channels, side, groups, window, stride, outputs, kinds
CASES: dict[str, tuple[int, int, int, int, int, int, int, str]] = {
    "rx128x56": (32, 128, 56, 32, 3, 1, 128, "fxw"),
    "rx256x28": (32, 256, 28, 32, 3, 1, 256, "fxw"),
    "rx512x14": (32, 512, 14, 32, 3, 1, 512, "fxw"),
    "rx1024x7": (32, 1024, 7, 32, 3, 1, 1024, "fxw"),
    "rx256x56/2": (32, 256, 56, 32, 3, 2, 256, "fxw"),
    "rx512x28/2": (32, 512, 28, 32, 3, 2, 512, "fxw"),
    "rx1024x14/2": (32, 1024, 14, 32, 3, 2, 1024, "fxw"),
    "reg448x28": (32, 448, 28, 28, 3, 1, 448, "fxw"),
    "reg224x56": (32, 224, 56, 28, 3, 1, 224, "fxw"),
    "dw96x56": (32, 96, 56, 96, 3, 1, 96, "w"),
    "dw384x14x7": (32, 384, 14, 384, 7, 1, 384, "w"),
    "dw192x28x5": (32, 192, 28, 192, 5, 1, 192, "w"),
    "first7": (32, 3, 224, 1, 7, 2, 64, "fw"),
    "first3": (32, 3, 224, 1, 3, 2, 32, "fw"),
}


def job(asked: tuple[str, str]) -> Any:
    """The kernels of a case, compiled for an H200: names, actions, memory, code."""
    case, kind = asked
    from dataclasses import replace

    from morok.device.cuda.compile import compile_cubin
    from morok.device.cuda.device import facts_of
    from morok.device.lowering import instructions
    from morok.ir.checks import count_buffers
    from morok.ir.node import toposort
    from morok.ir.ops import Ops
    from morok.optimize.heuristics.apply import optimize
    from morok.optimize.record import applied
    from morok.render.cuda.kernel import render
    from tests.optimize.plans import an_h200, empty

    n, ch, side, groups, k, stride, out, _ = CASES[case]
    try:
        with an_h200() as machine:
            x = empty(n, ch, side, side).requires_grad_()
            w = empty(out, ch // groups, k, k).requires_grad_()
            y = x.conv2d(w, groups=groups, stride=stride, padding=k // 2)
            if kind != "f":
                y = y.gradient({"x": x, "w": w}[kind], gradient=empty(*y.shape))[0]
            found = []
            for kernel in y.plan().kernels:
                ast = optimize(kernel.ast, machine)
                program = render(instructions(ast, machine, "k"), "k", count_buffers(kernel.ast))
                code = replace(facts_of(program), code=compile_cubin(program.text, "sm_90a")).pack()
                memory = {
                    int(m.arg): (m.dtype.size, m.dtype.elem.name)
                    for m in toposort(kernel.ast)
                    if m.op is Ops.DEFINE_GLOBAL
                }
                opts = " ".join(f"{o.name}({o.axis},{o.amount})" for o in applied(ast))
                found.append((kernel.name, opts, [memory[i] for i in sorted(memory)], code))
        return asked, found
    except Exception as error:
        return asked, f"{type(error).__name__}: {error}"


def kernel_time(code: bytes, memory: list[tuple[int, str]]) -> float:
    import morok.dtype as types
    from morok.device.buffer import Buffer
    from morok.device.registry import get_device

    device = get_device("CUDA")
    kernel = device.load(code, "k")
    nbytes = sum(count * getattr(types, name).itemsize for count, name in memory)
    sets = max(1, min(8, -(-120_000_000 // nbytes)))
    turns = []
    for _ in range(sets):
        turns.append(
            [Buffer("CUDA", count, getattr(types, name), device.allocator) for count, name in memory]
        )
        for buffer in turns[-1]:
            _ = buffer.memory
    watch = device.stopwatch(kernel, turns, {})
    watch(sets)
    count = max(sets, min(40, int(2e-3 / max(1e-6, watch(sets) / sets))))
    return statistics.median(watch(count) / count for _ in range(5))


def torch_time(case: str, kind: str) -> float:
    import torch

    n, ch, side, groups, k, stride, out, _ = CASES[case]
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    sets = 4
    xs = [torch.randn(n, ch, side, side, **bf16) for _ in range(sets)]
    w = torch.randn(out, ch // groups, k, k, **bf16)
    p = k // 2
    gs = [torch.randn_like(torch.nn.functional.conv2d(x, w, None, stride, p, 1, groups)) for x in xs]

    def once(i: int) -> None:
        if kind == "f":
            torch.nn.functional.conv2d(xs[i], w, None, stride, p, 1, groups)
            return
        torch.ops.aten.convolution_backward(
            gs[i], xs[i], w, None, [stride] * 2, [p] * 2, [1, 1], False, [0, 0], groups,
            [kind == "x", kind == "w", False],
        )  # fmt: skip

    times = []
    for _ in range(6):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        for i in range(8):
            once(i % sets)
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 8e3)
    return statistics.median(times[1:])


def floor(case: str) -> float:
    n, ch, side, _, _, stride, out, _ = CASES[case]
    return 2 * n * (ch * side * side + out * (side // stride) ** 2) / 4.1e12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--kernels", action="store_true")
    given = parser.parse_args()
    os.environ.update(MOROK_CACHE="0", MOROK_CACHE_PLANS="0")
    started = time.perf_counter()
    asked = [(c, kind) for c in given.cases for kind in CASES[c][7]]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        built = dict(pool.imap_unordered(job, asked))
    print(f"# compiled {len(asked)} in {time.perf_counter() - started:.0f} s", flush=True)
    for case in given.cases:
        for kind in CASES[case][7]:
            beside = torch_time(case, kind)
            line = f"{case:12s} {kind} floor {floor(case) * 1e6:6.1f} torch {beside * 1e6:7.1f} us"
            found = built[case, kind]
            if isinstance(found, str):
                print(f"{line} {found}")
                continue
            times = [kernel_time(code, memory) for _, _, memory, code in found]
            print(f"{line}, morok {sum(times) * 1e6:7.1f} us: {beside / sum(times):.2f}", flush=True)
            for seconds, (name, opts, _, _) in zip(times, found, strict=True) if given.kernels else ():
                print(f"    {seconds * 1e6:7.1f} {name} {opts}", flush=True)
    print(f"# {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
