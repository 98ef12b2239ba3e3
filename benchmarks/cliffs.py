"""Programs beside the fast paths: morok, torch and torch.compile in turns, in one process.

Each row is a few lines as a user writes them, once for both libraries. `--seed 0` has the sizes of the table
of cliffs; any other seed draws sizes around them, so that nothing is tuned to the table. Results are compared
with torch's in float64 by ‖out - want‖ / ‖want‖. Medians count; a ratio is the best peer's time over morok's:
more is faster. Rows that end below `--show` are followed by their kernels.

    DEVICE=CUDA python benchmarks/cliffs.py [--only norm,loss] [--seed 3] [--seconds 0.1] [--no-compile]
        [--budget 220] [--show 0.9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

Sizes = dict[str, int]
HALF = "bfloat16"
AWAKE = 0.02  # seconds of its turn before it is timed: threads that slept share a core for a while
PAUSE = 0.03  # seconds before a library's turn on a processor: threads of the other look for work that long
BOUNDS = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-5}


@dataclass(frozen=True)
class Input:
    """A tensor: its sizes by name or number, its type ("" is the row's), what it is filled with."""

    shape: tuple[str | int, ...]
    dtype: str = ""
    scale: float = 1.0
    below: str = ""  # integers: smaller than this size, or number


@dataclass(frozen=True)
class Row:
    """A program, with its sizes on a GPU and on a processor; `targets` are the inputs to differentiate by."""

    name: str
    sizes: dict[str, tuple[int, int]]
    inputs: tuple[Input, ...]
    words: Callable[..., Any]  # of a library and the inputs
    dtype: str = HALF
    targets: tuple[int, ...] = ()
    steps: dict[str, int] = field(
        default_factory=dict
    )  # what sizes are a multiple of, 8 unless told; 0: fixed
    error: float = 0.0
    only: str = ""  # the device that it is for


class Words:
    """What the libraries spell differently."""

    def __init__(self, torch: Any = None) -> None:
        self.torch = torch
        self.f = torch.nn.functional if torch is not None else None

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        return self.f.linear(x, w, b) if self.f is not None else x.linear(w, b)

    def gelu(self, x: Any) -> Any:
        return self.f.gelu(x, approximate="tanh") if self.f is not None else x.gelu(approximate="tanh")

    def silu(self, x: Any) -> Any:
        return self.f.silu(x) if self.f is not None else x.silu()

    def rms_norm(self, x: Any, w: Any) -> Any:
        if self.f is not None:
            return self.f.rms_norm(x, x.shape[-1:], w, 1e-6)
        return x.rms_norm(eps=1e-6) * w

    def layer_norm(self, x: Any, w: Any, b: Any) -> Any:
        if self.f is not None:
            return self.f.layer_norm(x, x.shape[-1:], w, b)
        return x.layer_norm(-1) * w + b

    def cross_entropy(self, x: Any, t: Any) -> Any:
        return self.f.cross_entropy(x, t.long()) if self.f is not None else x.cross_entropy(t)

    def conv(self, x: Any, w: Any) -> Any:
        return self.f.conv2d(x, w, padding=1) if self.f is not None else x.conv2d(w, padding=1)

    def attention(self, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        if self.f is not None:
            return self.f.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    def like(self, x: Any, other: Any) -> Any:
        return x.to(other.dtype) if self.f is not None else x.cast(other.dtype)

    def embedding(self, t: Any, w: Any) -> Any:
        return self.f.embedding(t.long(), w) if self.f is not None else w[t]


def _rope(lib: Words, x: Any, w: Any, c: Any, s: Any) -> Any:
    """A linear layer and rotated pairs of its columns."""
    y = lib.linear(x, w)
    y = y.reshape(y.shape[0], y.shape[1] // 2, 2)
    a, b = y[:, :, 0], y[:, :, 1]
    left, right = a * c - b * s, a * s + b * c
    if lib.torch is not None:
        return lib.torch.stack((left, right), -1).flatten(1)
    return left.stack(right, dim=-1).flatten(1)


def _block(
    lib: Words, x: Any, w1: Any, b1: Any, wq: Any, wp: Any, w2: Any, b2: Any, wu: Any, bu: Any, wd: Any
) -> Any:
    """A block of GPT-2."""
    batch, length, width = x.shape
    heads = width // 64
    qkv = lib.linear(lib.layer_norm(x, w1, b1), wq).reshape(batch, length, 3, heads, 64)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    mixed = lib.attention(q, k, v, True).transpose(1, 2).reshape(batch, length, width)
    x = x + lib.linear(mixed, wp)
    return x + lib.linear(lib.gelu(lib.linear(lib.layer_norm(x, w2, b2), wu, bu)), wd)


def _both(lib: Words, x: Any, w: Any, b: Any) -> Any:
    y = lib.linear(x, w, b)
    return y, lib.gelu(y)


def _mlp(lib: Words, x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return lib.linear(lib.gelu(lib.linear(x, w, b)), v, c)


def _gated(lib: Words, x: Any, g: Any, u: Any) -> Any:
    return lib.silu(lib.linear(x, g)) * lib.linear(x, u)


def _heads_gradient(lib: Words, g: Any, x: Any) -> Any:
    """The weight's gradient of a linear layer whose columns are heads."""
    batch, heads, length, size = g.shape
    rows = g.transpose(1, 2).reshape(batch * length, heads * size)
    return rows.transpose(0, 1) @ x.reshape(batch * length, x.shape[-1])


def rows() -> list[Row]:
    """The table."""
    mn = {"m": (8192, 512), "k": (768, 256), "n": (3072, 1024)}
    square = {"m": (8192, 256), "k": (4096, 512), "n": (4096, 512)}
    x, w, bias = Input(("m", "k")), Input(("n", "k"), scale=0.05), Input(("n",))
    wide = {"m": (4096, 256), "n": (50257, 8192)}
    logits = (Input(("m", "n")), Input(("m",), "int32", below="n"))
    norm = (x, Input(("k",)), Input(("k",)))
    length = {"b": (4, 1), "h": (16, 2), "n": (2048, 256)}
    block = (
        Input((8, "m", "d")), Input(("d",)), Input(("d",)), Input((3, "d", "d"), scale=0.05),
        Input(("d", "d"), scale=0.05), Input(("d",)), Input(("d",)), Input((4, "d", "d"), scale=0.05),
        Input((4, "d")), Input(("d", "d", 4), scale=0.05), Input((8, "m", "d")),
    )  # fmt: skip

    def gpt(
        lib: Words, x: Any, w1: Any, b1: Any, wq: Any, wp: Any, w2: Any, b2: Any, wu: Any, bu: Any, wd: Any
    ) -> Any:
        d = x.shape[-1]
        flat = (
            wq.reshape(3 * d, d),
            wp,
            w2,
            b2,
            wu.reshape(4 * d, d),
            bu.reshape(4 * d),
            wd.reshape(d, 4 * d),
        )
        return _block(lib, x, w1, b1, *flat)

    return [
        Row("linear and its gelu, both wanted", mn, (x, w, bias), _both),
        Row("MLP training", mn,
            (x, w, bias, Input(("k", "n"), scale=0.05), Input(("k",)), x), _mlp, targets=(0, 1, 2, 3, 4)),
        Row("rms norm + linear", square, (x, Input(("k",)), w),
            lambda lib, x, g, w: lib.linear(lib.rms_norm(x, g), w)),
        Row("layer norm + linear, training", square, (*norm, w, Input(("m", "n"))),
            lambda lib, x, g, b, w: lib.linear(lib.layer_norm(x, g, b), w), targets=(0, 1, 2, 3)),
        Row("cross entropy", wide, logits, lambda lib, x, t: lib.cross_entropy(x, t), steps={"n": 1}),
        Row("cross entropy, training", wide, logits, lambda lib, x, t: lib.cross_entropy(x, t), targets=(0,),
            steps={"n": 1}),
        Row("one row, weights as they lie", {"m": (1, 1), "k": (4096, 1024), "n": (14336, 3072)},
            (x, Input(("k", "n"), scale=0.05)), lambda lib, x, w: x @ w, steps={"m": 0}),
        Row("one row, linear", {"m": (1, 1), "k": (4096, 1024), "n": (14336, 3072)},
            (x, w), lambda lib, x, w: lib.linear(x, w), steps={"m": 0}),
        Row("few outputs, long sums", {"m": (256, 64), "k": (65536, 16384), "n": (256, 64)},
            (Input(("m", "k"), scale=0.1), Input(("k", "n"), scale=0.1)), lambda lib, x, w: x @ w,
            "float16"),
        Row("linear, bias, gelu in float32", {"m": (1024, 128), "k": (768, 256), "n": (3072, 1024)},
            (x, w, bias), lambda lib, x, w, b: lib.gelu(lib.linear(x, w, b)), "float32"),
        Row("product with a scale per column", square, (x, Input(("k", "n")), bias),
            lambda lib, x, w, s: x @ (w * s)),
        Row("product with a scale per row of steps", square, (x, Input(("k", "n")), Input(("k", 1))),
            lambda lib, x, w, s: x @ (w * s)),
        Row("weights of 8 bits and a scale", square,
            (x, Input(("k", "n"), "int8"), Input(("n",), scale=0.02)),
            lambda lib, x, w, s: x @ (lib.like(w, x) * s)),
        Row("column sums", {"m": (8192, 2048), "n": (3072, 512)}, (Input(("m", "n")),),
            lambda lib, x: x.sum(0)),
        Row("layer norm training", {"m": (8192, 1024), "k": (768, 256)}, (*norm, x),
            lambda lib, x, g, b: lib.layer_norm(x, g, b), targets=(0, 1, 2)),
        Row("weight gradient behind heads", {"b": (8, 2), "m": (1024, 128), "h": (36, 4), "k": (768, 256)},
            (Input(("b", "h", "m", 64)), Input(("b", "m", "k"))), _heads_gradient, steps={"b": 1, "h": 1}),
        Row("linear and rotated pairs", {"m": (21, 21), "k": (4096, 576), "n": (4096, 576)},
            (x, w, Input((1, "n", 1)), Input((1, "n", 1))),
            lambda lib, x, w, c, s: _rope(lib, x, w, c[:, ::2, 0], s[:, ::2, 0]), steps={"m": 1}),
        Row("gated units, one row", {"m": (1, 1), "k": (4096, 576), "n": (14336, 1536)},
            (x, w, w), _gated, steps={"m": 0}),
        Row("gated units", {"m": (4096, 8), "k": (4096, 576), "n": (14336, 1536)},
            (x, w, w), _gated, steps={"m": 1}),
        Row("product 5000³", {"m": (5000, 500), "k": (5000, 500), "n": (5000, 500)},
            (x, Input(("k", "n"))), lambda lib, x, w: x @ w, "float16"),
        Row("conv 3×3", {"b": (32, 4), "c": (128, 32), "o": (128, 32), "s": (56, 28)},
            (Input(("b", "c", "s", "s")), Input(("o", "c", 3, 3), scale=0.1)),
            lambda lib, x, w: lib.conv(x, w), "float16", steps={"b": 1, "s": 2}),
        *(Row(f"{'causal ' if causal else ''}attention of {width}{', training' if targets else ''}", length,
              (heads := Input(("b", "h", "n", width)), heads, heads, *([heads] if targets else [])),
              lambda lib, q, k, v, causal=causal: lib.attention(q, k, v, causal), targets=targets,
              steps={"b": 1, "h": 1, "n": 64}, error=4e-2)
          for width, causal, targets in product((64, 128), (False, True), ((), (0, 1, 2)))),
        Row("one query over many keys", {"b": (8, 1), "h": (32, 4), "k": (8192, 1024)},
            (Input(("b", "h", 1, 128)), Input(("b", "h", "k", 128)), Input(("b", "h", "k", 128))),
            lambda lib, q, k, v: lib.attention(q, k, v), steps={"b": 1, "h": 1}),
        Row("embedding, training", {"m": (8192, 512), "n": (50257, 2048), "k": (768, 128)},
            (Input(("m",), "int32", below="n"), Input(("n", "k")), x),
            lambda lib, t, w: lib.embedding(t, w), targets=(1,)),
        Row("GPT-2 block, training", {"m": (1024, 64), "d": (768, 128)}, block, gpt,
            targets=tuple(range(10)), steps={"m": 64, "d": 64}, error=4e-2),
    ]  # fmt: skip


def sizes_of(row: Row, gpu: bool, seed: int) -> Sizes:
    """The sizes of the table, or others around them."""
    found = {name: pair[0 if gpu else 1] for name, pair in row.sizes.items()}
    if not seed:
        return found
    random = np.random.default_rng([seed, *row.name.encode()])
    for name, size in found.items():
        step = row.steps.get(name, 8)
        if step:
            found[name] = max(step, round(size * random.uniform(0.5, 1.5) / step) * step)
    return found


class Bench:
    """One device, both libraries."""

    def __init__(self, gpu: bool, seconds: float, compiled: bool) -> None:
        import torch

        from morok.device.registry import get_device

        self.torch, self.gpu, self.seconds, self.compiled = torch, gpu, seconds, compiled
        self.place = "cuda" if gpu else "cpu"
        self.device: Any = get_device("CUDA" if gpu else "CPU")

    def inputs(self, row: Row, sizes: Sizes) -> list[Any]:
        """torch's tensors."""
        torch = self.torch
        generator = torch.Generator(device=self.place).manual_seed(7)
        found = []
        for x in row.inputs:
            shape = [s if isinstance(s, int) else sizes[s] for s in x.shape]
            dtype = x.dtype or (row.dtype if self.gpu else "float32")
            if x.below or dtype == "int8":
                most = int(x.below) if x.below.isdigit() else sizes[x.below] if x.below else 0
                low, high = (0, most) if most else (-127, 128)
                data = torch.randint(low, high, shape, device=self.place, generator=generator)
            else:
                data = torch.randn(shape, device=self.place, generator=generator) * x.scale
            found.append(data.to(getattr(torch, dtype)))
        return found

    def theirs(self, row: Row, inputs: list[Any], compiled: bool) -> Callable[[], Any]:
        torch, lib = self.torch, Words(self.torch)
        targets = set(row.targets)
        xs = [x.detach().requires_grad_(i in targets) for i, x in enumerate(inputs)]

        def forward(*args: Any) -> Any:
            return row.words(lib, *args)

        if compiled:
            torch._dynamo.reset()
            forward = torch.compile(forward, dynamic=False)
        if not targets:
            return lambda: forward(*xs)
        given = _count(row)
        wanted = [xs[i] for i in row.targets]

        def step() -> Any:
            y = forward(*xs[:given])
            return torch.autograd.grad(y, wanted, xs[given] if given < len(xs) else None)

        return step

    def with_cudnn(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """The same with cuDNN's attention, which torch does not take by itself."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def other() -> Any:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                return call()

        return other

    def ours(self, row: Row, inputs: list[Any]) -> Callable[[], Any]:
        import morok

        lib = Words()
        xs = []
        for x in inputs:
            wide = x.float() if x.dtype.is_floating_point else x
            name = str(x.dtype).removeprefix("torch.")
            xs.append(morok.Tensor(wide.cpu().numpy(), device=self.place).cast(name).realize())
        given = _count(row)

        def program(*args: Any) -> Any:
            y = row.words(lib, *args[:given])
            if not row.targets:
                return y
            seed = args[given] if given < len(args) else None
            return tuple(y.gradient(*[args[i] for i in row.targets], gradient=seed))

        function = morok.jit(program)
        return lambda: function(*xs)

    def timed(self, name: str, call: Callable[[], Any]) -> float:
        """Seconds of one call: by events on a GPU, so that the host's time does not count."""
        torch = self.torch
        if name == "morok":
            return float(self.device.measure(call))
        if not self.gpu:
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3

    def error(self, row: Row, inputs: list[Any], got: Any) -> float:
        """The largest error in norm of all results."""
        want = self.theirs(row, [x.double() if x.dtype.is_floating_point else x for x in inputs], False)()
        worst = 0.0
        for g, w in zip(_listed(got), _listed(want), strict=True):
            value = self.torch.from_numpy(np.array(g.cast("float32").numpy())).to(self.place).double()
            norm = w.detach().norm().clamp_min(1e-300)
            worst = max(worst, float((value.reshape(w.shape) - w.detach()).norm() / norm))
        return worst

    def measure(self, row: Row, sizes: Sizes, compiled: bool, show: float) -> dict[str, Any]:
        inputs = self.inputs(row, sizes)
        calls = {"morok": self.ours(row, inputs), "torch": self.theirs(row, inputs, False)}
        found: dict[str, Any] = {"row": row.name, "sizes": sizes}
        began = time.perf_counter()
        result = calls["morok"]()
        found["error"] = self.error(row, inputs, result)
        found["first s"] = time.perf_counter() - began
        bound = row.error or BOUNDS[row.dtype if self.gpu else "float32"]
        found["right"] = found["error"] <= bound
        del result
        if compiled:
            calls["compiled"] = self.theirs(row, inputs, True)
        if self.gpu and "attention" in row.name:
            calls["cudnn"] = self.with_cudnn(self.theirs(row, inputs, False))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name in tuple(calls):
            try:
                for _ in range(3):
                    calls[name]()
            except Exception as failed:  # a peer that cannot do a row must not hide the others
                if name in ("morok", "torch"):
                    raise
                found["compiled failed"] = f"{type(failed).__name__}: {failed}"[:200]
                del calls[name], times[name]
        end = time.perf_counter() + self.seconds * len(calls)
        while len(times["morok"]) < 5 or (time.perf_counter() < end and len(times["morok"]) < 300):
            for name, call in calls.items():
                if not self.gpu:
                    time.sleep(PAUSE)
                    awake = time.perf_counter() + AWAKE
                    while time.perf_counter() < awake:
                        call()
                times[name].append(self.timed(name, call))
        found["times"] = {name: statistics.median(t) for name, t in times.items()}
        others = [t for name, t in found["times"].items() if name != "morok"]
        found["ratio"] = min(others) / found["times"]["morok"]
        if found["ratio"] < show:
            found["kernels"] = self.kernels(calls["morok"])
        return found

    def kernels(self, call: Callable[[], Any]) -> list[tuple[str, float]]:
        """Seconds of every kernel, the slowest first."""
        from morok.runtime.profile import profile

        with profile() as taken:
            for _ in range(3):
                call()
        totals: dict[str, list[float]] = {}
        for event in taken.events:
            totals.setdefault(event.name, []).append(event.seconds)
        return sorted(((name, sum(t) / 3) for name, t in totals.items()), key=lambda p: -p[1])[:8]


def _count(row: Row) -> int:
    """How many inputs the words take: all, but for the gradient that a training row begins with."""
    return len(row.inputs) - (1 if row.targets and row.inputs[-1].dtype != "int32" else 0)


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    times = "  ".join(f"{name} {t * 1e6:9.1f}" for name, t in found["times"].items())
    sizes = "×".join(str(n) for n in found["sizes"].values())
    mark = "ok " if found["right"] else "BAD"
    text = f"{mark} {found['row']:<38} {sizes:<18} ratio {found['ratio']:6.3f}"
    text += f"  µs: {times}  err {found['error']:.0e}"
    for name, seconds in found.get("kernels", ()):
        text += f"\n        {seconds * 1e6:9.1f} µs  {name}"
    return text + (f"\n        {found['compiled failed']}" if "compiled failed" in found else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose names contain one of these words")
    parser.add_argument("--seed", type=int, default=0, help="0: the sizes of the table")
    parser.add_argument("--seconds", type=float, default=0.2, help="time per library and row")
    parser.add_argument("--budget", type=float, default=220.0, help="seconds for all; then rows are left out")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--show", type=float, default=0.9, help="rows below this ratio show their kernels")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    args = parser.parse_args()
    from morok import knobs

    gpu = knobs.default_device().startswith("CUDA")
    if not gpu:
        os.environ.setdefault("MOROK_THREADS", str(args.threads))
    bench = Bench(gpu, args.seconds, not args.no_compile)
    bench.torch.backends.cuda.matmul.allow_tf32 = False
    if not gpu:
        bench.torch.set_num_threads(args.threads)
    wanted = [w for w in args.only.split(",") if w]
    began = time.perf_counter()
    all_rows: list[dict[str, Any]] = []
    for row in rows():
        if (wanted and not any(w in row.name for w in wanted)) or row.only not in ("", bench.place):
            continue
        spent = time.perf_counter() - began
        if spent > args.budget:
            print(f"-   {row.name:<38} left out: {spent:.0f} s are over", flush=True)
            continue
        compiled = not args.no_compile and spent < 0.75 * args.budget
        try:
            found = bench.measure(row, sizes_of(row, gpu, args.seed), compiled, args.show)
            print(line(found), flush=True)
        except Exception as failed:  # one row that fails must not hide the others
            found = {"row": row.name, "failed": f"{type(failed).__name__}: {failed}"[:300]}
            print(f"BAD {row.name:<38} {found['failed']}", flush=True)
        all_rows.append(found)
        if gpu:
            bench.torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps(all_rows, indent=1), encoding="utf-8")
    ratios = [r["ratio"] for r in all_rows if "ratio" in r]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        low = sum(r < 0.6 for r in ratios)
        print(f"geometric mean {mean:.3f} over {len(ratios)} rows, {low} below 0.6, seed {args.seed}")


if __name__ == "__main__":
    main()
