"""Fourier transforms, windows, spectra."""
