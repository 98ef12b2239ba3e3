"""Operators that torch itself does not take apart, written with others of torch's: lists of tensors, and some
whose formula is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

_EACH = """
    abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min copy cos cosh div erf erfc exp expm1 floor
    frac lerp lgamma log log10 log1p log2 max maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid
    sign sin sinh sqrt sub tan tanh trunc zero
"""


def composed() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Overloads, and how they are written."""
    aten = torch.ops.aten
    for name in _EACH.split():
        packet = getattr(aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            if not overload.endswith("out"):
                yield getattr(packet, overload), _each(_ONE.get(name) or getattr(aten, name))
    yield aten._weight_norm_interface_backward.default, _weight_norm_backward
    yield aten.fake_quantize_per_tensor_affine_cachemask.default, _fake_quantize
    yield aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, _fake_quantize_by_tensors
    yield aten.fake_quantize_per_channel_affine_cachemask.default, _fake_quantize_channels


# --- lists of tensors, as optimisers on GPUs have them


def _each(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function of tensors for lists of them; what is no list is for all."""

    def every(*args: Any, **kwargs: Any) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, list | tuple))
        rows = [[a[n] if isinstance(a, list | tuple) else a for a in args] for n in range(count)]
        return [function(*row, **kwargs) for row in rows]

    return every


_ONE: dict[str, Callable[..., Any]] = {
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else x.clamp(min=y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, torch.Tensor) else x.clamp(max=y),
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "copy": lambda x, other, non_blocking=False: other.to(x.dtype).expand_as(x).clone(),
    "zero": torch.zeros_like,
}


# --- formulas


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    others = [n for n in range(v.ndim) if n != dim % v.ndim]
    along = (grad * v).sum(others, keepdim=True) / norms
    return g / norms * (grad - v * (along / norms)), along.reshape(g.shape)


def _fake_quantize(x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any]:
    whole = torch.round(x * (1.0 / scale)) + zero
    inside = (whole >= low) & (whole <= high)
    return ((whole.clamp(low, high) - zero) * scale).to(x.dtype), inside


def _fake_quantize_by_tensors(
    x: Any, scale: Any, zero: Any, enabled: Any, low: int, high: int
) -> tuple[Any, Any]:
    made, inside = _fake_quantize(x, scale, zero, low, high)
    off = enabled.reshape(()) == 0
    return torch.where(off, x, made), off | inside


def _fake_quantize_channels(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> tuple[Any, Any]:
    sizes = [-1 if n == axis % x.ndim else 1 for n in range(x.ndim)]
    return _fake_quantize(x, scale.reshape(sizes), zero.reshape(sizes), low, high)
