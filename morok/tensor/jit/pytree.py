"""Pytrees: nested containers of tensors, taken apart into tensors and a structure, and put together again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.tensor.core import Core
from morok.tensor.jit.variables import Bound, unbound

TENSOR: Any = ("tensor",)  # the place of a tensor in a structure


@final
class Value:
    """A Python value in a structure. Equal are values of one type: 1, 1.0 and True make different graphs."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        exact = isinstance(value, (float, complex, np.inexact))  # 0.0 == -0.0, and nan != nan
        self._key = (type(value), repr(value) if exact else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def flatten(value: Any, found: list[Core], bound: Bound | None = None) -> Any:
    """The structure of nested containers, with the tensors taken out in order, and values of variables."""
    if isinstance(value, Core):
        found.append(value)
        return TENSOR
    if isinstance(value, (list, tuple)):
        return (type(value), tuple([flatten(v, found, bound) for v in value]))
    if isinstance(value, dict):
        return (dict, tuple([(Value(k), flatten(v, found, bound)) for k, v in value.items()]))
    if bound is not None and isinstance(value, UOp):
        value = unbound(value, bound)
    return Value(value)


def follow(value: Any, structure: Any, found: list[Any], bound: Bound) -> bool:
    """Whether a value has a structure; the tensors and the values of variables are taken out as `flatten`
    does, and nothing is built."""
    if structure is TENSOR:
        found.append(value)
        return isinstance(value, Core)
    if structure.__class__ is Value:
        if value.__class__ is UOp and value.op is Ops.BIND and value.src[0] is structure.value:
            return bound.setdefault(structure.value, value) is value
        return value is structure.value or Value(value) == structure
    kind, inner = structure
    if (not isinstance(value, dict) if kind is dict else type(value) is not kind) or len(value) != len(inner):
        return False
    if kind is not dict:
        for v, part in zip(value, inner):  # noqa: B905 - they are of one length
            if part is TENSOR and isinstance(v, Core):
                found.append(v)
            elif not follow(v, part, found, bound):
                return False
        return True
    for (k, v), (known, part) in zip(value.items(), inner, strict=True):
        if (k is not known.value and Value(k) != known) or not follow(v, part, found, bound):
            return False
    return True


def unflatten(structure: Any, tensors: Iterator[Core]) -> Any:
    """What a structure was made from, with other tensors."""
    if structure is TENSOR:
        return next(tensors)
    if isinstance(structure, Value):
        return structure.value
    kind, inner = structure
    if kind is dict:
        return {k.value: unflatten(v, tensors) for k, v in inner}
    parts = [unflatten(v, tensors) for v in inner]
    if kind is list:
        return parts
    return tuple(parts) if kind is tuple else kind(*parts)


def values_in(structure: Any) -> Iterator[Any]:
    """The Python values of a structure."""
    if isinstance(structure, Value):
        yield structure.value
    elif structure is not TENSOR:
        kind, inner = structure
        for part in inner:
            yield from values_in(part[1] if kind is dict else part)


__all__ = ["TENSOR", "Value", "flatten", "follow", "unflatten", "values_in"]
