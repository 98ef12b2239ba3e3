"""Beam search: sequences of actions are compiled and timed, the best few are developed further.

The cost model decides what is worth compiling, the clock decides what is better. The heuristics' own sequence
takes part and is the one to beat: at the end the best finds race against it in turns, with warm caches and
with cold ones, and it stays unless a find is faster beyond the noise.

This room knows no device and no process. It is given a `Bench` that builds and times, and whose candidates
may hang or crash: those are reported as None, and never cost more than the time that was allowed for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.search.cost_model import CostModel
from morok.optimize.search.race import PairedTiming, gain, is_faster
from morok.optimize.search.space import Chooser, Opts, Space
from morok.optimize.strategy import Beam

SEARCHING = 0.8  # of the time; the rest is for the last race
PER_ROUND = 2  # candidates per place in the beam and round; more where more are built at a time
MANY = 1_000_000  # more than a point has neighbours
UNLIKELY = 3.0  # times the best guess of a round: not this time
PATIENCE = 4  # rounds without progress
PROGRESS = 0.99  # of the best time so far: anything less is noise
UNITS = 8.0  # times the model's cost, where the heuristics use matrix units and a candidate does not
HOPELESS = 20.0  # times the heuristics' estimated cost: not compiled
CUT_OFF = 1.5  # times the slowest in the beam: one run is enough to know
HANGING = 50.0  # times the heuristics' time: killed
LEAST_WAIT = 2.0  # seconds before a candidate counts as hanging
DUELS = 3  # finds that may try
DUEL_SECONDS = 3.0  # at most, for each
HOPEFUL = 0.99  # of the heuristics' time: more is not worth a race


class Bench(Protocol):
    """What a search asks of a device. Points in time are `now()`'s, seconds."""

    @property
    def places(self) -> int:
        """How many candidates are built side by side."""

    def now(self) -> float: ...

    def build(self, candidates: Sequence[Opts], until: float) -> Sequence[object | None]:
        """The kernel after each of the sequences, compiled; None where that failed or took too long."""

    def sample(self, built: object, cutoff: float, until: float) -> float | None:
        """The best seconds of some runs, of one if that takes longer than the cut-off; None if it failed."""

    def race(self, old: object, new: object, seconds: float, until: float) -> Sequence[PairedTiming] | None:
        """Times two in turns for so long, in all conditions that matter; None if that failed."""


@final
@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    elapsed: float
    seconds: float  # in all
    tried: int
    before: float
    best: float


@final
@dataclass(frozen=True)
class Candidate:
    """One sequence that was tried, what the model guessed in cycles, and its time; None: it failed."""

    opts: Opts
    cost: float
    seconds: float | None


@final
@dataclass(frozen=True)
class Found:
    """What a search has found: the sequence to use, and the times of the heuristics' and of this one."""

    opts: Opts
    before: float  # seconds; infinite if nothing could be timed
    after: float
    tried: int
    failed: int
    complete: bool  # it ended by itself, so more time would not have helped
    race: tuple[PairedTiming, ...] = ()  # how it was measured; empty if the heuristics' sequence stays
    contended: bool = False  # the machine was busy, so nothing could win
    candidates: tuple[Candidate, ...] = ()  # what was tried, where this process has searched

    @property
    def ratio(self) -> float:
        """How much faster than the heuristics' kernel, in the last race."""
        return gain(self.race)


@final
@dataclass(frozen=True, eq=False)
class _Point:
    opts: Opts
    ast: UOp
    built: object
    seconds: float
    cost: float


def _silent(progress: Progress) -> None:
    """Nobody watches."""


def search(
    space: Space,
    choose: Chooser,
    bench: Bench,
    beam: Beam,
    watch: Callable[[Progress], None] = _silent,
) -> Found:
    """The best sequence that could be found in the time that there is."""
    return _Search(space, choose, bench, beam, watch).run()


@final
class _Search:
    def __init__(
        self, space: Space, choose: Chooser, bench: Bench, beam: Beam, watch: Callable[[Progress], None]
    ) -> None:
        self.space, self.choose, self.bench, self.beam, self.watch = space, choose, bench, beam, watch
        self.model = CostModel(space.machine)
        self.started = bench.now()
        self.end = self.started + beam.seconds
        self.stop = self.started + SEARCHING * beam.seconds
        self.seen: set[tuple[UOp, ...]] = set()  # kernels that have been tried, whatever led to them
        self.tried = 0
        self.failed = 0
        self.before = math.inf
        self.units = False  # whether the heuristics use matrix units
        self.best: list[_Point] = []
        self.candidates: list[Candidate] = []
        self._around: dict[Opts, list[tuple[float, int, Opts, UOp]]] = {}

    def run(self) -> Found:
        seeds = self.space.seeds(self.choose)
        self.units = any(opt.name == "TC" for opt in seeds[0])
        first = self._try([(seeds[0], self._kernel(seeds[0]))], math.inf)
        if not first:
            return self._found(Found(seeds[0], math.inf, math.inf, self.tried, self.failed, False))
        heuristic = first[0]
        self.before = heuristic.seconds
        self._keep(first)
        limit = HOPELESS * heuristic.cost
        others = [(self._cost(ast), i, opts, ast) for i, opts in enumerate(seeds[1:])
                  if (ast := self._kernel(opts)) is not None]  # fmt: skip
        self._keep(self._try([(o, a) for c, _, o, a in sorted(others, key=_order) if c <= limit]))
        complete = self._rounds(limit)
        return self._found(self._final_race(heuristic, complete))

    def _rounds(self, limit: float) -> bool:
        """Develops the best until nothing gets better; False if the time was over before."""
        idle = 0
        while idle < PATIENCE:
            if self.bench.now() >= self.stop:
                return False
            chosen = self._next(limit)
            if not chosen:
                return True
            target = PROGRESS * self.best[0].seconds
            self._keep(self._try(chosen))
            idle = 0 if self.best[0].seconds < target else idle + 1
        return True

    def _next(self, limit: float) -> list[tuple[Opts, UOp]]:
        """The neighbours of the beam that promise most: the measured time of a point, scaled by the model."""
        pool: list[tuple[float, int, Opts, UOp]] = []
        for place, point in enumerate(self.best):
            for cost, i, opts, ast in self._neighbours(point):
                if cost <= limit and ast.src not in self.seen:
                    pool.append((point.seconds * cost / point.cost, place * MANY + i, opts, ast))
            if self.bench.now() >= self.stop:
                break
        return _mixed(sorted(pool, key=_order), max(self.beam.width * PER_ROUND, self.bench.places))

    def _neighbours(self, point: _Point) -> list[tuple[float, int, Opts, UOp]]:
        if point.opts not in self._around:
            self._around[point.opts] = [
                (self._cost(ast), i, opts, ast)
                for i, (opts, ast) in enumerate(self.space.neighbours(point.opts))
            ]
        return self._around[point.opts]

    def _kernel(self, opts: Opts) -> UOp | None:
        return self.space.at(opts)

    def _cost(self, ast: UOp) -> float:
        loops = self.space.loops(ast)
        left_out = self.units and not any(node.op is Ops.WMMA for node in loops.order)
        return max(1.0, self.model.cost(loops)) * (UNITS if left_out else 1.0)

    def _try(
        self, candidates: Sequence[tuple[Opts, UOp | None]], cutoff: float | None = None
    ) -> list[_Point]:
        """Builds and times; those that work, in order."""
        wanted: list[tuple[Opts, UOp]] = []
        for opts, ast in candidates:
            if ast is not None and ast.src not in self.seen:
                self.seen.add(ast.src)
                wanted.append((opts, ast))
        built = self.bench.build([opts for opts, _ in wanted], self.stop)
        found: list[_Point] = []
        for (opts, ast), code in zip(wanted, built, strict=True):
            now = self.bench.now()
            if now >= self.stop:
                break
            self.tried += 1
            seconds = None
            if code is not None:
                wait = self.beam.seconds if self.before == math.inf else HANGING * self.before
                until = min(self.stop, now + max(LEAST_WAIT, wait))
                seconds = self.bench.sample(code, self._cutoff() if cutoff is None else cutoff, until)
            cost = self._cost(ast)
            self.candidates.append(Candidate(opts, cost, seconds))
            if seconds is None:
                self.failed += 1
            else:
                found.append(_Point(opts, ast, code, seconds, cost))
            self._tell(found)
        return found

    def _cutoff(self) -> float:
        full = len(self.best) >= self.beam.width
        return CUT_OFF * (self.best[-1].seconds if full else max(self.before, self.best[0].seconds))

    def _keep(self, points: Sequence[_Point]) -> None:
        self.best = sorted([*self.best, *points], key=lambda p: p.seconds)[: self.beam.width]

    def _final_race(self, heuristic: _Point, complete: bool) -> Found:
        """The last race: finds against the heuristics' kernel, in turns. Only its times count."""
        found = Found(heuristic.opts, self.before, self.before, self.tried, self.failed, complete)
        hopeful = [p for p in self.best
                   if p.opts != heuristic.opts and p.seconds < HOPEFUL * heuristic.seconds]  # fmt: skip
        runners = hopeful[:DUELS]
        for i, point in enumerate(runners):
            now = self.bench.now()
            seconds = min(DUEL_SECONDS, 0.9 * (self.end - now) / (len(runners) - i))
            if seconds <= 0:
                break
            until = min(self.end, now + LEAST_WAIT + 3.0 * seconds)
            timings = self.bench.race(heuristic.built, point.built, seconds, until)
            if any(timing.contended for timing in timings or ()):
                found = replace(found, contended=not found.race, complete=found.complete and bool(found.race))
            if timings and is_faster(timings) and gain(timings) > found.ratio:
                first = timings[0]
                found = Found(
                    point.opts, first.before, first.after, self.tried, self.failed, complete, tuple(timings)
                )
        return found

    def _tell(self, fresh: Sequence[_Point] = ()) -> None:
        best = min((p.seconds for p in (*self.best, *fresh)), default=math.inf)
        elapsed = self.bench.now() - self.started
        self.watch(Progress(elapsed, self.beam.seconds, self.tried, self.before, best))

    def _found(self, found: Found) -> Found:
        elapsed = self.bench.now() - self.started
        self.watch(Progress(elapsed, self.beam.seconds, self.tried, found.before, found.after))
        return replace(found, candidates=tuple(self.candidates))


def _order(entry: tuple[float, int, Opts, UOp]) -> tuple[float, int]:
    """Cheapest first; what costs the same keeps its place."""
    return entry[:2]


def _mixed(pool: Sequence[tuple[float, int, Opts, UOp]], count: int) -> list[tuple[Opts, UOp]]:
    """The most promising, kinds of actions in turn: the model cannot tell what is alike, the clock can."""
    kinds: dict[tuple[str, ...], list[tuple[Opts, UOp]]] = {}
    seen: set[tuple[UOp, ...]] = set()
    for guess, _, opts, ast in pool:
        if guess <= UNLIKELY * pool[0][0] and ast.src not in seen:
            seen.add(ast.src)
            kinds.setdefault(tuple(sorted(opt.name for opt in opts)), []).append((opts, ast))
    found: list[tuple[Opts, UOp]] = []
    while kinds and len(found) < count:
        for kind in list(kinds):
            found.append(kinds[kind].pop(0))
            if not kinds[kind]:
                del kinds[kind]
    return found[:count]
