"""Steps that are found on disk: not traced, and as those that are, whatever happens between them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.store import plan_store
from morok.errors import MorokError
from morok.tensor.jit.jit import jit
from morok.tensor.jit.steady import Steady
from morok.tensor.jit.stored import Named
from tests.devices import devices
from tests.tensor.jit.test_steady import AT, ROOM, expected, new, rows

FACTOR = np.array([[1.0, 2.0, -3.0, 0.5]], np.float32)


@pytest.fixture(params=devices("CPU"), autouse=True)
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with knobs.override(DEVICE=request.param, CACHE_DIR=str(tmp_path / "cache"), CACHE_PLANS=1):
        yield request.param


class Holder:
    """What has a tensor and a setting of its own."""

    __module__ = "morok.llm.model"  # machinery, whose attributes nobody guards

    def __init__(self, own: Tensor, power: int = 1) -> None:
        self.own, self.power = own, power

    def step(self, row: Tensor, caches: list[Tensor], at: Any) -> Tensor:
        found = []
        for n, cache in enumerate(caches):
            cache[at : at + 1] = row * self.own * (n + 1.0) * self.power
            found.append(cache[: at + 1].sum(0))
        return sum(found[1:], found[0]).contiguous()

    def checked(self, place: Tensor, cache: Tensor, at: Any) -> Tensor:
        cache[at : at + 1] = Tensor.ones(1, 4)
        return (cache[: at + 1].sum(0) + self.own[place]).contiguous()

    def named(self, name: str) -> Named:
        return Named(name, "morok.tensor.jit.stored", lambda: (f"{self.power}", [self.own]))


def steady(weight: np.ndarray = FACTOR, power: int = 1) -> Steady:
    """A step as another process would make it."""
    holder = Holder(Tensor(weight), power)
    return Steady(jit(holder.step), holder.named("step"))


def run(f: Steady, weight: np.ndarray = FACTOR, steps: int = ROOM, power: int = 1) -> None:
    caches, known = new()
    for at in range(steps):
        found = f(Tensor(rows(at)), caches, AT.bind(at)).numpy()
        np.testing.assert_array_equal(found, expected(rows(at) * weight * power, known, at))
    for cache, wanted in zip(caches, known, strict=True):
        np.testing.assert_array_equal(cache.numpy(), wanted)


def test_a_step_that_is_there_is_not_traced() -> None:
    first = steady()
    run(first, steps=1)
    assert first.traces == 1
    for weight in (FACTOR, FACTOR * 3):  # values are no part of a step
        second = steady(weight)
        run(second, weight)
        assert second.traces == 0 and len(second.plans) == 1


def test_what_differs_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    run(steady(), steps=1)
    other = steady(power=2)
    run(other, power=2)
    assert other.traces == 1
    with monkeypatch.context() as patch:
        patch.setattr("morok.tensor.jit.stored.source_version", lambda module: "another source")
        changed = steady()
        run(changed)
    assert changed.traces == 1
    with knobs.override(CACHE_PLANS=0):
        apart = steady()
        run(apart)
    assert apart.traces == 1


def test_memory_that_others_hold_stays_theirs() -> None:
    run(steady(), steps=1)
    f = steady()
    caches, known = new(3)
    seen = caches[0].numpy()
    later = caches[1] + 1  # a graph that waits
    for at in range(4):
        if at == 2:
            caches[2][0] = 5.0
            known[2][0] = 5.0
        found = f(Tensor(rows(at)), caches, AT.bind(at)).numpy()
        np.testing.assert_array_equal(found, expected(rows(at) * FACTOR, known, at))
    np.testing.assert_array_equal(seen, np.zeros((ROOM, 4)))
    np.testing.assert_array_equal(later.numpy(), np.ones((ROOM, 4)))
    assert f.traces == 0
    caches, known = new(3)
    caches[1] = caches[0]  # shown twice: another function
    f(Tensor(rows(0)), caches, AT.bind(0))
    np.testing.assert_array_equal(caches[0].numpy()[0], (rows(0) * FACTOR * 2)[0])


def test_a_failing_step_says_so_and_loses_what_it_wrote() -> None:
    for traces in (1, 0):
        holder = Holder(Tensor(np.arange(4, dtype=np.float32)))
        f = Steady(jit(holder.checked), holder.named("checked"))
        cache = Tensor.zeros(ROOM, 4).contiguous().realize()
        for at in range(2):
            found = f(Tensor(np.arange(4, dtype=np.int32)), cache, AT.bind(at)).numpy()
            np.testing.assert_array_equal(found, np.arange(4) + at + 1.0)
        with pytest.raises(MorokError, match="9 is outside"):
            f(Tensor(np.full(4, 9, np.int32)), cache, AT.bind(2)).numpy()
        assert f.traces == traces


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"template": "x", "lines": [], "inputs": []}'])
def test_an_entry_that_is_not_understood_is_made_anew(damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    run(steady(), steps=1)
    store = plan_store()
    assert store is not None
    get = type(store).get_plan
    broken = lambda self, key: damage if key.startswith("step|") else get(self, key)  # noqa: E731
    monkeypatch.setattr(type(store), "get_plan", broken)
    f = steady()
    run(f)
    assert f.traces == 1
