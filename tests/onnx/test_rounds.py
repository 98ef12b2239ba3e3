"""Rounds of a loop that one part computes: the same call on memory that changes hands, against NumPy."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok.errors import MorokError  # noqa: E402
from morok.onnx import Model, load  # noqa: E402
from morok.onnx.run import Runner  # noqa: E402

Node = helper.make_node
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Begun = Callable[[], int]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begun]:
    """How many parts have been begun since the last question."""
    count = 0
    advance = Runner._advance

    def counted(self: Runner, *args: Any) -> int:
        nonlocal count
        count += 1
        return advance(self, *args)

    def since() -> int:
        nonlocal count
        found, count = count, 0
        return found

    monkeypatch.setattr(Runner, "_advance", counted)
    # sizes that have run for long get a plan of their own: on a busy machine that could be any call
    monkeypatch.setattr("morok.onnx.run.time", SimpleNamespace(perf_counter=lambda: 0.0))
    yield since


def _constant(array: Any, name: str) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def _loop(
    nodes: list[Any],
    states: dict[str, tuple[str, int, Any]],
    rows: list[tuple[str, int]],
    weights: list[Any],
    going: str = "on",
    others: dict[str, Any] | None = None,
) -> Model:
    """A model that is a loop of `n` rounds. States: what each is next, its type and its shape."""
    info = helper.make_tensor_value_info
    inside = [info("i", INT64, []), info("on", BOOL, []), *(info(n, e, s) for n, (_, e, s) in states.items())]
    left = [info(going, BOOL, []), *(info(name, e, s) for name, e, s in states.values())]
    body = helper.make_graph(nodes, "body", inside, [*left, *(info(n, e, None) for n, e in rows)])
    outputs = [*(f"{n}_last" for n in states), *(f"{n}_rows" for n, _ in rows)]
    loop = Node("Loop", ["n", "", *(f"{n}_0" for n in states)], outputs, body=body)
    given = [info("n", INT64, []), *(info(f"{n}_0", e, s) for n, (_, e, s) in states.items())]
    given += [info(n, FLOAT, s) for n, s in (others or {}).items()]
    types = [*(e for _, e, _ in states.values()), *(e for _, e in rows)]
    made = [info(n, e, None) for n, e in zip(outputs, types, strict=True)]
    graph = helper.make_graph([loop], "g", given, made, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load(proto)


def _f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_states_rows_and_an_end_that_data_decide(begun: Begun) -> None:
    """The number of a round, states, rows of two types, and a condition that a kernel computes."""
    w = _f32(5, 5)
    nodes = [
        Node("MatMul", ["h", "w"], ["p"]),
        Node("Tanh", ["p"], ["t"]),
        Node("Cast", ["i"], ["number"], to=FLOAT),
        Node("Add", ["t", "number"], ["next"]),
        Node("ReduceMax", ["next"], ["top"], keepdims=0),
        Node("Less", ["top", "limit"], ["less"]),
        Node("ReduceSum", ["next", "last"], ["sums"], keepdims=0),
        Node("Greater", ["next", "h"], ["larger"]),
    ]
    weights = [_constant(w, "w"), _constant(np.float32(20.5), "limit"), _constant([1], "last")]
    ours = _loop(nodes, {"h": ("next", FLOAT, [3, 5])}, [("sums", FLOAT), ("larger", BOOL)], weights, "less")

    def expected(h: Any, n: int) -> tuple[Any, Any, Any]:
        sums, larger = [], []
        for i in range(n):
            old, h = h, np.tanh(h @ w) + np.float32(i)
            sums.append(h.sum(1))
            larger.append(h > old)
            if h.max() >= 20.5:
                break
        return h, np.stack(sums), np.stack(larger)

    kept = []
    for seed, n in ((0, 12), (1, 100), (2, 17), (3, 1)):
        begun()
        h = _f32(3, 5, seed=seed)
        found = list(ours(np.array(n), h).values())
        for a, b in zip(found, expected(h, n), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        kept.append((found, expected(h, n)))
        if seed > 1:
            assert begun() <= 3, "rounds are one call each"
    for found, wanted in kept:  # what was given out is nobody else's memory
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_states_that_change_places(begun: Begun) -> None:
    """A state that is another one's memory is not written over while it is read."""
    nodes = [Node("Add", ["a", "b"], ["c"]), Node("Identity", ["on"], ["more"])]
    shapes = {"a": ("b", FLOAT, [4]), "b": ("c", FLOAT, [4])}
    ours = _loop(nodes, shapes, [("a", FLOAT)], [], "more")
    for _ in range(3):
        a, b, rows = np.zeros(4, np.float32), np.ones(4, np.float32), []
        begun()
        found = ours(np.array(30), a, b)
        for _ in range(30):
            rows.append(a)
            a, b = b, a + b
        for made, wanted in zip(found.values(), (a, b, np.stack(rows)), strict=True):
            np.testing.assert_array_equal(made, wanted)
    assert begun() <= 4


@pytest.mark.parametrize("alike", [False, True])
def test_rounds_that_are_known_before_are_run_again(alike: bool) -> None:
    """Of the same number, from other values, which may first be one value for both states; all kept."""
    nodes = [
        Node("MatMul", ["a", "w"], ["p"]),
        Node("Add", ["p", "x"], ["q"]),
        Node("Tanh", ["q"], ["next"]),
        Node("Sub", ["next", "b"], ["row"]),
        Node("Identity", ["on"], ["more"]),
    ]
    shapes = {"a": ("next", FLOAT, [2, 4]), "b": ("a", FLOAT, [2, 4]), "c": ("c", FLOAT, [2, 4])}
    w, kept = _f32(4, 4, seed=5), []
    ours = _loop(nodes, shapes, [("row", FLOAT)], [_constant(w, "w")], "more", {"x": [2, 4]})
    for k in range(6):
        a, x = _f32(2, 4, seed=k), _f32(2, 4, seed=k + 20)
        b, c = (a, a) if alike and k < 3 else (_f32(2, 4, seed=k + 40), _f32(2, 4, seed=k + 60))
        found, rows, first = list(ours(np.array(40), a, b, c, x).values()), [], c
        for _ in range(40):
            new = np.tanh(a @ w + x)
            rows.append(new - b)
            a, b = new, a
        kept.append((found, (a, b, first, np.stack(rows))))
    for found, wanted in kept:
        for made, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-4, atol=1e-5)


def test_a_state_that_grows(begun: Begun) -> None:
    """Beyond the room that there was at first, and from other sizes on."""
    nodes = [
        Node("ReduceMean", ["all"], ["mean"], axes=[1], keepdims=1),
        Node("Mul", ["mean", "half"], ["new"]),
        Node("Add", ["new", "x"], ["shifted"]),
        Node("Concat", ["all", "shifted"], ["longer"], axis=1),
        Node("Identity", ["on"], ["more"]),
    ]
    states = {"all": ("longer", FLOAT, [2, None])}
    ours = _loop(nodes, states, [], [_constant(np.float32(0.5), "half")], "more", {"x": [2, 1]})
    for length, rounds in ((1, 5), (4, 100), (3, 40), (7, 90), (5, 60)):
        whole, x = _f32(2, length), _f32(2, 1, seed=9)
        begun()
        (found,) = ours(n=np.array(rounds), all_0=whole, x=x).values()
        for _ in range(rounds):
            whole = np.concatenate([whole, whole.mean(1, keepdims=True) * np.float32(0.5) + x], 1)
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)
    assert begun() <= 6, "rounds that grow are one call each"


@pytest.mark.parametrize("shrinks", [False, True])
@pytest.mark.parametrize("rounds", [2, 3, 12])
def test_rows_of_different_shapes_are_one_sentence(shrinks: bool, rounds: int) -> None:
    """Whether a plan finds it, or rounds that replay one."""
    cut = Node("Slice", ["all", "one", "ends", "one"], ["next"])
    grow = Node("Concat", ["all", "x"], ["next"], axis=1)
    nodes = [cut if shrinks else grow, Node("Identity", ["all"], ["row"]), Node("Identity", ["on"], ["more"])]
    weights = [_constant(np.array([1], np.int64), "one"), _constant(np.array([1 << 40], np.int64), "ends")]
    states = {"all": ("next", FLOAT, [1, None])}
    ours = _loop(nodes, states, [("row", FLOAT)], weights, "more", {"x": [1, 1]})
    with pytest.raises(MorokError, match="shape"):
        ours(n=np.array(rounds), all_0=_f32(1, rounds if shrinks else 1), x=_f32(1, 1))


@pytest.mark.parametrize("rounds", [3, 30])
def test_a_branch_in_a_round_is_a_choice(begun: Begun, rounds: int) -> None:
    """Of small numbers both branches are computed: a condition that is read would end the part."""
    info = helper.make_tensor_value_info
    port = info("chosen", FLOAT, [4])
    up = helper.make_graph([Node("Mul", ["x", "two"], ["chosen"])], "up", [], [port])
    down = helper.make_graph([Node("Sub", ["x", "two"], ["chosen"])], "down", [], [port])
    nodes = [
        Node("ReduceMax", ["x"], ["top"], keepdims=0),
        Node("Less", ["top", "two"], ["small"]),
        Node("If", ["small"], ["next"], then_branch=up, else_branch=down),
        Node("Identity", ["on"], ["more"]),
    ]
    two = [_constant(np.float32(2), "two")]
    ours = _loop(nodes, {"x": ("next", FLOAT, [4])}, [("next", FLOAT)], two, "more")
    for seed in range(3):
        x, rows = _f32(4, seed=seed), []
        begun()
        found = ours(np.array(rounds), x)
        for _ in range(rounds):
            x = x * 2 if x.max() < 2 else x - 2
            rows.append(x)
        np.testing.assert_allclose(found["x_last"], x, rtol=1e-6)
        np.testing.assert_allclose(found["next_rows"], np.stack(rows), rtol=1e-6)
    assert begun() <= 4


def test_sizes_that_a_branch_decides_are_read() -> None:
    """What a branch gives may be how much of something there is: the condition is read."""
    info = helper.make_tensor_value_info
    port = info("count", INT64, [1])
    few = helper.make_graph([Node("Constant", [], ["count"], value_ints=[2])], "few", [], [port])
    many = helper.make_graph([Node("Constant", [], ["count"], value_ints=[5])], "many", [], [port])
    nodes = [
        Node("ReduceMax", ["x"], ["top"], keepdims=0),
        Node("Less", ["top", "zero"], ["small"]),
        Node("If", ["small"], ["count"], then_branch=few, else_branch=many),
        Node("Slice", ["x", "begin", "count"], ["y"]),
    ]
    weights = [_constant(np.float32(0), "zero"), _constant([0], "begin")]
    graph = helper.make_graph(nodes, "g", [info("x", FLOAT, [8])], [info("y", FLOAT, None)], weights)
    ours = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = np.abs(_f32(8)) + 1
    np.testing.assert_array_equal(ours(x)["y"], x[:5])
    np.testing.assert_array_equal(ours(-x)["y"], -x[:2])


def test_a_branch_that_may_fail_is_not_computed_along() -> None:
    """The guard of a position: what it keeps out is not looked up."""
    info = helper.make_tensor_value_info
    port = info("found", FLOAT, [1])
    there = helper.make_graph([Node("Gather", ["x", "at"], ["found"])], "there", [], [port])
    beyond = helper.make_graph([Node("Constant", [], ["found"], value_floats=[-1.0])], "beyond", [], [port])
    nodes = [
        Node("Less", ["at", "four"], ["inside"]),
        Node("If", ["inside"], ["found"], then_branch=there, else_branch=beyond),
    ]
    given = [info("x", FLOAT, [4]), info("at", INT64, [1])]
    graph = helper.make_graph(nodes, "g", given, [info("found", FLOAT, [1])], [_constant([4], "four")])
    ours = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = _f32(4)
    for at in (0, 3, 4, 70):
        wanted = x[at] if at < 4 else -1.0
        np.testing.assert_array_equal(ours(x, np.array([at]))["found"], [wanted])
