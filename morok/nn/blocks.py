"""Block formats of GGUF: a few bits per number, and what turns them into numbers, kept once per block.

Blocks are decoded by tensor arithmetic, so a kernel that needs the numbers decodes them on the way. An array
of blocks is (…, bytes, lanes) of uint8: byte by byte, several rows of a matrix side by side in the last axis,
because bytes of one kind then fill a vector and every step of the decoding is one step for all of its lanes.

A block is a few `Part`s. In a part one formula holds for all numbers, scale · code + offset, so that nothing
has to be chosen number by number, and a sum of products needs the scale only once per group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from morok import dtype as dt
from morok.tensor.tensor import Tensor


@final
@dataclass(frozen=True)
class Part:
    """Numbers of each block: scale · codes + offset. Codes are float32 (…, groups, numbers, lanes), of one or
    more axes of groups; scale and offset have one number per group."""

    codes: Tensor
    scale: Tensor
    offset: Tensor | None = None

    def values(self) -> Tensor:
        """The numbers themselves."""
        product = self.scale * self.codes
        return product if self.offset is None else product + self.offset


@final
@dataclass(frozen=True)
class BlockFormat:
    """A format: how many numbers in how many bytes, and which of them are in which part.

    The numbers of a block in order are an array of this `shape`; each place along its axes `apart` is a part,
    in row-major order.
    """

    name: str
    bytes: int
    shape: tuple[int, ...]
    apart: tuple[int, ...]
    parts: Callable[[Tensor], tuple[Part, ...]]

    @property
    def numbers(self) -> int:
        """Numbers of a block."""
        return math.prod(self.shape)

    def select(self, x: Tensor, axis: int) -> list[Tensor]:
        """The numbers along an axis of whole blocks, one tensor per part: (…, blocks, groups, numbers, …)."""
        sizes = tuple(x.shape)
        wide = x.reshape(*sizes[:axis], sizes[axis] // self.numbers, *self.shape, *sizes[axis + 1 :])
        found = [wide]
        for at in sorted(self.apart, reverse=True):
            place = axis + 1 + at
            found = [t.narrow(place, i, 1).squeeze(place) for i in range(self.shape[at]) for t in found]
        return found

    def decode(self, x: Tensor) -> Tensor:
        """All numbers of blocks (…, bytes, lanes) in order: (…, numbers, lanes)."""
        found = [part.values() for part in self.parts(x)]
        front = len(x.shape) - 2
        for at in sorted(self.apart):
            count = self.shape[at]
            pieces = len(found) // count
            found = [Tensor.stack(*found[i::pieces], dim=front + at) for i in range(pieces)]
        return found[0].reshape(*x.shape[:-2], self.numbers, x.shape[-1])


# --- bits of blocks


def _bytes(x: Tensor, at: int, count: int) -> Tensor:
    return x.narrow(len(x.shape) - 2, at, count)


def _cut(x: Tensor, *sizes: int) -> Tensor:
    """The axis of bytes as several axes."""
    return x.reshape(*x.shape[:-2], *sizes, x.shape[-1])


def _half(x: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block, as (…, 1, lanes) of float32."""
    low, high = (_bytes(x, at + i, 1).cast(dt.uint16) for i in (0, 1))
    return (low | (high << 8)).bitcast(dt.float16).cast(dt.float32)


def _steps(count: int, step: int, axes_after: int) -> Tensor:
    """0, step, 2 · step … as shifts along an axis with so many axes after it."""
    return (Tensor.arange(count) * step).cast(dt.uint8).reshape(count, *(1 for _ in range(axes_after)))


def _signed(x: Tensor) -> Tensor:
    return x.bitcast(dt.int8).cast(dt.float32)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x & 15, x >> 4


def _fifth_bits(x: Tensor, half: int) -> Tensor:
    """One bit per number for one half of 32 numbers, from its two bytes: (…, 16, lanes), as 0 or 16."""
    wide = _cut(_bytes(x, 2 * half, 2), 2, 1) >> _steps(8, 1, 1)
    return _cut((wide & 1).reshape(*x.shape[:-2], 16, x.shape[-1]) << 4, 1, 16)


# --- 32 numbers


def _q8_0(x: Tensor) -> tuple[Part, ...]:
    return (Part(_cut(_signed(_bytes(x, 2, 32)), 1, 32), _cut(_half(x, 0), 1, 1)),)


def _nibbles(x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    low, high = _halves(_cut(_bytes(x, at, 16), 1, 16))
    return low, high


def _q4_0(x: Tensor) -> tuple[Part, ...]:
    d = _cut(_half(x, 0), 1, 1)
    return tuple(Part(q.cast(dt.float32) - 8.0, d) for q in _nibbles(x, 2))


def _q4_1(x: Tensor) -> tuple[Part, ...]:
    d, m = (_cut(_half(x, at), 1, 1) for at in (0, 2))
    return tuple(Part(q.cast(dt.float32), d, m) for q in _nibbles(x, 4))


def _int4(x: Tensor) -> tuple[Part, ...]:
    d, zero = (_cut(_half(x, at), 1, 1) for at in (0, 2))
    return tuple(Part(q.cast(dt.float32) - zero, d) for q in _nibbles(x, 4))


def _int8(x: Tensor) -> tuple[Part, ...]:
    d, zero = (_cut(_half(x, at), 1, 1) for at in (0, 2))
    return (Part(_cut(_bytes(x, 4, 32).cast(dt.float32), 1, 32) - zero, d),)


def _fives(x: Tensor, at: int) -> list[Tensor]:
    """32 numbers of 5 bits: the fifth bits are in 4 bytes, the others in the 16 after them."""
    bits = _bytes(x, at, 4)
    return [(q | _fifth_bits(bits, half)).cast(dt.float32) for half, q in enumerate(_nibbles(x, at + 4))]


def _q5_0(x: Tensor) -> tuple[Part, ...]:
    d = _cut(_half(x, 0), 1, 1)
    return tuple(Part(q - 16.0, d) for q in _fives(x, 2))


def _q5_1(x: Tensor) -> tuple[Part, ...]:
    d, m = (_cut(_half(x, at), 1, 1) for at in (0, 2))
    return tuple(Part(q, d, m) for q in _fives(x, 4))


# The numbers that codes of 4 bits stand for where they are not equally far apart.
NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the value of 4-bit floats


def _lookup(q: Tensor, table: tuple[int, ...]) -> Tensor:
    """The number of a table that each code names: a tree of choices by bit, which needs no memory."""
    found: list[Tensor | int] = list(table)
    for bit in range(4):
        is_set = (q & (1 << bit)) != 0
        found = [_either(is_set, a, b, q) for a, b in zip(found[1::2], found[::2], strict=True)]
    (only,) = found
    assert isinstance(only, Tensor)
    return only.cast(dt.float32)


def _either(is_set: Tensor, a: Tensor | int, b: Tensor | int, like: Tensor) -> Tensor | int:
    if isinstance(a, int) and a == b:
        return a
    one, other = (
        v if isinstance(v, Tensor) else Tensor.full((1,), v, dtype=dt.int8, device=like.device)
        for v in (a, b)
    )
    return is_set.where(one, other)


def _iq4_nl(x: Tensor) -> tuple[Part, ...]:
    d = _cut(_half(x, 0), 1, 1)
    return tuple(Part(_lookup(q, NON_LINEAR), d) for q in _nibbles(x, 2))


def _mxfp4(x: Tensor) -> tuple[Part, ...]:
    """The scale is a power of two; the table has twice the values, so the exponent is one less."""
    e = _bytes(x, 0, 1).cast(dt.uint32)
    small = (e < 2).where(_whole(0x200000, x) << e, (e - 1) << 23)
    d = _cut(small.bitcast(dt.float32), 1, 1)
    return tuple(Part(_lookup(q, FLOAT4), d) for q in _nibbles(x, 1))


def _whole(value: int, like: Tensor) -> Tensor:
    return Tensor.full((1,), value, dtype=dt.uint32, device=like.device)


# --- 256 numbers


def _six_bits(x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Scales and minima of eight groups, 6 bits each, from 12 bytes; of each the first four, then the last
    four, as (…, 4, lanes)."""
    first, second, third = (_bytes(x, at, 4) for at in (0, 4, 8))
    scales = [first & 63, (third & 15) | ((first >> 6) << 4)]
    minima = [second & 63, (third >> 4) | ((second >> 6) << 4)]
    return scales, minima


def _eight_groups(x: Tensor, codes: Callable[[int, int], Tensor]) -> tuple[Part, ...]:
    """Eight groups of 32: (upper or lower four, pairs, of a pair the lower or the upper halves of bytes)."""
    scales, minima = _six_bits(_bytes(x, 4, 12))
    found = []
    for four in (0, 1):
        s, m = (
            _cut(_half(x, at) * of.cast(dt.float32), 2, 2, 1)
            for at, of in ((0, scales[four]), (2, minima[four]))
        )
        for half in (0, 1):
            place = len(x.shape) - 1
            one, least = (t.narrow(place, half, 1).squeeze(place) for t in (s, m))
            found.append(Part(codes(four, half).cast(dt.float32), one, -least))
    return tuple(found)


def _pairs(x: Tensor, at: int, four: int, half: int) -> Tensor:
    return _halves(_cut(_bytes(x, at + 64 * four, 64), 2, 32))[half]


def _q4_k(x: Tensor) -> tuple[Part, ...]:
    return _eight_groups(x, lambda four, half: _pairs(x, 16, four, half))


def _q5_k(x: Tensor) -> tuple[Part, ...]:
    def codes(four: int, half: int) -> Tensor:
        high = _cut(_bytes(x, 16, 32), 1, 32) >> (_steps(2, 2, 2) + (4 * four + half))
        return _pairs(x, 48, four, half) | ((high & 1) << 4)

    return _eight_groups(x, codes)


def _q6_k(x: Tensor) -> tuple[Part, ...]:
    """(2, 2 halves of bytes, 2, 2 groups, 16); scales lie in the order of the numbers."""
    scales = _cut(_signed(_bytes(x, 192, 16)) * _half(x, 208), 2, 4, 2, 1)
    low, high = _cut(_bytes(x, 0, 128), 2, 2, 2, 16), _cut(_bytes(x, 128, 64), 2, 2, 16)
    place = len(x.shape) - 1
    found = []
    for quarter in range(4):
        q = _halves(low.narrow(place, quarter % 2, 1).squeeze(place))[quarter // 2]
        q = q | (((high >> (2 * quarter)) & 3) << 4)
        found.append(Part(q.cast(dt.float32) - 32.0, scales.narrow(place, quarter, 1).squeeze(place)))
    return tuple(found)


def _q2_k(x: Tensor) -> tuple[Part, ...]:
    """(2, 4 pairs of bits, 2 groups, 16), each group with a scale and a minimum of 4 bits."""
    packed, q = _cut(_bytes(x, 0, 16), 2, 4, 2, 1), _cut(_bytes(x, 16, 64), 2, 2, 16)
    d, m = (_cut(_half(x, at), 1, 1, 1) for at in (80, 82))
    place = len(x.shape) - 1
    found = []
    for pair in range(4):
        scale, least = _halves(packed.narrow(place, pair, 1).squeeze(place))
        codes = ((q >> (2 * pair)) & 3).cast(dt.float32)
        found.append(Part(codes, d * scale.cast(dt.float32), -(m * least.cast(dt.float32))))
    return tuple(found)


def _q3_k(x: Tensor) -> tuple[Part, ...]:
    """(2, 4 pairs of bits, 2 groups, 16): a third bit per number, 16 scales of 6 bits in 12 bytes."""
    third, q = _cut(_bytes(x, 0, 32), 1, 2, 16), _cut(_bytes(x, 32, 64), 2, 2, 16)
    d = _cut(_half(x, 108), 1, 1, 1)
    upper = _steps(2, 4, 3)
    found = []
    for pair in range(4):
        low = _cut(_bytes(x, 96 + 2 * pair, 2), 1, 2, 1) >> upper
        high = _cut(_bytes(x, 104 + 2 * (pair % 2), 2), 1, 2, 1) >> (upper + 2 * (pair // 2))
        scale = ((low & 15) | ((high & 3) << 4)).cast(dt.float32) - 32.0
        bit = (third >> (upper + pair)) & 1
        codes = (((q >> (2 * pair)) & 3) | (bit << 2)).cast(dt.float32) - 4.0
        found.append(Part(codes, d * scale))
    return tuple(found)


def _iq4_xs(x: Tensor) -> tuple[Part, ...]:
    """(8 groups, 2 halves of bytes, 16), each group with a scale of 6 bits."""
    low = _cut((_cut(_bytes(x, 4, 4), 4, 1) >> _steps(2, 4, 1)).reshape(*x.shape[:-2], 8, x.shape[-1]), 8, 1)
    high = _cut((_cut(_bytes(x, 2, 2), 2, 1) >> _steps(4, 2, 1)).reshape(*x.shape[:-2], 8, x.shape[-1]), 8, 1)
    scale = ((low & 15) | ((high & 3) << 4)).cast(dt.float32) - 32.0
    d = _cut(_half(x, 0), 1, 1) * scale
    return tuple(Part(_lookup(q, NON_LINEAR), d) for q in _halves(_cut(_bytes(x, 8, 128), 8, 16)))


_THIRTY_TWO = (2, 1, 16)

FORMATS: dict[int, BlockFormat] = {
    2: BlockFormat("Q4_0", 18, _THIRTY_TWO, (0,), _q4_0),
    3: BlockFormat("Q4_1", 20, _THIRTY_TWO, (0,), _q4_1),
    6: BlockFormat("Q5_0", 22, _THIRTY_TWO, (0,), _q5_0),
    7: BlockFormat("Q5_1", 24, _THIRTY_TWO, (0,), _q5_1),
    8: BlockFormat("Q8_0", 34, (1, 32), (), _q8_0),
    10: BlockFormat("Q2_K", 84, (2, 4, 2, 16), (1,), _q2_k),
    11: BlockFormat("Q3_K", 110, (2, 4, 2, 16), (1,), _q3_k),
    12: BlockFormat("Q4_K", 144, (2, 2, 2, 32), (0, 2), _q4_k),
    13: BlockFormat("Q5_K", 176, (2, 2, 2, 32), (0, 2), _q5_k),
    14: BlockFormat("Q6_K", 210, (2, 4, 2, 16), (1,), _q6_k),
    20: BlockFormat("IQ4_NL", 18, _THIRTY_TWO, (0,), _iq4_nl),
    23: BlockFormat("IQ4_XS", 136, (8, 2, 16), (1,), _iq4_xs),
    39: BlockFormat("MXFP4", 17, _THIRTY_TWO, (0,), _mxfp4),
}

# No formats of GGUF: whole numbers in groups, of other files, each block with its scale and its zero.
INT4_GROUPS = BlockFormat("INT4", 20, _THIRTY_TWO, (0,), _int4)
INT8_GROUPS = BlockFormat("INT8", 36, (1, 32), (), _int8)
