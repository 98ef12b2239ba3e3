"""Model files, read with care: a file may come from anybody.

Data outside of the file lie in its folder or below, as plain files that no link leads to; what a constant
declares has to be there; the size of a message and the depth of its graphs are limited. Whatever breaks this
is one sentence.
"""

from __future__ import annotations

import os
import stat
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from morok.errors import FormatError, UnsupportedModel
from morok.onnx.types import Array, numpy_type
from morok.onnx.values import decode_array
from morok.onnx.wire import read_apart

LARGEST = 1 << 40  # elements of a constant; more is a mistake, or malice
_BITS: dict[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}


def read_model(source: Any) -> tuple[ModelProto, str, dict[int, Array]]:
    """A model from a path, its bytes, or a message; the folder that its data may lie in; and the bytes of
    constants of its graph that are not in the message, by their numbers."""
    if isinstance(source, ModelProto):
        return source, "", {}
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "the bytes"), "", {}
    path = Path(source)
    try:
        message, apart = read_apart(str(path)) or (path.read_bytes(), {})
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from None
    return _parse(message, str(path)), str(path.resolve().parent), apart


def _parse(data: bytes, what: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise FormatError(f"{what} is no ONNX model: {error}") from None
    if not model.HasField("graph") or not model.opset_import:
        raise FormatError(f"{what} is no ONNX model: it has no graph, or no version of its operators")
    return model


def require_count(name: str, shape: Any, itemsize: int) -> int:
    """The number of elements of a constant, if it is one that can be."""
    if any(size < 0 for size in shape):
        raise FormatError(f"constant {name!r} has a negative size")
    count = prod(shape)
    if count > LARGEST or count * itemsize > 1 << 43:
        raise FormatError(f"constant {name!r} would have {count} elements")
    return int(count)


def require_size(proto: TensorProto, apart: Array | None = None) -> Array | None:
    """What a constant declares must be there, before memory is taken for it; the array, if it is there as it
    is. A message copies its bytes for whoever looks at them, so this is done once. Bytes that were kept
    `apart` are the message's own."""
    if apart is not None and (proto.data_type in _BITS or sys.byteorder != "little"):
        proto.raw_data, apart = apart.tobytes(), None
    count = require_count(proto.name, proto.dims, numpy_type(proto.data_type).itemsize)
    if proto.data_location == TensorProto.EXTERNAL or proto.data_type == TensorProto.STRING:
        return None
    if apart is not None or proto.HasField("raw_data"):
        wanted = _bytes_of(proto.data_type, count)
        data: Any = proto.raw_data if apart is None else apart
        if len(data) != wanted:
            raise FormatError(f"constant {proto.name!r} has {len(data)} bytes, and needs {wanted}")
        if proto.data_type not in _BITS and sys.byteorder == "little":
            return np.frombuffer(data, numpy_type(proto.data_type)).reshape(tuple(proto.dims))
    elif count > 0:
        held = max(
            len(proto.float_data), len(proto.int32_data), len(proto.int64_data),
            len(proto.double_data), len(proto.uint64_data),
        )  # fmt: skip
        if held * (8 // _BITS.get(proto.data_type, 8) if proto.data_type in _BITS else 1) < count:
            raise FormatError(f"constant {proto.name!r} has {held} numbers, and needs {count}")
    return None


def _bytes_of(elem: int, count: int) -> int:
    bits = _BITS.get(elem)
    return (count * bits + 7) // 8 if bits else count * numpy_type(elem).itemsize


def external_array(proto: TensorProto, folder: str) -> Array:
    """A constant whose data lie in another file, mapped into memory."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    unknown = set(entries) - {"location", "offset", "length", "checksum"}
    if unknown:
        raise FormatError(f"constant {proto.name!r} has an unknown entry {sorted(unknown)[0]!r} for its data")
    if not folder:
        raise FormatError(f"constant {proto.name!r} lies in another file; load the model from its path")
    path = _inside(entries.get("location", ""), folder, proto.name)
    offset = _number(entries.get("offset", "0"), proto.name)
    count = require_count(proto.name, proto.dims, numpy_type(proto.data_type).itemsize)
    wanted = _bytes_of(proto.data_type, count)
    length = _number(entries["length"], proto.name) if "length" in entries else wanted
    if length != wanted:
        raise FormatError(f"constant {proto.name!r} has {length} bytes, and needs {wanted}")
    if path.stat().st_size < offset + wanted:
        raise FormatError(f"{path.name} ends before the data of constant {proto.name!r}")
    kind = numpy_type(proto.data_type)
    if count == 0:
        return np.zeros(tuple(proto.dims), kind)
    raw: Array = np.memmap(path, np.uint8, "r", offset, (wanted,))
    if proto.data_type in _BITS:
        return _unpacked(raw, proto.data_type, count).reshape(tuple(proto.dims))
    if offset % kind.itemsize:
        raw = np.array(raw)
    return raw.view(np.ndarray).view(kind).reshape(tuple(proto.dims))


def _unpacked(raw: Array, elem: int, count: int) -> Array:
    """Elements of 2 or 4 bits, the lowest bits first."""
    bits = _BITS[elem]
    parts = [(raw >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    codes = np.stack(parts, axis=-1).reshape(-1)[:count].astype(np.uint8)
    if elem in (TensorProto.INT4, TensorProto.INT2):
        top = 1 << (bits - 1)
        codes = ((codes ^ top).astype(np.int8) - top).astype(np.int8)
    return decode_array(codes, elem)


def _inside(location: str, folder: str, name: str) -> Path:
    """The path of a plain file in the folder or below; links lead elsewhere, so there are none on the way."""
    refused = (
        f"constant {name!r} lies at {location!r}, and data are read from plain files in the model's folder"
    )
    parts = Path(location).parts
    if not location or "\0" in location or os.path.isabs(location) or ".." in parts or "\\" in location:
        raise FormatError(refused)
    path = Path(folder)
    try:
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise FormatError(refused)
        status = path.stat()
    except OSError as error:
        raise FormatError(
            f"{location!r}, with the data of constant {name!r}, cannot be read: {error.strerror}"
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise FormatError(refused)
    return path


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise FormatError(f"constant {name!r} says {text[:20]!r} where its data begin or how long they are")
    return int(text)


_MOST_NODES = 1_000_000


def prepared(model: ModelProto) -> ModelProto:
    """The model with its functions put in the places of their calls."""
    count = len(model.graph.node) + sum(len(f.node) for f in model.functions)
    if count > _MOST_NODES:
        raise UnsupportedModel(f"the model has {count} nodes; at most {_MOST_NODES} are read")
    if not model.functions:
        return model
    _refuse_cycles(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # the inliner speaks of anything as RuntimeError and kin
        raise FormatError(f"the functions of the model cannot be put in place: {str(error)[:200]}") from None


def _refuse_cycles(model: ModelProto) -> None:
    """Functions that call each other in a circle, or that grow beyond all bounds, have no end."""
    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[Any, int] = {}

    def size(key: Any, path: tuple[Any, ...]) -> int:
        if key in path:
            raise FormatError(f"function {key[1]!r} calls itself")
        if key not in sizes:
            own = 0
            for node in bodies[key].node:
                inner = (node.domain, node.op_type)
                own += size(inner, (*path, key)) if inner in bodies and len(path) < 500 else 1
            sizes[key] = own
            if own > _MOST_NODES:
                raise FormatError(f"function {key[1]!r} would become {own} nodes")
        return sizes[key]

    total = 0
    for key in bodies:
        size(key, ())
    for node in model.graph.node:
        total += sizes.get((node.domain, node.op_type), 1)
    if total > _MOST_NODES:
        raise FormatError(f"with its functions in place the model would have {total} nodes")
