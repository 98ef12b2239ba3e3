"""Products whose rows, columns or steps are known only when they run, on tiles and units. Against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable
from morok.device.cuda.device import program_of
from morok.machine.files import load
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE, cubin

MOST = 80
Program = Callable[[Any, Any, Any, Any], Any]  # of a library's tensors: a, b, c, and what cuts to the size


def _rows(a: Any, b: Any, c: Any, cut: Any) -> Any:
    return cut(a) @ b


def _steps(a: Any, b: Any, c: Any, cut: Any) -> Any:
    return cut(a).T @ cut(c)


def _columns(a: Any, b: Any, c: Any, cut: Any) -> Any:
    return b.T @ cut(a).T


def _both_sides(a: Any, b: Any, c: Any, cut: Any) -> Any:
    return cut(a) @ cut(c[:, :64]).T


def _flat_steps(a: Any, b: Any, c: Any, cut: Any) -> Any:
    x, y = cut(a.reshape(MOST, 2, 32)), cut(c.reshape(MOST, 2, 48))
    return x.reshape(-1, 32).T @ y.reshape(-1, 48)


def _two_loops_of_steps(a: Any, b: Any, c: Any, cut: Any) -> Any:
    x, y = cut(a.reshape(MOST, 2, 32)), cut(c.reshape(MOST, 2, 48))
    einsum: Any = Tensor.einsum if isinstance(x, Tensor) else np.einsum
    return einsum("abi,abj->ij", x, y)


def _with_more(a: Any, b: Any, c: Any, cut: Any) -> Any:
    return cut(a) @ b + cut(c) + c[0]


PROGRAMS: list[Program] = [
    _rows, _steps, _columns, _both_sides, _flat_steps, _two_loops_of_steps, _with_more
]  # fmt: skip


def _arrays() -> list[Any]:
    random = np.random.default_rng(3)
    shapes = [(MOST, 64), (64, 96), (MOST, 96)]
    return [random.integers(-4, 5, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_products_of_unknown_sizes(program: Program, dtype: str) -> None:
    arrays = _arrays()
    tensors = [Tensor(x, device=DEVICE).cast(dtype).realize() for x in arrays]
    for count in (1, 7, 33, 64, MOST):
        bound = Variable("n", 1, MOST).bind(count)
        want = program(*arrays, lambda x, count=count: x[:count])
        got = program(*tensors, lambda x, bound=bound: x[:bound]).cast("float32").numpy()
        # sums of small whole numbers: exact before they are rounded to the type
        rounding = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 0}[dtype]
        np.testing.assert_allclose(got, want, rtol=rounding, atol=0)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_they_are_planned_as_products(program: Program) -> None:
    """On the units of a Hopper, as the same program of a known size is."""
    tensors = [
        Tensor.empty(*shape, dtype="bfloat16", device="EMULATOR")
        for shape in [(MOST, 64), (64, 96), (MOST, 96)]
    ]
    bound = Variable("n", 1, MOST).bind(MOST)
    for size in (bound, MOST):
        result = program(*tensors, lambda x, size=size: x[:size])
        texts = [program_of(i.ast, load("sm_90"), "k").text for i in schedule([result.uop]).items]
        assert any("mma" in text for text in texts), size
        assert all(cubin(text) for text in texts)
