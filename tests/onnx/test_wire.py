"""Large constants that are read from a file to their places: what the parser makes of the whole file."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok.errors import MorokError  # noqa: E402
from morok.onnx import load, wire  # noqa: E402


def _model(*constants: Any) -> Any:
    info = helper.make_tensor_value_info
    ports = [info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:], list(constants)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _constant(name: str, dtype: Any, *shape: int) -> Any:
    return numpy_helper.from_array(np.arange(np.prod(shape)).reshape(shape).astype(dtype), name)


def _written(folder: Path, data: bytes) -> str:
    path = folder / "m.onnx"
    path.write_bytes(data)
    return str(path)


def _field(number: int, data: bytes) -> bytes:
    return b"".join(wire._with_size(number, data))


def test_large_constants_have_their_places(tmp_path: Path) -> None:
    constants = [_constant("w", np.float32, 2), _constant("a", np.float32, 300, 21)]
    constants += [_constant("b", np.int8, 40_001), _constant("c", np.float16, 8, 1024)]
    constants += [_constant("e", np.float64, 0), _constant("d", bool, 20_000)]
    path = _written(tmp_path, _model(*constants).SerializeToString())
    found = wire.read_apart(path)
    assert found is not None and sorted(found[1]) == [1, 2, 3, 5]
    assert len(found[0]) < 500
    model = load(path)
    for proto in constants:
        array, wanted = model._program.constants[proto.name].array, numpy_helper.to_array(proto)
        assert array.dtype == wanted.dtype and np.array_equal(array, wanted)
        assert not array.flags.writeable
        assert array.nbytes < wire.LARGE or array.ctypes.data % 64 == 0
    assert model(x=np.ones(2, np.float32))["y"].tolist() == [-1, -1]


def test_constants_of_few_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE", 4)
    proto = TensorProto(name="w", data_type=TensorProto.UINT4, dims=[9], raw_data=bytes(range(5)))
    path = _written(tmp_path, _model(proto).SerializeToString())
    assert wire.read_apart(path) is not None
    found = load(path)._program.constants["w"].array
    assert found.astype(int).tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4]


def test_what_is_unusual_is_the_parsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE", 4)
    model = _model(_constant("w", np.float32, 2))
    data, tensor = model.SerializeToString(), model.graph.initializer[0].SerializeToString()

    def is_apart(data: bytes) -> bool:
        return wire.read_apart(_written(tmp_path, data)) is not None

    assert is_apart(data)
    assert is_apart(_field(7, _field(5, tensor)))
    assert not is_apart(data + _field(7, b""))  # a second graph is joined with the first
    assert not is_apart(data + _field(25, b""))  # functions
    for more in (_field(9, bytes(8)), _field(9, b""), b"\x48\x01"):  # raw data twice: the last count
        assert not is_apart(_field(7, _field(5, tensor + more)))
    assert not is_apart(_field(7, _field(5, tensor) + b"\x0b\x0c"))  # a group
    assert not is_apart(_field(7, _field(5, tensor) + b"\x00"))  # field 0
    assert not is_apart(data[: data.index(tensor) + len(tensor) - 1])
    assert not is_apart(b"\x3a" + b"\xff" * 9 + b"\x01" + data)
    os.mkfifo(tmp_path / "fifo")
    assert wire.read_apart(str(tmp_path / "fifo")) is None  # nor is it opened, which would wait


def test_broken_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in a file, reading constants apart changes neither the model nor the complaint."""

    def outcome(path: str, large: int) -> Any:
        monkeypatch.setattr(wire, "LARGE", large)
        try:
            program = load(path)._program
        except MorokError as error:
            return str(error)
        constants = [(n, h.array.dtype, h.array.tolist()) for n, h in program.constants.items()]
        return [node.text for node in program.nodes], program.inputs, repr(constants)

    chance = random.Random(1)
    data = _model(_constant("w", np.float32, 2), _constant("v", np.int64, 5)).SerializeToString()
    for _ in range(500):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path = _written(tmp_path, bytes(broken))
        assert outcome(path, 4) == outcome(path, 1 << 60), bytes(broken)
