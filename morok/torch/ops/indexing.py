"""Elements by their places: index, gather, scatter, embedding."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op, tensor_of


@op("embedding.default")
def embedding(weight: T, index: T, *_: Any) -> T:
    return weight.embedding(index)


@op("embedding_dense_backward.default")
def embedding_backward(grad: T, index: T, count: Any, padding: int, by_count: bool, call: Call) -> T:
    flat = index.reshape(-1)
    rows = grad.reshape(-1, grad.shape[-1]).cast(call.wide)
    if padding >= 0:
        rows = flat.eq(padding).reshape(-1, 1).where(0.0, rows)
    if by_count:
        ones = Tensor.ones(*flat.shape, dtype=rows.dtype)
        counts = Tensor.zeros(count, dtype=rows.dtype).index_add(0, flat, ones)
        rows = rows / counts.index_select(0, flat).reshape(-1, 1)
    if not rows.numel():
        return Tensor.zeros(*call.shape, dtype=rows.dtype)
    return Tensor.zeros(*call.shape, dtype=rows.dtype).index_add(0, flat, rows)


@op("index.Tensor", "_unsafe_index.Tensor")
def index(x: T, indices: Any, call: Call) -> T:
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    if any(i is not None and i.dtype in (dt.bool_, dt.uint8) for i in indices):
        raise NotImplementedError("an index by truths: the size of the result depends on values")
    key = tuple([slice(None) if i is None else i for i in indices])
    return x[key]


@op("index_put.default", "_unsafe_index_put.default")
def index_put(x: T, indices: Any, values: T, accumulate: bool = False) -> T:
    values = values.cast(x.dtype)
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is dt.bool_:
        mask = indices[0]
        if values.numel() == 1:
            shaped = mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
            value = values.reshape(*(1,) * x.ndim)
            return shaped.where(x + value if accumulate else value.expand(*x.shape), x)
    if any(i is not None and i.dtype in (dt.bool_, dt.uint8) for i in indices):
        raise NotImplementedError("an index by truths")
    places = [n for n, i in enumerate(indices) if i is not None]
    if not all(i is None or i.numel() for i in indices) or not x.numel():
        return x
    if not places:
        return x + values if accumulate else values.expand(*x.shape)
    return _put(x, indices, places, values, accumulate)


def _put(x: T, indices: Any, places: list[int], values: T, accumulate: bool) -> T:
    """With the indexed axes in front, as one axis of rows."""
    shape: tuple[Any, ...] = ()
    for n in places:
        shape = _broadcast(shape, indices[n].shape)
    rest = [n for n in range(x.ndim) if n not in places]
    together = places == list(range(places[0], places[0] + len(places)))
    sizes = [x.shape[n] for n in rest]
    lead = places[0] if together else 0
    # where the result's axes of the index stand: in their place if they are side by side, else in front
    full = (*sizes[:lead], *shape, *sizes[lead:])
    values = values.expand(*full)
    order = [*range(lead, lead + len(shape)), *range(lead), *range(lead + len(shape), len(full))]
    rows = values.permute(*order) if full else values
    count = 1
    for size in shape:
        count = count * size
    at: Any = 0
    for n in places:
        own = indices[n].cast(dt.int64)
        own = (own < 0).where(own + x.shape[n], own).expand(*shape)
        at = at * x.shape[n] + own if isinstance(at, Tensor) else own
    front = x.permute(*places, *rest)
    total = 1
    for n in places:
        total = total * x.shape[n]
    flat = front.reshape(total, -1)
    at, rows = at.reshape(count), rows.reshape(count, -1)
    made = flat.index_add(0, at, rows) if accumulate else flat.index_put((at,), rows)
    back = made.reshape(*front.shape)
    whole = [*places, *rest]
    return back.permute(*sorted(range(x.ndim), key=whole.__getitem__))


def _broadcast(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    count = max(len(a), len(b))
    a, b = (1,) * (count - len(a)) + a, (1,) * (count - len(b)) + b
    return tuple([m if n == 1 else n for m, n in zip(a, b, strict=True)])


@op("gather.default")
def gather(x: T, dim: int, at: T, *, sparse_grad: bool = False, call: Call) -> T:
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    if not x.ndim or not at.ndim:
        return x.reshape(1).gather(0, at.reshape(1)).reshape(*call.shape)
    return x.gather(dim, at)


@op("index_select.default")
def index_select(x: T, dim: int, at: T, call: Call) -> T:
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    if not x.ndim:
        return x
    return x.index_select(dim, at.reshape(-1))


@op("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add.default",
    "scatter_reduce.two")  # fmt: skip
def scatter(x: T, dim: int, at: T, src: Any, *rest: Any, call: Call, **kwargs: Any) -> T:
    name = str(call.node.target)
    if not x.numel() or not at.numel():
        return x
    shape = x.shape
    if not x.ndim or not at.ndim:
        x, at, dim = x.reshape(-1), at.reshape(-1), 0
        src = src.reshape(-1) if isinstance(src, Tensor) else src
    values = src if isinstance(src, Tensor) else tensor_of(src, x.dtype).expand(*at.shape)
    values = values.shrink(tuple([(0, n) for n in at.shape])).cast(x.dtype)
    reduce = kwargs.get("reduce", rest[0] if rest else None)
    if "scatter_add" in name:
        made = x.scatter_add(dim, at, values)
    elif "scatter_reduce" in name:
        own = kwargs.get("include_self", rest[1] if len(rest) > 1 else True)
        made = scatter_with(x, dim, at, values, str(reduce), own)
    elif reduce is not None:
        made = scatter_with(x, dim, at, values, {"add": "sum", "multiply": "prod"}[reduce], True)
    else:
        made = x.scatter(dim, at, values)
    return made.reshape(*shape)


def scatter_with(x: T, dim: int, at: T, values: T, reduce: str, include_self: bool) -> T:
    """x joined with values at places along an axis."""
    return x.scatter_reduce(dim, at, values, reduce, include_self)


@op("index_add.default")
def index_add(x: T, dim: int, at: T, source: T, *, alpha: Any = 1) -> T:
    if not x.ndim or not at.numel():
        return x + source.reshape(-1).sum() * alpha if at.numel() and not x.ndim else x
    return x.index_add(dim, at.reshape(-1), source.cast(x.dtype), alpha)


@op("index_copy.default")
def index_copy(x: T, dim: int, at: T, source: T) -> T:
    if not x.ndim or not at.numel():
        return source.reshape(()) if at.numel() else x
    return x.index_copy(dim, at.reshape(-1), source)


@op("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(x: T, dim: int, at: T, value: Any) -> T:
    if not at.numel():
        return x
    places = at.reshape(-1, 1)
    size = x.shape[dim] if x.ndim else 1
    hit = (places < 0).where(places + size, places).eq(Tensor.arange(size).reshape(1, -1)).any(0)
    if not x.ndim:
        return tensor_of(value, x.dtype)
    shape = [1] * x.ndim
    shape[dim] = size
    return hit.reshape(*shape).where(tensor_of(value, x.dtype), x)


@op("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: T, mask: T, value: Any, call: Call) -> T:
    made = mask.where(tensor_of(value, x.dtype), x)
    return made.expand(*call.shape)


@op("take.default")
def take(x: T, at: T) -> T:
    return x.reshape(-1).take(at)
