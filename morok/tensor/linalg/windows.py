"""Windows that slide over axes, and the numbers that describe them: sizes, steps, edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.call import call
from morok.ir.infer import Size, show_shape, subtract_sizes
from morok.ir.node import UOp
from morok.ir.sizes import canonical, largest, negative_at, show_size, show_values
from morok.tensor.arrays.movement import expand, permute, reshape, shrink, squeeze, transpose, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import as_axis


def unfold(x: T, dim: Any = None, size: int = 1, step: int = 1, *, axis: int | None = None) -> T:
    """Windows of an axis, `step` apart, as a new last axis.

    >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
    [[1, 2], [2, 3], [3, 4]]
    """
    if not x.ndim:
        x = reshape(x, 1)
        return reshape(unfold(x, dim, size, step, axis=axis), size)
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    total = x.shape[at]
    if size < 1 or step < 1 or negative_at(subtract_sizes(total, size)) is not None:
        raise ShapeError(
            f"unfold of axis {at} of shape {show_shape(x.shape)} takes windows of 1 … {show_size(total)}"
            f" in steps of 1 or more, not {size} and {step}"
        )
    return slide_axis(x, at, size, step, 1)


def slide(x: T, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> T:
    """The last axes as (…, places, offsets): x[…, p·stride + k·dilation] for each place p and offset k.

    Repeating an axis of n elements and cutting the result into rows of n + d makes row k begin d·k
    further along: a window is then a column. The index arithmetic of it simplifies to p·s + k·d.
    """
    count = len(kernel)
    lead = x.ndim - count
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = slide_axis(x, lead + i, k, s, d)
    # axes are now (lead…, p0, p1, …, k0, k1, …)
    return x


def slide_axis(t: T, axis: int, k: int, s: int, d: int) -> T:
    """One axis of windows; the axis of offsets goes last."""
    n = t.shape[axis]
    if not isinstance(n, int):
        return _slide_symbolic(t, axis, n, k, s, d)
    places = (n - d * (k - 1) - 1) // s + 1
    x = transpose(t, axis, -1)
    lead = x.shape[:-1]
    if k <= s and d == 1:  # windows do not overlap: rows of s, of which the first k are taken
        total = places * s
        x = shrink(pad(x, [None] * len(lead) + [(0, max(0, total - n))]), [None] * len(lead) + [(0, total)])
        x = shrink(reshape(x, *lead, places, s), [None] * len(lead) + [None, (0, k)])
    else:
        row = x.uop
        width = max(n + d, places * s)
        n = width - d
        x = pad(x, [None] * len(lead) + [(0, n - x.shape[-1])])
        copies = -(-k * width // n)
        x = reshape(expand(unsqueeze(x, -2), *lead, copies, n), *lead, copies * n)
        x = reshape(shrink(x, [None] * len(lead) + [(0, k * width)]), *lead, k, width)
        x = reshape(shrink(x, [None] * len(lead) + [None, (0, places * s)]), *lead, k, places, s)
        x = squeeze(shrink(x, [None] * len(lead) + [None, None, (0, 1)]), -1)
        # By name, because the way back is shorter than this one backwards.
        x = transpose(t._new(call("windows", x.uop, row, stride=s, dilation=d)), -1, -2)
    # (…, places, k) with `places` where the last axis was; bring it back to `axis`
    last = x.ndim - 1
    order = list(range(x.ndim))
    order[axis], order[last - 1] = order[last - 1], order[axis]
    return permute(x, order)


def _slide_symbolic(t: T, axis: int, n: UOp, k: int, s: int, d: int) -> T:
    """Windows over a number of elements that is known later: those of the most that there can be, cut.

    Zeros fill the axis up to that number. No window that is left reads them, and loops end where the cut is.
    """
    if k == s == 1:
        return unsqueeze(t, -1)
    places = canonical((n - (d * (k - 1) + 1)) // s + 1)
    whole: list[Any] = [None] * t.ndim
    room = largest(n)
    x = pad(t, [*whole[:axis], (0, subtract_sizes(room, n)), *whole[axis + 1 :]])
    x = slide_axis(x, axis, k, s, d)
    return shrink(x, [*whole[:axis], (0, places), *whole[axis:]])


def steps_of(value: Any, count: int, what: str) -> list[int]:
    """Numbers of 1 or more, one per dimension: strides, dilations, sizes of kernels."""
    fits = _each(value, count, lambda v: isinstance(v, int) and v >= 1)
    if fits is None:
        raise ShapeError(f"{what} needs {count} whole numbers of 1 or more, not {value!r}")
    return fits


def whole_numbers(value: Any, count: int) -> list[int]:
    """Numbers of 0 or more, one per dimension."""
    fits = _each(value, count, lambda v: isinstance(v, int) and v >= 0)
    if fits is None:
        raise ShapeError(f"{count} whole numbers are needed, one per dimension, not {value!r}")
    return fits


def factors_of(value: Any, count: int) -> list[float]:
    """Numbers above 0, one per dimension."""
    fits = _each(value, count, lambda v: v > 0)
    if fits is None:
        raise ShapeError(f"{count} factors above 0 are needed, one per dimension, not {value!r}")
    return fits


def _each(value: Any, count: int, fits: Callable[[Any], Any]) -> list[Any] | None:
    """One number per dimension, from one or from all; None if they do not fit."""
    many = list(value) if isinstance(value, tuple | list) else [value] * count
    return many if len(many) == count and all(map(fits, many)) else None


def known_size(size: Size, what: str) -> int:
    """A size that must be a number."""
    if not isinstance(size, int):
        raise ShapeError(f"{what} must have a known size, not {show_shape((size,))}")
    return size


def padding_pairs(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[Any]:
    """A pair (before, after) per dimension."""
    if padding == "valid":
        padding = 0
    if isinstance(padding, str) and padding != "same":
        raise ArgumentError(f'padding is "same", "valid" or numbers, not {padding!r}')
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    count = len(kernel)
    many = list(padding) if isinstance(padding, tuple | list) else [padding] * count
    if len(many) != count:
        raise ShapeError(f"padding needs one number or {count}, not {padding!r}")
    return [tuple(p) if isinstance(p, tuple | list) else (p, p) for p in many]


def require_windows(sizes: Sequence[Size], kernel: Sequence[int], dilation: Sequence[int]) -> None:
    """An error if an axis is shorter than a window."""
    for size, k, d in zip(sizes, kernel, dilation, strict=True):
        reach = d * (k - 1) + 1
        wrong = negative_at(subtract_sizes(size, reach))
        if wrong is not None:
            axis = f"{show_size(size)}{show_values(wrong)}"
            raise ShapeError(f"a window of {reach} does not fit in an axis of {axis}; pad it")
