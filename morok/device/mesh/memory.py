"""Memory of a mesh: a part for each rank of this process, under one buffer."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from morok.device.base import Device
from morok.device.buffer import Array, Buffer
from morok.device.mesh.engine import Engine
from morok.dtype import DType
from morok.ir.layout import Layout


@final
class MeshMemory:
    """What an allocator of a mesh gives out: the memory of each rank, and buffers that show it."""

    __slots__ = ("_shown", "parts")

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self._shown: dict[tuple[int, int, DType], list[Buffer]] = {}

    def shown(self, offset: int, size: int, dtype: DType, base: Device) -> list[Buffer]:
        """The buffers of all ranks at an offset."""
        key = (offset, size, dtype)
        found = self._shown.get(key)
        if found is None:
            found = self._shown[key] = []
            for part in self.parts:
                shard = Buffer(base.name, size, dtype, base.allocator, memory=part, shared=True)
                shard.offset = offset
                found.append(shard)
        return found


@final
class MeshAllocator:
    """Memory for all ranks of this process; `used` and `peak` count the bytes of one."""

    def __init__(self, base: Device, engine: Engine, layout: Layout | None) -> None:
        self.base, self.engine, self.layout = base, engine, layout
        self.used = 0
        self.peak = 0

    def local_size(self, size: int) -> int:
        """How many elements a rank has of a buffer of so many."""
        return size if self.layout is None else self.layout.local_numel

    def _local(self, nbytes: int) -> int:
        if self.layout is None or not self.layout.numel:
            return nbytes
        return nbytes // self.layout.numel * self.layout.local_numel

    def allocate(self, nbytes: int) -> MeshMemory:
        size = self._local(nbytes)
        parts = [self.base.allocator.allocate(size) for _ in self.engine.ranks]
        self.used += size
        self.peak = max(self.peak, self.used)
        return MeshMemory(parts)

    def free(self, memory: MeshMemory, nbytes: int) -> None:
        size = self._local(nbytes)
        self.used -= size
        for part in memory.parts:
            self.base.allocator.free(part, size)

    def copy_in(self, memory: MeshMemory, offset: int, source: Array) -> None:
        if self.engine.name == "planned":
            return
        for rank, part in zip(self.engine.ranks, memory.parts, strict=True):
            self.base.allocator.copy_in(part, offset, self._part(source, rank))

    def _part(self, source: Array, rank: int) -> Array:
        """What a rank has of all elements; behind the end of an uneven cut come zeros."""
        if self.layout is None:
            return source
        mine = source.reshape(self.layout.shape)[self.layout.box(rank)]
        room = np.zeros(self.layout.local_shape, source.dtype)
        room[tuple(slice(0, n) for n in mine.shape)] = mine
        return room.reshape(-1)

    def copy_out(self, memory: MeshMemory, offset: int, target: Array) -> None:
        layout = self.layout
        if layout is None or layout.is_whole or self.engine.name == "planned":
            self.base.allocator.copy_out(memory.parts[0], offset, target)
            return
        own = []
        for part in memory.parts:
            room = np.empty(layout.local_numel, target.dtype)
            self.base.allocator.copy_out(part, offset, room)
            own.append(room)
        whole = target.reshape(layout.shape)
        for rank, room in enumerate(self.engine.gather_arrays(own)):
            box = layout.box(rank)
            sizes = tuple(slice(0, b.stop - b.start) for b in box)
            whole[box] = room.reshape(layout.local_shape)[sizes]

    def copy_within(
        self, memory: MeshMemory, offset: int, other: Any, source: MeshMemory, start: int, nbytes: int
    ) -> None:
        size = self._local(nbytes)
        for mine, theirs in zip(memory.parts, source.parts, strict=True):
            self.base.allocator.copy_within(mine, offset, self.base.allocator, theirs, start, size)


def shards(buffer: Buffer, base: Device, count: int) -> list[Buffer]:
    """The buffers of the ranks of this process; plain memory is the same for all of them."""
    memory = buffer.memory
    if not isinstance(memory, MeshMemory):
        return [buffer] * count
    allocator = (buffer.base or buffer)._allocator
    assert isinstance(allocator, MeshAllocator)
    return memory.shown(buffer.offset, allocator.local_size(buffer.size), buffer.dtype, base)
