"""Kernels that are written instruction by instruction: order, loops, registers and branches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from morok import dtype as dt
from morok import knobs
from morok.codegen.written import Code
from morok.device.cpu.kernel import Steps
from morok.device.cpu.written import compile_written
from morok.device.registry import get_device
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine


def ran(write: Callable[[Code], None], size: int) -> np.ndarray:
    """The kernel's one buffer of doubles, which begins as 0, 1, 2, …"""
    device = get_device("CPU")
    buffer = device.buffer(size, dt.float64)
    memory = np.frombuffer(buffer.memory, np.float64, size)
    memory[:] = np.arange(size)

    def written(code: Code, machine: Machine) -> None:
        write(code)

    kernel = compile_written(written, "written")
    Steps([(kernel, kernel.arguments([buffer], {}))])()
    return memory.copy()


def test_a_turn_sees_what_the_one_before_has_stored() -> None:
    def write(code: Code) -> None:
        a = code.memory(dt.float64, 10)
        with code.loop(9) as i:
            a.store(i + 1, a.load(i) + a.load(i + 1))

    np.testing.assert_array_equal(ran(write, 10), np.cumsum(np.arange(10.0)))


def test_an_access_after_a_store_is_another_one() -> None:
    def write(code: Code) -> None:
        a = code.memory(dt.float64, 3)
        first = a.load(1)
        a.store(1, first + 5.0)
        a.store(2, a.load(1) * first)

    np.testing.assert_array_equal(ran(write, 3), [0, 6, 6])


def test_loops_of_sizes_that_are_found() -> None:
    """A triangle of turns, and loops that do not run at all."""

    def write(code: Code) -> None:
        a = code.memory(dt.float64, 4)
        total = code.register(code.value(0.0, dt.float64))
        with code.loop(4) as i, code.loop(i) as j:
            total.set(total.get() + j.cast(dt.float64))
        a.store(0, total.get())
        with code.loop(code.value(3, dt.int64) - 3):
            a.store(1, 100.0)

    np.testing.assert_array_equal(ran(write, 4), [0 + 1 + 0 + 1 + 2 + 0, 1, 2, 3])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_phase_waits_for_the_one_before(threads: int) -> None:
    """Every worker reads what all others have stored in the phase before, again and again."""
    phases, workers = 200, 3

    def write(code: Code) -> None:
        a = code.memory(dt.float64, 2 * workers)
        with code.phases(phases, workers) as (phase, worker):
            turn = phase & 1
            total = code.register(code.value(0.0, dt.float64))
            with code.loop(workers) as other:
                total.set(total.get() + a.load(turn * workers + other))
            new = total.get() * (1 / workers) + worker.cast(dt.float64)
            a.store((code.value(1, dt.int64) - turn) * workers + worker, new)

    want = np.arange(2.0 * workers).reshape(2, workers)
    for n in range(phases):
        want[1 - n % 2] = want[n % 2].sum() * (1 / workers) + np.arange(workers)
    with knobs.override(THREADS=threads):
        for _ in range(5):
            np.testing.assert_allclose(ran(write, 2 * workers), want.reshape(-1))


def test_registers_are_changed_under_a_condition() -> None:
    def write(code: Code) -> None:
        a = code.memory(dt.float64, 6)
        best = code.register(code.value(-1.0, dt.float64))
        with code.loop(6) as i:
            x = a.load(i)
            with code.given(x < 3.5):
                best.set(x)
            a.store(i, (x > 3.5).where(best.get(), 0.0))

    np.testing.assert_array_equal(ran(write, 6), [0, 0, 0, 0, 3, 3])


def test_vectors_and_lanes() -> None:
    def write(code: Code) -> None:
        a = code.memory(dt.float64, 8)
        x = a.load(0, 4)
        y = code.add_product(x, a.load(4, 4), a.load(1).spread(4))
        a.store(0, y)
        a.store(4, (x > 1.5).where(y, -x))
        a.store(4, x.total())
        a.store(5, x.equals(2.0).any().where(code.value(7.0, dt.float64), 0.0))

    np.testing.assert_array_equal(ran(write, 8), [4, 6, 8, 10, 6, 7, 8, 10])


def test_workers_have_memory_of_their_own() -> None:
    def write(code: Code) -> None:
        a = code.memory(dt.float64, 64)
        with code.loop(16, AxisKind.THREAD) as i:
            own = code.local(dt.float64, 4)
            with code.loop(4) as j:
                own.store(j, a.load(i * 4 + j))
            with code.loop(4) as j:
                a.store(i * 4 + j, own.load(3 - j))

    np.testing.assert_array_equal(ran(write, 64), np.arange(64.0).reshape(16, 4)[:, ::-1].ravel())


def test_a_number_in_two_branches() -> None:
    """In one of them only memory asks for it, in the other one it is stored."""

    def write(code: Code) -> None:
        a = code.memory(dt.float64, 6)
        x = a.load(2).cast(dt.int64)
        with code.given(x.equals(2)):
            a.store(0, (x + 3).cast(dt.float64))
        with code.given(x.equals(2)):
            a.store(x + 3, a.load(x + 3) * 2.0)

    np.testing.assert_array_equal(ran(write, 6), [5, 1, 2, 3, 4, 10])


def test_turns_until_a_condition_fails() -> None:
    """The first turn is always there; what a turn has computed decides about the next one."""

    def write(code: Code) -> None:
        a = code.memory(dt.float64, 8)
        left = code.register(100)
        with code.loop(1 << 62, again=lambda: left.get() > 3) as i:
            left.set(left.get() >> 1)
            a.store(i, left.get().cast(dt.float64))
        with code.loop(1 << 62, again=lambda: left.get() > 3):
            a.store(7, 70.0)
        with code.loop(0, again=lambda: left.get() > -1):
            a.store(6, 60.0)

    np.testing.assert_array_equal(ran(write, 8), [50, 25, 12, 6, 3, 5, 6, 70])


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_some_lanes(lanes: int) -> None:
    """Lanes are read where a mask holds, stored in their places, or side by side; and counted."""

    def write(code: Code) -> None:
        a = code.memory(dt.float64, 4 * lanes + 1)
        mask = (code.counting(lanes, dt.int64) & 1).equals(1)
        found = a.load_some(0, mask, -1.0)
        a.store_some(lanes, found + 100.0, mask)
        a.pack(2 * lanes, found, mask)
        a.store(3 * lanes, found)
        a.store(4 * lanes, mask.true_lanes().cast(dt.float64))

    want = np.arange(4.0 * lanes + 1)
    odd = np.arange(1.0, lanes, 2)
    want[lanes + 1 : 2 * lanes : 2] = odd + 100
    want[2 * lanes : 2 * lanes + lanes // 2] = odd
    want[3 * lanes : 4 * lanes] = np.where(np.arange(lanes) % 2, np.arange(lanes), -1.0)
    want[-1] = lanes // 2
    np.testing.assert_array_equal(ran(write, 4 * lanes + 1), want)


def test_lanes_of_two_vectors() -> None:
    def write(code: Code) -> None:
        a = code.memory(dt.float64, 8)
        x, y = a.load(0, 4), a.load(4, 4)
        a.store(0, x.chosen((3, 2, 1, 0)))
        a.store(4, x.chosen((0, 5, 2, 7), y))

    np.testing.assert_array_equal(ran(write, 8), [3, 2, 1, 0, 0, 5, 2, 7])
