"""Plans in parts: results get memory when they are first written, arguments go when they are last read."""

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from morok.schedule.plan.memory import Placement  # noqa: E402
from morok.torch.backend import morok  # noqa: E402
from morok.torch.parts import cuts, delayed, room_of  # noqa: E402
from morok.torch.watch import watching  # noqa: E402
from tests.torch.test_backend import trains  # noqa: E402


def test_parts_begin_where_what_was_read_makes_room() -> None:
    kernels: Any = [["x", "a"], ["y", "b"], ["b", "c"], ["z", "d"]]
    results = {"a": 100, "b": 100, "d": 100}
    assert cuts(kernels, results, {}) == [0]
    assert cuts(kernels, results, {"x": 100, "y": 100, "z": 100}) == [0, 1, 3]  # one goes, one comes
    assert cuts(kernels, results, {"x": 300}) == [0, 1]
    assert cuts(kernels, {**results, "d": 1000}, {"x": 100, "y": 100}) == [0, 3]  # before that there is room


def test_what_is_between_kernels_counts_while_it_is_needed() -> None:
    kernels: Any = [["x", "t"], ["t", "u"], ["u", "a"], ["b"]]
    results: Any = {"a": 100, "b": 100}
    assert cuts(kernels, results, {}) == [0]
    assert cuts(kernels, results, {}, {"t": 50, "u": 50}) == [0, 3]  # t and u go before b comes


def test_memory_is_filled_when_it_is_needed() -> None:
    kernels: Any = [(0, ["a"]), (1, ["x", "b"]), (2, ["c"]), (3, ["b", "a"]), (4, ["a"])]
    assert [number for number, _ in delayed(kernels)] == [1, 0, 3, 2, 4]


def test_a_part_has_room_for_what_is_alive_at_once() -> None:
    nodes: Any = ["a", "b", "c"]
    inner = {n: Placement("CPU", 128 * (i == 1), 100) for i, n in enumerate(nodes)}
    places, room = room_of(inner, [["a"], ["a", "b"], ["b", "c"]])
    assert dict(places) == {"a": 0, "b": 128, "c": 0} and room == 256
    inner = {n: Placement("CPU", 0, 100) for n in nodes}  # each in the place of the one before
    assert room_of(inner, [["a"], ["a", "b"], ["b", "c"], ["c"]])[1] == 128


def layers() -> Any:
    return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(512, 512), nn.Tanh())])


@pytest.mark.slow
def test_gradients_come_as_activations_go() -> None:
    """The peak of a step is eager torch's, and plans keep nothing between steps."""
    model, x = layers(), torch.randn(512, 512)

    def peak(run: Any) -> int:
        for _ in range(2):  # the first one compiles
            model.zero_grad(set_to_none=True)
            gc.collect()
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
                run(x).square().mean().backward()
        events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
        now = most = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return most

    eager = peak(model)
    with watching() as graphs:
        found = peak(torch.compile(model, backend=morok))
    assert max(len(p.parts) for g in graphs for s in g.steps for p in s.programs) > 1
    assert not any(plan._arenas for g in graphs for plan in g.plans)
    assert found <= 1.005 * eager


@pytest.mark.slow
def test_gradients_in_parts_are_right() -> None:
    trains(layers(), torch.randn(64, 512))
