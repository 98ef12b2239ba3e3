"""`morok.signal`: spectra of pieces of signals, convolutions by transforms, windows."""

from morok.functions.signal import windows as windows
from morok.functions.signal.pieces import fftconvolve, istft, stft

__all__ = ["stft", "istft", "fftconvolve"]
