"""Fourier transforms in n·log(n) steps for every length.

Complex numbers are pairs in a last axis of two: (real, imaginary). An axis of length n = r·m is cut into r
rows of m: transforms of length r down the columns (a product with a small matrix), a turn of each element,
transforms of length m along the rows. Lengths with a large prime factor go by Bluestein's way: a transform is
a convolution with a chirp, and that is done by transforms of a power of two.

Matrices, turns and chirps are constants, computed in double precision. All of it is made of products and
sums, so gradients need no rules of their own.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from morok.errors import ArgumentError, DTypeError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.joining import cat, stack
from morok.tensor.arrays.movement import flip, narrow, permute, reshape, squeeze, transpose, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.creation.constructors import contiguous, from_data, zeros_like
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.products import matmul
from morok.tensor.linalg.windows import known_size
from morok.tensor.sizes import as_axes, as_axis

_DIRECT = 48  # up to this length a transform is one product with a matrix
_RADIX = 32  # the longest transform down the columns
NORMS = ("backward", "ortho", "forward")


# --- constants


def _wave(angle: Any) -> tuple[Any, Any]:
    """Cosines and sines, those of quarter turns exactly."""
    return tuple(np.where(np.abs(v) < 1e-15, 0.0, v) for v in (np.cos(angle), np.sin(angle)))  # type: ignore[return-value]


@lru_cache(maxsize=256)
def _matrix(n: int, sign: int) -> Any:
    """The transform of n pairs as a real matrix (2n, 2n), on (index, part) flattened."""
    angle = sign * 2.0 * math.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n
    c, s = _wave(angle)
    whole = np.empty((n, 2, n, 2))
    whole[:, 0, :, 0], whole[:, 0, :, 1] = c, -s
    whole[:, 1, :, 0], whole[:, 1, :, 1] = s, c
    return whole.reshape(2 * n, 2 * n)


@lru_cache(maxsize=256)
def _turns(r: int, m: int, sign: int) -> tuple[Any, Any]:
    """Cosines and sines (r, m) of the turns between the two steps."""
    angle = sign * 2.0 * math.pi * np.outer(np.arange(r), np.arange(m)) / (r * m)
    return _wave(angle)


@lru_cache(maxsize=64)
def _chirp(n: int, sign: int) -> tuple[Any, Any]:
    """exp(sign·iπk²/n) for k < n; k² is taken modulo 2n, which is exact."""
    k = np.arange(n, dtype=np.int64)
    angle = sign * math.pi * (k * k % (2 * n)) / n
    return _wave(angle)


def _constant(x: T, array: Any) -> T:
    return cast(from_data(x, np.ascontiguousarray(array)), x.dtype)


def _times(x: T, cosine: Any, sine: Any) -> T:
    """Pairs (…, 2) times constants (…)."""
    c, s = (unsqueeze(_constant(x, a), -1) for a in (cosine, sine))
    re, im = narrow(x, -1, 0, 1), narrow(x, -1, 1, 1)
    return cat(re * c - im * s, re * s + im * c, dim=-1)


# --- the transform


def _factor(n: int) -> int:
    """The largest useful factor of n, or 1."""
    return max((r for r in range(2, min(_RADIX, n - 1) + 1) if n % r == 0), default=1)


def transformed(x: T, sign: int) -> T:
    """The transform of pairs (…, n, 2) without a factor; sign -1 is forward."""
    n = known_size(x.shape[-2], "an axis of a transform")
    if n <= 1:
        return x
    lead = x.shape[:-2]
    if n <= _DIRECT:
        flat = reshape(x, *lead, 1, 2 * n)
        found = matmul(flat, _constant(x, _matrix(n, sign).T))
        return reshape(found, *lead, n, 2)
    r = _factor(n)
    if r == 1:
        return _bluestein(x, n, sign)
    m = n // r
    k = len(lead)
    rows = reshape(x, *lead, r, m, 2)
    columns = reshape(permute(rows, *range(k), k, k + 2, k + 1), *lead, 2 * r, m)  # (r, part) by m
    down = matmul(_constant(x, _matrix(r, sign)), columns)
    down = permute(reshape(down, *lead, r, 2, m), *range(k), k, k + 2, k + 1)
    along = transformed(contiguous(_times(down, *_turns(r, m, sign))), sign)
    return reshape(permute(along, *range(k), k + 1, k, k + 2), *lead, n, 2)


def _bluestein(x: T, n: int, sign: int) -> T:
    size = 1 << (2 * n - 2).bit_length()
    cosine, sine = _chirp(n, sign)
    none: list[Any] = [None] * (x.ndim - 2)
    a = transformed(pad(_times(x, cosine, sine), [*none, (0, size - n), None]), -1)
    # the transform of the other chirp is a constant, too
    b = np.zeros(size, np.complex128)
    b[:n] = cosine - 1j * sine
    b[size - n + 1 :] = b[1:n][::-1]
    spectrum = np.fft.fft(b) / size
    c = transformed(contiguous(_times(a, spectrum.real, spectrum.imag)), 1)
    return _times(narrow(c, -2, 0, n), cosine, sine)


def _scale(n: int, norm: str | None, forward: bool) -> float:
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise ArgumentError(f"norm is one of {', '.join(map(repr, NORMS))}, not {norm!r}")
    if norm == "ortho":
        return 1.0 / math.sqrt(max(n, 1))
    return 1.0 / max(n, 1) if (norm == "forward") == forward else 1.0


def _scaled(x: T, factor: float) -> T:
    return x if factor == 1.0 else x * factor


def _require_pairs(x: T, what: str) -> None:
    if x.ndim < 2 or x.shape[-1] != 2:
        raise ShapeError(
            f"{what} takes complex numbers as pairs in a last axis of two, not shape {show_shape(x.shape)}; "
            "rfft takes real ones"
        )


def _fitted(x: T, n: int | None, axis: int) -> T:
    """An axis cut, or filled up with zeros, to n."""
    own = known_size(x.shape[axis], "an axis of a transform")
    n = own if n is None else n
    if n < 1:
        raise ShapeError(f"a transform has a length of 1 or more, not {n}")
    if n < own:
        return narrow(x, axis, 0, n)
    return pad(x, [(0, n - own) if i == axis else None for i in range(x.ndim)]) if n > own else x


def _along(x: T, axis: int, pairs: bool) -> int:
    """An axis of the complex tensor, which the axis of parts is none of."""
    ndim = x.ndim - pairs
    return as_axis(axis, ndim, x.shape[:ndim])


def _complex(x: T, n: int | None, axis: int, norm: str | None, sign: int, what: str) -> T:
    _require_pairs(x, what)
    at = _along(x, axis, True)
    y = _fitted(floating(x), n, at)
    y = transposed = transpose(y, at, -2) if at != x.ndim - 2 else y
    size = known_size(transposed.shape[-2], "an axis of a transform")
    found = _scaled(transformed(y, sign), _scale(size, norm, sign < 0))
    return transpose(found, at, -2) if at != x.ndim - 2 else found


@rounded_once
def fft(x: T, n: int | None = None, axis: int = -1, norm: str | None = None) -> T:
    """The Fourier transform of complex numbers, pairs (real, imaginary) in a last axis of two.

    `axis` counts without the axis of pairs. A length n cuts the axis, or fills it up with zeros.

    >>> fft(Tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """
    return _complex(x, n, axis, norm, -1, "fft")


@rounded_once
def ifft(x: T, n: int | None = None, axis: int = -1, norm: str | None = None) -> T:
    """The opposite of `fft`.

    >>> ifft(Tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    return _complex(x, n, axis, norm, 1, "ifft")


@rounded_once
def rfft(t: T, n: int | None = None, axis: int = -1, norm: str | None = None) -> T:
    """The Fourier transform of real numbers: the first n//2 + 1 pairs, of which the rest are mirror images.

    >>> rfft(Tensor([1.0, 1.0])).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """
    at = _along(t, axis, False)
    x = _fitted(floating(t), n, at)
    size = known_size(x.shape[at], "an axis of a transform")
    x = transpose(x, at, -1) if at != t.ndim - 1 else x
    found = _real_forward(x, size)
    found = _scaled(found, _scale(size, norm, True))
    return transpose(found, at, -2) if at != t.ndim - 1 else found


def _real_forward(x: T, n: int) -> T:
    """Of real rows (…, n) the first half of the transform. Even lengths are half as many pairs."""
    half = n // 2
    if n % 2 or n <= _DIRECT:
        both = stack(x, zeros_like(x), dim=-1)
        return narrow(transformed(both, -1), -2, 0, half + 1)
    # even elements as real parts, odd ones as imaginary parts; then told apart by symmetry
    z = transformed(reshape(x, *x.shape[:-1], half, 2), -1)
    z = cat(z, narrow(z, -2, 0, 1), dim=-2)  # z[half] is z[0]
    mirror = flip(z, -2)
    re, im = narrow(z, -1, 0, 1), narrow(z, -1, 1, 1)
    other_re, other_im = narrow(mirror, -1, 0, 1), narrow(mirror, -1, 1, 1)
    even = cat(re + other_re, im - other_im, dim=-1)
    odd = cat(im + other_im, other_re - re, dim=-1)
    angle = -2.0 * math.pi * np.arange(half + 1) / n
    return (even + _times(odd, *_wave(angle))) * 0.5


@rounded_once
def irfft(t: T, n: int | None = None, axis: int = -1, norm: str | None = None) -> T:
    """The opposite of `rfft`: n real numbers, 2·(m - 1) of m pairs unless said otherwise.

    >>> irfft(Tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [1.0, 1.0]
    """
    _require_pairs(t, "irfft")
    at = _along(t, axis, True)
    count = known_size(t.shape[at], "an axis of a transform")
    size = 2 * (count - 1) if n is None else n
    if size < 1:
        raise ShapeError(f"a transform has a length of 1 or more, not {size}")
    x = _fitted(floating(t), size // 2 + 1, at)
    x = transpose(x, at, -2) if at != t.ndim - 2 else x
    whole = contiguous(mirrored(x, size))
    found = _scaled(squeeze(narrow(transformed(whole, 1), -1, 0, 1), -1), _scale(size, norm, False))
    return transpose(found, at, -1) if at != t.ndim - 2 else found


def mirrored(x: T, n: int) -> T:
    """All n pairs of a transform of real numbers, from the first n//2 + 1; what must be real is."""
    half = n // 2
    re, im = (squeeze(narrow(x, -1, i, 1), -1) for i in (0, 1))
    real = np.ones(half + 1)
    real[0] = 0.0
    if n % 2 == 0:
        real[half] = 0.0
    im = im * _constant(x, real)
    count = n - half - 1
    back_re, back_im = (flip(narrow(p, -1, 1, count), -1) if count else None for p in (re, im))
    if back_re is None or back_im is None:
        return stack(re, im, dim=-1)
    return stack(cat(re, back_re, dim=-1), cat(im, -back_im, dim=-1), dim=-1)


# --- several axes


def _sizes_of(x: T, s: Any, axes: Any, pairs: bool) -> list[tuple[int, int | None]]:
    ndim = x.ndim - pairs
    if axes is None:
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
    found = as_axes(tuple(axes), x.shape[:ndim])
    sizes = [None] * len(found) if s is None else [None if n == -1 else n for n in s]
    if len(sizes) != len(found):
        raise ShapeError(f"{len(found)} axes need as many lengths, not {len(sizes)}")
    return list(zip(found, sizes, strict=True))


def fftn(x: T, s: Any = None, axes: Any = None, norm: str | None = None) -> T:
    """`fft` along several axes; all of them if none are given.

    >>> fftn(Tensor([[[1.0, 0.0], [1.0, 0.0]]])).tolist()
    [[[2.0, 0.0], [0.0, 0.0]]]
    """
    for axis, n in _sizes_of(x, s, axes, True):
        x = fft(x, n, axis, norm)
    return x


def ifftn(x: T, s: Any = None, axes: Any = None, norm: str | None = None) -> T:
    """`ifft` along several axes; all of them if none are given.

    >>> ifftn(Tensor([[[2.0, 0.0], [0.0, 0.0]]])).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    for axis, n in _sizes_of(x, s, axes, True):
        x = ifft(x, n, axis, norm)
    return x


def rfftn(x: T, s: Any = None, axes: Any = None, norm: str | None = None) -> T:
    """`rfft` along the last of several axes, `fft` along the others.

    >>> rfftn(Tensor([[1.0, 1.0]])).tolist()
    [[[2.0, 0.0], [0.0, 0.0]]]
    """
    *others, (last, n) = _sizes_of(x, s, axes, False)
    y = rfft(x, n, last, norm)
    for axis, size in others:
        y = fft(y, size, axis, norm)
    return y


def irfftn(x: T, s: Any = None, axes: Any = None, norm: str | None = None) -> T:
    """The opposite of `rfftn`.

    >>> irfftn(Tensor([[[2.0, 0.0], [0.0, 0.0]]])).tolist()
    [[1.0, 1.0]]
    """
    *others, (last, n) = _sizes_of(x, s, axes, True)
    for axis, size in others:
        x = ifft(x, size, axis, norm)
    return irfft(x, n, last, norm)


_PLANE = (-2, -1)


def fft2(x: T, s: Any = None, axes: Any = _PLANE, norm: str | None = None) -> T:
    """`fft` along two axes, the last ones if no others are given.

    >>> fft2(Tensor([[[1.0, 0.0], [1.0, 0.0]]])).tolist()
    [[[2.0, 0.0], [0.0, 0.0]]]
    """
    return fftn(x, s, axes, norm)


def ifft2(x: T, s: Any = None, axes: Any = _PLANE, norm: str | None = None) -> T:
    """`ifft` along two axes, the last ones if no others are given.

    >>> ifft2(Tensor([[[2.0, 0.0], [0.0, 0.0]]])).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    return ifftn(x, s, axes, norm)


def rfft2(x: T, s: Any = None, axes: Any = _PLANE, norm: str | None = None) -> T:
    """`rfft` along the second of two axes, `fft` along the first.

    >>> rfft2(Tensor([[1.0, 1.0]])).tolist()
    [[[2.0, 0.0], [0.0, 0.0]]]
    """
    return rfftn(x, s, axes, norm)


def irfft2(x: T, s: Any = None, axes: Any = _PLANE, norm: str | None = None) -> T:
    """The opposite of `rfft2`.

    >>> irfft2(Tensor([[[2.0, 0.0], [0.0, 0.0]]])).tolist()
    [[1.0, 1.0]]
    """
    return irfftn(x, s, axes, norm)


def as_pairs(re: T, im: Any = None) -> T:
    """Real and imaginary parts (zeros if there are none) as pairs in a last axis of two.

    >>> as_pairs(Tensor([1.0, 2.0])).tolist()
    [[1.0, 0.0], [2.0, 0.0]]
    """
    other = zeros_like(re) if im is None else im
    if other.shape != re.shape:
        raise ShapeError(f"parts of shapes {show_shape(re.shape)} and {show_shape(other.shape)} are no pairs")
    if not re.dtype.is_float:
        raise DTypeError(f"parts of complex numbers are floats, not {re.dtype}")
    return stack(re, other, dim=-1)
