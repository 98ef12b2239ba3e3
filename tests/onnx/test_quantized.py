"""Integer products: exact to the last unit, whatever their size, and the law by which floats may take them."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok.onnx import load  # noqa: E402
from morok.onnx.ops.integers import EXACT, Whole, pieces  # noqa: E402
from morok.tensor.tensor import Tensor  # noqa: E402


def _model(op: str, x: Any, constants: dict[str, Any], inputs: list[str], **attributes: Any) -> Any:
    kinds = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
    port = helper.make_tensor_value_info("x", kinds[x.dtype.name], x.shape)
    node = helper.make_node(op, inputs, ["y"], "product", **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph([node], "g", [port], [result], held)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))


@pytest.mark.parametrize("steps", [64, 2000])
@pytest.mark.parametrize("extreme", [False, True])
def test_products_are_exact(steps: int, extreme: bool) -> None:
    """2,000 products of 255 and 127 are 65 million: four times what float32 counts exactly."""
    rng = np.random.default_rng(steps)
    x = rng.integers(0, 256, (3, steps)).astype(np.uint8)
    w = rng.integers(-127, 128, (steps, 5)).astype(np.int8)
    if extreme:
        x[0], w[:, 0], w[:, 1] = 255, 127, -127
        x[1, ::2] = 254  # odd sums
    zero = np.array(3, np.uint8)
    model = _model("MatMulInteger", x, {"w": w, "z": zero}, ["x", "w", "z"])
    wanted = (x.astype(np.int64) - 3) @ w.astype(np.int64)
    (found,) = model(x).values()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, wanted)


def test_convolutions_are_exact() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(200, 256, (1, 80, 5, 5)).astype(np.uint8)
    w = rng.integers(100, 128, (4, 80, 3, 3)).astype(np.int8)
    model = _model("ConvInteger", x, {"w": w}, ["x", "w"], pads=[1, 1, 1, 1])
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    wanted = np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64))
    assert wanted.max() > EXACT
    (found,) = model(x).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("left", "right"), [(255, 127), (255, 255), (127, 127), (1, 1)])
def test_no_piece_can_leave_what_float32_counts(left: int, right: int) -> None:
    for count in (1, 257, 258, 259, 518, 5000):
        found = pieces(count, Whole(Tensor.zeros(1), left), Whole(Tensor.zeros(1), right), (0,))
        assert [i for low, high in found for i in range(low, high)] == list(range(count))
        assert all((high - low) * left * right < EXACT for low, high in found)


def test_scales_come_out_of_a_sum_of_products() -> None:
    """Σ (x - a) s · (w - b) t = s t Σ (x - a)(w - b), also with a bias: Z3 knows no exception."""
    z3 = pytest.importorskip("z3")
    s, t, a, b, c = z3.Reals("s t a b c")
    x, w = z3.Reals("x1 x2 x3"), z3.Reals("w1 w2 w3")
    apart = sum((p - a) * s * ((q - b) * t) for p, q in zip(x, w, strict=True)) + c * (s * t)
    together = s * t * (sum((p - a) * (q - b) for p, q in zip(x, w, strict=True)) + c)
    solver = z3.Solver()
    solver.add(apart != together)
    assert solver.check() == z3.unsat
