"""Convolutions whose weights are constants: laid out in blocks where that is faster, and right everywhere."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from morok import knobs  # noqa: E402
from morok.device.buffer import aligned_copy  # noqa: E402
from morok.onnx import load  # noqa: E402
from morok.onnx.values import Host  # noqa: E402


def model(channels: int, out: int, size: int, kernel: int, batch: Any, **attributes: Any) -> Any:
    """A convolution with a bias and a relu."""
    rng = np.random.default_rng(1)
    group = attributes.get("group", 1)
    w = rng.standard_normal((out, channels // group, kernel, kernel)) / np.sqrt(channels * kernel**2 / group)
    constants = [
        numpy_helper.from_array(w.astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(out).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", **attributes),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, size, size])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", ports, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@pytest.mark.parametrize("machine", ["", "avx512", "avx512-amx", "avx2", "neoverse-n1"])
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "batch", "how"),
    [
        (32, 64, 14, 3, 1, {"pads": [1, 1, 1, 1]}),
        (32, 64, 14, 3, "n", {"pads": [1, 1, 1, 1]}),
        (32, 32, 28, 3, 2, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        (64, 64, 14, 3, 1, {"pads": [1, 1, 1, 1], "group": 2}),
        (16, 48, 20, 5, 1, {"auto_pad": "SAME_UPPER"}),
        (32, 24, 14, 3, 1, {}),  # outputs that are no whole vectors
        (32, 32, 14, 1, 1, {}),  # no window
    ],
)
def test_results(
    machine: str, channels: int, out: int, size: int, kernel: int, batch: Any, how: dict[str, Any]
) -> None:
    proto = model(channels, out, size, kernel, batch, **how)
    x = np.random.default_rng(2).standard_normal((3 if batch == "n" else batch, channels, size, size))
    x = x.astype(np.float32)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    with knobs.override(MACHINE=machine):
        (found,) = load(proto).run(["y"], {"x": x})
    np.testing.assert_allclose(np.asarray(found), want, rtol=2e-5, atol=2e-5)


def forms_of(machine: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The layouts of constants that a convolution of 14 × 14 asks for."""
    keys: list[Any] = []
    plain = Host.form

    def form(self: Host, key: Any, laid_out: Any) -> Any:
        keys.append(key)
        return plain(self, key, laid_out)

    monkeypatch.setattr(Host, "form", form)
    with knobs.override(MACHINE=machine):
        load(model(32, 64, 14, 3, 1, pads=[1, 1, 1, 1])).run(
            ["y"], {"x": np.ones((1, 32, 14, 14), np.float32)}
        )
    return keys


def test_only_processors_that_gain_by_it_lay_weights_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forms_of("avx512", monkeypatch) == [("blocks", 32)]
    assert forms_of("neoverse-n1", monkeypatch) == []


@pytest.mark.parametrize(("kind", "tolerance"), [(np.float16, 4e-3), (np.float64, 1e-12)])
def test_other_floats(kind: Any, tolerance: float) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(kind) for s in ((1, 16, 16, 16), (32, 16, 3, 3)))
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", elem, x.shape)],
        [helper.make_tensor_value_info("y", elem, None)],
        [numpy_helper.from_array(w, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    want = np.einsum("nchwij,ocij->nohw", seen, w.astype(np.float64))
    with knobs.override(MACHINE="avx512"):
        (found,) = load(proto).run(["y"], {"x": x})
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def test_a_form_begins_on_a_cache_line() -> None:
    for size in (1, 5, 1000, 1 << 20):
        copy = aligned_copy(np.arange(3 * size, dtype=np.float32).reshape(3, size).T)
        assert copy.ctypes.data % 64 == 0 and copy.flags.c_contiguous
        assert copy[0].tolist() == [0, size, 2 * size]
