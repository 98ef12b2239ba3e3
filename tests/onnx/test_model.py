"""Loading, calling, sizes that change, and errors that name the node."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from morok import Variable, profile  # noqa: E402
from morok.cli.main import main  # noqa: E402
from morok.errors import ArgumentError, DTypeError, MorokError, ShapeError, UnsupportedModel  # noqa: E402
from morok.onnx import load  # noqa: E402
from morok.onnx.ops.shape import resolved_shape  # noqa: E402
from morok.onnx.windows import _last_place, window_pads  # noqa: E402
from morok.tensor.sizes import concrete  # noqa: E402

INFO = helper.make_tensor_value_info


def _model(nodes: Any, inputs: Any, outputs: Any, constants: Any = (), opset: int = 18) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _linear() -> Any:
    w = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Shape", ["h"], ["s"], "shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], "first"),
        helper.make_node("Concat", ["n", "minus"], ["flat"], "sizes", axis=0),
        helper.make_node("Reshape", ["h", "flat"], ["y"], "reshape"),
    ]
    constants = [
        w,
        numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(np.array([-1]), "minus"),
    ]
    inputs, outputs = (
        [INFO("x", TensorProto.FLOAT, ["batch", 3])],
        [INFO("y", TensorProto.FLOAT, ["batch", None])],
    )
    return _model(nodes, inputs, outputs, constants)


def test_all_ways_to_call() -> None:
    m = load(_linear())
    x = np.ones((2, 3), np.float32)
    expected = (x @ np.arange(6).reshape(3, 2)).tolist()
    assert m(x)["y"].tolist() == m(x=x)["y"].tolist() == m({"x": x})["y"].tolist() == expected
    assert m.run(["y"], {"x": x})[0].tolist() == m.run(None, {"x": x})[0].tolist() == expected
    assert [str(p) for p in m.inputs] == ["x: float[batch, 3]"] and m.missing == []


def test_sizes_that_change_become_symbolic() -> None:
    m = load(_linear())
    counts = []
    for n in (4, 5, 7, 9, 30, 4):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        np.testing.assert_allclose(m(x)["y"], x @ np.arange(6).reshape(3, 2), rtol=1e-5, atol=1e-5)
        counts.append(m.compiled)
    assert counts == [1, 2, 2, 2, 2, 2]


def test_wrong_feeds() -> None:
    m = load(_linear(), dims={"batch": 2})
    with pytest.raises(ShapeError, match="batch is 2 here"):
        m(np.ones((3, 3), np.float32))
    with pytest.raises(ShapeError, match="axis 1 must be 3"):
        m(np.ones((2, 4), np.float32))
    with pytest.raises(DTypeError, match="is of float, and double was given"):
        m(np.ones((2, 3)))
    with pytest.raises(ArgumentError, match="'x' is missing"):
        m()
    with pytest.raises(ArgumentError, match="no input 'z'"):
        m({"x": np.ones((2, 3), np.float32), "z": 1})
    with pytest.raises(ArgumentError, match="no output 'z'"):
        m.run(["z"], {"x": np.ones((2, 3), np.float32)})


def test_errors_name_the_node() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], "the_culprit")]
    bad = _model(
        nodes, [INFO("x", 1, [6])], [INFO("y", 1, None)], [numpy_helper.from_array(np.array([4, -1]), "s")]
    )
    with pytest.raises(ShapeError, match="Reshape 'the_culprit'"):
        load(bad)(np.ones(6, np.float32))


def test_an_attribute_that_is_not_known_is_an_error() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "n", slope=2.0)]
    with pytest.raises(UnsupportedModel, match="attribute slope"):
        load(_model(nodes, [INFO("x", 1, [2])], [INFO("y", 1, [2])]))(np.ones(2, np.float32))


def test_what_is_missing_is_told_before() -> None:
    nodes = [helper.make_node("Nothing", ["x"], ["y"], "n", domain="strange")]
    graph = helper.make_graph(nodes, "g", [INFO("x", 1, [2])], [INFO("y", 1, [2])])
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("strange", 1)]
    )
    m = load(proto)
    assert m.missing == ["strange.Nothing (version 1), node 'n'"]


def test_sizes_that_data_decide_compile_once_per_structure() -> None:
    """What is not zero is gathered and summed: its number changes with the data."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Transpose", ["where"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["values"]),
        helper.make_node("Mul", ["values", "values"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["y"], keepdims=0),
    ]
    m = load(_model(nodes, [INFO("x", 1, [12])], [INFO("y", 1, [])]))
    counts = []
    for n in (3, 5, 7, 9, 11):
        x = np.zeros(12, np.float32)
        x[:n] = np.arange(1, n + 1)
        assert m(x)["y"] == (x * x).sum()
        counts.append(m.compiled)
    assert counts[2:] == [counts[2]] * 3, counts


def test_windows_over_sizes_that_change_compile_once() -> None:
    """Steps, edges, rounded-up pools and edges that follow from sizes, one after the other."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(s).astype(np.float32) for s in ((8, 2, 3, 3), (8, 1, 5, 5)))
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "second"], ["b"], group=8, auto_pad="SAME_UPPER", strides=[1, 2]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], strides=[1, 2], pads=[0, 0, 1, 1]),
    ]
    constants = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    proto = _model(nodes, [INFO("x", 1, [1, 2, "h", "w"])], [INFO("y", 1, None)], constants, 13)
    m, judge = load(proto), ReferenceEvaluator(proto)
    counts = []
    for h, w in ((16, 32), (18, 41), (21, 33), (17, 40)):
        x = rng.standard_normal((1, 2, h, w)).astype(np.float32)
        np.testing.assert_allclose(m(x)["y"], judge.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        counts.append(m.compiled)
    assert counts[1:] == [counts[1]] * 3, counts


def test_a_value_that_is_fed_decides_a_shape() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    m = load(_model(nodes, [INFO("x", 1, [6]), INFO("s", 7, [2])], [INFO("y", 1, None)]))
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [3, 2], [2, 3]):
        assert m(x, np.array(shape))["y"].shape == tuple(shape)
    assert m.compiled <= 4


def test_provenance_is_the_node() -> None:
    from morok import Tensor
    from morok.onnx.run import Tracer

    m = load(_linear())
    env: Any = {**m._program.constants, "x": Tensor.ones(2, 3)}
    Tracer("model.onnx").advance(m._program, 0, env)
    assert "model.onnx:product" in repr(env["h"].uop.origin)


def test_a_local_function_is_put_in_place() -> None:
    double = helper.make_function("own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
                                  [helper.make_opsetid("", 18)])  # fmt: skip
    graph = helper.make_graph([helper.make_node("Double", ["x"], ["y"], domain="own")], "g",
                              [INFO("x", 1, [2])], [INFO("y", 1, [2])])  # fmt: skip
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    m = load(helper.make_model(graph, opset_imports=imports, functions=[double]))
    assert m(np.array([1, 2], np.float32))["y"].tolist() == [2, 4]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "linear.onnx"
    path.write_bytes(_linear().SerializeToString())
    assert main(["onnx", "check", str(path)]) == 0
    assert "takes  x: float[batch, 3]" in capsys.readouterr().out
    assert main(["onnx", "run", str(path), "--random", "--dim", "batch=5"]) == 0
    assert "y: float32[5, 2]" in capsys.readouterr().out
    assert main(["onnx", "bench", str(path), "--rounds", "2"]) == 0
    assert "morok" in capsys.readouterr().out
    assert main(["onnx", "run", str(path)]) == 2
    assert main(["onnx", "check", str(tmp_path / "none.onnx")]) == 2


def test_quantised_sums_are_exact() -> None:
    """255 · 127 twice is more than 16 bits hold: nothing saturates on the way."""
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["y"])]
    m = load(_model(nodes, [INFO("a", 2, [1, 4]), INFO("b", 3, [4, 1])], [INFO("y", 6, [1, 1])]))
    a, b = np.full((1, 4), 255, np.uint8), np.full((4, 1), 127, np.int8)
    assert m(a, b)["y"].tolist() == [[4 * 255 * 127]]


def test_version_decides_the_meaning() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    ports = [INFO("x", 1, [2, 3, 4])], [INFO("y", 1, [2, 3, 4])]
    old, new = (load(_model(nodes, *ports, opset=v))(x)["y"] for v in (11, 13))
    np.testing.assert_allclose(old.sum((1, 2)), 1, rtol=1e-5)
    np.testing.assert_allclose(new.sum(2), 1, rtol=1e-5)


def test_morok_errors_only() -> None:
    with pytest.raises(MorokError):
        load("no/such/file.onnx")


def test_results_of_one_call_stay_when_the_next_one_runs() -> None:
    """Memory of inputs is filled again; neither results nor inputs that are passed on change with it."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["x", "s"], ["flat"]),
        helper.make_node("Neg", ["x"], ["y"]),
    ]
    outputs = [INFO(name, 1, None) for name in ("same", "flat", "y")]
    m = load(_model(nodes, [INFO("x", 1, [2, 3])], outputs, [numpy_helper.from_array(np.array([-1]), "s")]))
    first_in = np.full((2, 3), 1, np.float32)
    first = [m(first_in) for _ in range(3)][-1]
    second = [m(np.full((2, 3), 2, np.float32)) for _ in range(3)][-1]
    assert (first["same"] == 1).all() and (first["flat"] == 1).all() and (first["y"] == -1).all()
    assert (second["same"] == 2).all() and (second["flat"] == 2).all() and (second["y"] == -2).all()
    assert (first_in == 1).all()


def test_constants_are_computed_once_and_norms_become_weights() -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    stats = {n: rng.random(4).astype(np.float32) + 0.5 for n in ("scale", "bias", "mean", "var")}
    nodes = [
        helper.make_node("Transpose", ["wt"], ["w"], perm=[3, 2, 0, 1]),
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"], epsilon=0.1),
    ]
    constants = [numpy_helper.from_array(v, n) for n, v in stats.items()]
    constants.append(numpy_helper.from_array(np.ascontiguousarray(w.transpose(2, 3, 1, 0)), "wt"))
    m = load(_model(nodes, [INFO("x", 1, [1, 3, 5, 5])], [INFO("y", 1, None)], constants))
    x = rng.standard_normal((1, 3, 5, 5)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    c = np.einsum("nchwij,ocij->nohw", windows, w)
    s = {n: v.reshape(4, 1, 1) for n, v in stats.items()}
    expected = (c - s["mean"]) / np.sqrt(s["var"] + 0.1) * s["scale"] + s["bias"]
    np.testing.assert_allclose(m(x)["y"], expected, rtol=1e-4, atol=1e-4)
    assert m._folded is not None and [node.op for node in m._folded.nodes] == ["Conv"]


def test_an_initialiser_that_is_an_input_may_be_fed() -> None:
    nodes = [helper.make_node("Neg", ["w"], ["v"]), helper.make_node("Add", ["x", "v"], ["y"])]
    w = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    m = load(_model(nodes, [INFO("x", 1, [2]), INFO("w", 1, [2])], [INFO("y", 1, [2])], [w]))
    x = np.zeros(2, np.float32)
    assert m(x=x)["y"].tolist() == [-1, -2]
    assert m(x=x, w=np.array([3, 4], np.float32))["y"].tolist() == [-3, -4]
    assert m(x=x)["y"].tolist() == [-1, -2]


def test_sizes_without_a_name_share_nothing() -> None:
    """Older exporters write -1 for an open size, others the same question mark for all of them."""
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["?", "?", 3])
    port.type.tensor_type.shape.dim[2].dim_value = -1
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [port], [result])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    assert model.inputs[0].shape == (None, None, None)
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(model(x)["y"], -x)


def test_whatever_an_operator_did_not_think_of_names_the_node() -> None:
    boxes, scores = np.ones((1, 6, 5), np.float32), np.ones((1, 1, 6), np.float32)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("b", "s")]
    result = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    node = helper.make_node("NonMaxSuppression", ["b", "s"], ["y"], "best boxes")
    graph = helper.make_graph([node], "g", ports, [result])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    with pytest.raises(MorokError, match=r"NonMaxSuppression 'best boxes': boxes are \(batch, boxes, 4\)"):
        model(boxes, scores)


@pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1])
def test_a_slice_to_the_end_leaves_sizes_open(end: int) -> None:
    """Exporters write the largest number there is for the end."""
    constants = [numpy_helper.from_array(np.array([n]), name) for n, name in ((0, "a"), (end, "z"))]
    node = helper.make_node("Slice", ["x", "a", "z"], ["y"], "cut")
    info = [INFO(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    m = load(_model([node], info[:1], info[1:], constants))
    for n in (2, 3, 5):
        before = m.compiled
        assert m(np.ones((n, 2), np.float32))["y"].shape == (n, 2)
    assert m.compiled == before


def test_inputs_without_axes_are_filled_in_place() -> None:
    node = helper.make_node("Mul", ["x", "s"], ["y"], "scale")
    inputs = [INFO("x", TensorProto.FLOAT, [3]), INFO("s", TensorProto.FLOAT, []), INFO("no", 7, [])]
    m = load(_model([node], inputs, [INFO("y", TensorProto.FLOAT, [3])]))
    x, no = np.arange(3, dtype=np.float32), np.array(1)  # which nobody reads
    found = [m({"x": x, "s": np.array(s, np.float32), "no": no})["y"] for s in (2, 3, 4)]
    assert [list(y) for y in found] == [[0, 2, 4], [0, 3, 6], [0, 4, 8]]
    with pytest.raises(ArgumentError, match="no"):
        m({"x": x, "s": np.float32(2)})


def test_resize_asks_for_as_many_sizes_as_axes() -> None:
    sizes = numpy_helper.from_array(np.array([4, 4, 4]), "sizes")
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], "up", axes=[2, 3], mode="nearest")
    info = [INFO("x", TensorProto.FLOAT, [1, 1, 2, 2]), INFO("y", TensorProto.FLOAT, None)]
    with pytest.raises(ShapeError, match="3 sizes for 2 axes"):
        load(_model([node], info[:1], info[1:], [sizes]))(np.ones((1, 1, 2, 2), np.float32))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_sample_beside_a_pixel_has_one_floor_for_all_its_taps(mode: str) -> None:
    """(1 - 0.8)·5 - 1 is 0, or a little less: the row is the first either way."""
    node = helper.make_node("GridSample", ["x", "g"], ["y"], "sample", mode=mode)
    info = [INFO(name, TensorProto.FLOAT, None) for name in "xgy"]
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 5, 2) ** 2
    grid = np.array([[[[0.5, -0.8], [-0.5, 0.4]]]], np.float32)  # on pixels: (0, 1) and (3, 0)
    found = load(_model([node], info[:2], info[2:]))({"x": x, "g": grid})["y"]
    np.testing.assert_allclose(found.reshape(-1), [1, 36], atol=1e-4)


def test_sizes_that_are_equal_but_for_their_order_leave_one() -> None:
    """4·n rows as n times 4 of what is left: 1, whatever n is."""
    n = Variable("n", 2, 64)
    assert resolved_shape((n.bind(3) * 4, 1, 16), (n.bind(3), 4, -1, 16), 0)[2] == 1
    assert resolved_shape((2, n.bind(3) * 6, 5), (n.bind(3), -1, 3), 0)[1] == 20


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("reach", [1, 2, 3, 5])
def test_what_is_added_around_symbolic_sizes_is_what_is_added_around_known_ones(
    step: int, reach: int
) -> None:
    n = Variable("n", 8, 64)
    for kind in ("SAME_UPPER", "SAME_LOWER"):
        (around,) = window_pads([n.uop], [reach], [step], [1], None, kind)
        for size in range(8, 65):
            (wanted,) = window_pads([size], [reach], [step], [1], None, kind)
            assert tuple(concrete(p, {"n": size}) for p in around) == wanted
    for edge in (0, 1):
        last = _last_place(n.uop + edge, n.uop + 2 * edge, reach, step)
        for size in range(8, 65):
            assert concrete(last, {"n": size}) == _last_place(size + edge, size + 2 * edge, reach, step)


def test_every_output_is_an_array_of_its_own() -> None:
    """What is written to one is not seen in another one, in an input, nor in the model."""
    float_, int_ = TensorProto.FLOAT, TensorProto.INT64
    ports = [
        ("a", float_),
        ("b", float_),
        ("c", float_),
        ("d", float_),
        ("e", float_),
        ("k", float_),
        ("n", int_),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in [*ports, ("i", float_)]]
    branch = [
        helper.make_graph([helper.make_node("Identity", ["w"], [name])], name, [], [outputs[-1]])
        for name in ("yes", "no")
    ]
    for graph in branch:
        graph.output[0].name = graph.name
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("Identity", ["a"], ["c"]),
        helper.make_node("Flatten", ["a"], ["d"], axis=0),
        helper.make_node("Identity", ["x"], ["e"]),
        helper.make_node("Identity", ["w"], ["k"]),
        helper.make_node("Identity", ["m"], ["n"]),
        helper.make_node("If", ["p"], ["i"], then_branch=branch[0], else_branch=branch[1]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", float_, [2, 2]),
        helper.make_tensor_value_info("m", int_, [2]),
        helper.make_tensor_value_info("p", TensorProto.BOOL, []),
    ]
    weight = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    model = load(_model(nodes, inputs, outputs, [weight]))
    x, m = np.array([[1, 2], [3, 4]], np.float32), np.array([5, 6])
    want = [x, x, x, x.reshape(1, 4), x, np.array([1, 2]), m, np.array([1, 2])]
    want = [value.copy() for value in want]
    for call in range(3):
        found = list(model(x=x, m=m, p=np.array(call == 1)).values())
        for n, written in enumerate(found):
            for value, right in zip(found[n:], want[n:], strict=True):
                np.testing.assert_array_equal(value, right)
            written[...] = 9
        assert x.tolist() == [[1, 2], [3, 4]] and m.tolist() == [5, 6]


def test_reversed_sequences_of_any_length_compile_once() -> None:
    node = helper.make_node("ReverseSequence", ["x", "lengths"], ["y"], batch_axis=0, time_axis=1)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "t", 3]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, ["b"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "t", 3])],
    )
    m = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    rng = np.random.default_rng(0)
    counts = []
    for b, t in ((2, 5), (3, 9), (6, 7), (4, 20)):
        x = rng.standard_normal((b, t, 3)).astype(np.float32)
        lengths = rng.integers(1, t + 1, b)
        wanted = x.copy()
        for row, n in enumerate(lengths):
            wanted[row, :n] = x[row, :n][::-1]
        np.testing.assert_array_equal(m(x=x, lengths=lengths)["y"], wanted)
        counts.append(m.compiled)
    assert counts == [1, 2, 2, 2]


def test_a_border_around_a_sum_is_put_around_its_results() -> None:
    """A convolution in front of a Pad is not computed under the condition of the border."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Pad", ["c", "p", "v"], ["y"])]
    pads = numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 0, 1, 2]), "p")
    constants = [numpy_helper.from_array(w, "w"), pads, numpy_helper.from_array(np.float32(0.5), "v")]
    inputs, outputs = [INFO("x", TensorProto.FLOAT, [1, 3, 9, 9])], [INFO("y", TensorProto.FLOAT, None)]
    model = load(_model(nodes, inputs, outputs, constants))
    x = rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
    with profile() as seen:
        found = model(x)["y"]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    wanted = np.einsum("bcijkl,ockl->boij", windows, w.astype(np.float64))
    wanted = np.pad(wanted, ((0, 0), (0, 0), (0, 1), (0, 2)), constant_values=0.5)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    sums = {name for name, *_ in seen.rows() if name.startswith("r")}
    assert sums and all("_7_7_" in name for name in sums), sums
