"""Codes of constants are numbers before a model runs, and no kernel is compiled for them."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok import profile  # noqa: E402
from morok.onnx import load  # noqa: E402


def _model(nodes: list[Any], constants: dict[str, Any]) -> Any:
    """A model that adds `w`, which the nodes make of constants, to its input."""
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Add", ["x", "w"], ["y"])], "g", [port], [result], held
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))


def _first_call(model: Any, x: Any) -> tuple[Any, list[str]]:
    with profile() as events:
        (found,) = model(x).values()
    return found, [event.name for event in events.events]


X = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize(("axis", "count"), [(0, 4), (1, 6), (-1, 6), (None, 1)])
@pytest.mark.parametrize("zeroed", [False, True])
def test_weights_are_numbers(kind: Any, axis: int | None, count: int, zeroed: bool) -> None:
    rng, limits = np.random.default_rng(count), np.iinfo(kind)
    codes = rng.integers(limits.min, limits.max + 1, (4, 6)).astype(kind)
    scale = rng.random(count).astype(np.float32)
    zero = rng.integers(limits.min, limits.max + 1, count).astype(kind)
    given: dict[str, Any] = {"q": codes, "s": scale, **({"z": zero} if zeroed else {})}
    attributes = {} if axis is None else {"axis": axis}
    node = helper.make_node("DequantizeLinear", list(given), ["w"], **attributes)
    found, kernels = _first_call(_model([node], given), X)
    shape = (1, 1) if axis is None else (4, 1) if axis == 0 else (1, 6)
    moved = codes.astype(np.int64) - (zero.astype(np.int64).reshape(shape) if zeroed else 0)
    np.testing.assert_array_equal(found, X + moved.astype(np.float32) * scale.reshape(shape))
    assert len(kernels) == 1


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_constants_that_are_coded_and_decoded(kind: Any) -> None:
    """Rounded to even, moved and cut to the type, as ONNX says."""
    numbers = np.array([0.5, 1.5, -2.5, 1e6, -1e6, 0.24] * 4, np.float32).reshape(4, 6)
    zero = np.array(3, kind)
    nodes = [
        helper.make_node("Identity", ["n"], ["same"]),
        helper.make_node("QuantizeLinear", ["same", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
    ]
    given = {"n": numbers, "s": np.array(0.5, np.float32), "z": zero}
    found, kernels = _first_call(_model(nodes, given), X)
    limits = np.iinfo(kind)
    codes = np.clip(np.rint(numbers.astype(np.float64) / 0.5) + 3, limits.min, limits.max)
    np.testing.assert_array_equal(found, X + ((codes - 3) * 0.5).astype(np.float32))
    assert len(kernels) == 1


def test_what_is_no_number_is_left_to_the_operator() -> None:
    numbers = np.array([np.inf, -np.inf, 1.0, 2.0, 3.0, 4.0] * 4, np.float32).reshape(4, 6)
    nodes = [
        helper.make_node("QuantizeLinear", ["n", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
    ]
    given = {"n": numbers, "s": np.array(1.0, np.float32), "z": np.array(0, np.int8)}
    found, _ = _first_call(_model(nodes, given), X)
    np.testing.assert_array_equal(found, X + np.clip(numbers, -128, 127))
