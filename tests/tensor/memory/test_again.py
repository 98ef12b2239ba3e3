"""Values that loops carry without asking for them: computed once, kept, and right. The judge is NumPy."""

import random
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit, no_grad
from morok.ir.node import live_nodes
from morok.schedule import schedule as scheduling

rng = np.random.default_rng(5)
U, V, OUT = (rng.standard_normal(s).astype(np.float32) * 0.4 for s in ((8, 6), (6, 6), (6, 3)))
X = rng.standard_normal((40, 2, 8)).astype(np.float32)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were scheduled, and not found."""
    found: list[Any] = []
    build = scheduling._stored_or_built

    def noted(sink: Any) -> Any:
        found.append(sink)
        return build(sink)

    monkeypatch.setattr(scheduling, "_stored_or_built", noted)
    scheduling.clear_cache()
    return found


def states() -> list[Any]:
    found = [np.zeros((2, 6))]
    for x in X:
        found.append(np.tanh(x @ U + found[-1] @ V))
    return found


def test_a_loop_that_carries_a_state(built: list[Any]) -> None:
    u, v, out = Tensor(U), Tensor(V), Tensor(OUT)
    h, counts = Tensor.zeros(2, 6), []
    for x, wanted in zip(X, states()[1:], strict=True):
        h = (Tensor(x) @ u + h @ v).tanh()
        np.testing.assert_allclose((h @ out).max().item(), (wanted @ OUT).max(), rtol=1e-4)
        counts.append(len(built))
    assert counts[-1] == counts[9] <= 10
    np.testing.assert_allclose(h.numpy(), states()[-1], rtol=1e-4, atol=1e-5)


def test_it_keeps_no_history() -> None:
    u, v, h = Tensor(U), Tensor(V), Tensor.zeros(2, 6)
    alive = []
    for _ in range(3):
        for x in X:
            h = (Tensor(x) @ u + h @ v).tanh()
            h.sum().item()
        alive.append(live_nodes())
    assert alive[2] <= alive[0]


def test_gradients_go_through_all_turns(built: list[Any]) -> None:
    u, v = Tensor(U, requires_grad=True), Tensor(V, requires_grad=True)
    h, losses, counts = Tensor.zeros(2, 6), [], []
    for x in X[:20]:
        h = (Tensor(x) @ u + h @ v).tanh()
        losses.append(h.square().sum())
        assert h.max().item() <= 1.0
        counts.append(len(built))
    assert counts[-1] == counts[9]
    sum(losses[1:], losses[0]).backward()
    known, du, dv, dh = states(), np.zeros((8, 6)), np.zeros((6, 6)), np.zeros((2, 6))
    for t in reversed(range(20)):
        slope = (dh + 2 * known[t + 1]) * (1 - known[t + 1] ** 2)
        du, dv, dh = du + X[t].T @ slope, dv + known[t].T @ slope, slope @ V.T
    assert u.grad is not None and v.grad is not None
    np.testing.assert_allclose(u.grad.numpy(), du, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(v.grad.numpy(), dv, rtol=1e-3, atol=1e-4)


def test_what_equal_graphs_needed_again_is_stored_at_once() -> None:
    u = Tensor(U)
    for n, x in enumerate(X[:4]):
        logits = Tensor(x) @ u
        loss = logits.exp().sum().item()
        assert logits.is_realized == (n > 0)  # the first batch has computed it twice, and said so
        right = logits.argmax(1).numpy()
        assert logits.is_realized
        np.testing.assert_allclose(loss, np.exp(x @ U).sum(), rtol=1e-4)
        np.testing.assert_array_equal(right, (x @ U).argmax(1))


def test_elements_that_stand_on_each_other(built: list[Any]) -> None:
    x, v, counts = Tensor(X[0]), Tensor(X[1]), []
    a, b = X[0].astype(np.float64), X[1].astype(np.float64)
    for _ in range(40):
        x = x + v * 0.1
        v = v - x * 0.1
        a = a + b * 0.1
        b = b - a * 0.1
        np.testing.assert_allclose(x.square().sum().item(), (a * a).sum(), rtol=1e-4)
        counts.append(len(built))
    assert counts[-1] == counts[24]  # it takes a while until all turns are of one form
    np.testing.assert_allclose(v.numpy(), b, rtol=1e-4, atol=1e-5)


def test_what_is_as_fast_to_make_as_to_read_is_made() -> None:
    codes = Tensor(rng.integers(-8, 8, (8, 6)).astype(np.int8))
    weights, mask = codes.float() * 0.125, Tensor.ones(6, 6).tril()
    for x in X[:4]:
        found = ((Tensor(x) @ weights) @ mask).sum().item()
        wanted = (x @ (codes.numpy() * 0.125) @ np.tril(np.ones((6, 6)))).sum()
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
        assert not weights.is_realized and not mask.is_realized


def test_plans_and_recorded_calls_compute_what_they_are_asked_for() -> None:
    u = Tensor(U)
    a = Tensor(X[0]) @ u
    for _ in range(2):
        a.sum().item()
    b = Tensor(X[1]) @ u
    for _ in range(3):
        assert b.sum().plan().schedule.memory.output_bytes == 4
    assert not b.is_realized

    @jit
    def f(x: Tensor) -> Tensor:
        y = x @ u
        return y.sum() + y.max()

    for x in X[:4]:
        np.testing.assert_allclose(f(Tensor(x)).item(), (x @ U).sum() + (x @ U).max(), rtol=1e-4, atol=1e-4)


def draw(seed: int, values: list[Any]) -> tuple[list[float], list[Any]]:
    """A drawn program that carries values, writes to some, and looks at sums now and then."""
    r, seen = random.Random(seed), []
    for _ in range(r.randint(8, 20)):
        a, b, c, kind = r.choice(values), r.choice(values), round(r.uniform(-1, 1), 2), r.randrange(9)
        if kind == 0:
            new = a @ V * 0.3 if isinstance(a, np.ndarray) else a @ Tensor(V) * 0.3
        elif kind == 1:
            new = a * c + b
        elif kind == 2:
            new = a - b.sum(0) * 0.1
        elif kind == 3:
            new = abs(a * b) + c
        elif kind == 4:
            new = a / (abs(b) + 1.0)
        elif kind == 5:
            a += c
            new = a * 1.0
        elif kind == 6:
            a[1] = b[0] * c
            new = a - 0.5
        elif kind == 7:
            a *= b * 0.3
            new = a + b
        else:
            new = a[0:2] + b
        values[r.randrange(len(values))] = new
        look, which = r.randrange(3), r.choice(values)
        if look == 0:
            seen.append(float(which.sum()) if isinstance(which, np.ndarray) else which.sum().item())
        elif look == 1 and isinstance(which, Tensor):
            which.realize()
    return seen, values


@pytest.mark.parametrize("seed", range(12))
def test_drawn_programs(seed: int) -> None:
    data = [rng.standard_normal((2, 6)).astype(np.float32) for _ in range(3)]
    seen, values = draw(seed, [d.astype(np.float64) for d in data])
    for _ in range(2):
        with no_grad():
            found, mine = draw(seed, [Tensor(d) for d in data])
        np.testing.assert_allclose(found, seen, rtol=1e-3, atol=1e-3)
        for a, b in zip(mine, values, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-3, atol=1e-3)
