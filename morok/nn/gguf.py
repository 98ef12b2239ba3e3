"""GGUF, the format of llama.cpp: metadata, then tensors, many of them in blocks of a few bits per number.

Plain types are mapped. Blocks are mapped as bytes and unpacked by ordinary tensor operations, lazily, so a
kernel that needs the numbers unpacks them on the way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.dtype import DType
from morok.nn.files import Bytes, byte_count
from morok.tensor.tensor import Tensor

_PLAIN: dict[int, DType] = {
    0: dt.float32, 1: dt.float16, 24: dt.int8, 25: dt.int16, 26: dt.int32, 27: dt.int64, 28: dt.float64,
    30: dt.bfloat16,
}  # fmt: skip
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST, _TRUTH = 8, 9, 7
_MOST_AXES = 8
_DEEPEST_LIST = 4

# --- blocks: (numbers, bytes, how to unpack). x is (blocks, bytes) of uint8; the result (blocks, numbers)


def _half(x: Tensor, at: int) -> Tensor:
    """A float16 at a byte of each block, as (blocks, 1) of float32."""
    low, high = (x.narrow(1, at + i, 1).cast(dt.uint16) for i in (0, 1))
    return (low | (high << 8)).bitcast(dt.float16).cast(dt.float32)


def _nibbles(x: Tensor) -> Tensor:
    """The lower halves of all bytes, then the upper ones."""
    return (x & 15).cat(x >> 4, dim=1)


def _fifth_bits(x: Tensor) -> Tensor:
    """32 bits from 4 bytes, one per number."""
    shift = Tensor.arange(8).cast(dt.uint8)
    bits = (x.unsqueeze(2).expand(-1, -1, 8) >> shift) & 1
    return bits.reshape(x.shape[0], 32)


def _q8_0(x: Tensor) -> Tensor:
    return _half(x, 0) * x.narrow(1, 2, 32).bitcast(dt.int8).cast(dt.float32)


def _q4_0(x: Tensor) -> Tensor:
    return _half(x, 0) * (_nibbles(x.narrow(1, 2, 16)).cast(dt.float32) - 8.0)


def _q4_1(x: Tensor) -> Tensor:
    return _half(x, 0) * _nibbles(x.narrow(1, 4, 16)).cast(dt.float32) + _half(x, 2)


def _q5_0(x: Tensor) -> Tensor:
    q = _nibbles(x.narrow(1, 6, 16)) | (_fifth_bits(x.narrow(1, 2, 4)) << 4)
    return _half(x, 0) * (q.cast(dt.float32) - 16.0)


def _q5_1(x: Tensor) -> Tensor:
    q = _nibbles(x.narrow(1, 8, 16)) | (_fifth_bits(x.narrow(1, 4, 4)) << 4)
    return _half(x, 0) * q.cast(dt.float32) + _half(x, 2)


def _scales_and_minima(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits each from 12 bytes."""
    first, second, third = (x.narrow(1, i, 4) for i in (0, 4, 8))
    scales = (first & 63).cat((third & 15) | ((first >> 6) << 4), dim=1)
    minima = (second & 63).cat((third >> 4) | ((second >> 6) << 4), dim=1)
    return scales.cast(dt.float32), minima.cast(dt.float32)


def _k_blocks(x: Tensor, q: Tensor) -> Tensor:
    """Eight groups of 32 numbers, each with its own scale and minimum."""
    scales, minima = _scales_and_minima(x.narrow(1, 4, 12))
    d, m = (_half(x, 0) * scales).unsqueeze(2), (_half(x, 2) * minima).unsqueeze(2)
    return (d * q.cast(dt.float32) - m).reshape(x.shape[0], 256)


def _k_nibbles(x: Tensor) -> Tensor:
    """128 bytes as (blocks, 8, 32): of every 32 bytes first the lower halves, then the upper ones."""
    groups = x.reshape(x.shape[0], 4, 1, 32)
    return (groups & 15).cat(groups >> 4, dim=2).reshape(x.shape[0], 8, 32)


def _pairs_of_bits(x: Tensor) -> Tensor:
    """64 bytes as (blocks, 2, 4, 32): of every 32 bytes first the lowest two bits, then the next ones."""
    shift = (Tensor.arange(4) * 2).cast(dt.uint8).reshape(1, 1, 4, 1)
    return (x.reshape(x.shape[0], 2, 1, 32).expand(-1, -1, 4, -1) >> shift) & 3


def _q2_k(x: Tensor) -> Tensor:
    packed = x.narrow(1, 0, 16)
    scales, minima = ((half.cast(dt.float32)).unsqueeze(2) for half in (packed & 15, packed >> 4))
    q = _pairs_of_bits(x.narrow(1, 16, 64)).cast(dt.float32).reshape(x.shape[0], 16, 16)
    d, m = _half(x, 80).unsqueeze(2), _half(x, 82).unsqueeze(2)
    return (d * scales * q - m * minima).reshape(x.shape[0], 256)


def _q3_k(x: Tensor) -> Tensor:
    blocks = x.shape[0]
    first, second, third = (x.narrow(1, 96 + i, 4) for i in (0, 4, 8))
    low = (first & 15).cat(second & 15, first >> 4, second >> 4, dim=1)
    shift = (Tensor.arange(4) * 2).cast(dt.uint8).reshape(1, 4, 1)
    high = ((third.unsqueeze(1).expand(-1, 4, -1) >> shift) & 3).reshape(blocks, 16)
    scales = ((low | (high << 4)).cast(dt.float32) - 32.0).unsqueeze(2)
    place = Tensor.arange(8).cast(dt.uint8).reshape(1, 8, 1)
    third_bit = (x.narrow(1, 0, 32).unsqueeze(1).expand(-1, 8, -1) >> place) & 1
    q = _pairs_of_bits(x.narrow(1, 32, 64)).reshape(blocks, 8, 32) | (third_bit << 2)
    values = (q.cast(dt.float32) - 4.0).reshape(blocks, 16, 16)
    return (_half(x, 108).unsqueeze(2) * scales * values).reshape(blocks, 256)


def _q4_k(x: Tensor) -> Tensor:
    return _k_blocks(x, _k_nibbles(x.narrow(1, 16, 128)))


def _q5_k(x: Tensor) -> Tensor:
    shift = Tensor.arange(8).cast(dt.uint8).reshape(1, 8, 1)
    high = (x.narrow(1, 16, 32).unsqueeze(1).expand(-1, 8, -1) >> shift) & 1
    return _k_blocks(x, _k_nibbles(x.narrow(1, 48, 128)) | (high << 4))


def _q6_k(x: Tensor) -> Tensor:
    blocks = x.shape[0]
    low = x.narrow(1, 0, 128).reshape(blocks, 2, 1, 2, 32)
    low = (low & 15).cat(low >> 4, dim=2).reshape(blocks, 2, 4, 32)
    shift = (Tensor.arange(4) * 2).cast(dt.uint8).reshape(1, 1, 4, 1)
    high = (x.narrow(1, 128, 64).reshape(blocks, 2, 1, 32).expand(-1, -1, 4, -1) >> shift) & 3
    q = (low | (high << 4)).cast(dt.float32) - 32.0
    scales = x.narrow(1, 192, 16).bitcast(dt.int8).cast(dt.float32).reshape(blocks, 16, 1)
    return (q.reshape(blocks, 16, 16) * scales).reshape(blocks, 256) * _half(x, 208)


_BLOCKS: dict[int, tuple[str, int, int, Callable[[Tensor], Tensor]]] = {
    2: ("Q4_0", 32, 18, _q4_0),
    3: ("Q4_1", 32, 20, _q4_1),
    6: ("Q5_0", 32, 22, _q5_0),
    7: ("Q5_1", 32, 24, _q5_1),
    8: ("Q8_0", 32, 34, _q8_0),
    10: ("Q2_K", 256, 84, _q2_k),
    11: ("Q3_K", 256, 110, _q3_k),
    12: ("Q4_K", 256, 144, _q4_k),
    13: ("Q5_K", 256, 176, _q5_k),
    14: ("Q6_K", 256, 210, _q6_k),
}


# --- the file


def load_gguf(
    path: str | os.PathLike[str], device: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the metadata of a file."""
    file = Bytes(path, "GGUF")
    if file.take(4, "the beginning") != b"GGUF":
        raise file.wrong("it does not begin with GGUF")
    version = file.number("I", "the version")
    if version not in (2, 3):
        raise file.wrong(f"version {version} is not known; 2 and 3 are")
    tensors, entries = file.number("Q", "the number of tensors"), file.number("Q", "the number of entries")
    if max(tensors, entries) > file.size:
        raise file.wrong(f"{max(tensors, entries)} entries do not fit in {file.size} bytes")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = _text(file)
        metadata[key] = _value(file, file.number("I", key), 0)
    infos = [_info(file) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise file.wrong(f"an alignment of {alignment!r} makes no sense")
    start = -(-file.at // alignment) * alignment
    found: dict[str, Tensor] = {}
    for name, sizes, kind, offset in infos:
        if name in found:
            raise file.wrong(f"tensor {name!r} appears twice")
        found[name] = _tensor(file, name, sizes, kind, start + offset, device)
    return found, metadata


def _text(file: Bytes) -> str:
    length = file.number("Q", "the length of a text")
    return file.take(length, "a text").decode("utf-8", "replace")


def _value(file: Bytes, kind: int, depth: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind in _NUMBERS:
        value = file.number(_NUMBERS[kind], "a number")
        return bool(value) if kind == _TRUTH else value
    if kind != _LIST or depth >= _DEEPEST_LIST:
        raise file.wrong(f"a value of kind {kind} is not known")
    inner, count = file.number("I", "the kind of a list"), file.number("Q", "the length of a list")
    if count > file.size - file.at:
        raise file.wrong(f"a list of {count} values does not fit in the {file.size - file.at} bytes left")
    return [_value(file, inner, depth + 1) for _ in range(count)]


def _info(file: Bytes) -> tuple[str, tuple[int, ...], int, int]:
    name = _text(file)
    axes = file.number("I", f"the axes of {name!r}")
    if axes > _MOST_AXES:
        raise file.wrong(f"tensor {name!r} has {axes} axes")
    sizes = tuple(file.number("Q", f"the sizes of {name!r}") for _ in range(axes))[::-1]
    return name, sizes, file.number("I", f"the type of {name!r}"), file.number("Q", f"the place of {name!r}")


def _tensor(
    file: Bytes, name: str, sizes: tuple[int, ...], kind: int, offset: int, device: str | None
) -> Tensor:
    plain = _PLAIN.get(kind)
    count = byte_count(dt.uint8, sizes)
    if count is None or (plain is None and kind not in _BLOCKS):
        raise file.wrong(f"tensor {name!r} of shape {sizes} and type {kind} cannot be read")
    if plain is not None:
        wanted = byte_count(plain, sizes)
        if wanted is None or offset + wanted > file.size:
            raise file.wrong(f"tensor {name!r} ends after the file")
        return file.tensor(plain, sizes, offset, device)
    title, numbers, width, unpack = _BLOCKS[kind]
    blocks, rest = divmod(count, numbers)
    if rest or (sizes and sizes[-1] % numbers):
        raise file.wrong(f"tensor {name!r} of shape {sizes} is not made of whole blocks of {title}")
    if offset + blocks * width > file.size:
        raise file.wrong(f"tensor {name!r} ends after the file")
    if not blocks:
        return Tensor.zeros(*sizes, device=device)
    return unpack(file.tensor(dt.uint8, (blocks, width), offset, device)).reshape(*sizes)
