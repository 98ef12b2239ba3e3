"""The clock of a search on a GPU: many launches of a kernel as one graph, timed by the GPU itself.

The host needs microseconds to start a kernel. Launches one by one would show the host's time for whatever is
shorter, so that a slow little kernel looks like a fast one. In a graph they follow each other as the kernels
of a replayed plan do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from morok.device.cuda.interface import Driver, Launch
from morok.device.cuda.kernel import CudaKernel, Table, address_of
from morok.device.tuning.tunable import Turns

Measure = Callable[[Callable[[], None]], float]
MOST = 256  # launches of a graph


@final
class GraphStopwatch:
    """A clock for a kernel. Every burst goes through all sets of buffers at least once."""

    def __init__(
        self, driver: Driver, measure: Measure, kernel: CudaKernel, turns: Turns, values: Mapping[str, int]
    ) -> None:
        self.driver = driver
        self.measure = measure
        self.turns = turns
        self.tables = [Table(kernel, values) for _ in turns]  # kept: the driver only knows addresses
        for table, buffers in zip(self.tables, turns, strict=True):
            for i, buffer in enumerate(buffers):
                table.put(i, address_of(buffer))
        steps = [kernel.step(table, values) for table in self.tables]
        self.steps: list[Launch] = [step for step in steps if step is not None]
        self.graphs: dict[int, Any] = {}

    def __call__(self, count: int) -> float:
        steps = self.steps
        if not steps:  # an empty grid
            return self.measure(lambda: None)
        if count == len(steps) == 1:
            return self.measure(lambda: self.driver.launch(steps[0]))
        length = max(len(steps), min(count, MOST))
        if length not in self.graphs:
            self.graphs[length] = self.driver.graph([steps[i % len(steps)] for i in range(length)])
            self.driver.replay(self.graphs[length])  # the first launch of a graph carries it to the GPU
        graph, replays = self.graphs[length], -(-count // length)

        def work() -> None:
            for _ in range(replays):
                self.driver.replay(graph)

        return self.measure(work) * count / (length * replays)
