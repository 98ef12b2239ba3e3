"""The reference's products and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.api.formats import FORMATS, NUMPY, Array, common, float_of, is_float
from tests.programs.api.movement import _rough, _summed
from tests.programs.api.reduce import _accumulator
from tests.programs.api.reference import Core, Reject


class Products(Core):
    """Sums of products, and windows."""

    __slots__ = ()

    def _product(self, others: tuple[Any, ...], way: Any) -> Any:
        """`way` is linear in every operand."""
        kind = common([t.type for t in (self, *others)])
        parts = [p.cast(kind) for p in (self, *others)]
        if not is_float(kind):
            if any(p.e.any() for p in parts):
                raise Reject("uncertain")
            with np.errstate(all="ignore"):
                x = _whole_product(way, [p.x for p in parts], kind)
            return self.like(x, np.zeros(x.shape), kind)
        with np.errstate(all="ignore"):
            x = way(*(p.x for p in parts))
            size = way(*(np.abs(p.x) for p in parts))
            e = way(*(np.abs(p.x) + p.e for p in parts)) - size
            if any(p.e.any() for p in parts):
                e = e * 1.01 + 1e-15 * size
            many = way(*(np.ones(p.shape) for p in parts))
            # Products of multiples of 1/32 are multiples of 1/1024; of three, nothing is said.
            dirt = [_rough(p.x, 32) for p in parts]
            rough = many * (len(parts) > 2) + sum(
                way(*(dirt[i] if i == j else np.ones(p.shape) for i, p in enumerate(parts)))
                for j in range(len(parts))
            )
            # each product may be rounded to a multiple of the smallest number
            e = e + np.where(rough > 0, many * (len(parts) - 1) * FORMATS[_accumulator(kind)].step / 2, 0.0)
            e = np.where(np.isnan(e), np.where(np.isnan(x), 0.0, np.inf), e)
            if not all(np.isfinite(p.x).all() for p in parts):
                raise Reject("infinite")
        return _summed(self, kind, x, e, size * (1 + (len(parts) > 2)), many, rough)

    def __matmul__(self, other: Any) -> Any:
        return self._product((other,), np.matmul)

    def dot(self, other: Any) -> Any:
        return self._product((other,), np.dot)

    def outer(self, other: Any) -> Any:
        return self._product((other,), np.outer)

    def inner(self, other: Any) -> Any:
        return self._product((other,), np.inner)

    def kron(self, other: Any) -> Any:
        return self._product((other,), np.kron)

    def tensordot(self, other: Any, axes: Any = 2) -> Any:
        return self._product((other,), lambda a, b: np.tensordot(a, b, axes))

    @staticmethod
    def einsum(formula: str, *parts: Any) -> Any:
        return parts[0]._product(parts[1:], lambda *arrays: np.einsum(formula, *arrays))

    def linear(self, weight: Any, bias: Any = None) -> Any:
        product = self._product((weight,), lambda a, b: np.matmul(a, np.swapaxes(b, -1, -2)))
        return product if bias is None else product + bias

    # --- windows of the last axes

    def conv2d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        rank = self.ndim - 2
        if rank < 1:
            raise Reject("no axes")
        product = self._product(
            (weight,), lambda x, w: _convolve(x, w, rank, stride, padding, dilation, groups)
        )
        return product if bias is None else product + bias.moved(lambda a: a.reshape(-1, *[1] * rank))

    conv1d = conv3d = conv2d

    def max_pool2d(self, size: Any, stride: Any = None, padding: int = 0, rank: int = 2) -> Any:
        stride = size if stride is None else stride
        low = (
            -np.inf
            if is_float(self.type)
            else False
            if self.type == "bool"
            else np.iinfo(NUMPY[self.type]).min
        )
        x = _windows(self.x, rank, size, stride, padding, 1, low)
        e = _windows(self.e, rank, size, stride, padding, 1, 0.0)
        axes = tuple(range(x.ndim - rank, x.ndim))
        with np.errstate(all="ignore"):
            return self.like(np.max(x, axes), np.max(e, axes))

    def max_pool1d(self, size: Any, stride: Any = None, padding: int = 0) -> Any:
        return self.max_pool2d(size, stride, padding, 1)

    def avg_pool2d(self, size: Any, stride: Any = None, padding: int = 0, rank: int = 2) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        stride = size if stride is None else stride
        windows = wide.moved(lambda a: _windows(a, rank, size, stride, padding, 1, 0.0))
        return windows.mean(tuple(range(windows.ndim - rank, windows.ndim)))._to(kind)

    def avg_pool1d(self, size: Any, stride: Any = None, padding: int = 0) -> Any:
        return self.avg_pool2d(size, stride, padding, 1)


def _whole_product(way: Any, arrays: list[Array], kind: str) -> Array:
    """Integers wrap around modulo the type, so they may be multiplied in 64 bits; truths are or-ed."""
    if kind == "bool":
        return np.asarray(way(*(a.astype(np.int64) for a in arrays)) != 0)
    return np.asarray(way(*(a.astype(np.int64) for a in arrays))).astype(NUMPY[kind])


def _pair(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _windows(a: Array, rank: int, size: Any, stride: Any, padding: Any, dilation: Any, fill: Any) -> Array:
    """(…, out…, window…): strided windows of the last `rank` axes."""
    size, stride, padding, dilation = (_pair(v, rank) for v in (size, stride, padding, dilation))
    a = np.pad(a, [(0, 0)] * (a.ndim - rank) + [(p, p) for p in padding], constant_values=fill)
    spans = tuple(d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True))
    axes = tuple(range(a.ndim - rank, a.ndim))
    if any(a.shape[axis] < span for axis, span in zip(axes, spans, strict=True)):
        raise Reject("no window fits")
    view = np.lib.stride_tricks.sliding_window_view(a, spans, axes)
    starts = tuple(slice(None, None, s) for s in stride)
    steps = tuple(slice(None, None, d) for d in dilation)
    return view[(..., *starts, *steps)]


def _convolve(x: Array, w: Array, rank: int, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    windows = _windows(x, rank, w.shape[2:], stride, padding, dilation, 0)
    n, outs = x.shape[0], windows.shape[2 : 2 + rank]
    split = windows.reshape(n, groups, x.shape[1] // groups, *windows.shape[2:])
    kernels = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    spatial, inner = "hij"[:rank], "xyz"[:rank]
    made = np.einsum(f"ngc{spatial}{inner},gkc{inner}->ngk{spatial}", split, kernels)
    return made.reshape(n, w.shape[0], *outs)
