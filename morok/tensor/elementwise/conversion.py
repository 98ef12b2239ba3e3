"""Conversions. A file of their own: here `float`, `int` and `bool` are functions of tensors."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.ir import build
from morok.tensor.core import C
from morok.tensor.dtypes import as_dtype
from morok.tensor.elementwise.bits import reinterpreted


def cast(x: C, dtype: Any) -> C:
    """The values in another type; floats become integers by dropping their fraction.

    >>> Tensor([1.7, -1.7]).cast("int32").tolist()
    [1, -1]
    """
    target = as_dtype(dtype)
    return x if target is x.dtype else x._new(build.cast(x.uop, target))


def bitcast(x: C, dtype: Any) -> C:
    """The same bits read as another type; the last axis grows or shrinks with its size, as NumPy's view.

    >>> Tensor([1.0]).bitcast("int32").tolist()
    [1065353216]
    >>> Tensor([1, 258], dtype="int16").bitcast("uint8").tolist()
    [1, 0, 2, 1]
    """
    return x._new(reinterpreted(x.uop, as_dtype(dtype)))


def float(x: C) -> C:
    """As float32.

    >>> Tensor([1, 2]).float().tolist()
    [1.0, 2.0]
    """
    return cast(x, dt.float32)


def double(x: C) -> C:
    """As float64.

    >>> Tensor([1, 2]).double().tolist()
    [1.0, 2.0]
    """
    return cast(x, dt.float64)


def half(x: C) -> C:
    """As float16.

    >>> Tensor([1, 2]).half().tolist()
    [1.0, 2.0]
    """
    return cast(x, dt.float16)


def bfloat16(x: C) -> C:
    """As bfloat16.

    >>> Tensor([1, 2]).bfloat16().tolist()
    [1.0, 2.0]
    """
    return cast(x, dt.bfloat16)


def int(x: C) -> C:
    """As int32.

    >>> Tensor([1.7, -1.7]).int().tolist()
    [1, -1]
    """
    return cast(x, dt.int32)


def long(x: C) -> C:
    """As int64.

    >>> Tensor([1.7, -1.7]).long().tolist()
    [1, -1]
    """
    return cast(x, dt.int64)


def bool(x: C) -> C:
    """As truths: whatever is not zero.

    >>> Tensor([0, 3]).bool().tolist()
    [False, True]
    """
    return cast(x, dt.bool_)
