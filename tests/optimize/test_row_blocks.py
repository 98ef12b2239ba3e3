"""Who shares what belongs to a row: steps across it, and outputs that need all of it."""

import math

import numpy as np
import pytest

from morok import Tensor
from morok.machine.machine import Machine
from morok.optimize.record import applied
from morok.optimize.roofline import kernel_clocks
from tests.optimize.plans import an_h200, empty, planned


def sums_of_groups(x: Tensor, groups: int = 32) -> Tensor:
    """Of channels that lie last: rows of few channels, and many places beside each other."""
    b, h, w, c = map(int, x.shape)
    return x.reshape(b, h * w, groups, c // groups).permute(0, 2, 3, 1).sum((2, 3))


def scaled_by_a_sum(x: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """As many channels are summed up as each group has, whose places lie in order."""
    return x * w.unsqueeze(-1) + (s * w).sum(-1).unsqueeze(-1).unsqueeze(-1)


def less_its_mean(g: Tensor, w: Tensor) -> Tensor:
    """The gradient of weights that were normalised, of another order in memory."""
    g = g.permute(0, 2, 1)
    return g - g.mean((1, 2), keepdim=True) - w * (g * w).mean((1, 2), keepdim=True)


def clocks(y: Tensor, machine: Machine) -> tuple[float, list[tuple[str, int]]]:
    (kernel,) = planned([y.uop], machine)
    return kernel_clocks(kernel.ast, machine), [(opt.name, opt.amount) for opt in applied(kernel.ast)]


@pytest.mark.parametrize(("channels", "side"), [(256, 14), (512, 7)])
def test_steps_across_short_rows_are_shared(channels: int, side: int) -> None:
    """As long as the same sums of channels that lie first, whose rows threads share."""
    with an_h200() as machine:
        last = empty(8, side, side, channels, dtype="float32")
        first = empty(8, 32, channels // 32 * side * side, dtype="float32")
        mine, twin = clocks(sums_of_groups(last), machine)[0], clocks(first.sum(2), machine)[0]
    assert mine < 1.3 * twin


def test_many_short_rows_have_threads_of_their_own() -> None:
    """They keep the machine busy: nobody waits for others."""
    with an_h200() as machine:
        _, opts = clocks(sums_of_groups(empty(4096, 4, 4, 256, dtype="float32")), machine)
    assert not any(name == "GROUP" for name, _ in opts)


def test_outputs_that_lie_otherwise_are_no_row() -> None:
    with an_h200() as machine:
        x, s, w = empty(8, 32, 32, 196), empty(8, 32, 32, dtype="float32"), empty(32, 32)
        time, opts = clocks(scaled_by_a_sum(x, s, w), machine)
        assert machine.grid is not None
        moved = 8 * 32 * 32 * 196 * 4 * 2 / (machine.grid.memory * machine.cores)  # float32 results
        assert time < 4 * moved + machine.grid.launch
    assert math.prod(n for name, n in opts if name == "LOCAL") >= 128


def test_threads_of_a_row_share_what_needs_all_of_it() -> None:
    with an_h200() as machine:
        _, opts = clocks(less_its_mean(empty(64, 9, 64, dtype="float32"), empty(64, 64, 9)), machine)
    assert math.prod(n for name, n in opts if name == "LOCAL") >= 128


def test_values_of_groups() -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 5, 64)).astype(np.float32)
    want = x.astype(np.float64).reshape(2, 35, 8, 8).sum((1, 3))
    np.testing.assert_allclose(sums_of_groups(Tensor(x, device="EMULATOR"), 8).numpy(), want, 1e-4, 1e-4)


def test_values_scaled_by_a_sum() -> None:
    random = np.random.default_rng(1)
    x, s, w = (random.standard_normal(n).astype(np.float32) for n in ((2, 3, 32, 14), (2, 3, 32), (3, 32)))
    found = scaled_by_a_sum(*(Tensor(a, device="EMULATOR") for a in (x, s, w))).numpy()
    want = x * w[..., None] + (s * w).sum(-1)[..., None, None]
    np.testing.assert_allclose(found, want, 1e-4, 1e-4)


def test_values_less_its_mean() -> None:
    random = np.random.default_rng(2)
    g, w = (random.standard_normal(n).astype(np.float32) for n in ((5, 9, 16), (5, 16, 9)))
    found = less_its_mean(Tensor(g, device="EMULATOR"), Tensor(w, device="EMULATOR")).numpy()
    h = g.transpose(0, 2, 1)
    want = h - h.mean((1, 2), keepdims=True) - w * (h * w).mean((1, 2), keepdims=True)
    np.testing.assert_allclose(found, want, 1e-4, 1e-4)
