"""Search, distances, running maxima, and elements that others choose."""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.ops.indexing import scatter_with
from morok.torch.table import Call, T, as_operand, op


@op("cummax.default", "cummin.default")
def running(x: T, dim: int, *, call: Call) -> Any:
    """The last of equals is where the largest (or smallest) one is."""
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    if not x.numel():
        return x, Tensor.zeros(*x.shape, dtype=dt.int64)
    name = "cummax" if "cummax" in str(call.node.target) else "cummin"
    top = getattr(x, name)(dim)
    hit = x.eq(top)
    if x.dtype.is_float:  # from the first NaN on it is the last NaN so far
        nan = x.isnan()
        seen = nan.cast(dt.int8).cummax(dim).ne(0)
        top, hit = seen.where(math.nan, top), seen.where(nan, hit)
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    places = Tensor.arange(x.shape[dim]).reshape(*shape).expand(*x.shape)
    return top, hit.where(places, -1).cummax(dim)


@op("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    rows: T,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> T:
    if sorter is not None:
        rows = rows.gather(-1, sorter)
    right = right or side == "right"
    if not isinstance(values, Tensor):
        return rows.searchsorted(Tensor.full((1,), values, dtype=rows.dtype), right=right).reshape(())
    if not values.numel():
        return Tensor.zeros(*values.shape, dtype=dt.int64)
    if rows.ndim == 1:
        found = rows.searchsorted(values.reshape(-1), right=right)
        return found.reshape(*values.shape)
    return rows.searchsorted(values, right=right)


@op("_cdist_forward.default")
def cdist(a: T, b: T, p: float, mode: Any = None, *, call: Call) -> T:
    if not all(call.shape) or not a.shape[-1]:
        return Tensor.zeros(*call.shape, dtype=a.dtype)
    return _length(a.unsqueeze(-2) - b.unsqueeze(-3), p)


def _length(off: T, p: float) -> T:
    size = off.abs()
    if p == 0:
        return size.ne(0).cast(off.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (off * off).sum(-1).sqrt()
    if p == math.inf:
        return size.max(-1)
    return (size**p).sum(-1) ** (1.0 / p)


@op("_cdist_backward.default")
def cdist_backward(grad: T, a: T, b: T, p: float, dist: T, call: Call) -> T:
    if p == 0 or not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=a.dtype)
    off = a.unsqueeze(-2) - b.unsqueeze(-3)
    slope = _slope(off, grad.unsqueeze(-1), dist.unsqueeze(-1), p)
    return summed_to(slope.sum(-2), call.shape)


def _slope(off: T, g: T, d: T, p: float) -> T:
    """The gradient of lengths d with respect to the differences that they come from."""
    if p == 1:
        return off.sign() * g
    if p == math.inf:
        return off.sign() * off.abs().eq(d).where(g, 0.0)
    if p == 2:
        return d.eq(0).where(0.0, g * off / d)
    slope = d.eq(0).where(0.0, off.sign() * off.abs() ** (p - 1) * g / d ** (p - 1))
    return off.eq(0).where(0.0, slope)


def summed_to(x: T, shape: tuple[Any, ...]) -> T:
    """What was repeated to x's shape, summed up again."""
    extra = x.ndim - len(shape)
    x = x.sum(tuple(range(extra))) if extra else x
    axes = tuple([n for n, (own, size) in enumerate(zip(x.shape, shape, strict=True)) if own != size])
    return x.sum(axes, True) if axes else x


@op("_pdist_forward.default")
def pdist(x: T, p: float = 2, *, call: Call) -> T:
    if not all(call.shape) or not x.shape[-1]:
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    first, second = _pairs(x.shape[0])
    return _length(x.index_select(0, first) - x.index_select(0, second), p)


@op("_pdist_backward.default")
def pdist_backward(grad: T, x: T, p: float, dist: T, call: Call) -> T:
    if p == 0 or not all(call.shape) or not grad.numel():
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    first, second = _pairs(x.shape[0])
    off = x.index_select(0, first) - x.index_select(0, second)
    slope = _slope(off, grad.unsqueeze(-1), dist.unsqueeze(-1), p)
    zeros = Tensor.zeros(*call.shape, dtype=x.dtype)
    return zeros.index_add(0, first, slope) - zeros.index_add(0, second, slope)


def _pairs(count: int) -> tuple[T, T]:
    """The places of all pairs of rows, in the order of their first one."""
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    return Tensor([a for a, _ in pairs], dtype=dt.int64), Tensor([b for _, b in pairs], dtype=dt.int64)


@op("_trilinear.default")
def trilinear(a: T, b: T, c: T, first: Any, second: Any, third: Any, sums: Any, unroll: int = 1) -> T:
    made = []
    for x, axes in ((a, first), (b, second), (c, third)):
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        made.append(x)
    product = made[0] * made[1] * made[2]
    return product.sum(tuple(sums)) if sums else product


@op("index_reduce.default")
def index_reduce(x: T, dim: int, at: T, source: T, reduce: str, *, include_self: bool = True) -> T:
    if not at.numel() or not x.numel():
        return x
    if not x.ndim:
        made = scatter_with(x.reshape(1), 0, at.reshape(1), source.reshape(1), reduce, include_self)
        return made.reshape(())
    shape = [1] * x.ndim
    shape[dim] = at.shape[0] if at.ndim else 1
    places = at.reshape(*shape).expand(*source.shape)
    return scatter_with(x, dim, places, source, reduce, include_self)


@op("masked_scatter.default")
def masked_scatter(x: T, mask: T, source: T, call: Call) -> T:
    x, mask = x.expand(*call.shape), mask.expand(*call.shape)
    if not x.ndim:
        return mask.where(source.reshape(-1)[0], x)
    return x.masked_scatter(mask, source.reshape(-1))


@op("masked_scatter_backward.default")
def masked_scatter_backward(grad: T, mask: T, sizes: Any, call: Call) -> T:
    """What was taken from the source: its first elements, in the order of the mask's."""
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=grad.dtype)
    count = 1
    for size in sizes:
        count = count * size
    chosen = grad.reshape(-1).masked_select(mask.expand(*grad.shape).reshape(-1), count, 0)
    return chosen.reshape(*call.shape)


@op("put.default")
def put(x: T, at: T, source: T, accumulate: bool = False) -> T:
    if not at.numel():
        return x
    flat, places = x.reshape(-1), at.reshape(-1)
    places = (places < 0).where(places + flat.shape[0], places)
    values = source.reshape(-1)
    made = flat.index_add(0, places, values) if accumulate else flat.index_put((places,), values)
    return made.reshape(*x.shape)


@op("nonzero_static.default")
def nonzero_static(x: T, *, size: int, fill_value: int = -1, call: Call) -> T:
    if not all(call.shape) or not x.ndim:
        raise NotImplementedError("positions of a scalar")
    return x.nonzero(size, fill_value)


@op("diagonal_scatter.default")
def diagonal_scatter(x: T, src: T, offset: int = 0, dim1: int = 0, dim2: int = 1) -> T:
    first, second = dim1 % x.ndim, dim2 % x.ndim
    rest = [n for n in range(x.ndim) if n not in (first, second)]
    order = [*rest, first, second]
    moved = x.permute(*order)
    rows, columns = moved.shape[-2:]
    if not src.numel():
        return x
    down, right = Tensor.arange(rows).reshape(-1, 1), Tensor.arange(columns).reshape(1, -1)
    axis = -1 if offset >= 0 else -2
    long = rows if offset >= 0 else columns
    padded = src.cast(x.dtype).pad((*[(0, 0)] * (src.ndim - 1), (0, long - src.shape[-1]))).unsqueeze(axis)
    made = (right - down).eq(offset).where(padded, moved)
    return made.permute(*sorted(range(x.ndim), key=order.__getitem__))


@op("prims.div.default")
def prims_div(x: T, y: Any, call: Call) -> T:
    """Truncated for whole numbers."""
    kind = call.wide
    x, y = as_operand(x, kind), as_operand(y, kind)
    return x / y if kind.is_float else x.div(y, rounding_mode="trunc")


@op("histc.default")
def histc(x: T, bins: int = 100, min: Any = 0, max: Any = 0) -> T:
    if not x.numel():
        return Tensor.zeros(bins, dtype=x.dtype)
    return x.histc(bins, min, max)
