"""Files that are broken, or made to do harm: one sentence, and nothing is read elsewhere."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok.errors import FormatError, MorokError  # noqa: E402
from morok.onnx import load  # noqa: E402
from tests.onnx.fuzz import attempt, files  # noqa: E402


def _model(*constants: Any, nodes: Any = None, functions: Any = ()) -> Any:
    nodes = nodes or [helper.make_node("Add", ["x", "w"], ["y"], "add")]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [2])], [info("y", TensorProto.FLOAT, [2])], list(constants)
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def _outside(location: str, **entries: str) -> Any:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        proto.external_data.add(key=key, value=value)
    return proto


def _written(folder: Path, model: Any) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _refused(folder: Path, model: Any, *words: str) -> None:
    with pytest.raises(FormatError) as caught:
        load(_written(folder, model))
    text = str(caught.value)
    assert "\n" not in text and all(word in text for word in words), text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(np.arange(2, dtype=np.float32).tobytes())
    inside = tmp_path / "models"
    inside.mkdir()
    (inside / "w.bin").write_bytes(np.arange(2, dtype=np.float32).tobytes())
    return inside


def test_data_in_the_folder_are_mapped(folder: Path) -> None:
    model = load(_written(folder, _model(_outside("w.bin"))))
    assert model(x=np.ones(2, np.float32))["y"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "", ".", "a\0b", "..\\secret", "missing"]
)
def test_paths_lead_nowhere_else(folder: Path, location: str) -> None:
    _refused(folder, _model(_outside(location)), "'w'")


def test_an_absolute_path(folder: Path) -> None:
    _refused(folder, _model(_outside(str(folder.parent / "secret"))), "plain files in the model's folder")


def test_links(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent / "secret")
    _refused(folder, _model(_outside("link")), "plain files")
    os.link(folder.parent / "secret", folder / "hard")
    _refused(folder, _model(_outside("hard")), "plain files")
    (folder / "sub").symlink_to(folder.parent)
    _refused(folder, _model(_outside("sub/secret")), "plain files")
    os.mkfifo(folder / "pipe")
    _refused(folder, _model(_outside("pipe")), "plain files")


def test_ranges(folder: Path) -> None:
    _refused(folder, _model(_outside("w.bin", offset="4")), "ends before")
    _refused(folder, _model(_outside("w.bin", offset="-4")), "-4")
    _refused(folder, _model(_outside("w.bin", length="4")), "needs 8")
    _refused(folder, _model(_outside("w.bin", offset="9" * 30)), "where its data begin")
    _refused(folder, _model(_outside("w.bin", __class__="x")), "unknown entry")


@pytest.mark.parametrize("dims", [[1 << 62], [1 << 31, 1 << 31], [-1], [1 << 20] * 9])
def test_sizes_that_are_not_there(folder: Path, dims: list[int]) -> None:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"1234")
    _refused(folder, _model(proto), "'w'")
    outside = _outside("w.bin")
    outside.dims[:] = dims
    _refused(folder, _model(outside), "'w'")


def test_too_few_numbers(folder: Path) -> None:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1000], float_data=[1.0])
    _refused(folder, _model(proto), "has 1 numbers, and needs 1000")


def test_sparse_constants_stay_inside(folder: Path) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    places = numpy_helper.from_array(np.array([5]), "i")
    model = _model()
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2]))
    _refused(folder, model, "outside of its shape")


def test_functions_in_a_circle(folder: Path) -> None:
    def calling(name: str, other: str) -> Any:
        node = helper.make_node(other, ["a"], ["b"], domain="own")
        return helper.make_function("own", name, ["a"], ["b"], [node], [helper.make_opsetid("own", 1)])

    node = [helper.make_node("F", ["x"], ["y"], domain="own")]
    _refused(folder, _model(nodes=node, functions=[calling("F", "G"), calling("G", "F")]), "calls itself")


def test_functions_that_explode(folder: Path) -> None:
    """Thirty functions, each of which calls the next one twice, are a thousand million nodes."""
    functions = []
    for i in range(30):
        inner = f"F{i + 1}" if i < 29 else "Relu"
        domain = "own" if i < 29 else ""
        nodes = [
            helper.make_node(inner, ["a"], ["c"], domain=domain),
            helper.make_node(inner, ["c"], ["b"], domain=domain),
        ]
        imports = [helper.make_opsetid("own", 1), helper.make_opsetid("", 18)]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], nodes, imports))
    _refused(
        folder,
        _model(nodes=[helper.make_node("F0", ["x"], ["y"], domain="own")], functions=functions),
        "nodes",
    )


@pytest.mark.parametrize("data", [b"", b"no model", b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f"])
def test_what_is_no_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="no ONNX model"):
        load(path)


def test_names(folder: Path) -> None:
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    _refused(folder, _model(nodes=twice), "made twice")
    ahead = [helper.make_node("Relu", ["z"], ["y"], "first"), helper.make_node("Neg", ["x"], ["z"])]
    with pytest.raises(MorokError, match="reads 'z', which nothing has made"):
        load(_written(folder, _model(nodes=ahead)))(x=np.ones(2, np.float32))


@pytest.mark.parametrize("shape", [[1 << 40], [1 << 20, 1 << 20, 1 << 20]])
def test_memory_that_a_node_asks_for(folder: Path, shape: list[int]) -> None:
    """A few bytes of a file may ask for more than there is: that is an error, not the end of the process."""
    given = numpy_helper.from_array(np.array(shape), "s")
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["big"]),
        helper.make_node("Add", ["x", "big"], ["y"]),
    ]
    with pytest.raises((MorokError, MemoryError)):
        load(_written(folder, _model(given, nodes=nodes)))(x=np.ones(2, np.float32))


# Names that were no text any more were TypeErrors: these seeds are among those that found it.
@pytest.mark.parametrize("seed", [*range(60), 2421, 2516, 2651, 2683, 2697, 2707, 2713, 2956, 3132])
def test_changed_bytes_are_refused_in_words_or_run(seed: int) -> None:
    rng = random.Random(seed)
    assert attempt(rng.choice(files()), rng) in ("ran", "refused")
