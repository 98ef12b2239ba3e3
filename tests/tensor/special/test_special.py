"""Special functions against mpmath: values over the whole range of float32, ends, derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, special

mp = pytest.importorskip("mpmath")

F = Callable[..., Any]
INF, NAN = math.inf, math.nan


def spread(low: float, high: float, both: bool = False, count: int = 40, seed: int = 3) -> Any:
    """Numbers of all sizes between two, evenly and by their logarithms."""
    rng = np.random.default_rng(seed)
    even = rng.uniform(low, high, count)
    sizes = np.exp(rng.uniform(math.log(max(low, 1e-30)), math.log(high), count))
    found = np.concatenate((even, sizes))
    return np.concatenate((found, -found)).astype(np.float32) if both else found.astype(np.float32)


def ulps(got: Any, wanted: list[Any]) -> Any:
    """How far results are from exact ones, in units in the last place of float32."""
    found = []
    for g, w in zip(got.astype(np.float64), wanted, strict=True):
        rounded = np.float32(float(w))
        if not np.isfinite(rounded) or not np.isfinite(g):
            found.append(0.0 if g == rounded or (math.isnan(g) and math.isnan(rounded)) else INF)
            continue
        unit = float(np.spacing(np.abs(rounded))) if rounded else 1.4e-45
        found.append(float(abs(mp.mpf(float(g)) - w) / unit))
    return np.array(found)


def _erfcx(x: Any) -> Any:
    return mp.exp(x * x) * mp.erfc(x)


def _log_ndtr(x: Any) -> Any:
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


# name → (what mpmath computes, where)
ONE: dict[str, tuple[F, Any]] = {
    "erfc": (mp.erfc, spread(1e-6, 9.5, True)),
    "erfcx": (_erfcx, np.concatenate((spread(1e-6, 1e6), -spread(0.1, 9.0)))),
    "erfinv": (mp.erfinv, np.concatenate((spread(1e-8, 0.999, True), 1 - spread(6e-8, 0.1)))),
    "ndtr": (mp.ncdf, spread(1e-6, 13.0, True)),
    "ndtri": (
        lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1),
        np.concatenate((spread(1e-12, 0.99), 1 - spread(6e-8, 0.1))),
    ),
    "log_ndtr": (_log_ndtr, np.concatenate((spread(0.01, 5.0), -spread(0.01, 500.0)))),
    "lgamma": (
        lambda x: mp.log(abs(mp.gamma(x))),
        np.concatenate(
            (spread(1e-20, 60.0), -spread(0.01, 30.0), spread(60, 1e30)[:1], 1 + spread(1e-6, 1.0))
        ),
    ),
    "digamma": (
        mp.digamma,
        np.concatenate((spread(1e-10, 1e10), -spread(0.01, 30.0), 1.4616321 + spread(1e-6, 1e-2))),
    ),
    "i0": (lambda x: mp.besseli(0, x), spread(1e-6, 88.0, True)),
    "i1": (lambda x: mp.besseli(1, x), spread(1e-6, 88.0, True)),
    "i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), spread(1e-6, 1e4, True)),
    "i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), spread(1e-6, 1e4, True)),
    "bessel_j0": (lambda x: mp.besselj(0, x), spread(1e-6, 1e4, True)),
    "bessel_j1": (lambda x: mp.besselj(1, x), spread(1e-6, 1e4, True)),
    "bessel_y0": (lambda x: mp.bessely(0, x), spread(1e-20, 1e4)),
    "bessel_y1": (lambda x: mp.bessely(1, x), spread(1e-20, 1e4)),
    "modified_bessel_k0": (lambda x: mp.besselk(0, x), spread(1e-4, 80.0, count=8)),
    "modified_bessel_k1": (lambda x: mp.besselk(1, x), spread(1e-4, 80.0, count=8)),
    "scaled_modified_bessel_k0": (lambda x: mp.besselk(0, x) * mp.exp(x), spread(1e-3, 1e6)),
    "scaled_modified_bessel_k1": (lambda x: mp.besselk(1, x) * mp.exp(x), spread(1e-3, 1e6)),
    "spherical_bessel_j0": (lambda x: mp.sin(x) / x, spread(1e-6, 1e4, True)),
    "airy_ai": (mp.airyai, np.concatenate((spread(1e-6, 20.0), -spread(1e-6, 1000.0)))),
    "entr": (lambda x: -x * mp.log(x), spread(1e-20, 1e10)),
}


def test_a_few_of_each() -> None:
    """What the slow tests do at length: all functions together, at some of their points."""
    few = {name: points[::13] for name, (_, points) in ONE.items()}
    found = {name: getattr(special, name)(Tensor(points)) for name, points in few.items()}
    Tensor.realize(*found.values())
    with mp.workdps(30):
        for name, points in few.items():
            off = ulps(found[name].numpy(), [ONE[name][0](mp.mpf(float(x))) for x in points])
            assert off.max() <= 4.0, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE)
def test_within_four_units_in_the_last_place(name: str) -> None:
    exact, points = ONE[name]
    got = getattr(special, name)(Tensor(points)).numpy()
    with mp.workdps(40):
        wanted = [exact(mp.mpf(float(x))) for x in points]
    off = ulps(got, wanted)
    worst = int(off.argmax())
    assert off[worst] <= 4.0, f"{name}({points[worst]!r}) = {got[worst]!r}, {off[worst]:.1f} units off"


TWO: dict[str, tuple[F, Any, Any]] = {
    "gammainc": (
        lambda a, x: mp.gammainc(a, 0, x, regularized=True),
        spread(0.05, 200.0),
        spread(0.02, 300.0, seed=4),
    ),
    "zeta": (mp.zeta, 1 + spread(0.01, 20.0), spread(0.01, 100.0, seed=4)),
    "xlog1py": (lambda x, y: x * mp.log1p(y), spread(1e-6, 1e6), spread(1e-8, 1e8, seed=4)),
    "beta": (mp.beta, spread(0.05, 40.0), spread(0.05, 40.0, seed=4)),
    "betaln": (lambda a, b: mp.log(mp.beta(a, b)), spread(0.05, 3000.0), spread(0.05, 100.0, seed=4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
def test_of_two_numbers(name: str) -> None:
    exact, first, second = TWO[name]
    got = getattr(special, name)(Tensor(first), Tensor(second)).numpy()
    with mp.workdps(40):
        wanted = [exact(mp.mpf(float(a)), mp.mpf(float(b))) for a, b in zip(first, second, strict=True)]
    off = ulps(got, wanted)
    worst = int(off.argmax())
    assert off[worst] <= 4.0, (name, first[worst], second[worst], got[worst], off[worst])


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2, 5])
def test_derivatives_of_digamma(order: int) -> None:
    points = spread(0.01, 1e4)
    got = Tensor(points).polygamma(order).numpy()
    with mp.workdps(40):
        off = ulps(got, [mp.psi(order, mp.mpf(float(x))) for x in points])
    assert off.max() <= 4.0


@pytest.mark.slow
def test_incomplete_gamma_of_large_numbers() -> None:
    """Where x is near a large a, and where one of the two parts is tiny."""
    scipy = pytest.importorskip("scipy.special")
    rng = np.random.default_rng(2)
    a = np.concatenate(([1e4, 1e6, 1e4, 30.0, 30.0, 1e-3, 1.0], rng.uniform(0.1, 90.0, 60))).astype(
        np.float32
    )
    x = np.concatenate(([1.01e4, 1e6, 0.97e4, 100.0, 2.0, 0.5, 60.0], rng.uniform(0.1, 90.0, 60)))
    x = x.astype(np.float32)
    for name in ("gammainc", "gammaincc"):
        got = getattr(special, name)(Tensor(a), Tensor(x)).numpy()
        wanted = getattr(scipy, name)(a.astype(np.float64), x.astype(np.float64))
        assert ulps(got, [mp.mpf(float(w)) for w in wanted]).max() <= 4.0


# --- ends

ENDS: dict[str, tuple[list[float], list[float]]] = {
    "erfc": ([INF, -INF, 0.0, NAN], [0.0, 2.0, 1.0, NAN]),
    "erfcx": ([INF, -INF, 0.0, NAN], [0.0, INF, 1.0, NAN]),
    "erfinv": ([1.0, -1.0, 0.0, 2.0, NAN], [INF, -INF, 0.0, NAN, NAN]),
    "ndtr": ([INF, -INF, 0.0, NAN], [1.0, 0.0, 0.5, NAN]),
    "ndtri": ([0.0, 1.0, 0.5, -1.0, NAN], [-INF, INF, 0.0, NAN, NAN]),
    "log_ndtr": ([INF, -INF, NAN], [0.0, -INF, NAN]),
    "lgamma": ([0.0, -1.0, 1.0, 2.0, INF, -INF, NAN], [INF, INF, 0.0, 0.0, INF, INF, NAN]),
    "digamma": ([0.0, -0.0, -1.0, INF, NAN], [-INF, INF, NAN, INF, NAN]),
    "i0": ([0.0, INF, -INF, NAN], [1.0, INF, INF, NAN]),
    "i1": ([0.0, INF, -INF, NAN], [0.0, INF, -INF, NAN]),
    "i0e": ([0.0, INF, NAN], [1.0, 0.0, NAN]),
    "bessel_j0": ([0.0, INF, NAN], [1.0, 0.0, NAN]),
    "bessel_y0": ([0.0, -1.0, NAN], [-INF, NAN, NAN]),
    "bessel_y1": ([0.0, -1.0, NAN], [-INF, NAN, NAN]),
    "modified_bessel_k0": ([0.0, -1.0, INF, NAN], [INF, NAN, 0.0, NAN]),
    "spherical_bessel_j0": ([0.0, INF, NAN], [1.0, 0.0, NAN]),
    "airy_ai": ([INF, -INF, NAN], [0.0, 0.0, NAN]),
    "entr": ([0.0, -1.0, INF, NAN], [0.0, -INF, -INF, NAN]),
}


def test_ends() -> None:
    found = {name: getattr(special, name)(Tensor(np.float32(points))) for name, (points, _) in ENDS.items()}
    Tensor.realize(*found.values())
    for name, (_, wanted) in ENDS.items():
        np.testing.assert_array_equal(found[name].numpy(), np.float32(wanted), err_msg=name)


def test_shapes_and_types() -> None:
    for name in (*ENDS, "hermite_polynomial_h"):
        more = (2,) if "polynomial" in name else ()
        function = getattr(special, name)
        assert function(Tensor.ones(0, 3), *more).shape == (0, 3)
        assert function(Tensor(0.5), *more).shape == ()
        assert function(Tensor([1]), *more).dtype is morok.float32
        assert function(Tensor([0.5], dtype="float16"), *more).dtype is morok.float16
        assert function(Tensor([0.5], dtype="float64"), *more).dtype is morok.float64


SLOPES = {
    **{
        n: np.array([0.3, 0.7, -0.4])
        for n in (
            "erfc",
            "erfcx",
            "erfinv",
            "ndtr",
            "log_ndtr",
            "i0",
            "i0e",
            "i1",
            "i1e",
            "bessel_j0",
            "bessel_j1",
            "spherical_bessel_j0",
        )
    },
    **{
        n: np.array([0.3, 0.7, 2.5])
        for n in (
            "lgamma",
            "digamma",
            "bessel_y0",
            "bessel_y1",
            "modified_bessel_k0",
            "modified_bessel_k1",
            "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
            "entr",
        )
    },
    "ndtri": np.array([0.3, 0.7, 0.01]),
}


@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))])
def test_derivatives(part: int) -> None:
    step, found = 1e-5, {}
    for name, points in list(SLOPES.items())[part::4]:
        function, x = getattr(special, name), Tensor(points)
        sides = [function(Tensor(points + d)) for d in (step, -step)]
        found[name] = (function(x).sum().gradient(x)[0], *sides)
    Tensor.realize(*(t for three in found.values() for t in three))
    for name, (slope, high, low) in found.items():
        wanted = (high.numpy() - low.numpy()) / (2 * step)
        np.testing.assert_allclose(slope.numpy(), wanted, rtol=1e-6, atol=1e-8, err_msg=name)


POLYNOMIALS = {
    "chebyshev_polynomial_t": mp.chebyt,
    "chebyshev_polynomial_u": mp.chebyu,
    "hermite_polynomial_h": mp.hermite,
    "laguerre_polynomial_l": lambda n, x: sum(
        (-x) ** k * math.comb(n, k) / math.factorial(k) for k in range(n + 1)
    ),
    "legendre_polynomial_p": mp.legendre,
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    x = np.array([-2.5, -1.0, -0.3, 0.0, 0.7, 1.0, 3.0], np.float32)
    for degree in (0, 1, 2, 7):
        wanted = np.array([float(POLYNOMIALS[name](degree, float(v))) for v in x])
        got = getattr(special, name)(Tensor(x), degree).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
        several = getattr(special, name)(Tensor(x), Tensor(np.full(7, degree))).numpy()
        np.testing.assert_allclose(several, wanted, rtol=1e-6, atol=1e-6)


def test_beta_with_signs_and_slopes() -> None:
    first, second = np.array([2.5, -0.5, -1.5, 4.0, -2.3]), np.array([1.5, 0.7, 0.2, 3.0, -0.4])
    a, b = Tensor(first), Tensor(second)
    found = special.beta(a, b)
    slopes = found.sum().gradient(a, b)
    wanted = [float(mp.beta(x, y)) for x, y in zip(first, second, strict=True)]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    for slope, (da, db) in zip(slopes, ((1e-5, 0.0), (0.0, 1e-5)), strict=True):
        sides = [special.beta(Tensor(first + s * da), Tensor(second + s * db)).numpy() for s in (1, -1)]
        np.testing.assert_allclose(slope.numpy(), (sides[0] - sides[1]) / 2e-5, rtol=1e-6)
