"""Branches and loops on bodies that nobody has looked at, against what ONNX Runtime computes.

The reference evaluator of the package is no judge: it has neither loops of no rounds nor scans backwards. The
figures are recorded by `python -m tests.onnx.bodies > tests/onnx/bodies.json`.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok import profile  # noqa: E402
from morok.errors import MorokError  # noqa: E402
from morok.ir.node import toposort  # noqa: E402
from morok.ir.ops import Ops  # noqa: E402
from morok.onnx import load  # noqa: E402
from tests.onnx.bodies import inputs, model  # noqa: E402

EXPECTED = json.loads((Path(__file__).parent / "bodies.json").read_text())


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that have run for long get a plan of their own: on a busy machine that could be any call."""
    monkeypatch.setattr("morok.onnx.run.time", SimpleNamespace(perf_counter=lambda: 0.0))


def _agree(seed: int) -> None:
    proto = model(seed)
    onnx.checker.check_model(proto)
    ours = load(proto)
    for feeds, expected in zip(inputs(seed), EXPECTED[str(seed)], strict=True):
        (found,) = ours(feeds).values()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    before = ours.compiled
    (again,) = ours(feeds).values()
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)
    assert ours.compiled == before, "the same structure compiles nothing"


@pytest.mark.parametrize("seed", range(6))
def test_random_bodies(seed: int) -> None:
    _agree(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 56))
def test_more_random_bodies(seed: int) -> None:
    _agree(seed)


def test_constants_are_put_in_order_once_in_a_branch_too() -> None:
    """Weights that a branch cuts and joins are constants there, as large ones are outside."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((80, 64)).astype(np.float32)
    rows = [
        numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("a", [0]), ("m", [40]), ("z", [80]))
    ]
    nodes = [
        helper.make_node("Slice", ["w", "a", "m"], ["upper"]),
        helper.make_node("Slice", ["w", "m", "z"], ["lower"]),
        helper.make_node("Concat", ["lower", "upper"], ["turned"], axis=0),
        helper.make_node("Transpose", ["turned"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["y"]),
    ]
    port = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    then = helper.make_graph(nodes, "then", [], [port], rows)
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "else", [], [port])
    choice = [
        helper.make_node("Size", ["x"], ["count"]),
        helper.make_node("Greater", ["count", "least"], ["many"]),
        helper.make_node("If", ["many"], ["y"], then_branch=then, else_branch=other),
    ]
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(3, np.int64), "least")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])
    graph = helper.make_graph(choice, "g", [x], [port], constants)
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    given = rng.standard_normal((2, 64)).astype(np.float32)
    with profile() as watched:
        (found,) = model.run(None, {"x": given})
    np.testing.assert_allclose(found, given @ np.concatenate([w[40:], w[:40]]).T, rtol=1e-5, atol=1e-5)
    (product,) = watched.events
    assert not any(n.op is Ops.WHERE for n in toposort(product.kernel))  # which part a row is in


def _appending(middle: list[onnx.NodeProto], result: str) -> onnx.ModelProto:
    """One round per row of x: h = h + tanh(row), which goes to the end of a sequence."""
    info, seq = helper.make_tensor_value_info, helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"], axis=0),
            helper.make_node("Tanh", ["row"], ["t"]),
            *middle,
            helper.make_node("Add", ["h", result], ["h_next"]),
            helper.make_node("SequenceInsert", ["list", "h_next"], ["longer"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [info("i", 7, []), info("go", 9, []), info("h", 1, [4]), seq("list", 1, [4])],
        [info("go_on", 9, []), info("h_next", 1, [4]), seq("longer", 1, [4])],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Squeeze", ["n"], ["rounds"]),
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("Loop", ["rounds", "", "zero", "none"], ["last", "all"], body=body),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
    ]
    zero = numpy_helper.from_array(np.zeros(4, np.float32), "zero")
    graph = helper.make_graph(nodes, "g", [info("x", 1, ["t", 4])], [info("y", 1, None)], [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_round_that_appends_to_a_sequence_is_compiled_once() -> None:
    ours, counts = load(_appending([], "t")), []
    for rows in (24, 30, 40, 27, 51):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        np.testing.assert_allclose(ours(x)["y"], np.cumsum(np.tanh(x), 0), rtol=1e-5, atol=1e-5)
        counts.append(ours.compiled)
    assert counts[0] < 8 and counts[2:] == [counts[2]] * 3, counts


def test_a_round_that_looks_into_its_sequence() -> None:
    """How many there are matters here, and what is in them."""
    middle = [
        helper.make_node("SequenceInsert", ["list", "t"], ["with"]),
        helper.make_node("SequenceLength", ["with"], ["count"]),
        helper.make_node("Cast", ["count"], ["many"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["end"], value_int=-1),
        helper.make_node("SequenceAt", ["with", "end"], ["newest"]),
        helper.make_node("Mul", ["newest", "many"], ["u"]),
    ]
    x = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    found = load(_appending(middle, "u"))(x)["y"]
    np.testing.assert_allclose(
        found, np.cumsum(np.tanh(x) * np.arange(1, 10)[:, None], 0), rtol=1e-5, atol=1e-5
    )


def _mapped(
    nodes: list[onnx.NodeProto], inputs: list[str], result: str, others: list[str]
) -> onnx.ModelProto:
    """SequenceMap over xs and others (sequences, but for `t`); `t` and `ys` may be taken from around."""
    info, seq = helper.make_tensor_value_info, helper.make_tensor_sequence_value_info
    body = helper.make_graph(nodes, "body", [info(n, 1, None) for n in inputs], [info(result, 1, None)])
    graph = helper.make_graph(
        [helper.make_node("SequenceMap", ["xs", *others], ["zs"], body=body)],
        "g",
        [seq("xs", 1, None), seq("ys", 1, None), info("t", 1, [2])],
        [seq("zs", 1, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _nested() -> list[onnx.NodeProto]:
    """x + the sum over y of ys of (y + x) · t, where the inner graph takes x and t from around."""
    info = helper.make_tensor_value_info
    inner = [helper.make_node("Add", ["y", "x"], ["s"]), helper.make_node("Mul", ["s", "t"], ["p"])]
    body = helper.make_graph(inner, "inner", [info("y", 1, None)], [info("p", 1, None)])
    return [
        helper.make_node("SequenceMap", ["ys"], ["ps"], body=body),
        helper.make_node("ConcatFromSequence", ["ps"], ["rows"], axis=0, new_axis=1),
        helper.make_node("ReduceSum", ["rows", "first"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["z"]),
    ]


_FIRST = helper.make_node("Constant", [], ["first"], value_ints=[0])
_MAPS = {
    "two sequences": (
        [helper.make_node("Sub", ["x", "y"], ["z"])],
        ["x", "y"],
        ["ys"],
        lambda xs, ys, t: [x - y for x, y in zip(xs, ys, strict=True)],
    ),
    "a tensor between sequences": (
        [helper.make_node("Mul", ["x", "u"], ["v"]), helper.make_node("Sub", ["v", "y"], ["z"])],
        ["x", "u", "y"],
        ["t", "ys"],
        lambda xs, ys, t: [x * t - y for x, y in zip(xs, ys, strict=True)],
    ),
    "a sequence from around": (
        [helper.make_node("SequenceAt", ["ys", "first"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"])],
        ["x"],
        [],
        lambda xs, ys, t: [x + ys[0] for x in xs],
    ),
    "a map in a map": (
        _nested(),
        ["x"],
        [],
        lambda xs, ys, t: [x + sum((y + x) * t for y in ys) for x in xs],
    ),
}


@pytest.mark.parametrize("kind", _MAPS)
def test_maps_over_sequences(kind: str) -> None:
    nodes, inputs, others, meaning = _MAPS[kind]
    captures = not any("y" in n for n in inputs)
    ours = load(_mapped([_FIRST, *nodes], inputs, "z", others))
    rng = np.random.default_rng(0)
    for count in (2, 0, 3, 40, 2):  # 40 are too many to unroll
        xs, ys = ([rng.standard_normal(2).astype(np.float32) for _ in range(count)] for _ in range(2))
        ys = ys or [np.ones(2, np.float32)] * captures
        t = rng.standard_normal(2).astype(np.float32)
        found = ours({"xs": xs, "ys": ys, "t": t})["zs"]
        wanted = meaning(xs, ys, t)
        assert len(found) == len(wanted) == count
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    before = ours.compiled
    ours({"xs": xs, "ys": ys, "t": t})
    assert ours.compiled == before, "the same structure compiles nothing"


def test_a_map_over_sequences_of_different_lengths() -> None:
    nodes, inputs, others, _ = _MAPS["two sequences"]
    x = np.ones(2, np.float32)
    with pytest.raises(MorokError, match="different lengths"):
        load(_mapped(nodes, inputs, "z", others))({"xs": [x, x], "ys": [x], "t": x})


# --- constants that go through rounds and branches are no constants behind them


def _info(name: str, kind: int, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _counting() -> onnx.ModelProto:
    """A loop until a sum is reached, whose counter begins with a constant and goes through float32."""
    nodes = [
        helper.make_node("Cast", ["count"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["as_float", "one"], ["more"]),
        helper.make_node("Cast", ["more"], ["count_out"], to=TensorProto.INT64),
        helper.make_node("Add", ["sum", "more"], ["sum_out"]),
        helper.make_node("ReduceMax", ["sum_out"], ["largest"], keepdims=0),
        helper.make_node("Less", ["largest", "limit"], ["going_out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [
            _info("i", TensorProto.INT64, []),
            _info("going", TensorProto.BOOL, []),
            _info("count", TensorProto.INT64, []),
            _info("sum", TensorProto.FLOAT, None),
            _info("one", TensorProto.FLOAT, []),
        ],
        [
            _info("going_out", TensorProto.BOOL, []),
            _info("count_out", TensorProto.INT64, []),
            _info("sum_out", TensorProto.FLOAT, None),
            _info("one", TensorProto.FLOAT, []),
        ],
    )
    constants = [
        numpy_helper.from_array(np.array(v, kind), n)
        for n, v, kind in (("zero", 0, np.int64), ("unit", 1, np.float32), ("limit", 20, np.float32))
    ]
    outer = helper.make_node("Loop", ["", "", "zero", "x", "unit"], ["n", "y", "u"], body=body)
    ports = [_info("n", TensorProto.INT64, []), _info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([outer], "g", [_info("x", TensorProto.FLOAT, ["k"])], ports, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_counter_that_begins_with_a_constant_goes_on() -> None:
    m = load(_counting())
    for start in ([0.0, 1.0], [-40.0, 2.0], [3.0, -7.0]):
        count, x = 0, np.array(start, np.float32)
        while True:
            count += 1
            x = x + np.float32(count)
            if not x.max() < 20:
                break
        found = m(x=np.array(start, np.float32))
        assert int(found["n"]) == count
        np.testing.assert_array_equal(found["y"], x)


def test_a_constant_of_a_branch_that_data_choose() -> None:
    """What comes out of a branch depends on its condition, also if it is a constant there."""
    branches = {}
    for name, value in (("then_branch", 2.0), ("else_branch", 30.0)):
        made = numpy_helper.from_array(np.array([value], np.float32))
        inner = [
            helper.make_node("Constant", [], [f"c_{name}"], value=made),
            helper.make_node("NonZero", ["x"], [f"p_{name}"]),  # so that it is run between plans
        ]
        ports = [_info(f"c_{name}", TensorProto.FLOAT, [1]), _info(f"p_{name}", TensorProto.INT64, None)]
        branches[name] = helper.make_graph(inner, name, [], ports)
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["is_more"]),
        helper.make_node("If", ["is_more"], ["c", "places"], **branches),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    graph = helper.make_graph(
        nodes, "g", [_info("x", TensorProto.FLOAT, [3])], [_info("y", TensorProto.FLOAT, [3])], [zero]
    )
    m = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    for sign in (1, -1, 1, -1):
        x = sign * np.array([1, 2, 3], np.float32)
        np.testing.assert_array_equal(m(x=x)["y"], x * (2 if sign > 0 else 30))


def test_what_a_branch_makes_of_an_input_is_no_constant() -> None:
    """The condition is a constant; the sizes that the branch gives out are not."""
    shape = helper.make_graph(
        [helper.make_node("Shape", ["x"], ["then_s"])], "then", [], [_info("then_s", TensorProto.INT64, [1])]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["zero"], ["else_s"])],
        "else",
        [],
        [_info("else_s", TensorProto.INT64, [1])],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["s"], then_branch=shape, else_branch=other),
        helper.make_node("NonZero", ["x"], ["places"]),  # a plan ends here
        helper.make_node("Add", ["places", "s"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.array([0], np.int64), "zero"),
    ]
    port = _info("y", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "g", [_info("x", TensorProto.FLOAT, ["n"])], [port], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    m = load(proto, symbolic=False)
    for size in (4, 5, 6, 9):
        x = np.zeros(size, np.float32)
        x[1:3] = 1
        np.testing.assert_array_equal(m(x=x)["y"], [[1 + size, 2 + size]])


def test_a_map_over_a_sequence_of_constants() -> None:
    """Each round has an item of its own, also where all of them are constants of the model."""
    node = helper.make_node("Mul", ["item", "more"], ["made"])
    body = helper.make_graph(
        [*[helper.make_node("Identity", ["item"], [f"unused{n}"]) for n in range(40)], node],
        "body",
        [_info("item", TensorProto.FLOAT, [2]), _info("more", TensorProto.FLOAT, [2])],
        [_info("made", TensorProto.FLOAT, [2])],
    )
    names = ["a", "b", "c"]
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    nodes = [
        helper.make_node("SequenceConstruct", names, ["s"]),
        helper.make_node("SequenceMap", ["s", "x"], ["t"], body=body),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    constants = [numpy_helper.from_array(row, n) for n, row in zip(names, rows, strict=True)]
    ports = [_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", [_info("x", TensorProto.FLOAT, [2])], ports, constants)
    m = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = np.array([10, 100], np.float32)
    np.testing.assert_array_equal(m(x=x)["y"], (rows * x).reshape(-1))


# --- rounds that count compile nothing after the third


def _rows_one_by_one(through: int | None, slices: bool) -> onnx.ModelProto:
    """y[i] = 2 x[i], row by row, as long as a counter of the loop's own is below the number of rows."""
    step = [helper.make_node("Add", ["count", "one"], ["count_out"])]
    if through is not None:
        step = [
            helper.make_node("Cast", ["count"], ["c"], to=through),
            helper.make_node("Add", ["c", "one"], ["d"]),
            helper.make_node("Cast", ["d"], ["count_out"], to=TensorProto.INT64),
        ]
    nodes = [
        *step,
        helper.make_node("Reshape", ["count", "flat"], ["start"]),
        helper.make_node("Reshape", ["count_out", "flat"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end"], ["row"])
        if slices
        else helper.make_node("Gather", ["x", "start"], ["row"]),
        helper.make_node("Add", ["row", "row"], ["twice"]),
        helper.make_node("Unsqueeze", ["start", "flat"], ["places"]),
        helper.make_node("ScatterND", ["y", "places", "twice"], ["y_out"]),
        helper.make_node("Less", ["count_out", "rows"], ["going_out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [
            _info("i", TensorProto.INT64, []),
            _info("going", TensorProto.BOOL, []),
            _info("count", TensorProto.INT64, []),
            _info("y", TensorProto.FLOAT, None),
        ],
        [
            _info("going_out", TensorProto.BOOL, []),
            _info("count_out", TensorProto.INT64, []),
            _info("y_out", TensorProto.FLOAT, None),
            _info("row", TensorProto.FLOAT, None),
        ],
    )
    kind = np.int64 if through is None else helper.tensor_dtype_to_np_dtype(through)
    constants = [
        numpy_helper.from_array(np.array(v, t), n)
        for n, v, t in (("zero", 0, np.int64), ("one", 1, kind), ("flat", [1], np.int64))
    ]
    outer = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Sub", ["x", "x"], ["nothing"]),
        helper.make_node("Loop", ["", "", "zero", "nothing"], ["n", "y", "all"], body=body),
        helper.make_node("Cast", ["n"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "as_float"], ["z"]),
    ]
    ports = [
        _info("n", TensorProto.INT64, []),
        *[_info(name, TensorProto.FLOAT, None) for name in ("y", "all", "z")],
    ]
    graph = helper.make_graph(outer, "g", [_info("x", TensorProto.FLOAT, ["r", 4])], ports, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("slices", [False, True], ids=["gather", "slice"])
@pytest.mark.parametrize("through", [None, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_rounds_that_count_for_themselves_are_compiled_once(through: int | None, slices: bool) -> None:
    m = load(_rows_one_by_one(through, slices))
    counts = []
    for rows in (24, 30, 27, 19):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        found = m(x=x)
        assert int(found["n"]) == rows
        np.testing.assert_array_equal(found["y"], 2 * x)
        np.testing.assert_array_equal(found["all"], x[:, None])
        np.testing.assert_array_equal(found["z"], x + np.float32(rows))
        counts.append(m.compiled)
    assert counts[0] <= 12, counts
    if not slices:  # whether n is below an open size is not known
        assert counts[0] <= 6 and counts[2] == counts[3], counts
