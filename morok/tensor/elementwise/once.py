"""Half precision is rounded once: formulas of several steps are computed in float32.

A single op of narrow floats is computed in float32 and rounded by the devices themselves. A function that is
made of several ops would round in between, and its constants too; `rounded_once` takes its operands into
float32 first and its result back. What is decided here, at the line that the user wrote, does not depend on
what is fused with what later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, TypeVar

import numpy as np

from morok.dtype import DType, float32, promote
from morok.ir.build import cast
from morok.tensor.core import Core
from morok.tensor.dtypes import from_numpy

F = TypeVar("F", bound=Callable[..., Any])


def is_narrow(dtype: DType) -> bool:
    """A float in which nothing is computed."""
    return dtype.is_float and dtype.bits < 32


def _type_of(operand: Any) -> DType | None:
    """The type that an argument brings along; Python's numbers have none of their own."""
    if isinstance(operand, Core):
        return operand.dtype
    if isinstance(operand, np.ndarray | np.generic) and operand.dtype.kind != "O":
        return from_numpy(operand.dtype)
    if isinstance(operand, list | tuple) and operand and isinstance(operand[0], float | list):
        return float32
    return None


def common_type(*operands: Any) -> DType:
    """The type in which operands meet."""
    return reduce(promote, [t for t in map(_type_of, operands) if t is not None])


def widened(operand: Any) -> Any:
    """A tensor of a narrow type in float32; anything else as it is."""
    if isinstance(operand, Core) and is_narrow(operand.dtype):
        return operand._new(cast(operand.uop, float32))
    return operand


def narrowed(result: Any, dtype: DType) -> Any:
    """A result that was computed in float32, in the type that it should have."""
    if isinstance(result, tuple):
        parts = [narrowed(part, dtype) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, Core) and result.dtype is float32:
        return result._new(cast(result.uop, dtype))
    return result


def rounded_once(function: F) -> F:
    """A decorator of functions of tensors: narrow floats are computed in float32 and rounded at the end."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        operands = [*args, *kwargs.values()] if kwargs else args
        if not any(isinstance(x, Core) and is_narrow(x.dtype) for x in operands):
            return function(*args, **kwargs)
        target = common_type(*operands)
        result = function(*map(widened, args), **{k: widened(v) for k, v in kwargs.items()})
        return narrowed(result, target) if is_narrow(target) else result

    return call  # type: ignore[return-value]
