"""Plain programs drawn from a seed, morok beside torch: looks for cliffs, and prints the worst rows first.

Each family (`hunt_programs.py`, `hunt_layers.py`) is an expression or a small layer as users write them:
sizes, axes and types are drawn, and every round draws each family once. One thread each (or as many as
MOROK_THREADS says: what several threads compute again is not seen with one), in turns, with a pause and a
warm call before each; the best time of a turn counts, and the median of ratios over turns. A ratio is torch's
time over morok's: more is faster. Results are compared with float64's, beside torch's own error. Rows say how
long the first call took, and how much memory a second was touched, were all of it touched once.

    taskset -c 1 python benchmarks/hunt.py [--seed 0] [--rounds 3] [--only cumsum,conv] [--below 0.5]
        [--gradients 0.3] [--seconds 0.02] [--turns 5] [--list]

`--only` takes parts of names, `--row TEXT` the whole name of one row: with EXPLAIN=opts, what became of it.
"""

from __future__ import annotations

import os

os.environ.setdefault("MOROK_THREADS", "1")
import argparse
import math
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hunt_layers  # type: ignore[import-not-found]  # noqa: F401
import numpy as np
from hunt_programs import (  # type: ignore[import-not-found]
    FAMILIES,
    SMOOTH,
    Draw,
    Input,
    Program,
    Words,
)

BOUNDS = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-4, "float64": 1e-8}
PAUSE = 0.01  # seconds before a library's turn


@dataclass
class Row:
    name: str
    program: Program
    inputs: list[Input]
    gradient: bool
    ratio: float = math.nan
    ours: float = math.nan
    peer: float = math.nan
    first: float = math.nan
    note: str = ""
    touched: int = 0


def draw(seed: int, rounds: int, gradients: float) -> Iterator[Row]:
    for number in range(rounds):
        for index, (name, make) in enumerate(FAMILIES.items()):
            d = Draw(np.random.default_rng((seed, number, index)))
            program = make(d)
            floats = all(dtype.startswith(("float", "bfloat")) for _, dtype, _ in d.inputs[:1])
            with_gradient = name in SMOOTH and floats and d.rng.random() < gradients
            yield Row(("∇" if with_gradient else "") + d.name(name), program, d.inputs, with_gradient)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, below: int) -> Any:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, below, shape).astype(dtype)
    found = rng.random(shape) * 0.97 + 0.01
    return found.astype("float32" if dtype == "bfloat16" else dtype)


def differentiated(row: Row, words: Words) -> Program:
    """The program; or its gradients by its floats, for a loss of squares."""
    if not row.gradient:
        return lambda *xs: row.program(words, *xs)
    targets = [n for n, (_, dtype, _) in enumerate(row.inputs) if "float" in dtype]
    if words.torch:

        def by_torch(*xs: Any) -> Any:
            leaves = [x.detach().requires_grad_() if n in targets else x for n, x in enumerate(xs)]
            out = row.program(words, *leaves)
            used = words.torch.autograd.grad(
                (out * out).sum(), [leaves[n] for n in targets], allow_unused=True
            )
            pairs = zip(used, targets, strict=True)
            return tuple(words.torch.zeros_like(leaves[n]) if g is None else g for g, n in pairs)

        return by_torch

    def value(*xs: Any) -> Any:
        out = row.program(words, *xs)
        return (out * out).sum()

    from morok import grad

    slopes = grad(value, argnums=tuple(targets))
    return lambda *xs: slopes(*xs)


def measure(row: Row, seconds: float, turns: int) -> None:
    import torch

    from morok import Tensor, jit

    rng = np.random.default_rng(1)
    arrays = [numbers(rng, *spec) for spec in row.inputs]
    theirs = [torch.from_numpy(a) for a in arrays]
    ours = [Tensor(a).realize() for a in arrays]
    for n, (_, dtype, _) in enumerate(row.inputs):
        if dtype == "bfloat16":
            theirs[n], ours[n] = theirs[n].bfloat16(), ours[n].cast("bfloat16").realize()
    peer, program = differentiated(row, Words(torch)), differentiated(row, Words())

    hidden = weakref.ref(program)  # guards of this file's own classes are not what is measured
    want = peer(*theirs)
    compiled = jit(lambda *xs: hidden()(*xs))
    started = time.perf_counter()
    got = compiled(*ours)
    row.first = time.perf_counter() - started
    doubles = [t.double() if t.is_floating_point() else t for t in theirs]
    compare(row, got, want, peer(*doubles))
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(turns):
        for name, call in (("ours", lambda: compiled(*ours)), ("peer", lambda: peer(*theirs))):
            time.sleep(PAUSE)
            call()
            best, end = math.inf, time.perf_counter() + seconds
            while True:
                begin = time.perf_counter()
                call()
                now = time.perf_counter()
                best = min(best, now - begin)
                if now > end:
                    break
            times[name].append(best)
    row.ours, row.peer = min(times["ours"]), min(times["peer"])
    row.ratio = float(np.median(np.array(times["peer"]) / np.array(times["ours"])))
    outs = want if isinstance(want, tuple) else (want,)
    row.touched = sum(t.numel() * t.element_size() for t in (*theirs, *outs))


def compare(row: Row, got: Any, want: Any, exact: Any) -> None:
    """The distance from float64's results; more than torch's own is noted."""
    results = [x if isinstance(x, tuple) else (x,) for x in (got, want, exact)]
    kinds = [dtype for _, dtype, _ in row.inputs if dtype in BOUNDS]
    bound = max((BOUNDS[kind] for kind in kinds), default=BOUNDS["float32"])
    for o, w, e in zip(*results, strict=False):
        a = (o.float() if "bfloat16" in str(o.dtype) else o).numpy().astype("float64")
        b, c = w.detach().double().numpy(), e.detach().double().numpy()
        if a.shape != b.shape:
            row.note = f"shapes {a.shape} {b.shape}"
            return
        errors = [float(np.linalg.norm(x - c) / (np.linalg.norm(c) + 1e-9)) for x in (a, b)]
        if not errors[0] <= bound + 3 * errors[1]:
            row.note = f"WRONG {errors[0]:.2g}, torch {errors[1]:.2g}"


def line(row: Row) -> str:
    rate = row.touched / row.ours / 1e9 if row.ours else math.nan
    return (
        f"{row.ratio:6.2f} {row.ours * 1e3:8.3f} ms {row.peer * 1e3:8.3f} {rate:6.1f} GB/s "
        f"first {row.first:5.2f} s  {row.name} {row.note}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--row", default="")
    parser.add_argument("--below", type=float, default=math.inf)
    parser.add_argument("--gradients", type=float, default=0.3)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(int(os.environ["MOROK_THREADS"]))
    found: list[Row] = []
    for row in draw(options.seed, options.rounds, options.gradients):
        wanted = (
            row.name == options.row if options.row else any(w in row.name for w in options.only.split(","))
        )
        if not wanted:
            continue
        if options.list:
            print(row.name)
            continue
        try:
            measure(row, options.seconds, options.turns)
        except Exception as error:  # one row must not end the others
            row.note += f" {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        found.append(row)
        print(line(row), flush=True)
    print("\nworst first")
    for row in sorted(found, key=lambda r: (not math.isnan(r.ratio), r.ratio)):
        if not row.ratio > options.below or row.first > 1 or row.note:
            print(line(row))


if __name__ == "__main__":
    main()
