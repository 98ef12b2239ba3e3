"""The reference's reductions, running ones, order, and what is composed of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.api.formats import FORMATS, float_of, is_float
from tests.programs.api.movement import _rough, _summed
from tests.programs.api.reference import Core, Reject


def _axis(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _finite(x: Any) -> Any:
    """The sizes of numbers; none of infinities and of what is none."""
    return np.where(np.isfinite(x), np.abs(x), 0.0)


def _count(shape: tuple[int, ...], axis: Any) -> int:
    axes = range(len(shape)) if axis is None or not shape else (axis,) if isinstance(axis, int) else axis
    return int(np.prod([shape[a] for a in axes]))


class Reduce(Core):
    """Many elements to one."""

    __slots__ = ()

    def _wide_type(self) -> str:
        if is_float(self.type):
            return self.type
        return "uint64" if self.type.startswith("u") else "int64"

    def sum(self, axis: Any = None, keepdim: bool = False) -> Any:
        kind = self._wide_type()
        if not is_float(kind):
            return self._whole(np.sum, kind, axis, keepdim)
        with np.errstate(all="ignore"):
            x, e, size, rough = (
                np.sum(a, axis, keepdims=keepdim) for a in (self.x, self.e, _finite(self.x), _rough(self.x))
            )
        return _summed(self, kind, x, e, size, np.asarray(float(_count(self.shape, axis))), rough)

    def _whole(self, way: Any, kind: str, axis: Any, keepdim: bool) -> Any:
        with np.errstate(all="ignore"):
            x = way(self.cast(kind).x, axis=axis, keepdims=keepdim)
        return self.like(x, np.max(self.e, axis, keepdims=keepdim, initial=0.0), kind)

    def prod(self, axis: Any = None, keepdim: bool = False) -> Any:
        kind = self._wide_type()
        if not is_float(kind):
            return self._whole(np.prod, kind, axis, keepdim)
        with np.errstate(all="ignore"):
            x = np.prod(self.x, axis, keepdims=keepdim)
            top = np.prod(np.maximum(np.abs(self.x) + self.e, 1.0), axis, keepdims=keepdim)
            e = np.prod(np.abs(self.x) + self.e, axis, keepdims=keepdim) - np.abs(x)
            many, eps = _count(self.shape, axis), min(FORMATS[kind].eps, FORMATS["float32"].eps)
            small = np.prod(np.minimum(np.abs(self.x), 1.0), axis, keepdims=keepdim)
            whole = np.all((self.x == np.rint(self.x)) & (self.e == 0), axis, keepdims=keepdim) & (
                top < 1 / eps
            )
            e = np.where(whole, 0.0, e * 1.01 + many * eps * np.abs(x) + many * FORMATS["float32"].step * top)
            # On the way there partial products may leave the range that the result is in.
            outside = (top > FORMATS["float32"].largest / 4) | ((small < 1e-30) & (small > 0))
            e = np.where(outside, np.inf, np.where(np.isnan(e), np.where(np.isnan(x), 0.0, np.inf), e))
        return self.rounded(kind, x, e)

    def max(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._extreme(np.max, axis, keepdim)

    def min(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._extreme(np.min, axis, keepdim)

    def _extreme(self, way: Any, axis: Any, keepdim: bool) -> Any:
        if _count(self.shape, axis) == 0:
            raise Reject("nothing")
        with np.errstate(all="ignore"):
            return self.like(way(self.x, axis, keepdims=keepdim), np.max(self.e, axis, keepdims=keepdim))

    def any(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._truths(np.any, True, axis, keepdim)

    def all(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._truths(np.all, False, axis, keepdim)

    def _truths(self, way: Any, decides: bool, axis: Any, keepdim: bool) -> Any:
        truth = self.cast("bool")
        sure = np.any((truth.x == decides) & (truth.e == 0), axis, keepdims=keepdim)
        e = np.max(truth.e, axis, keepdims=keepdim, initial=0.0)
        return self.like(way(truth.x, axis, keepdims=keepdim), np.where(sure, 0.0, e), "bool")

    def count_nonzero(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self.cast("bool").sum(axis, keepdim)

    def mean(self, axis: Any = None, keepdim: bool = False) -> Any:
        kind, many = float_of(self.type), np.float64(_count(self.shape, axis))
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        total = wide.sum(axis, keepdim)
        return total.lift(lambda x: x / many, (), total.type, 2.0)._to(kind)

    def _to(self, kind: str) -> Any:
        return self.rounded(kind, self.x, self.e, 1.0) if kind != self.type else self

    def var(self, axis: Any = None, keepdim: bool = False, correction: int = 1) -> Any:
        kind, many = float_of(self.type), _count(self.shape, axis)
        if many <= correction:
            raise Reject("nothing")
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        away = wide - wide.mean(axis, True)
        total = (away * away).sum(axis, keepdim)
        return total.lift(lambda x: x / (many - correction), (), total.type, 2.0)._to(kind)

    def std(self, axis: Any = None, keepdim: bool = False, correction: int = 1) -> Any:
        spread = self.var(axis, keepdim, correction)
        # Where the variance is no larger than its own error, its root may be anything up to the error's.
        return spread.lift(lambda x: np.sqrt(np.maximum(x, 0)), (), None, 2.0)

    def norm(self, p: float = 2, axis: Any = None, keepdim: bool = False) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind).abs()
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        if p == float("inf"):
            return floats.max(axis, keepdim)
        if p == 1:
            return wide.sum(axis, keepdim)._to(kind)
        return (wide * wide).sum(axis, keepdim).lift(np.sqrt, (), wide.type, 4.0)._to(kind)

    def logsumexp(self, axis: Any = None, keepdim: bool = False) -> Any:
        kind = float_of(self.type)
        if _count(self.shape, axis) == 0:
            raise Reject("nothing")
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        top = wide.max(axis, True)
        if not np.isfinite(top.x).all():
            raise Reject("infinite")
        shifted = (wide - top.like(top.x, np.zeros(top.shape))).exp()
        total = shifted.sum(axis, True).log()
        result = total + top.like(top.x, np.zeros(top.shape))
        return (result if keepdim else result.moved(lambda a: np.squeeze(a, axis)))._to(kind)

    def softmax(self, axis: int = -1) -> Any:
        return self._shares(axis, False)

    def log_softmax(self, axis: int = -1) -> Any:
        return self._shares(axis, True)

    def _shares(self, axis: int, log: bool) -> Any:
        kind = float_of(self.type)
        if self.x.size == 0:
            return self.cast(kind)
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        top = wide.max(axis, True)
        if not np.isfinite(top.x).all():
            raise Reject("infinite")
        sure = top.like(top.x, np.zeros(top.shape))
        shifted = wide - sure
        total = shifted.exp().sum(axis, True)
        return (shifted - total.log() if log else shifted.exp() / total)._to(kind)

    def layer_norm(self) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        away = wide - wide.mean(-1, True)
        return (away * (wide.var(-1, True, 0) + 1e-5).rsqrt())._to(kind)

    def rms_norm(self) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        wide = floats.like(floats.x, floats.e, _accumulator(kind))
        return (wide * ((wide * wide).mean(-1, True) + 1e-6).rsqrt())._to(kind)

    # --- where

    def argmax(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._place(np.argmax, -1, axis, keepdim)

    def argmin(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._place(np.argmin, 1, axis, keepdim)

    def _place(self, way: Any, sign: int, axis: Any, keepdim: bool) -> Any:
        if _count(self.shape, axis) == 0:
            raise Reject("nothing")
        x = way(self.x, axis, keepdims=keepdim)
        e = np.zeros(x.shape)
        if self.e.any():
            with np.errstate(all="ignore"):
                rows = self.wide() * -sign
                best = np.max(rows - self.e, axis, keepdims=True)
                rivals = np.sum(~(rows + self.e < best), axis, keepdims=keepdim)
            e = np.where(rivals > 1, np.inf, 0.0)
        return self.like(x.astype(np.int64), e, "int64")

    # --- running

    def cumsum(self, axis: Any = None) -> Any:
        kind = self._wide_type()
        if not is_float(kind):
            return self._running(np.cumsum, kind, axis)
        with np.errstate(all="ignore"):
            x, e, size, rough = (
                np.cumsum(a, axis) for a in (self.x, self.e, _finite(self.x), _rough(self.x))
            )
        many = self.x.size if axis is None else self.shape[axis] if self.ndim else 1
        return _summed(self, kind, x, e, size, np.asarray(float(many)), rough)

    def _running(self, way: Any, kind: str, axis: Any) -> Any:
        with np.errstate(all="ignore"):
            return self.like(way(self.cast(kind).x, axis), np.cumsum(self.e, axis), kind)

    def cumprod(self, axis: Any = None) -> Any:
        kind = self._wide_type()
        if not is_float(kind):
            return self._running(np.cumprod, kind, axis)
        with np.errstate(all="ignore"):
            x = np.cumprod(self.x, axis)
            e = np.cumprod(np.abs(self.x) + self.e, axis) - np.abs(x)
            top = np.cumprod(np.maximum(np.abs(self.x), 1.0), axis)
            small = np.cumprod(np.minimum(np.abs(self.x), 1.0), axis)
            eps, many = min(FORMATS[kind].eps, FORMATS["float32"].eps), self.x.size
            e = e * 1.01 + many * eps * np.abs(x) + many * FORMATS["float32"].step * top
            outside = (top > FORMATS[kind].largest / 4) | ((small < 1e-30) & (small > 0))
            e = np.where(outside | np.isnan(e), np.inf, e)
        return self.rounded(kind, x, e)

    def cummax(self, axis: int) -> Any:
        return self._furthest(np.maximum, axis)

    def cummin(self, axis: int) -> Any:
        return self._furthest(np.minimum, axis)

    def _furthest(self, way: Any, axis: int) -> Any:
        return self.like(way.accumulate(self.x, axis), np.maximum.accumulate(self.e, axis))

    # --- order

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
        places = self.argsort(dim, descending)
        x = np.take_along_axis(self.x, places.x, dim) if self.ndim else self.x
        worst = (
            np.broadcast_to(np.max(self.e, dim, keepdims=True, initial=0.0), x.shape) if self.ndim else self.e
        )
        return self.like(x, worst), places

    def argsort(self, dim: int = -1, descending: bool = False) -> Any:
        if np.isnan(self.wide()).any():
            raise Reject("where NaN goes, backwards")
        keys = self.x
        if descending:  # the order of equal elements stays
            keys = np.flip(keys, dim)
        places = np.argsort(keys, dim, kind="stable")
        if descending:
            places = np.flip(self.shape[dim] - 1 - places, dim)
        e = np.zeros(places.shape)
        if self.e.any():
            ordered = np.take_along_axis(self.wide(), places, dim)
            slack = 2 * np.max(self.e, dim, keepdims=True)
            close = (np.abs(np.diff(ordered, axis=dim)) <= slack) | np.isinf(
                slack
            )  # infinities have no distance
            none = np.zeros_like(
                np.take(close, [], dim),
                shape=[1 if a == dim % self.ndim else n for a, n in enumerate(self.shape)],
            )
            near = np.concatenate([none, close], dim) | np.concatenate([close, none], dim)
            e = np.where(near, np.inf, 0.0)
        return self.like(places.astype(np.int64), e, "int64")

    def topk(self, k: int, dim: int = -1, largest: bool = True) -> tuple[Any, Any]:
        values, places = self.sort(dim, largest)
        keep = tuple(slice(k) if a == dim % self.ndim else slice(None) for a in range(self.ndim))
        return values.moved(lambda a: a[keep]), places.moved(lambda a: a[keep])

    def median(self, axis: Any = None, keepdim: bool = False) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        x = np.median(floats.x, axis, keepdims=keepdim)
        return self.rounded(kind, x, np.max(floats.e, axis, keepdims=keepdim, initial=0.0), 2.0)

    def searchsorted(self, values: Any, right: bool = False) -> Any:
        if not (self.exact and values.exact) or self.ndim != 1 or self.type != values.type:
            raise Reject("uncertain")
        if (self.x[1:] < self.x[:-1]).any() or np.isnan(self.wide()).any():
            raise Reject("not in order")
        x = np.searchsorted(self.x, values.x, "right" if right else "left")
        return self.like(x.astype(np.int64), np.zeros(x.shape), "int64")


def _accumulator(kind: str) -> str:
    """The type in which statistics of a type are computed."""
    return kind if FORMATS[kind].eps <= FORMATS["float32"].eps else "float32"
