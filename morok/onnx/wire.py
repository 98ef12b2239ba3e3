"""Model files of which large constants are read straight to where they stay.

A message that is parsed whole holds every constant three times: as the file's bytes, in the message, and as
the bytes that it gives out. Here only the way to the raw data of the graph's constants is walked, in the
format that the file is written in; all else goes to the parser as it is, which judges it as ever. Whatever is
not as usual is left to the parser as well.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader, FileIO
from typing import Final, final

import numpy as np

from morok.device.buffer import ALIGNMENT, aligned
from morok.onnx.types import Array

LARGE: Final = 1 << 14  # bytes of a constant; smaller ones are not worth a step of their own
_GRAPH, _FUNCTIONS = 7, 25  # fields of a model
_INITIALIZER = 5  # of a graph
_RAW = 9  # of a tensor
_BYTES = 2  # the wire type of all of these
_FIXED = {1: 8, 5: 4}  # bytes of numbers, by wire type


class _Unusual(Exception):
    """What the parser is to look at."""


def read_apart(path: str) -> tuple[bytes, dict[int, Array]] | None:
    """The message without the raw data of large constants of its graph, and these by the constant's number;
    None for a file that is read in one piece."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # what comes through a pipe comes once
        return None
    with BufferedReader(FileIO(path), 1 << 14) as file:
        size = os.fstat(file.fileno()).st_size
        if size < LARGE:
            return None
        walk = _Walk(file)
        try:
            message = walk.model(size)
            return (message, _read(file, walk.apart)) if walk.apart else None
        except (_Unusual, MemoryError):
            return None


@final
class _Walk:
    """Through a file from its begin on."""

    def __init__(self, file: BufferedReader[FileIO]) -> None:
        self._file, self._at = file, 0
        self.apart: dict[int, tuple[int, int]] = {}  # where data lie and how many bytes, by constant

    def model(self, end: int) -> bytes:
        """The model without what is kept apart."""
        parts: list[bytes] = []
        graphs = 0
        while self._at < end:
            number, wire, size = self._field(end)
            if number == _FUNCTIONS:  # which are put in place, with whatever that does to constants
                raise _Unusual
            if number == _GRAPH and wire == _BYTES:
                graphs += 1
                parts += _with_size(_GRAPH, self._graph(self._at + size))
            else:
                parts += self._as_it_is(number, wire, size)
        if graphs != 1:  # several are joined by the parser
            raise _Unusual
        return b"".join(parts)

    def _graph(self, end: int) -> bytes:
        parts: list[bytes] = []
        count = 0
        while self._at < end:
            number, wire, size = self._field(end)
            if number == _INITIALIZER and wire == _BYTES:
                parts += _with_size(number, self._tensor(count, self._at + size))
                count += 1
            else:
                parts += self._as_it_is(number, wire, size)
        return b"".join(parts)

    def _tensor(self, which: int, end: int) -> bytes:
        parts: list[bytes] = []
        while self._at < end:
            number, wire, size = self._field(end)
            if number == _RAW and wire == _BYTES and (size >= LARGE or which in self.apart):
                if which in self.apart:
                    raise _Unusual
                self.apart[which] = self._at, size
                self._file.seek(size, os.SEEK_CUR)
                self._at += size
            else:
                if number == _RAW and which in self.apart:
                    raise _Unusual
                parts += self._as_it_is(number, wire, size)
        return b"".join(parts)

    def _field(self, end: int) -> tuple[int, int, int]:
        """The number of the next field, its wire type, and how many bytes follow (of a number: 0)."""
        key = self._number(end)
        number, wire = key >> 3, key & 7
        size = self._number(end) if wire == _BYTES else _FIXED.get(wire, 0)
        if not number or wire not in (0, 1, _BYTES, 5) or self._at + size > end:
            raise _Unusual
        if wire == 0:
            self._value = self._number(end)
        return number, wire, size

    def _as_it_is(self, number: int, wire: int, size: int) -> tuple[bytes, ...]:
        key = _varint(number << 3 | wire)
        if wire == 0:
            return key, _varint(self._value)
        data = self._file.read(size)
        if len(data) != size:
            raise _Unusual
        self._at += size
        return (key, _varint(size), data) if wire == _BYTES else (key, data)

    def _number(self, end: int) -> int:
        value = shift = 0
        while True:
            byte = self._file.read(1)
            if not byte or self._at >= end or shift > 63:
                raise _Unusual
            self._at += 1
            value |= (byte[0] & 127) << shift
            if byte[0] < 128:
                return value
            shift += 7


def _with_size(number: int, data: bytes) -> tuple[bytes, ...]:
    return _varint(number << 3 | _BYTES), _varint(len(data)), data


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read(file: BufferedReader[FileIO], places: dict[int, tuple[int, int]]) -> dict[int, Array]:
    """Bytes of the file, each run of them from a cache line on, as vectors like it. One block of memory, for
    which the system takes fewer and larger pages than for many."""
    starts, total = {}, 0
    for which, (_, size) in places.items():
        starts[which] = total
        total += -(-size // ALIGNMENT) * ALIGNMENT
    block = aligned(total, np.empty)
    found = {}
    for which, (at, size) in places.items():
        part = block[starts[which] : starts[which] + size]
        file.seek(at)
        rest = memoryview(part.data)
        while rest:
            count = file.readinto(rest)
            if not count:  # somebody has cut the file meanwhile
                raise _Unusual
            rest = rest[count:]
        part.flags.writeable = False
        found[which] = part
    return found
