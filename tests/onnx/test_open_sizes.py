"""Operators along axes whose sizes have become variables: right at sizes that nothing was compiled for."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from morok.errors import ShapeError
from morok.onnx import load

FLOAT = TensorProto.FLOAT


def model(nodes: list[Any], shape: list[Any], constants: dict[str, Any], opset: int = 19) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check(proto: Any, shapes: Sequence[tuple[int, ...]], wanted: Callable[[Any], Any] | None = None) -> None:
    """Right at all shapes, and nothing compiled from the third on."""
    ours, judge = load(proto), ReferenceEvaluator(proto)
    counts = []
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        (want,) = judge.run(None, {"x": x}) if wanted is None else (wanted(x),)
        found = ours(x)["y"]
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
        counts.append(ours.compiled)
    assert counts[1] == 2 and set(counts[2:]) == {2}


SIZES = [(1, 2, 7, 9), (2, 2, 12, 11), (3, 2, 9, 14), (4, 2, 13, 8)]


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_borders_of_what_lies_inside(mode: str) -> None:
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)]
    around = ((0, 0), (0, 0), (2, 1), (0, 3))
    proto = model(nodes, ["n", 2, "h", "w"], {"pads": np.array([0, 0, 2, 0, 0, 0, 1, 3])})
    check(proto, SIZES, lambda x: np.pad(x, around, mode))


@pytest.mark.parametrize(
    ("starts", "ends", "step", "wanted"),
    [
        (0, 1_000_000_000, 1, lambda x: x),
        (-1_000_000_000, -2, 1, lambda x: x[:, :-2]),
        (4, -(2**63), -1, lambda x: x[:, 4::-1]),
        (2**63 - 1, -(2**63), -1, lambda x: x[:, ::-1]),
        (-2, 1, -1, lambda x: x[:, -2:1:-1]),
        (-1, -4, -1, lambda x: x[:, :-4:-1]),
    ],
)
def test_slices(starts: int, ends: int, step: int, wanted: Callable[[Any], Any]) -> None:
    names = {"starts": [starts], "ends": [ends], "axes": [1], "steps": [step]}
    nodes = [helper.make_node("Slice", ["x", *names], ["y"])]
    constants = {name: np.array(value, np.int64) for name, value in names.items()}
    check(model(nodes, ["n", "m"], constants), [(1, 7), (2, 9), (3, 12), (5, 8)], wanted)


@pytest.mark.parametrize(
    ("mode", "transform", "nearest", "scales"),
    [
        ("nearest", "asymmetric", "floor", (2.0, 2.0)),
        ("nearest", "half_pixel", "round_prefer_floor", (3.0, 2.0)),
        ("nearest", "asymmetric", "floor", (0.5, 1.5)),
        ("nearest", "asymmetric", "ceil", (2.0, 1.0)),
        ("linear", "half_pixel", "floor", (2.0, 1.5)),
        ("linear", "pytorch_half_pixel", "floor", (2.0, 0.75)),
        ("linear", "align_corners", "floor", (2.0, 3.0)),
        ("linear", "asymmetric", "floor", (1.0, 2.5)),
    ],
)
def test_resize_by_scales(mode: str, transform: str, nearest: str, scales: tuple[float, float]) -> None:
    nodes = [
        helper.make_node(
            "Resize",
            ["x", "", "scales"],
            ["y"],
            mode=mode,
            coordinate_transformation_mode=transform,
            nearest_mode=nearest,
        )
    ]
    constants = {"scales": np.array([1, 1, *scales], np.float32)}
    check(model(nodes, ["n", 2, "h", "w"], constants), SIZES)


@pytest.mark.parametrize(
    ("mode", "transform", "nearest"),
    [
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_ceil"),
        ("linear", "half_pixel", "floor"),
        ("linear", "align_corners", "floor"),
    ],
)
def test_resize_to_sizes_that_are_computed(mode: str, transform: str, nearest: str) -> None:
    """What is half as large as the input goes back to the input's size, whatever that is."""
    nodes = [
        helper.make_node("AveragePool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["x"], ["all"], start=2),
        helper.make_node("Shape", ["half"], ["few"], end=2),
        helper.make_node("Concat", ["few", "all"], ["sizes"], axis=0),
        helper.make_node(
            "Resize",
            ["half", "", "", "sizes"],
            ["y"],
            mode=mode,
            coordinate_transformation_mode=transform,
            nearest_mode=nearest,
        ),
    ]
    check(model(nodes, ["n", 2, "h", "w"], {}), SIZES)


def test_images_that_are_halved_and_doubled_again() -> None:
    """Sizes are equal for multiples of 8 only; others are refused, and spoil nothing."""
    nodes, scales = [], np.array([1, 1, 2, 2], np.float32)
    for i in range(3):
        given = "x" if i == 0 else f"d{i - 1}"
        nodes += [
            helper.make_node("MaxPool", [given], [f"d{i}"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        ]
    for i in (2, 1):
        nodes += [
            helper.make_node("Resize", [f"d{i}" if i == 2 else f"s{i + 1}", "", "scales"], [f"u{i}"],
                             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
            helper.make_node("Add", [f"u{i}", f"d{i - 1}"], ["y" if i == 1 else f"s{i}"]),
        ]  # fmt: skip
    proto = model(nodes, ["n", 1, "h", "w"], {"scales": scales})
    check(proto, [(1, 1, 32, 64), (2, 1, 64, 32), (3, 1, 96, 96), (2, 1, 96, 64)])
    ours, judge = load(proto), ReferenceEvaluator(proto)
    counts = []
    for h, w in ((32, 64), (64, 32), (31, 30), (64, 96), (31, 30), (48, 80), (32, 16)):
        x = np.random.default_rng(h + w).standard_normal((1, 1, h, w)).astype(np.float32)
        wanted = np.zeros(0)
        try:
            (wanted,) = judge.run(None, {"x": x})
        except TypeError:  # sizes that differ
            with pytest.raises(ShapeError):
                ours(x)
        else:
            np.testing.assert_allclose(ours(x)["y"], wanted, rtol=1e-6)
        counts.append(ours.compiled)
    assert counts == [1, 2, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_borders_that_cut_one_end(mode: str) -> None:
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)]
    proto = model(nodes, ["n", "m"], {"pads": np.array([0, 2, 0, -3])})
    check(proto, [(1, 7), (2, 12), (3, 9)], lambda x: np.pad(x, ((0, 0), (2, 0)), mode)[:, :-3])


def test_numbers_up_to_a_size_that_is_a_float() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["all"], start=1, end=2),
        helper.make_node("Squeeze", ["all"], ["size"]),
        helper.make_node("Cast", ["size"], ["last"], to=FLOAT),
        helper.make_node("Range", ["first", "last", "step"], ["places"]),
        helper.make_node("Add", ["x", "places"], ["y"]),
    ]
    constants = {"first": np.float32(0), "step": np.float32(1)}
    check(model(nodes, ["n", "m"], constants), [(1, 7), (2, 12), (3, 9)], lambda x: x + np.arange(x.shape[1]))
