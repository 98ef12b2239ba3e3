"""Files as tensors' memory: mapped, not read. Pages come in when a kernel touches them.

The mapping is private and read-only: nothing that morok does changes the file. Where a part of a file does
not begin at a multiple of its element's size it is read instead, because kernels expect aligned elements.
"""

from __future__ import annotations

import os

import numpy as np

from morok.device.buffer import Array
from morok.dtype import DType
from morok.errors import DeviceError
from morok.ir.arithmetic.arrays import storage


def map_file(path: str | os.PathLike[str], dtype: DType, count: int | None = None, offset: int = 0) -> Array:
    """`count` elements (None: all there are) of a file from byte `offset` on, as a flat array."""
    name = os.fspath(path)
    try:
        size = os.stat(name).st_size
    except OSError as error:
        raise DeviceError(f"cannot read {name}: {error.strerror}") from None
    kind = storage(dtype)
    if offset < 0 or offset > size:
        raise DeviceError(f"{name} has {size} bytes, so there is nothing at byte {offset}")
    available, rest = divmod(size - offset, kind.itemsize)
    if count is None:
        if rest:
            raise DeviceError(
                f"{name} has {size - offset} bytes from byte {offset} on, which is no whole number of {dtype}"
            )
        count = available
    if count < 0 or count > available:
        raise DeviceError(f"{name} holds {available} elements of {dtype} from byte {offset} on, not {count}")
    if count == 0:
        return np.empty(0, dtype=kind)
    raw: Array = np.memmap(name, dtype=np.uint8, mode="r", offset=offset, shape=(count * kind.itemsize,))
    if raw.ctypes.data % kind.itemsize:
        raw = np.array(raw)
    return np.asarray(raw).view(kind)
