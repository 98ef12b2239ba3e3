"""PyTorch's checkpoints: a zip file with a pickle of the structure and one entry per storage.

A pickle is a program. This one runs in a machine that knows how to build dictionaries, lists, numbers and
tensors, and nothing else: every name that it asks for is looked up in a table of harmless functions, and a
name that is not there is an error. Storages are mapped where they lie in the file.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import FormatError
from morok.nn.files import Bytes, byte_count
from morok.tensor.tensor import Tensor

_LARGEST_PICKLE = 1 << 30
_REMEMBER = ("PUT", "BINPUT", "LONG_BINPUT")
# Instructions that make objects in other ways than by a call of a known name.
_FORBIDDEN = frozenset(("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"))
_STORAGES: dict[str, DType] = {
    "FloatStorage": dt.float32, "DoubleStorage": dt.float64, "HalfStorage": dt.float16,
    "BFloat16Storage": dt.bfloat16, "LongStorage": dt.int64, "IntStorage": dt.int32,
    "ShortStorage": dt.int16, "CharStorage": dt.int8, "ByteStorage": dt.uint8, "BoolStorage": dt.bool_,
}  # fmt: skip
_DTYPES: dict[str, DType] = {
    "float32": dt.float32, "float64": dt.float64, "float16": dt.float16, "bfloat16": dt.bfloat16,
    "int64": dt.int64, "int32": dt.int32, "int16": dt.int16, "int8": dt.int8, "uint8": dt.uint8,
    "bool": dt.bool_, "float8_e4m3fn": dt.float8_e4m3, "float8_e5m2": dt.float8_e5m2,
}  # fmt: skip


@final
@dataclass(frozen=True)
class _Storage:
    """Bytes of the file; the dtype is None where the tensor says it."""

    dtype: DType | None
    offset: int
    nbytes: int


def load_checkpoint(path: str | os.PathLike[str], device: str | None = None) -> Any:
    """What `torch.save` has written: usually a dictionary of tensors. Nothing in the file is executed."""
    file = Bytes(path, "PyTorch")
    if bytes(file.data[:4]) != b"PK\x03\x04":
        raise file.wrong("it is no zip archive; files of PyTorch before 1.6 have to be saved again")
    try:
        with zipfile.ZipFile(file.path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            text = _pickle_of(file, archive, entries)
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise file.wrong(f"the archive is damaged ({error})") from None
    return _Reader(file, entries, *text, device).load()


def _pickle_of(
    file: Bytes, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo]
) -> tuple[str, bytes]:
    """The folder of everything, and the pickle."""
    names = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(names) != 1:
        raise file.wrong("it has no data.pkl")
    folder = names[0][: -len("data.pkl")]
    order = entries.get(folder + "byteorder")
    if order is not None and (order.file_size > 16 or archive.read(order) != b"little"):
        raise file.wrong("its numbers are not little-endian")
    info = entries[names[0]]
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > min(_LARGEST_PICKLE, file.size):
        raise file.wrong(f"its pickle claims {info.file_size} bytes")
    return folder, archive.read(info)


# Python's own machine in Python: the one in C has no place to look at single instructions.
_Machine: Any = pickle._Unpickler


class _Reader(_Machine):  # type: ignore[misc]
    """An unpickler that knows a handful of names, and changes nothing that it has made."""

    def __init__(
        self, file: Bytes, entries: dict[str, zipfile.ZipInfo], folder: str, text: bytes, device: str | None
    ) -> None:
        super().__init__(io.BytesIO(text))
        self.text = text
        self.file, self.entries, self.folder, self.device = file, entries, folder, device
        self.known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): _Tool(_table),
            ("torch._utils", "_rebuild_tensor_v2"): _Tool(self._tensor),
            ("torch._utils", "_rebuild_tensor_v3"): _Tool(self._typed_tensor),
            ("torch._utils", "_rebuild_parameter"): _Tool(_first),
            ("torch._utils", "_rebuild_parameter_with_state"): _Tool(_first),
            ("torch", "Size"): _Tool(_size),
            ("torch", "device"): _Tool(_nothing),
            ("torch.storage", "UntypedStorage"): _Kind(None),
            **{("torch", name): _Kind(dtype) for name, dtype in _STORAGES.items()},
            **{("torch", name): _Kind(dtype) for name, dtype in _DTYPES.items()},
        }

    def load(self) -> Any:
        try:
            self._check_memo()
            return super().load()
        except FormatError:
            raise
        except Exception as error:  # whatever a damaged pickle makes the machine stumble over
            raise self.file.wrong(f"its pickle is damaged ({type(error).__name__}: {error})") from None

    def _check_memo(self) -> None:
        """Objects are remembered by number, and the unpickler makes room for the largest one it is told."""
        for op, number, _ in pickletools.genops(self.text):
            if op.name in _FORBIDDEN:
                raise self.file.wrong(f"its pickle has the instruction {op.name}, which no state_dict needs")
            if op.name in _REMEMBER and (not isinstance(number, int) or not 0 <= number <= len(self.text)):
                raise self.file.wrong(f"its pickle remembers an object as number {number}")

    def load_build(self) -> None:
        """State for an object: PyTorch gives its tables some, which is ignored; nothing else takes any."""
        self.stack.pop()
        if type(self.stack[-1]) is not collections.OrderedDict:
            raise self.file.wrong("its pickle sets the state of something that is no table")

    dispatch = {**_Machine.dispatch, pickle.BUILD[0]: load_build}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        found = self.known.get((module, name))
        if found is None:
            raise self.file.wrong(
                f"it asks for {module}.{name}, and only tensors in dictionaries and lists are read; "
                "save a state_dict"
            )
        return found

    def persistent_load(self, reference: Any) -> _Storage:
        valid = isinstance(reference, tuple) and len(reference) == 5 and reference[0] == "storage"
        kind, key, count = (reference[1], reference[2], reference[4]) if valid else (None, None, None)
        if not isinstance(kind, _Kind) or not isinstance(key, str) or type(count) is not int or count < 0:
            raise self.file.wrong("it refers to something that is no storage")
        info = self.entries.get(f"{self.folder}data/{key}")
        if info is None:
            raise self.file.wrong(f"storage {key} is missing")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise self.file.wrong(f"storage {key} is compressed")
        wanted = byte_count(kind.dtype or dt.uint8, [count])
        if wanted is None or wanted > info.file_size:
            raise self.file.wrong(f"storage {key} has {info.file_size} bytes, too few for {count} elements")
        return _Storage(kind.dtype, self._offset(info, key), info.file_size)

    def _offset(self, info: zipfile.ZipInfo, key: str) -> int:
        """Where an entry's bytes begin: behind its local header."""
        self.file.at = min(info.header_offset, self.file.size)
        if self.file.take(4, f"storage {key}") != b"PK\x03\x04":
            raise self.file.wrong(f"storage {key} is not where the archive says")
        self.file.take(22, f"storage {key}")
        length = self.file.number("H", f"storage {key}") + self.file.number("H", f"storage {key}")
        self.file.take(length, f"storage {key}")
        start = self.file.at
        self.file.take(info.file_size, f"storage {key}")
        return start

    def _tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, *_: Any) -> Tensor:
        dtype = storage.dtype if isinstance(storage, _Storage) else None
        return self._view(storage, dtype, offset, sizes, strides)

    def _typed_tensor(
        self, storage: Any, offset: Any, sizes: Any, strides: Any, grad: Any, hooks: Any, kind: Any, *_: Any
    ) -> Tensor:
        return self._view(storage, kind.dtype if isinstance(kind, _Kind) else None, offset, sizes, strides)

    def _view(self, storage: Any, dtype: DType | None, offset: Any, sizes: Any, strides: Any) -> Tensor:
        """A tensor out of a storage. It may not be larger than the storage: nothing is blown up."""
        numbers = (
            [offset, *sizes, *strides] if isinstance(sizes, tuple) and isinstance(strides, tuple) else [-1]
        )
        if dtype is None or len(sizes) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise self.file.wrong("a tensor's type, sizes or strides make no sense")
        item = byte_count(dtype, [])
        total = byte_count(dtype, sizes)
        assert item is not None
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if total is None or total > storage.nbytes or (total and (offset + span) * item > storage.nbytes):
            raise self.file.wrong(
                f"a tensor of shape {sizes} does not fit in a storage of {storage.nbytes} bytes"
            )
        if not total:
            return Tensor.zeros(*sizes, dtype=dtype, device=self.device)
        start = storage.offset + offset * item
        if tuple(strides) == _in_order(sizes) or 1 == total // item:
            return self.file.tensor(dtype, sizes, start, self.device)
        flat = self.file.tensor(dtype, (span,), start, "CPU").numpy()
        steps = tuple(stride * item for stride in strides)
        view = np.lib.stride_tricks.as_strided(flat, sizes, steps, writeable=False)
        return Tensor(np.ascontiguousarray(view), dtype, self.device)


def _in_order(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor in row-major order."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class _Fixed:
    """What a pickle gets for a name: it cannot be changed, because a pickle can set attributes too."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set")


@final
class _Kind(_Fixed):
    """A type of storage, or of elements: a name in a pickle that stands for no class."""

    __slots__ = ("dtype",)
    dtype: DType | None

    def __init__(self, dtype: DType | None) -> None:
        object.__setattr__(self, "dtype", dtype)


@final
class _Tool(_Fixed):
    """A function that a pickle may call."""

    __slots__ = ("function",)
    function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "function", function)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def _table(items: Any = ()) -> Any:
    return collections.OrderedDict(items)


def _first(tensor: Any, *_: Any) -> Any:
    return tensor


def _size(sizes: Any = ()) -> tuple[Any, ...]:
    return tuple(sizes)


def _nothing(*_: Any) -> None:
    return None
