"""Pools whose windows begin at random places (Graham's fractional pooling)."""

from __future__ import annotations

from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.sizes import concrete_shape
from morok.tensor.tensor import Tensor


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The largest value of windows of (N, C, H, W) that begin at random, about evenly spaced places.

    >>> fractional_max_pool2d(Tensor.ones(1, 1, 5, 5), 2, output_size=3).shape
    (1, 1, 3, 3)
    """
    return _fractional(input, kernel_size, output_size, output_ratio, return_indices, _random_samples, 2)


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The largest value of windows of (N, C, D, H, W) that begin at random, about evenly spaced places.

    >>> fractional_max_pool3d(Tensor.ones(1, 1, 4, 4, 4), 2, output_ratio=0.5).shape
    (1, 1, 2, 2, 2)
    """
    return _fractional(input, kernel_size, output_size, output_ratio, return_indices, _random_samples, 3)


def _fractional(
    x: Tensor, kernel: Any, size: Any, ratio: Any, indices: bool, samples: Tensor | None, axes: int
) -> Any:
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"this pool takes {axes + 1} or {axes + 2} axes, not {show_shape(x.shape)}")
    if (size is None) == (ratio is None):
        raise ArgumentError("one of output_size and output_ratio says how large the result is")
    if x.ndim == axes + 1:
        found = _fractional(x.unsqueeze(0), kernel, size, ratio, indices, samples, axes)
        return tuple(part.squeeze(0) for part in found) if indices else found.squeeze(0)
    batch, channels, *sizes = concrete_shape(x.shape)
    windows = _each(kernel, axes)
    wanted = (
        _each(size, axes)
        if ratio is None
        else [int(n * r) for n, r in zip(sizes, _each(ratio, axes), strict=True)]
    )
    if any(k + o - 1 > n or o < 1 for k, o, n in zip(windows, wanted, sizes, strict=True)):
        raise ShapeError(f"{wanted} windows of {windows} do not fit {show_shape(x.shape)}")
    if samples is None:
        samples = Tensor.rand(batch, channels, axes, dtype=x.dtype, device=x.device)
    # PyTorch's samples begin with the innermost axis if there are two, with the outermost if there are three
    order = (1, 0) if axes == 2 else (0, 1, 2)
    place: Any = 0
    for i, (n, k, o) in enumerate(zip(sizes, windows, wanted, strict=True)):
        starts = _starts(samples.select(2, order[i]), n, k, o)  # (N, C, o)
        at = (starts.unsqueeze(-1) + Tensor.arange(k)).reshape(batch, channels, o * k)
        lead, rest = (1,) * i, (1,) * (axes - 1 - i)
        x = x.take_along_dim(at.reshape(batch, channels, *lead, o * k, *rest), 2 + i)
        parts = [part for j in range(axes) for part in ((wanted[j], windows[j]) if j == i else (1, 1))]
        place = place * n + at.reshape(batch, channels, *parts)
    cut = x.reshape(batch, channels, *(part for o, k in zip(wanted, windows, strict=True) for part in (o, k)))
    outer, inner = range(2, 2 + 2 * axes, 2), range(3, 3 + 2 * axes, 2)
    flat = cut.permute(0, 1, *outer, *inner).reshape(batch, channels, *wanted, -1)
    values = flat.max(-1)
    if not indices:
        return values
    places = place.expand(*cut.shape).permute(0, 1, *outer, *inner).reshape(*flat.shape)
    return values, places.gather(-1, flat.argmax(-1, keepdim=True)).squeeze(-1)


def _starts(u: Tensor, size: int, kernel: int, count: int) -> Tensor:
    """Where each of so many windows begins, from one number per channel; the last one ends at the end."""
    last = size - kernel
    if count == 1:
        return Tensor.full((*u.shape, 1), last, dtype="int64")
    alpha = last / (count - 1)
    u = u.unsqueeze(-1)
    i = Tensor.arange(count)
    steps = ((u + i) * alpha).cast("int64") - (u * alpha).cast("int64")
    return (i < count - 1).where(steps, last)


def _each(value: Any, axes: int) -> list[Any]:
    many = list(value) if isinstance(value, tuple | list) else [value] * axes
    if len(many) != axes:
        raise ShapeError(f"{axes} numbers are needed, not {value!r}")
    return many
