"""com.microsoft's operators, as exporters and quantisers write them, against what ONNX Runtime computes."""

import json
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from morok.onnx import load  # noqa: E402
from tests.onnx.contrib import model, names  # noqa: E402

EXPECTED = json.loads((Path(__file__).parent / "contrib.json").read_text())
# ONNX Runtime's kernels for processors round here in another order, so that a number may be the next one.
_NEXT = ("qlinear_average_pool", "qlinear_global_average_pool", "qlinear_sigmoid", "qlinear_softmax")


@pytest.mark.parametrize("name", names())
def test_operator(name: str) -> None:
    proto, feeds = model(name)
    found = [y for y in load(proto).run(None, feeds) if y is not None]
    assert len(found) == len(EXPECTED[name])
    for y, expected in zip(found, EXPECTED[name], strict=True):
        wanted = np.array(expected["values"]).reshape(expected["shape"])
        assert y.shape == wanted.shape
        near = 1 if name in _NEXT else 2e-5
        np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=2e-4, atol=near)
