"""Codes and numbers of constants by NumPy: QuantizeLinear, DequantizeLinear and Identity.

Weights and biases have many shapes, and a kernel for each of them would be compiled to run once. What is
computed is that of `ops/quantized.py` to the last bit; whatever else an operator may ask for is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from morok.onnx.graph import Node
from morok.onnx.types import Array, elem_of_array
from morok.onnx.values import Host

_CODES = frozenset(map(np.dtype, (np.int8, np.uint8, np.int16, np.uint16)))
_SUMS = np.dtype(np.int32)  # biases


def by_numpy(node: Node, env: Mapping[str, Any]) -> Array | None:
    """The only result of a node on constants; None if it is not one of these, or a rare form of it."""
    if node.op not in ("Identity", "QuantizeLinear", "DequantizeLinear") or node.domain:
        return None
    inputs = [env.get(n) for n in node.inputs if n]
    hosts = [x for x in inputs if isinstance(x, Host) and x.elem == elem_of_array(x.array)]
    if len(hosts) < len(inputs) or not node.attributes.keys() <= {"axis"}:
        return None
    if node.op == "Identity":
        return hosts[0].array
    x, scale, *zeros = (host.array for host in hosts)
    beside = _beside(x, scale, int(node.attributes.get("axis", 1)))
    if beside is None or scale.dtype != np.float32 or any(z.shape != scale.shape for z in zeros):
        return None
    if node.op == "DequantizeLinear":
        return _numbers(x, scale.reshape(beside), [z.reshape(beside) for z in zeros])
    return _codes(x, scale.reshape(beside), zeros[0].reshape(beside)) if zeros else None


def _beside(x: Array, scale: Array, axis: int) -> list[int] | None:
    """The shape of one scale for all, or of one for each slice, beside the numbers."""
    if scale.size == 1:
        return []
    if scale.ndim != 1 or not -x.ndim <= axis < x.ndim or x.shape[axis] != scale.size:
        return None
    return [scale.size if i == axis % x.ndim else 1 for i in range(x.ndim)]


def _numbers(x: Array, scale: Array, zeros: list[Array]) -> Array | None:
    if x.dtype not in _CODES and (x.dtype != _SUMS or any(z.any() for z in zeros)):
        return None
    y = x.astype(np.int32)
    for zero in zeros:
        y = y - zero.astype(np.int32)
    return np.asarray(y.astype(np.float32) * scale)


def _codes(x: Array, scale: Array, zero: Array) -> Array | None:
    if x.dtype != np.float32 or zero.dtype not in _CODES or not scale.all():
        return None
    steps = x / scale
    if not np.isfinite(steps).all():
        return None
    limits = np.iinfo(zero.dtype)
    offset = zero.astype(np.float32)
    whole = np.rint(np.clip(steps, limits.min - offset, limits.max - offset)).astype(np.int32)
    return np.asarray((whole + zero.astype(np.int32)).astype(zero.dtype))
