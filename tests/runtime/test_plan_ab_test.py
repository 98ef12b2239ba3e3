"""Tuned plans against the heuristics' plans: a kernel stays only if its plan is faster with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.optimize.search.beam import Found
from morok.optimize.search.race import PairedTiming, Stopwatch, paired_timing
from morok.optimize.strategy import Beam, Config, Heuristic
from morok.runtime import plan_ab_test as room
from morok.runtime.plan import ExecutionPlan, program_for
from morok.runtime.plan_ab_test import ABResult, holds, plan_ab_test
from morok.runtime.tuning import Tuner, read_ab_result, tuner, write_ab_result

TUNED = Config(Beam(2, 10.0))


class Plans:
    """A plan of one millisecond, and what each kernel really changes when it is in the plan."""

    def __init__(self, effects: Mapping[str, float]) -> None:
        self.effects = effects
        self.clock = 0.0
        self.asked: list[frozenset[str]] = []

    def now(self) -> float:
        return self.clock

    def watch(self, kept: frozenset[str]) -> Stopwatch:
        self.asked.append(kept)

        def run(count: int) -> float:
            took = count * (1e-3 + sum(self.effects[k] for k in kept))
            self.clock += took
            return took

        return run

    def contest(self, promises: Mapping[str, float], until: float, busy: bool = False) -> ABResult | None:
        return plan_ab_test(promises, self.watch, self.now, until, lambda: lambda: busy, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.clock += seconds


def decide(effects: Mapping[str, float], promises: Mapping[str, float], until: float = 60.0) -> ABResult:
    plans = Plans(effects)
    ab_result = plans.contest(promises, until)
    assert ab_result is not None
    return ab_result


def test_a_plan_that_keeps_its_promises_runs() -> None:
    ab_result = decide({"a": -1e-4, "b": -2e-5}, {"a": 1e-4, "b": 2e-5})
    assert ab_result.kept == {"a", "b"}
    assert not ab_result.dropped
    assert len(ab_result.timings) == 1
    assert ab_result.timings[0].ratio == pytest.approx(0.88)
    assert "2 of 2" in str(ab_result)


def test_a_kernel_that_is_slower_in_its_plan_is_dropped() -> None:
    """It was faster alone; between the others it is not."""
    ab_result = decide({"a": 2e-5}, {"a": 1e-4})
    assert not ab_result.kept
    assert ab_result.dropped == {"a"}


def test_each_kernel_has_to_win_its_place() -> None:
    effects = {"good": -5e-5, "bad": 8e-5, "nothing": 0.0, "small": -2e-6}
    ab_result = decide(effects, {"good": 6e-5, "bad": 9e-5, "nothing": 1e-5, "small": 2e-6})
    assert ab_result.kept == {"good", "small"}
    assert ab_result.dropped == {"bad", "nothing"}
    assert len(ab_result.timings) == 5


def test_a_small_part_of_a_plan_need_not_win_a_percent() -> None:
    timing = paired_timing("plan", [1.0] * 10, [0.998] * 10)
    assert holds(timing, 0.003)
    assert not holds(timing, 0.1)
    assert not holds(paired_timing("plan", [1.0] * 10, [1.0] * 10), 0.003)
    assert not holds(paired_timing("plan", [1.0] * 10, [0.9] * 5 + [1.01] * 5), 0.003)  # half of the rounds


def test_what_there_is_no_time_for_has_not_won() -> None:
    plans = Plans({"a": -1e-4})
    assert plans.contest({"a": 1e-4}, 0.001) is None
    # time for the whole plan, which is slower, and for nothing else
    ab_result = decide({"a": 1e-4, "b": 1e-4}, {"a": 1e-4, "b": 1e-4}, until=0.1)
    assert ab_result.kept == frozenset()


def test_a_single_kernel_has_all_the_time() -> None:
    """There is one race, so nothing has to be left for others."""
    rounds = [decide(dict.fromkeys(names, -1e-4), dict.fromkeys(names, 1e-4), until=0.1).timings[0].rounds
              for names in ("a", "ab")]  # fmt: skip
    assert rounds[0] > 2 * rounds[1]


def test_on_a_busy_machine_nothing_wins_and_nothing_is_remembered() -> None:
    plans = Plans({"a": -1e-4, "b": -1e-4})
    ab_result = plans.contest({"a": 1e-4, "b": 1e-4}, 3.0, busy=True)
    assert ab_result is not None
    assert ab_result.contended
    assert not ab_result.kept
    assert "busy" in str(ab_result)
    assert plans.clock < 3.1
    with knobs.override(CACHE=True):
        own = Tuner()
        assert own.decide("a plan", lambda: ab_result) is ab_result
        assert own.decide("a plan", lambda: None) is Tuner().decide("a plan", lambda: None) is None


def test_ab_results_are_kept_with_their_figures() -> None:
    ab_result = decide({"a": -1e-4, "b": 2e-4}, {"a": 1e-4, "b": 2e-5})
    assert read_ab_result(write_ab_result(ab_result)) == ab_result
    assert read_ab_result("{}") is read_ab_result("what") is None
    with knobs.override(CACHE=True):
        assert Tuner().decide("a plan", lambda: ab_result) is ab_result
        assert Tuner().decide("a plan", lambda: None) == ab_result  # another process: from the disk
        assert Tuner().decide("another", lambda: None) is None


# --- plans of tensors; what a search and a race say is made up


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with knobs.override(CACHE=True, CACHE_DIR=str(tmp_path), DEVICE="CPU"):
        yield


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search says that plain loops are twice as fast."""
    won = paired_timing("warm", [2e-6] * 5, [1e-6] * 5)
    monkeypatch.setattr(Tuner, "_search", lambda *_: (Found((), 2e-6, 1e-6, 1, 0, True, (won,)), ()))
    monkeypatch.setattr(tuner, "_decided", {})


Judge = Callable[[float], list[int]]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The ratio that all races end with; both really run, several times."""

    def set_ratio(ratio: float) -> list[int]:
        runs: list[int] = []

        def race(condition: str, old: Stopwatch, new: Stopwatch, *_: object) -> PairedTiming:
            for watch in (old, new, old, new):
                watch(1)
                watch(3)
            runs.append(1)
            return paired_timing(condition, [1e-3] * 5, [ratio * 1e-3] * 5)

        monkeypatch.setattr(room, "uncontended_turns", race)
        return runs

    return set_ratio


def programs(plan: ExecutionPlan, config: Config) -> list[object]:
    return [program_for(i.device, i.ast, i.name, i.place, config) for i in plan.kernels]


def chain(data: np.ndarray) -> Tensor:
    return (Tensor(data).realize() * 2.0).contiguous().sum(-1)


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(("ratio", "stays"), [(0.9, True), (1.1, False)])
def test_the_winner_runs(judge: Judge, ratio: float, stays: bool) -> None:
    data = np.random.default_rng(0).standard_normal((24, 32), dtype=np.float32)
    races = judge(ratio)
    y = chain(data)
    plan = y.prepare(TUNED)
    plan.run()
    np.testing.assert_allclose(y.numpy(), (data * 2).sum(-1), rtol=1e-4, atol=1e-4)
    wanted = programs(plan, TUNED if stays else Config(Heuristic()))
    assert list(plan._programs or ()) == wanted
    assert len(races) == (1 if stays or len(plan) == 1 else 1 + len(plan))
    plan.run()  # nothing is raced again
    np.testing.assert_allclose(y.numpy(), (data * 2).sum(-1), rtol=1e-4, atol=1e-4)
    again = len(races)
    other = chain(data)
    other.prepare(TUNED).run()  # and the same plan elsewhere knows who won
    assert len(races) == again
    np.testing.assert_allclose(other.numpy(), (data * 2).sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_a_race_leaves_no_traces_in_memory(judge: Judge, ratio: float) -> None:
    """What a plan changes in place is changed once, however often the plan was raced."""
    races = judge(ratio)
    x = Tensor(np.arange(8, dtype=np.float32)).realize()
    before = len(tuner.ab_results)
    x.assign(x * 2.0 + 1.0)
    x.prepare(TUNED).run()
    np.testing.assert_array_equal(x.numpy(), np.arange(8) * 2.0 + 1.0)
    assert races
    assert len(tuner.ab_results) == before + 1


def test_plans_that_nothing_was_found_for_are_not_raced(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tuner, "_search", lambda *_: (Found((), 2e-6, 2e-6, 1, 0, True), ()))
    races = judge(0.9)
    y = chain(np.ones((5, 7), np.float32))
    y.prepare(TUNED).run()
    assert y.tolist() == [14.0] * 5
    assert not races
