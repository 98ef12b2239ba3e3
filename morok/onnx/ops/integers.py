"""Products of small integers, exactly, at the speed of products of floats.

Whole numbers up to 2²⁴ are exact in float32, and so is every sum of products whose magnitudes add up to less,
in whatever order it is taken. Bounds are known: a type's range less the zero point on the left, and on the
right the constants themselves, added up for each result. Where a whole sum could be larger it is taken in
pieces that cannot, which are added in 32 bits. No result of 16 bits is on the way that could saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok import dtype as dt
from morok.device.registry import default_device
from morok.onnx.table import as_tensor
from morok.onnx.types import Array
from morok.onnx.values import Host, Value
from morok.tensor.tensor import Tensor

EXACT = 1 << 24  # float32 counts so far
_RANGES = {dt.int8: (-128, 127), dt.uint8: (0, 255)}


@final
@dataclass
class Whole:
    """Integers less their zero point as float32, none larger than `bound`; the array, if it is known."""

    numbers: Tensor
    bound: int
    array: Array | None = None


def whole(x: Value, zero: Value, shape: Callable[[Any], Any]) -> Whole | None:
    """Integers of 8 bits less their zero point, laid out by `shape`; None for other types and elsewhere."""
    known = isinstance(x, Host) and x.lasting and (zero is None or isinstance(zero, Host))
    if default_device() != "CPU":
        return None
    if known:
        assert isinstance(x, Host)
        if x.array.dtype not in (np.int8, np.uint8):
            return None
        array = x.array.astype(np.int32)
        if isinstance(zero, Host):
            array = array - shape(zero.array.astype(np.int32))
        bound = int(np.abs(array).max(initial=0))
        return Whole(Tensor.from_numpy(array.astype(np.float32)), bound, array)
    t = as_tensor(x)
    if t.dtype not in _RANGES:
        return None
    low, high = _RANGES[t.dtype]
    if zero is None:
        return Whole(t.cast(dt.float32), max(-low, high))
    bound = high - low
    if isinstance(zero, Host):
        bound = max(high - int(zero.array.min(initial=high)), int(zero.array.max(initial=low)) - low)
    return Whole(t.cast(dt.float32) - shape(as_tensor(zero).cast(dt.float32)), bound)


def pieces(count: int, left: Whole, right: Whole, axes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Stretches of so many terms whose sums are exact; `axes` of the right side are those that are summed."""
    if right.array is not None:
        largest = int(np.abs(right.array).sum(axis=axes, dtype=np.int64).max(initial=0))
        if largest * left.bound < EXACT:
            return [(0, count)]
    each = max(1, (EXACT - 1) // max(1, left.bound * right.bound))
    return [(i, min(count, i + each)) for i in range(0, count, each)]


def added(sums: list[Tensor]) -> Tensor:
    """Exact sums of pieces, added in 32 bits."""
    total = sums[0].cast(dt.int32)
    for more in sums[1:]:
        total = total + more.cast(dt.int32)
    return total


def matmul(left: Whole, right: Whole) -> Tensor | None:
    """The product in 32 bits, exactly; None if nobody knows how many terms it has."""
    count = right.numbers.shape[-2] if right.numbers.ndim > 1 else right.numbers.shape[0]
    if not isinstance(count, int) or count == 0:
        return None
    axis = -2 if right.numbers.ndim > 1 else 0
    found = pieces(count, left, right, (axis,))
    a = left.numbers.contiguous()  # converted once, not for every column
    if len(found) == 1:
        return a.matmul(right.numbers).cast(dt.int32)
    b = right.numbers
    return added(
        [a[..., low:high].matmul(b[..., low:high, :] if b.ndim > 1 else b[low:high]) for low, high in found]
    )
