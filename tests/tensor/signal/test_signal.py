"""Transforms of every kind of length against NumPy, pieces and back, windows against SciPy where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from morok import Tensor, fft, signal
from morok.errors import ShapeError

RNG = np.random.default_rng(5)
# one, small, powers of two, several factors, primes on both sides of the direct ones, prime powers
LENGTHS = [1, 2, 7, 49, 60, 101]


def pairs(x: Any) -> Any:
    return np.stack([x.real, x.imag], -1)


def near(got: Tensor, wanted: Any, tolerance: float = 1e-11) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(
        got.numpy(), wanted, atol=tolerance * max(1.0, float(np.abs(wanted).max(initial=0)))
    )


def test_every_length() -> None:
    found = []
    for n in LENGTHS:
        x, z = RNG.standard_normal((2, n)), RNG.standard_normal((n, 2))
        whole = z[:, 0] + 1j * z[:, 1]
        found += [
            (fft.rfft(Tensor(x)), pairs(np.fft.rfft(x))),
            (fft.fft(Tensor(z)), pairs(np.fft.fft(whole))),
            (fft.ifft(Tensor(z)), pairs(np.fft.ifft(whole))),
            (fft.irfft(Tensor(z), n), np.fft.irfft(whole, n)),
        ]
    Tensor.realize(*(got for got, _ in found))
    for got, wanted in found:
        near(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("n", [*range(1, 140), 1009, 1024, 2187, 4096])
def test_all_lengths(n: int) -> None:
    z = RNG.standard_normal((n, 2))
    near(fft.fft(Tensor(z)), pairs(np.fft.fft(z[:, 0] + 1j * z[:, 1])))
    near(fft.rfft(Tensor(z[:, 0])), pairs(np.fft.rfft(z[:, 0])))


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
def test_lengths_axes_and_norms(norm: Any) -> None:
    x = RNG.standard_normal((3, 10, 4))
    near(fft.rfft(Tensor(x), 12, 1, norm), pairs(np.fft.rfft(x, 12, 1, norm)))
    near(fft.rfftn(Tensor(x), norm=norm), pairs(np.fft.rfftn(x, norm=norm)))
    z = x + 1j * RNG.standard_normal((3, 10, 4))
    near(fft.ifftn(Tensor(pairs(z)), (2, 6), (0, 1), norm), pairs(np.fft.ifftn(z, (2, 6), (0, 1), norm)))
    near(fft.irfftn(Tensor(pairs(z)), norm=norm), np.fft.irfftn(z, norm=norm))
    near(fft.fft2(Tensor(pairs(z)), (4, 3), norm=norm), pairs(np.fft.fft2(z, (4, 3), norm=norm)))
    near(fft.ifft2(Tensor(pairs(z)), axes=(0, 2), norm=norm), pairs(np.fft.ifft2(z, axes=(0, 2), norm=norm)))
    near(fft.rfft2(Tensor(x), norm=norm), pairs(np.fft.rfft2(x, norm=norm)))
    near(fft.irfft2(Tensor(pairs(z)), norm=norm), np.fft.irfft2(z, norm=norm))


def test_gradient() -> None:
    """The transform is linear: its gradient is its adjoint."""
    x, weight = RNG.standard_normal(50), RNG.standard_normal((26, 2))
    t = Tensor(x)
    (slope,) = (fft.rfft(t) * Tensor(weight)).sum().gradient(t)
    matrix = np.stack([pairs(np.fft.rfft(row)) for row in np.eye(50)])
    np.testing.assert_allclose(slope.numpy(), (matrix * weight).sum((1, 2)), atol=1e-10)


def test_pieces_and_back() -> None:
    x = RNG.standard_normal((2, 200))
    window = signal.windows.hann(32, sym=False, dtype="float64")
    spectra = signal.stft(Tensor(x), 32, 8, window=window)
    assert spectra.shape == (2, 17, 26, 2)
    padded = np.pad(x, ((0, 0), (16, 16)), mode="reflect")
    frames = np.stack([padded[:, i : i + 32] for i in range(0, 201, 8)], -2) * window.numpy()
    near(spectra, pairs(np.fft.rfft(frames)).transpose(0, 2, 1, 3))
    near(signal.istft(spectra, 32, 8, window=window, length=200), x)
    near(signal.istft(signal.stft(Tensor(x[0]), 32, onesided=False), 32, onesided=False), x[0])


def test_convolution() -> None:
    x, y = RNG.standard_normal(70), RNG.standard_normal(9)
    for mode in ("full", "same", "valid"):
        near(signal.fftconvolve(Tensor(x), Tensor(y), mode), np.convolve(x, y, mode))


def test_frequencies() -> None:
    for n in (4, 5):
        np.testing.assert_allclose(fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), rtol=1e-6)
        np.testing.assert_allclose(fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5), rtol=1e-6)
        x = RNG.standard_normal((n, 3))
        near(fft.fftshift(Tensor(x)), np.fft.fftshift(x))
        near(fft.ifftshift(Tensor(x), 0), np.fft.ifftshift(x, 0))


def test_windows() -> None:
    windows = pytest.importorskip("scipy.signal.windows")
    for name, args in {"hann": (), "hamming": (), "blackman": (), "nuttall": (), "bartlett": (), "cosine": (),
                       "kaiser": (8.0,), "gaussian": (2.0,), "general_hamming": (0.6,)}.items():  # fmt: skip
        for n in (1, 9):
            for sym in (True, False):
                got = getattr(signal.windows, name)(n, *args, sym=sym, dtype="float64").numpy()
                np.testing.assert_allclose(
                    got, getattr(windows, name)(n, *args, sym=sym), atol=1e-12, err_msg=name
                )


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="pairs in a last axis of two"):
        fft.fft(Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(ShapeError, match="has no pieces"):
        signal.stft(Tensor.ones(3), 8, center=False)
