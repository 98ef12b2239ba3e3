"""What must not happen in a long-lived process: leaks, and faults that leave it unusable."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor
from morok.errors import OutOfMemory
from morok.ir.node import live_nodes


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fresh_graph(i: int) -> float:
    x = Tensor(np.full((4, 8), float(i), np.float32))
    return float(((x * 2.0 + 1.0).softmax(-1).sum() + float(i % 7)).item())


@pytest.mark.parametrize("rounds", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_stays_flat(rounds: int) -> None:
    for i in range(100):
        fresh_graph(i)
    gc.collect()
    nodes, memory = live_nodes(), resident()
    for i in range(rounds):
        assert fresh_graph(i) == pytest.approx(4.0 + i % 7)
    gc.collect()
    assert live_nodes() - nodes < 500
    assert resident() - memory < 30_000_000


def test_kernels_that_nobody_holds_are_freed() -> None:
    def other_kernel(i: int) -> None:
        Tensor(np.ones(8 + i, np.float32)).sum().realize()

    for i in range(20):
        other_kernel(i)
    gc.collect()
    nodes, memory = live_nodes(), resident()
    for i in range(20, 120):
        other_kernel(i)
    gc.collect()
    assert live_nodes() - nodes < 3000
    assert resident() - memory < 60_000_000


def test_more_memory_than_there_is() -> None:
    with pytest.raises(OutOfMemory, match="no room"):
        (Tensor.zeros(1 << 50) + 1.0).realize()
    assert (Tensor([1.0]) + 1.0).item() == 2.0


INTERRUPTED = """
import numpy as np, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from morok import Tensor
x = Tensor(np.ones((400, 400), np.float32)).realize()
(x @ x).realize()
try:
    print("ready", flush=True)
    while True:
        (x @ x).realize()
except KeyboardInterrupt:
    assert (Tensor([1.0]) + 1.0).item() == 2.0
    print("interrupted")
"""


def test_an_interrupt_during_a_run() -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    threading.Event().wait(0.1)
    process.send_signal(signal.SIGINT)
    try:
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out == "interrupted\n", error


LATE = """
import signal, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import morok.runtime.plan

class Thing: pass

def interrupted(ref):
    raise KeyboardInterrupt

thing = Thing()
ref = weakref.ref(thing, interrupted)
try:
    del thing
    time.sleep(10)
    print("lost")
except KeyboardInterrupt:
    print("kept")
"""


def test_an_interrupt_while_something_dies() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LATE], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "kept\n", done.stderr


def test_fork_after_use() -> None:
    x = Tensor(np.arange(6, dtype=np.float32))
    assert x.sum().item() == 15.0
    child = os.fork()
    if child == 0:
        good = (x * 2.0).sum().item() == 30.0 and (x + 1.0).max().item() == 6.0
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (x * 3.0).sum().item() == 45.0
