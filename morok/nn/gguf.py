"""GGUF, the format of llama.cpp: metadata, then tensors, many of them in blocks of a few bits per number.

Plain types are mapped. Blocks are mapped as bytes and decoded by ordinary tensor operations, lazily, so a
kernel that needs the numbers decodes them on the way (`blocks.py`).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, final

from morok import dtype as dt
from morok.dtype import DType
from morok.nn.blocks import FORMATS, BlockFormat
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

# --- the file


@final
@dataclass(frozen=True)
class Entry:
    """A tensor of a file: numbers of a plain type, or blocks of a format, from a byte on."""

    file: Bytes
    name: str
    shape: tuple[int, ...]
    kind: DType | BlockFormat
    offset: int

    def raw(self, device: str | None = None) -> Tensor:
        """As it lies in the file: blocks are (blocks, bytes) of uint8."""
        if isinstance(self.kind, DType):
            return self.file.tensor(self.kind, self.shape, self.offset, device)
        blocks = math.prod(self.shape) // self.kind.numbers
        return self.file.tensor(dt.uint8, (blocks, self.kind.bytes), self.offset, device)

    def tensor(self, device: str | None = None) -> Tensor:
        """The numbers; blocks are decoded when they are needed."""
        if isinstance(self.kind, DType):
            return self.raw(device)
        if not math.prod(self.shape):
            return Tensor.zeros(*self.shape, device=device)
        return self.kind.decode(self.raw(device).unsqueeze(2)).reshape(*self.shape)


def load_gguf(
    path: str | os.PathLike[str], device: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the metadata of a file."""
    entries, metadata = read_gguf(path)
    return {name: entry.tensor(device) for name, entry in entries.items()}, metadata


def read_gguf(path: str | os.PathLike[str]) -> tuple[dict[str, Entry], dict[str, Any]]:
    """What is in a file and where: nothing but the metadata is read."""
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
    found: dict[str, Entry] = {}
    for name, sizes, kind, offset in infos:
        if name in found:
            raise file.wrong(f"tensor {name!r} appears twice")
        found[name] = _entry(file, name, sizes, kind, start + offset)
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
    if inner == _TEXT:
        return file.texts(count)
    if inner in _NUMBERS and inner != _TRUTH:
        return file.numbers(_NUMBERS[inner], count)
    return [_value(file, inner, depth + 1) for _ in range(count)]


def _info(file: Bytes) -> tuple[str, tuple[int, ...], int, int]:
    name = _text(file)
    axes = file.number("I", f"the axes of {name!r}")
    if axes > _MOST_AXES:
        raise file.wrong(f"tensor {name!r} has {axes} axes")
    sizes = tuple(file.number("Q", f"the sizes of {name!r}") for _ in range(axes))[::-1]
    return name, sizes, file.number("I", f"the type of {name!r}"), file.number("Q", f"the place of {name!r}")


def _entry(file: Bytes, name: str, sizes: tuple[int, ...], kind: int, offset: int) -> Entry:
    plain, blocked = _PLAIN.get(kind), FORMATS.get(kind)
    count = byte_count(dt.uint8, sizes)
    if count is None or (plain is None and blocked is None):
        raise file.wrong(f"tensor {name!r} of shape {sizes} and type {kind} cannot be read")
    if plain is not None:
        wanted = byte_count(plain, sizes)
    else:
        assert blocked is not None
        if count % blocked.numbers or (sizes and sizes[-1] % blocked.numbers):
            raise file.wrong(
                f"tensor {name!r} of shape {sizes} is not made of whole blocks of {blocked.name}"
            )
        wanted = count // blocked.numbers * blocked.bytes
    if wanted is None or offset + wanted > file.size:
        raise file.wrong(f"tensor {name!r} ends after the file")
    kind_of = plain if plain is not None else blocked
    assert kind_of is not None
    return Entry(file, name, sizes, kind_of, offset)
