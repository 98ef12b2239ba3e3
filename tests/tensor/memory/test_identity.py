"""Memory has an identity, values do not: what each tensor shows, and who sees what is written."""

import pickle
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, jit
from morok.errors import DTypeError, MorokError
from tests.devices import needs_host_memory
from tests.tensor.common import same

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    "make", [lambda: Tensor.zeros(3), lambda: Tensor.zeros(3).contiguous(), lambda: Tensor.zeros(3) * 1]
)
def test_equal_values_are_no_one_s_memory(make: Any) -> None:
    first = make().realize()
    twin = make().realize()
    first += Tensor([1.0, 2.0, 3.0])
    assert (first * 2).tolist() == [2, 4, 6]
    assert make().realize().tolist() == [0, 0, 0]
    assert twin.tolist() == [0, 0, 0]
    twin[0] = 9
    assert (twin + 1).tolist() == [10, 1, 1]
    assert make().realize().tolist() == [0, 0, 0]
    assert first.tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [4, 32, 33, 39])
@pytest.mark.parametrize("update", ["t[8] = v + 1", "t[8] += v", "t[8:9] = v + v"])
def test_an_update_is_not_lost(size: int, update: str) -> None:
    """The part that is written is a living lazy view's."""
    data = np.ones((16, size), np.float32)
    t, n = Tensor(data), data.copy()
    for space in ({"t": t}, {"t": n}):
        exec(f"t[2] = 5; v = t[8]; {update}", space)
    same(t, n)


def test_writes_go_through_views() -> None:
    n = Tensor.zeros(3, 3).contiguous().realize()
    n[1][2] = 5
    n.T[0, 1] = 5
    n[1:2].assign(n[1:2] + 1)
    assert n.tolist() == [[0, 0, 0], [6, 1, 6], [0, 0, 0]]
    for row in n:
        row += 1
    first, *_ = n.split(1)
    first *= 2
    n.flip(0)[0, 0] = -1
    n.reshape(9)[4] = 7
    n[::2, ::2][1, 1] = 8
    n.squeeze().unsqueeze(0).transpose(1, 2)[0, 2, 0] = 3
    assert n.tolist() == [[2, 2, 3], [7, 7, 7], [-1, 1, 8]]


VIEWS: dict[str, Any] = {
    "rows": lambda x: x[1:],
    "number": lambda x: x[1, 2, ...],
    "steps": lambda x: x[::2, ::-1],
    "odd steps": lambda x: x[:, ::3],
    "order": lambda x: x.T,
    "joined": lambda x: x.reshape(12),
    "cut": lambda x: x.reshape(3, 2, 2),
    "cut rows": lambda x: x[1:].reshape(2, 2, 2),
    "joined turned": lambda x: x.T.reshape(12),
    "joined part": lambda x: x[:, 1:3].reshape(6),
    "new axes": lambda x: x.T[None].reshape(4, 1, 3),
    "turned back": lambda x: x[::-1].reshape(3, 4, 1),
    "steps joined": lambda x: x.reshape(12)[::2].reshape(3, 2),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("lazy", [False, True])
def test_views_are_those_of_numpy(name: str, lazy: bool) -> None:
    """Whether a reshape is a view too."""
    n = X.copy()
    t = Tensor(X) * 1 if lazy else Tensor(X)
    mine, theirs = VIEWS[name](t), VIEWS[name](n)
    n[...] = n + 100
    t.assign(t + 100)
    same(mine, theirs)
    mine += 7
    theirs += 7
    same(t, n)
    same(mine, theirs)


def test_a_lazy_tensor_acts_as_if_it_had_been_computed() -> None:
    x = Tensor(X)
    y = x * 2
    row = y[1]
    x[1] = 0
    y[1, 1] = 50
    same(row, np.array([8, 50, 12, 14], np.float32))
    same(x, np.where(np.arange(3)[:, None] == 1, 0, X).astype(np.float32))
    same(y[2], X[2] * 2)


def test_detached_tensors_share_memory() -> None:
    w = Tensor(X, requires_grad=True)
    w.detach()[0] = 0
    assert w[0].tolist() == [0] * 4 and w.is_leaf
    (w * w).sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), 2 * w.detach().numpy())


def test_gradients_tell_equal_constants_apart() -> None:
    x = Tensor([1.0, 2.0, 3.0])
    for make in (
        lambda: Tensor.zeros(3),
        lambda: Tensor.full((3,), 2.0),
        lambda: x.ones_like(),
        lambda: Tensor.arange(3.0),
    ):
        w, b = make(), make()
        dw, db = (x * w + b).sum().gradient(w, b)
        assert dw.tolist() == [1, 2, 3] and db.tolist() == [1, 1, 1]
    w, b = Tensor(2.0), Tensor(2.0)
    dw, db = (x * w + b).sum().gradient(w, b)
    assert (dw.item(), db.item()) == (6, 3)
    copy = Tensor(w)
    copied = Tensor.zeros(())
    copied.assign(w)
    for other in (copy, copied):
        (d,) = (other * w.detach()).gradient(other)
        assert d.item() == 2
    a, b = x * 2, x * 2
    with pytest.raises(MorokError, match="computed in the same way"):
        (a * b).sum().gradient(a, b)


def test_the_gradient_of_a_view() -> None:
    x = Tensor(X)
    y = x * 3
    row = y[1]
    loss = (row * row).sum()
    y.realize()
    (g,) = loss.gradient(row)
    same(g, X[1] * 6)


@pytest.mark.parametrize(("op", "value"), [("__iadd__", 1.5), ("__imul__", 0.5), ("__ipow__", 0.5)])
def test_integers_in_place_stay_integers(op: str, value: float) -> None:
    t = Tensor([1, 2, 3])
    with pytest.raises(DTypeError, match="does not fit into int64"):
        getattr(t, op)(value)
    assert t.tolist() == [1, 2, 3]


# --- jit


def test_a_prefix_is_not_the_whole() -> None:
    g = jit(lambda x: x.flip(0))
    whole, long = np.arange(4.0), np.arange(8.0)
    for _ in range(2):
        assert g(Tensor(whole)).tolist() == [3, 2, 1, 0]
        assert g(Tensor(long)[:4]).tolist() == [3, 2, 1, 0]
        assert g(Tensor(long)[4:]).tolist() == [7, 6, 5, 4]
        assert g(Tensor(long).reshape(2, 4)[1]).tolist() == [7, 6, 5, 4]
    assert g.traces == 1


def test_what_a_compiled_function_writes_is_seen_through_its_arguments() -> None:
    @jit
    def bump(x: Tensor, y: Tensor) -> Tensor:
        x += 1
        return y * 2

    for _ in range(3):
        t = Tensor(X)
        row = t[1]
        out = bump(t[1:], t.T)
        wanted = X.copy()
        wanted[1:] += 1
        same(t, wanted)
        same(row, wanted[1])
        same(out, wanted.T * 2)
        other = Tensor(X)
        part = other[:2]
        same(bump(part, other[:2] * 1), X[:2] * 2)
        same(other[:2], X[:2] + 1)
        same(bump(t, t), (wanted + 1) * 2)


def test_views_of_tensors_from_outside() -> None:
    table = Tensor(X)
    row = table[2]
    f = jit(lambda x: table.sum() + (row * x).sum())
    for n in range(3):
        table[2, 0] = n
        wanted = table.numpy().sum() + (table.numpy()[2] * 2).sum()
        assert f(Tensor.full((4,), 2.0)).item() == wanted
    assert f.traces == 1

    @jit
    def write(k: Tensor) -> None:
        row.assign(k)

    for n in range(3):
        write(Tensor.full((4,), float(n)))
        assert table.tolist()[2] == [n] * 4


def test_results_that_share_memory() -> None:
    @jit
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        y[0] = 1
        return y, y[1], x[1]

    for _ in range(3):
        x = Tensor(X)
        y, row, own = f(x)
        row[0] = 70
        own[0] = 80
        assert y[1, 0].item() == 70 and x[1, 0].item() == 80
        assert y[0].tolist() == [1] * 4


def test_symbolic_positions() -> None:
    t = Tensor(X)
    view = t[Variable("i", 0, 2).bind(1)]
    t[Variable("k", 0, 2).bind(2)] = 5
    t[1] = 7
    assert view.tolist() == [7] * 4 and t[2].tolist() == [5] * 4


@jit
def doubled(x: Tensor) -> Tensor:
    return x * 2


def test_a_compiled_function_pickles() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    relu = pickle.loads(pickle.dumps(jit(Tensor.relu)))
    assert relu(Tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_memory_of_a_view_s_past_is_let_go() -> None:
    """A view holds its storage, not the graph that the storage was once computed from."""
    import gc
    import weakref

    from morok.ir.memory import base_of

    source = Tensor(X)
    base = weakref.ref(base_of(source.uop))
    y = source * 2
    row = y[1]
    y.realize()
    del source
    gc.collect()
    assert base() is None
    same(row, X[1] * 2)


def test_a_copy_of_what_the_other_argument_is_about_to_write() -> None:
    """The copy's value is found in the other's memory until the write runs."""
    f = jit(lambda x, y: x * 10 + y)
    for _ in range(3):
        a, b = Tensor(X), Tensor.zeros(3, 4)
        a[1:] = a[:-1]
        b[...] = a
        a[1::2] = -4
        was = X.copy()
        was[1:] = X[:-1]
        now = was.copy()
        now[1::2] = -4
        same(f(b, a), was * 10 + now)
        same(b, was)


def test_the_node_of_a_view_lives_as_long_as_it_is_right() -> None:
    """It is not made again whenever somebody asks, and not kept when the storage holds something else."""
    import gc
    import weakref

    x = Tensor(X).realize()
    row = x[1]
    node = weakref.ref(row._uop)
    gc.collect()
    assert node() is row._uop
    x.assign(Tensor(X * 2))
    gc.collect()
    assert node() is None
    same(row, X[1] * 2)


def test_a_view_that_is_asked_for_again_is_held_once() -> None:
    y = Tensor(X) * 2
    row = y[1].realize()
    for _ in range(3):
        row.realize()
    assert len(y._storage.alone or ()) == 1


@pytest.mark.parametrize("turned", [False, True])
def test_arrays_of_results_that_nobody_has_looked_at(turned: bool) -> None:
    f = jit(lambda x: (x * 2).T if turned else x * 2)
    want = (X * 2).T if turned else X * 2
    inputs = [Tensor(X), Tensor(X + 1), Tensor(X)]
    for x in inputs:
        f(x)
    first = f(inputs[0])
    array = first.numpy()
    f(inputs[1])  # does not fill the array's memory
    assert np.array_equal(array, want)
    first.assign(first + 1)
    assert np.array_equal(array, want)
    same(first, want + 1)
    second = f(inputs[2])
    array = second.numpy()
    del second
    for _ in range(6):
        f(inputs[1]).numpy()
    assert np.array_equal(array, want)


def test_threads_that_look_at_one_result_see_one_storage() -> None:
    from threading import Barrier, Thread

    f = jit(lambda x: x + 1)
    x = Tensor(X)
    f(x), f(x)
    for _ in range(50):
        result, seen, gate = f(x), [], Barrier(4)

        def look(result: Tensor = result, seen: list[Any] = seen, gate: Barrier = gate) -> None:
            gate.wait()
            seen.append(result._storage)

        threads = [Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, seen))) == 1 and len(seen) == 4


def test_a_trace_keeps_what_somebody_else_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that another tensor holds in memory, which is dropped before the trace is done."""
    import gc

    from morok.tensor.jit import functionalize

    def value() -> Tensor:
        return (Tensor.arange(2) * 0 + Tensor.full((2,), 7) * 2).clamp(-9, 9)

    held, prepare = [value().realize()], functionalize.prepare

    def prepare_and_drop(tensors: Any, alone: bool) -> Any:
        plan = prepare(tensors, alone)
        held.clear()
        gc.collect()
        return plan

    monkeypatch.setattr(functionalize, "prepare", prepare_and_drop)
    f = jit(lambda x: value())
    for _ in range(3):
        assert f(Tensor([1.0])).tolist() == [9, 9]


@needs_host_memory
@pytest.mark.parametrize("inside", [False, True])
def test_a_trace_reads_no_memory_of_equal_values(inside: bool) -> None:
    """Numbers that a traced function makes are not found where somebody writes between its calls."""

    def value() -> Tensor:
        return (Tensor.arange(2) * 0 + Tensor.full((2,), 7) * 2).clamp(-9, 9)

    held = value().realize()
    f = jit((lambda x: x + value()) if inside else (lambda x: value()))
    for n in range(3):
        assert f(Tensor([n, n])).tolist() == [9 + n * inside] * 2
        held.numpy()[0] = n
    assert held.tolist() == [2, 9] and value().tolist() == [9, 9]


_C = Tensor([[1.0, 2.0], [3.0, 4.0]])
_EQUAL = {
    "one node": lambda x: (x + 1, x + 1),
    "three": lambda x: (x + 1, x + 1, x + 1),
    "two shapes": lambda x: ((x + 1).reshape(4), x + 1),
    "when simplified": lambda x: (x + 1, x.T.T + 1),
    "copies": lambda x: (Tensor.cat(x + 1), x + 1),
    "a view of a copy": lambda x: ((x + 1).contiguous(), Tensor.cat((x + 1).contiguous()).flip(0)),
    "constants": lambda x: (Tensor.zeros(2, 2), Tensor.zeros(2, 2)),
    "copies of constants": lambda x: (Tensor.zeros(2, 2).contiguous(), Tensor.zeros(2, 2).contiguous()),
    "sums": lambda x: (x.sum(), x.sum()),
    "the argument": lambda x: (Tensor.cat(x), Tensor.cat(x)),
    "a tensor from outside": lambda x: (Tensor.cat(_C), Tensor.cat(_C)),
}


@needs_host_memory
@pytest.mark.parametrize("name", _EQUAL)
def test_results_of_a_trace_that_are_equal_are_not_one(name: str) -> None:
    """What is written to the array of one is not seen in another, nor in what the function works on."""
    function, x = _EQUAL[name], Tensor([[1.0, 2.0], [3.0, 4.0]])
    want = [result.tolist() for result in function(x)]
    f = jit(function)
    for call in range(5):
        for written in range(len(want)):
            results = f(x)
            if call % 2:
                results[0].realize(*results[1:])
            results[written].numpy()[...] = 9
            got = [result.tolist() for n, result in enumerate(results) if n != written]
            assert got == [value for n, value in enumerate(want) if n != written]
            assert x.tolist() == _C.tolist() == [[1, 2], [3, 4]]


@needs_host_memory
def test_what_a_trace_assigns_is_its_tensors_own() -> None:
    """A copy of it that is computed later does not take the memory over."""

    @jit
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x += 1
        y.assign(x)
        z += 2
        return x + 0

    for _ in range(4):
        all_three = [Tensor([0.0, 0.0]) for _ in range(3)]
        result = f(*all_three)
        for t in all_three:
            Tensor.cat(t).realize().numpy()[:] = 5
        assert [t.tolist() for t in all_three] == [[1, 1], [1, 1], [2, 2]]
        for n, t in enumerate(all_three):
            t.numpy()[:] = n + 2
        assert result.tolist() == [1, 1] and [t.tolist()[0] for t in all_three] == [2, 3, 4]


@needs_host_memory
def test_a_plan_reads_no_memory_of_equal_values() -> None:
    """Numbers that a plan makes are not found where somebody writes before it runs."""
    held = (Tensor.arange(3) * 2).realize()
    later = Tensor.arange(3) * 2 + 1
    plan = later.prepare()
    held.numpy()[:] = 7
    plan.run()
    assert later.tolist() == [1, 3, 5] and held.tolist() == [7, 7, 7]


@needs_host_memory
def test_values_part_from_memory_that_has_got_another_name() -> None:
    """Memory whose array was shown is another node for later lines; a value that lies there goes with it."""
    x = Tensor([1.0, 2.0])
    value = Tensor.cat(x)
    x.numpy()
    value.realize()
    x.tolist()
    x.numpy()[:] = 9
    assert value.tolist() == [1, 2]


@needs_host_memory
def test_memory_whose_tensor_is_gone_is_nobodys() -> None:
    """What was built on it reads it still, whoever has got its value too."""
    x = Tensor([1.0, 2.0])
    lazy, value = x - 3, Tensor.cat(x)
    del x
    value.numpy()[:] = 9
    assert lazy.tolist() == [-2, -1] and value.tolist() == [9, 9]


def test_a_loop_reads_what_an_equal_tensor_has_computed() -> None:
    """Steps of a factorisation begin with memory that is another's, or nobody's by now."""
    from morok.tensor.linalg.loops import all_steps, steps

    y = Tensor(np.ones((2, 16), np.float32)) * 3
    held = y.contiguous()
    for _ in range(2):
        assert steps(y, 3, lambda s, k: s * 2).tolist() == [[24] * 16] * 2
        assert all_steps(y, 3, lambda s, k, t: s + t, (y,)).tolist()[-1] == [[12] * 16] * 2
        held.realize()
