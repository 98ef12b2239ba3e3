"""Linear algebra beside NumPy's LAPACK: the first call, one more, and the ratio; the best of several.

python benchmarks/linalg.py [--sizes 128 256] [--rounds 5] [names …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor, linalg

Function = Callable[[Any, Any], Any]


def _numpy_exp(x: Any, _: Any) -> Any:
    """As SciPy, which may not be there, by eigenvectors: NumPy has none of its own."""
    values, vectors = np.linalg.eig(x)
    return (vectors * np.exp(values)[..., None, :]) @ np.linalg.inv(vectors)


def _numpy_lstsq(x: Any, b: Any) -> Any:
    return np.linalg.lstsq(x, b, rcond=None) if x.ndim == 2 else np.linalg.pinv(x) @ b


# name: ours, NumPy's, whether the matrix is symmetric and positive definite
FUNCTIONS: dict[str, tuple[Function, Function, bool]] = {
    "inv": (lambda x, b: x.inv(), lambda x, b: np.linalg.inv(x), False),
    "solve": (lambda x, b: x.solve(b), np.linalg.solve, False),
    "det": (lambda x, b: x.det(), lambda x, b: np.linalg.det(x), False),
    "slogdet": (lambda x, b: x.slogdet().logabsdet, lambda x, b: np.linalg.slogdet(x), False),
    "lu": (lambda x, b: linalg.lu_factor(x).LU, lambda x, b: np.linalg.det(x), False),  # by the same routine
    "cholesky": (lambda x, b: x.cholesky(), lambda x, b: np.linalg.cholesky(x), True),
    "qr": (lambda x, b: x.qr().Q, lambda x, b: np.linalg.qr(x), False),
    "eigh": (lambda x, b: linalg.eigh(x).eigenvectors, lambda x, b: np.linalg.eigh(x), True),
    "svd": (lambda x, b: x.svd().U, lambda x, b: np.linalg.svd(x), False),
    "pinv": (lambda x, b: linalg.pinv(x), lambda x, b: np.linalg.pinv(x), False),
    "lstsq": (lambda x, b: linalg.lstsq(x, b).solution, _numpy_lstsq, False),
    "matrix_exp": (lambda x, b: linalg.matrix_exp(x), _numpy_exp, False),
}


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def row(name: str, shape: tuple[int, ...], rounds: int) -> str:
    mine, numpys, symmetric = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    array = rng.standard_normal(shape).astype(np.float32) * np.float32(shape[-1] ** -0.5)
    other = rng.standard_normal((*shape[:-1], 8)).astype(np.float32)
    if symmetric:
        array = array @ array.swapaxes(-1, -2) + np.eye(shape[-1], dtype=np.float32)
    x, b = Tensor(array), Tensor(other)
    first = timed(lambda: mine(x, b).numpy())
    # in turns, so that a machine that gets slower does so for both
    pairs = [(timed(lambda: mine(x, b).numpy()), timed(lambda: numpys(array, other))) for _ in range(rounds)]
    again, peer = (min(p[i] for p in pairs) for i in (0, 1))
    size = "×".join(map(str, shape))
    times = f"{first:8.2f} s {again * 1e3:10.2f} ms {peer * 1e3:10.2f} ms {again / peer:8.2f}"
    return f"{name:10} {size:12} {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions; all if there are none")
    parser.add_argument("--sizes", type=int, nargs="*", default=[128, 256])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'':10} {'':12} {'first':>10} {'again':>13} {'NumPy':>13} {'ratio':>8}")
    for shape in [*((n, n) for n in options.sizes), (1000, 8, 8)]:
        for name in FUNCTIONS:
            if not options.names or name in options.names:
                print(row(name, shape, options.rounds), flush=True)


if __name__ == "__main__":
    main()
