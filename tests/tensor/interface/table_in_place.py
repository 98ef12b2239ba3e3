"""Methods that overwrite their tensor: name, data, arguments, and what NumPy makes of the data."""

from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor

Array = Any
X = np.array([[0.5, -1.25, 2.0], [0.25, 1.5, -0.75]], np.float32)
UP = np.abs(X) + 0.25
PLACES = np.array([1, 0])
ROWS = np.array([[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]], np.float32)


def _added(x: Array) -> Array:
    x = x.copy()
    np.add.at(x, PLACES, ROWS)
    return x


def _at(x: Array, value: Any) -> Array:
    x = x.copy()
    x[PLACES] = value
    return x


def _one(name: str, function: Callable[[Array], Array], data: Array = X, *args: Any) -> tuple[Any, ...]:
    return name, data, args, function


IN_PLACE = [
    _one("zero_", np.zeros_like),
    _one("fill_", lambda x: np.full_like(x, 3), X, 3),
    _one("copy_", lambda x: np.broadcast_to(ROWS[0], x.shape), X, ROWS[0]),
    _one("uniform_", lambda x: np.full_like(x, 2), X, 2.0, 2.0),
    _one("normal_", lambda x: np.full_like(x, 5), X, 5.0, 0.0),
    _one("add_", lambda x: x + ROWS[0], X, ROWS[0]),
    _one("sub_", lambda x: x - 2, X, 2),
    _one("mul_", lambda x: x * ROWS, X, ROWS),
    _one("div_", lambda x: x / 4, X, 4),
    _one("pow_", lambda x: x**2, X, 2),
    _one("floor_divide_", lambda x: x // 0.5, X, 0.5),
    _one("remainder_", lambda x: x % 1.0, X, 1.0),
    _one("fmod_", lambda x: np.fmod(x, np.float32(1.0)), X, 1.0),
    _one("clamp_", lambda x: x.clip(0, 1), X, 0, 1),
    _one("clip_", lambda x: x.clip(0, 1), X, 0, 1),
    _one("clamp_min_", lambda x: x.clip(0), X, 0),
    _one("clamp_max_", lambda x: x.clip(None, 1), X, 1),
    _one("masked_fill_", lambda x: np.where(X > 0, np.float32(7), x), X, X > 0, 7.0),
    _one("addcmul_", lambda x: x + ROWS * ROWS, X, ROWS, ROWS),
    _one("addcdiv_", lambda x: x + ROWS / UP, X, ROWS, UP),
    _one("lerp_", lambda x: x + (ROWS - x) * np.float32(0.25), X, ROWS, 0.25),
    _one("nan_to_num_", np.nan_to_num, np.where(X > 0, X, np.float32("nan"))),
    *(
        _one(name + "_", function, UP)
        for name, function in (
            ("exp", np.exp), ("log", np.log), ("sqrt", np.sqrt), ("square", np.square), ("sin", np.sin),
            ("cos", np.cos), ("tanh", np.tanh), ("rsqrt", lambda x: 1 / np.sqrt(x)),
            ("reciprocal", lambda x: 1 / x), ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        )
    ),
    *(
        _one(name + "_", function)
        for name, function in (
            ("neg", np.negative), ("abs", np.abs), ("sign", np.sign), ("floor", np.floor), ("ceil", np.ceil),
            ("round", np.round), ("trunc", np.trunc), ("relu", lambda x: np.maximum(x, 0)),
            ("tril", np.tril), ("triu", np.triu),
        )
    ),
    _one("cumsum_", lambda x: x.cumsum(1), X, 1),
    _one("index_add_", _added, X, 0, PLACES, ROWS),
    _one("index_copy_", lambda x: _at(x, ROWS), X, 0, PLACES, ROWS),
    _one("index_fill_", lambda x: _at(x, 3), X, 0, PLACES, 3.0),
    _one("index_put_", lambda x: _at(x, ROWS), X, (PLACES,), ROWS),
    _one("scatter_", lambda x: _at(x, ROWS), X, 0, PLACES[:, None].repeat(3, 1), ROWS),
    _one("scatter_add_", _added, X, 0, PLACES[:, None].repeat(3, 1), ROWS),
]  # fmt: skip


def as_tensors(args: Any) -> Any:
    """Arguments in which arrays are tensors."""
    if isinstance(args, tuple):
        return tuple(as_tensors(a) for a in args)
    return Tensor(args) if isinstance(args, np.ndarray) else args


# Asked of a tensor by PyTorch's names: test_in_place.py
FACTS = frozenset(
    ("dim", "nelement", "element_size", "stride", "is_floating_point", "is_contiguous", "t", "type_as", "cpu",
     "copy", "new_tensor")
)  # fmt: skip
