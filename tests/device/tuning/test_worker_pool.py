"""Worker processes: they compile and time, and whatever a candidate does to them costs its own time only."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest

from morok import knobs
from morok.device.tuning.worker import index_limits, is_same, measure, opts_from, opts_to
from morok.device.tuning.worker_pool import WorkerPool
from morok.optimize.record import Opt
from morok.optimize.search.beam import search
from morok.optimize.search.space import Space
from morok.optimize.strategy import Beam
from tests.device.tuning import fake_device as fake
from tests.optimize.kernels import NEON, kernel

SLACK = 20.0  # seconds that a busy machine may need to end a process; what hangs would take a thousand
OPENER = "tests.device.tuning.fake_device:open_device"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    found = WorkerPool("FAKE", 2, OPENER)
    yield found
    processes = [worker.process for worker in found.workers]
    found.close()
    assert all(process.poll() is not None for process in processes)


def soon(pool: WorkerPool, seconds: float = 60.0) -> float:
    return pool.now() + seconds


def test_candidates_are_built_and_timed(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    built = pool.build([(), (Opt("UNROLL", 2, 2),), (Opt("SWAP", 0, 1), Opt("UNROLL", 2, 5))], soon(pool))
    assert sorted(b for b in built if b is not None) == [0, 1, 2]
    for number in built:
        seconds = pool.sample(number, math.inf, soon(pool))
        assert seconds is not None
        assert seconds > 0
    assert not pool.complaints


def test_a_candidate_that_does_not_build_is_one_of_many(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    built = pool.build([(fake.FAIL_BUILD,), (fake.CRASH_BUILD,), (Opt("UPCAST", 0, 5),), ()], soon(pool))
    assert [b is None for b in built] == [True, True, True, False]
    assert any("cannot be compiled" in line for line in pool.complaints)
    assert any("crashed" in line for line in pool.complaints)
    assert any("does not divide" in line for line in pool.complaints)  # an action that is not allowed


def test_workers_have_the_options_of_whoever_searches() -> None:
    with knobs.override(TF32=True):
        pool = WorkerPool("FAKE", 1, OPENER)
    try:
        pool.start(kernel("matmul"), 60.0)
        assert pool.build([(fake.FAIL_BUILD,)], soon(pool)) == [None]
        assert any("cannot be compiled with TF32=True" in line for line in pool.complaints)
    finally:
        pool.close()


def test_a_crash_while_running_leaves_the_rest_alone(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    good, bad = pool.build([(), (fake.CRASH_RUN,)], soon(pool))
    assert pool.sample(good, math.inf, soon(pool)) is not None
    assert pool.sample(bad, math.inf, soon(pool)) is None
    assert pool.killed == 1
    assert pool.sample(good, math.inf, soon(pool)) is not None


def test_what_hangs_is_killed_in_time(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    pool.build([(), (Opt("UNROLL", 2, 2),)], soon(pool))  # both workers have started
    started = pool.now()
    built = pool.build([(fake.HANG_BUILD,), (), (fake.HANG_RUN,)], started + 3.0)
    assert pool.now() - started < SLACK
    assert built[0] is None
    assert built[1] is not None
    assert built[2] is not None
    assert pool.sample(built[1], math.inf, soon(pool)) is not None
    started = pool.now()
    assert pool.sample(built[2], math.inf, started + 1.0) is None
    assert pool.now() - started < SLACK
    assert pool.sample(built[1], math.inf, soon(pool)) is not None


def test_nobody_waits_long_for_one_that_is_slow_to_build(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes many times as long as the first candidate is given up, so that the others go on."""
    monkeypatch.setattr("morok.device.tuning.worker_pool.LONGEST_BUILD", 1000.0)
    pool.start(kernel("matmul"), 60.0)
    assert pool.build([()], soon(pool)) == [0]
    started = pool.now()
    slow, good = pool.build([(fake.HANG_BUILD,), (Opt("UNROLL", 2, 2),)], soon(pool))
    assert slow is None
    assert good is not None
    assert pool.now() - started < SLACK
    assert pool.killed == 1


def test_two_candidates_race_with_warm_and_with_cold_caches(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    old, new = pool.build([(), (Opt("UNROLL", 2, 2),)], soon(pool))
    timings = pool.race(old, new, 20.0, soon(pool))
    assert timings is not None
    assert [timing.condition for timing in timings] == ["warm", "cold"]
    assert all(timing.rounds >= 5 and timing.before > 0 and timing.ratio > 0 for timing in timings)
    assert pool.race(old, new, 1e-6, soon(pool)) == []  # no time for enough rounds: nothing is said


def test_a_race_that_hangs_is_ended_in_time(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    good, other, bad = pool.build([(), (Opt("UNROLL", 2, 2),), (fake.HANG_RUN,)], soon(pool))
    assert pool.sample(good, math.inf, soon(pool)) is not None
    started = pool.now()
    assert pool.race(good, bad, 1.0, started + 2.0) is None
    assert pool.now() - started < SLACK
    assert pool.killed == 1
    assert pool.race(good, other, 20.0, soon(pool))
    # one that crashes costs no more
    (crash,) = pool.build([(fake.CRASH_RUN,)], soon(pool))
    assert pool.race(good, crash, 20.0, soon(pool)) is None
    assert pool.race(good, other, 20.0, soon(pool))


def test_nobody_waits_for_a_process_that_cannot_be_ended(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may hold on to a killed process for as long as its device is busy."""
    pool.start(kernel("matmul"), 60.0)
    good, bad = pool.build([(), (fake.HANG_RUN,)], soon(pool))
    held = pool.workers[0].process

    def never(timeout: float | None = None) -> int:
        assert timeout is not None, "this would wait for ever"
        raise subprocess.TimeoutExpired("worker", timeout)

    with monkeypatch.context() as patched:
        patched.setattr(held, "wait", never)
        assert pool.sample(bad, math.inf, pool.now() + 1.0) is None
    assert pool.workers[0].process is not held
    assert pool.sample(good, math.inf, soon(pool)) is not None
    held.wait()


def test_wrong_results_are_refused(pool: WorkerPool) -> None:
    pool.start(kernel("matmul"), 60.0)
    good, wrong = pool.build([(), (fake.WRONG_RUN,)], soon(pool))
    assert pool.sample(good, math.inf, soon(pool)) is not None
    assert pool.sample(wrong, math.inf, soon(pool)) is None
    (line,) = [line for line in pool.complaints if "results differ" in line]
    assert line.endswith(f"after {fake.WRONG_RUN}"), "whoever looks for the reason needs the actions"


class SteadyTimes:
    """A pool where whatever runs takes the same time: the model alone decides what is tried next."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool, self.places = pool, pool.places
        self.now, self.build, self.race = pool.now, pool.build, pool.race

    def sample(self, built: object, cutoff: float, until: float) -> float | None:
        return None if self.pool.sample(built, cutoff, until) is None else 1e-3


def test_a_search_ends_in_time_whatever_its_candidates_do(pool: WorkerPool) -> None:
    """Many of the neighbours of the plain kernel crash or hang on this device."""
    beam = Beam(3, 6.0)
    pool.start(kernel("matmul"), beam.seconds)
    started = time.perf_counter()
    found = search(Space(kernel("matmul"), NEON), lambda ast, host: ast, SteadyTimes(pool), beam)
    assert time.perf_counter() - started < beam.seconds + SLACK
    assert found.tried > found.failed > 0
    bad = {fake.CRASH_BUILD, fake.HANG_BUILD, fake.FAIL_BUILD, fake.CRASH_RUN, fake.HANG_RUN, fake.WRONG_RUN}
    assert not bad & set(found.opts)


# --- what workers are made of


def test_actions_survive_the_way() -> None:
    opts = (Opt("PACK", 2, 0, (2, 4)), Opt("UPCAST", 11), Opt("THREAD", 0, 4))
    assert opts_from(opts_to(opts)) == opts


def test_one_run_is_enough_for_what_is_too_slow() -> None:
    calls: list[int] = []

    def watch(count: int) -> float:
        calls.append(count)
        return 0.5 * count

    assert measure(watch, 0.1) == 0.5
    assert calls == [1]


def test_the_best_of_several_runs_counts() -> None:
    times = iter([0.03, 0.09, 0.02, 0.05, 0.07, 0.08, 0.09])
    assert measure(lambda count: next(times), math.inf) == 0.02


def test_short_kernels_are_run_many_times() -> None:
    calls: list[int] = []

    def watch(count: int) -> float:
        calls.append(count)
        return 1e-6 * count

    assert measure(watch, math.inf) == pytest.approx(1e-6)
    assert calls[1] >= 200


def test_indices_point_into_what_they_index() -> None:
    limits = index_limits(kernel("gather"))
    assert list(limits.values()) == [11]


def test_same_means_up_to_the_order_of_sums() -> None:
    a = np.array([1.0, -3.0, np.inf, np.nan], np.float32)
    assert is_same(a * np.float32(1.00001), a)
    assert not is_same(a + np.float32(0.1), a)
    assert not is_same(np.array([1.0, -3.0, np.inf, 0.0], np.float32), a)
    assert not is_same(np.array([1, 3]), np.array([1, 2]))


def test_every_element_of_a_large_result_is_looked_at() -> None:
    want = np.random.default_rng(3).standard_normal(600_001, dtype=np.float32)
    assert is_same(want.copy(), want)
    assert is_same(want + np.float32(1e-5), want)
    for place in (0, 300_000, 600_000):
        for wrong in (9.0, np.nan):
            got = want.copy()
            got[place] = wrong
            assert not is_same(got, want)
    small = np.full(600_001, 1e-4, np.float32)
    small[-1] = 1e3  # what is small is small beside the largest
    assert is_same(small + np.float32(0.5), small)
    assert not is_same(small + np.float32(5), small)
    whole = np.arange(600_001)
    assert is_same(whole.copy(), whole)
    assert not is_same(np.concatenate((whole[:-1], [0])), whole)
