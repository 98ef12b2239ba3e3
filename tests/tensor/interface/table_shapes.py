"""Operations on whole tensors with their NumPy oracles: movement, reductions, indices, order.

Every entry is a list of (morok, NumPy) pairs that are tried on tensors of one shape in different layouts, or
on all shapes with all choices of axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from morok import Tensor
from tests.tensor.interface.table_values import is_float, numpy_type

Array = Any
Pair = tuple[Callable[..., Any], Callable[..., Any]]

# --- layouts


def _plain(shape: tuple[int, ...], name: str, seed: int = 0) -> Array:
    """Small numbers that every type holds, some of them equal."""
    rng = np.random.default_rng(seed + sum(shape))
    low = 0 if name.startswith(("u", "b")) and name != "bfloat16" else -6
    data = rng.integers(low, 7, shape)
    if is_float(name):
        return np.asarray(data / 2).astype(numpy_type(name))
    return np.asarray(data > 2) if name == "bool" else np.asarray(data).astype(name)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "turned": lambda x: x.T,  # of (4, 3, 2)
    "strided": lambda x: x[::2, ::-1, 1:5],  # of (4, 3, 6)
    "spread": lambda x: np.broadcast_to(x, (2, 3, 4)) if isinstance(x, np.ndarray) else x.expand(2, 3, 4),
}
_SOURCES = {"plain": (2, 3, 4), "turned": (4, 3, 2), "strided": (4, 3, 6), "spread": (3, 1)}


def laid_out(layout: str, dtype: str) -> tuple[Tensor, Array]:
    """A tensor of shape (2, 3, 4) that is a view of other memory, and the same array."""
    source = _plain(_SOURCES[layout], dtype)
    return LAYOUTS[layout](Tensor(source)), np.array(LAYOUTS[layout](source))


SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (5,), (0,), (3, 4), (1, 1), (2, 0, 3), (2, 3, 2))


def axes_of(shape: tuple[int, ...]) -> Iterator[Any]:
    """None, each axis, and two at once."""
    yield None
    yield from range(len(shape))
    if len(shape) > 1:
        yield (0, -1)


def shaped(shape: tuple[int, ...], dtype: str) -> Array:
    return _plain(shape, dtype, seed=1)


# --- reductions: (call, oracle) with an axis and keepdims; floats are reduced in double precision and rounded


def _reduced(name: str, **options: Any) -> Callable[..., Array]:
    function = getattr(np, name)

    def oracle(x: Array, axis: Any, keep: bool) -> Array:
        if x.dtype.kind in "biu":
            return np.asarray(function(x, axis=axis, keepdims=keep, **options))
        found = np.asarray(function(x.astype(np.float64), axis=axis, keepdims=keep, **options))
        return found if found.dtype.kind in "bi" else found.astype(x.dtype)

    return oracle


def _averaged(name: str, **options: Any) -> Callable[..., Array]:
    """As above; of whole numbers in float32."""
    function = getattr(np, name)

    def oracle(x: Array, axis: Any, keep: bool) -> Array:
        found = function(x.astype(np.float64), axis=axis, keepdims=keep, **options)
        return np.asarray(found).astype(np.float32 if x.dtype.kind in "biu" else x.dtype)

    return oracle


def _position(name: str) -> Callable[..., Array]:
    function = getattr(np, name)

    def oracle(x: Array, axis: Any, keep: bool) -> Array:
        return np.asarray(function(x.astype(np.float64), axis=axis, keepdims=keep))

    return oracle


def _norm(order: float) -> Callable[..., Array]:
    def oracle(x: Array, axis: Any, keep: bool) -> Array:
        y = np.abs(x.astype(np.float64))
        if order == math.inf:
            found = np.max(y, axis=axis, keepdims=keep)
        else:
            found = np.sum(y**order, axis=axis, keepdims=keep) ** (1 / order)
        return np.asarray(found).astype(np.float32 if x.dtype.kind in "biu" else x.dtype)

    return oracle


def _logsumexp(x: Array, axis: Any, keep: bool) -> Array:
    found = np.log(np.sum(np.exp(x.astype(np.float64)), axis=axis, keepdims=keep))
    return np.asarray(found).astype(np.float32 if x.dtype.kind in "biu" else x.dtype)


def _by_axis(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda t, axis, keep: getattr(t, name)(*args, axis=axis, keepdim=keep, **kwargs)


REDUCTIONS: dict[str, Pair] = {
    **{n: (_by_axis(n), _reduced(n)) for n in ("sum", "prod", "max", "min", "any", "all", "count_nonzero")},
    **{n: (_by_axis(n), _reduced(n)) for n in ("nansum", "nanprod", "nanmax", "nanmin")},
    **{n: (_by_axis(n), _averaged(n)) for n in ("mean", "nanmean", "median", "nanvar")},
    "var": (_by_axis("var"), _averaged("var", ddof=1)),
    "std": (_by_axis("std", correction=0), _averaged("std")),
    "argmax": (_by_axis("argmax"), _position("argmax")),
    "argmin": (_by_axis("argmin"), _position("argmin")),
    "norm": (_by_axis("norm"), _norm(2)),
    "norm 1": (_by_axis("norm", 1), _norm(1)),
    "norm inf": (_by_axis("norm", math.inf), _norm(math.inf)),
    "logsumexp": (_by_axis("logsumexp"), _logsumexp),
    "quantile": (_by_axis("quantile", 0.3), _averaged("quantile", q=0.3)),
}
# NumPy has no position over several axes, and no choice among nothing.
ONE_AXIS = {"argmax", "argmin"}
NEED_ELEMENTS = {
    "max",
    "min",
    "argmax",
    "argmin",
    "median",
    "quantile",
    "nanmax",
    "nanmin",
    "norm inf",
    "var",
}

# --- running reductions and order: along every axis


def _running(name: str) -> Callable[..., Array]:
    function = getattr(np, name)

    def oracle(x: Array, axis: Any) -> Array:
        if x.dtype.kind in "biu":
            return np.asarray(function(x, axis=axis))
        return np.asarray(function(x.astype(np.float64), axis=axis)).astype(x.dtype)

    return oracle


def _accumulated(ufunc: Any) -> Callable[..., Array]:
    def oracle(x: Array, axis: Any) -> Array:
        flat = x.reshape(-1) if axis is None else x
        return (
            np.asarray(ufunc.accumulate(flat, axis=0 if axis is None else axis)) if flat.size else flat.copy()
        )

    return oracle


def _logcumsumexp(x: Array, axis: Any) -> Array:
    found = np.log(np.cumsum(np.exp(x.astype(np.float64)), axis=axis))
    return found.astype(np.float32 if x.dtype.kind in "biu" else x.dtype)


def _sorted(x: Array, axis: Any) -> Array:
    return np.sort(x, axis=axis, kind="stable")


RUNNING: dict[str, Pair] = {
    "cumsum": (lambda t, axis: t.cumsum(axis), _running("cumsum")),
    "cumprod": (lambda t, axis: t.cumprod(axis), _running("cumprod")),
    "cummax": (lambda t, axis: t.cummax(axis), _accumulated(np.maximum)),
    "cummin": (lambda t, axis: t.cummin(axis), _accumulated(np.minimum)),
    "logcumsumexp": (lambda t, axis: t.logcumsumexp(axis), _logcumsumexp),
}
ORDER: dict[str, Pair] = {
    "sort": (lambda t, axis: t.sort(axis).values, _sorted),
    "argsort": (lambda t, axis: t.argsort(axis), lambda x, axis: np.argsort(x, axis=axis, kind="stable")),
    "argsort descending": (
        lambda t, axis: t.argsort(axis, descending=True),
        lambda x, axis: np.argsort(-x.astype(np.float64), axis=axis, kind="stable"),
    ),
}

# --- movement and indices: the same elements at other places, tried on (2, 3, 4) in every layout

PLACES = np.array([2, 0, 2, 1])
MASK = np.array([[True, False, True], [False, False, True]])
INDEX = np.array([[[2], [0], [3]], [[1], [1], [0]]])


def _moved(name: str, *args: Any, **kwargs: Any) -> Pair:
    """A method that NumPy's arrays have as well."""
    return (
        lambda t: getattr(t, name)(*args, **kwargs),
        lambda x: getattr(x, name)(*args, **kwargs),
    )


def _numpy(name: str, *args: Any, oracle: str | None = None, **kwargs: Any) -> Pair:
    """A method that is a function in NumPy."""
    return (
        lambda t: getattr(t, name)(*args, **kwargs),
        lambda x: getattr(np, oracle or name)(x, *args, **kwargs),
    )


def _pads() -> list[Pair]:
    amounts = ((1, 0), (0, 2), (2, 1))
    found: list[Pair] = [
        (lambda t: t.pad(amounts), lambda x: np.pad(x, amounts)),
        (lambda t: t.pad((1, 2), value=1), lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2)), constant_values=1)),
        (lambda t: t.pad(((0, 0), (0, 0), (-1, 1))), lambda x: np.pad(x[..., 1:], ((0, 0), (0, 0), (0, 1)))),
    ]
    for mode, oracle in (
        ("reflect", "reflect"), ("symmetric", "symmetric"), ("replicate", "edge"), ("circular", "wrap")
    ):  # fmt: skip
        found.append((
            lambda t, mode=mode: t.pad(amounts, mode=mode),
            lambda x, oracle=oracle: np.pad(x, amounts, mode=oracle),
        ))  # fmt: skip
    return found


def _set(key: Any, value: Any) -> Pair:
    """The tensor with a part assigned."""

    def mine(t: Tensor) -> Tensor:
        copy = t.contiguous()
        copy[key] = value
        return copy

    def numpys(x: Array) -> Array:
        copy = x.copy()
        copy[key] = value
        return copy

    return mine, numpys


def _windows(x: Array, size: int, step: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=1)[:, ::step]


_KEYS: tuple[Any, ...] = (
    0, -1, (1, 2), (1, 2, 3), slice(1, None), (slice(None), slice(None, None, -1)), (..., 1), (None, 1),
    (slice(None), None, slice(0, 3, 2)), (slice(3, 0, -1),), (..., slice(3, 0, -2)), np.array([1, 0, 1]),
    (slice(None), PLACES), (..., np.array([[3, -1], [0, 0]])), (np.array([1, 0]), np.array([2, 0])),
    (np.array([1, 0]), slice(None), np.array([2, 0])), (0, slice(None), PLACES), (slice(None), 1, PLACES),
    (np.array([[1], [0]]), np.array([2, 0])), MASK, (slice(None), np.array([True, False, True])), True,
    (np.zeros((2, 3, 4), bool),), (slice(None), [2, 0]), (np.array([], np.int64),), slice(5, 9), (),
)  # fmt: skip

MOVEMENT: dict[str, list[Pair]] = {
    "reshape": [_moved("reshape", 4, 6), _moved("reshape", (-1, 2))],
    "flatten": [_moved("flatten"), (lambda t: t.flatten(1), lambda x: x.reshape(2, 12))],
    "unflatten": [(lambda t: t.unflatten(-1, (2, -1)), lambda x: x.reshape(2, 3, 2, 2))],
    "ravel": [_moved("ravel")],
    "squeeze": [(lambda t: t.reshape(2, 1, 12, 1).squeeze(axis=1), lambda x: x.reshape(2, 12, 1))],
    "unsqueeze": [(lambda t: t.unsqueeze(axis=-2), lambda x: x[:, :, None])],
    "permute": [(lambda t: t.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1))],
    "transpose": [(lambda t: t.transpose(0, 2), lambda x: np.swapaxes(x, 0, 2))],
    "swapaxes": [_moved("swapaxes", 0, -1)],
    "movedim": [
        _numpy("movedim", 0, -1, oracle="moveaxis"),
        _numpy("movedim", (0, 2), (1, 0), oracle="moveaxis"),
    ],
    "T": [(lambda t: t.T, lambda x: x.T)],
    "mT": [(lambda t: t.mT, lambda x: np.swapaxes(x, -1, -2))],
    "flip": [
        (lambda t: t.flip(0, -1), lambda x: x[::-1, :, ::-1]),
        _numpy("flip"),
        (lambda t: t.flip(dims=(0, -1)), lambda x: x[::-1, :, ::-1]),
        (lambda t: t.flip(axis=1), lambda x: x[:, ::-1]),
    ],
    "fliplr": [_numpy("fliplr")],
    "flipud": [_numpy("flipud")],
    "rot90": [_numpy("rot90", k) for k in (0, 1, 2, 3, -1)],
    "expand": [(lambda t: t.unsqueeze(1).expand(2, 5, -1, 4), lambda x: np.repeat(x[:, None], 5, 1))],
    "broadcast_to": [(lambda t: t.broadcast_to(5, 2, 3, 4), lambda x: np.broadcast_to(x, (5, 2, 3, 4)))],
    "expand_as": [
        (lambda t: t.expand_as(Tensor.ones(2, 2, 3, 4)), lambda x: np.broadcast_to(x, (2, 2, 3, 4)))
    ],
    "reshape_as": [(lambda t: t.reshape_as(Tensor.ones(8, 3)), lambda x: x.reshape(8, 3))],
    "repeat": [(lambda t: t.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)))],
    "repeat_interleave": [
        (lambda t: t.repeat_interleave(2, axis=1), lambda x: np.repeat(x, 2, 1)),
        (lambda t: t.repeat_interleave(2), lambda x: np.repeat(x, 2)),
    ],
    "shrink": [(lambda t: t.shrink([(0, 1), None, (1, 3)]), lambda x: x[:1, :, 1:3])],
    "narrow": [(lambda t: t.narrow(2, 1, 2), lambda x: x[..., 1:3])],
    "select": [(lambda t: t.select(1, -1), lambda x: x[:, -1])],
    "pad": _pads(),
    "cat": [(lambda t: t.cat(t, dim=1), lambda x: np.concatenate((x, x), 1))],
    "stack": [(lambda t: t.stack(t, axis=-1), lambda x: np.stack((x, x), -1))],
    "hstack": [
        (lambda t: Tensor.hstack([t, t]), lambda x: np.hstack((x, x))),
        (lambda t: t.hstack(t), lambda x: np.hstack((x, x))),
    ],
    "vstack": [
        (lambda t: Tensor.vstack([t, t]), lambda x: np.vstack((x, x))),
        (lambda t: t.vstack(t), lambda x: np.vstack((x, x))),
    ],
    "split": [
        (lambda t: t.split([1, 2], 1)[1], lambda x: x[:, 1:]),
        (lambda t: t.split(3, 2)[1], lambda x: x[..., 3:]),
    ],
    "chunk": [(lambda t: t.chunk(2, 1)[1], lambda x: x[:, 2:])],
    "tensor_split": [
        (lambda t: t.tensor_split(2, 1)[1], lambda x: np.array_split(x, 2, 1)[1]),
        (lambda t: t.tensor_split(Tensor(2), 1)[1], lambda x: np.array_split(x, 2, 1)[1]),
        (lambda t: t.tensor_split((1, 3), 2)[1], lambda x: np.array_split(x, (1, 3), 2)[1]),
    ],
    "unbind": [(lambda t: t.unbind(axis=1)[2], lambda x: x[:, 2])],
    "roll": [
        (lambda t: t.roll(shifts=(1, 2), dims=(0, 2)), lambda x: np.roll(x, (1, 2), (0, 2))),
        _numpy("roll", 1),
        _numpy("roll", -2, 1),
        _numpy("roll", (1, 2), (0, 2)),
    ],
    "unfold": [(lambda t: t.unfold(1, 2, 1), lambda x: _windows(x, 2, 1))],
    "diagonal": [
        _moved("diagonal"),
        _moved("diagonal", 1, 1, 2),
        _moved("diagonal", -1, 0, 2),
        _moved("diagonal", 9),
    ],
    "diag_embed": [(lambda t: t[0, 0].diag_embed(1), lambda x: np.diag(x[0, 0], 1))],
    "diag": [
        (lambda t: t[0].diag(), lambda x: np.diag(x[0])),
        (lambda t: t[0, 0].diag(), lambda x: np.diag(x[0, 0])),
    ],
    "tril": [_numpy("tril"), _numpy("tril", -1)],
    "triu": [_numpy("triu"), _numpy("triu", 2)],
    "rearrange": [
        (
            lambda t: t.rearrange("a b (c d) -> (b a) d c", c=2),
            lambda x: x.reshape(2, 3, 2, 2).transpose(1, 0, 3, 2).reshape(6, 2, 2),
        ),
        (lambda t: t.rearrange("a ... -> ... 1 a"), lambda x: x.transpose(1, 2, 0)[:, :, None]),
    ],
    "contiguous": [(lambda t: t.contiguous(), lambda x: x)],
    "clone": [(lambda t: t.clone(), lambda x: x)],
    "detach": [(lambda t: t.detach(), lambda x: x)],
    # index
    "__getitem__": [(lambda t, k=k: t[k], lambda x, k=k: x[k]) for k in _KEYS],
    "__setitem__": [_set(k, True) for k in _KEYS],
    "take": [_moved("take", PLACES), (lambda t: t.take(Tensor(PLACES), axis=1), lambda x: x.take(PLACES, 1))],
    "gather": [(lambda t: t.gather(2, Tensor(INDEX)), lambda x: np.take_along_axis(x, INDEX, 2))],
    "take_along_dim": [
        (lambda t: t.take_along_dim(INDEX, 2), lambda x: np.take_along_axis(x, INDEX, 2)),
        (lambda t: t.take_along_dim(PLACES), lambda x: np.take_along_axis(x, PLACES, None)),
    ],
    "index_select": [(lambda t: t.index_select(1, PLACES), lambda x: x[:, PLACES])],
    "embedding": [(lambda t: t.embedding(Tensor([[1, 0]])), lambda x: x[np.array([[1, 0]])])],
    "index_copy": [(lambda t: t.index_copy(1, [2, 0], t[:, :2]), lambda x: _copied(x))],
    "masked_select": [
        (
            lambda t: t[:, :, 0].masked_select(MASK, 5),
            lambda x: np.concatenate((x[:, :, 0][MASK], _zeros(x, 2))),
        )
    ],
    "masked_scatter": [
        (
            lambda t: t[:, :, 0].masked_scatter(MASK, t[0]),
            lambda x: _placed(x[:, :, 0], MASK, x[0].reshape(-1)),
        )
    ],
    "nonzero": [(lambda t: t.nonzero(24), lambda x: _padded(np.argwhere(x)))],
    "argwhere": [(lambda t: t.argwhere(), np.argwhere)],
    "unique": [(lambda t: t.unique(), np.unique)],
    "topk": [
        (
            lambda t: t.topk(2, 1).indices,
            lambda x: np.argsort(-x.astype(np.float64), 1, kind="stable")[:, :2],
        ),
        (lambda t: t.topk(3, 2, largest=False).values, lambda x: np.sort(x, 2)[..., :3]),
    ],
}


def _copied(x: Array) -> Array:
    copy = x.copy()
    copy[:, [2, 0]] = x[:, :2]
    return copy


def _zeros(x: Array, count: int) -> Array:
    return np.zeros(count, x.dtype)


def _placed(x: Array, mask: Array, source: Array) -> Array:
    copy = x.copy()
    np.place(copy, mask, source[: mask.sum()])
    return copy


def _padded(rows: Array) -> Array:
    return np.concatenate((rows, np.full((24 - len(rows), 3), -1)))
