"""What stays in memory of shapes that do not come again: resident memory while one process sees many of them.

Every shape is traced, scheduled, compiled and run once. What is remembered is bounded, so memory must stop
growing, however many there are.

    python benchmarks/shapes.py [--shapes 2000]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

MARKS = (100, 300, 1_000, 2_000, 5_000, 10_000, 20_000)


def resident() -> float:
    """Megabytes of this process that are in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def work(number: int) -> None:
    """A computation on a shape of its own."""
    from morok import Tensor

    rows, columns = 2 + number % 200, 3 + number // 200
    x = np.full((rows, columns), 0.5, np.float32)
    found = (Tensor(x) * 2 + 1).sum(0).numpy()
    assert found.shape == (columns,) and (found == 2 * rows).all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=int, default=2_000, metavar="N")
    count = parser.parse_args().shapes
    start = time.perf_counter()
    before = 0.0
    for number in range(1, count + 1):
        work(number)
        if number in MARKS or number == count:
            now = resident()
            before = before or now
            seconds = time.perf_counter() - start
            print(f"{number:>6} shapes  {now:7.1f} MB  {now - before:+7.1f} MB  {seconds:7.1f} s", flush=True)


if __name__ == "__main__":
    main()
