"""Windows by the names of `scipy.signal.windows`: weights of a piece of a signal.

`sym` says whether a window is symmetric, for filters, or one period of a periodic one, for spectra.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from morok import dtype as dt
from morok.errors import ArgumentError
from morok.tensor.creation.constructors import arange
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import maximum
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.functions import cos, exp, sin, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.special.bessel import i0


def _places(cls: type[T], size: int, sym: bool, device: str | None) -> tuple[T, float]:
    """0 … size-1 in double precision, and the length of the period."""
    if size < 0:
        raise ArgumentError(f"a window has 0 elements or more, not {size}")
    return cast(arange(cls, size, device=device), dt.float64), float(
        max(size - 1, 1) if sym else max(size, 1)
    )


def _of(window: T, dtype: Any) -> T:
    return cast(window, dtype or dt.default_float)


def general_cosine(
    cls: type[T],
    size: int,
    a: Sequence[float],
    sym: bool = True,
    dtype: Any = None,
    device: str | None = None,
) -> T:
    """The sum of cosines Σ (-1)^k a_k cos(2πkn / N).

    >>> general_cosine(3, (0.5, 0.5)).tolist()
    [0.0, 1.0, 0.0]
    """
    n, period = _places(cls, size, sym, device)
    if size == 1:
        return _of(n * 0.0 + 1.0, dtype)
    total = n * 0.0
    for k, weight in enumerate(a):
        total = total + cos(n * (2.0 * math.pi * k / period)) * ((-1.0) ** k * weight)
    return _of(total, dtype)


def general_hamming(
    cls: type[T],
    size: int,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: Any = None,
    device: str | None = None,
) -> T:
    """alpha - (1 - alpha) · cos(2πn / N).

    >>> general_hamming(3, 0.5).tolist()
    [0.0, 1.0, 0.0]
    """
    return general_cosine(cls, size, (alpha, 1.0 - alpha), sym, dtype, device)


def hamming(cls: type[T], size: int, sym: bool = True, dtype: Any = None, device: str | None = None) -> T:
    """The window of Hamming: 0.54 - 0.46 · cos(2πn / N).

    >>> hamming(1).tolist()
    [1.0]
    """
    return general_hamming(cls, size, 0.54, sym, dtype, device)


def hann(cls: type[T], size: int, sym: bool = True, dtype: Any = None, device: str | None = None) -> T:
    """The window of von Hann: half of 1 - cos(2πn / N).

    >>> hann(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return general_hamming(cls, size, 0.5, sym, dtype, device)


def blackman(cls: type[T], size: int, sym: bool = True, dtype: Any = None, device: str | None = None) -> T:
    """The window of Blackman, of three cosines.

    >>> blackman(1).tolist()
    [1.0]
    """
    return general_cosine(cls, size, (0.42, 0.5, 0.08), sym, dtype, device)


def nuttall(cls: type[T], size: int, sym: bool = True, dtype: Any = None, device: str | None = None) -> T:
    """The window of Nuttall, of four cosines.

    >>> nuttall(1).tolist()
    [1.0]
    """
    return general_cosine(cls, size, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym, dtype, device)


def bartlett(cls: type[T], size: int, sym: bool = True, dtype: Any = None, device: str | None = None) -> T:
    """A triangle from 0 to 1 and back.

    >>> bartlett(3).tolist()
    [0.0, 1.0, 0.0]
    """
    n, period = _places(cls, size, sym, device)
    if size == 1:
        return _of(n * 0.0 + 1.0, dtype)
    return _of(-arithmetic.abs(n * (2.0 / period) - 1.0) + 1.0, dtype)


def cosine(cls: type[T], size: int, sym: bool = True, dtype: Any = None, device: str | None = None) -> T:
    """Half a wave of a sine.

    >>> cosine(1).tolist()
    [1.0]
    """
    n, _ = _places(cls, size, sym, device)
    if size < 2:
        return _of(n * 0.0 + 1.0, dtype)
    return _of(sin((n + 0.5) * (math.pi / (size if sym else size + 1))), dtype)


def exponential(
    cls: type[T],
    size: int,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    device: str | None = None,
) -> T:
    """exp(-|n - center| / tau).

    >>> exponential(1).tolist()
    [1.0]
    """
    if tau <= 0.0:
        raise ArgumentError(f"tau is above 0, unlike {tau}")
    if sym and center is not None:
        raise ArgumentError("a symmetric window has its center in the middle; leave it out")
    n, _ = _places(cls, size, sym, device)
    if size == 1:
        return _of(n * 0.0 + 1.0, dtype)
    middle = (size - 1 if sym else size) / 2.0 if center is None else center
    return _of(exp(arithmetic.abs(n - middle) * (-1.0 / tau)), dtype)


def gaussian(
    cls: type[T], size: int, std: float = 1.0, sym: bool = True, dtype: Any = None, device: str | None = None
) -> T:
    """exp(-(n - middle)² / (2·std²)).

    >>> gaussian(1).tolist()
    [1.0]
    """
    if std <= 0.0:
        raise ArgumentError(f"std is above 0, unlike {std}")
    n, _ = _places(cls, size, sym, device)
    if size == 1:
        return _of(n * 0.0 + 1.0, dtype)
    away = (n - (size - 1 if sym else size) / 2.0) * (1.0 / std)
    return _of(exp(away * away * -0.5), dtype)


def kaiser(
    cls: type[T],
    size: int,
    beta: float = 12.0,
    sym: bool = True,
    dtype: Any = None,
    device: str | None = None,
) -> T:
    """The window of Kaiser: i0(beta · sqrt(1 - x²)) / i0(beta) for x from -1 to 1.

    >>> kaiser(1).tolist()
    [1.0]
    """
    if beta < 0.0:
        raise ArgumentError(f"beta is 0 or more, unlike {beta}")
    n, period = _places(cls, size, sym, device)
    if size == 1:
        return _of(n * 0.0 + 1.0, dtype)
    x = n * (2.0 / period) - 1.0
    inside = sqrt(maximum(-x * x + 1.0, 0.0)) * beta
    return _of(i0(inside) / i0(n * 0.0 + beta), dtype)
