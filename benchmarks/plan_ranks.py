"""`morok plan` beside ranks that really run on this host: memory, bytes and time of a step of a GPT.

    python benchmarks/plan_ranks.py [2 4]

First the machine is described: what one core reaches with products, other arithmetic and memory, what a
kernel and a message between ranks cost; and which share of that a step reaches on one rank. Then steps on
several ranks are planned by that description, and run. Ranks share the cores of the host, so more ranks than
cores have a part of one each.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SIZES = ("128", "64", "2")  # width, length, layers
KINDS = ("data", "tensor", "full", "pipeline")
STEPS = 12


def best(work: Callable[[], object], turns: int = 7) -> float:
    work(), work()
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def rates() -> dict[str, float]:
    """What one core reaches, by morok's own kernels of the sizes that the steps have."""
    from morok import Tensor, jit

    made = np.random.default_rng(0)
    a, b = (Tensor(made.standard_normal((256, 256)).astype(np.float32)).realize() for _ in range(2))
    x = Tensor(made.standard_normal(1 << 16).astype(np.float32)).realize()
    long = Tensor(made.standard_normal(1 << 23).astype(np.float32)).realize()
    small = Tensor(np.ones(8, np.float32)).realize()
    product, deep, add = (jit(f) for f in (lambda a, b: a @ b, lambda x: _polynomial(x), lambda x: x + 1))

    def many(x: Tensor) -> Tensor:
        for _ in range(100):
            x = (x + 1).contiguous()
        return x

    chain = jit(many)
    launch = best(lambda: chain(small).realize()) / 100
    ops = 2 * 256**3
    return {
        "product": ops / best(lambda: product(a, b).realize()),
        "other": 64 * (1 << 16) / best(lambda: deep(x).realize()),
        "memory": 8 * (1 << 23) / best(lambda: add(long).realize()),
        "launch": launch,
    }


def _polynomial(x: Any) -> Any:
    y = x
    for n in range(32):
        y = y * x + n
    return y


def link() -> dict[str, float]:
    """Seconds of a message and bytes per second between the ranks that run this, by their sums."""
    import morok
    from morok import P, Tensor, jit
    from morok import distributed as dist

    mesh = morok.mesh(dist.processes(), "data")
    found = {}
    for name, size in (("short", 1), ("long", 1 << 18)):
        x = Tensor(np.ones((dist.processes(), size), np.float32)).shard(mesh, P("data")).realize()
        f = jit(lambda x: x.sum(0).contiguous())
        times = []
        for _ in range(40):
            started = time.perf_counter()
            f(x).realize()
            times.append(time.perf_counter() - started)
        found[name] = statistics.median(times[5:])
    return found


def morok_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MOROK_THREADS": "1", "DEVICE": "CPU"}
    return subprocess.run(
        [sys.executable, "-m", "morok", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )


def describe(ranks: int, reached: float, rates: dict[str, float], file: Path) -> None:
    """Writes down what a rank of so many has: its part of the cores, and the links that were measured."""
    link = {"short": 1.0, "long": 2.0}
    if ranks > 1:
        link = json.loads(morok_command("run", "-n", str(ranks), __file__, "link").stdout)
    share = reached * min(1.0, (os.cpu_count() or 1) / ranks)
    sent = 2 * (ranks - 1) / ranks * (4 << 18)
    rate = sent / max(link["long"] - link["short"], 1e-6) or 1.0
    latency = link["short"] / max(2 * (ranks - 1).bit_length(), 1)
    text = (
        f'[here]\nchip = "neoverse-n1"\nproducts = {{ float32 = {share * rates["product"]:.3g} }}\n'
        f"other = {share * rates['other']:.3g}\nmemory = {share * rates['memory']:.3g}\nroom = 8e9\n"
        f"launch = {rates['launch'] / share:.3g}\nlinks = [[64, {latency:.3g}, {rate:.3g}]]\n"
    )
    file.write_text(text)
    print(f"{ranks} ranks:", " ".join(text.split("\n")[1:]))


def beside(kind: str, ranks: int, machine: Path) -> float:
    """Plans steps and runs them; how long the plan is beside the run."""
    script = str(ROOT / "tests/mesh/ranks.py")
    arguments = (
        script,
        kind,
        str(STEPS),
        *(SIZES if kind != "pipeline" else (*SIZES[:2], str(max(2, ranks)))),
    )
    run = json.loads(morok_command("run", "-n", str(ranks), *arguments).stdout)
    plan = morok_command(
        "plan", "--mesh", str(ranks), "--machine", str(machine), "--steps", str(STEPS), *arguments
    )
    said = json.loads(plan.stderr.splitlines()[0])
    row = plan.stdout.splitlines()[2]  # the plan that takes longest: a step
    computes, sends = (float(n) * (1 if m else 1e3) for n, m in re.findall(r"([\d.]+) (m?)s\b", row))
    real = run["seconds"] * 1e3
    print(
        f"{kind:9} memory {said['peak']} planned, {run['peak']} real; "
        f"bytes {said['planned']}, {sum(run['sent'].values())}; ms {computes:.2f} + {sends:.2f} "
        f"planned, {real:.2f} real: {(computes + sends) / real:.2f}",
        flush=True,
    )
    return (computes + sends) / real


def main(counts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "here.toml"
        alone = json.loads(morok_command("run", "-n", "1", __file__, "rates").stdout)
        describe(1, 1.0, alone, machine)
        reached = beside("data", 1, machine)
        for ranks in counts:
            describe(ranks, reached, alone, machine)
            for kind in KINDS:
                beside(kind, ranks, machine)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rates"]:
            print(json.dumps(rates()))
        case ["link"]:
            found = link()
            from morok import distributed

            if distributed.rank() == 0:
                print(json.dumps(found))
        case counts:
            main([int(count) for count in counts] or [2, 4])
