"""Memory of a device: when it is taken, who shares it, when it goes back.

A `Buffer` takes its memory when it is first needed and gives it back when nobody holds the buffer any more.
Which buffer stands behind a BUFFER node is remembered here in a table with weak keys: a node that no graph
holds takes its memory with it.

Memory may also be *borrowed* (a mapped file), and it may be *lent* (the array that `Tensor.numpy()` gives
out). Neither may change under the other party's eyes, so whoever wants to write into such a buffer asks
`is_private` first and writes into a copy otherwise. Memory that is *shared* (`Tensor.from_numpy`) is written
where it is: that is what it is for.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from morok.dtype import DType
from morok.errors import DeviceError, OutOfMemory
from morok.forks import renewed
from morok.ir.arithmetic.arrays import storage
from morok.ir.node import UOp

Array = npt.NDArray[Any]
ALIGNMENT = 64  # bytes: a cache line, and the widest vector
_KEEP = 1 << 28  # bytes of freed blocks that an allocator holds on to
_MANY_PAGES = 1 << 20  # bytes
_SIZES = 256  # and of so many sizes: shapes that do not come again leave nothing behind


class Allocator(Protocol):
    """Gives out memory of one device. What `allocate` returns is the device's own business."""

    used: int
    peak: int

    def allocate(self, nbytes: int) -> Any: ...

    def free(self, memory: Any, nbytes: int) -> None: ...

    def copy_in(self, memory: Any, offset: int, source: Array) -> None: ...

    def copy_out(self, memory: Any, offset: int, target: Array) -> None: ...

    def copy_within(self, memory: Any, offset: int, other: Any, source: Any, start: int, nbytes: int) -> None:
        """From memory that another allocator of the same kind of device has given out."""


@final
class HostAllocator:
    """A caching allocator of host memory: freed blocks wait for the next request of their size.

    A large block from the system costs a page fault per 4 KiB when it is first touched; a loop that makes
    and drops the same tensors should pay that once.
    """

    def __init__(self, name: str, keep: int = _KEEP) -> None:
        self.name = name
        self.used = 0
        self.peak = 0
        self.kept = 0
        self._keep = keep
        self._sizes = _SIZES  # its own: the last buffers die after the module's names
        self._blocks: OrderedDict[int, list[Array]] = OrderedDict()
        # Buffers die whenever their last holder does, also in the middle of an allocation of this thread.
        self._lock = renewed(self, "_lock", threading.RLock)

    def allocate(self, nbytes: int) -> Array:
        with self._lock:
            block = self._reuse(nbytes)
            if block is None:
                block = self._new(nbytes)
            self.used += nbytes
            self.peak = max(self.peak, self.used)
        return block

    def zeros(self, nbytes: int) -> Array:
        """Memory that is zero. A large block comes so from the system, which takes no time before each page
        of it is touched. Pages have their usual size: NumPy asks for huge ones, and who writes a little in
        many places (as one token does in a cache of thousands) would wait for megabytes each time."""
        with self._lock:
            block = self._new(nbytes, _zeros)
            self.used += nbytes
            self.peak = max(self.peak, self.used)
        return block

    def _reuse(self, nbytes: int) -> Array | None:
        blocks = self._blocks.get(nbytes)
        if not blocks:
            return None
        self.kept -= nbytes
        return blocks.pop()

    def _new(self, nbytes: int, make: Callable[..., Array] = np.empty) -> Array:
        try:
            return aligned(nbytes, make)
        except (MemoryError, ValueError, OSError):
            self.forget()
        try:
            return aligned(nbytes, make)
        except (MemoryError, ValueError, OSError):
            raise OutOfMemory(
                f"{self.name} has no room for {show_bytes(nbytes)}; {show_bytes(self.used)} are in use"
            ) from None

    def free(self, memory: Array, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes
            if nbytes > self._keep:
                return
            self._blocks.setdefault(nbytes, []).append(memory)
            self._blocks.move_to_end(nbytes)
            self.kept += nbytes
            while self.kept > self._keep or len(self._blocks) > self._sizes:
                oldest, blocks = next(iter(self._blocks.items()))
                if blocks:
                    blocks.pop()
                    self.kept -= oldest
                else:
                    del self._blocks[oldest]

    def forget(self) -> None:
        """Give all kept blocks back to the system."""
        self._blocks.clear()
        self.kept = 0

    def copy_in(self, memory: Array, offset: int, source: Array) -> None:
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        memory[offset : offset + data.size] = data

    def copy_out(self, memory: Array, offset: int, target: Array) -> None:
        data = target.reshape(-1).view(np.uint8)
        data[...] = memory[offset : offset + data.size]

    def copy_within(
        self, memory: Array, offset: int, other: Any, source: Array, start: int, nbytes: int
    ) -> None:
        memory[offset : offset + nbytes] = source[start : start + nbytes]


class Keeper(Protocol):
    """Whoever keeps memory only in order to be fast."""

    def drop_unused(self) -> None:
        """Gives up what nobody uses."""


keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()  # all are asked before a device says that it is full


def _zeros(nbytes: int, dtype: type[np.uint8]) -> Array:
    if nbytes < _MANY_PAGES or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(nbytes, dtype)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # of a system without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype)


def aligned_copy(array: Array) -> Array:
    """A copy in the order of its axes that begins on a cache line, as `from_numpy` takes it: vectors of it
    lie in one line each."""
    raw = aligned(array.nbytes, np.empty)
    copy: Array = raw[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def aligned(nbytes: int, make: Callable[..., Array]) -> Array:
    """So many bytes from a cache line on."""
    raw = make(nbytes + ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


def show_bytes(count: float) -> str:
    """A number of bytes as people write it."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@final
class _Lease:
    """What an array that was given out stands on: it keeps the buffer, and its own life tells of the array's.

    NumPy holds the object behind `__array_interface__` as long as any view of the array exists.
    """

    __slots__ = ("__array_interface__", "__weakref__", "buffer")

    def __init__(self, buffer: Buffer, array: Array) -> None:
        self.buffer = buffer
        self.__array_interface__ = array.__array_interface__


@final
class Buffer:
    """`size` elements of `dtype` on a device.

    A view has a `base` and an offset in bytes into it, and shares its memory.
    """

    __slots__ = (
        "__weakref__",
        "_allocator",
        "_lease",
        "_memory",
        "base",
        "borrowed",
        "device",
        "dtype",
        "offset",
        "renamed",
        "shared",
        "size",
    )

    def __init__(
        self,
        device: str,
        size: int,
        dtype: DType,
        allocator: Allocator,
        *,
        base: Buffer | None = None,
        offset: int = 0,
        memory: Any = None,
        shared: bool = False,
    ) -> None:
        self.device = device
        self.size = size
        self.dtype = dtype
        self.base = base
        self.offset = offset
        self.borrowed = memory is not None
        self.shared = shared  # with somebody outside, who wants to see what is written
        self.renamed = False  # whether another node than the first one stands for it
        self._allocator = allocator
        self._memory = memory
        self._lease: weakref.ref[_Lease] | None = None

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_allocated(self) -> bool:
        return (self.base or self)._memory is not None

    @property
    def memory(self) -> Any:
        """The device's handle of the memory, taken now if it was not; a view's is its base's."""
        if self.base is not None:
            return self.base.memory
        if self._memory is None:
            self._memory = self._allocator.allocate(self.nbytes)
        return self._memory

    @property
    def is_private(self) -> bool:
        """Whether nobody minds a write: the memory is neither borrowed nor lent, or it is shared."""
        root = self.base or self
        if root.shared:
            return True
        return not root.borrowed and (root._lease is None or root._lease() is None)

    @property
    def is_exposed(self) -> bool:
        """Whether somebody outside can write: the memory is shared, or an array of it lives."""
        root = self.base or self
        return root.shared or (root._lease is not None and root._lease() is not None)

    @property
    def is_shared(self) -> bool:
        """Whether somebody outside sees what is written."""
        return (self.base or self).shared

    def view(self, size: int, dtype: DType, offset: int) -> Buffer:
        """A part of this buffer, `offset` in bytes."""
        if offset < 0 or offset + size * dtype.itemsize > self.nbytes:
            raise DeviceError(
                f"{size} elements of {dtype} at byte {offset} do not fit in a buffer of {self.nbytes} bytes"
            )
        root = self.base or self
        return Buffer(self.device, size, dtype, self._allocator, base=root, offset=self.offset + offset)

    def array(self) -> Array:
        """The elements of a buffer in host memory as a flat array that shares it."""
        memory = self.memory
        if not isinstance(memory, np.ndarray):
            raise DeviceError(f"the memory of {self.device} is not reachable from the host; copy it first")
        return memory[self.offset : self.offset + self.nbytes].view(storage(self.dtype))

    def lend(self) -> Array:
        """As `array`, for the user: while the array or a view of it lives, this buffer is not private."""
        root = self.base or self
        whole = self.array()
        if whole.size == 0:
            return whole.copy()
        lease = root._lease() if root._lease is not None else None
        if lease is None:
            # NumPy's interface knows its own types only; bfloat16 travels as bytes and is viewed afterwards.
            lease = _Lease(root, root.memory)
            root._lease = weakref.ref(lease)
        data = np.asarray(lease)
        return data[self.offset : self.offset + self.nbytes].view(storage(self.dtype))

    def copy_in(self, source: Array) -> None:
        """Fill the buffer from the host."""
        if self.size:
            self._allocator.copy_in(self.memory, self.offset, source)

    def copy_out(self) -> Array:
        """The elements as a new array on the host."""
        result = np.empty(self.size, dtype=storage(self.dtype))
        if self.size:
            self._allocator.copy_out(self.memory, self.offset, result)
        return result

    def copy_from(self, other: Buffer) -> None:
        """The elements of another buffer of the same size, on whatever device."""
        if not self.size:
            return
        source, target = other.memory, self.memory
        if isinstance(source, np.ndarray):
            self._allocator.copy_in(target, self.offset, other.array())
        elif isinstance(target, np.ndarray):
            other._allocator.copy_out(source, other.offset, self.array())
        elif type(self._allocator) is not type(other._allocator):
            self.copy_in(other.copy_out())  # two kinds of device that know nothing of each other
        else:
            size = self.nbytes
            self._allocator.copy_within(target, self.offset, other._allocator, source, other.offset, size)

    def clone(self) -> Buffer:
        """The same elements in memory of their own."""
        other = Buffer(self.device, self.size, self.dtype, self._allocator)
        if self.is_allocated:
            other.copy_from(self)
        return other

    def __repr__(self) -> str:
        state = "view" if self.base is not None else "taken" if self.is_allocated else "not taken yet"
        return f"<Buffer {self.device} {self.size} x {self.dtype}, {state}>"

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        if memory is not None and not self.borrowed:
            self._allocator.free(memory, self.nbytes)


# --- which memory a node stands for

_buffers: weakref.WeakKeyDictionary[UOp, Buffer] = weakref.WeakKeyDictionary()
_known: dict[Any, Buffer] = _buffers.data  # type: ignore[attr-defined]  # asked directly: replays do it often
_ref = weakref.ref


@final
class Bindings:
    """Counts what `bind_buffer` has done: who has looked nodes up need not do so again while it stands still.

    The count follows the binding, so that whoever sees a count sees all bindings that it stands for, also if
    two threads count at the same time.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


bindings = Bindings()


def bind_buffer(node: UOp, buffer: Buffer) -> None:
    """From now on the BUFFER node stands for this memory, as long as the node lives."""
    _buffers[node] = buffer
    bindings.count += 1


def bind_fresh(node: UOp, buffer: Buffer) -> None:
    """As `bind_buffer`, for a node that was just made: nobody has looked it up, so nothing known changes."""
    _buffers[node] = buffer


def find_buffer(node: UOp) -> Buffer | None:
    """The memory behind a BUFFER node; None if it was never given any."""
    return _known.get(_ref(node))
