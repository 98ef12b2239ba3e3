"""Kernels by search in whole programs: right results, found again without a search, and off when told so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from morok import Beam, Config, Heuristic, MorokError, Plain, Tensor, knobs
from morok.device.cpu.device import CPU
from morok.optimize.record import Opt
from morok.optimize.search.beam import Found
from morok.runtime import tuning
from morok.runtime.plan import program_for
from morok.runtime.tuning import Tuner, read_entry, suffices, tuner, write_entry

WIDE = Beam(2, 20.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with knobs.override(CACHE=True, CACHE_DIR=str(tmp_path), DEVICE="CPU"):
        yield


def test_a_search_finds_right_kernels_and_replays_them(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).standard_normal((64, 96), dtype=np.float32)
    start = len(tuner.history)
    x = Tensor(data).realize()
    y = (x * 2.0 + 1.0).sum(-1)
    plan = y.prepare(Config(strategy=WIDE))
    plan.run()
    np.testing.assert_allclose(y.numpy(), (data * 2 + 1).sum(-1), rtol=1e-4, atol=1e-4)
    (first,) = tuner.history[start:]
    assert first.searched
    assert first.found.tried > 1
    assert first.found.after <= first.found.before
    assert first.place is not None
    assert "test_tuning.py" in first.place

    # Another process would know nothing but the disk: a fresh tuner, and no search is possible.
    fresh = Tuner()
    monkeypatch.setattr(fresh, "_search", None)
    (item,) = plan.schedule.items
    again = fresh.tuned("CPU", item.ast, "again", None, WIDE)
    assert not fresh.history[0].searched
    assert again.arg.opts == first.found.opts
    # with a narrower search it is good enough too, with a wider one it is not
    fresh.tuned("CPU", item.ast, "again", None, Beam(1, 1.0))
    with pytest.raises(TypeError, match="not callable"):
        fresh.tuned("CPU", item.ast, "again", None, Beam(100, 4.0))


def test_what_was_found_with_more_effort_will_do() -> None:
    found = Found((Opt("UPCAST", 0, 4),), 2e-3, 1e-3, 10, 0, False)
    assert suffices((Beam(4, 10.0), found), Beam(4, 10.0))
    assert not suffices((Beam(4, 10.0), found), Beam(4, 30.0))
    done = Found(found.opts, 2e-3, 1e-3, 10, 0, True)
    assert suffices((Beam(4, 10.0), done), Beam(4, 30.0))
    assert not suffices((Beam(4, 10.0), done), Beam(8, 5.0))
    assert read_entry(write_entry(Beam(4, 10.0), done)) == (Beam(4, 10.0), done)
    assert read_entry("{}") is read_entry("no text of ours") is None


def test_a_damaged_result_is_searched_for_again(tmp_path: Path) -> None:
    from morok.device.store import DiskStore

    store = DiskStore(str(tmp_path / "store"))
    store.put_search("key", "text")
    assert store.get_search("key") == "text"
    assert store.get_search("other") is None
    assert store._connection is not None
    store._connection.execute("update searches set found = 'changed'")
    assert store.get_search("key") is None
    store.put_search("key", "again")
    assert store.get_search("key") == "again"


def test_the_key_holds_the_compiler_the_machine_and_its_options() -> None:
    device = CPU()
    key = device.tuning_key()
    with knobs.override(BEAM=4):
        assert device.tuning_key() == key  # that decides how long to look, not what is best
    with knobs.override(UNSAFE_MATH=True):
        assert device.tuning_key() != key


# --- strategies


def test_strategies_come_from_the_knobs_or_the_config() -> None:
    assert Config().chosen == Heuristic()
    with knobs.override(BEAM=3, BEAM_SECONDS=7):
        assert Config().chosen == Beam(3, 7.0)
        assert Config(Heuristic()).chosen == Heuristic()
        with knobs.override(NOOPT=True):
            assert Config().chosen == Config(Beam(8, 30)).chosen == Plain()
    with pytest.raises(MorokError, match="width"):
        Beam(0)
    with pytest.raises(MorokError, match="time"):
        Beam(4, 0.0)


def ast_of(x: Tensor) -> object:
    return x.prepare().schedule.items[0].ast


def test_noopt_and_plain_leave_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heuristic and no search is asked, and the results are right."""
    import morok.optimize.heuristics.apply as apply

    def refuse(*args: object) -> None:
        raise AssertionError("the optimiser was asked")

    monkeypatch.setattr(apply, "choose", refuse)
    monkeypatch.setattr(tuning.tuner, "tuned", refuse)
    data = np.arange(7 * 33, dtype=np.float32).reshape(7, 33)
    for config, noopt in ((Config(Plain()), False), (Config(), True), (Config(Beam(2, 1.0)), True)):
        with knobs.override(NOOPT=noopt, CACHE=False):
            y = (Tensor(data).realize() * 2.0).sum(-1)
            y.prepare(config).run()
            np.testing.assert_allclose(y.numpy(), (data * 2).sum(-1))
    with knobs.override(CACHE=False), pytest.raises(AssertionError, match="optimiser was asked"):
        ((Tensor(data).realize() * 3.0).sum(-1)).realize()


def test_devices_without_a_search_are_left_alone() -> None:
    with knobs.override(DEVICE="PYTHON", BEAM=2):
        assert (Tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]


def test_each_strategy_has_its_own_program() -> None:
    (item,) = (Tensor(np.ones(100, np.float32)).realize() + 1).prepare().schedule.items
    plain, heuristic = (program_for("CPU", item.ast, "k", None, Config(s)) for s in (Plain(), Heuristic()))
    assert plain is not heuristic
    assert program_for("CPU", item.ast, "k", None, Config(Plain())) is plain
