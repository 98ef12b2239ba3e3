"""State on disk: what is written comes back; what is wrong is refused, with nothing executed."""

import json
import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import MorokError, Tensor, nn
from morok.dtype import ALL_SCALARS
from morok.errors import FormatError, ShapeError
from morok.nn.gguf import load_gguf
from morok.nn.safetensors import load_safetensors, read_metadata, save_safetensors
from morok.nn.state import load, load_state_dict, save, state_dict

Array = Any


@contextmanager
def little_memory() -> Iterator[None]:
    """Inside, Python allocates no more than a few megabytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


# --- models


def test_a_model_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    first, second = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), nn.Linear(4, 2)) for _ in range(2))
    save(state_dict(first), path, {"about": "a test"})
    assert read_metadata(path) == {"about": "a test"}
    before = nn.parameters(second)
    load_state_dict(second, load(path))
    x = Tensor.ones(2, 3)
    assert first(x).tolist() == second(x).tolist()
    assert all(a is b and a.is_leaf for a, b in zip(before, nn.parameters(second), strict=True))
    second(x).sum().backward()
    assert second[0].weight.grad is not None
    save(load(path), path)  # onto the file that it is mapped from
    load_state_dict(second, load(path))


def test_state_that_does_not_fit() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(MorokError, match="does not fit the model: no bias and unknown extra"):
        load_state_dict(model, {"weight": model.weight, "extra": model.weight})
    load_state_dict(model, {"weight": Tensor.zeros(3, 2), "extra": model.weight}, strict=False)
    assert model.weight.tolist() == [[0.0, 0.0]] * 3
    with pytest.raises(ShapeError, match=r"weight has shape \(3, 2\) in the model and \(2, 3\) in the state"):
        load_state_dict(model, {"weight": Tensor.zeros(2, 3)}, strict=False)
    with pytest.raises(FormatError, match="not a kind of file that holds tensors"):
        load("model.txt")
    with pytest.raises(FormatError, match=r"cannot read nothing\.safetensors: No such file"):
        load("nothing.safetensors")


# --- safetensors


def test_every_type_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    data = Tensor([[0, 1, 1], [1, 0, 1]])
    state = {dtype.name: data.cast(dtype) for dtype in ALL_SCALARS if not dtype.is_index}
    assert all(data.cast(name).dtype is tensor.dtype for name, tensor in state.items())
    state |= {"empty": Tensor.zeros(0, 3), "scalar": Tensor(2.5), "lazy": Tensor.arange(5) * 2}
    save_safetensors(state, path)
    found = load_safetensors(path)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype is tensor.dtype and found[name].shape == tensor.shape, name
        assert found[name].tolist() == tensor.tolist(), name
    assert os.listdir(tmp_path) == ["all.safetensors"]


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_safetensors({"x": Tensor(array)}, ours)
    np.testing.assert_array_equal(library.load_file(ours)["x"], array)
    library.save_file({"x": array}, theirs)
    np.testing.assert_array_equal(load_safetensors(theirs)["x"].numpy(), array)


def safetensors_file(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), at: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": at}


BAD_SAFETENSORS = {
    "empty": (b"", "needs 8 bytes"),
    "cut": (b"\x10\0\0", "needs 8 bytes"),
    "long header": (safetensors_file({}, b"", 1 << 62), "longer than the format allows"),
    "header beyond": (safetensors_file({}, b"", 1000), "needs 1000 bytes, but 2 are left"),
    "no json": (safetensors_file(b"{nope", b""), "no JSON"),
    "deep json": (safetensors_file(b"[" * 100_000, b""), "no JSON"),
    "no text": (safetensors_file(b"\xff\xfe", b""), "no JSON"),
    "list": (safetensors_file([], b""), "no table"),
    "double": (safetensors_file(b'{"a":1,"a":2}', b""), "appears twice"),
    "no entry": (safetensors_file({"x": 3}, b""), "does not say its dtype"),
    "type": (safetensors_file({"x": entry("F99")}, bytes(8)), "does not say its dtype"),
    "negative": (safetensors_file({"x": entry(shape=(-2,))}, bytes(8)), "no shape"),
    "fraction": (safetensors_file({"x": entry(shape=(2.0,))}, bytes(8)), "no shape"),
    "truth": (safetensors_file({"x": entry(shape=(True,))}, bytes(8)), "no shape"),
    "huge": (safetensors_file({"x": entry(shape=(1 << 40, 1 << 40))}, bytes(8)), "no shape"),
    "offsets": (safetensors_file({"x": entry(at=("0", "8"))}, bytes(8)), "something else than whole numbers"),
    "beyond": (safetensors_file({"x": entry(shape=(4,), at=(0, 16))}, bytes(8)), "bytes 0 … 16 of 8"),
    "backward": (safetensors_file({"x": entry(at=(8, 0))}, bytes(8)), "bytes 8 … 0"),
    "size": (safetensors_file({"x": entry(shape=(3,))}, bytes(8)), "takes 12 bytes, but has 8"),
    "hole": (safetensors_file({"x": entry(at=(4, 12))}, bytes(12)), "begins at byte 4"),
    "overlap": (safetensors_file({"x": entry(), "y": entry(at=(4, 12))}, bytes(12)), "begins at byte 4"),
    "axes": (safetensors_file({"x": entry(shape=(1,) * 3000, at=(0, 4))}, bytes(4)), "3000 axes"),
    "rest": (safetensors_file({"x": entry()}, bytes(9)), "take 8 bytes, but there are 9"),
}


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_bad_safetensors(name: str, tmp_path: Path) -> None:
    content, message = BAD_SAFETENSORS[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with little_memory(), pytest.raises(FormatError, match=message) as caught:
        load_safetensors(path)
    assert "bad.safetensors is not a valid safetensors file" in str(caught.value)


def test_names_are_only_names(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_safetensors({"../../etc/passwd": Tensor([1.0]), "a\0b": Tensor([2.0])}, path)
    assert list(load_safetensors(path)) == ["../../etc/passwd", "a\0b"]


# --- gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(
    tensors: list[tuple[str, tuple[int, ...], int, bytes]], metadata: bytes = b"", entries: int = 0
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), entries) + metadata
    offset, blobs = 0, b""
    for name, sizes, kind, data in tensors:
        head += text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes[::-1])
        head += struct.pack("<IQ", kind, offset)
        blobs += data + bytes(-len(data) % 32)
        offset = len(blobs)
    return head + bytes(-len(head) % 32) + blobs


def half(x: float) -> bytes:
    return np.float16(x).tobytes()


def reference(kind: int, b: bytes) -> list[float]:
    """One block, number by number, as the format defines it."""

    def f16(at: int) -> float:
        return float(np.frombuffer(b[at : at + 2], np.float16)[0])

    def nibble(q: bytes, j: int) -> int:
        return q[j] & 15 if j < 16 else q[j - 16] >> 4

    if kind == 8:
        return [f16(0) * v for v in np.frombuffer(b[2:], np.int8)]
    if kind == 2:
        return [f16(0) * (nibble(b[2:], j) - 8) for j in range(32)]
    if kind == 3:
        return [f16(0) * nibble(b[4:], j) + f16(2) for j in range(32)]
    if kind in (6, 7):
        at = 2 if kind == 6 else 4
        bits = int.from_bytes(b[at : at + 4], "little")
        q = [nibble(b[at + 4 :], j) | (bits >> j & 1) << 4 for j in range(32)]
        return [f16(0) * (v - 16) if kind == 6 else f16(0) * v + f16(2) for v in q]
    if kind == 14:
        ql, qh, sc, d = b[:128], b[128:192], np.frombuffer(b[192:208], np.int8), f16(208)
        y = [0.0] * 256
        for h in range(2):
            for i in range(32):
                for j in range(4):
                    low = ql[64 * h + 32 * (j & 1) + i] >> (4 if j > 1 else 0) & 15
                    high = qh[32 * h + i] >> 2 * j & 3
                    y[128 * h + 32 * j + i] = d * sc[8 * h + 2 * j + i // 16] * ((low | high << 4) - 32)
        return y
    if kind == 10:
        y = []
        for i in range(256):
            part, j, rest = i // 128, i // 32 % 4, i % 32
            scale = b[8 * part + 2 * j + rest // 16]
            q = b[16 + 32 * part + rest] >> 2 * j & 3
            y.append(f16(80) * (scale & 15) * q - f16(82) * (scale >> 4))
        return y
    if kind == 11:
        y = []
        for i in range(256):
            part, j, rest = i // 128, i // 32 % 4, i % 32
            n = 8 * part + 2 * j + rest // 16  # which of the 16 scales
            low = b[96 + n % 8] & 15 if n < 8 else b[96 + n % 8] >> 4
            scale = (low | (b[104 + n % 4] >> 2 * (n // 4) & 3) << 4) - 32
            q = (b[32 + 32 * part + rest] >> 2 * j & 3) - (0 if b[rest] >> (4 * part + j) & 1 else 4)
            y.append(f16(108) * scale * q)
        return y
    s, qh, qs = b[4:16], b[16:48], b[16:] if kind == 12 else b[48:]
    y = []
    for g in range(8):
        scale = s[g] & 63 if g < 4 else (s[g + 4] & 15) | (s[g - 4] >> 6) << 4
        least = s[g + 4] & 63 if g < 4 else (s[g + 4] >> 4) | (s[g] >> 6) << 4
        for i in range(32):
            q = qs[32 * (g // 2) + i] >> (4 if g & 1 else 0) & 15
            if kind == 13:
                q |= (qh[i] >> g & 1) << 4
            y.append(f16(0) * scale * q - f16(2) * least)
    return y


SIZES = {
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}


@pytest.mark.parametrize("kind", SIZES)
def test_blocks(kind: int, tmp_path: Path) -> None:
    numbers, width = SIZES[kind]
    rng = np.random.default_rng(kind)
    blocks = []
    for _ in range(4):
        raw = bytearray(rng.integers(0, 256, width, dtype=np.uint8).tobytes())
        where = {10: 80, 11: 108, 14: 208}.get(kind, 0)
        raw[where : where + 2] = half(rng.uniform(0.01, 2))
        if kind == 10:
            raw[82:84] = half(rng.uniform(-1, 1))
        if kind in (3, 7, 12, 13):
            raw[2:4] = half(rng.uniform(-1, 1))
        blocks.append(bytes(raw))
    path = tmp_path / "q.gguf"
    path.write_bytes(gguf_file([("w", (2, 2 * numbers), kind, b"".join(blocks))]))
    found = load_gguf(path)[0]["w"]
    assert found.shape == (2, 2 * numbers) and found.dtype.name == "float32"
    wanted = np.array([reference(kind, b) for b in blocks]).reshape(2, -1)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-4)


def test_gguf_metadata_and_plain_types(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    metadata = text("general.name") + struct.pack("<I", 8) + text("tiny")
    metadata += text("on") + struct.pack("<IB", 7, 1)
    metadata += text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file([("x", (2, 3), 1, x.tobytes()), ("y", (2,), 30, bytes(4))], metadata, 3))
    tensors, found = load_gguf(path)
    assert found == {"general.name": "tiny", "on": True, "numbers": [1, -2, 3]}
    np.testing.assert_array_equal(tensors["x"].numpy(), x)
    assert tensors["y"].dtype.name == "bfloat16" and load(path).keys() == {"x", "y"}


HUGE = 1 << 60
BAD_GGUF = {
    "empty": (b"", "needs 4 bytes"),
    "magic": (b"GGML" + bytes(50), "does not begin with GGUF"),
    "version": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9 is not known"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "do not fit"),
    "entries": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "do not fit"),
    "name": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE), "a text needs"),
    "list": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 0, HUGE),
        "does not fit",
    ),
    "nested": (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + text("k")
        + struct.pack("<I", 9)
        + struct.pack("<IQ", 9, 1) * 50,
        "is not known",
    ),
    "kind": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99),
        "kind 99 is not known",
    ),
    "alignment": (gguf_file([], text("general.alignment") + struct.pack("<II", 4, 3), 1), "alignment of 3"),
    "axes": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("x") + struct.pack("<I", 1000) + bytes(64),
        "1000 axes",
    ),
    "type": (gguf_file([("x", (2,), 77, bytes(8))]), "type 77 cannot be read"),
    "size": (gguf_file([("x", (1 << 50, 1 << 50), 0, bytes(8))]), "cannot be read"),
    "beyond": (gguf_file([("x", (100,), 0, bytes(8))]), "ends after the file"),
    "blocks": (gguf_file([("x", (33,), 8, bytes(68))]), "whole blocks of Q8_0"),
    "short blocks": (gguf_file([("x", (64,), 8, bytes(34))]), "ends after the file"),
    "twice": (gguf_file([("x", (1,), 0, bytes(4))] * 2), "appears twice"),
}


@pytest.mark.parametrize("name", BAD_GGUF)
def test_bad_gguf(name: str, tmp_path: Path) -> None:
    content, message = BAD_GGUF[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with little_memory(), pytest.raises(FormatError, match=message):
        load_gguf(path)
