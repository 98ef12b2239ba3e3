"""What readers of files share: a bounded view of a file's bytes, and errors that name it."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any, final

from morok.dtype import DType
from morok.errors import FormatError
from morok.ir.arithmetic.arrays import storage
from morok.tensor.tensor import Tensor

MOST_ELEMENTS = 1 << 48
MOST_AXES = 64  # as NumPy


@final
class Bytes:
    """A file's contents, mapped; every read is checked against its end."""

    def __init__(self, path: str | os.PathLike[str], kind: str) -> None:
        self.path, self.kind = os.fspath(path), kind
        try:
            with open(self.path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self.data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        except OSError as error:
            raise FormatError(f"cannot read {self.path}: {error.strerror}") from None
        self.at = 0

    def wrong(self, what: str) -> FormatError:
        """An error that names the file."""
        return FormatError(f"{os.path.basename(self.path)} is not a valid {self.kind} file: {what}")

    def take(self, count: int, what: str) -> bytes:
        """The next so many bytes."""
        if count < 0 or count > self.size - self.at:
            raise self.wrong(f"{what} needs {count} bytes, but {self.size - self.at} are left")
        self.at += count
        found: bytes = self.data[self.at - count : self.at]
        return found

    def number(self, code: str, what: str) -> Any:
        """The next number, in the notation of `struct`, little-endian."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def numbers(self, code: str, count: int) -> list[Any]:
        """The next numbers of one kind."""
        return list(
            struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code), "a list"))
        )

    def texts(self, count: int) -> list[str]:
        """The next texts, each after its length: a vocabulary has a hundred thousand."""
        data, at, size, found = self.data, self.at, self.size, []
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            length = length_at(data, at)[0] if start <= size else size
            if length > size - start:
                self.at = min(at, size)
                raise self.wrong(f"a text needs {length} bytes, but {max(0, size - start)} are left")
            at = start + length
            found.append(data[start:at].decode("utf-8", "replace"))
        self.at = at
        return found

    def tensor(self, dtype: DType, sizes: Sequence[int], offset: int, device: str | None) -> Tensor:
        """A tensor on a part of the file."""
        if len(sizes) > MOST_AXES:
            raise self.wrong(f"a tensor has {len(sizes)} axes, and {MOST_AXES} are read at most")
        return Tensor.from_file(self.path, dtype, tuple(sizes), offset, device)


def byte_count(dtype: DType, sizes: Sequence[Any]) -> int | None:
    """How many bytes a tensor takes; None if its sizes are no sizes."""
    total: int = storage(dtype).itemsize
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            return None
        total *= size
        if total > MOST_ELEMENTS:
            return None
    return total
