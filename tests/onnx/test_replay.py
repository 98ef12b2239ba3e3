"""Calls that repeat: whatever a call depends on besides numbers in its inputs is looked at again."""

import gc
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok.onnx import Model, load  # noqa: E402
from morok.onnx.replay import Replay  # noqa: E402

Node, INFO = helper.make_node, helper.make_tensor_value_info
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CALLS = 6


def _model(nodes: Any, inputs: Any, outputs: Any, **constants: Any) -> Model:
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [INFO(n, e, None) for n, e in outputs.items()], held)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def _replays(model: Model) -> int:
    return sum(isinstance(r, Replay) for r in model._replays.values())


def _drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_results_stay_and_inputs_are_those_of_the_call() -> None:
    """Of two shapes in turn, all results kept; also after everything else has been collected."""
    w = _drawn(9, 5, 4)
    nodes = [Node("MatMul", ["x", "w"], ["p"]), Node("Tanh", ["p"], ["y"]), Node("ReduceMax", ["p"], ["top"])]
    model = _model(nodes, [INFO("x", FLOAT, ["n", 5])], {"y": FLOAT, "top": FLOAT}, w=w)
    kept = []
    for k in range(2 * CALLS):
        x = _drawn(k, 2 + k % 2, 5)
        kept.append((model(x), x @ w))
        gc.collect()
    for found, wanted in kept:
        np.testing.assert_allclose(found["y"], np.tanh(wanted), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["top"].reshape(()), wanted.max(), rtol=1e-5)
    assert _replays(model) == 1, "one of the two shapes has variables"


def test_what_was_given_out_may_be_written_to() -> None:
    """An input and a constant that come out as they are, and one value under two names."""
    c = _drawn(1, 3)
    nodes = [
        Node("Identity", ["x"], ["same"]),
        Node("Identity", ["c"], ["constant"]),
        Node("Neg", ["x"], ["y"]),
        Node("Identity", ["y"], ["z"]),
    ]
    names = dict.fromkeys(("same", "constant", "y", "z"), FLOAT)
    model = _model(nodes, [INFO("x", FLOAT, [3])], names, c=c)
    for k in range(CALLS):
        x = _drawn(k, 3)
        found = model(x)
        for name, wanted in {"same": x, "constant": c, "y": -x, "z": -x}.items():
            np.testing.assert_array_equal(found[name], wanted)
            found[name][:] = 99


def test_large_inputs_are_read_where_they_lie() -> None:
    """Of any order and alignment, written to afterwards or not at all, and results that are fed again."""
    size = 1 << 17
    nodes = [Node("Add", ["x", "one"], ["y"]), Node("Identity", ["z"], ["same"]), Node("Neg", ["z"], ["w"])]
    inputs = [INFO("x", FLOAT, [size]), INFO("z", FLOAT, [size])]
    model = _model(nodes, inputs, dict.fromkeys(("y", "same", "w"), FLOAT), one=np.float32(1))
    z = _drawn(7, size)
    kept, x = [], _drawn(0, size)
    for k in range(CALLS):
        found = model(x, z)
        kept.append((found["y"], x + 1))
        if k % 2:
            x = _drawn(k, size)
        else:
            x[:] = -5
            x = found["y"]  # read while the next result is written
    (replay,) = (r for r in model._replays.values() if isinstance(r, Replay))
    first = replay._inputs[0]
    assert first._now != first._home, "read where it lies"
    odd = np.empty(4 * size + 1, np.uint8)[1:].view(np.float32)
    odd[:] = _drawn(1, size)
    fixed = _drawn(2, size)
    fixed.flags.writeable = False
    backwards = _drawn(3, size)[::-1]
    for x in (odd, fixed, backwards, np.repeat(fixed, 2)[::2], fixed):
        found = model(x, z)
        kept.append((found["y"], x + 1))
        np.testing.assert_array_equal(found["same"], z)
        np.testing.assert_array_equal(found["w"], -z)
        found["same"][:] = 99
        assert (first._now == first._home) == (x is not fixed)
    for y, wanted in kept:
        np.testing.assert_array_equal(y, wanted)
    assert z[0] == _drawn(7, size)[0]


def test_values_that_decide_a_shape_are_looked_at() -> None:
    nodes = [Node("Reshape", ["x", "shape"], ["y"])]
    model = _model(nodes, [INFO("x", FLOAT, [6]), INFO("shape", INT64, [2])], {"y": FLOAT})
    x = _drawn(0, 6)
    for _ in range(CALLS):
        for sizes in ((2, 3), (3, 2), (6, 1)):
            assert model(x, np.array(sizes))["y"].shape == sizes


@pytest.mark.parametrize("data", [False, True])
def test_a_branch_is_chosen_at_every_call(data: bool) -> None:
    """By an input that the host reads, and by what a kernel has computed; weights of many numbers."""
    w = _drawn(9, 128, 128)

    def branch(name: str, op: str) -> Any:
        steps = [Node("MatMul", ["x", "w"], [f"{name}_p"]), Node(op, [f"{name}_p"], [name])]
        return helper.make_graph(steps, name, [], [INFO(name, FLOAT, None)])

    condition = [Node("ReduceSum", ["x"], ["s"], keepdims=0), Node("Greater", ["s", "zero"], ["c"])]
    choice = Node("If", ["c"], ["y"], then_branch=branch("yes", "Abs"), else_branch=branch("no", "Neg"))
    inputs = [INFO("x", FLOAT, [1, 128])] + ([] if data else [INFO("c", BOOL, [])])
    model = _model([*(condition if data else []), choice], inputs, {"y": FLOAT}, w=w, zero=np.float32(0))
    for k in range(2 * CALLS):
        x, yes = _drawn(k // 2, 1, 128), bool(k % 2)
        x = np.abs(x) if yes else -np.abs(x)
        found = model(x)["y"] if data else model(x, np.array(yes))["y"]
        wanted = np.abs(x @ w) if yes else -(x @ w)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert _replays(model) == (0 if data else 2)


def test_random_numbers_are_drawn_again() -> None:
    nodes = [Node("RandomUniformLike", ["x"], ["r"]), Node("Add", ["x", "r"], ["y"])]
    model = _model(nodes, [INFO("x", FLOAT, [8])], {"y": FLOAT})
    found = [model(np.zeros(8, np.float32))["y"].copy() for _ in range(CALLS)]
    assert len({f.tobytes() for f in found}) == CALLS


@pytest.mark.parametrize("last", ["y", "h", "both"])
def test_layers_between_plans(last: str) -> None:
    """Parts before, between and behind two recurrences; states that are given as they are."""
    rng = np.random.default_rng(0)
    size, length = 16, 20
    r = {
        f"{k}{n}": (rng.standard_normal((1, size, size)) * 0.2).astype(np.float32) for n in "ab" for k in "wr"
    }
    nodes = [
        Node("Neg", ["x"], ["n"]),
        Node("RNN", ["n", "wa", "ra", "", "", "h0"], ["ya", "ha"], hidden_size=size),
        Node("Squeeze", ["ya", "one"], ["s"]),
        Node("Mul", ["s", "two"], ["d"]),
        Node("RNN", ["d", "wb", "rb", "", "", "ha"], ["yb", "hb"], hidden_size=size),
        Node("Add", ["yb", "two"], ["y"]),
        Node("Identity", ["hb"], ["h"]),
    ]
    shapes = [INFO("x", FLOAT, [length, 2, size]), INFO("h0", FLOAT, [1, 2, size])]
    names = ("y", "h") if last == "both" else (last,)
    two, one = np.float32(2), np.array([1])
    model = _model(nodes, shapes, dict.fromkeys(names, FLOAT), two=two, one=one, **r)

    def layer(x: Any, w: Any, r: Any, h: Any) -> Any:
        made = []
        for row in x:
            h = np.tanh(row @ w.T + h @ r.T)
            made.append(h)
        return np.stack(made)

    kept = []
    for k in range(CALLS):
        x, h0 = _drawn(k, length, 2, size), _drawn(k + 50, 1, 2, size)
        a = layer(-x, r["wa"][0], r["ra"][0], h0[0])
        b = layer(2 * a, r["wb"][0], r["rb"][0], a[-1])
        kept.append((model(x, h0), {"y": b[:, None] + 2, "h": b[-1:]}))
    for found, wanted in kept:
        for name in names:
            np.testing.assert_allclose(found[name], wanted[name], rtol=2e-5, atol=2e-5)
    assert _replays(model) == 1
