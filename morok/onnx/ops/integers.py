"""Products of 8-bit integers, exactly, in one of two ways.

Words: where the machine has an instruction that multiplies four bytes of two words and adds them (DOT4), they
are packed along the axis that is summed, as signed ones: a byte without sign less 128 is the same byte with
its top bit turned. Zero points come out of the sum,

    Σ (x - a)(w - b) = Σ x w - a Σ w - b Σ x + n a b,

where the sums of constants are constants, and weights less their zero point mostly fit a byte themselves, so
that b is 0. All sums are in 32 bits.

Floats, elsewhere: whole numbers up to 2²⁴ are exact in float32, and so is every sum of products whose
magnitudes add up to less, in whatever order it is taken. Bounds are known: a type's range less the zero point
on the left, and on the right the constants themselves, added up for each result. Where a whole sum could be
larger it is taken in pieces that cannot, which are added in 32 bits. No result of 16 bits is on the way that
could saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok import dtype as dt
from morok.device.buffer import aligned_copy
from morok.device.registry import default_device
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.onnx.ops.common import kept, known
from morok.onnx.panels import panelled, width_for
from morok.onnx.table import as_tensor
from morok.onnx.types import Array
from morok.onnx.values import Host, Value
from morok.tensor.elementwise.arithmetic import binary
from morok.tensor.linalg.windows import slide
from morok.tensor.tensor import Tensor

Layout = Callable[[Any], Any]  # of a zero point, beside the product
FOUR = 4  # bytes of a word
FEWEST = 2 * FOUR  # terms of a sum that is worth packing
_TURN = np.uint32(0x80808080)
_LOW, _HIGH = -128, 127
EXACT = 1 << 24  # float32 counts so far
_RANGES = {dt.int8: (-128, 127), dt.uint8: (0, 255)}


# --- words of four bytes


@final
@dataclass
class Bytes:
    """Signed bytes with what stands for 0 among them: constants as an array, others as a tensor of bytes."""

    zero: Any  # an array or a tensor of int32 that fits beside the product; None for 0
    array: Array | None = None
    tensor: Tensor | None = None
    unsigned: bool = False  # whether the tensor's bytes are still to be turned

    @property
    def shape(self) -> tuple[Any, ...]:
        held = self.array if self.tensor is None else self.tensor
        assert held is not None
        return tuple(held.shape)


def has_words() -> bool:
    """Whether the machine multiplies words of bytes; elsewhere floats are faster."""
    device = default_device()
    return device == "CPU" and Ops.DOT4 in machine_of(device).ops


def _signed(x: Value, zero: Value, beside: Layout) -> Bytes | None:
    """Integers of 8 bits and their zero point, laid out by `beside`; None for other types."""
    if isinstance(x, Host) and x.lasting and (zero is None or isinstance(zero, Host)):
        return _constant(x.array, None if zero is None else beside(zero.array.astype(np.int32)))
    t = as_tensor(x)
    if t.dtype not in (dt.int8, dt.uint8):
        return None
    shift = 128 if t.dtype is dt.uint8 else 0
    if isinstance(zero, Host):
        moved: Any = beside(zero.array.astype(np.int32)) - shift
        found = moved if moved.any() else None
    elif zero is not None:
        found = beside(as_tensor(zero).cast(dt.int32)) - shift
    else:
        found = np.array(-shift, np.int32) if shift else None
    return Bytes(found, tensor=t, unsigned=bool(shift))


def _constant(array: Array, zero: Array | None) -> Bytes | None:
    if array.dtype not in (np.int8, np.uint8):
        return None
    whole = array.astype(np.int32)
    less = whole if zero is None else whole - zero
    if less.min(initial=0) >= _LOW and less.max(initial=0) <= _HIGH:
        return Bytes(None, array=less.astype(np.int8))
    shift = 128 if array.dtype == np.uint8 else 0
    moved = np.array(-shift, np.int32) if zero is None else zero - shift
    return Bytes(moved if moved.any() else None, array=(whole - shift).astype(np.int8))


def _pack_array(x: Array, axis: int) -> Array:
    """Signed bytes as words along an axis, which is filled up with zeros."""
    x = np.moveaxis(x, axis, -1)
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % FOUR)])
    words = np.ascontiguousarray(x).view("<i4").astype(np.int32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def _pack_tensor(x: Tensor, axis: int, unsigned: bool) -> Tensor:
    """The same for a tensor."""
    count = known(x.shape[axis], "a product of bytes")
    if count % FOUR:
        ends = tuple((0, -count % FOUR) if i == axis else (0, 0) for i in range(x.ndim))
        x = x.pad(ends, value=128) if unsigned else x.pad(ends)  # zeros, once they are turned
    x = x if x.dtype is dt.uint8 else x.bitcast(dt.uint8)
    four = x.reshape((*x.shape[:axis], -(-count // FOUR), FOUR, *x.shape[axis + 1 :]))
    parts = [four.narrow(axis + 1, i, 1).squeeze(axis + 1).cast(dt.uint32) for i in range(FOUR)]
    word = parts[0]
    for i in range(1, FOUR):
        word = word | (parts[i] << 8 * i)
    return (word ^ int(_TURN) if unsigned else word).bitcast(dt.int32)


def _packed(x: Bytes, axis: int) -> Tensor:
    if x.array is not None:
        return Tensor.from_numpy(_pack_array(x.array, axis))
    assert x.tensor is not None
    return _pack_tensor(x.tensor, axis, x.unsigned).contiguous()  # packed once, not for every column


def _summed(x: Bytes, words: Tensor, axis: int, count: int) -> Tensor:
    """Σ of the bytes along an axis, which stays with one element."""
    if x.array is not None:
        return Tensor.from_numpy(x.array.sum(axis=axis, dtype=np.int32, keepdims=True))
    shape = [1] * words.ndim
    shape[axis] = -1
    ones = Tensor.from_numpy(_pack_array(np.ones(count, np.int8), 0)).reshape(shape)
    return binary(words, Ops.DOT4, ones).sum(axis, dtype=dt.int32, keepdim=True)


def _int32(zero: Any) -> Tensor:
    return zero if isinstance(zero, Tensor) else Tensor.from_numpy(np.asarray(zero, np.int32))


def word_matmul(x: Value, zx: Value, rows: Layout, w: Value, zw: Value, columns: Layout) -> Tensor | None:
    """The product in 32 bits, exactly; None for vectors, for sums that are short, or known later, and where
    there is no such instruction."""
    if not has_words():
        return None
    left, right = _signed(x, zx, rows), _signed(w, zw, columns)
    return None if left is None or right is None else _product(left, right)


def _product(left: Bytes, right: Bytes) -> Tensor | None:
    a, b = left.shape, right.shape
    if len(a) < 2 or len(b) < 2 or not isinstance(a[-1], int) or not isinstance(b[-2], int):
        return None
    count = a[-1]
    if count < FEWEST or count != b[-2]:
        return None
    x, w = _packed(left, len(a) - 1), _packed(right, len(b) - 2)
    total = _few_rows(x, right)
    if total is None:
        total = binary(x.unsqueeze(-1), Ops.DOT4, w.unsqueeze(-3)).sum(-2, dtype=dt.int32)
    if left.zero is not None:
        total = total - _int32(left.zero) * _summed(right, w, len(b) - 2, count)
    if right.zero is not None:
        total = total - _int32(right.zero) * _summed(left, x, len(a) - 1, count)
    if left.zero is not None and right.zero is not None:
        total = total + _int32(left.zero) * _int32(right.zero) * count
    return total


def _few_rows(x: Tensor, right: Bytes) -> Tensor | None:
    """The products of few rows of words with constants, which are laid out for them; None if it is none."""
    if right.array is None or right.array.ndim != 2 or x.ndim != 2:
        return None
    columns = right.array.shape[1]
    width = width_for(x.shape[0], columns, np.dtype(np.int32).itemsize)
    if width is None:
        return None
    panels = Tensor.from_numpy(aligned_copy(panelled(_pack_array(right.array, 0).T[None], width)[0]))
    rows, words = x.shape[0], x.shape[1]
    terms = binary(x.reshape((rows, 1, words, 1)), Ops.DOT4, panels.unsqueeze(0))
    return terms.sum(2, dtype=dt.int32).reshape((rows, columns))


def word_convolve(
    x: Value,
    zx: Value,
    w: Value,
    zw: Value,
    channels: Layout,
    around: Sequence[tuple[int, int]],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Tensor | None:
    """The convolution in 32 bits, exactly; None where a group has few channels, weights are not known, or
    there is no such instruction."""
    if not has_words():
        return None
    left, right = _signed(x, zx, lambda zero: zero.reshape(())), _signed(w, zw, channels)
    if left is None or right is None or any(p < 0 for pair in around for p in pair):
        return None
    return _sum_of_windows(left, right, around, strides, dilations, group)


def _sum_of_windows(
    x: Bytes,
    w: Bytes,
    around: Sequence[tuple[int, int]],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Tensor | None:
    if x.tensor is None or w.array is None or w.zero is not None:
        return None
    out, inner, *kernel = w.array.shape
    enough = inner % FOUR == 0 if group > 1 else inner >= FOUR - 1
    if not enough:
        return None
    batch = x.shape[0]
    words = _bordered(x, around)
    windows = slide(words, kernel, strides, dilations)
    inner = -(-inner // FOUR)
    n = len(kernel)
    places = windows.shape[2 : 2 + n]
    windows = windows.reshape((batch, group, 1, inner, *places, *kernel))
    order = [0, 1, 2, *range(4, 4 + n), 3, *range(4 + n, 4 + 2 * n)]
    weights = Tensor.from_numpy(_pack_array(w.array, 1))
    weights = weights.reshape((1, group, out // group, *(1,) * n, inner, *kernel))
    axes = tuple(range(3 + n, 4 + 2 * n))
    total = binary(windows.permute(order), Ops.DOT4, weights).sum(axes, dtype=dt.int32)
    total = total.reshape((batch, out, *places))
    if x.zero is not None:
        sums = w.array.reshape(out, -1).sum(-1, dtype=np.int32).reshape((1, out) + (1,) * n)
        total = total - _int32(x.zero).reshape(()) * Tensor.from_numpy(sums)
    return total


def _bordered(x: Bytes, around: Sequence[tuple[int, int]]) -> Tensor:
    """Words of channels, with a border of what stands for 0: turned by it, that is a border of zeros."""
    assert x.tensor is not None
    words = _pack_tensor(kept(x.tensor), 1, x.unsigned)
    if not any(p for pair in around for p in pair):
        return words.contiguous()
    full = ((0, 0), (0, 0), *around)
    if x.zero is None:
        return words.pad(full).contiguous()
    four = (_int32(x.zero).reshape(()) & 255) * 0x01010101
    return ((words ^ four).pad(full) ^ four).contiguous()


# --- floats


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
    t = kept(as_tensor(x))  # in memory as bytes: floats are four times as much
    if t.dtype not in _RANGES:
        return None
    low, high = _RANGES[t.dtype]
    if zero is None:
        return Whole(t.cast(dt.float32), max(-low, high))
    bound = high - low
    if isinstance(zero, Host):
        bound = max(high - int(zero.array.min(initial=high)), int(zero.array.max(initial=low)) - low)
    return Whole(t.cast(dt.float32) - shape(as_tensor(zero).cast(dt.float32)), bound)


def largest(array: Array) -> int:
    """The largest magnitude in an array of integers."""
    return max(int(array.max(initial=0)), -int(array.min(initial=0)))


def largest_sum(count: int, left: Whole, right: Whole, axes: tuple[int, ...]) -> int:
    """What no sum of so many products exceeds; `axes` of the right side are those that are summed."""
    bound = count * right.bound
    if right.array is not None:
        bound = min(bound, int(np.abs(right.array).sum(axis=axes, dtype=np.int64).max(initial=0)))
    return bound * left.bound


def pieces(count: int, left: Whole, right: Whole, axes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Stretches of so many terms whose sums are exact; `axes` of the right side are those that are summed."""
    if largest_sum(count, left, right, axes) < EXACT:
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
