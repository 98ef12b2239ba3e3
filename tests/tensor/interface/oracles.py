"""What the table of products is compared with: NumPy, in loops where it has no function."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any


def convolved(
    x: Array, w: Array, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> Array:
    """A convolution, one output after the other."""
    count = w.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * count))
    kernel = w.shape[2:]
    sizes = [(x.shape[2 + i] - dilation * (kernel[i] - 1) - 1) // stride + 1 for i in range(count)]
    result = np.zeros((x.shape[0], w.shape[0], *sizes))
    inner, outer = w.shape[1], w.shape[0] // groups
    for n, o, *place in itertools.product(*map(range, result.shape)):
        first = o // outer * inner
        window = tuple(slice(p * stride, p * stride + dilation * (k - 1) + 1, dilation)
                       for p, k in zip(place, kernel, strict=True))  # fmt: skip
        result[(n, o, *place)] = (x[(n, slice(first, first + inner), *window)] * w[o]).sum()
    return result


def transposed(
    x: Array, w: Array, stride: int = 1, padding: int = 0, extra: int = 0, groups: int = 1, dilation: int = 1
) -> Array:
    """A transposed convolution: every input adds its kernel to the output."""
    count = w.ndim - 2
    kernel, per_group, inner = w.shape[2:], w.shape[1], x.shape[1] // groups
    whole = [(n - 1) * stride + dilation * (k - 1) + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
    result = np.zeros((x.shape[0], groups * per_group, *(size + extra for size in whole)))
    for n, c, *place in itertools.product(*map(range, x.shape)):
        group = c // inner
        window = tuple(slice(p * stride, p * stride + dilation * (k - 1) + 1, dilation)
                       for p, k in zip(place, kernel, strict=True))  # fmt: skip
        outputs = slice(group * per_group, (group + 1) * per_group)
        result[(n, outputs, *window)] += x[(n, c, *place)] * w[c]
    inside = tuple(slice(padding, result.shape[2 + i] - padding) for i in range(count))
    return result[(slice(None), slice(None), *inside)]


def pooled(x: Array, size: Sequence[int], stride: Sequence[int], function: Any) -> Array:
    count = len(size)
    places = [(x.shape[x.ndim - count + i] - size[i]) // stride[i] + 1 for i in range(count)]
    result = np.zeros((*x.shape[: x.ndim - count], *places))
    for place in itertools.product(*map(range, places)):
        window = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, stride, size, strict=True))
        result[(..., *place)] = function(x[(..., *window)], axis=tuple(range(-count, 0)))
    return result


def adapted(x: Array, sizes: Sequence[int], function: Any) -> Array:
    for i, wanted in enumerate(sizes):
        axis = x.ndim - len(sizes) + i
        n = x.shape[axis]
        parts = [
            function(
                x.take(range(k * n // wanted, -(-(k + 1) * n // wanted)), axis), axis=axis, keepdims=True
            )
            for k in range(wanted)
        ]
        x = np.concatenate(parts, axis)
    return x


def resized(x: Array, axis: int, new: int, corners: bool = False) -> Array:
    old = x.shape[axis]
    places = np.arange(new)
    at = places * (old - 1) / (new - 1) if corners else np.maximum((places + 0.5) * old / new - 0.5, 0)
    low = np.minimum(np.floor(at).astype(int), old - 1)
    high = np.minimum(low + 1, old - 1)
    share = (at - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return x.take(low, axis) * (1 - share) + x.take(high, axis) * share


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return softmax(scores) @ v


def normalised(x: Array, axes: Any, eps: float = 1e-5) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def entropy(x: Array, labels: Array) -> Array:
    return -np.log(softmax(x))[np.arange(len(labels)), labels]
