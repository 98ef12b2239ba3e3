"""Where tensors come from: numbers, arrays, files, and the constants that cost no memory.

`zeros`, `arange`, `eye` and the like are index arithmetic: nothing is stored for them unless somebody
realises them on their own.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.device.buffer import Array, find_buffer
from morok.device.disk import map_file
from morok.device.registry import canonical, default_device, get_device
from morok.dtype import DType, dtype_of
from morok.errors import DTypeError, ShapeError
from morok.ir import build
from morok.ir import movement as move
from morok.ir.arithmetic.arrays import storage
from morok.ir.infer import Size, add_sizes, show_shape, size_node, subtract_sizes
from morok.ir.layout import placed
from morok.ir.memory import base_of
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.ir.sizes import combine
from morok.tensor import core, dtypes
from morok.tensor.calls.record import makes_constant
from morok.tensor.core import C, Core, Scalar, expand_to, iota, require_shape
from morok.tensor.creation.sources import bound_to, foreign_array, from_array, is_floats, node_of, on_device
from morok.tensor.dtypes import as_dtype, is_dtype, require_range
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import shown_memory, view_of
from morok.tensor.memory.storage import claim
from morok.tensor.sizes import Variable, as_shape, as_size, broadcast_shapes, concrete_shape, flat_args


def from_data(x: C, data: Any) -> C:
    # Python's numbers beside doubles are doubles: through float32 they would lose digits on the way
    wide = dt.float64 if x.dtype is dt.float64 and is_floats(data) else None
    return x._new(node_of(data, wide, x.device))


def as_operand(x: C, other: Any) -> C:
    """Another operand as a tensor: one as it is, data on this tensor's device."""
    return x._new(other.uop) if isinstance(other, Core) else from_data(x, other)


def from_numpy(cls: type[C], array: Array, device: str | None = None) -> C:
    """A tensor on an array's own memory: assignments to either change both.

    The array is aligned and has no gaps; of one that may only be read, the tensor cannot be assigned to.
    What was computed lazily from the tensor reads the array when it is computed. A device with memory of
    its own gets a copy. `Tensor(array)` always copies.

    >>> import numpy as np
    >>> array = np.zeros(2, np.float32)
    >>> x = Tensor.from_numpy(array)
    >>> array[0] = 7.0
    >>> x.tolist()
    [7.0, 0.0]
    """
    whole = np.asarray(array)
    return _sharing(cls, whole, dtypes.from_numpy(whole.dtype), device)


def _sharing(cls: type[C], array: Array, dtype: DType, device: str | None) -> C:
    target = get_device(canonical(device) if device else default_device())
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    back = [array.strides[axis] < 0 for axis in order]
    turned: list[Any] = [slice(None, None, -1 if b else 1) for b in back]
    base = array.transpose(order)[(*turned, ...)]  # also of a scalar the memory, and not its number
    memory = target.adopt(base, dtype, shared=True)
    if target.on_host and array.size and not memory.is_shared:
        raise ShapeError(
            "memory is shared with arrays that are aligned and have no gaps; Tensor(array) takes a copy "
            "of others"
        )
    tensor = cls._new(bound_to(base, memory))
    claim(base_of(tensor._storage.node), tensor._storage)
    if not array.flags.writeable:
        tensor._storage.frozen = "this memory may only be read; Tensor(data) takes a copy of it"
    node = move.flip(tensor.uop, back)
    return tensor._view(move.permute(node, sorted(range(array.ndim), key=order.__getitem__)))


def from_dlpack(cls: type[C], data: Any, device: str | None = None) -> C:
    """A tensor on the memory of anything that speaks DLPack (torch, JAX, CuPy …), as by `from_numpy`.

    >>> import numpy as np
    >>> Tensor.from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    return _sharing(cls, *foreign_array(data), device)


def from_buffer(
    cls: type[C],
    data: Any,
    dtype: Any = dt.uint8,
    shape: Any = None,
    offset: int = 0,
    device: str | None = None,
) -> C:
    """A tensor on memory with the buffer protocol (bytes, bytearray, array, mmap …), from a byte on.

    It is shared as by `from_numpy`; bytes may only be read.

    >>> Tensor.from_buffer(bytes([1, 0, 2, 0]), "int16").tolist()
    [1, 2]
    """
    kind = as_dtype(dtype)
    try:
        raw = np.frombuffer(data, np.uint8)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"a {type(data).__name__} has no plain buffer: {error}") from None
    available, rest = divmod(raw.size - offset, kind.itemsize)
    if not 0 <= offset <= raw.size or (rest and shape is None):
        raise ShapeError(
            f"a buffer of {raw.size} bytes from byte {offset} on holds no whole number of {kind}"
        )
    sizes = (available,) if shape is None else concrete_shape(as_shape(flat_args((shape,))))
    count = math.prod(sizes)
    if count > available:
        raise ShapeError(
            f"shape {show_shape(sizes)} of {kind} needs {count * kind.itemsize} bytes, but there are "
            f"{raw.size - offset}"
        )
    part = raw[offset : offset + count * kind.itemsize]
    if part.ctypes.data % kind.itemsize:
        if part.flags.writeable:
            raise ShapeError(
                f"byte {offset} of this buffer is not aligned to {kind}, so its memory cannot be shared"
            )
        part = part.copy()
        part.flags.writeable = False
    return _sharing(cls, part.view(storage(kind)).reshape(sizes), kind, device)


def from_url(
    cls: type[C],
    url: str,
    dtype: Any = dt.uint8,
    shape: Any = None,
    offset: int = 0,
    sha256: str | None = None,
    device: str | None = None,
    limit: int | None = None,
) -> C:
    """A tensor on a file from the net, downloaded once into the cache and memory-mapped.

    With `sha256` the contents are compared with that checksum before they are used. A file of more than
    `limit` bytes is not fetched; the knob DOWNLOAD_LIMIT says how many without it (16 GiB).

    >>> Tensor.from_url("https://example.org/digits.bin", "uint8", (10, 28, 28))  # doctest: +SKIP
    """
    from morok.tensor.creation.download import (
        downloaded,  # Python's own modules for the net are slow to load
    )

    return from_file(cls, downloaded(url, sha256, limit), dtype, shape, offset, device)


def from_file(
    cls: type[C],
    path: str | os.PathLike[str],
    dtype: Any = dt.uint8,
    shape: Any = None,
    offset: int = 0,
    device: str | None = None,
) -> C:
    """A tensor on a memory-mapped file, from byte `offset` on; without a shape, all of it as one axis.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "bytes")
    >>> _ = path.write_bytes(bytes([1, 0, 2, 0]))
    >>> Tensor.from_file(path, "int16").tolist()
    [1, 2]
    """
    kind = as_dtype(dtype)
    sizes = None if shape is None else concrete_shape(as_shape(flat_args((shape,))))
    array = map_file(path, kind, None if sizes is None else math.prod(sizes), offset)
    return cls._new(from_array(array if sizes is None else array.reshape(sizes), kind, device))


def empty(cls: type[C], *shape: Any, dtype: Any = None, device: str | None = None) -> C:
    """Memory with whatever is in it.

    >>> Tensor.empty(2, 3).shape
    (2, 3)
    """
    sizes = concrete_shape(as_shape(flat_args(shape)))
    kind = as_dtype(dtype or dt.default_float)
    name = canonical(device) if device else default_device()
    get_device(name)
    return cls._new(view_of(new_buffer(kind, math.prod(sizes), name), sizes))


@makes_constant
def full(cls: type[C], shape: Any, value: Any, dtype: Any = None, device: str | None = None) -> C:
    """The same value everywhere; an array is repeated to the shape.

    >>> Tensor.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    sizes = as_shape(flat_args((shape,) if not isinstance(shape, tuple | list) else tuple(shape)))
    if isinstance(value, Core | np.ndarray | np.generic | list | tuple):
        return contiguous(cls._new(_repeated(value, sizes, dtype, device)))
    if isinstance(value, UOp | Variable):  # a size that is known later, as a number
        kind = as_dtype(dtype) if dtype is not None else dt.default_int
        value = build.cast(size_node(as_size(value, "a value")), kind)
        return cls._new(on_device(core.full(value, kind, sizes), device))
    kind = as_dtype(dtype) if dtype is not None else dtype_of(value)
    require_range(value, kind)
    return cls._new(on_device(core.full(value, kind, sizes), device))


@makes_constant
def zeros(cls: type[C], *shape: Any, dtype: Any = None, device: str | None = None) -> C:
    """Zeros, float32 unless said otherwise.

    >>> Tensor.zeros(2).tolist()
    [0.0, 0.0]
    """
    return full(cls, flat_args(shape), 0, dtype or dt.default_float, device)


@makes_constant
def ones(cls: type[C], *shape: Any, dtype: Any = None, device: str | None = None) -> C:
    """Ones, float32 unless said otherwise.

    >>> Tensor.ones(2).tolist()
    [1.0, 1.0]
    """
    return full(cls, flat_args(shape), 1, dtype or dt.default_float, device)


def empty_like(x: C, dtype: Any = None) -> C:
    """Memory with whatever is in it, in this tensor's shape, type and place.

    >>> Tensor([1, 2]).empty_like().shape
    (2,)
    """
    return empty(type(x), *x.shape, dtype=dtype or x.dtype, device=x.device)


@makes_constant
def full_like(x: C, value: Scalar, dtype: Any = None) -> C:
    """The same value everywhere, in this tensor's shape and type.

    >>> Tensor([1, 2]).full_like(7).tolist()
    [7, 7]
    """
    kind = as_dtype(dtype or x.dtype)
    require_range(value, kind)
    return x._new(on_device(core.full(value, kind, x.shape), x.device))


@makes_constant
def zeros_like(x: C, dtype: Any = None) -> C:
    """Zeros in this tensor's shape and type.

    >>> Tensor([1, 2]).zeros_like().tolist()
    [0, 0]
    """
    return full_like(x, 0, dtype)


@makes_constant
def ones_like(x: C, dtype: Any = None) -> C:
    """Ones in this tensor's shape and type.

    >>> Tensor([1.5, 2.5]).ones_like().tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype)


@makes_constant
def arange(
    cls: type[C], start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, device: str | None = None
) -> C:
    """Numbers from `start` up to but without `stop`, in steps.

    >>> Tensor.arange(2, 8, 3).tolist()
    [2, 5]
    """
    first, last = (0, start) if stop is None else (start, stop)
    floating = any(isinstance(x, float) for x in (first, last, step))
    kind = as_dtype(dtype) if dtype is not None else dt.default_float if floating else dt.default_int
    if step == 0:
        raise ShapeError("arange needs a step that is not 0")
    count = _count(first, last, step)
    known = not isinstance(first, UOp | Variable)
    _require_steps(first if known else 0, step, count, kind)
    position = iota((count,), 0, dt.int64)
    if not floating:
        steps = alu(Ops.MUL, position, const(dt.int64, step)) if step != 1 else position
        begin = const(dt.int64, first) if known else build.cast(size_node(as_size(first)), dt.int64)
        value = steps if known and first == 0 else alu(Ops.ADD, steps, begin)
    else:  # in double precision, so that errors do not grow with the position
        scaled = alu(Ops.MUL, build.cast(position, dt.float64), const(dt.float64, step))
        value = alu(Ops.ADD, scaled, const(dt.float64, first))
    return cls._new(on_device(build.cast(value, kind), device))


@makes_constant
def linspace(
    cls: type[C], start: float, stop: float, steps: int, dtype: Any = None, device: str | None = None
) -> C:
    """`steps` numbers from `start` to `stop`, both included, at equal distances.

    >>> Tensor.linspace(0, 1, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    (count,) = concrete_shape(as_shape((steps,)))
    kind = as_dtype(dtype or dt.default_float)
    position = iota((count,), 0, dt.int64)
    step = (stop - start) / (count - 1) if count > 1 else 0.0
    scaled = alu(Ops.MUL, build.cast(position, dt.float64), const(dt.float64, step))
    value = alu(Ops.ADD, scaled, const(dt.float64, start))
    if count > 1:  # the last one exactly, whatever the rounding on the way
        last = alu(Ops.CMPEQ, position, const(dt.int64, count - 1))
        value = alu(Ops.WHERE, last, const(dt.float64, stop), value)
    return cls._new(on_device(build.cast(value, kind), device))


@makes_constant
def logspace(
    cls: type[C],
    start: float,
    stop: float,
    steps: int,
    base: float = 10.0,
    dtype: Any = None,
    device: str | None = None,
) -> C:
    """`steps` numbers from base^start to base^stop, both included, at equal ratios.

    >>> [round(x, 3) for x in Tensor.logspace(0, 2, 3).tolist()]
    [1.0, 10.0, 100.0]
    """
    exponents = linspace(cls, start, stop, steps, dt.float64)
    power = alu(Ops.POW, const(dt.float64, base), exponents.uop)
    return cls._new(on_device(build.cast(power, as_dtype(dtype or dt.default_float)), device))


@makes_constant
def eye(
    cls: type[C], rows: int, columns: int | None = None, dtype: Any = None, device: str | None = None
) -> C:
    """Ones on the diagonal.

    >>> Tensor.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    sizes = as_shape((rows, rows if columns is None else columns))
    row, column = (expand_to(iota(sizes, axis, dt.int64), sizes) for axis in (0, 1))
    kind = as_dtype(dtype or dt.default_float)
    return cls._new(on_device(build.cast(alu(Ops.CMPEQ, row, column), kind), device))


@makes_constant
def tri(cls: type[C], rows: int, columns: int | None = None, diagonal: int = 0, dtype: Any = None) -> C:
    """Ones on and below a diagonal.

    >>> Tensor.tri(2).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    sizes = as_shape((rows, rows if columns is None else columns))
    return cls._new(build.cast(lower_triangle(sizes, diagonal), as_dtype(dtype or dt.default_float)))


def to(x: C, device: Any) -> C:
    """On another device, or, given a type, in it.

    >>> Tensor([1.5]).to("int32").tolist()
    [1]
    """
    if not isinstance(device, str) or is_dtype(device):
        return x._new(build.cast(x.uop, as_dtype(device)))
    name = placed(canonical(device), x.shape)
    get_device(name)
    if name == x.device:
        return x
    return x._new(make(Ops.COPY, x.dtype, (x.uop, make(Ops.DEVICE, dt.void, (), name))))


def contiguous(x: C) -> C:
    """Stored in row-major order when realised, and not computed again by whoever reads it.

    >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
    [[1, 3], [2, 4]]
    """
    node = x.uop
    memory = shown_memory(node)
    found = None if memory is None else find_buffer(memory)
    if found is not None and found.is_shared:  # a copy that cannot be spared
        return x._new(make(Ops.CONTIGUOUS, x.dtype, (node,), "its memory may change"))
    return x._new(make(Ops.CONTIGUOUS, x.dtype, (node,)))


def clone(x: C) -> C:
    """A copy with memory of its own; gradients flow through it.

    >>> Tensor([1, 2]).clone().tolist()
    [1, 2]
    """
    return contiguous(x)


def detach(x: C) -> C:
    """The same memory, through which no gradient flows.

    >>> Tensor([1.0], requires_grad=True).detach().requires_grad
    False
    """
    return x._view(make(Ops.DETACH, x.dtype, (x.uop,)))


def lower_triangle(sizes: Any, diagonal: Size) -> UOp:
    """True where a matrix of this shape is on or below a diagonal."""
    ndim = len(sizes)
    row, column = (iota(sizes, axis, dt.int64) for axis in (ndim - 2, ndim - 1))
    if not isinstance(diagonal, int):
        row = alu(Ops.ADD, row, build.cast(diagonal, dt.int64))
    elif diagonal:
        row = alu(Ops.ADD, row, const(dt.int64, diagonal))
    row, column = expand_to(row, sizes), expand_to(column, sizes)
    return alu(Ops.NOT, alu(Ops.CMPLT, row, column))


def _repeated(value: Any, sizes: Any, dtype: Any, device: str | None) -> UOp:
    """An array, or a tensor, that broadcasts to a shape."""
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(value, np.integer) and kind is not None:
        require_range(value, kind)
    node = node_of(value, kind, device)
    own = require_shape(node)
    if len(own) > len(sizes) or broadcast_shapes(own, sizes) != sizes:
        raise ShapeError(f"a value of shape {show_shape(own)} does not broadcast to {show_shape(sizes)}")
    return expand_to(node, sizes)


def _require_steps(first: Any, step: Any, count: Any, dtype: DType) -> None:
    """The ends of an arange are numbers of its type."""
    if not isinstance(count, int) or not count or not dtype.is_int:
        return
    for end in (first, first + step * (count - 1)):
        require_range(int(end), dtype)
    require_range(count, dt.int64)


def _count(start: Any, stop: Any, step: Any) -> Any:
    """How many numbers an arange has."""
    if all(isinstance(x, int | float) for x in (start, stop, step)):
        if not all(math.isfinite(x) for x in (start, stop, step)):
            raise ShapeError(f"arange needs finite numbers, not {start}, {stop}, {step}")
        if any(isinstance(x, float) for x in (start, stop, step)):
            return max(0, math.ceil((stop - start) / step))
        return max(0, -((start - stop) // step))
    if not isinstance(step, int) or step < 1:
        raise ShapeError(f"an arange from or to a variable has a step of 1 or more, not {step}")
    span = subtract_sizes(as_size(stop), as_size(start))
    count = span if step == 1 else combine(Ops.FLOORDIV, add_sizes(span, step - 1), step)
    return combine(Ops.MAX, count, 0)
