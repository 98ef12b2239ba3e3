"""Spectra of pieces of signals, and convolutions by transforms."""

from __future__ import annotations

from morok.tensor.calls.record import recorded
from morok.tensor.signal import spectra

stft, istft = recorded(spectra.stft), recorded(spectra.istft)
fftconvolve = recorded(spectra.fftconvolve)
