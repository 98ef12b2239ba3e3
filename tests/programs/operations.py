"""What the operations of random programs mean, in NumPy and with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor

Array = np.ndarray[Any, Any]


def np_set(x: Array, key: Any, value: Any) -> Array:
    result = x.copy()
    result[key] = value
    return result


def _np_take(x: Array, axis: int, where: Any) -> Array:
    return np.take(x, np.array(where), axis=axis)


def _t_take(x: Tensor, axis: int, where: Any) -> Tensor:
    return x.index_select(axis, Tensor(np.array(where)).to(x.device))


def _np_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _mean(x: Array, axis: Any, keep: bool) -> Array:
    return np.asarray(
        x.mean(axis, keepdims=keep, dtype=x.dtype if x.dtype.kind == "f" else np.float64)
    ).astype(x.dtype if x.dtype.kind == "f" else np.float32)


def _np_divide(x: Array, y: Array) -> Array:
    result = x / y
    return result if x.dtype.kind == "f" or y.dtype.kind == "f" else result.astype(np.float32)


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (np.add, lambda x, y: x + y),
    "sub": (np.subtract, lambda x, y: x - y),
    "mul": (np.multiply, lambda x, y: x * y),
    "div": (_np_divide, lambda x, y: x / y),
    "floordiv": (np.floor_divide, lambda x, y: x // y),
    "mod": (np.mod, lambda x, y: x % y),
    "maximum": (np.maximum, lambda x, y: x.maximum(y)),
    "minimum": (np.minimum, lambda x, y: x.minimum(y)),
    "less": (np.less, lambda x, y: x < y),
    "equal": (np.equal, lambda x, y: x == y),
    "where": (np.where, lambda c, x, y: c.where(x, y)),
    "neg": (np.negative, lambda x: -x),
    "abs": (np.abs, abs),
    "invert": (np.invert, lambda x: ~x),
    "square": (np.square, lambda x: x.square()),
    "sqrt": (np.sqrt, lambda x: x.sqrt()),
    "exp": (np.exp, lambda x: x.exp()),
    "sin": (np.sin, lambda x: x.sin()),
    "tanh": (np.tanh, lambda x: x.tanh()),
    "floor": (np.floor, lambda x: x.floor()),
    "add_number": (lambda x, c: x + c, lambda x, c: x + c),
    "mul_number": (lambda x, c: x * c, lambda x, c: c * x),
    "cast": (lambda x, d: x.astype(d), lambda x, d: x.cast(d)),
    "reshape": (lambda x, s: x.reshape(s), lambda x, s: x.reshape(s)),
    "permute": (lambda x, p: x.transpose(p), lambda x, p: x.permute(p)),
    "flip": (lambda x, a: np.flip(x, a), lambda x, a: x.flip(a)),
    "pad": (lambda x, p, v: np.pad(x, p, constant_values=v), lambda x, p, v: x.pad(p, v)),
    "index": (lambda x, k: x[k], lambda x, k: x[k]),
    "expand": (lambda x, s: np.broadcast_to(x, s), lambda x, s: x.expand(*s)),
    "sum": (lambda x, a, k: np.sum(x, a, keepdims=k), lambda x, a, k: x.sum(a, keepdim=k)),
    "prod": (lambda x, a, k: np.prod(x, a, keepdims=k), lambda x, a, k: x.prod(a, keepdim=k)),
    "max": (lambda x, a, k: np.max(x, a, keepdims=k), lambda x, a, k: x.max(a, keepdim=k)),
    "min": (lambda x, a, k: np.min(x, a, keepdims=k), lambda x, a, k: x.min(a, keepdim=k)),
    "mean": (_mean, lambda x, a, k: x.mean(a, keepdim=k)),
    "any": (lambda x, a, k: np.any(x, a, keepdims=k), lambda x, a, k: x.any(a, keepdim=k)),
    "all": (lambda x, a, k: np.all(x, a, keepdims=k), lambda x, a, k: x.all(a, keepdim=k)),
    "argmax": (lambda x, a: np.argmax(x, a), lambda x, a: x.argmax(a)),
    "cumsum": (lambda x, a: np.cumsum(x, a), lambda x, a: x.cumsum(a)),
    "softmax": (_np_softmax, lambda x: x.softmax(-1)),
    "matmul": (np.matmul, lambda x, y: x @ y),
    "cat": (lambda *a: np.concatenate(a[:-1], a[-1]), lambda *a: a[0].cat(*a[1:-1], dim=a[-1])),
    "take": (_np_take, _t_take),
    "contiguous": (lambda x: x, lambda x: x.contiguous()),
}
# These change a value in place or compute it early; they make no new one.
EFFECTS = ("assign", "set", "realize")

APPROXIMATE = frozenset(("exp", "sin", "tanh", "softmax"))
JUMPS = frozenset(("less", "equal", "floor", "argmax", "floordiv", "mod"))
