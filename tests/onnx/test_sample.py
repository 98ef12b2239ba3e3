"""A sample of ONNX's own test suite; `make test-onnx` runs all of it."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.case import node as cases  # noqa: E402

from morok.onnx import backend, load  # noqa: E402

# Modules of node cases, one or more of each family.
MODULES = (
    "abs", "add", "argmax", "cast", "clip", "compress", "concat", "conv", "cumsum", "div", "expand", "gather",
    "gemm", "if_", "layernormalization", "logsoftmax", "loop", "matmul", "maxpool", "mod", "nonzero", "pad",
    "reducesum", "reshape", "scan", "sequenceinsert", "shape", "slice", "softmax", "split", "topk", "where",
)  # fmt: skip


def _node_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes infinities on its way
        for name in MODULES:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")  # whose classes enter their cases
    wanted = {name.rstrip("_") for name in MODULES}
    ops = {case.name: {n.op_type.lower() for n in case.model.graph.node} for case in cases._NodeTestCases}
    return [c for c in cases._NodeTestCases if ops[c.name] & wanted and "FLOAT" not in c.name][::4]


@pytest.mark.parametrize("case", _node_cases(), ids=lambda case: case.name)
def test_node(case: Any) -> None:
    run = backend.prepare(case.model)
    for inputs, expected in case.data_sets:
        arrays = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in inputs]
        found = run.run(arrays)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            _compare(a, b, case)


def _compare(a: Any, b: Any, case: Any) -> None:
    if isinstance(b, onnx.TensorProto):
        b = numpy_helper.to_array(b)
    if isinstance(b, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            _compare(x, y, case)
    else:
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=case.rtol, atol=case.atol)


_CONVERTED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-converted"


@pytest.mark.parametrize(
    "name", ["test_Conv2d_groups", "test_PReLU_2d_multiparam", "test_Linear", "test_Softplus"]
)
def test_converted(name: str) -> None:
    folder = _CONVERTED / name
    model = load(folder / "model.onnx")
    data = folder / "test_data_set_0"

    def array(file: str) -> Any:
        proto = onnx.TensorProto()
        proto.ParseFromString((data / file).read_bytes())
        return numpy_helper.to_array(proto)

    (found,) = model(array("input_0.pb")).values()
    np.testing.assert_allclose(found, array("output_0.pb"), rtol=1e-3, atol=1e-6)
