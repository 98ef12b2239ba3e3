"""What a mesh costs: a training step on a mesh of one device beside the plain one, in turns.

    python benchmarks/mesh.py

The median of many steps of a small GPT on the CPU; the ratio is asked to stay below 1.03.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from morok import Tensor, nn
from tests.mesh import gpt

TURNS = 60


def step_of(kind: str) -> Callable[[], None]:
    """A compiled step on data of its own."""
    model, mesh, put = gpt.build(kind, 1)
    optimizer = nn.Adam(nn.parameters(model), lr=0.01)
    step = gpt.compiled_step(model, mesh, kind, optimizer)
    x, y = (put(Tensor(part)).realize() for part in gpt.batch(0))

    def run() -> None:
        step(x, y).item()

    return run


def main() -> None:
    gpt.WIDTH, gpt.LENGTH, gpt.LAYERS, gpt.BATCH = 128, 64, 2, 8
    runs = {"plain": step_of("one"), "mesh of one": step_of("data")}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(TURNS):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if turn > 5:
                times[name].append(time.perf_counter() - started)
    plain, mesh = (statistics.median(times[name]) for name in runs)
    print(f"plain {plain * 1e3:.2f} ms, mesh of one device {mesh * 1e3:.2f} ms: {mesh / plain:.3f}")
    least = [min(times[name]) for name in runs]
    print(f"least: {least[0] * 1e3:.2f}, {least[1] * 1e3:.2f} ms: {least[1] / least[0]:.3f}")


if __name__ == "__main__":
    main()
