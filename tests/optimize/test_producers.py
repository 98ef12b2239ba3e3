"""Programs of real models whose products multiply something computed, planned for processors without one.

What the rows say follows from the program: a heavy kernel multiplies memory, or what has been packed. What
is computed of it on the way is computed once for a panel, in vectors, or in a kernel of its own. Only a scale
may be multiplied along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.registry import get_device
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.optimize.facts import trips
from morok.optimize.heuristics.apply import optimize
from morok.schedule.schedule import schedule

HEAVY = 1 << 20  # multiplications


class Row(NamedTuple):
    """A program, and how many kernels are enough."""

    make: Callable[[], Tensor]
    most: int


def x(*shape: int) -> Tensor:
    return Tensor.empty(*shape, device="CPU")


def squeezed(act: Callable[[Tensor], Tensor], channels: int, out: int, size: int) -> Tensor:
    """The end of a block with squeeze and excitation: a gate for each channel, and a projection."""
    y = act(x(1, channels, size, size).conv2d(x(channels, 1, 3, 3), groups=channels, padding=1))
    inner = y.mean((2, 3), keepdim=True).conv2d(x(channels // 24, channels, 1, 1)).relu()
    gate = inner.conv2d(x(channels, channels // 24, 1, 1)).sigmoid()
    return (y * gate).conv2d(x(out, channels, 1, 1))


def projected(act: Callable[[Tensor], Tensor], channels: int, out: int, size: int) -> Tensor:
    return act(x(1, channels, size, size)).conv2d(x(out, channels, 1, 1))


def linear(act: Callable[[Tensor], Tensor], rows: int, steps: int, columns: int) -> Tensor:
    return act(x(rows, steps)).linear(x(columns, steps))


TABLE: dict[str, Row] = {
    "gated silu, 14²": Row(lambda: squeezed(Tensor.silu, 672, 112, 14), 7),
    "gated silu, 7²": Row(lambda: squeezed(Tensor.silu, 1152, 192, 7), 7),
    "gated silu, 56²": Row(lambda: squeezed(Tensor.silu, 96, 24, 56), 7),
    "gated hardswish": Row(lambda: squeezed(Tensor.hardswish, 672, 112, 14), 7),
    "gated relu": Row(lambda: squeezed(Tensor.relu, 440, 440, 7), 7),
    "silu, 1×1": Row(lambda: projected(Tensor.silu, 240, 40, 28), 2),
    "hardswish, 1×1": Row(lambda: projected(Tensor.hardswish, 672, 112, 14), 1),
    "hardswish, 1×1, 7²": Row(lambda: projected(Tensor.hardswish, 1152, 192, 7), 1),
    "relu, 1×1": Row(lambda: projected(Tensor.relu, 512, 1000, 13), 1),
    "gelu, linear": Row(lambda: linear(Tensor.gelu, 128, 3072, 768), 2),
    "hardswish, linear": Row(lambda: linear(Tensor.hardswish, 128, 3072, 768), 1),
    "gelu, few columns": Row(lambda: linear(Tensor.gelu, 512, 256, 10), 2),
    "hardswish, few columns": Row(lambda: linear(Tensor.hardswish, 512, 256, 16), 2),
    "relu, few columns": Row(lambda: linear(Tensor.relu, 2048, 64, 24), 2),
    "a sum, few columns": Row(lambda: (x(2048, 64) + x(2048, 64)) @ x(64, 4), 2),
}  # fmt: skip


def _multiplied(ast: UOp) -> list[UOp]:
    """What is computed again at each step of a heavy product."""
    found = []
    for reduce in toposort(ast):
        if reduce.op is not Ops.REDUCE or reduce.arg != (Ops.ADD,):
            continue
        points = 1
        for r in ranges(reduce) | frozenset(closed_ranges(reduce)):
            points *= trips(r) if r.op is Ops.RANGE else 1
        factors = reduce.src[0]
        if points >= HEAVY and factors.op is Ops.MUL and _differ(factors):
            inside = toposort(factors, stop=lambda n: n.op in (Ops.BUFFERIZE, Ops.INDEX))
            found += [n for n in inside if n is not factors and n.op.is_alu and n.dtype.is_float]
    return found


def _differ(factors: UOp) -> bool:
    """Whether there is a loop that each factor alone moves with: numbers are used again."""
    a, b = (ranges(s) for s in factors.src)
    return bool(a - b) and bool(b - a)


@pytest.mark.parametrize("machine", ["avx512", "avx512-amx", "avx2"])
@pytest.mark.parametrize("name", TABLE)
def test_heavy_products_multiply_what_is_computed_once(name: str, machine: str) -> None:
    row = TABLE[name]
    with knobs.override(DEVICE="CPU", MACHINE=machine, THREADS=2):
        items = schedule([row.make().uop]).items
        assert len(items) <= row.most
        chip = get_device("CPU").machine
        again = [n.op for item in items for n in _multiplied(optimize(item.ast, chip))]
        assert again in ([], [Ops.MUL])


@pytest.mark.parametrize("columns", [2, 10, 24])
def test_few_columns_of_what_is_computed_are_right(columns: int) -> None:
    rng = np.random.default_rng(11)
    a, w = (rng.normal(size=s).astype(np.float32) for s in ((301, 96), (96, columns)))
    with knobs.override(DEVICE="CPU", THREADS=2):
        found = (Tensor(a).hardswish() @ Tensor(w)).numpy()
    want = (a * np.clip(a.astype(np.float64) + 3, 0, 6) / 6) @ w
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
