"""Pools and resizing."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op


def _each(value: Any, count: int) -> tuple[Any, ...]:
    many = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(many * count if len(many) == 1 else many)


def _batched(x: T, axes: int) -> tuple[T, bool]:
    single = x.ndim == axes + 1
    return (x.unsqueeze(0), True) if single else (x, False)


@op("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(
    x: T, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    *, call: Call,
) -> Any:  # fmt: skip
    count = 3 if "3d" in str(call.node.target) else 2
    x, single = _batched(x, count)
    kernel, step = _each(kernel_size, count), _each(stride or kernel_size, count)
    pool = x.max_pool3d if count == 3 else x.max_pool2d
    around, spread = _each(padding, count), _each(dilation, count)
    if call.wants(1):
        values, places = pool(kernel, step, around, spread, ceil_mode, True)
    else:
        values, places = pool(kernel, step, around, spread, ceil_mode), None
    if single:
        values, places = values.squeeze(0), None if places is None else places.squeeze(0)
    return values, places


@op("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(x: T, size: Any, call: Call) -> Any:
    count = 3 if "3d" in str(call.node.target) else 2
    a, single = _batched(x, count)
    parts = [(own, new) for own, new in zip(a.shape[-count:], size, strict=True)]
    if not x.numel() or not all(size):
        shape = [tuple(map(call.known, v.shape)) for v in call.val]
        return Tensor.zeros(*shape[0], dtype=x.dtype), Tensor.zeros(*shape[1], dtype=dt.int64)
    made: Any
    if all(own % new == 0 for own, new in parts):
        kernel = tuple([own // new for own, new in parts])
        pool = a.max_pool3d if count == 3 else a.max_pool2d
        made = pool(kernel, kernel, 0, 1, False, True) if call.wants(1) else (pool(kernel), None)
    else:
        pool = a.adaptive_max_pool3d if count == 3 else a.adaptive_max_pool2d
        made = pool(tuple(size), True) if call.wants(1) else (pool(tuple(size)), None)
    return tuple([m.squeeze(0) if single and m is not None else m for m in made])


@op(
    "max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default",
    "adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default",
)  # fmt: skip
def max_pool_backward(grad: T, x: T, *rest: Any, call: Call) -> T:
    count = 3 if "3d" in str(call.node.target) else 2
    places = rest[-1]
    lead = x.shape[: x.ndim - count]
    flat = Tensor.zeros(*lead, _product(x.shape[x.ndim - count :]), dtype=grad.dtype)
    own = _product(grad.shape[grad.ndim - count :])
    summed = flat.scatter_add(len(lead), places.reshape(*lead, own), grad.reshape(*lead, own))
    return summed.reshape(*x.shape)


@op("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(x: T, places: T, *_: Any, call: Call) -> T:
    """Every element at its place, zeros elsewhere."""
    count = 3 if "3d" in str(call.node.target) else 2
    if not x.numel():
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    lead = x.shape[: x.ndim - count]
    own = _product(x.shape[x.ndim - count :])
    flat = Tensor.zeros(*lead, _product(call.shape[len(lead) :]), dtype=x.dtype)
    made = flat.scatter(len(lead), places.reshape(*lead, own), x.reshape(*lead, own))
    return made.reshape(*call.shape)


def _product(sizes: Any) -> Any:
    made: Any = 1
    for size in sizes:
        made = made * size
    return made


@op("avg_pool2d.default", "avg_pool3d.default", "avg_pool1d.default")
def avg_pool(
    x: T, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None, *, call: Call,
) -> T:  # fmt: skip
    count = int(str(call.node.target).split("pool")[1][0])
    x, single = _batched(x, count)
    kernel, step = _each(kernel_size, count), _each(stride or kernel_size, count)
    pool = {1: x.avg_pool1d, 2: x.avg_pool2d, 3: x.avg_pool3d}[count]
    made: T = pool(kernel, step, _each(padding, count), count_include_pad, ceil_mode, divisor_override)
    return made.squeeze(0) if single else made


@op("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def avg_pool_backward(
    grad: T, x: T, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    divisor_override: Any, call: Call,
) -> T:  # fmt: skip
    count = int(str(call.node.target).split("pool")[1][0])
    a, single = _batched(x.contiguous(), count)
    kernel, step = _each(kernel_size, count), _each(stride or kernel_size, count)
    pool = {2: a.avg_pool2d, 3: a.avg_pool3d}[count]
    made = pool(kernel, step, _each(padding, count), count_include_pad, ceil_mode, divisor_override)
    (found,) = made.gradient(a, gradient=grad.unsqueeze(0) if single else grad, allow_unused=True)
    return found.squeeze(0) if single else found


@op("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(x: T, size: Any, call: Call) -> T:
    count = 3 if "3d" in str(call.node.target) else 2
    a, single = _batched(x, count)
    if not all(call.shape):
        return Tensor.zeros(*call.shape, dtype=x.dtype)
    made = (a.adaptive_avg_pool3d if count == 3 else a.adaptive_avg_pool2d)(tuple(size))
    return made.squeeze(0) if single else made


@op("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(grad: T, x: T, call: Call) -> T:
    count = 3 if "3d" in str(call.node.target) else 2
    if not grad.numel() or not x.numel():
        return Tensor.zeros(*call.shape, dtype=grad.dtype)
    a, single = _batched(x.contiguous(), count)
    size = tuple(grad.shape[-count:])
    made = (a.adaptive_avg_pool3d if count == 3 else a.adaptive_avg_pool2d)(size)
    (found,) = made.gradient(a, gradient=grad.unsqueeze(0) if single else grad, allow_unused=True)
    return found.squeeze(0) if single else found


@op("replication_pad1d_backward.default", "replication_pad2d_backward.default",
    "replication_pad3d_backward.default")  # fmt: skip
def replication_pad_backward(grad: T, x: T, padding: Any, call: Call) -> T:
    if not grad.numel():
        return Tensor.zeros(*call.shape, dtype=grad.dtype)
    count = len(padding) // 2
    a, single = _batched(x.contiguous(), count)
    made = a.pad(list(padding), mode="replicate")
    (found,) = made.gradient(a, gradient=grad.unsqueeze(0) if single else grad, allow_unused=True)
    return found.squeeze(0) if single else found


_SAMPLES = ("bilinear", "nearest", "bicubic")
_BORDERS = ("zeros", "border", "reflection")


@op("grid_sampler_2d_backward.default")
def grid_sample_backward(
    grad: T, x: T, grid: T, mode: int, border: int, align: bool, mask: Any, call: Call
) -> Any:
    own, at = x.contiguous(), grid.contiguous()
    made = own.grid_sample(at, _SAMPLES[mode], _BORDERS[border], align)
    wanted = [t for t, asked in zip((own, at), mask, strict=True) if asked]
    found = iter(made.gradient(*wanted, gradient=grad, allow_unused=True))
    return tuple([next(found) if asked else None for asked in mask])
