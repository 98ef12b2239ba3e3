"""Writes morok/tensor/special/tables.py: Chebyshev series of the parts that special functions are made of.

    python -m tests.tensor.special.make_tables

Each part is a smooth function on an interval. Its series is computed with mpmath at 40 digits and cut off
where terms fall below 1e-17 of the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

mp.mp.dps = 40
TARGET = Path(__file__).parents[3] / "morok" / "tensor" / "special" / "tables.py"


def series(f: Callable[[Any], Any], low: Any, high: Any, nodes: int = 72, cut: float = 1e-17) -> list[float]:
    """Coefficients c with f(x) = Σ c_k T_k(t), t from -1 at `low` to 1 at `high`."""
    low, high = mp.mpf(low), mp.mpf(high)
    angles = [mp.pi * (k + mp.mpf(1) / 2) / nodes for k in range(nodes)]
    values = [f((high - low) / 2 * mp.cos(a) + (high + low) / 2) for a in angles]
    found = []
    for j in range(nodes):
        total = mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True))
        found.append(total * (1 if j == 0 else 2) / nodes)
    largest = max(abs(c) for c in found)
    while abs(found[-1]) < cut * largest:
        found.pop()
    if len(found) > nodes - 4:
        raise ValueError(f"{nodes} nodes do not do")
    return [float(c) for c in found]


def root(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of t = x², given as one of x."""
    return lambda t: f(mp.sqrt(t)) if t > 0 else f(mp.mpf(10) ** -25)


def _stirling(t: Any) -> Any:
    """What lgamma has besides Stirling's formula, times x; t = (3/x)²."""
    x = 3 / mp.sqrt(t) if t > mp.mpf(10) ** -12 else mp.mpf(3) * 10**6
    return (mp.loggamma(x) - (x - mp.mpf(1) / 2) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x


def _ndtri(p: Any) -> Any:
    return mp.sqrt(2) * mp.erfinv(2 * p - 1) if p > mp.mpf("1e-12") else _ndtri_tail(mp.sqrt(-2 * mp.log(p)))


def _ndtri_tail(z: Any) -> Any:
    """The quantile of p = exp(-z²/2), by Newton's method on the logarithm."""
    x = -(z - mp.log(z) / z)
    for _ in range(60):
        value = mp.log(mp.erfc(-x / mp.sqrt(2)) / 2) + z * z / 2
        slope = mp.npdf(x) / (mp.erfc(-x / mp.sqrt(2)) / 2)
        step = value / slope
        x -= step
        if abs(step) < mp.mpf(10) ** -32:
            break
    return x


def _hankel(order: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """P and Q with J = √(2/πx)·(P cos - Q sin), Y = √(2/πx)·(P sin + Q cos); of t = (8/x)²."""

    def both(t: Any) -> tuple[Any, Any]:
        x = 8 / mp.sqrt(t) if t > mp.mpf(10) ** -14 else mp.mpf(8) * 10**7
        angle = x - mp.pi * (2 * order + 1) / 4
        j, y = mp.besselj(order, x), mp.bessely(order, x)
        scale = mp.sqrt(mp.pi * x / 2)
        c, s = mp.cos(angle), mp.sin(angle)
        return scale * (j * c + y * s), scale * (y * c - j * s) * x

    return lambda t: both(t)[0], lambda t: both(t)[1]


def _y_rest(order: int) -> Callable[[Any], Any]:
    """What Y has besides its logarithm, of t = x²; for order 1, over x and without 1/x."""

    def rest(x: Any) -> Any:
        value = mp.bessely(order, x) - 2 / mp.pi * mp.log(x / 2) * mp.besselj(order, x)
        return value if order == 0 else (value + 2 / (mp.pi * x)) / x

    return root(rest)


def _k_rest(order: int) -> Callable[[Any], Any]:
    def rest(x: Any) -> Any:
        if order == 0:
            return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)
        return (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x) - 1 / x) / x

    return root(rest)


def _airy_far(part: int) -> Callable[[Any], Any]:
    """Ai(-x) = (P sin(ζ + π/4) - Q cos(ζ + π/4)) / (√π x^¼), of u = 1/ζ² scaled to 0 … 1 from x = 4 on."""
    edge = mp.mpf(2) / 3 * mp.mpf(4) ** mp.mpf("1.5")

    def f(t: Any) -> Any:
        zeta = edge / mp.sqrt(t) if t > mp.mpf(10) ** -10 else edge * 10**5
        x = (zeta * 3 / 2) ** (mp.mpf(2) / 3)
        a, b = mp.airyai(-x), mp.airybi(-x)
        angle = zeta + mp.pi / 4
        scale = mp.sqrt(mp.pi) * x ** mp.mpf("0.25")
        s, c = mp.sin(angle), mp.cos(angle)
        return scale * (a * s + b * c) if part == 0 else scale * (b * s - a * c) * zeta

    return f


def _airy_right(t: Any) -> Any:
    edge = mp.mpf(2) / 3 * mp.mpf(2) ** mp.mpf("1.5")
    zeta = edge / t if t > mp.mpf(10) ** -6 else edge * 10**6
    x = (zeta * 3 / 2) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * mp.exp(zeta) * x ** mp.mpf("0.25")


Table = dict[str, tuple[str, list[float]]]


def _adder(found: Table) -> Callable[..., None]:
    def add(name: str, what: str, *args: Any, **options: Any) -> None:
        found[name] = (what, series(*args, **options))
        print(name, len(found[name][1]), flush=True)

    return add


def tables() -> Table:
    found: Table = {}
    _smooth_parts(_adder(found))
    _wave_parts(_adder(found))
    return found


def _smooth_parts(add: Callable[..., None]) -> None:
    half = mp.mpf(1) / 2
    add(
        "ERFCX",
        "erfcx(x)·(1 + 2x), t = (x - 2) / (x + 2)",
        lambda t: (
            (lambda x: mp.erfc(x) * mp.exp(x * x) * (1 + 2 * x))(2 * (1 + t) / (1 - t))
            if t < 1 - mp.mpf(10) ** -3
            else (
                lambda x: (
                    (1 + 2 * x)
                    / (x * mp.sqrt(mp.pi))
                    * mp.fsum((-1) ** n * mp.fac2(2 * n - 1) / (2 * x * x) ** n for n in range(8))
                )
            )(2 * (1 + t) / (1 - t))
        ),
        -1,
        1,
    )
    add(
        "NDTRI_MIDDLE",
        "ndtri(1/2 + y) / y, t = y² on 0 … 0.1406",
        root(lambda y: _ndtri(half + y) / y),
        0,
        mp.mpf("0.140625"),
    )
    for name, first, last in (("NDTRI_TAIL", "1.6", 6), ("NDTRI_FAR", 6, 39)):
        add(
            name,
            f"(z + ndtri(exp(-z²/2)))·z - log(z), t = 1/z, z on {first} … {last}",
            lambda t: (1 / t + _ndtri_tail(1 / t)) / t + mp.log(t),
            1 / mp.mpf(last),
            1 / mp.mpf(first),
        )
    add(
        "LGAMMA_MIDDLE",
        "lgamma(x) / ((x - 1)(x - 2)) on 1 … 3",
        lambda x: mp.loggamma(x) / ((x - 1) * (x - 2)),
        1,
        3,
    )
    add("LGAMMA_FAR", "what Stirling's formula leaves, times x, t = (3/x)²", _stirling, 0, 1)
    add("I0E_NEAR", "exp(-x)·I0(x) on 0 … 8", lambda x: mp.besseli(0, x) * mp.exp(-x), 0, 8)
    add(
        "I0E_FAR",
        "exp(-x)·√x·I0(x), t = 8/x",
        lambda t: (lambda x: mp.besseli(0, x) * mp.exp(-x) * mp.sqrt(x))(8 / max(t, mp.mpf(10) ** -5)),
        0,
        1,
    )
    add(
        "I1E_NEAR",
        "exp(-x)·I1(x)/x on 0 … 8",
        lambda x: mp.besseli(1, x) * mp.exp(-x) / x if x > 0 else half,
        0,
        8,
    )
    add(
        "I1E_FAR",
        "exp(-x)·√x·I1(x), t = 8/x",
        lambda t: (lambda x: mp.besseli(1, x) * mp.exp(-x) * mp.sqrt(x))(8 / max(t, mp.mpf(10) ** -5)),
        0,
        1,
    )


def _wave_parts(add: Callable[..., None]) -> None:
    p0, q0 = _hankel(0)
    p1, q1 = _hankel(1)
    add("J0_NEAR", "J0, t = x² on 0 … 64", root(lambda x: mp.besselj(0, x)), 0, 64)
    add("J1_NEAR", "J1/x, t = x² on 0 … 64", root(lambda x: mp.besselj(1, x) / x), 0, 64)
    add("Y0_NEAR", "Y0 - (2/π)·log(x/2)·J0, t = x² on 0 … 64", _y_rest(0), 0, 64)
    add("Y1_NEAR", "(Y1 - (2/π)·(log(x/2)·J1 - 1/x))/x, t = x² on 0 … 64", _y_rest(1), 0, 64)
    add("P0", "Hankel's P of order 0, t = (8/x)²", p0, 0, 1)
    add("Q0", "Hankel's Q of order 0, times x, t = (8/x)²", q0, 0, 1)
    add("P1", "Hankel's P of order 1, t = (8/x)²", p1, 0, 1)
    add("Q1", "Hankel's Q of order 1, times x, t = (8/x)²", q1, 0, 1)
    add("K0_NEAR", "K0 + log(x/2)·I0, t = x² on 0 … 4", _k_rest(0), 0, 4)
    add("K1_NEAR", "(K1 - log(x/2)·I1 - 1/x)/x, t = x² on 0 … 4", _k_rest(1), 0, 4)
    add(
        "K0E_FAR",
        "exp(x)·√x·K0, t = 2/x",
        lambda t: (lambda x: mp.besselk(0, x) * mp.exp(x) * mp.sqrt(x))(2 / max(t, mp.mpf(10) ** -6)),
        0,
        1,
    )
    add(
        "K1E_FAR",
        "exp(x)·√x·K1, t = 2/x",
        lambda t: (lambda x: mp.besselk(1, x) * mp.exp(x) * mp.sqrt(x))(2 / max(t, mp.mpf(10) ** -6)),
        0,
        1,
    )
    add("AIRY_MIDDLE", "Ai on -4 … 2", mp.airyai, -4, 2)
    add("AIRY_RIGHT", "exp(ζ)·x^¼·Ai(x) from 2 on, t = ζ(2)/ζ, ζ = ⅔·x^1.5", _airy_right, 0, 1)
    add("AIRY_P", "P of Ai(-x) from 4 on, t = (ζ(4)/ζ)²", _airy_far(0), 0, 1)
    add("AIRY_Q", "Q of Ai(-x), times ζ", _airy_far(1), 0, 1)


def main() -> None:
    lines = [
        '"""Chebyshev series of parts of special functions, by tests/tensor/special/make_tables.py.',
        "",
        "A series is in T_k(u), where u runs from -1 to 1 over the interval that its comment names (t over",
        "0 … 1 unless said otherwise).",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "# fmt: off",
        "",
    ]
    for name, (what, values) in tables().items():
        lines += [f"# {what}", f"{name}: tuple[float, ...] = ("]
        row = "   "
        for v in values:
            text = f" {v!r},"
            if len(row) + len(text) > 108:
                lines.append(row)
                row = "   "
            row += text
        lines += [row, ")", ""]
    lines[-1:] = ["# fmt: on", ""]
    TARGET.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
