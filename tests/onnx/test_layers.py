"""Layers with constant weights, which are laid out once for some rows."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from morok import knobs  # noqa: E402
from morok.machine.choose import cpu_machine  # noqa: E402
from morok.onnx import Model, load  # noqa: E402
from morok.optimize.heuristics.blocked_rows import panel_width  # noqa: E402
from tests.render.test_llvm import AVX2, AVX512  # noqa: E402

FLOAT = TensorProto.FLOAT


def _model(node: Any, x: tuple[int, ...], **constants: Any) -> Model:
    held = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", FLOAT, x)], [info("y", FLOAT, None)], held)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def _forms(model: Model) -> int:
    folded = model._folded
    assert folded is not None
    return sum(len(v._forms) for v in folded.constants.values())


@pytest.mark.parametrize(
    ("shape", "columns", "panels"),
    [
        ((2, 30), 96, True),
        ((7, 33), 48, True),
        ((3, 5, 40), 144, True),
        ((2, 3, 4, 17), 64, True),
        ((128, 20), 96, True),
        ((129, 20), 96, False),
        ((1, 40), 96, False),
        ((9, 40), 50, False),
        ((40,), 48, False),
    ],
)
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "turned"])
def test_rows(shape: tuple[int, ...], columns: int, panels: bool, kind: str) -> None:
    """Beside NumPy in float64; on AVX-512, whichever processor runs it."""
    if kind != "MatMul" and len(shape) != 2:
        return
    rng = np.random.default_rng(0)
    w = rng.standard_normal((shape[-1], columns)).astype(np.float32)
    b = rng.standard_normal(columns).astype(np.float32)
    if kind == "MatMul":
        model = _model(helper.make_node("MatMul", ["x", "w"], ["y"]), shape, w=w)
    else:
        turned = kind == "turned"
        node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(turned), alpha=0.5)
        model = _model(node, shape, w=np.ascontiguousarray(w.T) if turned else w, b=b)
    with knobs.override(MACHINE="avx512", DEVICE="CPU"):
        for _ in range(4):
            x = rng.standard_normal(shape).astype(np.float32)
            wanted = x.astype(np.float64) @ w.astype(np.float64)
            wanted = wanted if kind == "MatMul" else 0.5 * wanted + b
            np.testing.assert_allclose(model(x)["y"], wanted, rtol=1e-4, atol=1e-4)
        assert _forms(model) == int(panels)


def test_weights_that_are_fed_stay() -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = _model(node, (48, 48))
    x = np.arange(48 * 48, dtype=np.float32).reshape(48, 48) / 999
    np.testing.assert_allclose(model(x)["y"], x.astype(np.float64) @ x, rtol=1e-5)
    assert not _forms(model)


def test_width_of_panels() -> None:
    machine = cpu_machine(AVX512)
    assert [panel_width(8, n, 4, machine) for n in (768, 1024, 1000)] == [48, 32, None]
    assert [panel_width(n, 768, 4, machine) for n in (1, 2, 128, 129)] == [None, 48, 48, None]
    short = cpu_machine(AVX2)  # of registers
    assert [panel_width(n, 768, 4, short) for n in (8, 16, 128)] == [None, 24, 24]
    assert panel_width(16, 1024, 4, short) is None
