"""Lines are those of the program that is recorded, whoever has computed the same and still holds it."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, caches, knobs
from morok.schedule import schedule as schedules
from tests.viewer.recorded import data_of, record

SCRIPT = """import numpy as np
from morok import Tensor
x = Tensor(np.ones((33, 65), np.float32))
z = x * 3

y = z.softmax(-1)
y.realize()
"""


def _equal_elsewhere() -> Any:
    """What the script computes, compiled for these lines, and a plan that keeps its kernels."""
    x = Tensor(np.ones((33, 65), np.float32))
    plan = (x * 3).softmax(-1).prepare()
    plan.run()
    return plan


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(schedules, "_WORTH_KEEPING", -1.0)
    with knobs.override(DEVICE="CPU", CACHE=True, CACHE_PLANS=1, CACHE_DIR=str(tmp_path / "cache")):
        caches.clear_all()
        yield


def _check(page: Path) -> None:
    index, chunks = data_of(page)
    (number,) = [n for n, file in enumerate(index["files"]) if file["name"] == "script.py"]
    assert {tuple(row["at"]) for row in index["rows"]} == {(number, 6)}
    (kernel,) = index["kernels"]
    assert kernel["at"] == [number, 6]
    lines = {(file, line) for file, line, _ in kernel["lines"]}
    assert {file for file, _ in lines} == {number} and (number, 6) in lines
    for chunk in chunks:
        assert {file for file, _ in chunk["graphs"]["places"]} == {number}


def test_of_another_programs_kernels(tmp_path: Path, own_cache: None) -> None:
    plan = _equal_elsewhere()
    _check(record(tmp_path, SCRIPT))
    plan.run()


def test_of_kernels_that_came_from_the_disk_without_lines(tmp_path: Path, own_cache: None) -> None:
    plan = _equal_elsewhere()
    del plan
    caches.clear_all()
    gc.collect()
    plan = _equal_elsewhere()
    assert plan.schedule.items[0].ast.origin.code is None
    _check(record(tmp_path, SCRIPT))
    plan.run()


WEIGHTS = """import numpy as np
from morok import Tensor
x = Tensor(np.ones((8, 16), np.float32)).realize()
w = Tensor(np.ones((16, 16), np.float32)).realize()
w.assign(w * 2 + 1).realize()
v = w.reshape(2, 8, 16).exp().max(0)
y = v.reshape(2, 4, 16)
z = (x.reshape(2, 4, 16) - y).exp()
z.realize()
"""


def test_a_kernel_has_the_lines_that_it_computes(tmp_path: Path) -> None:
    """Not those where its weights were made or written, nor that which asks for it."""
    index, chunks = data_of(record(tmp_path, WEIGHTS))
    lines = {}
    for kernel in index["kernels"]:
        lines[kernel["at"][1]] = {line: count > 0 for _, line, count in kernel["lines"]}
        list_ = chunks[kernel["chunk"]]["list"]
        places = chunks[kernel["chunk"]]["graphs"]["places"]
        computed = {line for line, has_instructions in lines[kernel["at"][1]].items() if has_instructions}
        assert {places[p][1] for p in list_["places"] if p >= 0} == computed
    assert lines == {5: {5: True}, 8: {6: True, 7: False, 8: True}}


MODEL = """import numpy as np
from onnx import TensorProto, helper
from morok.onnx import load
nodes = [
    helper.make_node("MatMul", ["x", "x"], ["h"], name="body/product"),
    helper.make_node("Softmax", ["h"], ["y"], name="head/softmax"),
]
ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in "xy"]
model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=8,
                          opset_imports=[helper.make_opsetid("", 17)])
model = load(model.SerializeToString())
model(np.ones((8, 8), np.float32))
"""


def test_nodes_of_a_model_are_its_lines(tmp_path: Path) -> None:
    """Also the first one, whose number is 0."""
    pytest.importorskip("onnx")
    index, _ = data_of(record(tmp_path, MODEL))
    (number,) = {row["at"][0] for row in index["rows"]}
    file = index["files"][number]
    assert file["lines"] == ["h = MatMul(x, x)  # body/product", "y = Softmax(h)  # head/softmax"]
    lines = {(file, line) for kernel in index["kernels"] for file, line, _ in kernel["lines"]}
    assert lines == {(number, 1), (number, 2)}
    assert {tuple(row["at"]) for row in index["rows"]} <= lines


LAYER = """import numpy as np
from morok import Tensor, nn
x = Tensor(np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8))
h = nn.Linear(8, 32)(x)
y = h - h.exp().sum(0)
z = (y.sum(1).exp() + y.max(1)).sum().item()
"""


def test_what_is_computed_of_weights_that_are_made_in_the_same_graph_is_kept_for_a_reason(
    tmp_path: Path,
) -> None:
    index, _ = data_of(record(tmp_path, LAYER))
    assert len(index["kernels"]) > 3
    assert [kernel["name"] for kernel in index["kernels"] if not kernel["kept"]["reasons"]] == []
