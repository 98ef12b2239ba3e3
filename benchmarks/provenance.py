"""How fast graphs are built, and what it costs to remember the user's line of every node.

The graph is what a scheduler writes down: chains of reshape, permute, pad and flip as index arithmetic, and
kernels that load, reduce and store through it. Provenance is a setting of the process, so each run is a
process of its own; runs with and without it take turns, and the fastest of each counts.

    python benchmarks/provenance.py [--kernels 300] [--runs 7]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIZES = (2, 3, 4, 6, 8, 16)


def row_major(indices: list[Any], sizes: list[int]) -> Any:
    total, step = None, 1
    for i, size in zip(reversed(indices), reversed(sizes), strict=True):
        term = i * step
        total = term if total is None else total + term
        step *= size
    return total


def kernel(rnd: random.Random, number: int) -> Any:
    """One kernel over a tensor that went through a few movement ops."""
    from morok.dtype import float32
    from morok.ir.build import define_global, end, index, load, reduce, rng, store
    from morok.ir.ops import AxisKind, Ops

    sizes = [rnd.choice(SIZES) for _ in range(4)]
    loops = [rng(size, 10 * number + k) for k, size in enumerate(sizes)]
    inner = rng(rnd.choice(SIZES), 10 * number + 9, AxisKind.REDUCE)
    indices, gate = list(loops), None
    for _ in range(6):
        axis = rnd.randrange(len(sizes))
        kind = rnd.randrange(4)
        if kind == 0:  # reshape: flatten and take apart again
            flat = row_major(indices, sizes)
            rnd.shuffle(sizes)
            step = 1
            for k in reversed(range(len(sizes))):
                indices[k] = flat // step % sizes[k]
                step *= sizes[k]
        elif kind == 1:  # permute
            order = rnd.sample(range(len(sizes)), len(sizes))
            indices, sizes = [indices[k] for k in order], [sizes[k] for k in order]
        elif kind == 2:  # pad
            inside = (indices[axis] > 0) & (indices[axis] < sizes[axis] - 1)
            gate = inside if gate is None else gate & inside
            indices[axis] = indices[axis] - 1
        else:  # flip
            indices[axis] = (sizes[axis] - 1) - indices[axis]
    source, target = define_global(float32, 1 << 16, 1), define_global(float32, 1 << 16, 0)
    place = row_major([*indices, inner], [*sizes, 16])
    value = load(index(source, place, gate=gate), 0.0) if gate is not None else load(index(source, place))
    total = reduce(value * 2.0 + 1.0, Ops.ADD, (inner,))
    return end(store(index(target, row_major(loops, sizes)), total), *loops)


def build(kernels: int) -> Any:
    from morok.ir.build import sink

    rnd = random.Random(0)
    return sink(*(kernel(rnd, number) for number in range(kernels)))


def best(function: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest run; what a run builds is dropped before the next one."""
    fastest = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        result = function()
        fastest = min(fastest, time.perf_counter() - start)
        del result
    return fastest


def measure(kernels: int) -> dict[str, float]:
    from morok.dtype import index
    from morok.ir.build import variable
    from morok.ir.node import const, make, toposort
    from morok.ir.ops import Ops

    nodes = len(toposort(build(kernels)))
    graph = best(lambda: build(kernels))
    x, one, length = variable("x", 0, 9), const(index, 1), 50_000

    def chain() -> Any:
        n = x
        for _ in range(length):
            n = make(Ops.ADD, index, (n, one))
        return n

    gc.disable()  # the collector's walks over all nodes are not the price of making one
    new = best(chain)
    kept = chain()
    existing = best(chain)
    del kept
    return {"nodes": nodes, "graph": graph, "new": new / length, "existing": existing / length}


def in_a_process(kernels: int, provenance: bool) -> dict[str, float]:
    env = {**os.environ, "MOROK_PROVENANCE": str(int(provenance))}
    command = [sys.executable, __file__, "--measure", "--kernels", str(kernels)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.kernels)))
        return
    runs = [(in_a_process(args.kernels, False), in_a_process(args.kernels, True)) for _ in range(args.runs)]
    off = {key: min(run[0][key] for run in runs) for key in runs[0][0]}
    on = {key: min(run[1][key] for run in runs) for key in runs[0][1]}
    print(f"graph of {on['nodes']:,} nodes, fastest of {args.runs} processes each")
    for label, found in (("off", off), ("on", on)):
        print(
            f"provenance {label:>3}: {found['graph'] * 1e3:7.1f} ms to build, "
            f"{found['nodes'] / found['graph']:,.0f} nodes/s; "
            f"make: {1 / found['new']:,.0f} new nodes/s, {1 / found['existing']:,.0f} existing nodes/s"
        )
    cost = 100 * (on["graph"] / off["graph"] - 1)
    print(f"provenance costs {cost:.1f} % of the time to build a graph (aim: below 10 %)")


if __name__ == "__main__":
    main()
