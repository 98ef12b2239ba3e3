"""Plans for processors that are not here run here, so NumPy judges them too.

The text of a kernel is the other processor's, with its vectors, masks and tiles; only LLVM's instructions are
this one's. A wrong plan is wrong here as well.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from morok import Tensor, knobs
from morok.device.cpu import device as cpu
from morok.device.cpu import llvm
from tests.programs.generate import WIDE, Program, check, programs

OTHERS = ("avx512-amx", "avx2", "neoverse-n1")
RNG = np.random.default_rng(0)


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels of the test are planned for this processor."""
    with knobs.override(DEVICE="CPU", MACHINE=request.param):
        yield request.param


@pytest.mark.usefixtures("other")
@given(programs() | programs(sizes=WIDE))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_programs(program: Program) -> None:
    check(program, "CPU")


@pytest.mark.slow
@pytest.mark.usefixtures("other")
@given(programs(most_steps=25) | programs(most_steps=25, sizes=WIDE))
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
def test_many_programs(program: Program) -> None:
    check(program, "CPU")


def windows(x: Any, k: Any, s: Any, p: Any, d: Any, edge: float) -> Any:
    """All that a window of two axes sees, along the first axis."""
    x = np.pad(x, ((0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])), constant_values=edge)
    rows, columns = ((x.shape[2 + i] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i in range(2))
    return np.stack([
        x[:, :, i * d[0] : i * d[0] + s[0] * rows : s[0], j * d[1] : j * d[1] + s[1] * columns : s[1]][
            :, :, :rows, :columns
        ]
        for i in range(k[0])
        for j in range(k[1])
    ])  # fmt: skip


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize(("k", "s"), [((3, 2), (1, 3)), ((2, 3), (2, 2)), ((1, 4), (1, 2))])
@pytest.mark.parametrize(("p", "d"), [((0, 1), (2, 3)), ((1, 0), (1, 2)), ((0, 0), (1, 1))])
def test_windows(k: Any, s: Any, p: Any, d: Any) -> None:
    """Windows that share places at the edge, where one of them is inside and the other is not."""
    p = tuple([min(p[i], k[i] // 2) for i in range(2)])
    for width in (9, 21):
        if (k[1] - 1) * d[1] >= width:
            continue
        x = RNG.standard_normal((2, 3, 8, width)).astype(np.float32)
        seen = windows(x, k, s, p, d, -np.inf)
        np.testing.assert_array_equal(Tensor(x).max_pool2d(k, s, p, d).numpy(), seen.max(0))
        w = RNG.standard_normal((4, 3, *k)).astype(np.float32)
        there = windows(x, k, s, p, d, 0.0)
        wanted = np.einsum("knchw,ock->nohw", there.astype(np.float64), w.reshape(4, 3, -1))
        got = Tensor(x).conv2d(Tensor(w), stride=s, padding=p, dilation=d).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("columns", [1, 5, 16, 50])
def test_products_of_bytes(columns: int) -> None:
    """Also those that the processor has an instruction for and this one has not."""
    a = RNG.integers(-128, 128, (37, 64)).astype(np.int8)
    b = RNG.integers(-128, 128, (64, columns)).astype(np.int8)
    got = (Tensor(a).cast("int32") @ Tensor(b).cast("int32")).numpy()
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize(
    ("machine", "vector"),
    [("avx512", "<16 x float>"), ("avx2", "<8 x float>"), ("neoverse-n1", "<4 x float>")],
)
def test_what_runs_is_the_other_ones_text(machine: str, vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def watched(text: str, *rest: Any) -> bytes:
        texts.append(text)
        return llvm.compile_object(text, *rest)

    monkeypatch.setattr(cpu, "compile_object", watched)
    x = RNG.standard_normal(64).astype(np.float32)
    with knobs.override(DEVICE="CPU", MACHINE=machine, CACHE=0):
        np.testing.assert_array_equal((Tensor(x) * 3 + 2).numpy(), x * 3 + 2)
    assert vector in "".join(texts)
