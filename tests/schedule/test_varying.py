"""Sizes that are others each time, outside of jit: one graph from the fourth on. The judge is NumPy."""

import random
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit, knobs, nn
from morok.errors import OutOfRange, ShapeError
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.runtime.plan import ExecutionPlan
from morok.schedule import schedule as scheduling
from morok.schedule import varying

rng = np.random.default_rng(21)
W = rng.standard_normal((8, 8)).astype(np.float32) * 0.4
LONG = rng.standard_normal((200, 8)).astype(np.float32)


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
    varying._seen.clear()
    return found


def memory(array: Any, device: str = "CPU") -> Tensor:
    return Tensor(np.array(array), device=device).realize()


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def test_one_graph_from_the_fourth_on(built: list[Any]) -> None:
    w = memory(W)
    for n in (3, 5, 4, 9, 6, 17, 30, 2, 64):
        found = (memory(LONG[:n]) @ w).softmax(0).mean(0)
        np.testing.assert_allclose(found.numpy(), softmax(LONG[:n] @ W, 0).mean(0), rtol=1e-4, atol=1e-6)
    assert len(built) == 4
    assert any(n.op is Ops.DEFINE_VAR for n in toposort(built[-1]))


def test_the_interval_grows(built: list[Any]) -> None:
    for n in (2, 3, 4, 5, 10, 64, 65, 100, 200, 7):
        found = memory(LONG[:n]).cumsum(0)
        np.testing.assert_allclose(found.numpy(), LONG[:n].cumsum(0), rtol=1e-4, atol=1e-4)
    assert len(built) == 5  # three, one up to 64, one up to 256


def test_positions_follow_too(built: list[Any]) -> None:
    x, y, wanted = memory(LONG), memory(np.zeros((8, 40))), np.zeros((8, 40))
    for i in range(1, 30):
        y[:, i] = x[i] * 2.0
        y.realize()
        wanted[:, i] = LONG[i] * 2
        np.testing.assert_allclose((x[:i] * 3.0).sum(0).numpy(), LONG[:i].sum(0) * 3, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose((x.roll(i, 0) + 1.0).numpy(), np.roll(LONG, i, 0) + 1, rtol=1e-5)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6)
    assert len(built) <= 14  # of 87


def test_a_cache_that_is_written_and_read_so_far(built: list[Any]) -> None:
    cache, known = memory(np.zeros((2, 40, 8), np.float32)), np.zeros((2, 40, 8), np.float32)
    counts = []
    for i in range(30):
        q, k = (rng.standard_normal((2, 1, 8)).astype(np.float32) for _ in range(2))
        cache[:, i : i + 1] = Tensor(k, device="CPU")
        known[:, i : i + 1] = k
        seen = cache[:, : i + 1]
        found = (Tensor(q, device="CPU") @ seen.transpose(1, 2)).softmax(-1) @ seen
        scores = softmax(q @ known[:, : i + 1].transpose(0, 2, 1), -1)
        np.testing.assert_allclose(found.numpy(), scores @ known[:, : i + 1], rtol=1e-3, atol=1e-4)
        counts.append(len(built))
    assert counts[-1] == counts[8]
    np.testing.assert_array_equal(cache.numpy(), known)


def test_batches_of_their_own_lengths_train(built: list[Any]) -> None:
    table = rng.standard_normal((20, 8)).astype(np.float32)
    mine = Tensor(table, device="CPU", requires_grad=True)
    theirs, counts = table.astype(np.float64), []
    for n in (4, 9, 7, 5, 12, 3, 20, 6, 15, 11):
        ids = rng.integers(0, 20, (2, n))
        loss = (mine[Tensor(ids, device="CPU")].sum(2) ** 2).mean()
        mine.grad = None
        loss.backward()
        assert mine.grad is not None
        mine.assign((mine - 0.01 * mine.grad).detach()).realize()
        sums, slope = theirs[ids].sum(2), np.zeros_like(theirs)
        np.testing.assert_allclose(loss.item(), (sums**2).mean(), rtol=1e-4)
        np.add.at(slope, ids, np.repeat((2 * sums / sums.size)[..., None], 8, -1))
        theirs = theirs - 0.01 * slope
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-3, atol=1e-4)
        counts.append(len(built))
    assert counts[-1] < len(counts) * 2


def test_what_is_left_of_a_whole(built: list[Any]) -> None:
    for n in range(3, 20):
        found = memory(LONG[:n]).pad(((0, 32 - n), (0, 0))) + 1.0
        np.testing.assert_allclose(found.numpy(), np.pad(LONG[:n], ((0, 32 - n), (0, 0))) + 1, rtol=1e-6)
    assert len(built) <= 6


def test_parts_of_parts(built: list[Any]) -> None:
    x = memory(LONG)
    for n in range(5, 30):
        found = x[n : 2 * n - 3].sum(0) + x[60 - 2 * n :][: n + 1].sum(0)
        wanted = LONG[n : 2 * n - 3].sum(0) + LONG[60 - 2 * n :][: n + 1].sum(0)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-3)
    assert len(built) <= 6


def test_parts_without_elements() -> None:
    x = memory(LONG)
    for n in (9, 8, 7, 6, 5, 12, 5, 30):
        np.testing.assert_allclose(x[5:n].sum(0).numpy(), LONG[5:n].sum(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose((x[:n].pad(((0, n - 5), (0, 0))) * 2.0).numpy()[:n], LONG[:n] * 2)


def test_a_graph_that_cannot_be_built_is_taken_as_it_is(
    built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ShapeError("sizes that nobody knows to be equal")

    monkeypatch.setattr(varying, "_symbolic", fails)
    for n in range(2, 9):
        np.testing.assert_allclose(memory(LONG[:n]).sum(0).numpy(), LONG[:n].sum(0), rtol=1e-4, atol=1e-5)
    assert len(built) == 7


def test_positions_outside_are_told(built: list[Any]) -> None:
    table = nn.Embedding(10, 4)
    for n in range(2, 12):
        ids = np.arange(n) % 10
        if n in (3, 9):
            ids[1] = 12
            with pytest.raises(OutOfRange, match=r"index 12 is outside of axis 0 of shape \(10, 4\)"):
                table(Tensor(ids)).sum().item()
        else:
            wanted = table.weight.numpy()[ids].sum()
            np.testing.assert_allclose(table(Tensor(ids)).sum().item(), wanted, rtol=1e-4)


def test_sizes_that_follow_nothing_are_taken_as_they_are(built: list[Any]) -> None:
    sizes = [(3, 5), (4, 9), (6, 2), (9, 4), (5, 5), (2, 8), (7, 3)]
    for a, b in sizes:
        found = memory(LONG[:a]).sum(1).reshape(a, 1) * memory(LONG[:b]).sum(1).reshape(1, b)
        wanted = LONG[:a].sum(1)[:, None] * LONG[:b].sum(1)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert len(built) == len(sizes)


def test_memory_that_is_written_is_no_copy() -> None:
    for n in range(2, 12):
        x = memory(LONG[:n])
        x[1:] = x[1:] * 2.0 + 1.0
        x.realize()
        wanted = LONG[:n].copy()
        wanted[1:] = wanted[1:] * 2 + 1
        np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("where", ["schedule", "kernels"])
def test_what_cannot_be_made_with_a_variable_is_made_without(
    where: str, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise NotImplementedError("of a variable")

    if where == "schedule":
        found = scheduling.find_template

        def find(form: Any) -> Any:
            return fails() if form.values else found(form)

        monkeypatch.setattr(scheduling, "find_template", find)
    else:
        compile_all = ExecutionPlan.compile

        def compile_plan(plan: Any) -> None:
            return fails() if plan.schedule.varied is not None else compile_all(plan)

        monkeypatch.setattr(ExecutionPlan, "compile", compile_plan)
    for n in range(2, 9):
        np.testing.assert_allclose(memory(LONG[:n]).sum(0).numpy(), LONG[:n].sum(0), rtol=1e-4, atol=1e-5)
    assert all(seen.refused for _, seen in varying._seen.items() if seen.line is not None)


def test_plans_recorded_calls_and_the_knob(built: list[Any]) -> None:
    f = jit(lambda x: x.sum(0) * 2.0)
    for n in range(2, 9):
        x = memory(LONG[:n])
        assert (x.sum(0) * 2.0).plan().schedule.varied is None
        np.testing.assert_allclose(f(x).numpy(), LONG[:n].sum(0) * 2, rtol=1e-4, atol=1e-5)
    varying._seen.clear()
    with knobs.override(VARYING_SIZES=False):
        for n in range(2, 9):
            np.testing.assert_allclose(memory(LONG[:n]).max(0).numpy(), LONG[:n].max(0))
    assert not varying._seen


@pytest.mark.parametrize(("name", "value"), [("_LARGE", 100), ("_OFTEN", 2)])
def test_sizes_that_come_again_have_plans_of_their_own(
    built: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(varying, name, value)
    for n in (14, 15, 16, 17, 18, 17, 17, 17, 18):
        found = memory(LONG[:n]).cumsum(0)
        np.testing.assert_allclose(found.numpy(), LONG[:n].cumsum(0), rtol=1e-4, atol=1e-4)
    assert len(built) == 5 and not any(n.op is Ops.DEFINE_VAR for n in toposort(built[-1]))


def draw(seed: int, x: Any, w: Any, more: Any) -> Any:
    """A drawn program of rows, whose number nobody knows."""
    r, mine = random.Random(seed), isinstance(x, Tensor)
    for _ in range(r.randint(2, 5)):
        kind, c = r.randrange(14), round(r.uniform(-1, 1), 2)
        n = x.shape[0]
        if kind == 0:
            x = x @ w
        elif kind == 1:
            x = x - x.mean(0)
        elif kind == 2:
            x = x.softmax(0) if mine else softmax(x, 0)
        elif kind == 3:
            scores = x @ x.T * 0.1
            x = (scores.softmax(1) if mine else softmax(scores, 1)) @ x
        elif kind == 4:
            x = x.cumsum(0)
        elif kind == 5:
            x = x.flip(0) if mine else x[::-1]
        elif kind == 6:
            x = Tensor.cat(x, more) if mine else np.concatenate([x, more])
        elif kind == 7:
            x = x.pad(((1, 2), (0, 0))) if mine else np.pad(x, ((1, 2), (0, 0)))
        elif kind == 8:
            x = x[1:] + x[:-1]
        elif kind == 9:
            ramp = Tensor.arange(n, device=x.device).float() if mine else np.arange(n)
            x = x + ramp.reshape(n, 1) * 0.1
        elif kind == 10:
            x = x.roll(1, 0) if mine else np.roll(x, 1, 0)
        elif kind == 11:
            x = x.reshape(-1)[: n * 4].reshape(-1, 4) @ w[:4]
        elif kind == 12:
            x = x.T.reshape(-1, 8)
        else:
            x = (x.max(0, keepdim=True) if mine else x.max(0, keepdims=True)) - x * c
    return x


@pytest.mark.parametrize("device", ["CPU", "PYTHON", "EMULATOR"])
@pytest.mark.parametrize("seed", range(4))
def test_drawn_programs(seed: int, device: str) -> None:
    w, more = memory(W, device), memory(LONG[-2:], device)
    sizes = [3, 7, 5, 20, 33, 8, 64, 70] if device == "CPU" else [3, 7, 5, 20, 6]
    for n in sizes:
        wanted = draw(seed, LONG[:n].astype(np.float64), W, LONG[-2:])
        found = draw(seed, memory(LONG[:n], device), w, more)
        np.testing.assert_allclose(
            found.numpy(), wanted, rtol=2e-3, atol=2e-3 * max(1.0, float(np.abs(wanted).max()))
        )
