"""Products beside the plain one: variants of 512³, narrow types beside torch, float32 on a GPU.

    python benchmarks/products.py [--threads 2] [--rounds 40]           a processor
    DEVICE=CUDA python benchmarks/products.py                           float32 beside cuBLAS

The first table has the same product with a scale, with weights of 8 bits, with a number of rows or steps that
is known later: each as a share of the plain one's time. The second has bfloat16 and int8 (sums of 32 bits)
beside torch, at sizes that are round and at some that are not. Calls are in turns, medians count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

SIZES = ((512, 512, 512), (1024, 1024, 1024), (333, 1000, 700), (16, 2048, 2048), (128, 3072, 768))
ORDERS = ("NN", "NT", "TN")  # as they lie, or the other way round
LARGE = ((4096, 4096, 4096), (3000, 2500, 1777))
Call = Callable[[], Any]


def in_turns(calls: Mapping[str, Call], rounds: int, wait: Call = lambda: None) -> dict[str, float]:
    """The median of each, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 4):
        for name, call in calls.items():
            wait()
            began = time.perf_counter()
            call()
            wait()
            if turn >= 4:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def variants(rounds: int) -> None:
    """512³ as users write it."""
    from morok import Tensor, Variable, jit

    n, random = 512, np.random.default_rng(0)
    a, b = (random.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    scale = random.standard_normal(n).astype(np.float32)
    narrow = random.integers(-128, 128, (n, n)).astype(np.int8)
    x, y, s, w = (Tensor(v).realize() for v in (a, b, scale, narrow))
    tall, wide = (Tensor(np.concatenate([a, a], axis)).realize() for axis in (0, 1))
    long = Tensor(np.concatenate([b, b])).realize()
    rows, steps = Variable("rows", 1, 2 * n).bind(n), Variable("steps", 1, 2 * n).bind(n)
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
        "plain": (lambda x, y: x @ y, (x, y), a @ b),
        "a @ (b * column)": (lambda x, y, s: x @ (y * s), (x, y, s), a @ (b * scale)),
        "a @ (int8 * column)": (lambda x, w, s: x @ (w.cast("float32") * s), (x, w, s), a @ (narrow * scale)),
        "rows known later": (lambda x, y, n: x[:n] @ y, (tall, y, rows), a @ b),
        "steps known later": (lambda x, y, n: x[:, :n] @ y[:n], (wide, long, steps), a @ b),
    }
    calls: dict[str, Call] = {}
    for name, (program, given, want) in programs.items():
        f = jit(program)
        off = [np.abs(f(*given).numpy() - want).max() / np.abs(want).max() for _ in range(2)]
        assert max(off) < 1e-4, (name, off)
        calls[name] = partial(f, *given)
    times = in_turns(calls, rounds)
    for name, took in times.items():
        print(f"{name:<20} {took * 1e3:8.3f} ms, {took / times['plain']:.2f} of plain", flush=True)


def narrow_types(rounds: int) -> None:
    """bfloat16 and int8 beside torch."""
    import torch

    from morok import Tensor, jit

    for m, n, k in SIZES:
        shown = [f"{m}×{n}×{k}"]
        x, w = torch.randn(m, k), torch.randn(n, k) * k**-0.5
        halves = [Tensor(v.numpy()).cast("bfloat16").realize() for v in (x, w)]
        bytes_ = [torch.randint(-128, 128, v.shape, dtype=torch.int8) for v in (x, w)]
        ours = [Tensor(v.numpy()).realize() for v in bytes_]
        xb, wb = x.bfloat16(), w.bfloat16()
        f = jit(lambda a, b: a @ b.T)
        g = jit(lambda a, b: a.cast("int32") @ b.T.cast("int32"))
        want = (xb.double() @ wb.double().T).numpy()
        off = max(np.abs(f(*halves).cast("float32").numpy() - want).max() for _ in range(2))
        whole = torch._int_mm(bytes_[0], bytes_[1].T).numpy()
        equal = all(np.array_equal(g(*ours).numpy(), whole) for _ in range(2))
        rows: dict[str, tuple[Call, Call, str]] = {
            "bfloat16": (partial(f, *halves), partial(torch.matmul, xb, wb.T), f"error {off:.3f}"),
            "int8": (
                partial(g, *ours),
                partial(torch._int_mm, bytes_[0], bytes_[1].T),
                "equal" if equal else "WRONG",
            ),
        }
        for name, (mine, theirs, note) in rows.items():
            times = in_turns({"morok": mine, "torch": theirs}, rounds)
            ratio = times["torch"] / times["morok"]
            shown.append(f"{name} {ratio:.2f} of torch ({times['morok'] * 1e6:.0f} µs, {note})")
        print("  ".join(shown), flush=True)


def on_gpu(rounds: int) -> None:
    """float32 without shorter types beside cuBLAS, in the orders that models have."""
    import torch

    from morok import Tensor, jit

    torch.backends.cuda.matmul.allow_tf32 = False
    for m, n, k in LARGE:
        shown = [f"float32 {m}×{n}×{k}"]
        for order in ORDERS:
            x = torch.randn(*((m, k) if order[0] == "N" else (k, m)), device="cuda")
            w = torch.randn(*((k, n) if order[1] == "N" else (n, k)), device="cuda")
            mine = [Tensor(v.cpu().numpy(), device="CUDA").realize() for v in (x, w)]

            def product(a: Any, b: Any, order: str = order) -> Any:
                return (a if order[0] == "N" else a.T) @ (b if order[1] == "N" else b.T)

            f = jit(product)
            want = product(x.double(), w.double()).cpu().numpy()
            off = max(np.linalg.norm(f(*mine).numpy() - want) / np.linalg.norm(want) for _ in range(2))
            calls = {"morok": partial(f, *mine), "torch": partial(product, x, w)}
            times = in_turns(calls, rounds, torch.cuda.synchronize)
            shown.append(f"{order} {times['torch'] / times['morok']:.2f} of cuBLAS (error {off:.0e})")
        print("  ".join(shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    os.environ.setdefault("MOROK_THREADS", str(args.threads))
    from morok import knobs
    from morok.device.registry import get_device

    device = knobs.default_device()
    if device.startswith("CUDA"):
        on_gpu(args.rounds)
        return
    print(f"{get_device(device).machine.name}, {args.threads} threads", flush=True)
    variants(args.rounds)
    try:
        import torch
    except ImportError:
        print("narrow types are not compared: torch is not installed")
        return
    torch.set_num_threads(args.threads)
    narrow_types(args.rounds)


if __name__ == "__main__":
    main()
