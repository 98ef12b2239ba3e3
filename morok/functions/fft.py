"""`morok.fft`: Fourier transforms. Complex numbers are pairs (real, imaginary) in a last axis of two."""

from __future__ import annotations

from typing import Any

from morok.tensor.calls.record import recorded
from morok.tensor.signal import fourier, spectra
from morok.tensor.tensor import Tensor

as_pairs = recorded(fourier.as_pairs)
fft, ifft = recorded(fourier.fft), recorded(fourier.ifft)
rfft, irfft = recorded(fourier.rfft), recorded(fourier.irfft)
fftn, ifftn = recorded(fourier.fftn), recorded(fourier.ifftn)
rfftn, irfftn = recorded(fourier.rfftn), recorded(fourier.irfftn)
fft2, ifft2 = recorded(fourier.fft2), recorded(fourier.ifft2)
rfft2, irfft2 = recorded(fourier.rfft2), recorded(fourier.irfft2)
fftshift, ifftshift = recorded(spectra.fftshift), recorded(spectra.ifftshift)


def fftfreq(n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> Tensor:
    """The frequencies that the pairs of `fft` belong to, of samples d apart.

    >>> fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return spectra.fftfreq(Tensor, n, d, dtype, device)


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> Tensor:
    """The frequencies that the pairs of `rfft` belong to, of samples d apart.

    >>> rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return spectra.rfftfreq(Tensor, n, d, dtype, device)
