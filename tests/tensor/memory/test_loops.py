"""Loops that write memory: a step costs as much as the one before, however lazily its results are read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, no_grad
from morok.ir.node import toposort
from tests.tensor.common import same

STEPS = 24
RATE = 0.01


class Run:
    """Training of one parameter whose loss is read after the step that follows it."""

    def __init__(self, average: str, momentum: bool) -> None:
        self.average, self.momentum = average, momentum
        self.start = np.linspace(-1, 1, 12).reshape(3, 4)
        self.p = Tensor(self.start).realize()
        self.p.requires_grad_(True)
        self.m = Tensor(np.zeros((3, 4))).realize()
        self.ema = self.p.detach().clone()

    def step(self) -> float:
        loss = ((self.p * 2).tanh() ** 2).sum()
        loss.backward()
        assert self.p.grad is not None
        with no_grad():
            self.m = self.m * 0.9 + self.p.grad if self.momentum else self.p.grad
            self.p -= RATE * self.m
            if self.average == "written":
                self.ema += 0.1 * (self.p.detach() - self.ema)
            elif self.average == "new":
                self.ema = self.ema + 0.1 * (self.p.detach() - self.ema)
            self.p.zero_grad()
        return float(loss.item())

    def wanted(self) -> tuple[list[float], Any, Any]:
        p, m, ema, losses = self.start.copy(), np.zeros((3, 4)), self.start.copy(), []
        for _ in range(STEPS):
            t = np.tanh(2 * p)
            losses.append((t**2).sum())
            grad = 4 * t * (1 - t**2)
            m = m * 0.9 + grad if self.momentum else grad
            p = p - RATE * m
            ema = ema + 0.1 * (p - ema)
        return losses, p, ema


@pytest.mark.parametrize("average", ["", "written", "new"])
@pytest.mark.parametrize("momentum", [False, True])
def test_steps_of_training_do_not_hang_on_each_other(average: str, momentum: bool) -> None:
    run = Run(average, momentum)
    losses, sizes = [], []
    for _ in range(STEPS):
        losses.append(run.step())
        sizes.append(len(toposort(run.p.uop, run.ema.uop, run.m.uop)))
    wanted, p, ema = run.wanted()
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    assert max(sizes[STEPS // 2 :]) <= max(sizes[: STEPS // 2])
    same(run.p.detach(), p, rtol=1e-12)
    if average:
        same(run.ema, ema, rtol=1e-12)


def test_what_waits_is_not_copied_for_each_step() -> None:
    """An average that is written, and read by nobody, is computed along; no step of the other is kept."""
    p, ema = Tensor(np.zeros(4)).realize(), Tensor(np.zeros(4)).realize()
    for i in range(STEPS):
        p += i + 1.0
        ema += 0.5 * (p - ema)
        plan = (p * 1).plan()
        assert len(plan.schedule.items) <= 6
        plan.run()
    want_p, want = 0.0, 0.0
    for i in range(STEPS):
        want_p += i + 1.0
        want += 0.5 * (want_p - want)
    same(ema, np.full(4, want), rtol=1e-12)
    same(p, np.full(4, want_p))


def swapped(a: Any, b: Any, c: Any) -> None:
    a += b
    b += 2 * c
    c += a


def chained(a: Any, b: Any, c: Any) -> None:
    c += b
    b += a
    a += 1
    b *= 0.5
    c[1:] = b[:-1] + a[1:]


def passed_on(a: Any, b: Any, c: Any) -> None:
    old = a * 1
    a[...] = b + c
    b[...] = c + old
    c[...] = old * 0.5


@pytest.mark.parametrize("step", [swapped, chained, passed_on])
@pytest.mark.parametrize("read", range(4))
def test_memories_that_wait_for_each_other(step: Callable[..., None], read: int) -> None:
    """Whichever is read at each step, all hold what NumPy says, also those that were never read before."""
    state = [np.arange(4.0) + i for i in range(3)]
    ours = [Tensor(x).realize() for x in state]
    for _ in range(6):
        step(*ours)
        step(*state)
        if read < 3:
            same(ours[read], state[read])
    for got, want in zip(ours, state, strict=True):
        same(got, want)


def test_gradients_of_what_was_built_before_a_step_ran() -> None:
    """The parameter is in a graph by a name that it had before earlier assignments ran."""
    p = Tensor(np.ones(3)).realize()
    p.requires_grad_(True)
    view = p[1:]
    with no_grad():
        p -= 0.1
    earlier = (p * 3).sum()
    with no_grad():
        p -= 0.1
    loss = (p * p).sum() + (view * 2).sum()
    assert earlier.item() == pytest.approx(8.1)
    loss.backward()
    assert p.grad is not None
    same(p.grad, np.array([1.6, 3.6, 3.6]), rtol=1e-12)
    assert loss.item() == pytest.approx(3 * 0.64 + 2 * 2 * 0.8)
    p.zero_grad()
    (view * p[:2]).sum().backward()
    same(p.grad, np.array([0.8, 1.6, 0.8]), rtol=1e-12)
