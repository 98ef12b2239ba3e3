"""First values of weights. All are lazy: a model's weights are computed when they are first needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from morok.dtype import default_float
from morok.ir.arithmetic.arrays import storage
from morok.tensor.dtypes import as_dtype
from morok.tensor.tensor import Tensor


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many numbers flow into one output, and out of one input, of weights (out, in, *kernel)."""
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return size, size
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def parameter(value: Tensor) -> Tensor:
    """A tensor that is learned."""
    return value.requires_grad_()


def stored(value: float, *shape: int, dtype: Any = None, device: str | None = None) -> Tensor:
    """The same value everywhere, in memory from the start: what is going to be overwritten step by step."""
    kind = as_dtype(dtype or default_float)
    return Tensor(np.full(shape, value, dtype=storage(kind)), kind, device)


def uniform_fan_in(*shape: int, fan: int | None = None, dtype: Any = None) -> Tensor:
    """Between ±1/√(fan in): what linear layers and convolutions begin with."""
    bound = 1.0 / math.sqrt(fan if fan is not None else max(fans(shape)[0], 1))
    return Tensor.uniform(*shape, low=-bound, high=bound, dtype=dtype)


def xavier_uniform(*shape: int, gain: float = 1.0, dtype: Any = None) -> Tensor:
    """Keeps the variance of values and of gradients alike (Glorot)."""
    bound = gain * math.sqrt(6.0 / sum(fans(shape)))
    return Tensor.uniform(*shape, low=-bound, high=bound, dtype=dtype)


def xavier_normal(*shape: int, gain: float = 1.0, dtype: Any = None) -> Tensor:
    """As `xavier_uniform`, normal."""
    return Tensor.normal(*shape, std=gain * math.sqrt(2.0 / sum(fans(shape))), dtype=dtype)


def kaiming_uniform(*shape: int, slope: float = 0.0, dtype: Any = None) -> Tensor:
    """Keeps the variance of values through (leaky) rectifiers (He)."""
    bound = math.sqrt(6.0 / ((1.0 + slope * slope) * fans(shape)[0]))
    return Tensor.uniform(*shape, low=-bound, high=bound, dtype=dtype)


def kaiming_normal(*shape: int, slope: float = 0.0, dtype: Any = None) -> Tensor:
    """As `kaiming_uniform`, normal."""
    return Tensor.normal(*shape, std=math.sqrt(2.0 / ((1.0 + slope * slope) * fans(shape)[0])), dtype=dtype)
