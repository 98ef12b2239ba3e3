"""Tensors out of nothing."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op


def filled(call: Call, value: Any) -> T:
    """The same value everywhere, in the result's shape and type."""
    kind = call.dtype
    value = bool(value) if kind is dt.bool_ else float(value) if kind.is_float else int(value)
    return Tensor.full(call.shape, value, dtype=kind)


@op("full.default", "full_like.default", "new_full.default")
def full(_: Any, value: Any, *rest: Any, call: Call, **kwargs: Any) -> T:
    if call.node.target._schema.name == "aten::new_full":
        value = rest[0] if rest else kwargs["fill_value"]
    return value.cast(call.dtype).expand(*call.shape) if isinstance(value, Tensor) else filled(call, value)


@op("scalar_tensor.default")
def scalar_tensor(value: Any, call: Call, **_: Any) -> T:
    return filled(call, value)


@op("fill.Scalar", "fill.Tensor")
def fill(x: T, value: Any, call: Call) -> T:
    return value.cast(call.dtype).expand(*call.shape) if isinstance(value, Tensor) else filled(call, value)


# What torch leaves as it finds it is 0 here: a program that looks at it gets the same at every run.
@op("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
    "new_empty.default", "empty_strided.default", "new_empty_strided.default", "empty_permuted.default",
    "prims.empty_strided.default")  # fmt: skip
def zeros(*_: Any, call: Call, **__: Any) -> T:
    return filled(call, 0)


@op("ones.default", "ones_like.default", "new_ones.default")
def ones(*_: Any, call: Call, **__: Any) -> T:
    return filled(call, 1)


@op("arange.start_step", "arange.start", "arange.default")
def arange(*args: Any, call: Call, **_: Any) -> T:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    return _steps(call, start, step)


@op("prims.iota.default")
def iota(length: Any, *, start: Any, step: Any, call: Call, **_: Any) -> T:
    return _steps(call, start, step)


def _steps(call: Call, start: Any, step: Any) -> T:
    (count,) = call.shape
    places = Tensor.arange(count)
    kind = call.dtype
    if kind.is_float:
        wide = call.wide if isinstance(start, int) and isinstance(step, int) else dt.float64
        return (places.cast(wide) * step + start).cast(kind)
    return (places * step + start if step != 1 or start != 0 else places).cast(kind)


@op("eye.m", "eye.default")
def eye(*_: Any, call: Call, **__: Any) -> T:
    rows, columns = call.shape
    return Tensor.eye(rows, columns, dtype=call.dtype)


@op("tril.default")
def tril(x: T, diagonal: int = 0) -> T:
    return x.tril(diagonal)


@op("triu.default")
def triu(x: T, diagonal: int = 0) -> T:
    return x.triu(diagonal)
