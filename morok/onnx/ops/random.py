"""Random numbers, from the seed of the node if it has one; dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok.errors import DTypeError
from morok.onnx.ops.common import back
from morok.onnx.ops.shape import shape_of
from morok.onnx.table import Call, T, converted, op
from morok.onnx.types import dtype_of_elem
from morok.onnx.values import Value, elem_of
from morok.tensor.tensor import Tensor


def _drawn(normal: bool, shape: Any, elem: int, seed: Any, a: float, b: float) -> Tensor:
    dtype = dtype_of_elem(elem)
    if dtype is None or not dtype.is_float:
        raise DTypeError("random numbers are drawn in types of floats")
    if seed is not None:  # the same numbers at every call: those of NumPy's generator of that seed
        rng = np.random.RandomState(int(seed) & 0xFFFFFFFF)
        sizes = tuple(int(n) for n in shape)
        made = rng.standard_normal(sizes) * b + a if normal else rng.uniform(a, b, sizes)
        return Tensor(np.asarray(made, np.float32)).cast(dtype)
    if normal:
        return back(Tensor.normal(*shape, mean=a, std=b), dtype)
    return back(Tensor.uniform(*shape, low=a, high=b), dtype)


@op("RandomNormal", since=1)
def random_normal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: Any = None, shape: Any
) -> T:
    return _drawn(True, tuple(shape), dtype, seed, mean, scale)


@op("RandomUniform", since=1)
def random_uniform(*, dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: Any = None, shape: Any) -> T:
    return _drawn(False, tuple(shape), dtype, seed, low, high)


@op("RandomNormalLike", since=1)
def random_normal_like(
    x: Value, *, dtype: Any = None, mean: float = 0.0, scale: float = 1.0, seed: Any = None
) -> T:
    return _drawn(True, shape_of(x), dtype or elem_of(x), seed, mean, scale)


@op("RandomUniformLike", since=1)
def random_uniform_like(
    x: Value, *, dtype: Any = None, low: float = 0.0, high: float = 1.0, seed: Any = None
) -> T:
    return _drawn(False, shape_of(x), dtype or elem_of(x), seed, low, high)


@op("Bernoulli", since=15)
def bernoulli(x: T, *, dtype: Any = None, seed: Any = None) -> T:
    kind = dtype_of_elem(dtype) if dtype is not None else x.dtype
    return (_drawn(False, x.shape, 1, seed, 0.0, 1.0) < x).cast(kind)


@op("Multinomial", since=7)
def multinomial(x: T, *, dtype: int = 6, sample_size: int = 1, seed: Any = None) -> T:
    rows = x.shape[0]
    threshold = _drawn(False, (rows, sample_size), 1, seed, 0.0, 1.0)
    total = x.softmax(-1).cumsum(-1)
    return (
        (total.unsqueeze(1) <= threshold.unsqueeze(-1))
        .sum(-1)
        .minimum(x.shape[1] - 1)
        .cast(dtype_of_elem(dtype))
    )


@op("Dropout", since=12)
def dropout(call: Call, x: T, ratio: Value | None, training: Value | None, *, seed: Any = None) -> Any:
    """As it is, unless the input says that it is training."""
    active = training is not None and bool(converted("Nums", training, 2)[0])
    part = float(converted("Nums", ratio, 1)[0]) if ratio is not None else 0.5
    if not active or part == 0.0:
        return (x, Tensor.full(x.shape, True, dtype="bool")) if call.wants(1) else x
    kept = _drawn(False, x.shape, 1, seed, 0.0, 1.0) >= part
    return kept.where(x / (1 - part), 0.0).cast(x.dtype), kept


@op("Dropout", until=11)
def dropout_old(
    call: Call, x: T, *, ratio: float = 0.5, is_test: int = 0, consumed_inputs: Any = None
) -> Any:
    if not call.wants(1):
        return x
    kind = "bool" if call.version >= 10 else x.dtype
    return x, Tensor.full(x.shape, True, dtype="bool").cast(kind)
