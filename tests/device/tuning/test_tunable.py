"""What devices offer to a search: candidates as bytes, and a clock; the same for the processor and a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from morok import knobs
from morok.device.base import Device
from morok.device.cpu.device import CPU
from morok.device.interpreter import Interpreter
from morok.device.tuning.tunable import Tunable
from morok.dtype import float32
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply_all
from morok.optimize.record import Opt
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus
from tests.optimize.kernels import kernel


def timed(device: Any, opts: tuple[Opt, ...]) -> Any:
    """Builds a candidate for the sum of two tensors, carries it over as bytes, times it: what it computed."""
    ast = apply_all(kernel("add"), opts, device.machine)
    code = device.build(ast, "candidate")
    assert isinstance(code, bytes)
    program = device.load(code, "candidate")
    buffers = [device.buffer(48, float32) for _ in range(3)]
    for i, buffer in enumerate(buffers):
        buffer.copy_in(np.arange(48, dtype=np.float32) + i)
    watch = device.stopwatch(program, [buffers], {})
    assert watch(1) >= 0
    assert watch(3) >= 0
    return buffers[0].copy_out()


WANTED = 2 * np.arange(48, dtype=np.float32) + 3


@pytest.mark.parametrize("opts", [(), (Opt("UPCAST", 0, 4), Opt("THREAD", 0))], ids=str)
def test_the_processor_builds_and_times_candidates(opts: tuple[Opt, ...]) -> None:
    device = CPU()
    assert isinstance(device, Tunable)
    assert isinstance(device.machine, Machine)
    np.testing.assert_array_equal(timed(device, opts), WANTED)


def test_a_gpu_builds_and_times_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    import morok.optimize.heuristics.apply as apply

    def refuse(*args: object) -> None:
        raise AssertionError("a candidate was optimised again")

    with fake_gpus(FakeDriver()) as (device,):
        assert isinstance(device, Tunable)
        assert device.machine.block_threads
        monkeypatch.setattr(apply, "choose", refuse)
        np.testing.assert_array_equal(timed(device, ()), WANTED)


def test_runs_take_turns_with_the_buffers() -> None:
    """Several sets of buffers, of which every run takes the next one, so that the caches hold none."""
    with fake_gpus(FakeDriver()) as (gpu,):
        devices: list[Any] = [CPU(), gpu]
        for device in devices:
            program = device.load(device.build(kernel("add"), "candidate"), "candidate")
            turns = [[device.buffer(48, float32) for _ in range(3)] for _ in range(3)]
            for buffers in turns:
                for i, buffer in enumerate(buffers):
                    buffer.copy_in(np.arange(48, dtype=np.float32) + i)
            watch = device.stopwatch(program, turns, {})
            watch(2)
            watch(2)
            for buffers in turns:
                np.testing.assert_array_equal(buffers[0].copy_out(), WANTED)
            assert device.cache_bytes() > 0


def test_many_launches_of_a_gpu_are_one_graph() -> None:
    """The host is slower than short kernels: it must not be what a clock shows."""
    driver = FakeDriver()
    with fake_gpus(driver) as (device,):
        program = device.load(device.build(kernel("add"), "candidate"), "candidate")
        buffers = [device.buffer(48, float32) for _ in range(3)]
        for i, buffer in enumerate(buffers):
            buffer.copy_in(np.arange(48, dtype=np.float32) + i)
        watch = device.stopwatch(program, [buffers], {})
        driver.log.clear()
        assert watch(100) == pytest.approx(1e-6)  # as long as the fake clock says
        assert watch(100) > 0
        assert driver.log == ["graph 100", "replay", "replay", "replay"]  # one to carry it to the GPU
        driver.log.clear()
        assert watch(600) == pytest.approx(1e-6 * 600 / 768)
        assert driver.log == ["graph 256", *["replay"] * 4]
        watch(1)
        assert driver.log[-1] == "launch"


def test_keys_follow_the_device_and_what_changes_code() -> None:
    with fake_gpus(FakeDriver()) as (gpu,):
        keys = {CPU().tuning_key(), gpu.tuning_key()}
        with knobs.override(REASSOCIATE=True):
            keys |= {CPU().tuning_key(), gpu.tuning_key()}
    assert len(keys) == 4


def test_the_interpreter_has_nothing_to_search() -> None:
    device: Device = Interpreter("PYTHON")
    assert not isinstance(device, Tunable)
