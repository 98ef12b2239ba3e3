"""A function under jit that gives names other tensors does so at every call, as Python would."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit

COUNT = 5
HELD = Tensor([0.0])


def one(value: float) -> Tensor:
    return Tensor([float(value)])


class Slotted:
    __slots__ = ("h",)


class Shared:
    h = HELD


def run(step: Callable[[Tensor], Any], look: Callable[[], Any]) -> list[Any]:
    """What is seen after each call, and after several of which nothing was looked at."""
    seen = []
    for i in range(COUNT):
        step(one(i))
        seen.append(look())
    for i in range(COUNT):
        step(one(i))
    return [*seen, look()]


Program = Callable[[Any], list[Any]]  # takes what compiles a function, or leaves it as it is
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


@program
def attribute(compiled: Any) -> list[Any]:
    o = SimpleNamespace(h=one(0))

    def step(x: Tensor) -> Tensor:
        o.h = o.h * 0.5 + x
        return o.h + 1

    return run(compiled(step), lambda: o.h.tolist())


@program
def new_attribute(compiled: Any) -> list[Any]:
    o = SimpleNamespace()

    def step(x: Tensor) -> Tensor:
        o.last, o.pair = x * 2, [x, x + 1]
        return x

    return run(compiled(step), lambda: (o.last.tolist(), [t.tolist() for t in o.pair]))


@program
def tuple_of_states(compiled: Any) -> list[Any]:
    o = SimpleNamespace(state=(one(0), one(1)))

    def step(x: Tensor) -> Tensor:
        h, c = o.state
        o.state = (c + x, h * 0.5)
        return x

    return run(compiled(step), lambda: [t.tolist() for t in o.state])


@program
def none_first_and_none_later(compiled: Any) -> list[Any]:
    o = SimpleNamespace(h=None, other=one(3))

    def step(x: Tensor) -> Tensor:
        o.h = x if o.h is None else o.h + x
        o.other = None if o.other is not None else x * 3
        return x

    return run(compiled(step), lambda: (o.h.tolist(), o.other and o.other.tolist()))


@program
def enclosed(compiled: Any) -> list[Any]:
    h = one(0)

    def step(x: Tensor) -> Tensor:
        nonlocal h
        h = h + x
        return h * 2

    return run(compiled(step), lambda: h.tolist())


@program
def of_the_module(compiled: Any) -> list[Any]:
    global HELD
    HELD = one(0)

    def step(x: Tensor) -> Tensor:
        global HELD
        HELD = HELD + x
        return x

    return run(compiled(step), lambda: HELD.tolist())


@program
def new_in_the_module(compiled: Any) -> list[Any]:
    globals().pop("LAST", None)

    def step(x: Tensor) -> Tensor:
        global LAST
        LAST = x + 1  # type: ignore[name-defined]
        return x

    return run(compiled(step), lambda: LAST.tolist())  # type: ignore[name-defined]


@program
def elements_swapped(compiled: Any) -> list[Any]:
    xs = [one(0), one(5), "name"]

    def step(x: Tensor) -> Tensor:
        xs[0], xs[1] = xs[1] + x, xs[0]
        return x

    return run(compiled(step), lambda: [t if isinstance(t, str) else t.tolist() for t in xs])


@program
def appended(compiled: Any) -> list[Any]:
    xs: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        xs.append(x * 2)
        return x

    return run(compiled(step), lambda: [t.tolist() for t in xs])


@program
def queue(compiled: Any) -> list[Any]:
    xs = deque([one(1), one(2)], maxlen=2)

    def step(x: Tensor) -> Tensor:
        xs.append(xs[0] + x)
        return x

    return run(compiled(step), lambda: [t.tolist() for t in xs])


@program
def entry(compiled: Any) -> list[Any]:
    d: dict[str, Any] = {"gone": one(1)}

    def step(x: Tensor) -> Tensor:
        d["k"] = x * 2 + d.get("k", 0)
        d.pop("gone", None)
        return x

    return run(compiled(step), lambda: {k: v.tolist() for k, v in d.items()})


@program
def slot(compiled: Any) -> list[Any]:
    o = Slotted()
    o.h = one(0)

    def step(x: Tensor) -> Tensor:
        o.h = o.h + x
        return x

    return run(compiled(step), lambda: o.h.tolist())


@program
def of_a_class(compiled: Any) -> list[Any]:
    Shared.h = one(0)

    def step(x: Tensor) -> Tensor:
        Shared.h = Shared.h + x
        return x

    return run(compiled(step), lambda: Shared.h.tolist())


@program
def argument_kept(compiled: Any) -> list[Any]:
    o = SimpleNamespace(last=one(7), before=one(8))

    def step(x: Tensor) -> Tensor:
        o.before, o.last = o.last, x
        return x * 2

    return run(compiled(step), lambda: (o.before.tolist(), o.last.tolist()))


@program
def counted_beside(compiled: Any) -> list[Any]:
    o = SimpleNamespace(h=one(0), t=0)

    def step(x: Tensor) -> Tensor:
        o.t += 1
        o.h = o.h + x * o.t
        return x

    return run(compiled(step), lambda: (o.h.tolist(), o.t))


@program
def inside_of_another(compiled: Any) -> list[Any]:
    o = SimpleNamespace(h=one(0), out=None)

    @jit
    def inner(x: Tensor) -> Tensor:
        o.h = o.h + x
        return o.h * 10

    def step(x: Tensor) -> Tensor:
        o.out = inner(x) + inner(x * 2)
        return x

    return run(compiled(step), lambda: (o.h.tolist(), o.out.tolist()))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_names_that_get_other_tensors(program: Program) -> None:
    assert program(jit) == program(lambda function: function)


def test_methods_of_several_objects() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n, self.by = Tensor.zeros(2), 1

        @jit
        def step(self, x: Tensor) -> Tensor:
            self.n = self.n + x * self.by
            return self.n.sum()

    a, b = Counter(), Counter()
    assert [a.step(one(i)).item() for i in range(4)] == [0, 2, 6, 12]
    a.by = 2
    assert a.step(one(1)).item() == 16
    assert b.step(one(1)).item() == 2 and b.n.tolist() == [1, 1] and a.n.tolist() == [8, 8]


def test_a_replay_does_not_trace_again() -> None:
    o = SimpleNamespace(h=one(0))

    @jit
    def step(x: Tensor) -> Tensor:
        o.h = o.h + x
        return o.h

    for _ in range(5):
        step(one(1))
    assert step.traces == 1 and o.h.tolist() == [5]


def test_a_tracing_that_fails_leaves_names_as_they_were() -> None:
    o = SimpleNamespace(h=one(3))

    @jit
    def step(x: Tensor, fails: bool) -> Tensor:
        o.h = o.h + x
        o.new = x
        if fails:
            raise RuntimeError
        return x

    with pytest.raises(RuntimeError):
        step(one(1), True)
    assert o.h.tolist() == [3] and not hasattr(o, "new")
    step(one(1), False)
    assert o.h.tolist() == [4] and o.new.tolist() == [1]


def test_what_was_put_somewhere_keeps_its_value() -> None:
    kept: list[Tensor] = []
    step = jit(lambda x: kept.append(x * 2) or x)
    x = Tensor(np.arange(3.0)).realize()
    step(x)
    x += 100
    assert kept[0].tolist() == [0, 2, 4]


@pytest.mark.parametrize("called_before", [False, True])
def test_a_compiled_function_inside_of_another(called_before: bool) -> None:
    """It is a part of the other one: what it computes for its first argument is no constant there."""
    inner = jit(lambda x: x * 2 + 1)
    weight = Tensor([1.0]).realize()
    if called_before:
        for _ in range(3):
            inner(weight)
    compiled = [jit(lambda x: inner(x)), jit(lambda x: inner(inner(x)) + x), jit(lambda x: inner(x * 3))]
    compiled += [jit(lambda x: inner(weight) * x), jit(jit(lambda x: inner(x)))]
    for i in range(4):
        weight.assign(one(i)).realize()
        want = [2 * i + 1, 5 * i + 3, 6 * i + 1, (2 * i + 1) * i, 2 * i + 1]
        assert [f(one(i)).item() for f in compiled] == want
    assert inner(one(4)).item() == 9
