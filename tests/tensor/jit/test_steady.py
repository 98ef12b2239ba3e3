"""Steps that write into memory of their own: as the function itself, whatever happens between them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.device.registry import default_device, get_device
from morok.errors import MorokError
from morok.tensor.jit.steady import Steady
from tests.devices import devices

ROOM = 12
AT: Any = Variable("at", 0, ROOM - 1)


@pytest.fixture(params=devices("CPU"), autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Only plans that are one native call have such steps."""
    with knobs.override(DEVICE=request.param):
        yield request.param


def step(row: Tensor, caches: list[Tensor], at: Any) -> Tensor:
    """Puts a row into each cache and adds up what is there so far."""
    found = []
    for n, cache in enumerate(caches):
        cache[at : at + 1] = row * (n + 1.0)
        found.append(cache[: at + 1].sum(0))
    return sum(found[1:], found[0]).contiguous()


def new(count: int = 3) -> tuple[list[Tensor], list[np.ndarray]]:
    caches = [Tensor.zeros(ROOM, 4).contiguous().realize() for _ in range(count)]
    return caches, [np.zeros((ROOM, 4), np.float32) for _ in range(count)]


def expected(row: np.ndarray, known: list[np.ndarray], at: int) -> np.ndarray:
    for n, cache in enumerate(known):
        cache[at] = row[0] * (n + 1.0)
    return sum(cache[: at + 1].sum(0) for cache in known)  # type: ignore[return-value]


def rows(at: int) -> np.ndarray:
    return np.random.default_rng(at).integers(-8, 8, (1, 4)).astype(np.float32)


def test_steps_are_those_of_the_function(device: str) -> None:
    f = Steady(jit(step))
    caches, known = new()
    held = []
    for at in range(ROOM):
        row = rows(at)
        held.append((f(Tensor(row), caches, AT.bind(at)), expected(row, known, at)))
    for found, wanted in held:  # results stay what they were
        np.testing.assert_array_equal(found.numpy(), wanted)
    for cache, wanted in zip(caches, known, strict=True):
        np.testing.assert_array_equal(cache.numpy(), wanted)
    assert f.traces == 1
    assert f._known is not None or device == "EMULATOR"  # nothing had to be found out anew


def test_memory_that_changes_between_steps_is_seen() -> None:
    f = Steady(jit(step))
    caches, known = new()
    for at in range(ROOM):
        if at == 4:  # another tensor in its place
            caches[0], known[0] = Tensor.ones(ROOM, 4).contiguous().realize(), np.ones((ROOM, 4), np.float32)
        if at == 6:  # written by somebody else
            caches[1][0] = 5.0
            known[1][0] = 5.0
        if at == 8:  # another function takes the same memory
            row = rows(99)
            wanted = expected(row, known, 2)
            np.testing.assert_array_equal(jit(step)(Tensor(row), caches, AT.bind(2)).numpy(), wanted)
        if at == 10:
            caches, known = new()
        row = rows(at)
        found = f(Tensor(row), caches, AT.bind(at)).numpy()
        np.testing.assert_array_equal(found, expected(row, known, at))


def test_a_reader_of_before_keeps_what_it_has_seen() -> None:
    """An array of a cache is a copy, or the step writes elsewhere: it never changes under its owner."""
    f = Steady(jit(step))
    caches, known = new(1)
    for at in range(3):
        f(Tensor(rows(at)), caches, AT.bind(at))
        expected(rows(at), known, at)
    seen = caches[0].numpy()
    before = seen.copy()
    np.testing.assert_array_equal(before, known[0])
    f(Tensor(rows(3)), caches, AT.bind(3))
    np.testing.assert_array_equal(seen, before)
    later = caches[0] * 2  # a graph that waits
    before = caches[0].numpy().copy()
    f(Tensor(rows(4)), caches, AT.bind(4))
    f(Tensor(rows(5)), caches, AT.bind(5))
    np.testing.assert_array_equal(later.numpy(), 2 * before)


def test_other_forms_are_traced() -> None:
    f = Steady(jit(step))
    for count in (1, 2, 1):
        caches, known = new(count)
        for at in range(3):
            found = f(Tensor(rows(at)), caches, AT.bind(at)).numpy()
            np.testing.assert_array_equal(found, expected(rows(at), known, at))
    assert f.traces == 2


def test_a_step_that_fails_loses_what_it_wrote() -> None:
    def checked(place: Tensor, cache: Tensor, at: Any) -> Tensor:
        cache[at : at + 1] = Tensor.ones(1, 4)
        return (cache[: at + 1].sum(0) + Tensor.arange(4)[place]).contiguous()

    f = Steady(jit(checked))
    cache = Tensor.zeros(ROOM, 4).contiguous().realize()
    for at in range(3):
        f(Tensor(np.zeros(4, np.int32)), cache, AT.bind(at)).numpy()
    with pytest.raises(MorokError):
        f(Tensor(np.full(4, 9, np.int32)), cache, AT.bind(3)).numpy()
    if get_device(default_device()).on_host:  # elsewhere it is known only when values are looked at
        with pytest.raises(MorokError):
            cache.numpy()


def test_a_step_of_another_form_is_not_taken_for_the_last_one() -> None:
    """A constant in a variable's place first: what came after the second form's trace was the first's."""

    def one_of(row: Tensor, cache: Tensor, text: Any, at: Any) -> Tensor:
        cache[text : text + 1, at : at + 1] = row.unsqueeze(0)
        return cache[text : text + 1, : at + 1].sum((0, 1)).contiguous()

    f = Steady(jit(one_of))
    text: Any = Variable("text", 0, 1)
    one = Tensor.zeros(1, ROOM, 4).contiguous().realize()
    for at in range(3):
        f(Tensor(rows(at)), one, 0, AT.bind(at))
    two, known = Tensor.zeros(2, ROOM, 4).contiguous().realize(), np.zeros((2, ROOM, 4), np.float32)
    for at in range(3):
        for n in (0, 1):
            row = rows(2 * at + n)
            found = f(Tensor(row), two, text.bind(n), AT.bind(at)).numpy()
            np.testing.assert_array_equal(found, expected(row, [known[n]], at))
    np.testing.assert_array_equal(two.numpy(), known)
