"""The safetensors format: a length, a header in JSON, and the tensors' bytes one after the other."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import FormatError
from morok.nn.files import Bytes, byte_count
from morok.tensor.tensor import Tensor

_TYPES: dict[str, DType] = {
    "BOOL": dt.bool_, "U8": dt.uint8, "I8": dt.int8, "U16": dt.uint16, "I16": dt.int16, "U32": dt.uint32,
    "I32": dt.int32, "U64": dt.uint64, "I64": dt.int64, "F16": dt.float16, "BF16": dt.bfloat16,
    "F32": dt.float32, "F64": dt.float64, "F8_E4M3": dt.float8_e4m3, "F8_E5M2": dt.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_LONGEST_HEADER = 100_000_000
_METADATA = "__metadata__"

Path = str | os.PathLike[str]


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _header(file: Bytes) -> dict[str, Any]:
    length = file.number("Q", "the length of the header")
    if length > _LONGEST_HEADER:
        raise file.wrong(f"a header of {length} bytes is longer than the format allows ({_LONGEST_HEADER})")
    text = file.take(length, "the header")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise file.wrong(f"its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise file.wrong("its header is no table")
    return header


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that a file carries beside its tensors."""
    file = Bytes(path, "safetensors")
    found = _header(file).get(_METADATA, {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise file.wrong("its metadata is no table of texts")
    return found


def load_safetensors(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file, mapped into memory."""
    file = Bytes(path, "safetensors")
    header = _header(file)
    start, room = file.at, file.size - file.at
    places: list[tuple[int, int, str]] = []
    found: dict[str, tuple[DType, list[int], int]] = {}
    for name, entry in header.items():
        if name == _METADATA:
            continue
        dtype, sizes, begin, end = _entry(file, name, entry, room)
        places.append((begin, end, name))
        found[name] = (dtype, sizes, begin)
    position = 0
    for begin, end, name in sorted(places):
        if begin != position:
            raise file.wrong(f"{name!r} begins at byte {begin}, but the tensor before it ends at {position}")
        position = end
    if position != room:
        raise file.wrong(f"its tensors take {position} bytes, but there are {room}")
    return {
        name: file.tensor(dtype, sizes, start + begin, device)
        for name, (dtype, sizes, begin) in found.items()
    }


def _entry(file: Bytes, name: str, entry: Any, room: int) -> tuple[DType, list[int], int, int]:
    """Type, sizes and place of a tensor, checked against each other and against the file."""
    try:
        dtype, sizes, (begin, end) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise file.wrong(f"the entry of {name!r} does not say its dtype, shape and data_offsets") from None
    if not isinstance(sizes, list) or not (type(begin) is int and type(end) is int):
        raise file.wrong(f"the shape or the place of {name!r} is made of something else than whole numbers")
    wanted = byte_count(dtype, sizes)
    if wanted is None:
        raise file.wrong(f"{sizes} is no shape for {name!r}")
    if not 0 <= begin <= end <= room:
        raise file.wrong(f"{name!r} lies at bytes {begin} … {end} of {room}")
    if end - begin != wanted:
        raise file.wrong(f"{name!r} of shape {sizes} takes {wanted} bytes, but has {end - begin}")
    return dtype, sizes, begin, end


def save_safetensors(
    state: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a file; it is replaced as a whole, or not at all."""
    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = {str(key): str(value) for key, value in metadata.items()}
    tensors = list(state.items())
    if tensors:
        tensors[0][1].realize(*(t for _, t in tensors[1:]))
    # Wide types first, so that every tensor begins at a multiple of its element's size.
    order = sorted(tensors, key=lambda item: (-item[1].dtype.bits, item[0]))
    arrays, position = [], 0
    for name, tensor in order:
        if name == _METADATA or tensor.dtype not in _NAMES:
            raise FormatError(f"{name!r} of {tensor.dtype} cannot be written to a safetensors file")
        array = np.ascontiguousarray(tensor.numpy())
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": [int(size) for size in array.shape] if tensor.ndim else [],
            "data_offsets": [position, position + array.nbytes],
        }
        arrays.append(array)
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    folder = os.path.dirname(os.path.abspath(os.fspath(path)))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".saving-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays:
                file.write(array.reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())  # the name must not be there before the contents
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
