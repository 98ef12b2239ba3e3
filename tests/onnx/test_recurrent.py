"""Recurrent operators step by step: long sequences, whose steps are one plan, beside short ones."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from morok import profile  # noqa: E402
from morok.onnx import load  # noqa: E402
from morok.onnx.panels import Weights  # noqa: E402
from morok.onnx.values import Host  # noqa: E402
from morok.tensor.tensor import Tensor  # noqa: E402

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _model(op: str, direction: str, layout: int, lengths: bool, starts: bool, size: int = 5) -> Any:
    rng = np.random.default_rng(0)
    count = 2 if direction == "bidirectional" else 1
    gates = _GATES[op]
    weights = {
        "w": rng.standard_normal((count, gates * size, 3)),
        "r": rng.standard_normal((count, gates * size, size)),
        "b": rng.standard_normal((count, 2 * gates * size)),
    }
    constants = [numpy_helper.from_array((v * 0.4).astype(np.float32), k) for k, v in weights.items()]
    axes = ["n", "t", 3] if layout else ["t", "n", 3]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)]
    names = ["x", "w", "r", "b", "l" if lengths else ""]
    if lengths:
        ports.append(helper.make_tensor_value_info("l", TensorProto.INT32, ["n"]))
    if starts:
        names.append("h")
        ports.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [count, "n", size]))
    outputs = ["y", "yh", *(["yc"] if op == "LSTM" else [])]
    node = helper.make_node(op, names, outputs, "steps", hidden_size=size, direction=direction, layout=layout)
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "g", ports, given, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def _feeds(model: Any, length: int, batch: int, layout: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    shape = (batch, length, 3) if layout else (length, batch, 3)
    made: dict[str, Any] = {"x": rng.standard_normal(shape).astype(np.float32)}
    for port in model.graph.input[1:]:
        if port.name == "l":
            made["l"] = rng.integers(1, length + 1, batch).astype(np.int32)
        else:
            count = port.type.tensor_type.shape.dim[0].dim_value
            made["h"] = rng.standard_normal((count, batch, 5)).astype(np.float32)
    return made


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _cell(op: str, x: Any, r: Any, b: Any, state: list[Any], size: int) -> list[Any]:
    """A step by the formulas of the specification; `x` has W and its bias in it."""
    h = state[0]
    if op == "RNN":
        return [np.tanh(x + h @ r.T + b)]
    if op == "LSTM":
        i, o, f, c = np.split(x + h @ r.T + b, 4, -1)
        new = _sigmoid(f) * state[1] + _sigmoid(i) * np.tanh(c)
        return [_sigmoid(o) * np.tanh(new), new]
    both = _sigmoid(x[:, : 2 * size] + h @ r[: 2 * size].T + b[: 2 * size])
    z, reset = both[:, :size], both[:, size:]
    new = np.tanh(x[:, 2 * size :] + (reset * h) @ r[2 * size :].T + b[2 * size :])
    return [(1 - z) * new + z * h]


def _wanted(model: Any, feeds: dict[str, Any], op: str, direction: str, layout: int, size: int) -> list[Any]:
    w, r, b = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    x = feeds["x"].astype(np.float64)
    x = x.swapaxes(0, 1) if layout else x
    length, batch, _ = x.shape
    lengths = feeds.get("l", np.full(batch, length))
    y = np.zeros((length, len(w), batch, size))
    finals: list[list[Any]] = []
    half = b.shape[1] // 2
    for d in range(len(w)):
        first = feeds["h"][d].astype(np.float64) if "h" in feeds else np.zeros((batch, size))
        state = [first, np.zeros((batch, size))][: 2 if op == "LSTM" else 1]
        backward = direction == "reverse" or d == 1
        for at in reversed(range(length)) if backward else range(length):
            new = _cell(op, x[at] @ w[d].T + b[d, :half], r[d], b[d, half:], state, size)
            live = (lengths > at)[:, None]
            state = [np.where(live, n, s) for n, s in zip(new, state, strict=True)]
            y[at, d] = np.where(live, state[0], 0)
        finals.append(state)
    made = [y, *(np.stack([f[i] for f in finals]) for i in range(len(finals[0])))]
    return [y.transpose(2, 0, 1, 3), *(f.swapaxes(0, 1) for f in made[1:])] if layout else made


_WAYS = [("forward", 0, False, True), ("bidirectional", 0, True, True), ("reverse", 1, False, False)]


@pytest.mark.parametrize(
    ("op", "direction", "layout", "lengths", "starts"),
    [
        pytest.param(op, *way, marks=pytest.mark.slow)
        for op in ("RNN", "GRU", "LSTM")
        for way in _WAYS
        if (op, way) not in (("LSTM", _WAYS[0]), ("GRU", _WAYS[1]))
    ]
    + [("LSTM", *_WAYS[0]), ("GRU", *_WAYS[1])],
)
def test_long_and_short(op: str, direction: str, layout: int, lengths: bool, starts: bool) -> None:
    model = _model(op, direction, layout, lengths, starts and not layout)
    ours = load(model)
    for length, batch in ((4, 2), (18, 2)):
        feeds = _feeds(model, length, batch, layout)
        found = ours.run(None, feeds)
        for a, b in zip(found, _wanted(model, feeds, op, direction, layout, 5), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    before = ours.compiled
    ours.run(None, _feeds(model, 18, 2, layout))
    assert ours.compiled == before


@pytest.mark.parametrize(
    ("op", "direction", "batch", "length"),
    [
        ("LSTM", "forward", 1, 18),
        ("LSTM", "bidirectional", 8, 4),
        ("GRU", "forward", 3, 4),
        pytest.param("LSTM", "forward", 8, 18, marks=pytest.mark.slow),
        pytest.param("GRU", "bidirectional", 2, 18, marks=pytest.mark.slow),
        pytest.param("RNN", "forward", 40, 18, marks=pytest.mark.slow),
    ],
)
def test_weights_that_fill_registers(op: str, direction: str, batch: int, length: int) -> None:
    """Sizes whose weights are laid out in panels."""
    model = _model(op, direction, 0, False, False, size=32)
    feeds = _feeds(model, length, batch, 0)
    wanted = _wanted(model, feeds, op, direction, 0, 32)
    for a, b in zip(load(model).run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 33])
@pytest.mark.parametrize(("columns", "inner"), [(16, 7), (96, 5), (256, 32), (40, 8), (768, 2)])
def test_panels(rows: int, columns: int, inner: int) -> None:
    """Parts of weights, of one direction and of all."""
    rng = np.random.default_rng(rows)
    w = rng.standard_normal((2, columns, inner)).astype(np.float32)
    x = rng.standard_normal((2, rows, inner)).astype(np.float32)
    weights = Weights(Tensor(w), Host(w, lasting=True))
    for start, stop in ((0, columns), (0, columns // 2), (columns // 2, columns)):
        own = w[:, start:stop].transpose(0, 2, 1)
        both = weights.times(Tensor(x), None, start, stop).numpy()
        np.testing.assert_allclose(both, x @ own, rtol=1e-4, atol=1e-4)
        second = weights.times(Tensor(x[1]), 1, start, stop).numpy()
        np.testing.assert_allclose(second, x[1] @ own[1], rtol=1e-4, atol=1e-4)


def test_a_step_is_compiled_once_however_long_the_sequence() -> None:
    model = load(_model("LSTM", "forward", 0, False, False))
    from morok.runtime.plan import requests

    feeds = _feeds(_model("LSTM", "forward", 0, False, False), 60, 1, 0)
    before = requests.compiled + requests.from_disk
    model.run(None, feeds)
    assert requests.compiled + requests.from_disk - before < 16


def test_the_reference_agrees() -> None:
    """The formulas above are the package's own."""
    model = _model("LSTM", "forward", 0, False, True)
    feeds = _feeds(model, 6, 2, 0)
    wanted = ReferenceEvaluator(model).run(None, feeds)
    for a, b in zip(_wanted(model, feeds, "LSTM", "forward", 0, 5), wanted, strict=True):
        np.testing.assert_allclose(a.reshape(np.shape(b)), b, rtol=1e-4, atol=1e-5)


def _other_node(attributes: dict[str, Any], size: int = 5) -> Any:
    """The GRU of two directions with other attributes, behind a Transpose of its input."""
    model = _model("GRU", "bidirectional", 0, False, False)
    (node,) = model.graph.node
    node.input[0] = "turned"
    for name, value in attributes.items():
        node.attribute.append(helper.make_attribute(name, value))
    model.graph.node.insert(0, helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]))
    return model


@pytest.mark.parametrize("length", [4, 20])
@pytest.mark.parametrize(
    "attributes",
    [{"linear_before_reset": 1}, {"activations": ["Sigmoid", "Tanh", "HardSigmoid", "Relu"], "clip": 0.7}],
    ids=["linear before", "directions differ"],
)
def test_other_attributes(attributes: dict[str, Any], length: int) -> None:
    """Directions that compute different functions, gates that come later; the input is a view of memory."""
    model = _other_node(attributes)
    x = np.random.default_rng(length).standard_normal((2, length, 3)).astype(np.float32)
    w, r, b = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    y = np.zeros((length, 2, 2, 5))
    clip = attributes.get("clip", np.inf)
    for d in range(2):
        other = "activations" in attributes and d == 1
        f = (lambda v: np.clip(0.2 * v + 0.5, 0, 1)) if other else _sigmoid
        g = (lambda v: np.maximum(v, 0)) if other else np.tanh
        h = np.zeros((2, 5))
        for at in reversed(range(length)) if d else range(length):
            into = x[:, at] @ w[d].T + b[d, :15]
            back, own = h @ r[d].T + b[d, 15:], h @ r[d, 10:].T + b[d, 25:]
            z, reset = (f(np.clip((into + back)[:, k : k + 5], -clip, clip)) for k in (0, 5))
            if "linear_before_reset" not in attributes:
                own = (reset * h) @ r[d, 10:].T + b[d, 25:]
            else:
                own = reset * own
            h = (1 - z) * g(np.clip(into[:, 10:] + own, -clip, clip)) + z * h
            y[at, d] = h
    found = load(model).run(["y"], {"x": x})[0]
    np.testing.assert_allclose(found, y, rtol=2e-5, atol=2e-5)


def test_results_of_a_long_sequence_are_not_written_again() -> None:
    """A later call, on memory that the steps keep, leaves earlier results as they are; so does a profile."""
    model = _model("LSTM", "forward", 0, False, True)
    ours, feeds = load(model), [_feeds(model, 20, 2, 0) for _ in range(2)]
    feeds[1]["x"] = feeds[1]["x"] * 2
    first = ours.run(None, feeds[0])
    kept = [x.copy() for x in first]
    second = ours.run(None, feeds[1])
    assert all((a == b).all() for a, b in zip(first, kept, strict=True))
    with profile():
        watched = ours.run(None, feeds[1])
    for found, again, wanted in zip(
        second, watched, _wanted(model, feeds[1], "LSTM", "forward", 0, 5), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(found, again)


# --- com.microsoft.DynamicQuantizeLSTM: weights of 8 bits, and codes of x and of each state


def _quantised_lstm(direction: str, each_row: bool, kind: Any, size: int = 5) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(1)
    count = 2 if direction == "bidirectional" else 1
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    scales = (count, 4 * size) if each_row else (count,)
    held: dict[str, Any] = {"b": rng.standard_normal((count, 8 * size)).astype(np.float32)}
    for name, inner in (("w", 3), ("r", size)):
        held[name] = rng.integers(low, high + 1, (count, inner, 4 * size)).astype(kind)
        held[name + "s"] = (rng.random(scales) * 0.01 + 0.001).astype(np.float32)
        held[name + "z"] = rng.integers((low + high) // 2 - 9, (low + high) // 2 + 9, scales).astype(kind)
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "yh", "yc"], "steps", domain="com.microsoft",
        hidden_size=size, direction=direction,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", 3])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "yh", "yc")],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )
    sets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), held


def _coded(x: Any) -> Any:
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def _stepped(held: dict[str, Any], d: int, x: Any) -> Any:
    """One direction of it in float64."""
    real = {
        k: (held[k][d].astype(float) - held[k + "z"][d].astype(float)) * held[k + "s"][d].astype(float)
        for k in "wr"
    }
    size = real["r"].shape[0]
    bias = held["b"][d].astype(float)
    inputs = _coded(x.astype(float)) @ real["w"] + bias[: 4 * size] + bias[4 * size :]
    h = c = np.zeros((x.shape[1], size))
    made = []
    for row in inputs:
        i, o, f, g = np.split(row + _coded(h) @ real["r"], 4, -1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        made.append(h)
    return np.array(made), h, c


@pytest.mark.parametrize("length", [6, 24])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("size", [5, 18])
def test_an_lstm_of_8_bits(length: int, direction: str, kind: Any, size: int) -> None:
    model, held = _quantised_lstm(direction, kind is np.int8, kind, size)
    x = np.random.default_rng(length).standard_normal((length, 2, 3)).astype(np.float32)
    m = load(model)
    for _ in range(2):
        y, h, c = m.run(None, {"x": x})
        for d in range(y.shape[1]):
            wanted, last, cell = _stepped(held, d, x[::-1] if d else x)
            np.testing.assert_allclose(y[:, d], wanted[::-1] if d else wanted, rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(h[d], last, rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(c[d], cell, rtol=1e-5, atol=2e-6)
