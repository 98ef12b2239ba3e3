"""Steps of a loop on a GPU that is none: the graph is told of the next step while it runs."""

from typing import Any

import numpy as np

from morok import Tensor, Variable, jit
from morok.device.cuda.device import Cuda
from morok.tensor.jit.steady import Steady

ROOM = 12


def test_a_graph_is_told_ahead_what_a_counter_will_be(gpu: Cuda) -> None:
    at: Any = Variable("at", 0, ROOM - 1)

    def step(row: Tensor, cache: Tensor, at: Any) -> Tensor:
        cache[at : at + 1] = row * 2.0
        return (cache[: at + 1].sum(0).contiguous() + 1.0).contiguous()

    f = Steady(jit(step))
    cache = Tensor.zeros(ROOM, 4, device="CUDA").contiguous().realize()
    known = np.zeros((ROOM, 4), np.float32)
    driver: Any = gpu.driver
    row = np.arange(4, dtype=np.float32).reshape(1, 4)
    given = Tensor(row, device="CUDA").realize()
    for place in (0, 1, 2, 3, 4, 5, 2, 3, 9, 10, ROOM - 1, 0, 1):
        driver.log.clear()
        found = f(given, cache, at.bind(place))
        steps = [entry.split()[0] for entry in driver.log if entry.startswith(("patch", "replay"))]
        if place in (4, 5):  # nothing is left to be told before
            assert steps[0] == "replay" and "patch" in steps
        known[place] = 2.0 * row
        np.testing.assert_array_equal(found.numpy(), known[: place + 1].sum(0) + 1.0)
        del found
    np.testing.assert_array_equal(cache.numpy(), known)
