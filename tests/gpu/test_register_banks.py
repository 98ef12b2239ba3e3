"""What a kernel's text says to NVIDIA's compiler of the registers of sums; see render/cuda/registers.py."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.lowering import instructions
from morok.render.cuda.kernel import render
from tests.optimize.plans import an_h200, empty, planned


def text(make: Callable[[], Tensor]) -> str:
    """The largest kernel of a program."""
    with an_h200() as machine:
        found = [render(instructions(k.ast, machine, "k"), "k").text for k in planned([make().uop], machine)]
    return max(found, key=len)


def floats(*shape: int) -> Tensor:
    return empty(*shape, dtype="float32")


def test_sums_that_are_stored_in_vectors_are_copied_first() -> None:
    """Of a row of a thread's tile, whose columns lie side by side; not where they are apart, or in use."""
    side_by_side = text(lambda: floats(2048, 2048) @ floats(2048, 2048))
    stores = re.findall(r"make_float4\(.*\);", side_by_side)
    assert len(stores) == 32 and all(store.count("copied(") == 4 for store in stores)
    apart = text(lambda: floats(2, 2048, 2048) @ floats(2, 2048, 2048).transpose(1, 2))
    assert "copied(" not in apart
    assert "copied(" not in text(lambda: (floats(2048, 2048) @ floats(2048, 2048)).relu())


@pytest.mark.parametrize(("size", "turns"), [(2048, True), (512, False)])
def test_two_turns_of_a_large_tile_are_written_out(size: int, turns: bool) -> None:
    """A thread of a small one has 16 sums, and others to wait with."""
    found = text(lambda: floats(size, size) @ floats(size, size))
    assert found.count("#pragma unroll 2\n") == int(turns)


def test_copies_are_the_numbers_that_they_copy() -> None:
    """The emulator runs instructions and not their text, so only a GPU can say it."""
    assert "copied(" in text(lambda: floats(2048, 64) @ floats(64, 2048))
    if knobs.DEVICE.value != "CUDA":
        pytest.skip("copies are in the text for NVIDIA's compiler: DEVICE=CUDA runs it")
    random = np.random.default_rng(5)
    a, b = (random.normal(size=s).astype(np.float32) for s in ((2048, 64), (64, 2048)))
    a[3, :], a[5, 7] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), want, rtol=2e-4, atol=2e-5)
