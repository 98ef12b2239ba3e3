"""Memory stays flat: shapes that do not come again, steps of training, compiled functions that are dropped.

The short tests count what is alive. The long ones look at the memory of a process of its own.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from morok import Tensor, jit, nn
from morok.caches import CACHES, clear_all
from morok.ir.node import live_nodes

ROOT = Path(__file__).resolve().parents[2]


def alive() -> int:
    gc.collect()
    return live_nodes()


def entries() -> int:
    return sum(len(cache) for cache in CACHES.values())


def one_jit(size: int) -> None:
    weight = Tensor.ones(size).contiguous().realize()
    f = jit(lambda x: (x * weight).sum())
    x = Tensor.ones(size).contiguous().realize()
    for _ in range(3):
        f(x).realize()


def test_compiled_functions_that_are_dropped() -> None:
    one_jit(24)
    one_jit(24)
    before, kept = alive(), entries()
    for _ in range(10):
        one_jit(24)
    assert alive() <= before and entries() <= kept


def test_steps_of_training() -> None:
    layer = nn.Linear(4, 3)
    optimizer = nn.AdamW(nn.parameters(layer), lr=1e-3)
    x = Tensor.ones(2, 4).contiguous().realize()

    def step() -> None:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(3):
        step()
    before, kept = alive(), entries()
    for _ in range(20):
        step()
    assert alive() <= before and entries() <= kept


@pytest.mark.parametrize("device", ["CPU", "EMULATOR"])
def test_nothing_but_the_caches_holds_a_shape(device: str) -> None:
    def shapes(first: int) -> int:
        for size in range(first, first + 3):
            x = Tensor.ones(size, 3, device=device).contiguous()
            (x * 2 + 1).sum().item()
            (x @ x.transpose(0, 1)).softmax(-1).realize()
            Tensor.arange(size, device=device).flip(0).sort().values.realize()
            y = Tensor.ones(1, 2, size, 5, device=device).requires_grad_()
            loss = y.conv2d(Tensor.ones(3, 2, 3, 3, device=device)).relu().sum()
            loss.gradient(y)[0].realize()
            one_jit(size)
        clear_all()
        return alive()

    before = shapes(40)
    assert shapes(60) - before < 3  # not one for each


def test_caches_have_bounds() -> None:
    for cache in CACHES.values():
        assert len(cache) <= cache.bound


WATCH = """
import gc, resource, sys
from morok import Tensor, jit, nn
import numpy as np

def used():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

def shapes(n):
    x = Tensor.ones(n % 5000 + 3, n // 5000 + 1).contiguous()
    (x * 2 + 1).sum().item()

layer = nn.Linear(16, 16)
optimizer = nn.AdamW(nn.parameters(layer), lr=1e-4)
data = Tensor.ones(4, 16).contiguous().realize()

def steps(n):
    optimizer.zero_grad()
    loss = layer(data).gelu().square().mean()
    loss.backward()
    optimizer.step()
    loss.item()

def jits(n):
    weight = Tensor.ones(64, 64).contiguous().realize()
    f = jit(lambda x: (x @ weight).relu() + n % 7)
    f(weight)
    f(weight).numpy()

work = {"shapes": shapes, "steps": steps, "jits": jits}[sys.argv[1]]
warm, count = int(sys.argv[2]), int(sys.argv[3])
for n in range(warm):
    work(n)
before = used()
for n in range(warm, warm + count):
    work(n)
print(used() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "warm", "count", "most"),
    [("shapes", 5000, 15_000, 80), ("steps", 1000, 9_000, 20), ("jits", 200, 800, 20)],
)
def test_a_process_does_not_grow(what: str, warm: int, count: int, most: float) -> None:
    """Megabytes after so many, beyond those of the first."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH, what, str(warm), str(count)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most
