"""The code of a kernel has a bound: compilers need more than linear time for one that is long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.schedule.costs import code_of
from morok.schedule.graph.fusion import MAX_CODE

POINTS = np.linspace(-1, 1, 200).astype(np.float32)


def repeat(x: Tensor, count: int, step: Callable[[Tensor, int], Tensor]) -> Tensor:
    for i in range(count):
        x = step(x, i)
    return x


def slope(x: Tensor, y: Tensor) -> Tensor:
    (found,) = y.sum().gradient(x)
    return found


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sines": lambda x: repeat(x, 300, lambda y, i: y.sin()),
    "sines, gradient": lambda x: slope(x, repeat(x, 300, lambda y, i: y.sin())),
    "tanh, gradient": lambda x: slope(x, repeat(x, 200, lambda y, i: (y * 1.01 + 0.1 * i).tanh())),
    "powers": lambda x: repeat(x, 60, lambda y, i: (y.abs() + 0.1) ** 1.3),
    "choices": lambda x: repeat(x, 80, lambda y, i: (y > i / 80).where(y.exp(), y.cos())),
    "sum of many": lambda x: repeat(x, 200, lambda y, i: y + (x * i).sin()),
    "joined": lambda x: Tensor.cat(*[(x * i).sin() for i in range(100)]),
    "random numbers": lambda x: repeat(x, 30, lambda y, i: y + Tensor.rand(200)),
    "norms": lambda x: repeat(x, 60, lambda y, i: y - y.mean() + y.sin()),
    "windows": lambda x: repeat(x, 40, lambda y, i: (y + y.roll(1) + y.roll(-1)) * 0.3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_code_of_a_kernel_has_a_bound(name: str) -> None:
    x = Tensor(POINTS).realize()
    plan = PROGRAMS[name](x).prepare()
    for kernel in plan.kernels:
        if kernel.ast.op is not Ops.COPY:
            code = sum(code_of(node.op) for node in toposort(kernel.ast) if node.op.is_alu)
            assert code <= 1.5 * MAX_CODE  # values that are read at several indices are there several times
    if "sines" in name:
        assert len({kernel.ast for kernel in plan.kernels}) < 12  # equal stretches are compiled once


def test_a_long_chain_is_right() -> None:
    """Sines of sines and their slope by the chain rule, over several kernels."""
    x = Tensor(POINTS).realize()
    y, by_hand, gradient = x, POINTS.astype(np.float64), np.ones(POINTS.size)
    for _ in range(40):
        y = y.sin()
        gradient *= np.cos(by_hand)
        by_hand = np.sin(by_hand)
    (found,) = y.sum().gradient(x)
    np.testing.assert_allclose(y.numpy(), by_hand, rtol=3e-5)
    np.testing.assert_allclose(found.numpy(), gradient, rtol=1e-4)
