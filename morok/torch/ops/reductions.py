"""Sums, maxima, running sums, order."""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op
from morok.torch.types import from_torch


def axes_of(x: T, dim: Any) -> Any:
    """Axes for a reduction: None for all of them."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return None
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _wide(x: T, call: Call) -> T:
    """In the type in which sums of such elements are made."""
    kind = call.wide
    return x if x.dtype is kind else x.cast(kind)


@op("sum.default", "sum.dim_IntList")
def total(x: T, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, call: Call) -> T:
    return _wide(x, call).sum(axes_of(x, dim), keepdim) if x.ndim else _wide(x, call)


@op("mean.default", "mean.dim")
def mean(x: T, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, call: Call) -> T:
    return _wide(x, call).mean(axes_of(x, dim), keepdim) if x.ndim else _wide(x, call)


@op("prod.default", "prod.dim_int")
def product(x: T, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, call: Call) -> T:
    return _wide(x, call).prod(axes_of(x, dim), keepdim) if x.ndim else _wide(x, call)


@op("var.correction")
def var(x: T, dim: Any = None, *, correction: Any = 1, keepdim: bool = False, call: Call) -> T:
    return _moments(_wide(x, call), axes_of(x, dim), correction, keepdim)[0]


@op("var_mean.correction")
def var_mean(x: T, dim: Any = None, *, correction: Any = 1, keepdim: bool = False, call: Call) -> Any:
    kind = call.val[0].dtype
    from morok.torch.types import wide

    return _moments(x.cast(from_torch(wide(kind))), axes_of(x, dim), correction, keepdim)


def _moments(x: T, axes: Any, correction: Any, keepdim: bool) -> tuple[T, T]:
    axes = tuple(range(x.ndim)) if axes is None else tuple([a % max(x.ndim, 1) for a in axes])
    count = math.prod([x.shape[a] for a in axes]) if x.ndim else 1
    middle = x.mean(axes, True) if x.ndim else x
    off = x - middle
    squares = (off * off).sum(axes, keepdim) if x.ndim else off * off
    correction = 1 if correction is None else correction
    rest = max(count - correction, 0)
    variance = squares / rest if rest else squares * math.nan if not count else squares / 0.0
    if x.ndim and not keepdim:
        middle = x.mean(axes)
    return variance, middle


@op("amax.default")
def amax(x: T, dim: Any = (), keepdim: bool = False) -> T:
    return x.max(axes_of(x, dim), keepdim) if x.ndim else x


@op("amin.default")
def amin(x: T, dim: Any = (), keepdim: bool = False) -> T:
    return x.min(axes_of(x, dim), keepdim) if x.ndim else x


@op("max.default")
def max_all(x: T) -> T:
    return x.max()


@op("min.default")
def min_all(x: T) -> T:
    return x.min()


@op("max.dim")
def max_dim(x: T, dim: int, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    return x.max(dim, keepdim), _first(x, x.argmax(dim, keepdim), dim, keepdim)


@op("min.dim")
def min_dim(x: T, dim: int, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    return x.min(dim, keepdim), _first(x, x.argmin(dim, keepdim), dim, keepdim)


def _first(x: T, at: T, dim: int, keepdim: bool) -> T:
    return at


@op("argmax.default")
def argmax(x: T, dim: Any = None, keepdim: bool = False) -> T:
    if not x.ndim:
        return Tensor.zeros(dtype=dt.int64)
    found = x.argmax(dim, keepdim)
    return found.reshape(*(1,) * x.ndim) if dim is None and keepdim else found


@op("argmin.default")
def argmin(x: T, dim: Any = None, keepdim: bool = False) -> T:
    if not x.ndim:
        return Tensor.zeros(dtype=dt.int64)
    found = x.argmin(dim, keepdim)
    return found.reshape(*(1,) * x.ndim) if dim is None and keepdim else found


@op("any.default", "any.dim", "any.dims")
def any_(x: T, dim: Any = None, keepdim: bool = False) -> T:
    return x.any(axes_of(x, dim), keepdim) if x.ndim else x.ne(0)


@op("all.default", "all.dim", "all.dims")
def all_(x: T, dim: Any = None, keepdim: bool = False) -> T:
    return x.all(axes_of(x, dim), keepdim) if x.ndim else x.ne(0)


@op("linalg_vector_norm.default")
def vector_norm(
    x: T, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, call: Call
) -> T:
    x = _wide(x, call)
    axes = axes_of(x, dim)
    if not x.ndim:
        return x.abs() if ord != 0 else x.ne(0).cast(x.dtype)
    size = x.abs()
    if ord == math.inf:
        return size.max(axes, keepdim)
    if ord == -math.inf:
        return size.min(axes, keepdim)
    if ord == 0:
        return x.ne(0).cast(x.dtype).sum(axes, keepdim)
    if ord == 1:
        return size.sum(axes, keepdim)
    if ord == 2:
        return (x * x).sum(axes, keepdim).sqrt()
    return (size**ord).sum(axes, keepdim) ** (1.0 / ord)


# --- running


@op("cumsum.default")
def cumsum(x: T, dim: int, *, dtype: Any = None, call: Call) -> T:
    return _wide(x, call).cumsum(dim) if x.ndim else _wide(x, call)


@op("cumprod.default")
def cumprod(x: T, dim: int, *, dtype: Any = None, call: Call) -> T:
    return _wide(x, call).cumprod(dim) if x.ndim else _wide(x, call)


@op("logcumsumexp.default")
def logcumsumexp(x: T, dim: int, *, call: Call) -> T:
    return _wide(x, call).logcumsumexp(dim) if x.ndim else x


# --- order


@op("sort.default", "sort.stable")
def sort(x: T, *args: Any, dim: int = -1, descending: bool = False, stable: Any = None, call: Call) -> Any:
    if str(call.node.target).endswith("default"):
        dim, descending = (*args, *(dim, descending)[len(args) :])[:2]
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    return x.sort(dim, descending)


@op("topk.default")
def topk(x: T, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    return x.topk(k, dim, largest)


@op("kthvalue.default")
def kthvalue(x: T, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    values, places = x.sort(dim)
    at = tuple([v.narrow(dim, k - 1, 1) for v in (values, places)])
    return at if keepdim else tuple([v.squeeze(dim) for v in at])


@op("median.dim", "nanmedian.dim")
def median_dim(x: T, dim: int, keepdim: bool = False, *, call: Call) -> Any:
    """The lower middle; the first NaN if there is one, or of those that are none."""
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    if not x.dtype.is_float:
        return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)
    nan = x.isnan()
    if "nanmedian" in str(call.node.target):
        count = (~nan).cast(dt.int64).sum(dim, True)
        at = ((count - 1) // 2).maximum(0)
        values, order = x.sort(dim)
        made = values.gather(dim, at), order.gather(dim, at)
    else:
        values, order = kthvalue(x, (x.shape[dim] + 1) // 2, dim, True)
        some = nan.any((dim,), True)
        made = some.where(math.nan, values), some.where(nan.cast(dt.int8).argmax(dim, True), order)
    return made if keepdim else tuple([m.squeeze(dim) for m in made])


@op("median.default", "nanmedian.default")
def median(x: T, call: Call) -> T:
    if not x.numel():
        return Tensor.full((), math.nan, dtype=x.dtype)
    return median_dim(x.reshape(-1), 0, call=call)[0]


@op("mode.default")
def mode(x: T, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, Tensor.zeros(dtype=dt.int64)
    return tuple(x.mode(dim, keepdim))


@op("bucketize.Tensor", "bucketize.Scalar")
def bucketize(x: Any, boundaries: T, *, out_int32: bool = False, right: bool = False) -> T:
    values = x if isinstance(x, Tensor) else Tensor.full((), x, dtype=boundaries.dtype)
    return values.bucketize(boundaries, right=right)
