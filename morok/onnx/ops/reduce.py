"""Reductions over axes, which are an attribute in old versions and an input in new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.onnx.ops.common import axes_of, back, wide
from morok.onnx.table import Ints, T, op
from morok.tensor.tensor import Tensor

Reduction = Callable[[Tensor, Any, bool], Tensor]


def _own_type(x: Tensor, axes: Any, keep: bool, compute: Any) -> Tensor:
    return back(compute(x, axes, keep), x.dtype)


def _sum(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return x.sum(axes, keep, dtype=x.dtype) if not x.dtype.is_float else x.sum(axes, keep)


def _prod(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return x.prod(axes, keep, dtype=x.dtype) if not x.dtype.is_float else x.prod(axes, keep)


def _mean(x: Tensor, axes: Any, keep: bool) -> Tensor:
    if x.dtype.is_float:
        return x.mean(axes, keep)
    count: Any = 1
    for axis in axes:
        count = x.shape[axis] * count
    return x.sum(axes, keep, dtype=x.dtype).div(count, rounding_mode="trunc").cast(x.dtype)


def _maximum(x: Tensor, axes: Any, keep: bool) -> Tensor:
    if x.dtype.is_bool:
        return x.any(axes, keep)
    if any(x.shape[a] == 0 for a in axes):
        return _empty(x, axes, keep, x.dtype.min)
    return x.max(axes, keep)


def _minimum(x: Tensor, axes: Any, keep: bool) -> Tensor:
    if x.dtype.is_bool:
        return x.all(axes, keep)
    if any(x.shape[a] == 0 for a in axes):
        return _empty(x, axes, keep, x.dtype.max)
    return x.min(axes, keep)


def _empty(x: Tensor, axes: Any, keep: bool, value: Any) -> Tensor:
    """The neutral element, where there is nothing to reduce."""
    if keep:
        sizes = [1 if i in axes else n for i, n in enumerate(x.shape)]
    else:
        sizes = [n for i, n in enumerate(x.shape) if i not in axes]
    return Tensor.full(tuple(sizes), value, dtype=x.dtype)


def _whole(x: Tensor) -> Tensor:
    """Whole numbers as floats, for functions that have no other result."""
    return wide(x) if x.dtype.is_float else x.cast(dt.float64 if x.dtype.bits > 16 else dt.float32)


def _l2(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return _whole(x).square().sum(axes, keep).sqrt()


def _log_sum(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return _whole(x).sum(axes, keep).log()


def _log_sum_exp(x: Tensor, axes: Any, keep: bool) -> Tensor:
    if any(x.shape[a] == 0 for a in axes):
        return _empty(_whole(x), axes, keep, -float("inf"))
    return _whole(x).logsumexp(axes, keep)


def _square(x: Tensor) -> Tensor:
    return x * x


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _maximum,
    "ReduceMin": _minimum,
    "ReduceProd": _prod,
    "ReduceL1": lambda x, a, k: _sum(x.abs(), a, k),
    "ReduceL2": _l2,
    "ReduceSumSquare": lambda x, a, k: _sum(_square(x), a, k),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}


def _enter(name: str, compute: Reduction, since: int) -> None:
    @op(name, since=since)
    def modern(x: T, axes: Ints | None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> T:
        if not axes:
            if noop_with_empty_axes:
                return back(compute(x.unsqueeze(0), (0,), False), x.dtype)
            axes = None
        return _own_type(x, axes_of(axes, x.ndim), bool(keepdims), compute)

    @op(name, until=since - 1)
    def old(x: T, *, axes: Any = None, keepdims: int = 1) -> T:
        return _own_type(x, axes_of(axes, x.ndim), bool(keepdims), compute)


for _name, _compute in _REDUCTIONS.items():
    _enter(_name, _compute, 13 if _name == "ReduceSum" else 18)
