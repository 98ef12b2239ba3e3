"""What checks of positions cost: rows and elements gathered with and without them, in turns in one process.

    python benchmarks/indices.py [rounds]
    MOROK_THREADS=1 python benchmarks/indices.py [rounds] cpu    # time of the processor: on a busy machine

A row says the least time of each, in µs, and the difference, also of the medians. Both are compiled; the
turns are mixed, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor, jit, knobs

RNG = np.random.default_rng(0)


def _data(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape, dtype=np.float32)).realize()


def _places(high: int, *shape: int, dtype: Any = np.int32) -> Tensor:
    return Tensor(RNG.integers(0, high, shape).astype(dtype)).realize()


ROWS: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "16384 rows of 256 (the benchmark's row)": (
        lambda x, i: x[i],
        lambda: (_data(32768, 256), _places(32768, 16384)),
    ),
    "1024 rows of 64 (the quick one)": (lambda x, i: x[i], lambda: (_data(4096, 64), _places(4096, 1024))),
    "one row of 768": (lambda x, i: x[i], lambda: (_data(50257, 768), _places(50257, 1))),
    "elements along an axis, 4096×256": (
        lambda x, i: x.gather(1, i),
        lambda: (_data(4096, 256), _places(256, 4096, 256)),
    ),
    "elements, 64-bit positions": (
        lambda x, i: x.gather(1, i),
        lambda: (_data(4096, 256), _places(256, 4096, 256, dtype=np.int64)),
    ),
    "1 M elements of a small table": (lambda x, i: x[i], lambda: (_data(1024), _places(1024, 1 << 20))),
    "sum of gathered rows": (
        lambda x, i: x[i].sum(0),
        lambda: (_data(4096, 64), _places(4096, 16384)),
    ),
    "rows added, 16384 of 64": (
        lambda x, i, v: x.index_add(0, i, v),
        lambda: (_data(4096, 64), _places(4096, 16384), _data(16384, 64)),
    ),
    "cross entropy, 4096×1000": (
        lambda x, y: x.cross_entropy(y),
        lambda: (_data(4096, 1000), _places(1000, 4096)),
    ),
}


def measure(rounds: int, clock: Callable[[], float]) -> None:
    print(f"{'':<42}{'without':>10}{'with':>10}{'least':>9}{'median':>9}")
    for name, (function, make) in ROWS.items():
        given = make()
        calls = {}
        for on in (False, True):
            with knobs.override(CHECK_INDICES=on):
                calls[on] = jit(function)
                for _ in range(3):
                    calls[on](*given)
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            for on in (False, True) if number % 2 else (True, False):
                with knobs.override(CHECK_INDICES=on):
                    calls[on](*given)
                    started = clock()
                    calls[on](*given)
                    times[on].append(clock() - started)
        off, on_ = min(times[False]) * 1e6, min(times[True]) * 1e6
        middle = statistics.median(times[True]) / statistics.median(times[False]) - 1
        print(f"{name:<42}{off:>10.1f}{on_:>10.1f}{on_ / off - 1:>+9.1%}{middle:>+9.1%}")


if __name__ == "__main__":
    by_processor = sys.argv[2:] == ["cpu"]
    measure(
        int(sys.argv[1]) if len(sys.argv) > 1 else 60, time.thread_time if by_processor else time.perf_counter
    )
