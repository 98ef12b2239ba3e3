"""What is legal after each stage: kernels of every device pass, and a stage that is left out is noticed."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import STAGES, lower
from morok.codegen.spec import kernel_spec
from morok.device.registry import get_device
from morok.ir.node import UOp, toposort
from morok.optimize.actions.table import apply, can
from morok.optimize.record import Opt
from morok.rewrite.record import Change
from morok.runtime.history import recording
from morok.schedule.graph.stages import GRAPH_STAGES
from morok.schedule.kernel.stages import KERNEL_STAGES
from morok.schedule.schedule import schedule

RANDOM = np.random.default_rng(3)


def _numbers(*shape: int, dtype: type = np.float32) -> Tensor:
    return Tensor(RANDOM.standard_normal(shape).astype(dtype))


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "product": lambda: _numbers(40, 33) @ _numbers(33, 48),
    "matrix units": lambda: _numbers(64, 64, dtype=np.float16) @ _numbers(64, 64, dtype=np.float16),
    "rows": lambda: _numbers(12, 100).softmax(-1),
    "running": lambda: _numbers(3, 300).cumsum(1),
    "windows": lambda: _numbers(1, 2, 8, 8).conv2d(_numbers(3, 2, 3, 3), padding=1),
    "booleans": lambda: (_numbers(9, 9) > 0).T.contiguous(),
    "positions": lambda: _numbers(6, 5)[Tensor([1, 4, 2])],
    "transposed": lambda: _numbers(130, 257).T.contiguous(),
}


def test_every_stage_says_what_it_leaves() -> None:
    assert all(stage.spec is not None for stage in (*GRAPH_STAGES, *KERNEL_STAGES, *STAGES))


FOR_ALL = ("rows", "booleans")  # what the interpreter takes is legal before codegen
PAIRS = [(p, d) for d in ("CPU", "EMULATOR", "PYTHON") for p in PROGRAMS if d != "PYTHON" or p in FOR_ALL]


@pytest.mark.parametrize("program, device", PAIRS)
def test_kernels_of_every_device_are_legal_after_every_stage(program: str, device: str) -> None:
    with knobs.override(SPEC=2, DEVICE=device, CACHE=False):
        assert PROGRAMS[program]().numpy().size


def test_sums_in_memory_that_are_unrolled_are_legal() -> None:
    """All steps of a sum are lanes, and its accumulators lie in the cache."""
    x = Tensor.empty(5, 2, dtype="int64", device="CPU")
    (item,) = schedule([(x @ x.T).uop]).items
    machine = get_device("CPU").machine
    kernel = item.ast
    for opt in (Opt("ACCUMULATE_IN_CACHE", 2, 1), Opt("JOIN", 0, 1), Opt("UNROLL", 2, 0)):
        assert can(kernel, opt, machine) is None
        kernel = apply(kernel, opt, machine)
    with knobs.override(SPEC=2):
        lower(kernel, machine)


@cache
def _stages(program: str, device: str) -> dict[str, Change]:
    with knobs.override(DEVICE=device), recording() as history:
        PROGRAMS[program]().realize()
    return {stage.by.number: stage for stage in history.kernels[-1].stages}


NEEDED = [
    ("9", "product", "CPU"),
    ("10", "product", "CPU"),
    ("11", "rows", "CPU"),
    ("11", "rows", "EMULATOR"),
    ("12", "rows", "EMULATOR"),
    ("13", "windows", "CPU"),
    ("14", "rows", "CPU"),
    ("14a", "booleans", "CPU"),
    ("15", "transposed", "EMULATOR"),
    ("20", "transposed", "CPU"),
    ("21", "product", "CPU"),
]


@pytest.mark.parametrize("number, program, device", NEEDED)
def test_a_stage_that_is_left_out_is_noticed(number: str, program: str, device: str) -> None:
    stage = _stages(program, device)[number]
    (row,) = [s for s in STAGES if s.number == number]
    assert row.spec is not None and stage.after is not None
    assert _legal(row.spec.admits, stage.after)
    assert not _legal(row.spec.admits, stage.before)


def _legal(admits: Callable[[UOp], bool], root: UOp) -> bool:
    return all(map(admits, toposort(root)))


def test_what_the_optimiser_hands_over_is_a_kernel() -> None:
    for device in ("CPU", "EMULATOR"):
        after = _stages("matrix units", device)["7"].after
        assert after is not None
        kernel_spec.verify(after)
