"""The watch over all kernels of the suite sees what it should see."""

from __future__ import annotations

import pytest

from morok.dtype import float32, int32
from morok.ir import build
from morok.ir.node import UOp, const
from morok.schedule.plan import kernels
from morok.schedule.schedule import schedule
from tests.accesses import OutOfBounds, Watch
from tests.schedule import graphs as g

pytest.importorskip("z3")


def copy_of(size: int, place: UOp, gate: UOp | None = None) -> UOp:
    """A kernel that copies 8 elements, read at some place of memory that has `size`."""
    i = build.rng(8, 0)
    value = build.read(build.define_global(float32, size, 1), place, gate=gate)
    return build.sink(build.end(build.store(build.index(build.define_global(float32, 8, 0), i), value), i))


def test_it_is_on() -> None:
    assert kernels.describe.__module__ == "tests.accesses"


def test_what_intervals_show_needs_no_solver() -> None:
    watch = Watch()
    watch.kernel(copy_of(8, build.rng(8, 0)))
    assert watch.counts == {"kernels": 1, "intervals": 2} and not watch.seconds


def test_a_gate_keeps_an_access_inside() -> None:
    watch, i = Watch(), build.rng(8, 0)
    for _ in range(2):
        watch.kernel(copy_of(5, i + -2, (const(i.dtype, 1) < i) & (i < 7)))
    assert watch.counts["proved"] == 2 and len(watch.decided) == 1


@pytest.mark.parametrize("end", [6, 9])
def test_an_access_outside_is_told_with_an_example(end: int) -> None:
    i = build.rng(8, 0)
    with pytest.raises(OutOfBounds, match=r"r0 = [3-7] gives [5-9]"):
        Watch().kernel(copy_of(5, i + 2, i < end))


def test_a_place_that_is_read_can_be_anything() -> None:
    place = build.cast(build.read(build.define_global(int32, 8, 2), build.rng(8, 0)), build.index_dtype)
    with pytest.raises(OutOfBounds):
        Watch().kernel(copy_of(5, place))
    Watch().kernel(copy_of(5, place, (const(place.dtype, -1) < place) & (place < 5)))


def test_what_stays_open_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from morok.proof import graphs
    from morok.proof.verdicts import UNKNOWN, Verdict

    monkeypatch.setattr(graphs, "prove_in_bounds", lambda *_: Verdict(UNKNOWN, "timeout"))
    watch, i = Watch(), build.rng(8, 0)
    watch.kernel(copy_of(5, i, i < 5))
    assert watch.counts["open"] == 1 and len(watch.open) == 1
    other = Watch()
    other.add(watch.summary())
    assert "1 open" in other.report() and other.open == watch.open


def test_scheduling_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that a test schedules is looked at, whoever schedules it."""
    seen = []
    monkeypatch.setattr(Watch, "kernel", lambda self, ast: seen.append(ast))
    plan = schedule([g.exp(g.tensor(3, 1237))])
    assert seen == [item.ast for item in plan.items]
