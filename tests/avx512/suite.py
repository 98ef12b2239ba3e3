"""Kernels planned for AVX-512 leave the same memory behind on a processor that has it as they do here.

Here LLVM makes other instructions of the same text; NumPy judges that elsewhere. `make test-avx512`
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from morok import Tensor, knobs
from tests.avx512 import bochs
from tests.avx512.record import recorded
from tests.programs.generate import WIDE, Program, programs, run

RNG = np.random.default_rng(7)
MACHINE = "avx512"


def normal(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32)).cast(dtype)


def differing(jobs: list[bochs.Job], folder: Path) -> list[str]:
    """What is to be said of each kernel that left something else behind."""
    found = []
    for outcome in bochs.run(jobs, folder):
        if outcome.regions is None:
            found.append(f"{outcome.job.name} did not come to its end")
            continue
        for number, got in outcome.regions.items():
            if not _same(outcome.job.after[number], got):
                found.append(f"{outcome.job.name} differs in region {number}\n{outcome.job.text}")
    return found


def _same(wanted: bytes, got: bytes) -> bool:
    """Equal but for the bits of NaNs, which processors choose."""
    for kind in (np.float32, np.float64, np.float16):
        size = np.dtype(kind).itemsize
        if len(wanted) % size == 0:
            a, b = np.frombuffer(wanted, kind), np.frombuffer(got, kind)
            differs = np.frombuffer(wanted, f"V{size}") != np.frombuffer(got, f"V{size}")
            if (np.isnan(a) & np.isnan(b))[differs].all():
                return True
    return False


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    missing = bochs.missing_tools()
    if missing:
        pytest.skip(f"there is no {', '.join(missing)}")


@given(programs() | programs(sizes=WIDE))
@settings(max_examples=150, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def _random(program: Program) -> None:
    run(program, "CPU")


def _windows() -> None:
    for k, s, p, d in (((3, 2), (1, 3), (0, 1), (2, 3)), ((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 3), 1, 1, 1)):
        for width in (9, 21, 32):
            x = normal(2, 3, 11, width)
            x.max_pool2d(k, s, p, d).realize()
            x.conv2d(normal(7, 3, *k), stride=s, padding=p, dilation=d).realize()
            x.conv2d(normal(3, 1, *k), stride=s, padding=p, dilation=d, groups=3).realize()


def _products() -> None:
    for rows, steps, columns in ((1, 64, 100), (7, 33, 16), (64, 64, 64), (37, 129, 50)):
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            (normal(rows, steps, dtype=dtype) @ normal(steps, columns, dtype=dtype)).realize()
        a = Tensor(RNG.integers(-128, 128, (rows, steps)).astype(np.int8)).cast("int32")
        (a @ Tensor(RNG.integers(-128, 128, (steps, columns)).astype(np.int8)).cast("int32")).realize()
        (normal(rows, steps) @ normal(columns, steps).T).gelu().realize()


def _rows() -> None:
    for shape in ((5, 1000), (33, 17), (4, 7, 31)):
        x = normal(*shape)
        Tensor.realize(x.softmax(-1), x.softmax(0), x.std(-1), x.argmax(-1), x.cumsum(-1), x.sort(-1)[0])
        Tensor.realize(x.exp().log(), x.sin(), x.tanh(), x.erf(), (x * 7).cast("int8"), x.cast("bfloat16"))


def _attention() -> None:
    for heads, queries, keys, width in ((2, 17, 33, 16), (1, 1, 70, 64)):
        q, k, v = (
            normal(1, heads, queries, width),
            normal(1, heads, keys, width),
            normal(1, heads, keys, width),
        )
        q.scaled_dot_product_attention(k, v).realize()


def _training() -> None:
    x, w, v = normal(4, 3, 9, 9), normal(5, 3, 3, 3), normal(5 * 49, 6)
    loss = (x.conv2d(w).relu().reshape(4, -1) @ v).log_softmax(-1)[:, 0].mean()
    Tensor.realize(loss, *loss.gradient(x, w, v))


PROGRAMS: list[Callable[[], Any]] = [_random, _windows, _products, _rows, _attention, _training]


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels(program: Callable[[], Any], tmp_path: Path) -> None:
    with knobs.override(DEVICE="CPU", MACHINE=MACHINE, THREADS=1), recorded() as jobs:
        program()
    judged = [job for job in jobs.values() if bochs.can_judge(job)]
    print(f"{len(judged)} of {len(jobs)} kernels")
    assert len(judged) > len(jobs) // 2
    assert differing(judged, tmp_path) == []


def test_a_wrong_kernel_is_noticed(tmp_path: Path) -> None:
    with knobs.override(DEVICE="CPU", MACHINE=MACHINE, THREADS=1), recorded() as jobs:
        (normal(40) + 1).realize()
    (job,) = jobs.values()
    assert "fadd" in job.text and differing([job], tmp_path) == []
    other = bochs.Job(**{**vars(job), "text": job.text.replace("fadd", "fsub")})
    assert len(differing([other], tmp_path)) == 1


def test_a_kernel_that_breaks_the_machine_costs_itself_alone(tmp_path: Path) -> None:
    with knobs.override(DEVICE="CPU", MACHINE=MACHINE, THREADS=1), recorded() as jobs:
        (normal(40) * 2).realize()
        (normal(41) - 1).realize()
    first, second = jobs.values()
    lost = bochs.Job(**{**vars(first), "arguments": (None,) * len(first.arguments)})
    broken = bochs.Job(
        **{**vars(lost), "text": first.text.replace("ret void", "call void @llvm.trap()\n  ret void")}
    )
    outcomes = list(bochs.run([broken, second], tmp_path))
    assert [outcome.regions for outcome in outcomes] == [None, {}]
