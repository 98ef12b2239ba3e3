"""Block formats of weights as words: four codes in an integer of 32 bits, to be multiplied byte by byte.

The bytes of a block are sorted into three arrays when a model is loaded: scales of float16, scales of a few
bits, and words of codes. Rows lie side by side, sixteen at a time, in the last axis. Nothing is rounded and
nothing is added: what a block takes in the file it takes here.

A few operations on a word give four codes at once, as signed bytes. Where a format subtracts a constant from
its codes, their top bit is turned at load, so that they are two's complement; they are left at the upper end
of their bytes then, and the scale is divided by the power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import final

import numpy as np

from morok import dtype as dt
from morok.device.cpu.threads import thread_count
from morok.device.registry import canonical, default_device, get_device
from morok.ir.layout import is_mesh
from morok.nn.blocks import FLOAT4, FORMATS, INT4_GROUPS, INT8_GROUPS, NON_LINEAR, BlockFormat
from morok.tensor.creation.sources import bound_to
from morok.tensor.dtypes import from_numpy
from morok.tensor.tensor import Tensor

LANES = 16
_WORTH_THREADS = 1 << 20  # bytes of an array
_ONES = 0x01010101


@final
@dataclass(frozen=True)
class Stored:
    """The arrays of a matrix: (rows / LANES, blocks, …, LANES)."""

    halves: Tensor | None  # of float16
    bytes: Tensor | None  # scales of a few bits
    words: Tensor  # of int32


@final
@dataclass(frozen=True)
class WordPart:
    """Numbers of each block: scale · codes + offset. Words are int32 (…, groups, words, lanes), four signed
    bytes each; scale and offset have one number per group: (…, groups, lanes). Where there is a factor, a
    whole number for each group, scale is that of the block and multiplies it. The offset may be the product
    of such two as well, which are `least` then."""

    words: Tensor
    scale: Tensor
    offset: Tensor | None = None
    factor: Tensor | None = None
    least: tuple[Tensor, Tensor] | None = None  # of a block, of a group
    largest: int = 0  # code times factor, where codes have no sign

    def values(self) -> Tensor:
        """The numbers themselves, (…, groups, numbers, lanes)."""
        *front, count, lanes = self.words.shape
        up = _steps(4, -8, 24, self.words).reshape(4, 1)
        wide = (self.words.unsqueeze(-2) << up) >> 24
        codes = wide.cast(dt.float32).reshape(*front, 4 * count, lanes)
        scale = self.scale if self.factor is None else self.scale * self.factor.cast(dt.float32)
        product = scale.unsqueeze(-2) * codes
        return product if self.offset is None else product + self.offset.unsqueeze(-2)


Parts = Callable[[Stored], tuple[WordPart, ...]]
# The whole numbers of groups in the order of these, (…, groups, lanes): of the first half, and of the others
Minima = Callable[[Stored], tuple[Tensor, Tensor]]


@final
@dataclass(frozen=True)
class WordFormat:
    """Where the bytes of a block go, and how codes are made of words. The parts are those of the block
    format, in its order."""

    block: BlockFormat
    halves: tuple[int, ...]  # bytes at which a float16 begins
    small: slice | None  # bytes of small scales
    codes: tuple[slice, ...]
    parts: Parts
    turned: Callable[[np.ndarray], np.ndarray] | None = None  # what is done to the bytes of codes at load
    minima: Minima | None = None

    def store(self, raw: np.ndarray, device: str | None = None) -> Stored:
        """Blocks (rows, blocks of a row, bytes) as arrays; rows are a multiple of LANES."""
        rows, blocks, _ = raw.shape

        def lanes(x: np.ndarray) -> Tensor:
            """(rows, blocks, numbers) side by side."""
            return _copied(x.reshape(rows // LANES, LANES, blocks, -1).transpose(0, 2, 3, 1), device)

        def pieces(parts: Sequence[slice]) -> np.ndarray:
            """Some bytes of every block: what is in one piece is not copied for that."""
            joined = [slice(parts[0].start, parts[-1].stop)]
            gaps = any(a.stop != b.start for a, b in pairwise(parts))
            found = [raw[..., part] for part in (parts if gaps else joined)]
            return np.concatenate(found, -1) if gaps else found[0]

        halves = None
        if self.halves:
            halves = lanes(pieces([slice(at, at + 2) for at in self.halves]).view(np.float16))
        codes = pieces(self.codes)
        codes = codes if self.turned is None else np.ascontiguousarray(self.turned(codes))
        small = None if self.small is None else lanes(raw[..., self.small])
        return Stored(halves, small, lanes(codes.view(np.int32)))

    def rows_of(self, stored: Stored, places: Tensor) -> Tensor:
        """Some rows as numbers, (places, numbers)."""

        def taken(x: Tensor) -> Tensor:
            blocks, inner = x.shape[1], x.shape[2]
            return x.permute(0, 3, 1, 2).reshape(-1, blocks, inner)[places].contiguous().unsqueeze(-1)

        halves, small = (None if x is None else taken(x) for x in (stored.halves, stored.bytes))
        some = Stored(halves, small, taken(stored.words))
        found = [part.values() for part in self.parts(some)]
        front, block = 2, self.block
        for at in sorted(block.apart):
            pieces = len(found) // block.shape[at]
            found = [Tensor.stack(*found[i::pieces], dim=front + at) for i in range(pieces)]
        return found[0].reshape(places.shape[0], -1)


def _copied(x: np.ndarray, device: str | None) -> Tensor:
    """A tensor of an array's numbers in order: into its own memory where the host can write that, by several
    threads where it is large (NumPy copies outside of Python's lock)."""
    name = default_device() if device is None else canonical(device)
    target = None if is_mesh(name) or not get_device(name).on_host else get_device(name)
    memory = None if target is None else target.buffer(x.size, from_numpy(x.dtype))
    made = np.empty(x.shape, x.dtype) if memory is None else memory.array().reshape(x.shape)
    threads = min(thread_count(), len(x)) if x.nbytes >= _WORTH_THREADS else 1
    if threads < 2:
        np.copyto(made, x)
    else:
        ends = [len(x) * n // threads for n in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: np.copyto(made[part], x[part]), map(slice, ends, ends[1:])))
    return Tensor(made, device=device) if memory is None else Tensor._new(bound_to(made, memory))


# --- pieces of blocks


def _steps(count: int, step: int, start: int, like: Tensor) -> Tensor:
    return (Tensor.arange(count, device=like.device) * step + start).cast(dt.int32)


def _cut(x: Tensor, *sizes: int) -> Tensor:
    """The axis of words, or of bytes, as several axes."""
    return x.reshape(*x.shape[:-2], *sizes, x.shape[-1])


def _words(s: Stored, at: int, *sizes: int) -> Tensor:
    count = int(np.prod(sizes))
    return _cut(s.words.narrow(-2, at, count), *sizes)


def _half(s: Stored, at: int) -> Tensor:
    """The float16 of each block, (…, 1, lanes) of float32."""
    assert s.halves is not None
    return s.halves.narrow(-2, at, 1).cast(dt.float32)


def _everywhere(byte: int) -> int:
    """A byte at all four places of a word, as a signed number."""
    return int(np.array([byte] * 4, np.uint8).view(np.int32)[0])


def _field(w: Tensor, at: int | Tensor, bits: int, to: int) -> Tensor:
    """Some bits of each byte, moved to another place of it."""
    mask = _everywhere(((1 << bits) - 1) << to)
    if isinstance(at, Tensor):
        return ((w >> at) & _everywhere((1 << bits) - 1)) << to
    if at == to:
        return w & mask
    return ((w >> (at - to)) if at > to else (w << (to - at))) & mask


# --- 32 numbers


def _q8_0(s: Stored) -> tuple[WordPart, ...]:
    return (WordPart(_words(s, 0, 1, 8), _half(s, 0)),)


def _nibbles(s: Stored, at: int, to: int) -> list[Tensor]:
    w = _words(s, at, 1, 4)
    return [_field(w, 4 * half, 4, to) for half in (0, 1)]


def _q4_0(s: Stored) -> tuple[WordPart, ...]:
    scale = _half(s, 0) * 0.0625
    return tuple(WordPart(w, scale) for w in _nibbles(s, 0, 4))


def _q4_1(s: Stored) -> tuple[WordPart, ...]:
    d, m = (_half(s, i) for i in (0, 1))
    return tuple(WordPart(w, d, m) for w in _nibbles(s, 0, 0))


def _int4(s: Stored) -> tuple[WordPart, ...]:
    d, zero = (_half(s, i) for i in (0, 1))
    offset = -(d * zero)
    return tuple(WordPart(w, d, offset) for w in _nibbles(s, 0, 0))


def _int8(s: Stored) -> tuple[WordPart, ...]:
    """Codes from 0 to 255 come with their top bits turned: 128 less."""
    d, zero = (_half(s, i) for i in (0, 1))
    return (WordPart(_words(s, 0, 1, 8), d, d * (128.0 - zero)),)


def _fives(s: Stored, to: int) -> list[Tensor]:
    """Five bits: the fifth ones are in the first word, that of number 4 · w + i of a half at bit w of byte i,
    the second half above the first."""
    fifth = _words(s, 0, 1, 1)
    places = _steps(4, 1, 0, s.words).reshape(4, 1)
    return [w | _field(fifth, places + 4 * half, 1, to + 4) for half, w in enumerate(_nibbles(s, 1, to))]


def _q5_0(s: Stored) -> tuple[WordPart, ...]:
    scale = _half(s, 0) * 0.125
    return tuple(WordPart(w, scale) for w in _fives(s, 3))


def _q5_1(s: Stored) -> tuple[WordPart, ...]:
    d, m = (_half(s, i) for i in (0, 1))
    return tuple(WordPart(w, d, m) for w in _fives(s, 0))


def _fifth_bits(codes: np.ndarray, turn: int) -> np.ndarray:
    """The bytes of five-bit codes with their fifth bits in the order of `_fives`."""
    bits = np.unpackbits(codes[..., :4], axis=-1, bitorder="little") ^ turn
    places = bits.reshape(*bits.shape[:-1], 2, 4, 4)  # half, word, byte
    found = np.zeros((*codes.shape[:-1], 4), np.uint8)
    for half in (0, 1):
        for w in range(4):
            found |= places[..., half, w, :] << (4 * half + w)
    return np.concatenate((found, codes[..., 4:]), -1)


def _lookup(q: Tensor, table: Sequence[int]) -> Tensor:
    """The number of a table that each code names: a tree of choices by bit, four codes at a time."""
    found: list[Tensor | int] = [_everywhere(v & 255) for v in table]
    for bit in range(4):
        chosen = ((q >> bit) & _ONES) * 255
        found = [b ^ (chosen & (a ^ b)) for a, b in zip(found[1::2], found[::2], strict=True)]
    (only,) = found
    assert isinstance(only, Tensor)
    return only


def _iq4_nl(s: Stored) -> tuple[WordPart, ...]:
    d = _half(s, 0)
    return tuple(WordPart(_lookup(w, NON_LINEAR), d) for w in _nibbles(s, 0, 0))


def _mxfp4(s: Stored) -> tuple[WordPart, ...]:
    """The scale is a power of two; the table has twice the values, so the exponent is one less."""
    assert s.bytes is not None
    e = s.bytes.narrow(-2, 0, 1).cast(dt.uint32)
    least = Tensor.full((1,), 0x200000, dtype=dt.uint32, device=e.device)
    d = (e < 2).where(least << e, (e - 1) << 23).bitcast(dt.float32)
    return tuple(WordPart(_lookup(w, FLOAT4), d) for w in _nibbles(s, 0, 0))


# --- 256 numbers


def _small(s: Stored, at: int, count: int) -> Tensor:
    assert s.bytes is not None
    return s.bytes.narrow(-2, at, count)


def _six_bits(s: Stored) -> tuple[list[Tensor], list[Tensor]]:
    """Scales and minima of eight groups, 6 bits each, from 12 bytes; the first four, then the last four."""
    first, second, third = (_small(s, at, 4) for at in (0, 4, 8))
    scales = [first & 63, (third & 15) | ((first >> 6) << 4)]
    minima = [second & 63, (third >> 4) | ((second >> 6) << 4)]
    return scales, minima


def _six_bit_minima(s: Stored) -> tuple[Tensor, Tensor]:
    own, upper = _small(s, 4, 8), _small(s, 0, 8)
    return own & 63, (own >> 4) | ((upper >> 2) & 48)


def _eight_groups(s: Stored, codes: Callable[[int, int], Tensor], most: int) -> tuple[WordPart, ...]:
    """Eight groups of 32: (upper or lower four, pairs, of a pair the lower or the upper halves of bytes)."""
    found = []
    scales, minima = _six_bits(s)
    for four in (0, 1):
        one, two = _cut(scales[four], 2, 2), _cut(minima[four].cast(dt.float32), 2, 2)
        for half in (0, 1):
            place = len(one.shape) - 2
            picked, least = (t.narrow(place, half, 1).squeeze(place) for t in (one, two))
            d, m, factor = _half(s, 0), -_half(s, 1), picked.cast(dt.int32)
            found.append(WordPart(codes(four, half), d, m * least, factor, (m, least), most * 63))
    return tuple(found)


def _q4_k(s: Stored) -> tuple[WordPart, ...]:
    return _eight_groups(s, lambda four, half: _field(_words(s, 16 * four, 2, 8), 4 * half, 4, 0), 15)


def _q5_k(s: Stored) -> tuple[WordPart, ...]:
    def codes(four: int, half: int) -> Tensor:
        pairs = _steps(2, 2, 4 * four + half, s.words).reshape(2, 1, 1)
        low = _field(_words(s, 8 + 16 * four, 2, 8), 4 * half, 4, 0)
        return low | _field(_words(s, 0, 1, 8), pairs, 1, 4)

    return _eight_groups(s, codes, 31)


def _quarter(x: Tensor, quarter: int) -> Tensor:
    """One of four along the third axis from behind."""
    place = len(x.shape) - 3
    return x.narrow(place, quarter, 1).squeeze(place)


def _q6_k(s: Stored) -> tuple[WordPart, ...]:
    """(2, 4 quarters, 2 groups, 16); the upper bits come with their sign turned."""
    scales = _cut(_small(s, 0, 16).bitcast(dt.int8).cast(dt.int32), 2, 4, 2)
    d = _cut(_half(s, 0) * 0.25, 1, 1)
    low, high = _words(s, 0, 2, 2, 2, 4), _words(s, 32, 2, 2, 4)
    found = []
    for quarter in range(4):
        place = len(low.shape) - 4
        of = low.narrow(place, quarter % 2, 1).squeeze(place)
        codes = _field(of, 4 * (quarter // 2), 4, 2) | _field(high, 2 * quarter, 2, 6)
        found.append(WordPart(codes, d, None, _quarter(scales, quarter)))
    return tuple(found)


def _q2_k(s: Stored) -> tuple[WordPart, ...]:
    packed, q = _cut(_small(s, 0, 16), 2, 4, 2), _words(s, 0, 2, 2, 4)
    d, m = _cut(_half(s, 0), 1, 1), -_cut(_half(s, 1), 1, 1)
    found = []
    for pair in range(4):
        both = _quarter(packed, pair)
        least, factor = (both >> 4).cast(dt.float32), (both & 15).cast(dt.int32)
        found.append(WordPart(_field(q, 2 * pair, 2, 0), d, m * least, factor, (m, least)))
    return tuple(found)


def _q3_k(s: Stored) -> tuple[WordPart, ...]:
    """A third bit per number, turned; 16 scales of 6 bits in 12 bytes."""
    third, q = _words(s, 0, 1, 2, 4), _words(s, 8, 2, 2, 4)
    d = _cut(_half(s, 0) * 0.03125, 1, 1)
    upper = (Tensor.arange(2, device=s.words.device) * 4).cast(dt.uint8).reshape(2, 1, 1)
    places = _steps(2, 4, 0, s.words).reshape(2, 1, 1, 1)
    found = []
    for pair in range(4):
        low = _cut(_small(s, 2 * pair, 2), 1, 2) >> upper
        high = _cut(_small(s, 8 + 2 * (pair % 2), 2), 1, 2) >> (upper + 2 * (pair // 2))
        scale = ((low & 15) | ((high & 3) << 4)).cast(dt.int32) - 32
        codes = _field(q, 2 * pair, 2, 5) | _field(third, places + pair, 1, 7)
        found.append(WordPart(codes, d, None, scale))
    return tuple(found)


def _iq4_xs(s: Stored) -> tuple[WordPart, ...]:
    """(8 groups, 2 halves of bytes, 16), each group with a scale of 6 bits."""

    def eight(at: int, count: int, bits: int) -> Tensor:
        steps = (Tensor.arange(8 // count, device=s.words.device) * bits).cast(dt.uint8).reshape(-1, 1)
        x = _cut(_small(s, at, count), count, 1) >> steps
        return x.reshape(*x.shape[:-3], 8, x.shape[-1])

    scale = ((eight(2, 4, 4) & 15) | ((eight(0, 2, 2) & 3) << 4)).cast(dt.int32) - 32
    w, d = _words(s, 0, 8, 4), _half(s, 0)
    codes = [_lookup(_field(w, 4 * half, 4, 0), NON_LINEAR) for half in (0, 1)]
    return tuple(WordPart(c, d, None, scale) for c in codes)


def _turn(mask: int, count: int, codes: np.ndarray) -> np.ndarray:
    """The first bytes of codes with some bits turned."""
    return np.concatenate((codes[..., :count] ^ np.uint8(mask), codes[..., count:]), -1)


def _turn_last(mask: int, count: int, codes: np.ndarray) -> np.ndarray:
    return np.concatenate((codes[..., :-count], codes[..., -count:] ^ np.uint8(mask)), -1)


def _format(
    number: int | BlockFormat,
    parts: Parts,
    halves: tuple[int, ...],
    small: slice | None,
    *codes: tuple[int, int],
    turned: Callable[[np.ndarray], np.ndarray] | None = None,
    minima: Minima | None = None,
) -> WordFormat:
    block = FORMATS[number] if isinstance(number, int) else number
    return WordFormat(block, halves, small, tuple(slice(*c) for c in codes), parts, turned, minima)


WORD_FORMATS: dict[str, WordFormat] = {
    found.block.name: found
    for found in (
        _format(2, _q4_0, (0,), None, (2, 18), turned=partial(_turn, 0x88, 16)),
        _format(3, _q4_1, (0, 2), None, (4, 20)),
        _format(6, _q5_0, (0,), None, (2, 22), turned=lambda c: _fifth_bits(c, 1)),
        _format(7, _q5_1, (0, 2), None, (4, 24), turned=lambda c: _fifth_bits(c, 0)),
        _format(8, _q8_0, (0,), None, (2, 34)),
        _format(10, _q2_k, (80, 82), slice(0, 16), (16, 80)),
        _format(11, _q3_k, (108,), slice(96, 108), (0, 96), turned=partial(_turn, 0xFF, 32)),
        _format(12, _q4_k, (0, 2), slice(4, 16), (16, 144), minima=_six_bit_minima),
        _format(13, _q5_k, (0, 2), slice(4, 16), (16, 176)),
        _format(14, _q6_k, (208,), slice(192, 208), (0, 192), turned=partial(_turn_last, 0xAA, 64)),
        _format(20, _iq4_nl, (0,), None, (2, 18)),
        _format(23, _iq4_xs, (0,), slice(2, 8), (8, 136)),
        _format(INT4_GROUPS, _int4, (0, 2), None, (4, 20)),
        _format(INT8_GROUPS, _int8, (0, 2), None, (4, 36), turned=partial(_turn, 0x80, 32)),
        _format(39, _mxfp4, (), slice(0, 1), (1, 17)),
    )
}
