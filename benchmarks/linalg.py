"""Linear algebra beside NumPy's LAPACK: the first call, one more, and the ratio; the best of several.

python benchmarks/linalg.py [--sizes 128 256] [--rounds 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor, linalg

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], bool]] = {
    "inv": (lambda x: x.inv(), np.linalg.inv, False),
    "det": (lambda x: x.det(), np.linalg.det, False),
    "cholesky": (lambda x: x.cholesky(), np.linalg.cholesky, True),
    "qr": (lambda x: x.qr().Q, np.linalg.qr, False),
    "eigh": (lambda x: linalg.eigh(x).eigenvectors, np.linalg.eigh, True),
    "svd": (lambda x: x.svd().U, np.linalg.svd, False),
}


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def row(name: str, shape: tuple[int, ...], rounds: int) -> str:
    mine, numpys, symmetric = FUNCTIONS[name]
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if symmetric:
        array = array @ array.swapaxes(-1, -2) + np.eye(shape[-1], dtype=np.float32)
    x = Tensor(array)
    first = timed(lambda: mine(x).numpy())
    # in turns, so that a machine that gets slower does so for both
    pairs = [(timed(lambda: mine(x).numpy()), timed(lambda: numpys(array))) for _ in range(rounds)]
    again, other = (min(p[i] for p in pairs) for i in (0, 1))
    size = "×".join(map(str, shape))
    times = f"{first:8.2f} s {again * 1e3:10.2f} ms {other * 1e3:10.2f} ms {again / other:8.2f}"
    return f"{name:10} {size:12} {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[128, 256])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'':10} {'':12} {'first':>10} {'again':>13} {'NumPy':>13} {'ratio':>8}")
    for shape in [*((n, n) for n in options.sizes), (1000, 8, 8)]:
        for name in FUNCTIONS:
            print(row(name, shape, options.rounds), flush=True)


if __name__ == "__main__":
    main()
