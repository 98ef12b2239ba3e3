"""What moves elements: views, parts, joins."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.errors import VariableError
from morok.ir.bounds import vmax, vmin
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op, tensor_of
from morok.torch.types import memory_order

_END = (1 << 63) - 1


@op("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
    "squeeze.dim", "squeeze.dims", "view_copy.default", "_reshape_alias.default", "_reshape_copy.default",
    "unflatten.int", "flatten.using_ints", "prims.view_of.default", "prims.squeeze.default")  # fmt: skip
def reshape(x: T, *_: Any, call: Call) -> T:
    return x.reshape(*call.shape)


@op("permute.default", "prims.transpose.default")
def permute(x: T, dims: Any) -> T:
    return x.permute(*dims) if x.ndim else x


@op("t.default")
def t(x: T) -> T:
    return x.permute(1, 0) if x.ndim == 2 else x


@op("transpose.int")
def transpose(x: T, first: int, second: int) -> T:
    return x.transpose(first, second) if x.ndim else x


@op("expand.default", "broadcast_to.default", "expand_copy.default")
def expand(x: T, *_: Any, call: Call, **__: Any) -> T:
    return x.expand(*call.shape) if call.shape else x


@op("prims.broadcast_in_dim.default")
def broadcast_in_dim(x: T, shape: Any, dims: Any) -> T:
    sizes = [1] * len(shape)
    for axis, size in zip(dims, x.shape, strict=True):
        sizes[axis] = size
    return x.reshape(*sizes).expand(*shape)


@op("slice.Tensor")
def slice_(x: T, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> T:
    size = x.shape[dim]
    first, last = _bounds(start, end, size)
    key: list[Any] = [slice(None)] * x.ndim
    key[dim] = slice(first, max(first, last), step)
    return x[tuple(key)]


def _bounds(start: Any, end: Any, size: Any) -> tuple[Any, Any]:
    first = 0 if start is None else start
    last = size if end is None or (isinstance(end, int) and end >= _END) else end
    if isinstance(size, int):
        first, last = (_inside(end, size) for end in (first, last))
    return first, last


def _inside(end: Any, size: int) -> Any:
    """An end of a slice, counted from the front. One that varies must be known to lie within the axis."""
    if isinstance(end, int):
        return min(max(end + size if end < 0 else end, 0), size)
    if vmin(end) < 0 or vmax(end) > size:
        raise VariableError(f"a slice up to {end!r} of an axis of {size} may end outside of it")
    return end


@op("select.int")
def select(x: T, dim: int, index: Any) -> T:
    return x.select(dim, index)


@op("slice_scatter.default")
def slice_scatter(x: T, src: T, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> T:
    size = x.shape[dim]
    first, last = _bounds(start, end, size)
    src, axis = src.cast(x.dtype), dim % x.ndim
    if not (isinstance(first, int) and isinstance(last, int) and isinstance(size, int)) and step == 1:
        room = [(0, 0)] * axis + [(first, size - last)] + [(0, 0)] * (x.ndim - axis - 1)
        place = Tensor.arange(size).reshape(*(size if i == axis else 1 for i in range(x.ndim)))
        return ((place >= first) & (place < last)).where(src.pad(room), x)
    if step == 1:
        if first == 0 and last == size:
            return src
        parts = [
            x.narrow(axis, 0, first) if first else None,
            src if last > first else None,
            x.narrow(axis, last, size - last) if size > last else None,
        ]
        kept = [part for part in parts if part is not None]
        return kept[0].cat(*kept[1:], dim=axis) if len(kept) > 1 else kept[0]
    places = Tensor.arange(size)
    hit = (places >= first) & (places < last) & ((places - first) % step).eq(0)
    at = ((places - first) // step).clamp(0, max(src.shape[dim] - 1, 0))
    shape = [1] * x.ndim
    shape[dim] = size
    if src.shape[dim] == 0:
        return x
    return hit.reshape(*shape).where(src.index_select(dim, at), x)


@op("select_scatter.default")
def select_scatter(x: T, src: T, dim: int, index: int) -> T:
    size = x.shape[dim]
    at = index + size if index < 0 else index
    shape = [1] * x.ndim
    shape[dim] = size
    hit = Tensor.arange(size).eq(at).reshape(*shape)
    return hit.where(src.cast(x.dtype).unsqueeze(dim), x)


@op("cat.default", "prims.cat.default", "concat.default")
def cat(tensors: Any, dim: int = 0, *, call: Call) -> T:
    kind = call.dtype
    kept = [t.cast(kind) for t in tensors if t.shape != (0,) and t.numel() != 0]
    if not kept:
        return Tensor.zeros(*call.shape, dtype=kind)
    return kept[0].cat(*kept[1:], dim=dim) if len(kept) > 1 else kept[0]


@op("stack.default")
def stack(tensors: Any, dim: int = 0, *, call: Call) -> T:
    kind = call.dtype
    same = [t.cast(kind) for t in tensors]
    return same[0].stack(*same[1:], dim=dim)


@op("split_with_sizes.default", "split.Tensor", "unbind.int", "split_with_sizes_copy.default", "split.sizes")
def split(x: T, *args: Any, call: Call, **kwargs: Any) -> Any:
    name = str(call.node.target)
    if "unbind" in name:
        dim = args[0] if args else kwargs.get("dim", 0)
        return [x.select(dim, n) for n in range(len(call.val))]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    parts, start = [], 0
    for val in call.val:
        size = call.known(val.shape[dim])
        parts.append(x.narrow(dim, start, size))
        start = start + size
    return parts


@op("flip.default", "prims.rev.default")
def flip(x: T, dims: Any) -> T:
    return x.flip(*dims) if dims and x.ndim else x


@op("rot90.default")
def rot90(x: T, k: int = 1, dims: Any = (0, 1)) -> T:
    """As it is: taken apart it would lie in memory in another order."""
    first, second = dims
    turns = k % 4
    if turns == 2:
        return x.flip(first, second)
    if turns == 1:
        return x.flip(second).transpose(first, second)
    return x.transpose(first, second).flip(second) if turns else x


@op("roll.default")
def roll(x: T, shifts: Any, dims: Any = ()) -> T:
    if not x.numel():
        return x
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        return x.reshape(-1).roll(shifts[0], 0).reshape(*x.shape) if x.ndim else x
    for shift, axis in zip(shifts, axes, strict=True):
        x = x.roll(shift, axis)
    return x


@op("repeat.default")
def repeat(x: T, repeats: Any, call: Call) -> T:
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    return x.repeat(*repeats) if repeats else x


@op("constant_pad_nd.default")
def constant_pad(x: T, pad: Any, value: Any = 0) -> T:
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2)
    pairs += [(pad[n], pad[n + 1]) for n in range(len(pad) - 2, -1, -2)]
    limits = tuple([(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(pairs, x.shape, strict=True)])
    if any(limit != (0, size) for limit, size in zip(limits, x.shape, strict=True)):
        x = x.shrink(limits)
    grown = tuple([(max(a, 0), max(b, 0)) for a, b in pairs])
    if x.numel() == 0:
        sizes = [n + a + b for n, (a, b) in zip(x.shape, grown, strict=True)]
        return tensor_of(value, x.dtype).expand(*sizes)
    return x.pad(grown, value=value) if any(map(any, grown)) else x


@op("diagonal.default")
def diagonal(x: T, offset: int = 0, dim1: int = 0, dim2: int = 1, *, call: Call) -> T:
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    return x.diagonal(offset, dim1, dim2)


@op("unfold.default")
def unfold(x: T, dim: int, size: int, step: int) -> T:
    if x.ndim == 0:
        return x.reshape(1).narrow(0, 0, size)
    return x.unfold(dim, size, step)


def _places(x: T, size: Any, stride: Any, offset: Any, call: Call) -> tuple[T, T, Any]:
    """A tensor's elements in the order of memory, the places of a view among them, and that order."""
    val = call.arg(0)
    sizes, strides = tuple(map(call.known, val.shape)), tuple(map(call.known, val.stride()))
    order = memory_order(sizes, strides)
    start = call.known(val.storage_offset()) if offset is None else offset
    if order is None or call.known(val.storage_offset()) or 0 in strides:
        raise NotImplementedError("as_strided of something with gaps")
    flat = x.permute(*order).reshape(-1) if x.ndim else x.reshape(1)
    at = Tensor.full(tuple(size), start, dtype=dt.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        at = at + (Tensor.arange(n) * step).reshape(*[-1 if a == axis else 1 for a in range(len(size))])
    return flat, at, order


@op("as_strided.default")
def as_strided(x: T, size: Any, stride: Any, offset: Any = None, *, call: Call) -> T:
    """Elements by their places in memory; the input lies there as torch says that it does."""
    flat, at, _ = _places(x, size, stride, offset, call)
    return flat[at]


@op("as_strided_scatter.default", "prims.as_strided_scatter.default")
def as_strided_scatter(x: T, src: T, size: Any, stride: Any, offset: Any = None, *, call: Call) -> T:
    """A tensor with other elements at some places in memory."""
    if not src.numel():
        return x
    flat, at, order = _places(x, size, stride, offset, call)
    made = flat.index_put((at.reshape(-1),), src.cast(x.dtype).reshape(-1))
    if not x.ndim:
        return made.reshape(())
    back = sorted(range(x.ndim), key=order.__getitem__)
    return made.reshape(*[x.shape[axis] for axis in order]).permute(*back)
