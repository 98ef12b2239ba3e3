"""Spectra of pieces of a signal and back, convolutions by transforms, and the order of frequencies."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.joining import cat, roll
from morok.tensor.arrays.movement import narrow, permute, reshape, squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.creation.constructors import arange, as_operand, contiguous
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.images.taps import overlap_taps, weighted
from morok.tensor.linalg.windows import known_size, slide_axis
from morok.tensor.signal.fourier import fft, ifft, irfft, rfft
from morok.tensor.sizes import as_axes


def _window(x: T, window: Any, length: int, n_fft: int) -> T | None:
    """A window in the middle of n_fft elements; None for one of ones."""
    if window is None:
        if length == n_fft:
            return None
        window = [1.0] * length
    w = cast(as_operand(x, window), x.dtype)
    if w.shape != (length,):
        raise ShapeError(f"a window of {length} elements is needed, not shape {show_shape(w.shape)}")
    before = (n_fft - length) // 2
    return pad(w, [(before, n_fft - length - before)])


def _lengths(n_fft: int, hop: int | None, length: int | None) -> tuple[int, int]:
    step, width = n_fft // 4 if hop is None else hop, n_fft if length is None else length
    if n_fft < 1 or step < 1 or not 0 < width <= n_fft:
        raise ShapeError(
            f"pieces of n_fft={n_fft} elements need a hop of 1 or more and a window of 1 … {n_fft}, "
            f"not {step} and {width}"
        )
    return step, width


@rounded_once
def stft(
    t: T,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool = True,
) -> T:
    """The transforms of overlapping pieces of a real signal (…, n): (…, frequencies, pieces, 2).

    >>> stft(Tensor.ones(8), 4, 2, center=False)[0].tolist()
    [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]
    """
    hop, length = _lengths(n_fft, hop_length, win_length)
    if t.ndim not in (1, 2):
        raise ShapeError(f"stft takes one signal or a batch of them, not shape {show_shape(t.shape)}")
    x = floating(t)
    if center:
        x = pad(x, [*[None] * (x.ndim - 1), (n_fft // 2, n_fft // 2)], mode=pad_mode)
    if known_size(x.shape[-1], "a signal") < n_fft:
        raise ShapeError(f"a signal of {x.shape[-1]} elements has no pieces of {n_fft}")
    pieces = slide_axis(x, x.ndim - 1, n_fft, hop, 1)  # (…, pieces, n_fft)
    w = _window(x, window, length, n_fft)
    pieces = contiguous(pieces if w is None else pieces * w)
    norm = "ortho" if normalized else None
    if onesided:
        found = rfft(pieces, norm=norm)
    else:
        found = fft(pieces.stack(pieces * 0.0, dim=-1), norm=norm)  # type: ignore[attr-defined]
    k = t.ndim - 1
    return permute(found, *range(k), k + 1, k, k + 2)


@rounded_once
def istft(
    t: T,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool = True,
    length: int | None = None,
) -> T:
    """The signal (…, n) whose pieces have the transforms (…, frequencies, pieces, 2): the opposite of `stft`.

    >>> istft(stft(Tensor.ones(8), 4, 2), 4, 2).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    hop, width = _lengths(n_fft, hop_length, win_length)
    wanted = n_fft // 2 + 1 if onesided else n_fft
    if t.ndim not in (3, 4) or t.shape[-1] != 2 or t.shape[-3] != wanted:
        raise ShapeError(f"istft takes (…, {wanted}, pieces, 2), not shape {show_shape(t.shape)}")
    x = floating(t)
    count = known_size(x.shape[-2], "the number of pieces")
    k = x.ndim - 3
    spectra = permute(x, *range(k), k + 1, k, k + 2)
    norm = "ortho" if normalized else None
    if onesided:
        pieces = irfft(spectra, n_fft, norm=norm)
    else:
        pieces = squeeze(narrow(ifft(spectra, norm=norm), -1, 0, 1), -1)
    w = _window(x, window, width, n_fft)
    pieces = pieces if w is None else pieces * w
    total = n_fft + hop * (count - 1)
    taps = overlap_taps(total, n_fft, count, 0, hop)
    flat = contiguous(reshape(permute(pieces, *range(k), k + 1, k), *x.shape[:k], n_fft * count))
    added = weighted(flat, k, *taps)
    squares = cast(as_operand(x, [1.0] * n_fft), x.dtype) if w is None else w * w
    spread = reshape(unsqueeze(squares, 1).expand(n_fft, count), n_fft * count)  # type: ignore[attr-defined]
    cover = weighted(spread, 0, *taps)
    start = n_fft // 2 if center else 0
    stop = total - start if length is None else start + length
    signal, cover = (_cut(v, start, stop, total) for v in (added, cover))
    return signal / where(cover <= 1e-11, 1.0, cover)


def _cut(x: T, start: int, stop: int, total: int) -> T:
    found = narrow(x, -1, start, min(stop, total) - start)
    return pad(found, [*[None] * (x.ndim - 1), (0, stop - total)]) if stop > total else found


def fftconvolve(x: T, other: Any, mode: str = "full", axis: int = -1) -> T:
    """The convolution of real signals along an axis by way of their transforms; SciPy's modes.

    >>> [round(v, 4) for v in fftconvolve(Tensor([1.0, 2.0]), Tensor([1.0, 1.0])).tolist()]
    [1.0, 3.0, 2.0]
    """
    y = as_operand(x, other)
    n, m = (known_size(v.shape[axis], "an axis of a convolution") for v in (x, y))
    size = n + m - 1
    fast = _fast_length(size)
    a, b = rfft(x, fast, axis), rfft(y, fast, axis)
    ar, ai, br, bi = (narrow(v, -1, i, 1) for v in (a, b) for i in (0, 1))
    product = cat(ar * br - ai * bi, ar * bi + ai * br, dim=-1)
    whole = irfft(contiguous(product), fast, axis)
    if mode == "full":
        return narrow(whole, axis, 0, size)
    if mode == "same":
        return narrow(whole, axis, (size - n) // 2, n)
    if mode == "valid":
        return narrow(whole, axis, min(n, m) - 1, max(n, m) - min(n, m) + 1)
    raise ShapeError(f'mode is "full", "same" or "valid", not {mode!r}')


def _fast_length(n: int) -> int:
    """The next length that has no prime factor above 5."""
    while True:
        rest = n
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1:
            return n
        n += 1


# --- frequencies


def fftshift(x: T, axes: Any = None, *, dim: Any = None) -> T:
    """The axes turned so that what belongs to frequency 0 is in the middle.

    >>> fftshift(Tensor([0, 1, 2, -2, -1])).tolist()
    [-2, -1, 0, 1, 2]
    """
    return _shifted(x, axes if dim is None else dim, 1)


def ifftshift(x: T, axes: Any = None, *, dim: Any = None) -> T:
    """The opposite of `fftshift`.

    >>> ifftshift(Tensor([-2, -1, 0, 1, 2])).tolist()
    [0, 1, 2, -2, -1]
    """
    return _shifted(x, axes if dim is None else dim, -1)


def _shifted(x: T, axes: Any, sign: int) -> T:
    for axis in as_axes(axes, x.shape):
        half = known_size(x.shape[axis], "an axis that is turned") // 2
        x = roll(x, sign * half, axis)
    return x


def fftfreq(cls: type[T], n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> T:
    """The frequencies that the pairs of `fft` belong to, of samples d apart."""
    place = arange(cls, n, device=device)
    signed = where(place > (n - 1) // 2, place - n, place)
    return cast(cast(signed, dt.float64) * (1.0 / (n * d)), dtype or dt.default_float)


def rfftfreq(cls: type[T], n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> T:
    """The frequencies that the pairs of `rfft` belong to, of samples d apart."""
    place = arange(cls, n // 2 + 1, device=device)
    return cast(cast(place, dt.float64) * (1.0 / (n * d)), dtype or dt.default_float)
