"""Rows that are too long for registers: a maximum and the sum of powers below it are found in one walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import applied
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST, TARGET, kernel_of

LONG = 40_000


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def wanted(x: Any) -> Any:
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


def walks(ast: UOp) -> int:
    """The loops of a kernel's threads."""
    program = lower(optimize(ast, HOST), TARGET)
    return sum(n.op is Ops.RANGE and n.src[0].arg > 1 for n in program.src)


# the function, how often it walks along a row, its reductions: each joins what the warps have found
@pytest.mark.parametrize(
    ("make", "along", "joined"),
    [(softmax, 2, 2), (lambda x: x.log_softmax(-1), 2, 2), (lambda x: x.max(-1), 1, 1)],
)
def test_one_walk_for_both(make: Callable[[Tensor], Tensor], along: int, joined: int) -> None:
    ast = kernel_of(make, (600, LONG + 7), dtype="float32")
    names = [opt.name for opt in applied(optimize(ast, HOST))]
    assert names.count("ONLINE") == joined - 1
    assert walks(ast) == along + joined


def test_short_rows_stay_in_registers() -> None:
    ast = kernel_of(softmax, (600, 4096), dtype="float32")
    assert all(opt.name != "ONLINE" for opt in applied(optimize(ast, HOST)))


@pytest.mark.parametrize("columns", [LONG, 33_001])
@pytest.mark.parametrize("kind", ["plain", "rising", "falling", "inf", "-inf", "nan", "nothing"])
def test_values(columns: int, kind: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, columns)).astype(np.float32) * 5
    if kind in ("rising", "falling"):
        x += np.linspace(-50, 50, columns, dtype=np.float32)[:: 1 if kind == "rising" else -1]
    elif kind == "inf":
        x[0, columns - 5] = np.inf
    elif kind == "-inf":
        x[0, : columns // 2] = -np.inf
    elif kind == "nan":
        x[0, 7] = np.nan
    elif kind == "nothing":
        x[0] = -np.inf
    got = Tensor(x, device=DEVICE).softmax(-1).numpy()
    want = wanted(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    np.testing.assert_allclose(got[known], want[known], rtol=2e-5, atol=1e-30)


def test_half_precision() -> None:
    x = np.random.default_rng(1).normal(size=(3, LONG)).astype(np.float16) * 4
    got = Tensor(x, device=DEVICE).softmax(-1).numpy().astype(np.float64)
    want = wanted(x.astype(np.float32))
    assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


def test_the_loss_of_long_rows() -> None:
    x = np.random.default_rng(2).normal(size=(4, LONG)).astype(np.float32)
    labels = np.array([3, 0, LONG - 1, 17])
    got = Tensor(x, device=DEVICE).cross_entropy(Tensor(labels, device=DEVICE)).item()
    wide = x.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    assert abs(got + logs[np.arange(4), labels].mean()) < 1e-5
