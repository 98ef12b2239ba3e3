"""Data for the page as bytes: JSON, and columns of integers beside it.

    4 bytes     the length of the JSON text
    JSON        in which a column is {"$": [where it begins, how many numbers]}
    columns     the lowest bytes of all numbers, then the second ones, the third, the highest

Bytes of one kind side by side compress twice as well as decimal digits, and are read at once.
"""

from __future__ import annotations

import json
import struct
from typing import Any, final

import numpy as np

Data = dict[str, Any]


@final
class Column(list[int]):
    """Integers of 32 bits."""


def to_bytes(data: Any) -> bytes:
    """Plain data, in which some lists may be columns."""
    parts: list[bytes] = []
    size = 0

    def plain(value: Any) -> Any:
        nonlocal size
        if isinstance(value, Column):
            part = np.array(value, "<i4").view(np.uint8).reshape(-1, 4).T.tobytes()
            parts.append(part)
            size += len(part)
            return {"$": [size - len(part), len(value)]}
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list) and any(isinstance(inner, dict | Column | list) for inner in value):
            return [plain(inner) for inner in value]
        return value

    text = json.dumps(plain(data), separators=(",", ":"), ensure_ascii=False)
    raw = text.encode(
        "utf-8", "backslashreplace"
    )  # half a character of a strange source is no reason to fail
    return b"".join([struct.pack("<I", len(raw)), raw, *parts])


def from_bytes(raw: bytes) -> Any:
    """What `to_bytes` has made, with plain lists."""
    (length,) = struct.unpack_from("<I", raw)
    columns = raw[4 + length :]

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"$"}:
                start, count = value["$"]
                part = np.frombuffer(columns, np.uint8, 4 * count, start).reshape(4, count)
                return np.ascontiguousarray(part.T).view("<i4").reshape(-1).tolist()
            return {key: whole(inner) for key, inner in value.items()}
        return [whole(inner) for inner in value] if isinstance(value, list) else value

    return whole(json.loads(raw[4 : 4 + length]))
