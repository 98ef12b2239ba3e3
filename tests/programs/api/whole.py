"""The whole reference: the parts, what is composed of them, and the makers that are called on the class."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.api.elementwise import Elementwise, _add, _sigmoid, _unsure
from tests.programs.api.formats import FORMATS, NUMPY, Array, float_of, is_float
from tests.programs.api.movement import Movement, _grid, _places, _unique
from tests.programs.api.products import Products, _pair
from tests.programs.api.reduce import Reduce, _accumulator
from tests.programs.api.reference import Reject


class Reference(Elementwise, Movement, Reduce, Products):
    """All of it."""

    __slots__ = ()

    # --- makers

    @classmethod
    def full(cls, shape: Any, value: Any, dtype: str) -> Any:
        return cls(np.full(shape, value, NUMPY[dtype]))

    @classmethod
    def zeros(cls, *shape: int, dtype: str) -> Any:
        return cls(np.zeros(shape, NUMPY[dtype]))

    @classmethod
    def ones(cls, *shape: int, dtype: str) -> Any:
        return cls(np.ones(shape, NUMPY[dtype]))

    @classmethod
    def arange(cls, start: int, stop: int, step: int, dtype: str) -> Any:
        return cls(np.arange(start, stop, step).astype(NUMPY[dtype]))

    @classmethod
    def eye(cls, rows: int, columns: int, dtype: str) -> Any:
        return cls(np.eye(rows, columns).astype(NUMPY[dtype]))

    # --- functions of elements

    def frac(self) -> Any:
        if not is_float(self.type):
            raise Reject("whole")
        whole = self.jump(np.trunc)
        result = self.like(self.x - whole.x, np.where(np.isinf(whole.e), np.inf, self.e))
        return _unsure(result, np.isinf(self.x))

    def xlogy(self, value: Any) -> Any:
        a, b, kind = self._floats(value)
        product = _add(a * b.log(), 4 * FORMATS[kind].eps * np.abs(a.x))
        zero = (a.x == 0) & ~np.isnan(b.x)
        x, e = np.where(zero, 0.0, product.x), np.where(zero & (a.e == 0), 0.0, product.e)
        return self.like(x, np.where(np.abs(a.x) <= a.e, np.where(zero & (a.e == 0), 0.0, np.inf), e), kind)

    def addcdiv(self, x: Any, y: Any, value: Any = 1) -> Any:
        return self + x / y * value

    def softshrink(self, by: float) -> Any:
        def moved(x: Array) -> Array:
            return np.where(x > by, x - by, np.where(x < -by, x + by, x * 0))

        return _add(self.lift(moved), 2 * FORMATS[float_of(self.type)].eps * by)

    def celu(self, alpha: float) -> Any:
        return self.lift(lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)), ulps=8.0)

    def quick_gelu(self) -> Any:
        result = self.lift(lambda x: x * _sigmoid(1.702 * x), ulps=12.0, reach=1.0)
        # the product 1.702 x is rounded, and so is the sigmoid, which may have few digits
        wide = FORMATS["float64" if self.type == "float64" else "float32"]
        return _add(result, 2 * np.abs(self.wide()) * (wide.eps * np.abs(result.x) + wide.step))

    # --- reductions

    def _without_nan(self, fill: float) -> Any:
        return self.like(np.where(np.isnan(self.x), fill, self.x), self.e) if is_float(self.type) else self

    def nansum(self, axis: Any = None, keepdim: bool = False) -> Any:
        return self._without_nan(0.0).sum(axis, keepdim)

    def nanmax(self, axis: Any = None, keepdim: bool = False) -> Any:
        if is_float(self.type) and np.isnan(self.x).all(axis).any():
            raise Reject("nothing left")
        return self._without_nan(-np.inf).max(axis, keepdim)

    def nanmean(self, axis: Any = None, keepdim: bool = False) -> Any:
        if not is_float(self.type):
            return self.mean(axis, keepdim)
        many = np.sum(~np.isnan(self.x), axis, keepdims=keepdim)
        if (many == 0).any():
            raise Reject("nothing left")
        wide = self.like(self.x, self.e, _accumulator(self.type))
        total = wide.nansum(axis, keepdim)
        return total.lift(lambda x: x / many, (), total.type, 2.0)._to(self.type)

    def aminmax(self, axis: Any = None, keepdim: bool = False) -> tuple[Any, Any]:
        return self.min(axis, keepdim), self.max(axis, keepdim)

    def var_mean(self, axis: Any = None, keepdim: bool = False) -> tuple[Any, Any]:
        return self.var(axis, keepdim), self.mean(axis, keepdim)

    def quantile(self, q: float, axis: Any = None, keepdim: bool = False) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        if not np.isfinite(floats.x).all() or not floats.x.size:
            raise Reject("infinite")
        x = np.quantile(floats.x, q, axis, keepdims=keepdim)
        size = np.max(np.abs(floats.x), axis, keepdims=keepdim)
        e = np.max(floats.e, axis, keepdims=keepdim)
        # The place between two elements is rounded too.
        return self.rounded(kind, x, e + (4 + self.x.size / 4) * FORMATS[_accumulator(kind)].eps * size, 2.0)

    def logcumsumexp(self, axis: int) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        if not np.isfinite(floats.x).all():
            raise Reject("infinite")
        x = np.logaddexp.accumulate(floats.x, axis)
        form, many = FORMATS[_accumulator(kind)], self.shape[axis]
        top = np.maximum.accumulate(np.abs(floats.x), axis)
        e = np.maximum.accumulate(floats.e, axis) * 1.01 + (many + 8) * form.eps * (1 + top)
        return self.rounded(kind, x, e, 4.0)

    def trace(self) -> Any:
        return self.diagonal().sum(-1)

    def vdot(self, other: Any) -> Any:
        return self.ravel().dot(other.ravel())

    def cross(self, other: Any) -> Any:
        a, b, kind = self.both(other)
        if not is_float(kind):
            return a.together(np.cross, (b,), kind)
        (a0, a1, a2), (b0, b1, b2) = a.unbind(-1), b.unbind(-1)
        return (a1 * b2 - a2 * b1).stack(a2 * b0 - a0 * b2, a0 * b1 - a1 * b0, dim=-1)

    # --- places

    def index_copy(self, dim: int, index: Any, source: Any) -> Any:
        shape = [1] * self.ndim
        shape[dim] = -1
        places = np.broadcast_to(_places(index).reshape(shape), source.shape)
        return self.scatter(dim, index.like(places, np.zeros(places.shape), "int64"), source)

    def scatter_reduce(self, dim: int, index: Any, source: Any, reduce: str) -> Any:
        places = _places(index)
        if source.type != self.type or self.type == "bool":
            raise Reject("another type")
        if reduce == "sum":
            return self.scatter_add(dim, index, source)
        way = {"amax": np.maximum, "amin": np.minimum}[reduce]
        if not (np.isfinite(self.wide()).all() and np.isfinite(source.wide()).all()):
            raise Reject("infinite")
        x, e = self.x.copy(), np.array(self.e)
        box = tuple(slice(size) for size in places.shape)
        where = _grid(places, dim)
        way.at(x, where, source.x[box])
        np.maximum.at(e, where, source.e[box])
        return self.like(x, e)

    def index_put(self, indices: tuple[Any, ...], values: Any) -> Any:
        places = tuple(_places(index) for index in indices)
        if values.type != self.type:
            raise Reject("another type")
        flat = np.ravel_multi_index(places, self.shape[: len(places)], mode="wrap")
        _unique(flat.reshape(1, -1), 1)
        x, e = self.x.copy(), np.array(self.e)
        x[places], e[places] = values.x, values.e
        return self.like(x, e)

    def masked_select(self, mask: Any, size: int) -> Any:
        if mask.e.any() or mask.type != "bool":
            raise Reject("an uncertain mask")
        keep = np.broadcast_to(mask.x, self.shape)

        def chosen(a: Array) -> Array:
            found = a[keep][:size]
            return np.concatenate([found, np.zeros(size - len(found), a.dtype)])

        return self.moved(chosen)

    def nonzero(self, size: int) -> Any:
        if self.e.any() or self.ndim == 0:
            raise Reject("uncertain")
        found = np.argwhere(self.x)[:size]
        rest = np.full((size - len(found), self.ndim), -1)
        x = np.concatenate([found, rest]).astype(np.int64)
        return self.like(x, np.zeros(x.shape), "int64")

    # --- windows

    def conv_transpose2d(self, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> Any:
        rank = self.ndim - 2
        if rank < 1:
            raise Reject("no axes")
        product = self._product((weight,), lambda x, w: _spread_out(x, w, rank, stride, padding))
        return product if bias is None else product + bias.moved(lambda a: a.reshape(-1, *[1] * rank))

    conv_transpose1d = conv_transpose2d

    def adaptive_avg_pool2d(self, size: Any, rank: int = 2) -> Any:
        kind = float_of(self.type)
        floats = self.cast(kind)
        result = floats.like(floats.x, floats.e, _accumulator(kind))
        for axis, outs in zip(range(self.ndim - rank, self.ndim), _pair(size, rank), strict=True):
            n = self.shape[axis]
            parts = [
                result.narrow(axis, i * n // outs, -(-(i + 1) * n // outs) - i * n // outs).mean(axis)
                for i in range(outs)
            ]
            result = parts[0].stack(*parts[1:], dim=axis)
        return result._to(kind)

    def adaptive_avg_pool1d(self, size: int) -> Any:
        return self.adaptive_avg_pool2d(size, 1)

    def interpolate(self, scale_factor: int) -> Any:
        result = self
        for axis in range(2, self.ndim):
            result = result.repeat_interleave(scale_factor, axis)
        return result

    # --- parts of networks

    def scaled_dot_product_attention(self, key: Any, value: Any, is_causal: bool = False) -> Any:
        if not is_float(self.type) or not self.type == key.type == value.type:
            raise Reject("floats of one type")
        wide = _accumulator(self.type)
        q, k = (t.like(t.x, t.e, wide) for t in (self, key))
        scores = (q @ k.transpose(-1, -2)) * (1 / np.sqrt(self.shape[-1]))
        if is_causal:
            keep = np.tril(np.ones(scores.shape[-2:], bool))
            scores = scores.like(np.where(keep, scores.x, -1e300), np.where(keep, scores.e, 0.0))
        # The weights meet the values in the values' type, as in PyTorch: that is what matrix units multiply.
        return scores.softmax(-1)._to(self.type) @ value

    def cross_entropy(self, target: Any) -> Any:
        places = _places(target)
        if not is_float(self.type) or (places < 0).any() or (places >= self.shape[-1]).any():
            raise Reject("no class")
        wide = self.like(self.x, self.e, _accumulator(self.type))
        logs = wide.log_softmax(-1)
        return -(logs.moved(lambda a: np.take_along_axis(a, places[..., None], -1)).mean())._to(self.type)


def _spread_out(x: Array, w: Array, rank: int, stride: Any, padding: Any) -> Array:
    """(N, C, …) times (C, out, …): every element adds its kernel at `stride` times its place."""
    strides, padding = _pair(stride, rank), _pair(padding, rank)
    sizes = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, w.shape[2:], strict=True)]
    made = np.zeros((x.shape[0], w.shape[1], *sizes), np.result_type(x, w))
    for offset in np.ndindex(*w.shape[2:]):
        part = np.tensordot(x, w[(slice(None), slice(None), *offset)], ([1], [0]))
        part = np.moveaxis(part, -1, 1)
        ends = zip(offset, x.shape[2:], strides, strict=True)
        made[(slice(None), slice(None), *(slice(o, o + n * s, s) for o, n, s in ends))] += part
    cut = tuple(slice(p, size - p) for p, size in zip(padding, sizes, strict=True))
    if any(size <= 2 * p for p, size in zip(padding, sizes, strict=True)):
        raise Reject("nothing is left")
    return made[(slice(None), slice(None), *cut)]
