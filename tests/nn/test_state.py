"""State on disk: what is written comes back; what is wrong is refused, with nothing executed."""

import io
import json
import os
import pickle
import struct
import sys
import tracemalloc
import types
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import MorokError, Tensor, nn
from morok.dtype import ALL_SCALARS
from morok.errors import FormatError, ShapeError
from morok.nn.checkpoint import load_checkpoint
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


# --- PyTorch


class Storage:
    def __init__(self, kind: str, key: str, count: int) -> None:
        self.kind, self.key, self.count = kind, key, count


class Rebuilt:
    """Pickles as a call of a function of torch."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


@pytest.fixture
def torch_modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Names that a pickle can refer to, for writing only."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "LongStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter"):

        def function(*_: Any) -> None: ...

        function.__module__, function.__qualname__, function.__name__ = "torch._utils", name, name
        setattr(utils, name, function)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return types.SimpleNamespace(torch=torch, utils=utils)


def torch_file(
    content: Any,
    storages: dict[str, bytes],
    torch: Any = None,
    compress: bool = False,
    raw: bytes | None = None,
) -> bytes:
    out = io.BytesIO()

    class Writer(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, Storage):
                return ("storage", getattr(torch, obj.kind), obj.key, "cpu", obj.count)
            return None

    if raw is None:
        Writer(out, 2).dump(content)
        raw = out.getvalue()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as zipped:
        zipped.writestr("model/data.pkl", raw)
        zipped.writestr("model/byteorder", "little")
        for key, data in storages.items():
            zipped.writestr(f"model/data/{key}", data)
    return archive.getvalue()


def test_torch_checkpoint(tmp_path: Path, torch_modules: Any) -> None:
    x = np.arange(12, dtype=np.float32)
    utils = torch_modules.utils

    def tensor(*args: Any) -> Rebuilt:
        return Rebuilt(
            utils._rebuild_tensor_v2, Storage("FloatStorage", "0", 12), *args, False, OrderedDict()
        )

    state = OrderedDict(
        plain=tensor(0, (3, 4), (4, 1)),
        turned=tensor(0, (4, 3), (1, 4)),
        part=tensor(5, (2, 2), (4, 1)),
        scalar=tensor(7, (), ()),
        none=tensor(0, (0, 3), (3, 1)),
        weight=Rebuilt(utils._rebuild_parameter, tensor(0, (12,), (1,)), True, OrderedDict()),
        counts=Rebuilt(
            utils._rebuild_tensor_v2, Storage("LongStorage", "1", 2), 0, (2,), (1,), False, OrderedDict()
        ),
    )
    path = tmp_path / "model.pth"
    content = {"model": state, "epoch": 3, "lr": [0.1, None, True]}
    path.write_bytes(
        torch_file(content, {"0": x.tobytes(), "1": np.array([5, 6]).tobytes()}, torch_modules.torch)
    )
    found = load(path)
    assert found["epoch"] == 3 and found["lr"] == [0.1, None, True]
    model, square = found["model"], x.reshape(3, 4)
    for name, wanted in {
        "plain": square, "turned": square.T, "part": square[1:, 1:3], "scalar": x[7],
        "none": np.zeros((0, 3)), "weight": x, "counts": np.array([5, 6]),
    }.items():  # fmt: skip
        np.testing.assert_array_equal(model[name].numpy(), wanted)
    assert model["counts"].dtype.name == "int64"


def called(module: str, name: str, *args: str) -> bytes:
    """A pickle that calls a function."""
    values = b"".join(b"X" + struct.pack("<I", len(a)) + a.encode() for a in args)
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"(" + values + b"tR."


EVIL = [
    ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("builtins", "exec"),
    ("__builtin__", "eval"),
    ("subprocess", "Popen"), ("runpy", "run_path"), ("torch", "load"), ("torch._utils", "os.system"),
    ("builtins", "getattr"), ("importlib", "import_module"), ("pickle", "loads"), ("operator", "attrgetter"),
    ("collections", "OrderedDict.fromkeys"), ("numpy.core.multiarray", "_reconstruct"),
    ("morok.nn.checkpoint", "os"),
]  # fmt: skip


@pytest.mark.parametrize("module, name", EVIL)
def test_evil_pickles_are_refused(module: str, name: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    path = tmp_path / "evil.pt"
    path.write_bytes(torch_file(None, {}, raw=called(module, name, f"touch {witness}")))
    with pytest.raises(FormatError, match=f"it asks for {module}.{name}"):
        load_checkpoint(path)
    assert not witness.exists()


@pytest.mark.parametrize("state", [b"}X\x01\x00\x00\x00aK\x01s", b"N}X\x08\x00\x00\x00functionNs\x86"])
@pytest.mark.parametrize("name", [b"torch\nSize\n", b"torch\nFloatStorage\n", b"collections\nOrderedDict\n"])
def test_tools_cannot_be_changed(state: bytes, name: bytes, tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(torch_file(None, {}, raw=b"\x80\x02c" + name + state + b"b."))
    with pytest.raises(FormatError, match="sets the state of something that is no table"):
        load_checkpoint(path)


# BUILD: `X{"nbytes": 1 << 40}b` behind a storage, a tensor, a table
STATE = b"}X\x06\x00\x00\x00nbytes\x8a\x06\x00\x00\x00\x00\x00\x01sb"
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"%sK\x00(K\x02t(K\x01t\x89}tR%s."


@pytest.mark.parametrize("states", [(STATE, b""), (b"", STATE)], ids=["storage", "tensor"])
def test_the_state_of_storages_and_tensors_cannot_be_set(states: tuple[bytes, bytes], tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    data = {"0": np.ones(2, np.float32).tobytes()}
    path.write_bytes(torch_file(None, data, raw=b"\x80\x02" + TENSOR % (b"", b"")))
    assert load_checkpoint(path).tolist() == [1.0, 1.0]
    path.write_bytes(torch_file(None, data, raw=b"\x80\x02" + TENSOR % states))
    with pytest.raises(FormatError, match="sets the state of something that is no table"):
        load_checkpoint(path)


def test_the_state_of_a_table_is_ignored(tmp_path: Path) -> None:
    """PyTorch keeps versions of modules beside a state_dict; methods of a table are not to be replaced so."""
    path = tmp_path / "model.pt"
    raw = b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00aK\x07u}X\x05\x00\x00\x00itemsNsb."
    path.write_bytes(torch_file(None, {}, raw=raw))
    found = load_checkpoint(path)
    assert list(found.items()) == [("a", 7)] and vars(found) == {}


@pytest.mark.parametrize(
    "code", [b"(ios\nsystem\n.", b"(cos\nsystem\no.", b"cos\nsystem\n)\x81.", b"\x82\x01."]
)
def test_objects_are_made_in_no_other_way(code: bytes, tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(torch_file(None, {}, raw=b"\x80\x02" + code))
    with pytest.raises(FormatError, match="has the instruction"):
        load_checkpoint(path)


@pytest.mark.parametrize("memo", [b"r\xff\xff\xff\x00", b"p16777215\n", b"p-7\n"])
def test_a_pickle_cannot_ask_for_a_huge_memo(memo: bytes, tmp_path: Path) -> None:
    """The unpickler makes room for as many objects as the largest number says: gigabytes for a few bytes."""
    path = tmp_path / "evil.pt"
    path.write_bytes(torch_file(None, {}, raw=b"\x80\x02}" + memo + b"."))
    with little_memory(), pytest.raises(FormatError, match="remembers an object as number"):
        load_checkpoint(path)


def test_bad_torch_files(tmp_path: Path, torch_modules: Any) -> None:
    path = tmp_path / "bad.pt"
    rebuild, torch = torch_modules.utils._rebuild_tensor_v2, torch_modules.torch

    def one(count: int, offset: Any, sizes: Any, strides: Any, key: str = "0") -> bytes:
        value = Rebuilt(
            rebuild, Storage("FloatStorage", key, count), offset, sizes, strides, False, OrderedDict()
        )
        return torch_file({"x": value}, {"0": bytes(16)}, torch)

    cases = [
        (b"", "no zip archive"),
        (b"\x80\x02}q\x00.", "no zip archive"),
        (one(4, 0, (4,), (1,))[:-30], "damaged|no zip"),
        (torch_file({}, {}, raw=b"\x80\x02}q"), "pickle is damaged"),
        (torch_file({}, {}, raw=b""), "pickle is damaged"),
        (torch_file({"a": "b" * 10_000}, {}, compress=True), "its pickle claims"),
        (one(1 << 60, 0, (4,), (1,)), "too few for"),
        (one(4, 0, (4,), (1,), key="7"), "storage 7 is missing"),
        (one(4, 0, (1 << 40,), (0,)), "does not fit in a storage"),
        (one(4, 0, (8,), (0,)), "does not fit in a storage"),
        (one(4, 1, (4,), (1,)), "does not fit in a storage"),
        (one(4, 0, (2, 2), (3, 2)), "does not fit in a storage"),
        (one(4, -1, (2,), (1,)), "make no sense"),
        (one(4, 0, (2,), (1, 1)), "make no sense"),
        (one(4, 0, ("2",), (1,)), "make no sense"),
        (one(4, 0, [2], (1,)), "make no sense"),
        (torch_file({"x": Rebuilt(rebuild, "a", 0, (1,), (1,))}, {}, torch), "make no sense"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        with little_memory(), pytest.raises(FormatError, match=message):
            load_checkpoint(path)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("../../evil/data.pkl", b"")
        zipped.writestr("/etc/data.pkl", b"")
    path.write_bytes(archive.getvalue())
    with pytest.raises(FormatError, match=r"no data\.pkl"):
        load_checkpoint(path)


# --- all of them, damaged at random


def test_random_damage_is_an_error_or_harmless(tmp_path: Path, torch_modules: Any) -> None:
    x = Tensor(np.arange(8, dtype=np.float32))
    save_safetensors({"a": x, "b": x + 1}, tmp_path / "x.safetensors")
    (tmp_path / "x.gguf").write_bytes(gguf_file([("w", (64,), 8, bytes(68)), ("v", (8,), 0, bytes(32))]))
    value = Rebuilt(
        torch_modules.utils._rebuild_tensor_v2, Storage("FloatStorage", "0", 4), 0, (2, 2), (2, 1), False, {}
    )
    (tmp_path / "x.pt").write_bytes(torch_file({"x": value}, {"0": bytes(16)}, torch_modules.torch))
    rng = np.random.default_rng(0)
    for name in ("x.safetensors", "x.gguf", "x.pt"):
        good = (tmp_path / name).read_bytes()
        path = tmp_path / f"damaged-{name}"
        for _ in range(150):
            content = bytearray(good[: rng.integers(len(good))] if rng.random() < 0.3 else good)
            for _ in range(int(rng.integers(1, 5))):
                if content:
                    content[rng.integers(len(content))] = rng.integers(256)
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            try:
                load(path)
            except MorokError as error:
                assert "\n" not in str(error)
