"""Times of single kernels, without the host's.

Between two events on a GPU that has nothing else to do lies also the time in which the host starts the
kernel, some twenty microseconds, and much more at its first call. So the GPU is kept busy first, by a loop
that looks at its clock, until events and kernel are all in its queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from morok.device.base import Program
from morok.device.compiled import Compiled
from morok.device.cuda.interface import Driver
from morok.device.cuda.kernel import CudaKernel
from morok.errors import MorokError

_FIRST, _LEAST, _MOST = 2e-3, 5e-5, 2e-3  # seconds: at a first call, and afterwards
_WAIT = """\
extern "C" __global__ void wait(long long nanoseconds) {
  long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - began < nanoseconds);
}
"""


@final
class HeadStart:
    """Measures kernels of a GPU one by one."""

    def __init__(self, driver: Driver, compile_text: Callable[[str, str], bytes]) -> None:
        self.driver = driver
        self._seen: set[int] = set()
        self._host = 1e-4  # seconds that the host took for the last kernel that had run before
        self._wait: CudaKernel | None = None
        try:
            code = compile_text(_WAIT, "wait")
            compiled = Compiled("wait", code, 0, ("nanoseconds",), grid=((1,),), block=(1,))
            self._wait = CudaKernel(compiled, "wait", driver)
            self._wait.load()
        except MorokError:  # then the host's time is part of it
            self._wait = None

    def measure(self, program: Program, work: Callable[[], None]) -> float:
        """Seconds that the work of a program takes on the GPU."""
        is_first = id(program) not in self._seen
        self._seen.add(id(program))  # one that has taken the place of another waits a little less
        driver = self.driver
        first, last = driver.event(timing=True), driver.event(timing=True)
        if self._wait is not None:
            wait = _FIRST if is_first else min(_MOST, max(_LEAST, 2 * self._host))
            self._wait([], {"nanoseconds": int(wait * 1e9)})
        began = time.perf_counter()
        driver.record(first)
        work()
        driver.record(last)
        if not is_first:
            self._host = time.perf_counter() - began
        return driver.seconds(first, last)
