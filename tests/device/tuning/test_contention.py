"""Others on the same processor are noticed, this process itself is not."""

from __future__ import annotations

import pytest

from morok.device.tuning import contention


class System:
    """Cores that work for others and for this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = self.own = self.clock = 0.0
        monkeypatch.setattr(contention, "used", lambda: (self.all, self.own))

    def now(self) -> float:
        return self.clock

    def work(self, own: float, others: float, seconds: float = 1.0) -> None:
        self.clock += seconds
        self.own += own * seconds
        self.all += (own + others) * seconds


@pytest.mark.parametrize(
    ("cores", "threads", "others", "wanted"),
    [(2, 2, 0.0, False), (2, 2, 0.1, False), (2, 2, 1.0, True), (2, 1, 1.0, False), (8, 2, 5.0, False),
     (8, 8, 5.0, True)],
)  # fmt: skip
def test_there_is_contention_where_cores_are_needed(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, others: float, wanted: bool
) -> None:
    system = System(monkeypatch)
    contended = contention.monitor(threads, cores, system.now)
    system.work(own=float(threads), others=others)
    assert contended() is wanted


def test_a_short_time_is_counted_with_care(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch)
    contended = contention.monitor(2, 2, system.now)
    system.work(own=2.0, others=1.0, seconds=0.01)  # one tick, which may be anybody's
    assert not contended()


def test_where_nobody_tells_there_is_no_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "used", lambda: None)
    assert not contention.monitor(2)()


def test_the_system_counts_this_process_too() -> None:
    first = contention.used()
    if first is None:
        pytest.skip("the system has no such counts")
    while True:  # until the system has counted some of it
        sum(range(200_000))
        last = contention.used()
        assert last is not None
        if last[1] - first[1] > 0.1:
            break
    assert last[0] - first[0] >= 0.05
