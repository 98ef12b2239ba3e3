"""Preparing a program takes work in proportion to its size.

Work is counted, not timed: lines of Python that run, by the file they stand in. A program of 2n layers may
take twice what one of n takes, beyond what both take once; something quadratic would take four times as much.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import morok
from morok import Tensor, nn
from morok.ir.node import UOp, toposort
from morok.schedule.plan.grouping import MAX_CODE, _Groups
from morok.schedule.plan.kernels import Kernel, lower
from morok.schedule.plan.memory import LiveRange, place_live_ranges
from morok.schedule.schedule import clear_cache

ROOT = Path(morok.__file__).parent
AGAIN = ("tensor/memory/states", "tensor/realize", "schedule/signature", "schedule/schedule", "runtime/plan")
FIRST = (
    "tensor/memory/states",
    "schedule/normalise",
    "schedule/graph/states",
    "schedule/graph/boundaries",
    "schedule/split",
    "schedule/plan/overwrite",
    "schedule/plan/order",
    "schedule/plan/grouping",
    "schedule/plan/detours",
    "schedule/plan/kernels",
    "schedule/plan/memory",
    "schedule/plan/template",
)
_NAMES = {str(ROOT / f"{part}.py"): part for part in (*AGAIN, *FIRST)}


def lines_of(work: Callable[[], object]) -> Counter[str]:
    """How many lines some work takes in each of the parts."""
    count: Counter[str] = Counter()

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            return step if frame.f_code.co_filename in _NAMES else None
        if event == "line":
            count[_NAMES[frame.f_code.co_filename]] += 1
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(work: Callable[[int], Callable[[], object]], n: int) -> dict[str, float]:
    """How much more each part does when 2n more are added, than when n were: 2 if it is linear."""
    small, middle, large = (lines_of(work(size)) for size in (n, 2 * n, 4 * n))
    return {part: (large[part] - middle[part]) / max(1, middle[part] - small[part]) for part in large}


class Layers:
    def __init__(self, count: int) -> None:
        self.layers = [nn.Linear(8, 8) for _ in range(count)]
        self.optimizer = nn.AdamW(nn.parameters(self), lr=1e-3)
        self.x = Tensor.ones(2, 8).contiguous().realize()

    def step(self) -> list[Tensor]:
        self.optimizer.zero_grad()
        x = self.x
        for layer in self.layers:
            x = layer(x).gelu()
        loss = x.square().mean()
        loss.backward()
        return [loss, *self.optimizer.update()]

    def realized(self) -> None:
        found = self.step()
        found[0].realize(*found[1:])


def first_schedule(count: int) -> Callable[[], object]:
    found = Layers(count).step()
    clear_cache()
    return lambda: found[0].prepare(*found[1:])


def scheduled_before(count: int) -> Callable[[], object]:
    model = Layers(count)
    for _ in range(2):
        model.realized()
    found = model.step()
    return lambda: found[0].prepare(*found[1:])


@cache
def measured(work: Callable[[int], Callable[[], object]]) -> dict[str, float]:
    work(2)()  # kernels are lowered once, however often they run
    return growth(work, 3)


@pytest.mark.parametrize("part", FIRST)
def test_a_first_schedule_is_linear(part: str) -> None:
    assert measured(first_schedule)[part] < 2.2


@pytest.mark.parametrize("part", AGAIN)
def test_a_step_that_was_scheduled_before_is_linear(part: str) -> None:
    assert measured(scheduled_before)[part] < 2.2


def test_a_step_of_training_is_scheduled_once() -> None:
    """Whoever holds gradients is asked in the same order every time, so equal steps are equal graphs."""
    model = Layers(3)
    for _ in range(2):
        model.realized()
    with patch("morok.schedule.plan.template.build_template", side_effect=AssertionError("scheduled again")):
        for _ in range(3):
            model.realized()


def test_readers_of_old_states_are_found_in_one_walk() -> None:
    def held(count: int) -> Callable[[], object]:
        memory = Tensor(np.ones(4, np.float32)).realize()
        kept = [memory + 1.0]
        for _ in range(count):
            kept.append(kept[-1] * 2.0)
        memory.assign(memory * 3.0)
        clear_cache()
        plan = memory.prepare
        return lambda: (plan(), kept)

    assert growth(held, 10)["tensor/memory/states"] < 2.2


def test_many_assigned_values_that_one_result_reads() -> None:
    """Every value is read as it was, and one result waits for all of the writes."""

    def assigned(count: int) -> Callable[[], object]:
        tensors = [Tensor(np.full(4, i, np.float32)).realize() for i in range(count)]
        total = tensors[0] * 2.0
        for t in tensors[1:]:
            total = total + t
        for t in tensors:
            t.assign(t + 1.0)
        result = total
        for t in tensors:
            result = result + t
        clear_cache()
        return lambda: result.prepare()

    assert growth(assigned, 4)["schedule/graph/states"] < 2.2


def test_values_that_are_kept_before_many_writes_are_right() -> None:
    count = 12
    tensors = [Tensor(np.full(4, i, np.float32)).realize() for i in range(count)]
    old = tensors[0] * 2.0
    for t in tensors[1:]:
        old = old + t * t
    for t in tensors:
        t.assign(t + 1.0)
    new = old
    for t in tensors:
        new = new + t
    expected = sum(i * i for i in range(1, count)) + sum(i + 1 for i in range(count))
    np.testing.assert_array_equal(new.numpy(), np.full(4, expected, np.float32))


# --- memory


def nested(count: int) -> list[LiveRange]:
    """Activations that live until their backward pass, and what each layer takes on the way."""
    sizes = (4096, 1024, 16384, 64)
    found = [LiveRange(i, "CPU", sizes[i % 4], i, 2 * count - i) for i in range(count)]
    return found + [LiveRange(count + i, "CPU", sizes[i % 3], i, i + 1) for i in range(2 * count)]


def test_placing_many_lives_is_linear() -> None:
    def place(count: int) -> Callable[[], object]:
        found = nested(count)
        return lambda: place_live_ranges(found)

    assert growth(place, 30)["schedule/plan/memory"] < 2.2


def live_set(found: list[LiveRange], alignment: int = 64) -> int:
    """The most bytes that are needed at one step, counted step by step."""
    return max(
        sum(-(-life.nbytes // alignment) * alignment for life in found if life.start <= step <= life.stop)
        for step in range(max(life.stop for life in found) + 1)
    )


def test_a_plan_takes_little_more_than_what_is_alive() -> None:
    for count in (10, 60):
        found = nested(count)
        arenas, bound = place_live_ranges(found)
        assert bound == live_set(found)
        assert arenas["CPU"] <= 1.05 * live_set(found)


def lives_of(plan: Any) -> list[LiveRange]:
    """When the intermediates of a plan are touched, by its kernels alone."""
    placed = plan.memory.placements
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for item in plan.schedule.items:
        for node in item.buffers:
            if node in placed:
                first.setdefault(node, item.group)
                last[node] = item.group
    return [LiveRange(n, "CPU", placed[node].nbytes, first[node], last[node]) for n, node in enumerate(first)]


def convolutions() -> Any:
    x = Tensor.empty(2, 3, 32, 32)
    layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 16), (16, 32), (32, 32))]
    for layer in layers:
        x = layer(x).relu().max_pool2d(2).contiguous()
    loss = x.square().mean()
    loss.backward()
    return loss.prepare(*[layer.weight.grad for layer in layers])


def test_plans_of_models_take_little_more_than_what_is_alive() -> None:
    model = Layers(8)
    found = model.step()
    for plan in (found[0].prepare(*found[1:]), convolutions()):
        lives = lives_of(plan)
        assert lives and plan.memory.arena_bytes <= 1.05 * live_set(lives)


# --- code


def test_kernels_with_several_outputs_have_a_bound() -> None:
    """Sixteen weights of one shape are not one kernel with sixteen times the code, but equal kernels."""
    weights = [Tensor.uniform(4, 4).requires_grad_() for _ in range(16)]
    plan = weights[0].prepare(*weights[1:])
    assert len(plan.kernels) >= 8 and len({kernel.ast for kernel in plan.kernels}) == 1


def test_no_group_has_more_code_than_the_bound() -> None:
    found = Layers(12).step()
    plan = found[0].prepare(*found[1:])
    several = [kernel for kernel in plan.kernels if len(kernel.ast.src) > 1]
    assert several
    for kernel in several:
        floats = [node for node in toposort(kernel.ast) if node.op.is_alu and node.dtype.is_float]
        assert len(floats) <= MAX_CODE


# --- groups


def _written_out(steps: int) -> Tensor:
    """A loop of a program: a value goes on from step to step, and each of them is stored."""
    x = Tensor(np.ones((2, steps, 8), np.float32)).realize()
    value, found = Tensor.zeros(2, 8), []
    for n in range(steps):
        value = x[:, n] * value + x[:, n]
        found.append(value)
    return Tensor.stack(found, dim=1)


def test_a_loop_that_is_written_out_is_lowered_once() -> None:
    """Its steps are one kernel, and were lowered together with all before them at each step."""
    lowered: list[int] = []

    def counted(form: UOp) -> Kernel:
        lowered.append(len(form.src))
        return lower(form)

    clear_cache()
    with patch("morok.schedule.plan.grouping.lower", counted):
        _written_out(64).plan()
    assert lowered and sum(lowered) <= 64


def _swapped() -> list[Tensor]:
    a, b = (Tensor(np.arange(8, dtype=np.float32) * k).realize() for k in (1, 10))
    both = a + b
    twice = both * 2
    a.assign(both)
    b.assign(twice + b)
    return [twice + both, a, b]


def _in_a_circle() -> list[Tensor]:
    a, b, c = (Tensor(np.arange(8, dtype=np.float32) * k).realize() for k in (1, 10, 100))
    a.assign(b + 1)
    b.assign(c + a)
    c.assign(b + a.flip(0))
    return [a, b, c]


@pytest.mark.parametrize("program", [_swapped, _in_a_circle, lambda: [_written_out(64)]])
def test_groups_are_those_that_are_made_pair_by_pair(program: Callable[[], list[Tensor]]) -> None:
    def kernels() -> tuple[list[UOp], list[Any]]:
        clear_cache()
        results = program()
        plan = results[0].plan(*results[1:])
        asts = [kernel.ast for kernel in plan.kernels]
        return asts, [t.numpy() for t in results]

    asts, values = kernels()
    with patch("morok.schedule.plan.grouping._Groups.is_trusted", lambda *_: False):
        wanted, other = kernels()
    assert asts == wanted
    for one, two in zip(values, other, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_group_that_is_unsafe_is_found_in_the_end() -> None:
    """Its members are put together pair by pair then, and the results are NumPy's."""
    clear_cache()
    with patch.object(_Groups, "unsafe", autospec=True, side_effect=_Groups.unsafe) as asked:
        results = _in_a_circle()
        Tensor.realize(*results)
    assert asked.call_count > 1
    a, b, c = (np.arange(8, dtype=np.float32) * k for k in (1, 10, 100))
    a = b + 1
    b = c + a
    for got, wanted in zip(results, (a, b, b + a[::-1]), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)
