"""Memory of a GPU: a caching allocator, and copies through pinned staging buffers.

A block that was freed may still be in use by work on the stream; it is given out again on the same stream, so
whoever gets it comes later. Only giving it back to the driver has to wait, and the driver does that itself.
"""

from __future__ import annotations

import atexit
import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, final

import numpy as np

from morok import knobs
from morok.device.buffer import Array, keepers, show_bytes
from morok.device.cuda.interface import Driver
from morok.errors import MorokError, OutOfMemory
from morok.forks import renewed

_SMALL = 1 << 20
_GRAIN_SMALL = 512
_GRAIN_LARGE = 1 << 17  # requests of nearly the same size share a block
_CHUNK = 4 << 20  # bytes of a piece of a copy
_PIECES = 4  # under way at a time


def rounded(nbytes: int) -> int:
    """The size of the block for a request."""
    grain = _GRAIN_SMALL if nbytes <= _SMALL else _GRAIN_LARGE
    return max(1, -(-nbytes // grain)) * grain


_allocators: weakref.WeakSet[CudaAllocator] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    """When the process ends, its memory goes with it; buffers that die after this have nobody left to ask."""
    for allocator in list(_allocators):
        allocator.closed = True


@final
class CudaAllocator:
    """Blocks of one GPU. A handle is the address."""

    def __init__(self, name: str, driver: Driver, keep: int | None = None) -> None:
        self.name = name
        self.driver = driver
        self.used = 0
        self.peak = 0
        self.kept = 0
        self._keep = driver.facts.memory // 4 if keep is None else keep
        # free ones by size and by whether they are managed, the oldest first
        self._blocks: OrderedDict[tuple[int, bool], list[int]] = OrderedDict()
        self._managed: set[int] = set()  # blocks that are, in use or kept
        self._outside = 0  # bytes that others hold
        self._lock = renewed(self, "_lock", threading.RLock)  # buffers die in the middle of anything
        self._staging = Staging(driver)
        self.waited: Callable[[], None] = lambda: None  # told after a wait for what was started
        driver.holder = self
        self.closed = False
        _allocators.add(self)

    # --- blocks

    def allocate(self, nbytes: int) -> int:
        size, managed = rounded(nbytes), knobs.CUDA_MANAGED.value
        with self._lock:
            blocks = self._blocks.get((size, managed))
            if blocks:
                self.kept -= size
                address = blocks.pop()
            else:
                address = self._new(size, nbytes, managed)
            self.used += size
            self.peak = max(self.peak, self.used)
        return address

    def _new(self, size: int, nbytes: int, managed: bool) -> int:
        for free_more in (self.forget, self.make_room, None):
            # A GPU that is asked for more managed memory than it has can hang, and not only for us.
            if not managed or self._has_room(size):
                address = self.driver.allocate(size, managed)
                if address is not None:
                    if managed:
                        self._managed.add(address)
                    return address
            if free_more is not None:
                free_more()
        raise OutOfMemory(f"{self.name} has no room for {show_bytes(nbytes)}: {self.told()}")

    def told(self) -> str:
        """Who holds how much."""
        free, total = self.driver.room()
        others = total - free - self.used - self.kept
        rest = f"; other programs or libraries hold {show_bytes(others)}" if others > total // 20 else ""
        tensors, size = show_bytes(self.used), show_bytes(total)
        return f"tensors hold {tensors} of {size}, and {show_bytes(free)} are free{rest}"

    def _has_room(self, size: int) -> bool:
        """Managed memory counts when it is asked for: the driver says that untouched pages are free."""
        free, total = self.driver.room()
        held = self.used + self.kept
        outside = total - free - held
        self._outside = max(self._outside, outside) if self._managed else outside
        return size <= total - held - self._outside

    def free(self, memory: int, nbytes: int) -> None:
        if self.closed:
            return
        size = rounded(nbytes)
        with self._lock:
            self.used -= size
            key = (size, memory in self._managed)
            self._blocks.setdefault(key, []).append(memory)
            self._blocks.move_to_end(key)
            self.kept += size
            try:
                while self.kept > self._keep:
                    self._release_oldest()
            except MorokError:  # a kernel has failed; whoever asks next is told, here is nobody
                return

    def _release_oldest(self) -> None:
        key, blocks = next(iter(self._blocks.items()))
        if blocks:
            self.kept -= key[0]
            address = blocks.pop()
            self._managed.discard(address)
            self.driver.release(address)
        else:
            del self._blocks[key]

    def forget(self) -> None:
        """Give all kept blocks back to the driver."""
        with self._lock:
            while self._blocks:
                self._release_oldest()

    def make_room(self) -> None:
        """As `forget`; also what others keep in order to be fast, and what waits for Python to find it."""
        for keeper in tuple(keepers):
            keeper.drop_unused()
        gc.collect()
        self.forget()

    # --- copies

    def copy_in(self, memory: int, offset: int, source: Array) -> None:
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self._staging.put(memory + offset, data)

    def copy_out(self, memory: int, offset: int, target: Array) -> None:
        self._staging.fetch(target.reshape(-1).view(np.uint8), memory + offset)
        self.waited()

    def copy_within(self, memory: int, offset: int, other: Any, source: int, start: int, nbytes: int) -> None:
        """From another place of a GPU's memory, of this one or another."""
        if other is self:
            self.driver.move(memory + offset, source + start, nbytes)
        else:
            self.driver.move_from(memory + offset, other.driver, source + start, nbytes)


@final
class Staging:
    """Pinned host memory in pieces: while the GPU copies one, the host fills or empties another.

    The caller's array is free as soon as a copy to the GPU returns; a copy from it returns when all is there.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pieces: list[tuple[Array, int, Any]] = []
        self._busy: list[bool] = []
        self._next = 0
        self._lock = renewed(self, "_lock", threading.RLock)

    def _piece(self, nbytes: int) -> int:
        """The number of a piece that nobody uses."""
        if not self._pieces:
            self._grow(min(nbytes, _CHUNK))
        if nbytes > self._pieces[0][0].size:
            self._grow(_CHUNK)
        number = self._next
        self._next = (number + 1) % len(self._pieces)
        if self._busy[number]:
            self._driver.wait(self._pieces[number][2])
            self._busy[number] = False
        return number

    def _grow(self, nbytes: int) -> None:
        """Pieces of this size; those that were there are waited for. A small first copy takes little."""
        size = max(64 << 10, nbytes)
        self._driver.synchronize()
        whole = self._driver.pinned(size * _PIECES)
        parts = [whole[i * size : (i + 1) * size] for i in range(_PIECES)]
        self._pieces = [(part, part.ctypes.data, self._driver.event()) for part in parts]
        self._busy = [False] * _PIECES
        self._next = 0

    def put(self, address: int, data: Array) -> None:
        with self._lock:
            for start in range(0, data.size, _CHUNK):
                part = data[start : start + _CHUNK]
                number = self._piece(part.size)
                piece, where, event = self._pieces[number]
                piece[: part.size] = part
                self._driver.put(address + start, where, part.size)
                self._driver.record(event)
                self._busy[number] = True

    def fetch(self, target: Array, address: int) -> None:
        with self._lock:
            under_way: list[tuple[int, int, int]] = []
            for start in range(0, target.size, _CHUNK):
                count = min(_CHUNK, target.size - start)
                if len(under_way) == _PIECES:
                    self._empty(target, *under_way.pop(0))
                number = self._piece(count)
                _, where, event = self._pieces[number]
                self._driver.fetch(where, address + start, count)
                self._driver.record(event)
                self._busy[number] = True
                under_way.append((number, start, count))
            for rest in under_way:
                self._empty(target, *rest)

    def _empty(self, target: Array, number: int, start: int, count: int) -> None:
        piece, _, event = self._pieces[number]
        self._driver.wait(event)
        self._busy[number] = False
        target[start : start + count] = piece[:count]
