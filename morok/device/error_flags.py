"""Error flags: words of memory that kernels write and the host looks at afterwards; 0 says that all is well.

Where running a kernel waits for it, such words are ordinary memory of the host. A GPU writes them into pinned
memory of the host, so looking at them after a wait costs no copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

import numpy as np

from morok.device.buffer import Allocator, Array, Buffer
from morok.dtype import int64

_WORD = 8
_SLAB = 1 << 12  # words that are pinned at a time


@final
class ErrorFlags:
    """`count` words: the buffer that kernels get, and what the host sees of it."""

    __slots__ = ("_pool", "buffer", "words")

    def __init__(self, buffer: Buffer, words: Array, pool: PinnedWords | None = None) -> None:
        self.buffer = buffer
        self.words = memoryview(words.data)
        self._pool = pool

    def clear(self) -> None:
        for i in range(len(self.words)):
            self.words[i] = 0

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool.give_back(self.words)


def host_error_flags(device: str, count: int, allocator: Allocator) -> ErrorFlags:
    """Notes of a device that works in the host's memory."""
    words = np.zeros(count, np.int64)
    return ErrorFlags(Buffer(device, count, int64, allocator, memory=words.view(np.uint8)), words)


@final
class PinnedWords:
    """Words that a GPU reaches by itself, in slabs; whoever has gone leaves them to the next."""

    def __init__(self, pinned: Callable[[int], Array]) -> None:
        self._pinned = pinned  # bytes to an array of them
        self._free: dict[int, list[Array]] = {}
        self._slab: Array = np.zeros(0, np.int64)
        self._lock = threading.RLock()  # notes die in the middle of anything

    def take(self, device: str, count: int, allocator: Allocator) -> ErrorFlags:
        with self._lock:
            known = self._free.get(count)
            words = known.pop() if known else self._cut(count)
        words[:] = 0
        address = int(words.__array_interface__["data"][0])
        return ErrorFlags(Buffer(device, count, int64, allocator, memory=address), words, self)

    def _cut(self, count: int) -> Array:
        if self._slab.size < count:
            size = max(_SLAB, count)
            self._slab = self._pinned(size * _WORD).view(np.int64)
        words, self._slab = self._slab[:count], self._slab[count:]
        return words

    def give_back(self, words: memoryview) -> None:
        with self._lock:
            self._free.setdefault(len(words), []).append(np.asarray(words))
