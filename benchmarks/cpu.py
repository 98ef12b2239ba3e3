"""The speed of compiled code on the CPU: morok beside NumPy and every other peer that is installed.

All get the same inputs in the same process and take turns; results are checked against NumPy before anything
is timed; the best of the repeats counts. A ratio is the time of the best peer over morok's: more is faster.
Limits are measured too: multiply-adds as the best matrix product of anybody, memory as the best copy.

    python benchmarks/cpu.py [--only matmul,softmax] [--seconds 1.0] [--small] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """One row: what is computed, in the words of each library, and what it costs at least."""

    name: str
    inputs: tuple[Array, ...]
    numpy: Callable[..., Array]
    morok: Callable[..., Any]
    torch: Callable[..., Any] | None = None  # the first argument is the module
    flops: float = 0.0
    bytes: float = 0.0


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def _convolution(x: Array, w: Array, stride: int, padding: int) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.tensordot(windows, w, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def works(small: bool) -> list[Work]:
    """The table. `small` keeps the shapes' character and makes them quick."""
    random = np.random.default_rng(0)
    scale = 4 if small else 1

    def data(*sizes: int) -> Array:
        return random.standard_normal(sizes, dtype=np.float32)

    squares = (128, 255, 256) if small else (256, 512, 1000, 1023, 1024, 2048)
    found = [
        Work(f"matmul {n}", (data(n, n), data(n, n)), np.matmul, lambda a, b: a @ b,
             lambda t, a, b: a @ b, 2.0 * n**3, 12.0 * n * n)
        for n in squares
    ]  # fmt: skip
    n = (16 << 20) // scale**2
    x, y, z = data(n), data(n), data(n)
    chain_bytes = 16.0 * n
    found += [
        Work(f"gelu(x*y+z) {n}", (x, y, z), lambda a, b, c: _gelu(a * b + c),
             lambda a, b, c: (a * b + c).gelu(approximate="tanh"),
             lambda t, a, b, c: t.nn.functional.gelu(a * b + c, approximate="tanh"), 12.0 * n, chain_bytes),
        Work(f"x*y+z {n}", (x, y, z), lambda a, b, c: a * b + c, lambda a, b, c: a * b + c,
             lambda t, a, b, c: a * b + c, 2.0 * n, chain_bytes),
        Work(f"x+y {n // 16 + 3}", (x[: n // 16 + 3].copy(), y[: n // 16 + 3].copy()), np.add,
             lambda a, b: a + b, lambda t, a, b: a + b, n / 16, 12.0 * n / 16),
        Work(f"sum {n}", (x,), lambda a: a.sum(dtype=np.float64).astype(np.float32), lambda a: a.sum(),
             lambda t, a: a.sum(), n, 4.0 * n),
        Work(f"max {n}", (x,), lambda a: a.max(), lambda a: a.max(), lambda t, a: a.max(), n, 4.0 * n),
    ]  # fmt: skip
    side = 4096 // scale
    m = data(side, side)
    for axis in (0, 1):
        found.append(
            Work(f"sum over axis {axis}, {side}²", (m,), lambda a, axis=axis: a.sum(axis, dtype=np.float64),
                 lambda a, axis=axis: a.sum(axis), lambda t, a, axis=axis: a.sum(axis),
                 side * side, 4.0 * side * side)
        )  # fmt: skip
    found.append(
        Work(f"transpose {side}²", (m,), lambda a: np.ascontiguousarray(a.T),
             lambda a: a.transpose(0, 1).contiguous(), lambda t, a: a.t().contiguous(), 0.0,
             8.0 * side * side)
    )  # fmt: skip
    for rows, columns in ((side, 1024 // scale), (side // 4, 1023)):
        r = data(rows, columns)
        size = 8.0 * rows * columns
        found += [
            Work(f"softmax {rows}×{columns}", (r,), _softmax, lambda a: a.softmax(-1),
                 lambda t, a: t.softmax(a, -1), 5.0 * rows * columns, size),
            Work(f"layer norm {rows}×{columns}", (r,), _norm, lambda a: a.layer_norm(-1),
                 lambda t, a: t.nn.functional.layer_norm(a, a.shape[-1:]), 6.0 * rows * columns, size),
        ]  # fmt: skip
    for channels, image, kernel, stride in (
        (64 // scale, 56 // scale, 3, 1),
        (64 // scale, 56 // scale, 1, 1),
    ):
        w = data(channels, channels, kernel, kernel)
        p = kernel // 2
        out = (image + 2 * p - kernel) // stride + 1
        found.append(
            Work(f"conv {kernel}×{kernel}, 8×{channels}×{image}²", (data(8, channels, image, image), w),
                 lambda a, b, s=stride, p=p: _convolution(a, b, s, p),
                 lambda a, b, s=stride, p=p: a.conv2d(b, stride=s, padding=p),
                 lambda t, a, b, s=stride, p=p: t.nn.functional.conv2d(a, b, stride=s, padding=p),
                 2.0 * 8 * channels * channels * (kernel * out) ** 2)
        )  # fmt: skip
    q, k, v = (data(8, 512 // scale, 64) for _ in range(3))
    found.append(
        Work(f"attention 8×{512 // scale}×64", (q, k, v),
             lambda a, b, c: _softmax(a @ b.transpose(0, 2, 1) * np.float32(0.125)) @ c,
             lambda a, b, c: ((a @ b.transpose(1, 2)) * 0.125).softmax(-1) @ c,
             lambda t, a, b, c: t.softmax((a @ b.transpose(1, 2)) * 0.125, -1) @ c,
             4.0 * 8 * (512 // scale) ** 2 * 64)
    )  # fmt: skip
    found.append(
        Work("MLP 64×784→512→10", (data(64, 784), data(784, 512), data(512, 10)),
             lambda a, b, c: np.maximum(a @ b, 0) @ c, lambda a, b, c: (a @ b).relu() @ c,
             lambda t, a, b, c: t.relu(a @ b) @ c, 2.0 * 64 * (784 * 512 + 5120))
    )  # fmt: skip
    tiny = data(16)
    found.append(
        Work("add of 16 numbers", (tiny, tiny), np.add, lambda a, b: a + b, lambda t, a, b: a + b, 16.0)
    )
    return found


# --- who takes part


def calls(work: Work, compile_torch: bool) -> dict[str, Call]:
    """A function without arguments for each library that is there, morok first."""
    import morok

    function = morok.jit(work.morok)
    tensors = [morok.Tensor(a) for a in work.inputs]
    for t in tensors:
        t.realize()
    found: dict[str, Call] = {"morok": lambda: function(*tensors), "numpy": lambda: work.numpy(*work.inputs)}
    if work.torch is not None and importlib.util.find_spec("torch"):
        import torch

        inputs = [torch.from_numpy(a) for a in work.inputs]
        eager = work.torch

        def run(*xs: Any) -> Any:
            with torch.no_grad():
                return eager(torch, *xs)

        found["torch"] = lambda: run(*inputs)
        if compile_torch:
            compiled = torch.compile(lambda *xs: eager(torch, *xs))
            found["torch.compile"] = lambda: compiled(*inputs)
    return found


def as_array(x: Any) -> Array:
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x)


def check(work: Work, functions: dict[str, Call]) -> None:
    """Everybody computes the same; sums of n numbers may differ by their order."""
    want = as_array(functions["numpy"]()).astype(np.float64)
    size = max(1.0, float(np.abs(want).max()))
    for name, call in functions.items():
        got = as_array(call()).astype(np.float64)
        worst = float(np.abs(got - want).max()) / size if got.size else 0.0
        if got.shape != want.shape or not worst < 1e-3:
            raise SystemExit(f"{work.name}: {name} differs from NumPy by {worst:.1e} of the largest value")


def measure(functions: dict[str, Call], seconds: float) -> dict[str, float]:
    """The best time of each, in turns, so that all see the same machine."""
    best = dict.fromkeys(functions, math.inf)
    for call in functions.values():
        call()
    loops = {}
    for name, call in functions.items():
        started = time.perf_counter()
        call()
        loops[name] = max(1, int(2e-4 / max(1e-7, time.perf_counter() - started)))
    end = time.perf_counter() + seconds * len(functions)
    rounds = 0
    while time.perf_counter() < end or rounds < 3:
        rounds += 1
        for name, call in functions.items():
            started = time.perf_counter()
            for _ in range(loops[name]):
                call()
            best[name] = min(best[name], (time.perf_counter() - started) / loops[name])
    return best


def copy_limit() -> float:
    """Bytes per second of the best copy of memory, read and written."""
    source = np.ones(16 << 20, np.float32)
    target = np.empty_like(source)
    best = math.inf
    for _ in range(8):
        started = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - started)
    return 2 * source.nbytes / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="names that begin like one of these, with commas")
    parser.add_argument("--seconds", type=float, default=0.6, help="per library and row")
    parser.add_argument("--small", action="store_true", help="sizes for a quick look")
    parser.add_argument("--compile", action="store_true", help="torch.compile as well")
    parser.add_argument("--json", default="", help="write the results here")
    options = parser.parse_args()
    os.environ.setdefault("MOROK_DEVICE", "CPU")
    chosen = tuple(part.strip() for part in options.only.split(",") if part.strip())
    rows = [w for w in works(options.small) if not chosen or w.name.startswith(chosen)]
    bandwidth = copy_limit()
    results: list[dict[str, Any]] = []
    print(f"{'work':<28}{'morok':>11}{'best peer':>24}{'ratio':>8}{'GFLOP/s':>10}{'GB/s':>8}")
    for work in rows:
        functions = calls(work, options.compile)
        started = time.perf_counter()
        functions["morok"]()
        first = time.perf_counter() - started
        check(work, functions)
        times = measure(functions, options.seconds)
        peers = {name: t for name, t in times.items() if name != "morok"}
        winner = min(peers, key=lambda name: peers[name])
        own = times["morok"]
        results.append({
            "work": work.name, "seconds": times, "first_call": first, "ratio": peers[winner] / own,
            "best_peer": winner, "gflops": work.flops / own / 1e9, "gbytes": work.bytes / own / 1e9,
        })  # fmt: skip
        print(
            f"{work.name:<28}{own * 1e3:>8.3f} ms{winner:>13}{peers[winner] * 1e3:>8.3f} ms"
            f"{peers[winner] / own:>8.2f}{work.flops / own / 1e9:>10.1f}{work.bytes / own / 1e9:>8.1f}"
        )
    products = [r for r in results if r["work"].startswith("matmul")]
    peak = max(
        (r["gflops"] * r["seconds"]["morok"] / min(r["seconds"].values()) for r in products), default=0.0
    )
    print(f"limits seen: {peak:.1f} GFLOP/s in the best matrix product, {bandwidth / 1e9:.1f} GB/s in a copy")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": results, "copy_bytes": bandwidth, "peak_gflops": peak}, file, indent=1)


if __name__ == "__main__":
    main()
