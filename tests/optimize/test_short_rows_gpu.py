"""Rows that vectors do not fit into are one where they lie behind each other; neighbouring threads have
neighbouring outputs."""

import numpy as np
import pytest

from morok import Tensor
from morok.optimize.record import applied
from tests.optimize.plans import an_h200, empty, planned


def opts(y: Tensor) -> list[tuple[str, int, int]]:
    with an_h200() as machine:
        (kernel,) = planned([y.uop], machine)
        return [(opt.name, opt.axis, opt.amount) for opt in applied(kernel.ast)]


@pytest.mark.parametrize("dtype, lanes", [("float32", 4), ("bfloat16", 8)])
def test_a_number_for_each_channel(dtype: str, lanes: int) -> None:
    """49 places are no whole vectors; the pictures' channels, one after the other, are."""
    with an_h200():
        x, gate = empty(256, 512, 7, 7, dtype=dtype), empty(256, 512, 1, 1, dtype=dtype)
    found = opts(x * gate)
    assert found[0][0] == "JOIN"
    assert [o[2] for o in found if o[0] == "UPCAST"] == [lanes]


def test_whole_vectors_stay() -> None:
    with an_h200():
        x, gate = empty(256, 512, 8, 8), empty(256, 512, 1, 1)
    assert "JOIN" not in [o[0] for o in opts(x * gate)]


def test_what_lies_apart_stays() -> None:
    with an_h200():
        x, y = empty(512, 300, 49), empty(300, 512, 49)
    assert "JOIN" not in [o[0] for o in opts(x + y.permute(1, 0, 2))]


def test_neighbours() -> None:
    """The loop along memory is the last that is given to threads: these lie side by side."""
    with an_h200():
        x, y = empty(4096, 49, 96), empty(64, 1, 1, 96)
    found = [o for o in opts(x.reshape(64, 64, 49, 96) + y) if o[0] == "LOCAL"]
    assert len(found) > 1 and found[-1][1] == max(o[1] for o in found)


@pytest.mark.parametrize("shape", [(3, 5, 7, 7), (2, 3, 1, 5), (5, 16, 3, 3)])
def test_values(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, gate = (
        rng.standard_normal(shape, dtype=np.float32),
        rng.standard_normal((*shape[:2], 1, 1), dtype=np.float32),
    )
    found = Tensor(x, device="EMULATOR") * Tensor(gate, device="EMULATOR")
    np.testing.assert_array_equal(found.numpy(), x * gate)
