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
