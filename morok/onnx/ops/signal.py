"""Fourier transforms as products with matrices of cosines and sines, windows of signals, mel weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.onnx.ops.common import axis_of, back, known
from morok.onnx.table import Nums, T, op
from morok.onnx.types import Array, numpy_type
from morok.onnx.values import Host, Value
from morok.tensor.tensor import Tensor


@op("DFT", since=20)
def dft(x: T, length: Nums | None, axis: Nums | None, *, inverse: int = 0, onesided: int = 0) -> T:
    return _dft(x, length, int(axis[0]) if axis else -2, inverse, onesided)


@op("DFT", since=17, until=19)
def dft_17(x: T, length: Nums | None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> T:
    return _dft(x, length, axis, inverse, onesided)


def _dft(x: Tensor, length: Any, axis: int, inverse: int, onesided: int) -> Tensor:
    axis = axis_of(axis, x.ndim)
    have = known(x.shape[axis], "DFT")
    moved = x.movedim(axis, -2)  # (…, n, 1 or 2)
    if inverse and onesided:  # the other half is the conjugate of this one; the result is real
        n = int(length[0]) if length else 2 * (have - 1)
        made = _inverse_real(moved, n)
    else:
        n = int(length[0]) if length else have
        made = _transformed(_cut(moved, n), n, bool(inverse), n // 2 + 1 if onesided else n)
    return back(made.movedim(-2, axis), x.dtype)


def _cut(x: Tensor, n: int) -> Tensor:
    """The axis before the last, cut or filled with zeros to a length."""
    have = known(x.shape[-2], "DFT")
    if have > n:
        return x[..., :n, :]
    return x.pad(((0, 0),) * (x.ndim - 2) + ((0, n - have), (0, 0))) if have < n else x


def waves(n: int, rows: int, kind: Any) -> tuple[Array, Array]:
    """Cosines and sines of all products of places and frequencies."""
    turns = np.outer(np.arange(rows), np.arange(n)) % n
    angle = 2 * np.pi * turns / n
    return np.cos(angle).astype(kind), np.sin(angle).astype(kind)


def _transformed(x: Tensor, n: int, inverse: bool, rows: int) -> Tensor:
    kind = dt.float64 if x.dtype is dt.float64 else dt.float32
    y = x.cast(kind) if x.dtype is not kind else x
    c, s = (Tensor(a) for a in waves(n, rows, kind.numpy))
    if inverse:
        s = -s
    re = y[..., 0]
    real, imaginary = re.matmul(c.T), -re.matmul(s.T)
    if x.shape[-1] == 2:
        im = y[..., 1]
        real, imaginary = real + im.matmul(s.T), imaginary + im.matmul(c.T)
    made = real.stack(imaginary, dim=-1)
    return made / n if inverse else made


def _inverse_real(x: Tensor, n: int) -> Tensor:
    half = _cut(x, n // 2 + 1)
    kind = dt.float64 if x.dtype is dt.float64 else dt.float32
    c, s = waves(n, n, kind.numpy)
    weight = np.full(n // 2 + 1, 2.0)
    weight[0] = 1.0
    if n % 2 == 0:
        weight[-1] = 1.0
    cos = Tensor((c[:, : n // 2 + 1] * weight / n).astype(kind.numpy))
    sin = Tensor((s[:, : n // 2 + 1] * weight / n).astype(kind.numpy))
    y = half.cast(kind)
    im = y[..., 1] if x.shape[-1] == 2 else y[..., 0] * 0
    return (y[..., 0].matmul(cos.T) - im.matmul(sin.T)).unsqueeze(-1)


@op("STFT", since=17)
def stft(signal: T, step: Nums, window: T | None, length: Nums | None, *, onesided: int = 1) -> T:
    n = int(length[0]) if length else known(window.shape[0] if window is not None else 0, "STFT")
    frames = signal.unfold(1, n, int(step[0])) if signal.ndim == 2 else _frames(signal, n, int(step[0]))
    if frames.ndim == 3:
        frames = frames.unsqueeze(-1)
    if window is not None:
        frames = frames * window.cast(frames.dtype).reshape((n, 1))
    return back(_transformed(frames, n, False, n // 2 + 1 if onesided else n), signal.dtype)


def _frames(signal: Tensor, n: int, step: int) -> Tensor:
    parts = signal.unfold(1, n, step)  # (batch, frames, 1 or 2, n)
    return parts.movedim(-1, -2)


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    bins: Nums, size: Nums, rate: Nums, low: Nums, high: Nums, *, output_datatype: int = 1
) -> Value:
    """Weights from frequencies to bands that are equally wide in mel."""
    count, n = int(bins[0]), int(size[0])
    rows = n // 2 + 1
    edges = np.arange(count + 2, dtype=np.float64)
    first, last = (2595 * np.log10(1 + float(f[0]) / 700) for f in (low, high))
    points = 700 * (np.power(10, (edges * ((last - first) / (count + 2)) + first) / 2595) - 1)
    at = ((n + 1) * points // int(rate[0])).astype(int)
    made = np.zeros((rows, count))
    for i in range(count):
        left, middle, right = at[i : i + 3]
        if middle == left:
            made[middle, i] = 1
        else:
            made[left : middle + 1, i] = (np.arange(left, middle + 1) - left) / (middle - left)
        if right > middle:
            made[middle:right, i] = (right - np.arange(middle, right)) / (right - middle)
    return Host(made.astype(numpy_type(output_datatype)), output_datatype)


def _window(name: str, terms: tuple[float, ...]) -> None:
    @op(name, since=17)
    def window(size: Nums, *, output_datatype: int = 1, periodic: int = 1) -> Value:
        n = int(size[0])
        angle = 2 * np.pi * np.arange(n) / (n if periodic else max(n - 1, 1))
        made = sum((t * np.cos(k * angle) for k, t in enumerate(terms)), np.zeros(n))
        return Host(np.asarray(made).astype(numpy_type(output_datatype)), output_datatype)


_window("HannWindow", (0.5, -0.5))
_window("HammingWindow", (25 / 46, -21 / 46))
_window("BlackmanWindow", (0.42, -0.5, 0.08))
