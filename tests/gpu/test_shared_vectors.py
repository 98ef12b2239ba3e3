"""Short reductions whose steps are vectors: threads have one each, and tell one another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from morok import Tensor
from morok.device.cuda.device import program_of
from tests.optimize.plans import Planned, an_h200, empty, planned

WIDE = 4  # numbers of a vector


def scaled(x: Tensor, groups: int, steps: int) -> Tensor:
    """Numbers by the largest of their group, and beside each vector what its group adds up to."""
    wide = x.reshape(-1, groups, steps, WIDE)
    four = [wide[..., i] for i in range(WIDE)]
    a, b, c, d = (t.abs() for t in four)
    top = a.maximum(b).maximum(c.maximum(d)).max(-1, keepdim=True)
    total = ((four[0] + four[1]) + (four[2] + four[3])).sum(-1, keepdim=True)
    parts = [*(t / top for t in four), total.expand(*four[0].shape)]
    return Tensor.stack(*parts).contiguous()


def wanted(x: np.ndarray, groups: int, steps: int) -> np.ndarray:
    wide = x.astype(np.float64).reshape(-1, groups, steps * WIDE)
    parts = (wide / np.abs(wide).max(-1, keepdims=True)).reshape(-1, groups, steps, WIDE)
    sums = np.broadcast_to(wide.sum(-1)[..., None], parts.shape[:3])
    return np.stack([*(parts[..., i] for i in range(WIDE)), sums])


def plan_of(rows: int, groups: int, steps: int) -> tuple[Planned, str, int]:
    with an_h200() as machine:
        (kernel,) = planned(
            [scaled(empty(rows, groups * steps * WIDE, dtype="float32"), groups, steps).uop], machine
        )
        program = program_of(kernel.before, machine)
        return kernel, program.text, math.prod(program.block)


@pytest.mark.parametrize("steps", [2, 4, 8, 16, 32])
def test_threads_have_a_vector_each(steps: int) -> None:
    """Which they read once for the reductions, and at most once more for what is made of it."""
    kernel, text, threads = plan_of(4, 512, steps)
    assert "GROUP" in kernel.names and "UNROLL" not in kernel.names
    assert text.count("*(const float4*)(g1 + ") <= 2 and "__shfl_sync" in text
    assert "for (" not in text
    assert threads % 32 == 0


def test_what_is_no_power_of_two_is_planned_as_before() -> None:
    kernel, _, _ = plan_of(4, 512, 6)
    assert "GROUP" not in kernel.names


@pytest.mark.parametrize("steps", [2, 6, 8, 16, 32, 64])
@pytest.mark.parametrize(("rows", "groups"), [(1, 3), (5, 8), (2, 67)])
def test_values(rows: int, groups: int, steps: int) -> None:
    """By the emulator, which refuses races and reads beyond the end."""
    x = np.random.default_rng(steps).standard_normal((rows, groups * steps * WIDE)).astype(np.float32)
    found = scaled(Tensor(x, device="EMULATOR"), groups, steps).numpy()
    np.testing.assert_allclose(found, wanted(x, groups, steps), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [128, 1024, 4096])
def test_a_norm_of_the_row_comes_first(columns: int) -> None:
    """Every block finds it anew, with all of its threads."""
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    given = Tensor(x, device="EMULATOR").realize()
    found = scaled(given.rms_norm(-1, eps=1e-5), columns // 32, 8).numpy()
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, wanted(normed, columns // 32, 8), rtol=1e-4, atol=1e-4)
