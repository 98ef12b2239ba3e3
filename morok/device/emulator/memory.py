"""Memory of the emulated GPU: data, and beside it what has been written by whom.

Everything is checked when it is touched: the place, the alignment of vectors, whether somebody has written it
before it is read. Memory of a block remembers who has touched each element since the last barrier: two
threads at one element, one of them writing, are a race.
"""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np

from morok.device.buffer import Array
from morok.dtype import DType
from morok.ir.arithmetic.arrays import storage
from morok.ir.ops import Op, Ops

_NOBODY, _SEVERAL = -1, -2
_JOINED = -3  # and below: places that joined values by an op, one number for each
_JOINS: dict[Op, Any] = {Ops.ADD: np.add, Ops.MAX: np.maximum, Ops.MIN: np.minimum}


class Fault(Exception):
    """Something that a kernel must not do: what, and which of the threads has done it."""

    def __init__(self, what: str, thread: int) -> None:
        super().__init__(what)
        self.thread = thread


class Memory(Protocol):
    """What an address points into. Places are arrays of elements, one row per thread."""

    name: str
    size: int
    dtype: DType

    def read(self, threads: Array, places: Array) -> Array: ...

    def write(self, threads: Array, places: Array, values: Array) -> None: ...


def check_places(what: str, size: int, threads: Array, places: Array) -> None:
    """All places are inside; `places` has a row per thread."""
    outside = (places < 0) | (places >= size)
    if outside.any():
        row = int(np.flatnonzero(outside.reshape(len(threads), -1).any(axis=1))[0])
        wrong = places.reshape(len(threads), -1)[row]
        place = int(wrong[(wrong < 0) | (wrong >= size)][0])
        raise Fault(f"touches element {place} of {what}, which has {size}", int(threads[row]))


def check_known(what: str, known: Array, threads: Array, places: Array) -> None:
    """All of it has been written before."""
    if not known.all():
        row, *_ = np.argwhere(~known)[0]
        place = np.asarray(places)[~known].flat[0]
        raise Fault(f"reads element {int(place)} of {what}, which nobody has written", int(threads[row]))


def check_aligned(what: str, dtype: DType, start: int, threads: Array, places: Array) -> None:
    """Vectors lie at a multiple of their size; `start` is where the memory begins, in bytes."""
    lanes = places.shape[-1]
    nbytes = lanes * dtype.itemsize
    wrong = (places[:, 0] * dtype.itemsize + start) % nbytes != 0
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        place = int(places[row, 0])
        raise Fault(
            f"accesses {lanes} elements of {what} at {place}, which is not aligned", int(threads[row])
        )


@final
class Block:
    """Bytes of the emulated GPU's memory: what an allocator hands out."""

    __slots__ = ("data", "known")

    def __init__(self, nbytes: int) -> None:
        self.data: Array = np.zeros(nbytes, dtype=np.uint8)
        self.data[:] = 0xAA  # a pattern, so that forgotten values show
        self.known: Array = np.zeros(nbytes, dtype=np.bool_)


@final
class GlobalMemory:
    """A buffer during one launch."""

    def __init__(self, name: str, block: Block, offset: int, nbytes: int, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype
        self.size = nbytes // dtype.itemsize
        self.offset = offset
        end = offset + self.size * dtype.itemsize
        self.data = block.data[offset:end].view(storage(dtype))
        self.known = block.known[offset:end].reshape(-1, dtype.itemsize)
        self.writer: Array | None = None
        self.start = 0  # the number of the first thread of those that run now

    def read(self, threads: Array, places: Array) -> Array:
        check_places(self.name, self.size, threads, places)
        if places.ndim > 1:
            check_aligned(self.name, self.dtype, self.offset, threads, places)
        check_known(self.name, np.asarray(self.known[places].all(axis=-1)), threads, places)
        found: Array = self.data[places]
        return found

    def write(self, threads: Array, places: Array, values: Array) -> None:
        check_places(self.name, self.size, threads, places)
        who = threads + self.start
        if places.ndim > 1:
            check_aligned(self.name, self.dtype, self.offset, threads, places)
            who = np.broadcast_to(who[:, None], places.shape)
        if self.writer is None:
            self.writer = np.full(self.size, _NOBODY, dtype=np.int64)
        before = self.writer[places]
        self._alone(before, who, places)
        self.writer[places] = who
        self._alone(self.writer[places], who, places)
        self.data[places] = values
        self.known[places] = True

    def note(self, threads: Array, places: Array, values: Array) -> None:
        """Writes where others may do so too, for any of the values will do."""
        check_places(self.name, self.size, threads, places)
        self.data[places] = values

    def join(self, threads: Array, places: Array, values: Array, op: Op) -> None:
        """Joins values with what is there. Others may do so too, by the same op and in no other way."""
        check_places(self.name, self.size, threads, places)
        check_known(self.name, np.asarray(self.known[places].all(axis=-1)), threads, places)
        if self.writer is None:
            self.writer = np.full(self.size, _NOBODY, dtype=np.int64)
        mark = _JOINED - sorted(_JOINS, key=lambda o: o.name).index(op)
        self._alone(self.writer[places], np.full(places.shape, mark), places)
        self.writer[places] = mark
        _JOINS[op].at(self.data, places, values)

    def _alone(self, before: Array, who: Array, places: Array) -> None:
        wrong = (before != _NOBODY) & (before != who)
        if wrong.any():
            first = tuple(np.argwhere(wrong)[0])
            place, other = int(places[first]), int(before[first])
            raise Fault(
                f"writes element {place} of {self.name}, as does thread {other} of the launch",
                int(np.asarray(who)[first]) - self.start,
            )


@final
class Unseen:
    """What threads have written that units and copy engines do not see: they read memory another way.

    The thread that has written it makes a fence, and then others have to meet it.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.writer: Array = np.full(shape, _NOBODY, dtype=np.int64)
        self.fenced: Array = np.zeros(shape, dtype=np.bool_)
        self.any = False

    def wrote(self, where: Any, who: Array) -> None:
        self.writer[where] = who
        self.fenced[where] = False
        self.any = True

    def fence(self, threads: Array | None) -> None:
        """What these threads have written, or all, is sent on its way."""
        if self.any:
            self.fenced |= self.writer != _NOBODY if threads is None else np.isin(self.writer, threads)

    def meet(self, threads: Array | None = None) -> None:
        """Others know that these threads, or all, have come so far."""
        if not self.any:
            return
        there = self.fenced if threads is None else self.fenced & np.isin(self.writer, threads)
        self.writer[there] = _NOBODY
        self.any = bool((self.writer != _NOBODY).any())

    def check(self, name: str, where: Any, thread: int) -> None:
        """Hardware may look at these places."""
        if not self.any:
            return
        wrong = self.writer[where] != _NOBODY
        if wrong.any():
            fenced = self.fenced[where][wrong].flat[0]
            what = "barrier after the fence" if fenced else "fence"
            raise Fault(f"lets hardware touch {name}, which a thread has written, without a {what}", thread)


@final
class SharedMemory:
    """Memory that the threads of a block share, for all blocks that run together."""

    def __init__(self, name: str, dtype: DType, size: int, blocks: int, block_size: int) -> None:
        self.name = name
        self.dtype = dtype
        self.size = size
        self.block_size = block_size
        self.data: Array = np.zeros((blocks, size), dtype=storage(dtype))
        self.known: Array = np.zeros((blocks, size), dtype=np.bool_)
        self.writer: Array = np.full((blocks, size), _NOBODY, dtype=np.int64)
        self.reader: Array = np.full((blocks, size), _NOBODY, dtype=np.int64)
        self.unseen = Unseen((blocks, size))
        self.offset = 0  # where it begins in the memory of a block, in bytes
        self.beside: list[SharedMemory] = []  # others that have some of these bytes at other times
        self.behind = np.zeros(0, dtype=np.bool_)  # zeros that fill up rows: nobody has to read them
        self.fresh: Array | None = None  # where roles meet: what has been put here and nobody has read

    def barrier(self) -> None:
        """Everybody has seen everything."""
        self.writer.fill(_NOBODY)
        self.reader.fill(_NOBODY)
        self.unseen.meet()

    def overlaps(self, other: SharedMemory) -> bool:
        end, others = (m.offset + m.size * m.dtype.itemsize for m in (self, other))
        return self.offset < others and other.offset < end

    def same_bytes(self, other: SharedMemory, threads: Array, places: Array) -> tuple[Array, Array]:
        """Threads, and the elements of another memory that have bytes of what each of them writes here."""
        mine, its = self.dtype.itemsize, other.dtype.itemsize
        flat = places.reshape(len(threads), -1)
        begin = flat * mine + self.offset - other.offset
        parts = [begin + k for k in range(0, mine, min(mine, its))]
        found = np.stack(parts, axis=-1).reshape(len(threads), -1)
        inside = (found >= 0) & (found < other.size * its)
        who = np.broadcast_to(threads[:, None], found.shape)[inside]
        return who, found[inside] // its

    def _displace(self, threads: Array, places: Array) -> None:
        """What lay in these bytes under another name is lost, and nobody may be using it."""
        for other in self.beside:
            who, elements = self.same_bytes(other, threads, places)
            where = (who // self.block_size, elements)
            other._conflict("overwrites", other.writer[where], who, elements)
            other._conflict("overwrites", other.reader[where], who, elements)
            other.known[where] = False

    # --- between roles, one block at a time

    def land(self, places: Array, data: Array) -> None:
        """What a copy has brought is there, for everybody."""
        self.data[0, places] = data
        self.known[0, places] = True
        if self.fresh is not None:
            self.fresh[places] = self._matters(places)

    def fills(self, places: Array, zeros: Array) -> None:
        """Which of these places get zeros from behind the end of a row."""
        if not len(self.behind):
            self.behind = np.zeros(self.size, dtype=np.bool_)
        self.behind[places] = zeros

    def _matters(self, places: Array) -> Any:
        return ~self.behind[places] if len(self.behind) else True

    def replaced(self, places: Array, thread: int) -> None:
        """Something else comes to these places: what lay there is lost, so it must have been read."""
        check_places(self.name, self.size, np.array([thread]), places[None])
        if self.fresh is not None and self.fresh[places].any():
            lost = int(places[np.flatnonzero(self.fresh[places])[0]])
            raise Fault(f"overwrites element {lost} of {self.name} before anybody has read it", thread)
        if self.fresh is not None:
            self.fresh[places] = self._matters(places)  # also while it is under way
        who = np.full(len(places), thread)
        self._conflict("overwrites", self.writer[0, places], who, places)
        self._conflict("overwrites", self.reader[0, places], who, places)
        self.unseen.check(self.name, (0, places), thread)
        self.known[0, places] = False

    def used(self, places: Array) -> None:
        """Somebody has read these places."""
        if self.fresh is not None:
            self.fresh[places] = False

    def taken(self, places: Array) -> None:
        """What was read here has been used up by products that are done: whoever read it has read it."""
        self.reader[0, places] = _NOBODY

    def seen(self, threads: Array) -> None:
        """What these threads have done is seen by others."""
        for marks in (self.writer, self.reader):
            marks[np.isin(marks, threads) | (marks == _SEVERAL)] = _NOBODY
        self.unseen.meet(threads)

    def _where(self, threads: Array, places: Array) -> tuple[Any, Array]:
        check_places(self.name, self.size, threads, places)
        block = threads // self.block_size
        who = threads
        if places.ndim > 1:
            check_aligned(self.name, self.dtype, 0, threads, places)
            block, who = block[:, None], np.broadcast_to(threads[:, None], places.shape)
        return (block, places), who

    def read(self, threads: Array, places: Array) -> Array:
        where, who = self._where(threads, places)
        check_known(self.name, self.known[where], threads, places)
        self._conflict("reads", self.writer[where], who, places)
        before = self.reader[where]
        # np.where does not see two readers within one access; the second look does
        self.reader[where] = np.where((before == _NOBODY) | (before == who), who, _SEVERAL)
        lost = self.reader[where] != who
        if lost.any():
            several = np.broadcast_to(where[0], places.shape)[lost], places[lost]
            self.reader[several] = _SEVERAL
        self.used(places)
        found: Array = self.data[where]
        return found

    def write(self, threads: Array, places: Array, values: Array) -> None:
        where, who = self._where(threads, places)
        if self.fresh is not None:
            lost = self.fresh[places]
            if lost.any():
                first = tuple(np.argwhere(lost)[0])
                what = f"overwrites element {int(places[first])} of {self.name} before anybody has read it"
                raise Fault(what, int(np.asarray(who)[first]))
            self.fresh[places] = True
        self._conflict("writes", self.writer[where], who, places)
        self._conflict("writes", self.reader[where], who, places)
        self._displace(threads, places)
        self.writer[where] = who
        self._conflict("writes", self.writer[where], who, places)
        self.data[where] = values
        self.known[where] = True
        self.unseen.wrote(where, who)

    def start_copy(self, threads: Array, places: Array) -> None:
        """A copy to these places begins: what lies there is lost, and nobody may be using it."""
        where, who = self._where(threads, places)
        self._conflict("overwrites", self.writer[where], who, places)
        self._conflict("overwrites", self.reader[where], who, places)
        self._displace(threads, places)
        self.known[where] = False

    def _conflict(self, verb: str, before: Array, who: Array, places: Array) -> None:
        wrong = (before != _NOBODY) & (before != who)
        if not wrong.any():
            return
        first = tuple(np.argwhere(wrong)[0])
        other = int(before[first])
        name = "several threads" if other == _SEVERAL else f"thread {other % self.block_size}"
        raise Fault(
            f"{verb} element {int(places[first])} of {self.name}, which {name} of the block touches as well, "
            "without a barrier between them",
            int(np.asarray(who)[first]),
        )


@final
class Registers:
    """An array of registers that every thread has for itself."""

    def __init__(self, name: str, dtype: DType, size: int, threads: int) -> None:
        self.name = name
        self.dtype = dtype
        self.size = size
        self.data: Array = np.zeros((threads, size), dtype=storage(dtype))
        self.known: Array = np.zeros((threads, size), dtype=np.bool_)

    def _where(self, threads: Array, places: Array) -> tuple[Any, Any]:
        check_places(self.name, self.size, threads, places)
        return (threads[:, None] if places.ndim > 1 else threads, places)

    def read(self, threads: Array, places: Array) -> Array:
        where = self._where(threads, places)
        check_known(self.name, self.known[where], threads, places)
        found: Array = self.data[where]
        return found

    def write(self, threads: Array, places: Array, values: Array) -> None:
        where = self._where(threads, places)
        self.data[where] = values
        self.known[where] = True
