"""Calls on the same nodes, or on new memory of the same form, take a shorter way: nothing else may differ."""

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs, nn
from morok.errors import VariableError
from morok.runtime.profile import profile
from morok.tensor.gradient_track import no_grad
from morok.tensor.jit.jit import Jit
from morok.tensor.jit.results import Results
from tests.devices import devices


@pytest.fixture(params=devices("CPU"), autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Only plans that are one native call have such ways."""
    with knobs.override(DEVICE=request.param):
        yield request.param


def numbers(n: int, start: float = 0.0) -> np.ndarray:
    return np.arange(n, dtype=np.float32) + np.float32(start)


def warm(f: Jit, *args: Tensor) -> None:
    """Traced, replayed, and the short ways known."""
    for _ in range(3):
        f(*args)
    assert f._like is not None


def test_new_memory_of_the_same_form() -> None:
    f = jit(lambda x, y: (x * 2 - y, x.sum()))
    warm(f, Tensor(numbers(6)).realize(), Tensor(numbers(6)).realize())
    for k in range(6):
        x, y = numbers(6, k), numbers(6, -3 * k)
        got, total = f(Tensor(x).realize(), Tensor(y).realize())
        np.testing.assert_array_equal(got.numpy(), x * 2 - y)
        assert total.item() == x.sum()
    assert f.traces == 1


@pytest.mark.parametrize("second", ["twice", "turned", "part", "lazy", "wider", "integers"])
def test_what_lies_otherwise_is_no_such_call(second: str) -> None:
    f = jit(lambda x, y: x * 2 - y)
    warm(f, Tensor(numbers(6)).realize(), Tensor(numbers(6, 1)).realize())
    x = Tensor(numbers(6, 7)).realize()
    y, want = {
        "twice": (x, numbers(6, 7)),
        "turned": (Tensor(numbers(6)).realize().flip(0), numbers(6)[::-1]),
        "part": (Tensor(numbers(9)).realize()[2:8], numbers(6, 2)),
        "lazy": (Tensor(numbers(6)) + 3, numbers(6, 3)),
        "wider": (Tensor(numbers(1, 4)).realize(), numbers(1, 4)),
        "integers": (Tensor(np.arange(6)).realize(), np.arange(6)),
    }[second]
    for _ in range(3):
        np.testing.assert_array_equal(f(x, y).numpy(), numbers(6, 7) * 2 - want)


def test_shapes_of_one_size_are_other_forms() -> None:
    f = jit(lambda x: x.sum(0))
    warm(f, Tensor(numbers(6).reshape(2, 3)).realize())
    np.testing.assert_array_equal(f(Tensor(numbers(6).reshape(3, 2)).realize()).numpy(), [6, 9])
    assert f(Tensor(numbers(6)).realize()).item() == 15


def test_gradients_flow_where_they_are_asked_for() -> None:
    f = jit(lambda x: x * x)
    x = Tensor(numbers(4)).realize()
    warm(f, x)
    w = Tensor(numbers(4), requires_grad=True)
    (f(w * 1).sum()).backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), 2 * numbers(4))
    tracked = (w * 1).realize()
    f(tracked).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 4 * numbers(4))
    with no_grad():
        np.testing.assert_array_equal(f(tracked).numpy(), numbers(4) ** 2)


def test_values_from_outside_are_compared() -> None:
    class Scale:
        by = 2.0

    scale = Scale()
    f = jit(lambda x: x * scale.by)
    warm(f, Tensor(numbers(4)).realize())
    scale.by = 5.0
    np.testing.assert_array_equal(f(Tensor(numbers(4, 1)).realize()).numpy(), 5 * numbers(4, 1))


def test_options_make_another_trace() -> None:
    f = jit(lambda x: x + x)
    x = Tensor(numbers(4)).realize()
    warm(f, x)
    with knobs.override(NOOPT=1):
        f(x)
    assert f.traces == 2


def test_results_in_use_are_left_alone() -> None:
    f = jit(lambda x: x + 1)
    x = Tensor(numbers(4)).realize()
    warm(f, x)
    held = [f(x) for _ in range(7)]
    arrays = [h.numpy() for h in held[:3]]
    held[0].assign(held[0] * 0).realize()
    for _ in range(9):
        f(Tensor(numbers(4, 50)).realize())
    for h in held[1:]:
        np.testing.assert_array_equal(h.numpy(), numbers(4, 1))
    for a in arrays:
        np.testing.assert_array_equal(a, numbers(4, 1))
    assert held[0].tolist() == [0, 0, 0, 0]


def test_a_profile_sees_the_kernels() -> None:
    f = jit(lambda x: x + 1)
    x = Tensor(numbers(4)).realize()
    warm(f, x)
    with profile() as found:
        f(x)
    assert len(found.events) == 1


def test_arguments_are_not_kept() -> None:
    f = jit(lambda x: x + 1)
    warm(f, Tensor(numbers(4)).realize())
    x = Tensor(numbers(4, 1)).realize()
    node = weakref.ref(x.uop)
    f(x)
    del x
    gc.collect()
    assert node() is None


def test_threads_have_results_of_their_own() -> None:
    f = jit(lambda x: x * 3)
    warm(f, Tensor(numbers(64)).realize())
    wrong: list[int] = []

    def work(k: int) -> None:
        x, want = Tensor(numbers(64, k)).realize(), 3 * numbers(64, k)
        for n in range(150):
            given = x if n % 2 else Tensor(numbers(64, k)).realize()
            if not np.array_equal(f(given).numpy(), want):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_training_fills_two_sets_of_results_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Results] = []
    init = Results.__init__
    monkeypatch.setattr(Results, "__init__", lambda self, *a: (made.append(self), init(self, *a))[1])
    model = nn.Linear(3, 2)
    step = nn.TrainStep(model, nn.AdamW(nn.parameters(model), lr=0.01), lambda x: model(x).square().mean())
    losses = [step(Tensor.ones(4, 3).contiguous().realize()).item() for _ in range(12)]
    assert losses[-1] < losses[0]
    assert len(made) == 2


# --- values of variables


def test_other_values_of_a_variable_on_the_same_memory() -> None:
    """Each result keeps the sizes of its call, also those that are looked at later."""
    n = Variable("n", 1, 9)
    f = jit(lambda x, n: x[:n] * 2)
    x = Tensor(numbers(9)).realize()
    for _ in range(3):
        f(x, n.bind(4))
    assert f._last is not None and f._like is not None
    got = [(k, f(x, n.bind(k))) for k in (9, 1, 5, 5, 2)]
    for k, y in got:
        assert len(y) == k
        np.testing.assert_array_equal(y.numpy(), numbers(k) * 2)
    for k in range(1, 10):
        np.testing.assert_array_equal(
            f(Tensor(numbers(9, k)).realize(), n.bind(k)).numpy(), numbers(k, k) * 2
        )
    assert f.traces == 1


def test_variables_in_containers_and_by_name() -> None:
    n, m = Variable("n", 1, 6), Variable("m", 0, 3)
    f = jit(lambda pair, *, at: pair[0][at : at + 1] + pair[0][: pair[1]].sum())
    x = Tensor(numbers(6, 1)).realize()
    for k, at in ((3, 1), (3, 1), (3, 1), (6, 3), (1, 0), (2, 3)):
        found = f((x, n.bind(k)), at=m.bind(at)).numpy()
        np.testing.assert_array_equal(found, numbers(6, 1)[at : at + 1] + numbers(k, 1).sum())
    assert f.traces == 1


def test_a_variable_in_the_shape_of_an_argument_is_looked_for() -> None:
    n = Variable("n", 1, 9)
    f = jit(lambda x, n: x.sum() + n)
    x = Tensor(numbers(9)).realize()
    for k in (4, 4, 4, 7, 2, 9):
        part = x[: n.bind(k)]
        assert f(part, n.bind(k)).item() == numbers(k).sum() + k
    with pytest.raises(VariableError, match="bound to 3 and to 5"):
        f(x[: n.bind(3)], n.bind(5))


def test_one_value_of_a_variable_on_the_short_way() -> None:
    n = Variable("n", 1, 9)
    f = jit(lambda x, a, b: x[:a].sum() + x[b - 1 : b].sum())
    x = Tensor(numbers(9)).realize()
    for _ in range(3):
        assert f(x, n.bind(4), n.bind(4)).item() == 9
    with pytest.raises(VariableError, match="bound to 2 and to 3"):
        f(x, n.bind(2), n.bind(3))
    assert f(x, n.bind(9), n.bind(9)).item() == 44


def test_arithmetic_and_other_variables_are_no_such_call() -> None:
    n, other = Variable("n", 1, 9), Variable("other", 1, 9)
    f = jit(lambda x, n: x[:n] * 2)
    x = Tensor(numbers(9)).realize()
    for _ in range(3):
        f(x, n.bind(4))
    sizes = ((n.bind(3) - 1 + 1, 3), ((n.bind(7) + 1) // 2, 4), (other.bind(6), 6), (7, 7), (n.bind(8), 8))
    for size, count in sizes:
        np.testing.assert_array_equal(f(x, size).numpy(), numbers(count) * 2)
    weight = Tensor(numbers(9, 3)).realize()
    g = jit(lambda x, n: x[:n] * weight[:n])
    for count in (4, 4, 4, 9, 2):
        np.testing.assert_array_equal(g(x, n.bind(count)).numpy(), numbers(count) * numbers(count, 3))


class Settings:
    """What a function reads: a value that all have, a tuple with a list inside, a dictionary."""

    scale = 2.0

    def __init__(self) -> None:
        self.parts = (1.0, [3.0])
        self.named = {"shift": 1.0}


@pytest.mark.parametrize("what", ["own", "inside", "entry", "gone", "class", "same"])
def test_the_shortest_way_sees_what_python_values_have_become(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings()
    f = jit(lambda x: x * settings.scale * settings.parts[1][0] + settings.named.get("shift", 5.0))
    x = Tensor(numbers(6)).realize()
    for _ in range(3):
        assert f(x)[2].item() == 2 * 2 * 3 + 1
    assert f._quick is not None
    if what == "own":
        settings.scale = 4.0  # hides the one of the class
    elif what == "inside":
        settings.parts[1][0] = 6.0
    elif what == "entry":
        settings.named["shift"] = 13.0
    elif what == "gone":
        del settings.named["shift"]
    elif what == "class":
        monkeypatch.setattr(Settings, "scale", 4.0)
    want = {"own": 25.0, "inside": 25.0, "entry": 25.0, "gone": 17.0, "class": 25.0, "same": 13.0}[what]
    assert [f(x)[2].item() for _ in range(3)] == [want] * 3
    assert f.traces == (1 if what == "same" else 2)
