"""What is done to the sums of a thread's tile is a loop over a staged result, where it would be much code.

Values against NumPy on an emulator that looks closely; plans for an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.matmul import _plan
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST, TARGET, execute, kernel_of, left_first, memory_of
from tests.optimize.plans import an_h200, empty, planned

TILES = ((64, 128), (64, 64), (32, 32))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def built(ast: UOp, tile: tuple[int, int]) -> UOp:
    """The kernel with a tile of this shape."""
    builder = Builder(ast, HOST)
    plan = _plan(builder)
    assert plan is not None
    ready = builder.loops
    for _, _, shape, roles in plan.choices():
        if (shape.rows, shape.columns) == tile and plan.build(None, shape, roles):
            return builder.ast
        builder.loops = ready
    raise AssertionError("no such tile")


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("order", ["NN", "NT", "TN"])
@pytest.mark.parametrize("shape", [(70, 20, 132), (65, 33, 67)], ids=str)
def test_values(shape: tuple[int, int, int], order: str, tile: tuple[int, int]) -> None:
    m, k, n = shape
    left, right = ((m, k) if order[0] == "N" else (k, m)), ((k, n) if order[1] == "N" else (n, k))

    def make(a: Tensor, b: Tensor) -> Tensor:
        return ((a if order[0] == "N" else a.T) @ (b if order[1] == "N" else b.T)).silu()

    ast = kernel_of(make, left, right, dtype="float32")
    arrays, types = memory_of(ast)
    got = execute(lower(built(ast, tile), TARGET), arrays, types).reshape(m, n)
    first, second = (1, 2) if left_first(ast) else (2, 1)
    a, b = arrays[first].reshape(left).astype(float), arrays[second].reshape(right).astype(float)
    want = silu((a if order[0] == "N" else a.T) @ (b if order[1] == "N" else b.T))
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def f(*shape: int) -> Tensor:
    return empty(*shape, dtype="float32")


def product() -> Tensor:
    return f(4096, 512) @ f(512, 4096)


PROGRAMS: dict[str, tuple[Callable[[], Any], bool]] = {
    "gelu": (lambda: product().gelu(), True),
    "gelu, tanh": (lambda: product().gelu("tanh"), True),
    "bias and silu": (lambda: (product() + f(4096)).silu(), True),
    "residual and mish": (lambda: (product() + f(4096, 4096)).mish(), True),
    "batches": (lambda: (f(8, 1024, 512) @ f(8, 512, 1024)).tanh(), True),
    "odd sizes": (lambda: (f(4095, 512) @ f(512, 4095)).gelu(), True),
    "transposed": (lambda: (f(512, 4096).T @ f(512, 4096)).sigmoid(), True),
    "both": (lambda: (lambda y: (y, y.gelu()))(product() + f(4096)), True),
    "gate": (lambda: product() * f(4096, 4096).gelu(), True),
    "nothing": (product, False),
    "bias and relu": (lambda: (product() + f(4096)).relu(), False),
    "residual": (lambda: product() + f(4096, 4096), False),
    "scale": (lambda: product() * f(4096), False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans(name: str) -> None:
    make, staged = PROGRAMS[name]
    with an_h200() as machine:
        made = make()
        results = made if isinstance(made, tuple) else (made,)
        (found,) = [p for p in planned([t.uop for t in results], machine) if p.is_product]
    assert found.is_tiled and ("STAGE_RESULT" in found.names) == staged


def test_functions_are_not_written_out_for_every_sum() -> None:
    """A thread has 128 sums; the powers of their gelus are those of one turn."""
    with an_h200() as machine:
        (found,) = planned([product().gelu("tanh").uop], machine)
        inverses = [n for n in lower(found.ast, machine).src if n.op is Ops.RECIP]
        divisions = [n for n in lower(found.ast, machine).src if n.op is Ops.FDIV]
    assert 1 <= len(inverses) <= 16 and not divisions


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "silu"])
def test_quotients_of_normal_numbers(name: str) -> None:
    """As exact as with divisions, subnormal results included; the function of no number is none."""
    x = np.concatenate([np.linspace(-105, 105, 4001), np.logspace(-44, 2, 2000), -np.logspace(-44, 2, 2000)])
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    got = getattr(Tensor(x, device=DEVICE), name)().numpy()
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        want = {"sigmoid": 1 / (1 + np.exp(-wide)), "tanh": np.tanh(wide), "silu": silu(wide)}[name]
    usual = np.isfinite(want)
    assert (np.isnan(got) == np.isnan(got if name == "silu" else want)).all()
    least = np.float32(
        2.0**-126 if name != "silu" else 2.0**-110
    )  # a sigmoid's last digits are all there are
    unit = np.spacing(np.maximum(np.abs(want[usual]).astype(np.float32), least)).astype(np.float64)
    assert (np.abs(got[usual].astype(np.float64) - want[usual]) / unit).max() < 3.5
