"""What follows the last barrier of a kernel is read before it, where nothing of it waits for the sum."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor
from morok.device.cuda.device import program_of
from morok.device.lowering import instructions
from morok.ir.node import UOp
from morok.ir.ops import Ops
from tests.llm.test_grid import packed_on_a_gpu
from tests.optimize.plans import an_h200, empty, planned

WAIT = "griddepcontrol.wait"


def text_of(make: Callable[[], Tensor]) -> str:
    """Of the one kernel of a program."""
    with an_h200() as machine:
        (kernel,) = planned([make().uop], machine)
        return program_of(kernel.before, machine).text


def x(*shape: int) -> Tensor:
    return empty(*shape, dtype="float32")


def test_what_is_added_to_a_sum_is_read_before_the_barrier() -> None:
    """By those who stay alone."""
    before, after = text_of(lambda: x(64, 4096).sum(1) + x(64)).split("__syncthreads();")
    assert "g2[" not in after
    assert "?" in next(line for line in before.splitlines() if "g2[" in line)


def test_its_line_is_asked_for_before_the_kernel_waits() -> None:
    text = text_of(lambda: x(64, 4096).sum(1) + x(64))
    hint, wait = text.index("prefetch.global.L2"), text.index(WAIT)
    assert hint < wait < text.index("*(const float4*)(g1") and text.count(WAIT) == 1
    assert "if (" in text[:hint].splitlines()[-1]


def test_a_row_that_is_read_again_stays_where_it_is() -> None:
    """It is near by then: in registers it would stand in the way."""

    def normed() -> Tensor:
        row = x(64, 4096)
        return row * row.square().mean(1, keepdim=True).rsqrt()

    text = text_of(normed)
    assert "prefetch" not in text and text.count(WAIT) == 1


def positions(linear: UOp, kind: Ops) -> list[int]:
    return [i for i, n in enumerate(linear.src) if n.op is kind]


def test_memory_that_is_written_is_read_when_it_was() -> None:
    with an_h200() as machine:
        rows, y = x(64, 4096), x(64)
        (kernel,) = planned([y.assign(y + rows.sum(1)).uop], machine)
        linear = instructions(kernel.ast, machine, "kernel")
    (barrier,) = positions(linear, Ops.BARRIER)
    written = next(n.src[0].src[0] for n in linear.src if n.op is Ops.STORE and _is_global(n))
    read = next(i for i, n in enumerate(linear.src) if n.op is Ops.LOAD and n.src[0].src[0] is written)
    assert read > barrier


def _is_global(store: UOp) -> bool:
    return store.src[0].src[0].op is Ops.DEFINE_GLOBAL


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("columns", [100, 1000, 4099])
def test_sums_and_what_is_added(rows: int, columns: int) -> None:
    """By the emulator, which refuses reads beyond the end and races."""
    random = np.random.default_rng(columns)
    given, added, w = (
        random.standard_normal(s).astype(np.float32) for s in ((rows, columns), (rows,), (columns,))
    )
    a, b, c = (Tensor(n, device="EMULATOR") for n in (given, added, w))
    found = ((a * c).sum(1) + b * 2).numpy()
    want = (given.astype(np.float64) * w).sum(1) + 2.0 * added
    assert np.abs(found - want).max() < 1e-4
    normed = (a * (a.square().mean(1, keepdim=True) + 1e-5).rsqrt() * c).numpy()
    want = given / np.sqrt(np.square(given.astype(np.float64)).mean(1, keepdims=True) + 1e-5) * w
    assert np.abs(normed - want).max() < 1e-5


def test_threads_of_units_have_no_room_for_it() -> None:
    """A residual of several rows, beside sums of digits that fill the registers."""
    with an_h200() as machine:
        left = empty(16, 4096, dtype="float32")
        found = packed_on_a_gpu("Q4_K", 4096, 4096).product(left) + empty(16, 4096, dtype="float32")
        text = program_of(planned([found.uop], machine)[-1].before, machine).text
    after = text.rsplit("__syncthreads", 1)[1]
    assert re.search(r"\(const float2\*\)\(g\d", after)
