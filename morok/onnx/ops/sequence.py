"""Sequences, optionals and maps: Python's lists, None and dicts, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok.errors import OutOfRange, ShapeError, UnsupportedModel
from morok.onnx.ops.common import axis_of, known
from morok.onnx.table import Call, NeedItems, NeedSteps, Nums, as_tensor, op
from morok.onnx.values import Grown, Host, Value, from_user, to_user


@op("SequenceConstruct", since=11)
def sequence_construct(*xs: Value) -> Value:
    return list(xs)


@op("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int = 1) -> Value:
    return []


def _place(at: Any, count: int) -> int:
    place = int(at[0])
    if not -count <= place < count:
        raise OutOfRange(f"position {place} is outside of a sequence of {count}")
    return place % count


@op("SequenceAt", since=11)
def sequence_at(xs: Value, at: Nums) -> Value:
    items = _items(xs)
    return items[_place(at, len(items))]  # type: ignore[no-any-return]


def _items(xs: Value) -> list[Any]:
    if isinstance(xs, Grown):
        raise NeedItems(xs.name)
    if not isinstance(xs, list):
        raise ShapeError(f"a sequence was expected, not a {type(xs).__name__}")
    return xs


@op("SequenceInsert", since=11)
def sequence_insert(xs: Value, x: Value, at: Nums | None) -> Value:
    if isinstance(xs, Grown) and at is None:
        return Grown(xs.name, [*xs.added, x])
    items = list(_items(xs))
    if at is None:
        return [*items, x]
    place = int(at[0])
    if not -len(items) <= place <= len(items):
        raise OutOfRange(f"position {place} is outside of a sequence of {len(items)}")
    items.insert(place if place >= 0 else place + len(items), x)
    return items


@op("SequenceErase", since=11)
def sequence_erase(xs: Value, at: Nums | None) -> Value:
    items = list(_items(xs))
    del items[_place(at, len(items)) if at is not None else -1]
    return items


@op("SequenceLength", since=11)
def sequence_length(xs: Value) -> Value:
    return Host(np.array(len(_items(xs)), np.int64))


def _concat_steps(call: Call, values: list[Value]) -> list[Value]:
    """On the host: how many there are may be different every time."""
    axis, new_axis = (call.node.attributes.get(name, 0) for name in ("axis", "new_axis"))
    items = _items(values[0])
    if not items:
        raise ShapeError("a sequence without elements is put together to nothing")
    joined = (np.stack if new_axis else np.concatenate)([to_user(x) for x in items], axis=axis)
    return [Host(joined, items[0].elem) if isinstance(items[0], Host) else from_user(joined)]


@op("ConcatFromSequence", since=11, steps=_concat_steps)
def concat_from_sequence(xs: Value, *, axis: int, new_axis: int = 0) -> Value:
    if isinstance(xs, Grown):
        raise NeedSteps
    items = _items(xs)
    if all(isinstance(x, Host) and x.is_text for x in items) and items:
        join = np.stack if new_axis else np.concatenate
        return Host(join([x.array for x in items], axis=axis), items[0].elem)
    tensors = [as_tensor(x) for x in items]
    if new_axis:
        return tensors[0].stack(*tensors[1:], dim=axis) if len(tensors) > 1 else tensors[0].unsqueeze(axis)
    return tensors[0].cat(*tensors[1:], dim=axis) if len(tensors) > 1 else tensors[0]


@op("SplitToSequence", since=11)
def split_to_sequence(x: Value, split: Value | None, *, axis: int = 0, keepdims: int = 1) -> Value:
    from morok.onnx.table import converted

    if isinstance(x, Host) and x.is_text:
        return _split_text(x, split, axis, keepdims)
    tensor = as_tensor(x)
    axis = axis_of(axis, tensor.ndim)
    size = known(tensor.shape[axis], "a split into a sequence")
    if split is None:
        parts = tensor.split([1] * size, dim=axis)
        return list(parts) if keepdims else [p.squeeze(axis) for p in parts]
    given = converted("Nums", split, 1)
    scalar = isinstance(split, Host) and split.array.ndim == 0
    sizes = list(given) if not scalar else _equal_parts(size, int(given[0]))
    return list(tensor.split([int(n) for n in sizes], dim=axis))


def _equal_parts(size: int, each: int) -> list[int]:
    if each <= 0:
        raise ShapeError(f"parts of size {each} make no sequence")
    return [min(each, size - i) for i in range(0, size, each)]


def _split_text(x: Host, split: Value, axis: int, keepdims: int) -> Value:
    size = x.shape[axis]
    if not isinstance(split, Host):
        parts = np.split(x.array, size, axis)
        return [Host(p if keepdims else p.squeeze(axis), x.elem) for p in parts]
    sizes = _equal_parts(size, int(split.array)) if split.array.ndim == 0 else split.array.tolist()
    return [Host(p, x.elem) for p in np.split(x.array, np.cumsum(sizes)[:-1], axis)]


@op("Optional", since=15)
def optional(x: Value | None, *, type: Any = None) -> Value:
    return x


@op("OptionalHasElement", since=15)
def optional_has_element(call: Call, x: Value | None) -> Value:
    return Host(np.array(x is not None))


@op("OptionalGetElement", since=15)
def optional_get_element(x: Value) -> Value:
    if x is None:
        raise UnsupportedModel("an optional without an element is asked for it")
    return x
