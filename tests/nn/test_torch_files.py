"""PyTorch's files of weights: read without running what is in them; and all kinds of files, damaged."""

import io
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import MorokError, Tensor
from morok.errors import FormatError
from morok.nn.checkpoint import load_checkpoint
from morok.nn.safetensors import save_safetensors
from morok.nn.state import load
from tests.nn.test_state import gguf_file, little_memory

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
