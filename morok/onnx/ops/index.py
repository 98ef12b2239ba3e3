"""Reads from and writes to places that other tensors name; orders; what is found by values."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import ShapeError, UnsupportedModel
from morok.onnx.ops.common import axis_of, known, product
from morok.onnx.table import Call, Ints, Nums, T, converted, op
from morok.onnx.values import Host, Value
from morok.tensor.tensor import Tensor


@op("Gather", since=1, moves=True)
def gather(x: T, places: T, *, axis: int = 0) -> T:
    """Slices of an axis by their positions; negative ones count from the end."""
    axis = axis_of(axis, x.ndim)
    picked = x.index_select(axis, places.reshape(-1))
    return picked.reshape((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def _from_front(places: Tensor, size: Any) -> Tensor:
    """Positions that count from the front."""
    if not places.dtype.is_unsigned:
        places = places.cast(dt.int64)
        return (places < 0).where(places + size, places)
    return places


@op("GatherElements", since=11)
def gather_elements(x: T, places: T, *, axis: int = 0) -> T:
    axis = axis_of(axis, x.ndim)
    return x.gather(axis, _from_front(places, x.shape[axis]))


@op("GatherND", since=11)
def gather_nd(x: T, places: T, *, batch_dims: int = 0) -> T:
    b, depth = batch_dims, known(places.shape[-1], "the depth of positions")
    rows = product(x.shape[:b])
    inner = x.shape[b + depth :]
    flat = x.reshape((rows, product(x.shape[b : b + depth]), product(inner)))
    where = places.reshape((rows, -1, depth)).cast(dt.int64)
    linear: Any = 0
    for i in range(depth):
        size = x.shape[b + i]
        linear = linear * size + _from_front(where[:, :, i], size)
    count = where.shape[1]
    picked = flat.gather(1, linear.reshape((rows, count, 1)).expand((rows, count, product(inner))))
    return picked.reshape((*places.shape[:-1], *inner))


@op("ScatterElements", since=11)
def scatter_elements(x: T, places: T, updates: T, *, axis: int = 0, reduction: str = "none") -> T:
    axis = axis_of(axis, x.ndim)
    where = _from_front(places, x.shape[axis])
    return _scattered(x, axis, where, updates, reduction)


@op("Scatter", since=9)
def scatter(x: T, places: T, updates: T, *, axis: int = 0) -> T:
    return scatter_elements(x, places, updates, axis=axis)


def _scattered(x: Tensor, axis: int, where: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, where, updates)
    named = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.get(reduction)
    if named is None:
        raise UnsupportedModel(f"reduction {reduction!r} is not known")
    return x.scatter_reduce(axis, where, updates, named)


@op("ScatterND", since=11)
def scatter_nd(x: T, places: T, updates: T, *, reduction: str = "none") -> T:
    depth = known(places.shape[-1], "the depth of positions")
    inner = product(x.shape[depth:])
    where = places.reshape((-1, depth)).cast(dt.int64)
    linear = _from_front(where[:, 0], x.shape[0])
    for i in range(1, depth):
        linear = linear * x.shape[i] + _from_front(where[:, i], x.shape[i])
    count = where.shape[0]
    flat = x.reshape((product(x.shape[:depth]), inner))
    rows = linear.reshape((count, 1)).expand((count, inner))
    return _scattered(flat, 0, rows, updates.reshape((count, inner)), reduction).reshape(x.shape)


@op("TensorScatter", since=24)
def tensor_scatter(cache: T, update: T, starts: T | None, *, axis: int = -2, mode: str = "linear") -> T:
    axis = axis_of(axis, cache.ndim)
    length, room = update.shape[axis], cache.shape[axis]
    places = Tensor.arange(length).reshape([length if i == axis else 1 for i in range(cache.ndim)])
    if starts is not None:
        places = places + starts.cast(dt.int64).reshape([-1 if i == 0 else 1 for i in range(cache.ndim)])
    if mode == "circular":
        places = places.remainder(room)
    return cache.scatter(axis, places.expand(update.shape), update)


@op("OneHot", since=9)
def one_hot(places: T, depth: Nums, values: T, *, axis: int = -1) -> T:
    count = int(depth[0])
    ndim = places.ndim + 1
    axis = axis_of(axis, ndim)
    where = places.unsqueeze(axis)
    if where.dtype.is_float:
        where = where.cast(dt.int64)
    where = where.cast(dt.int64)
    where = (where < 0).where(where + count, where)
    classes = Tensor.arange(count).reshape([count if i == axis else 1 for i in range(ndim)])
    return classes.eq(where).where(values[1], values[0])


@op("TopK", since=11)
def top_k(x: T, k: Ints, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    values, places = x.topk(known(k[0], "TopK"), dim=axis_of(axis, x.ndim), largest=bool(largest))
    return values, places.cast(dt.int64)


@op("TopK", since=10, until=10)
def top_k_10(x: T, k: Ints, *, axis: int = -1) -> Any:
    return top_k(x, k, axis=axis)


@op("TopK", until=9)
def top_k_old(x: T, *, k: int, axis: int = -1) -> Any:
    return top_k(x, (k,), axis=axis)


def _arg(x: Tensor, axis: int, keepdims: int, last: int, largest: bool) -> Tensor:
    axis = axis_of(axis, x.ndim)
    if last:
        x = x.flip(axis)
    found = x.argmax(axis, keepdim=bool(keepdims)) if largest else x.argmin(axis, keepdim=bool(keepdims))
    found = found.cast(dt.int64)
    return -found + (x.shape[axis] - 1) if last else found


@op("ArgMax", since=1)
def arg_max(x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> T:
    return _arg(x, axis, keepdims, select_last_index, True)


@op("ArgMin", since=1)
def arg_min(x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> T:
    return _arg(x, axis, keepdims, select_last_index, False)


# --- what has as many elements as the data say: computed on the host, between plans


@op("NonZero", since=9, reads=True)
def nonzero(x: Value) -> Any:
    """Positions of what is not zero, on the host: their number depends on the data."""
    array = converted("Known", x, 0).array
    return Host(np.array(np.nonzero(array), np.int64).reshape(max(array.ndim, 1), -1))


@op("Compress", since=9, reads=True)
def compress(x: Value, condition: Value, *, axis: Any = None) -> Any:
    """Slices where a condition holds, on the host: their number depends on the data."""
    held, keep = converted("Known", x, 0), converted("Known", condition, 1).array.reshape(-1)
    return Host(np.compress(keep, held.array, axis=axis), held.elem)


@op("Unique", since=11, reads=True)
def unique(x: Value, *, axis: Any = None, sorted: int = 1) -> Any:
    """The different elements or slices, on the host: their number depends on the data."""
    held = converted("Known", x, 0)
    values, first, inverse, counts = np.unique(
        held.array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, inverse, counts = first[order], places[inverse], counts[order]
    rest = (Host(np.asarray(a, np.int64)) for a in (first, inverse, counts))
    return (Host(values, held.elem), *rest)


@op("NonMaxSuppression", since=10, reads=True)
def non_max_suppression(
    call: Call,
    boxes: Value,
    scores: Value,
    most: Nums | None,
    overlap: Nums | None,
    threshold: Nums | None,
    *,
    center_point_box: int = 0,
) -> Any:
    """Boxes by score without those that overlap a better one, on the host."""
    b, s = converted("Known", boxes, 0).array, converted("Known", scores, 1).array
    if b.ndim != 3 or s.ndim != 3 or b.shape[2] != 4 or b.shape[:2] != (s.shape[0], s.shape[2]):
        raise ShapeError(
            f"boxes are (batch, boxes, 4) and scores (batch, classes, boxes), not {b.shape} and {s.shape}"
        )
    limit = int(most[0]) if most else 0
    least = float(threshold[0]) if threshold else None
    found = [
        (batch, kind, box)
        for batch in range(s.shape[0])
        for kind in range(s.shape[1])
        for box in _suppressed(
            b[batch], s[batch, kind], limit, float(overlap[0]) if overlap else 0.0, least, center_point_box
        )
    ]
    return Host(np.array(found, np.int64).reshape(-1, 3))


def _suppressed(boxes: Any, scores: Any, limit: int, overlap: float, least: Any, centred: int) -> list[int]:
    if centred:
        x, y, w, h = boxes.T
        corners = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2])
    else:
        a, b, c, d = boxes.T
        corners = np.stack([np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)])
    area = (corners[2] - corners[0]) * (corners[3] - corners[1])
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best = int(order[0])
        kept.append(best)
        rest = order[1:]
        top, left = np.maximum(corners[:2, best, None], corners[:2, rest])
        bottom, right = np.minimum(corners[2:, best, None], corners[2:, rest])
        shared = np.maximum(bottom - top, 0) * np.maximum(right - left, 0)
        union = area[best] + area[rest] - shared
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(union > 0, shared / union, 0)
        order = rest[ratio <= overlap]
    return kept
