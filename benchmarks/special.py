"""Worst errors of the special functions in float32, in units in the last place, against mpmath.

    python benchmarks/special.py [--points 300] [names …]

Arguments are drawn over every exponent of the range that a function is defined on, and evenly where it is
interesting. A result that is infinite, NaN or zero where the rounded exact one is not counts as an infinite
error. Functions that are above 4 units say in their own texts where, and why.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np

from morok import Tensor, special

LIMIT = 4.0
Range = tuple[float, float, bool]  # from, to, and whether the negative numbers belong to it


def arguments(low: float, high: float, both: bool, count: int, seed: int) -> Any:
    """Every exponent between two sizes, and evenly among the moderate ones."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(math.log(max(low, 1e-37)), math.log(high), count))
    even = rng.uniform(low, min(high, 40.0), count // 2)
    found = np.clip(np.concatenate((sizes, even)), low, high)
    sign = np.where(rng.random(len(found)) < 0.5, -1.0, 1.0) if both else 1.0
    return (found * sign).astype(np.float32)


def _ndtri(p: Any) -> Any:
    return mp.sqrt(2) * mp.erfinv(2 * p - 1)


# name → (what mpmath computes, ranges of the arguments)
ONE: dict[str, tuple[Callable[..., Any], Range]] = {
    "erf": (mp.erf, (1e-37, 1e3, True)),
    "erfc": (mp.erfc, (1e-37, 10.0, True)),
    "erfcx": (lambda x: mp.exp(x * x) * mp.erfc(x), (1e-37, 1e30, False)),
    "erfinv": (mp.erfinv, (1e-37, 1.0 - 6e-8, True)),
    "ndtr": (mp.ncdf, (1e-37, 13.0, True)),
    "ndtri": (_ndtri, (1e-12, 1.0 - 6e-8, False)),
    "log_ndtr": (lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2), (1e-37, 100.0, True)),
    "lgamma": (lambda x: mp.log(abs(mp.gamma(x))) if abs(x) < 1e4 else mp.loggamma(x), (1e-37, 1e36, False)),
    "digamma": (mp.digamma, (1e-37, 1e37, False)),
    "i0": (lambda x: mp.besseli(0, x), (1e-37, 88.0, True)),
    "i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), (1e-37, 1e6, True)),
    "i1": (lambda x: mp.besseli(1, x), (1e-37, 88.0, True)),
    "i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), (1e-37, 1e6, True)),
    "bessel_j0": (lambda x: mp.besselj(0, x), (1e-37, 1e4, True)),
    "bessel_j1": (lambda x: mp.besselj(1, x), (1e-37, 1e4, True)),
    "bessel_y0": (lambda x: mp.bessely(0, x), (1e-37, 1e4, False)),
    "bessel_y1": (lambda x: mp.bessely(1, x), (1e-37, 1e4, False)),
    "spherical_bessel_j0": (lambda x: mp.sin(x) / x, (1e-37, 1e6, True)),
    "entr": (lambda x: -x * mp.log(x), (1e-37, 1e30, False)),
    "expit": (lambda x: 1 / (1 + mp.exp(-x)), (1e-37, 85.0, True)),
    "logit": (lambda x: mp.log(x / (1 - x)), (1e-37, 1.0 - 6e-8, False)),
    "sinc": (lambda x: mp.sinpi(x) / (mp.pi * x), (1e-37, 1e6, True)),
    "airy_ai": (mp.airyai, (1e-37, 20.0, False)),
}
TWO: dict[str, tuple[Callable[..., Any], Range, Range]] = {
    "gammainc": (
        lambda a, x: mp.gammainc(a, 0, x, regularized=True), (0.05, 200.0, False), (0.02, 300.0, False),
    ),
    "gammaincc": (
        lambda a, x: mp.gammainc(a, x, mp.inf, regularized=True), (0.05, 50.0, False), (0.02, 90.0, False),
    ),
    "betaln": (lambda a, b: mp.log(mp.beta(a, b)), (0.05, 3000.0, False), (0.05, 100.0, False)),
    "beta": (mp.beta, (0.05, 50.0, False), (0.05, 50.0, False)),
    "zeta": (mp.zeta, (1.01, 20.0, False), (0.01, 100.0, False)),
    "xlog1py": (lambda x, y: x * mp.log1p(y), (1e-6, 1e6, False), (1e-37, 1e8, False)),
}  # fmt: skip


def units(got: float, exact: Any) -> float:
    """How far a result is from the exact one, in units in the last place of float32."""
    rounded = np.float32(float(exact))
    if not np.isfinite(rounded) or not np.isfinite(got):
        same = got == rounded or (math.isnan(got) and math.isnan(rounded))
        return 0.0 if same else math.inf
    unit = max(float(np.spacing(np.abs(rounded))), 1.4e-45)
    return float(abs(mp.mpf(got) - exact) / unit)


def worst(name: str, count: int) -> tuple[float, tuple[float, ...]]:
    """The worst error of a function, and where it is."""
    exact, *ranges = ONE[name] if name in ONE else TWO[name]
    given = [arguments(*r, count, seed) for seed, r in enumerate(ranges)]  # type: ignore[misc]
    found = getattr(special, name)(*map(Tensor, given)).numpy().astype(np.float64)
    with mp.workdps(60):
        off = [
            units(float(g), exact(*(mp.mpf(float(v)) for v in at)))  # type: ignore[operator]
            for g, *at in zip(found, *given, strict=True)
        ]
    place = int(np.argmax(off))
    return off[place], tuple(float(g[place]) for g in given)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions; all if there are none")
    parser.add_argument("--points", type=int, default=300)
    options = parser.parse_args()
    failed = 0
    print(f"{'function':<22} {'worst ULP':>9}   at")
    for name in options.names or [*ONE, *TWO]:
        error, at = worst(name, options.points)
        failed += error > LIMIT
        print(f"{name:<22} {error:>9.2f}   {', '.join(map(repr, at))}", flush=True)
    print(f"all within {LIMIT} units" if not failed else f"{failed} above {LIMIT} units")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
