"""The search: deterministic, never slower than the heuristics, in time, and right; with a bench and a clock
that tests make up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from morok.ir.matrix import ALL_UNITS, MMA_F16
from morok.ir.node import UOp
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.cpu import choose
from morok.optimize.loops import loops_of
from morok.optimize.record import Opt, applied
from morok.optimize.search.beam import Found, Progress, search
from morok.optimize.search.cost_model import CostModel
from morok.optimize.search.race import PairedTiming, take_turns
from morok.optimize.search.space import Opts, Space
from morok.optimize.strategy import Beam
from tests.optimize.kernels import AVX512, GPU, MAKERS, NEON, VALUES, interpret, kernel, same, wanted


class FakeBench:
    """Times are what a function says; building and running take as long as another one says."""

    places = 1

    def __init__(self, speed: Callable[[Opts], float | None], effort: float = 0.01) -> None:
        self.speed = speed
        self.effort = effort
        self.clock = 0.0
        self.built: list[Opts] = []
        self.sampled: list[Opts] = []

    def now(self) -> float:
        return self.clock

    def build(self, candidates: Sequence[Opts], until: float) -> list[object | None]:
        found: list[object | None] = []
        for opts in candidates:
            self.clock = min(until, self.clock + self.effort)
            self.built.append(opts)
            found.append(opts if self.clock < until else None)
        return found

    def sample(self, built: object, cutoff: float, until: float) -> float | None:
        assert isinstance(built, tuple)
        self.sampled.append(built)
        seconds = self.speed(built)
        if seconds is None or self.clock + seconds > until:
            self.clock = until if seconds is None else min(until, self.clock + seconds)
            return None
        self.clock += seconds
        return seconds

    def race(self, old: object, new: object, seconds: float, until: float) -> list[PairedTiming] | None:
        end = min(until, self.clock + seconds)

        def watch(built: object) -> Callable[[int], float]:
            def run(count: int) -> float:
                assert isinstance(built, tuple)
                took = self.speed(built)
                if took is None or self.clock + count * took > until:
                    self.clock = until
                    raise Killed
                self.clock += count * took
                return count * took

            return run

        try:
            timing = take_turns("warm", watch(old), watch(new), self.now, end)
        except Killed:
            return None
        return [] if timing is None else [timing]


class Killed(Exception):
    """What a candidate that takes too long comes to."""


def by_cost(name: str, host: Machine) -> Callable[[Opts], float]:
    """A machine on which kernels take as long as the model says."""
    model = CostModel(host)
    return lambda opts: 1e-9 * model.cost(loops_of(apply_all(kernel(name), opts, host)))


def run(name: str, host: Machine, bench: FakeBench, beam: Beam | None = None) -> Found:
    return search(Space(kernel(name), host), choose, bench, beam or Beam(3, 10.0))


# --- the space


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_neighbour_keeps_the_answer(name: str) -> None:
    for host in (NEON, GPU):
        space = Space(kernel(name), host)
        for opts in space.seeds(choose)[:2]:
            found = space.neighbours(opts)
            # a spread over all of them: the actions themselves are tested one by one elsewhere
            for other, ast in found[:: max(1, len(found) // 3)]:
                assert applied(ast) == other
                same(interpret(ast, VALUES), wanted(name))


@pytest.mark.parametrize("host", [NEON, AVX512, GPU], ids=["neon", "avx512", "gpu"])
def test_neighbours_are_the_same_every_time(host: Machine) -> None:
    for name in ("matmul of odd sizes", "softmax", "transpose"):
        first, second = (Space(kernel(name), host) for _ in range(2))
        assert first.seeds(choose) == second.seeds(choose)
        opts = first.seeds(choose)[0]
        assert [o for o, _ in first.neighbours(opts)] == [o for o, _ in second.neighbours(opts)]


def test_a_changed_step_renames_what_follows() -> None:
    space = Space(kernel("matmul"), NEON)
    opts = (Opt("PADTO", 0, 5), Opt("UPCAST", 0, 5), Opt("UPCAST", 1, 4), Opt("PACK", 2, 0, (2, 4)))
    assert space.at(opts) is not None
    # without the first cut, the lanes that are packed have the number that the cut one had
    assert space.edit(opts, 1, ()) == (Opt("PADTO", 0, 5), Opt("UPCAST", 1, 4), Opt("PACK", 2, 0, (2, 3)))
    # a new size takes the rounding along, or drops it where nothing has to be rounded
    assert space.edit(opts, 1, (Opt("UPCAST", 0, 7),))[:2] == (Opt("PADTO", 0, 7), Opt("UPCAST", 0, 7))  # type: ignore[index]
    assert space.edit(opts, 1, (Opt("UPCAST", 0, 6),))[0] == Opt("UPCAST", 0, 6)  # type: ignore[index]
    # steps about loops that are gone go with them
    assert space.edit(opts, 2, ()) == (Opt("PADTO", 0, 5), Opt("UPCAST", 0, 5), Opt("PACK", 2, 0, (2,)))
    # and what is not allowed is no point
    assert space.edit(opts, 2, (Opt("UPCAST", 1, 3),)) is None


def test_a_sequence_that_is_not_allowed_is_no_point() -> None:
    assert Space(kernel("matmul"), NEON).at((Opt("UPCAST", 0, 5),)) is None
    assert Space(kernel("matmul"), NEON).neighbours((Opt("UPCAST", 0, 5),)) == []


# --- the model


def cost(ast: UOp, host: Machine) -> float:
    return CostModel(host).cost(loops_of(ast))


BETTER = [
    ("matmul", (Opt("UPCAST", 1, 4),), ()),
    ("matmul", (Opt("UPCAST", 1, 4),), (Opt("UPCAST", 0, 4),)),  # along memory rather than across
    ("matmul", (Opt("UPCAST", 0, 4), Opt("UPCAST", 1, 4)), (Opt("UPCAST", 1, 4),)),
    ("row sum", (Opt("UNROLL", 1, 12),), (Opt("UNROLL", 1, 4),)),  # several accumulators
    ("column sum", (Opt("UPCAST", 0, 3),), ()),
    ("softmax", (Opt("CACHE_ROW", 3, 1),), ()),
]


@pytest.mark.parametrize(("name", "better", "worse"), BETTER, ids=lambda x: str(x)[:20])
def test_the_model_prefers_what_is_better(name: str, better: Opts, worse: Opts) -> None:
    host = replace(NEON, cores=1)
    ast = kernel(name)
    assert cost(apply_all(ast, better, host), host) < cost(apply_all(ast, worse, host), host)


def test_the_model_counts_threads_and_registers() -> None:
    from tests.optimize.kernels import kernel_of
    from tests.schedule import graphs as g

    ast = kernel_of(g.matmul(g.tensor(256, 256), g.tensor(256, 256)))
    tile = (Opt("UPCAST", 0, 4), Opt("UPCAST", 1, 16))
    good = cost(apply_all(ast, tile, NEON), NEON)
    assert cost(apply_all(ast, (*tile, Opt("THREAD", 0)), NEON), NEON) < 0.7 * good
    spilled = apply_all(ast, (Opt("UPCAST", 0, 16), Opt("UPCAST", 1, 16)), NEON)
    assert cost(spilled, NEON) > good


def test_small_kernels_are_not_worth_waking_a_thread() -> None:
    assert cost(apply_all(kernel("add"), (Opt("THREAD", 0),), NEON), NEON) > cost(kernel("add"), NEON)


def test_the_model_wants_neighbouring_threads_to_read_neighbours() -> None:
    from tests.optimize.kernels import kernel_of
    from tests.schedule import graphs as g

    ast = kernel_of(g.add(g.tensor(64, 64), g.tensor(64)))
    along, across = (apply_all(ast, (Opt("LOCAL", axis, 16),), GPU) for axis in (1, 0))
    assert cost(along, GPU) < cost(across, GPU)
    assert any(r.arg[1] is AxisKind.LOCAL for r in loops_of(along).closers)


# --- the search


@pytest.mark.parametrize("name", ["matmul", "convolution", "column sum"])
def test_a_better_kernel_is_found_where_there_is_one(name: str) -> None:
    bench = FakeBench(by_cost(name, NEON))
    found = run(name, NEON, bench)
    assert found.after < found.before
    assert found.after == pytest.approx(by_cost(name, NEON)(found.opts))
    same(interpret(apply_all(kernel(name), found.opts, NEON), VALUES), wanted(name))


def test_matrix_units_are_not_given_up_lightly() -> None:
    """The model cannot tell what they are worth; the heuristics use them, so a search stays with them."""
    from tests.gpu.products import kernel_of, product

    host = replace(GPU, matrix_units=(MMA_F16,), cores=16)
    ast = kernel_of(product, (64, 64), (64, 64))
    own = (Opt("TC", 2, ALL_UNITS.index(MMA_F16) + 1, (0, 1)),)
    assert can(ast, own[0], host) is None
    bench = FakeBench(lambda opts: 1e-3)

    def with_units(kernel: UOp, machine: Machine) -> UOp:
        return apply_all(kernel, own, machine)

    search(Space(ast, host), with_units, bench, Beam(4, 10.0))
    assert len(bench.built) > 10
    assert sum(opt.name == "TC" for opts in bench.built for opt in opts) >= len(bench.built) - 1


def test_the_order_of_candidates_is_always_the_same() -> None:
    benches = [FakeBench(by_cost("matmul", NEON)) for _ in range(2)]
    first, second = (run("matmul", NEON, bench) for bench in benches)
    assert first == second
    assert benches[0].built == benches[1].built
    assert len(benches[0].built) > 20


def test_the_heuristics_stay_where_nothing_is_faster() -> None:
    own = applied(choose(kernel("matmul"), NEON))
    found = run("matmul", NEON, FakeBench(lambda opts: 1e-3 if opts == own else 1.1e-3))
    assert (found.opts, found.ratio) == (own, 1.0)


def test_a_win_within_the_noise_is_none() -> None:
    own = applied(choose(kernel("matmul"), NEON))
    found = run("matmul", NEON, FakeBench(lambda opts: 1e-3 if opts == own else 0.99e-3))
    assert found.opts == own


def test_a_lucky_first_time_does_not_win() -> None:
    """A candidate that looked fast once, and in the last race is as slow as it is."""
    own = applied(choose(kernel("matmul"), NEON))
    seen: set[Opts] = set()

    def speed(opts: Opts) -> float:
        lucky = opts not in seen
        seen.add(opts)
        return 1e-3 if opts == own else 0.5e-3 if lucky else 1.2e-3

    found = run("matmul", NEON, FakeBench(speed))
    assert (found.opts, found.after) == (own, 1e-3)


def test_never_slower_on_a_clock_that_lies() -> None:
    """Whatever noise does, the choice wins its last race or is the heuristics' own."""
    import random

    own = applied(choose(kernel("matmul"), NEON))
    for seed in range(6):
        noise = random.Random(seed)
        truth: dict[Opts, float] = {}

        def speed(opts: Opts, truth: dict[Opts, float] = truth, noise: random.Random = noise) -> float:
            base = 1e-3 if opts == own else truth.setdefault(opts, noise.uniform(0.9e-3, 3e-3))
            return base * noise.uniform(1.0, 1.05)

        found = run("matmul", NEON, FakeBench(speed), Beam(2, 0.5))
        assert found.opts == own or truth[found.opts] < 1e-3


def test_a_machine_that_slows_down_changes_nothing() -> None:
    """The last race is on a machine that has become three times slower: only its own times count."""
    own = applied(choose(kernel("matmul"), NEON))
    for factor in (0.8, 1.1):
        raced: list[Opts] = []

        def speed(opts: Opts, factor: float = factor, raced: list[Opts] = raced) -> float:
            late = opts in raced  # nobody is timed twice before the last race
            raced.append(opts)
            return (1e-3 if opts == own else factor * 1e-3) * (3.0 if late else 1.0)

        found = run("matmul", NEON, FakeBench(speed))
        if factor < 1:
            assert found.opts != own
            assert found.ratio == pytest.approx(1 / factor)
        else:
            assert (found.opts, found.ratio) == (own, 1.0)


def test_what_wins_warm_and_loses_cold_is_left() -> None:
    """Every find is faster when it runs alone again and again, and slower on data from memory."""
    own = applied(choose(kernel("matmul"), NEON))

    class TwoCaches(FakeBench):
        cold = 1.0

        def race(self, old: object, new: object, seconds: float, until: float) -> list[PairedTiming] | None:
            warm = super().race(old, new, seconds / 2, until)
            assert warm is not None
            return [*warm, replace(warm[0], condition="cold", ratio=self.cold)]

    for cold, stays in ((1.08, True), (1.0, False)):
        bench = TwoCaches(lambda opts: 1e-3 if opts == own else 0.9e-3)
        bench.cold = cold
        found = run("matmul", NEON, bench)
        assert (found.opts == own) is stays
        assert [timing.condition for timing in found.race] == ([] if stays else ["warm", "cold"])


def test_of_the_finds_that_win_the_fastest_is_taken() -> None:
    """The one that looked best was lucky; the second is the best, and the last race knows."""
    own = applied(choose(kernel("matmul"), NEON))
    first: dict[Opts, float] = {}

    def speed(opts: Opts) -> float:
        if opts == own:
            return 1e-3
        if opts not in first:
            first[opts] = 0.0
            return {1: 0.5e-3, 2: 0.6e-3}.get(len(first), 2e-3)
        return 0.9e-3 if opts == next(iter(first)) else 0.7e-3

    found = run("matmul", NEON, FakeBench(speed))
    assert found.opts == list(first)[1]
    assert found.ratio == pytest.approx(1 / 0.7)


def test_a_find_that_hangs_in_the_last_race_costs_its_own_time() -> None:
    """The best looking one never ends when it is raced: it is killed, and the next one wins in time."""
    own = applied(choose(kernel("matmul"), NEON))
    first: dict[Opts, float] = {}

    def speed(opts: Opts) -> float | None:
        if opts == own:
            return 1e-3
        if opts not in first:
            first[opts] = 0.0
            return {1: 0.5e-3, 2: 0.6e-3}.get(len(first), 2e-3)
        return None if opts == next(iter(first)) else 0.7e-3

    bench = FakeBench(speed)
    found = run("matmul", NEON, bench, Beam(3, 30.0))
    assert found.opts == list(first)[1]
    assert bench.clock <= 30.0


def test_candidates_that_fail_are_counted_and_left() -> None:
    own = applied(choose(kernel("matmul"), NEON))
    bench = FakeBench(lambda opts: 1e-3 if opts == own else None)
    found = run("matmul", NEON, bench, Beam(2, 30.0))
    assert found.opts == own
    assert found.failed == found.tried - 1 > 0
    assert [c.opts for c in found.candidates if c.seconds is not None] == [own]
    assert len(found.candidates) == found.tried and all(c.cost > 0 for c in found.candidates)


@pytest.mark.parametrize("effort", [0.001, 0.3, 100.0])
def test_the_time_is_kept(effort: float) -> None:
    """However long compiling takes and however many candidates hang."""
    own = applied(choose(kernel("softmax"), NEON))
    bench = FakeBench(lambda opts: 1e-3 if opts == own else None, effort)
    found = run("softmax", NEON, bench, Beam(4, 5.0))
    assert bench.clock <= 5.0
    assert found.opts == own
    if effort == 100.0:
        assert found.before == math.inf  # not even that could be timed


def test_whoever_watches_sees_progress() -> None:
    seen: list[Progress] = []
    bench = FakeBench(by_cost("row sum", NEON))
    found = search(Space(kernel("row sum"), NEON), choose, bench, Beam(2, 5.0), seen.append)
    assert [p.tried for p in seen] == sorted(p.tried for p in seen)
    assert (seen[-1].tried, seen[-1].best) == (found.tried, found.after)
