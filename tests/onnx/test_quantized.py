"""Integer products: exact to the last unit whatever their size, and the law by which floats take them."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok import profile  # noqa: E402
from morok.ir.digest import hexdigest  # noqa: E402
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


def _between(op: str, x: Any, w: Any, axis: int, bias: bool, **attributes: Any) -> tuple[Any, Any]:
    """A product between DequantizeLinear and QuantizeLinear, and its factors: (s t, b)."""
    rng = np.random.default_rng(1)
    count = w.shape[axis]
    scales = rng.uniform(0.001, 0.01, count).astype(np.float32)
    held = {
        "sx": np.float32(0.03), "zx": np.uint8(7), "w": w, "sw": scales, "zw": np.zeros(count, np.int8),
        "sy": np.float32(0.7), "zy": np.uint8(90),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=axis),
    ]
    names = ["xf", "wf"]
    b = rng.integers(-3000, 3000, count).astype(np.int32)
    if bias:
        held |= {"b": b, "sb": np.float32(0.03) * scales, "zb": np.zeros(count, np.int32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bf"], axis=0))
        names.append("bf")
    nodes.append(helper.make_node(op, names, ["yf"], "product", **attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["yf", "sy", "zy"], ["y"]))
    port = helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)
    result = helper.make_tensor_value_info("y", TensorProto.UINT8, None)
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
    graph = helper.make_graph(nodes, "g", [port], [result], constants)
    sets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=8)
    return model, (np.float64(np.float32(0.03)) * scales.astype(np.float64), b if bias else b * 0)


def _rounded(sums: Any, factor: Any) -> Any:
    return np.clip(np.rint(sums * factor / np.float64(np.float32(0.7))) + 90, 0, 255)


@pytest.mark.parametrize("op", ["Conv", "MatMul", "Gemm"])
def test_products_between_quantisers_are_products_of_integers(op: str) -> None:
    rng = np.random.default_rng(2)
    bias = op != "MatMul"
    if op == "Conv":
        x, w = rng.integers(0, 256, (1, 3, 6, 6)), rng.integers(-127, 128, (4, 3, 3, 3))
    else:
        x, w = rng.integers(0, 256, (3, 20)), rng.integers(-127, 128, (20, 6) if op == "MatMul" else (6, 20))
    x, w = x.astype(np.uint8), w.astype(np.int8)
    extra = {"Conv": {"strides": [2, 2]}, "Gemm": {"transB": 1}}.get(op, {})
    proto, (factor, b) = _between(op, x, w, 1 if op == "MatMul" else 0, bias, **extra)
    whole = x.astype(np.int64) - 7
    if op == "Conv":
        windows = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (2, 3))[:, :, ::2, ::2]
        sums = np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64)) + b.reshape(1, -1, 1, 1)
        wanted = _rounded(sums, factor.reshape(1, -1, 1, 1))
    else:
        sums = whole @ (w if op == "MatMul" else w.T).astype(np.int64) + b
        wanted = _rounded(sums, factor)
    model = load(proto)
    (found,) = model(x).values()
    np.testing.assert_array_equal(found, wanted)
    used = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul", "Gemm": "QGemm"}[op]
    assert [node.op for node in model._folded.nodes] == [used]


def test_a_bias_in_another_scale_stays_as_it_is() -> None:
    x, w = np.ones((1, 4), np.uint8), np.ones((4, 2), np.int8)
    proto, _ = _between("Gemm", x, w, 1, True)
    (scale,) = (t for t in proto.graph.initializer if t.name == "sb")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), "sb"))
    model = load(proto)
    model(x)
    assert "Gemm" in [node.op for node in model._folded.nodes]


def test_layers_that_differ_in_scales_alone_share_their_kernels() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 16)).astype(np.float32)
    w = rng.integers(-127, 128, (16, 8)).astype(np.int8)
    kernels = []
    for scale, zero in ((0.02, 117), (0.05, 131)):
        held = {
            "w": w,
            "s": np.float32(scale),
            "z": np.uint8(zero),
            "t": np.float32(0.01),
            "none": np.int8(0),
        }
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["real"]),
            helper.make_node("DequantizeLinear", ["w", "t", "none"], ["weights"]),
            helper.make_node("MatMul", ["real", "weights"], ["p"]),
            helper.make_node("QuantizeLinear", ["p", "s", "z"], ["r"]),
            helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ]
        port, result = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (4, 16)), ("y", None))
        )
        constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
        graph = helper.make_graph(nodes, "g", [port], [result], constants)
        model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
        q = np.clip(np.rint(x / held["s"]) + zero, 0, 255)
        sums = ((q - zero) @ w.astype(np.float64)).astype(np.float32) * (held["s"] * held["t"])
        wanted = (np.clip(np.rint(sums / held["s"]) + zero, 0, 255) - zero).astype(np.float32) * held["s"]
        with profile() as watched:
            np.testing.assert_allclose(model(x)["y"], wanted, rtol=1e-6, atol=scale * 1.01)
        kernels.append({hexdigest(event.kernel) for event in watched.events})
    assert kernels[0] == kernels[1]


_LIMITS = {np.int8: (-128, 127), np.uint8: (0, 255), np.int16: (-32768, 32767), np.uint16: (0, 65535)}


@pytest.mark.parametrize("kind", _LIMITS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("at", ["low", "middle", "high"])
def test_codes_are_rounded_to_even_and_cut(kind: Any, at: str) -> None:
    low, high = _LIMITS[kind]
    zero = {"low": low, "middle": low + (high - low) // 3, "high": high}[at]
    halves = np.arange(-700, 700, dtype=np.float32) / 2
    ends = np.array([low - zero, high - zero], np.float32)
    near = [
        np.nextafter(e + d, s)
        for e in ends
        for d in (-0.5, 0, 0.5)
        for s in (np.float32(-1e9), e, np.float32(1e9))
    ]
    far = [1e30, -1e30, 3e9, -3e9, 2.0**22, -(2.0**22), 2.0**23 + 1, np.inf, -np.inf, 0.0, -0.0]
    x = np.concatenate([halves, ends, np.array(near + far, np.float32)]).astype(np.float32)
    held = {"s": np.float32(0.25), "z": kind(zero)}
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    with np.errstate(over="ignore"):
        (found,) = model(x * np.float32(0.25)).values()
    np.testing.assert_array_equal(found, np.clip(np.rint(x.astype(np.float64)) + zero, low, high))


@pytest.mark.parametrize("largest", [3000, 1 << 24])
def test_depthwise_convolutions_of_bytes(largest: int) -> None:
    """Each channel for itself, with a border; a bias may be larger than what float32 counts."""
    rng = np.random.default_rng(largest)
    x, w = rng.integers(0, 256, (1, 6, 9, 30)), rng.integers(-127, 128, (6, 1, 3, 3))
    b = rng.integers(-largest, largest, 6) | 1
    scale = np.float32(2.0**-14 if largest > 5000 else 2.0**-7)
    held = {
        "sx": np.float32(1), "zx": np.uint8(100), "w": w.astype(np.int8), "sw": scale, "zw": np.int8(0),
        "sy": np.float32(1), "zy": np.uint8(90), "b": b.astype(np.int32),
    }  # fmt: skip
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", names, ["y"], group=6, pads=[1, 1, 1, 1])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    (found,) = model(x.astype(np.uint8)).values()
    padded = np.pad(x - 100, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    sums = np.einsum("nchwij,cij->nchw", windows, w[:, 0]) + b.reshape(1, -1, 1, 1)
    exact = sums.astype(np.float32) if largest > 5000 else sums
    np.testing.assert_array_equal(found, np.clip(np.rint(exact * np.float64(scale)) + 90, 0, 255))
