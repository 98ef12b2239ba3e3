"""Values around a tensor: a constant, or what is inside of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.dtype import bool_
from morok.errors import ArgumentError, ShapeError
from morok.ir import movement as move
from morok.ir.bounds import bounds
from morok.ir.infer import Shape, Size, show_shape, subtract_sizes
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.ir.sizes import largest, never_negative
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.movement import expand, flip, narrow
from morok.tensor.calls.record import frozen
from morok.tensor.core import expand_to, operand, require_shape
from morok.tensor.dtypes import require_range
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_size

_MODES = {
    "reflect": "reflect", "symmetric": "symmetric", "replicate": "edge", "edge": "edge",
    "circular": "wrap", "wrap": "wrap",
}  # fmt: skip


@frozen("pad gives a value, which cannot be written to; copy it with contiguous()")
def pad(t: T, padding: Sequence[Any], value: Any = 0, mode: str = "constant") -> T:
    """`value` around the tensor; or what is inside, by reflect, symmetric, replicate or circular `mode`.

    `padding` holds a pair (before, after) or None per axis; or, as in PyTorch, flat numbers for the last
    axes, the last axis first.

    >>> Tensor([1, 2]).pad([(1, 2)]).tolist()
    [0, 1, 2, 0, 0]
    """
    if mode != "constant":
        return _pad_with_itself(t, paddings(t.shape, padding), mode)
    own = t.shape
    amounts = paddings(own, padding)
    cut = [
        (_up(negated(lo)), subtract_sizes(size, _up(negated(hi))))
        for size, (lo, hi) in zip(own, amounts, strict=True)
    ]
    grow = [(_up(lo), _up(hi)) for lo, hi in amounts]
    x = move.shrink(t.uop, cut)
    padded = move.pad(x, grow)
    if padded is x or (isinstance(value, int | float) and value == 0 and str(value)[0] != "-"):
        return t._new(padded)
    return t._new(_fill_outside(padded, x, grow, value))


def _pad_with_itself(x: T, amounts: list[tuple[Size, Size]], mode: str) -> T:
    how = _MODES.get(mode)
    if how is None:
        known = ", ".join(map(repr, ("constant", *_MODES)))
        raise ArgumentError(f"pad has the modes {known}, not {mode!r}")
    for axis, (low, high) in enumerate(amounts):
        if (low, high) == (0, 0):
            continue
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(low, int) or not isinstance(high, int):
            raise ShapeError(f"pad with mode {mode!r} needs known sizes, not {show_shape(x.shape)}")
        x = _pad_axis(x, axis, size, low, high, how)
    return x


def _pad_axis(x: T, axis: int, size: int, low: int, high: int, how: str) -> T:
    """One axis. What is negative is cut off: before it goes in circles, and after it is mirrored."""
    if low < 0 or high < 0:
        first, last = max(-low, 0), max(-high, 0)
        if how != "wrap":
            longer = _pad_axis(x, axis, size, max(low, 0), max(high, 0), how)
            return narrow(longer, axis, first, int(longer.shape[axis]) - first - last)  # type: ignore[arg-type]
        inside = size - first - last
        return _pad_axis(narrow(x, axis, first, inside), axis, inside, max(low, 0), max(high, 0), how)
    if low == high == 0:
        return x
    most = {"reflect": size - 1, "symmetric": size, "wrap": size, "edge": low + high if size else 0}[how]
    if max(low, high) > most:
        raise ShapeError(
            f"pad by {max(low, high)} with mode {how!r} needs as many elements inside, but axis {axis} "
            f"of shape {show_shape(x.shape)} has {most} to give"
        )
    if how == "edge":
        parts = [(0, 1, low), (size - 1, 1, high)]
        before, after = (
            expand(narrow(x, axis, start, 1), [n if i == axis else -1 for i in range(x.ndim)])
            for start, _, n in parts
        )
    elif how == "wrap":
        before, after = narrow(x, axis, size - low, low), narrow(x, axis, 0, high)
    else:
        skip = how == "reflect"
        before = flip(narrow(x, axis, int(skip), low), axis)
        after = flip(narrow(x, axis, size - high - skip, high), axis)
    return cat(before, x, after, dim=axis)


def paddings(own: Shape, padding: Sequence[Any]) -> list[tuple[Size, Size]]:
    """A pair per axis, from pairs or from PyTorch's flat list."""
    if all(pair is None or isinstance(pair, tuple | list) for pair in padding):
        if len(padding) != len(own):
            raise ShapeError(
                f"pad of shape {show_shape(own)} needs {len(own)} pairs (before, after), got {len(padding)}"
            )
        return [
            (0, 0) if pair is None else (as_size(pair[0], "a padding"), as_size(pair[1], "a padding"))
            for pair in padding
        ]
    flat = [as_size(size, "a padding") for size in padding]
    if len(flat) % 2 or len(flat) > 2 * len(own):
        raise ShapeError(
            f"pad of shape {show_shape(own)} takes up to {2 * len(own)} numbers, two per axis from the last, "
            f"got {len(flat)}"
        )
    pairs: list[tuple[Size, Size]] = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    return [(0, 0)] * (len(own) - len(pairs)) + pairs[::-1]


def negated(size: Size) -> Size:
    return -size if isinstance(size, int) else alu(Ops.NEG, size)


def _up(size: Size) -> Size:
    """The size, or 0 where it is negative; a symbolic one is taken as it is if it can be positive.

    One that is 0 with the values of this moment stays: the same plan serves all values.
    """
    if isinstance(size, int):
        return max(size, 0)
    if largest(negated(size)) <= 0 < largest(size):
        return size
    return 0 if bounds(size)[1] <= 0 or never_negative(negated(size)) else size


def _fill_outside(padded: UOp, x: UOp, grow: list[tuple[Size, Size]], value: Any) -> UOp:
    """Another value than zero around the tensor: the padding of "true" tells inside from outside."""
    require_range(value, x.dtype)
    inside = move.pad(expand_to(const(bool_, True), require_shape(x)), grow)
    return alu(Ops.WHERE, inside, padded, operand(const(x.dtype, value), require_shape(padded)))
