"""The steps of a graph with many equal layers, from those of the same graph with a few of them.

The few are scheduled as any graph is. If their steps repeat themselves too, layer by layer, on memory that is
a layer further on, those of the layers that were left out are the same steps on their memory. Whatever does
not fit that picture (kernels that several layers share, memory that other steps touch as well) is a reason
to schedule the whole graph instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import ne
from typing import final

import numpy as np

from morok.dtype import DType
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.ir.provenance import instruction_of
from morok.schedule.plan.repeat import FRONT, REAR, Repeat, longest_run
from morok.schedule.plan.steps import Step, StepList

_LEAST_PERIODS = 3  # of steps, that must agree


def lengthened(
    short: StepList, repeat: Repeat, params: Sequence[UOp], numbers: Sequence[int]
) -> StepList | None:
    """The steps of the whole graph with this memory; None if it does not follow from the short one's.

    `numbers` are those of the short one's memory in the whole.
    """
    inputs = _Inputs(repeat, params, numbers)
    for period in _periods(short.steps):
        run = _run_of_layers(short, inputs, period)
        if run is None:
            continue
        made = _Made.found(short, *run, period, repeat.left_out)
        if made is None:
            continue
        longer = _Longer(short, repeat, inputs, made, params)
        if any(longer.is_of_layer(check.buffer) for check in short.checks):
            return None
        found = longer.steps_of_all(run[0] + 2 * period, period)
        return found if longer.is_regular(found) else None
    return None


def _periods(steps: Sequence[Step]) -> list[int]:
    """Distances at which the kernels repeat themselves, the shortest first."""
    kinds: dict[UOp, int] = {}
    run = np.array([kinds.setdefault(step.ast, len(kinds)) for step in steps], np.int64)
    found = []
    for period in range(1, len(steps) // _LEAST_PERIODS + 1):
        first, end = longest_run(run[period:] == run[:-period])
        if end - first >= (_LEAST_PERIODS - 1) * period:
            found.append(period)
    return found


def _run_of_layers(short: StepList, inputs: _Inputs, period: int) -> tuple[int, int] | None:
    """The longest run of steps whose next ones, a period further, do the same on the next layer's memory.

    At least one of them must read memory of its layer: it says that a period is one layer.
    """
    best = (0, 0)
    made: dict[int, int] = {}
    begin, moves, later = 0, False, 0
    steps, known = short.steps, short.inputs
    for n in range(len(steps) - period + 1):
        good = n < len(steps) - period
        if good:
            one, other = steps[n], steps[n + period]
            good = one.ast is other.ast and one.variables == other.variables and one.starts == other.starts
            good = good and short.shared[n] == short.shared[n + period]
            if n == begin:
                later = other.group - one.group
            good = good and other.group - one.group == later > 0
        if good:
            for a, b in zip(one.buffers, other.buffers, strict=True):
                if a < known:
                    good = good and (b == a or (b < known and inputs.is_next(a, b)))
                    moves = moves or (good and a != b)
                else:
                    good = good and b >= a and made.setdefault(a, b) == b
        if not good:
            if moves and n - begin > best[1] - best[0]:
                best = (begin, n)
            begin, made, moves = n + 1, {}, False
    return best if best[1] - best[0] >= (_LEAST_PERIODS - 1) * period else None


@final
class _Inputs:
    """The caller's memory: what belongs to a layer, and what that is in another layer."""

    def __init__(self, repeat: Repeat, params: Sequence[UOp], numbers: Sequence[int]) -> None:
        self.repeat, self.numbers = repeat, numbers
        place = {n: at for at, n in enumerate(repeat.order) if n.op is Ops.PARAM}
        self.places = [place.get(params[number], -1) for number in numbers]

    def is_next(self, a: int, b: int) -> bool:
        r = self.repeat
        return self.places[b] - self.places[a] == r.period and r.start <= self.places[b] < r.stop

    def is_of_layer(self, n: int) -> bool:
        return self.repeat.start <= self.places[n] < self.repeat.stop

    def number(self, n: int, further: int) -> int:
        """In the whole graph, so many layers further on."""
        if not further:
            return self.numbers[n]
        return int(self.repeat.order[self.places[n] + further * self.repeat.period].arg[0])


@final
class _Made:
    """Memory that the schedule makes: what each layer has of its own comes again at a distance in numbers."""

    def __init__(self, segments: list[tuple[int, int, int]], inputs: int, left_out: int) -> None:
        self.segments = segments  # first, end, and the distance
        self.inputs, self.left_out = inputs, left_out
        self.begins = [first for first, _, _ in segments]
        self.more = [0]  # numbers that are new before the end of each segment
        for _, _, distance in segments:
            self.more.append(self.more[-1] + left_out * distance)

    @classmethod
    def found(cls, short: StepList, begin: int, end: int, period: int, left_out: int) -> _Made | None:
        """From a run of steps, each of which does the same as the one a period later."""
        known = short.inputs
        distance: dict[int, int] = {}
        last: dict[int, int] = {}
        for n in range(begin, end):
            for a, b in zip(short.steps[n].buffers, short.steps[n + period].buffers, strict=True):
                if a >= known and a != b:
                    distance[a - known] = b - a
                    last[b - known] = b - a
        distance = {**last, **distance}
        segments: list[tuple[int, int, int]] = []
        for x in sorted(distance):
            far = distance[x]
            # the first layer's memory is not all touched by the run, which may begin in the middle of it
            if segments and segments[-1][2] == far and x - segments[-1][1] < far:
                segments[-1] = (segments[-1][0], x + 1, far)
            else:
                segments.append((x, x + 1, far))
        segments = [(first, stop, far) for first, stop, far in segments if stop - first >= 2 * far]
        made = cls(segments, known, left_out)
        # what only the first steps of the run read, and others made, is no layer's
        special = {x for x in distance if not made.is_of_layer(x)}
        for step in short.steps[begin + period :]:
            if not special.isdisjoint(b - known for b in step.buffers):
                return None
        for first, stop, far in segments:
            if any(short.made[x] != short.made[x + far] for x in range(first, stop - far)):
                return None
        return made

    def segment(self, x: int) -> int:
        """The number of the last segment that begins at or before a number; -1 if none does."""
        return bisect_right(self.begins, x) - 1

    def is_of_layer(self, x: int) -> bool:
        at = self.segment(x)
        return at >= 0 and x < self.segments[at][1]

    def number(self, x: int, further: int) -> int:
        """Among what the whole schedule makes."""
        at = self.segment(x)
        if at < 0:
            return x
        _, stop, distance = self.segments[at]
        return x + self.more[at] + further * distance if x < stop else x + self.more[at + 1]

    def all(self, made: Sequence[tuple[DType, int, str]]) -> list[tuple[DType, int, str]]:
        found: list[tuple[DType, int, str]] = []
        at = 0
        for first, stop, distance in self.segments:
            found += made[at:stop]
            found += [
                made[first + (x - first) % distance] for x in range(stop, stop + self.left_out * distance)
            ]
            at = stop
        return [*found, *made[at:]]


@final
class _Longer:
    """The steps of the short graph on the memory of the whole graph."""

    def __init__(
        self, short: StepList, repeat: Repeat, inputs: _Inputs, made: _Made, params: Sequence[UOp]
    ) -> None:
        self.short, self.repeat, self.inputs, self.made, self.params = short, repeat, inputs, made, params
        self.origins: dict[tuple[int, int] | None, int] = {}
        for at in range(repeat.start, repeat.stop - repeat.missing):
            self.origins.setdefault(instruction_of(repeat.order[at].origin), at)

    def steps_of_all(self, cut: int, period: int) -> StepList:
        """With steps for the layers that were left out at place `cut` among the steps."""
        short, left_out = self.short, self.repeat.left_out
        later = short.steps[cut].group - short.steps[cut - period].group
        steps = [self.step(step, 0, 0) for step in short.steps[:cut]]
        shared = short.shared[:cut]
        for n in range(1, left_out + 1):
            for at in range(cut - period, cut):
                moves = tuple(map(ne, short.steps[at].buffers, short.steps[at + period].buffers))
                steps.append(self.step(short.steps[at], n, n * later, moves))
            shared += short.shared[cut - period : cut]
        steps += [self.step(step, left_out, left_out * later) for step in short.steps[cut:]]
        made = self.made.all(short.made)
        checks = [replace(check, buffer=self.number(check.buffer, 0, moves=False)) for check in short.checks]
        return StepList(len(self.params), made, steps, shared + short.shared[cut:], self.results(), checks)

    def step(self, step: Step, further: int, later: int, moves: Sequence[bool] | None = None) -> Step:
        """A step so many layers further on; of its buffers those move that belong to a layer."""
        buffers = tuple(
            self.number(b, further, self.is_of_layer(b) if moves is None else moves[n])
            for n, b in enumerate(step.buffers)
        )
        origin = step.origin
        if further:
            at = self.origins.get(instruction_of(origin))
            if at is not None and at + further * self.repeat.period < self.repeat.stop:
                origin = self.repeat.order[at + further * self.repeat.period].origin
        return replace(step, buffers=buffers, origin=origin, group=step.group + later)

    def is_of_layer(self, n: int) -> bool:
        known = self.short.inputs
        return self.inputs.is_of_layer(n) if n < known else self.made.is_of_layer(n - known)

    def number(self, n: int, further: int, moves: bool) -> int:
        """That of some memory in the whole graph, so many layers further on if it moves."""
        known = self.short.inputs
        if n < known:
            return self.inputs.number(n, further if moves else 0)
        return len(self.params) + self.made.number(n - known, further if moves else 0)

    def results(self) -> tuple[UOp, ...]:
        """Views of what is asked for."""
        r = self.repeat
        place = {n: at for at, n in enumerate(r.order)}
        whole = [place[n] for n in r.order[-1].src]
        kept = [at for at in whole if not r.cut <= at < r.cut + r.missing]
        known = dict(zip([self.twin(at)[0] for at in kept], self.short.results, strict=True))
        return tuple(self.view(known[twin], further) for twin, further in map(self.twin, whole))

    def twin(self, at: int) -> tuple[int, int]:
        """The place that stands for one of the whole graph in the short one, and how many layers before."""
        r = self.repeat
        if at < r.cut:
            return at, 0
        if at >= r.cut + r.missing:
            return (at - r.missing if at < r.stop else at), r.left_out
        further = (at - r.cut) // r.period + 1
        return at - further * r.period, further

    def view(self, view: UOp, further: int) -> UOp:
        chain = []
        while view.src and view.op is not Ops.PARAM:
            chain.append(view)
            view = view.src[0]
        if view.op is Ops.PARAM:
            n = int(view.arg[0])
            number = self.number(n, further, self.is_of_layer(n))
            view = make(Ops.PARAM, view.dtype, (), (number, *view.arg[1:]), view.origin)
        for node in reversed(chain):
            view = node.replace((view, *node.src[1:]))
        return view

    def is_regular(self, found: StepList) -> bool:
        """Whether the same is done with the memory of all layers, but for the first ones and the last."""
        r, known = self.repeat, found.inputs
        role: dict[int, tuple[object, int]] = {}  # what memory is in its layer
        for at in range(r.start + FRONT * r.period, r.stop - REAR * r.period):
            if r.order[at].op is Ops.PARAM:
                role[int(r.order[at].arg[0])] = "input", (at - r.start) % r.period
        for n, (first, stop, distance) in enumerate(self.made.segments):
            edge = ((stop - first) // distance - 1) // 2 * distance
            begin, end = first + self.made.more[n], stop + self.made.more[n + 1]
            for x in range(begin + edge, end - edge):
                role[known + x] = n, (x - begin) % distance
        touched: dict[int, list[tuple[UOp, int]]] = {n: [] for n in role}
        for step in found.steps:
            for position, n in enumerate(step.buffers):
                if n in touched:
                    touched[n].append((step.ast, position))
        alike: dict[tuple[object, int], list[tuple[UOp, int]]] = {}
        return all(alike.setdefault(role[n], uses) == uses for n, uses in touched.items())
