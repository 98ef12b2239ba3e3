"""Parts of memory that a kernel sees: where they begin is no part of the kernel. The judge is NumPy."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit
from morok.dtype import PtrDType
from morok.ir.node import toposort
from morok.ir.ops import Ops

rng = np.random.default_rng(11)
X = rng.standard_normal((12, 5, 7)).astype(np.float32)
W = rng.standard_normal((7, 9)).astype(np.float32)


def only(plan: Any) -> Any:
    (item,) = plan.schedule.items
    return item


def same(found: Tensor, wanted: Any) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_rows_of_a_loop_are_one_kernel() -> None:
    x, w = Tensor(X, device="CPU").realize(), Tensor(W, device="CPU").realize()
    items = [only((x[i] @ w).plan()) for i in range(12)]
    assert len({item.ast for item in items}) == 1
    assert [max(item.starts, default=0) for item in items] == [35 * i for i in range(12)]
    for i in range(12):
        same(x[i] @ w, X[i] @ W)


def test_a_column_is_seen_from_its_first_element() -> None:
    x = Tensor(X, device="CPU").realize()
    items = [only((x[:, i].exp() * 2.0).plan()) for i in range(5)]
    assert len({item.ast for item in items[1:]}) == 1  # the first one knows that more memory follows
    assert [max(item.starts, default=0) for item in items] == [7 * i for i in range(5)]
    memory = {n.arg: n.dtype for n in toposort(items[4].ast) if n.op is Ops.DEFINE_GLOBAL}
    assert isinstance(memory[1], PtrDType)
    assert memory[1].size == 11 * 35 + 7  # behind it there is nothing that the kernel may touch
    for i in range(5):
        same(x[:, i].exp() * 2.0, np.exp(X[:, i]) * 2)


def test_what_several_parts_have_in_common() -> None:
    v = Tensor(X, device="CPU").realize()
    items = [only((v[i + 1] - v[i] * 0.5).plan()) for i in range(11)]
    assert len({item.ast for item in items[1:]}) == 1
    for i in range(11):
        same(v[i + 1] - v[i] * 0.5, X[i + 1] - X[i] * 0.5)
    same(v[1:-1, 1:] + v[2:, :-1], X[1:-1, 1:] + X[2:, :-1])  # the least begin along each axis
    same(v[3].sum() + v.sum(), X[3].sum() + X.sum())  # what is used as a whole stays


@pytest.mark.parametrize("device", ["CPU", "PYTHON", "EMULATOR"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
def test_reads_and_writes(device: str, dtype: str) -> None:
    data = rng.integers(0, 2 if dtype == "bool" else 50, (6, 3, 4)).astype(dtype)
    x = Tensor(data, device=device).realize()
    out = Tensor(np.zeros((6, 3, 4), dtype), device=device).realize()
    wanted = np.zeros((6, 3, 4), dtype)
    for i in range(6):
        out[i] = x[5 - i] * x[i]
        wanted[i] = data[5 - i] * data[i]
        out[i, 1:] = x[i, :2]
        wanted[i, 1:] = data[i, :2]
    np.testing.assert_array_equal(out.numpy(), wanted)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_row_from_the_one_before(device: str) -> None:
    def fill(t: Any, x: Any) -> Any:
        for i in range(1, 12):
            t[i] = t[i - 1] * 0.5 + x[i]
            t[i, 2:] += 1.0
        return t

    wanted = fill(X.copy(), X)
    same(fill(Tensor(X.copy(), device=device).realize(), Tensor(X, device=device)), wanted)
    once = Tensor(X.copy(), device=device).realize()
    f = jit(lambda x: fill(once, x) * 1.0)
    same(f(Tensor(X, device=device).realize()), wanted)
    for _ in range(3):
        wanted = fill(wanted, X)
        same(f(Tensor(X, device=device).realize()), wanted)


def test_results_do_not_take_the_place_of_a_part() -> None:
    """An input that a kernel is the last to read may give its memory away, but not if it begins elsewhere."""
    x = Tensor(X, device="CPU").realize()

    def f(x: Any) -> Any:
        whole = (x * 2.0).contiguous()
        for _ in range(4):
            part = (whole[1:] + 1.0).contiguous()
            whole = part.cat(part[:1] * 3.0).contiguous()
        return whole

    wanted = X * 2
    for _ in range(4):
        wanted = np.concatenate([wanted[1:] + 1, (wanted[1:] + 1)[:1] * 3])
    same(f(x), wanted)
    g = jit(f)
    for _ in range(3):
        same(g(x), wanted)


def test_a_loop_that_is_written_out() -> None:
    x, w = (
        Tensor(X, device="CPU").realize(),
        Tensor(rng.standard_normal((7, 7)).astype(np.float32), device="CPU"),
    )
    w.realize()

    def f(x: Tensor) -> Tensor:
        h = Tensor.zeros(5, 7, device="CPU")
        for i in range(12):
            h = (h @ w + x[i]).tanh()
        return h

    g = jit(f)
    found = g(x)
    h = np.zeros((5, 7), np.float32)
    for i in range(12):
        h = np.tanh(h @ w.numpy() + X[i])
    same(found, h)
    (plan,) = g.plans
    assert len({item.ast for item in plan.schedule.items}) <= 5
    other = rng.standard_normal(X.shape).astype(np.float32)
    h = np.zeros((5, 7), np.float32)
    for i in range(12):
        h = np.tanh(h @ w.numpy() + other[i])
    same(g(Tensor(other, device="CPU").realize()), h)
    same(g(Tensor(other, device="CPU").realize()), h)


def test_what_is_computed_before_it_is_cut() -> None:
    x, w = Tensor(X, device="CPU").realize(), Tensor(W, device="CPU").realize()
    f = jit(lambda x: [((x @ w).contiguous() + 1.0)[i].exp().contiguous() for i in range(1, 12)])
    for found, wanted in zip(f(x), np.exp(X @ W + 1)[1:], strict=True):
        same(found, wanted)
    (plan,) = f.plans
    assert len({item.ast for item in plan.schedule.items}) <= 3


def test_places_under_a_condition_stay() -> None:
    x = Tensor(X, device="CPU").realize()
    for i in (0, 3, 11):
        same(x[i].pad(((1, 1), (2, 0))) * 2.0, np.pad(X[i], ((1, 1), (2, 0))) * 2)
        same(x[i:].pad(((1, 0), (0, 0), (0, 0))).sum(0), X[i:].sum(0))
        same(x[i].flip(0) + x[11 - i], X[i][::-1] + X[11 - i])


def test_gradients_of_parts() -> None:
    x = Tensor(X, device="CPU", requires_grad=True)
    loss = sum(((x[i] * x[i + 1]).sum() * float(i) for i in range(5)), Tensor(0.0, device="CPU"))
    loss.backward()
    wanted = np.zeros_like(X)
    for i in range(5):
        wanted[i] += i * X[i + 1]
        wanted[i + 1] += i * X[i]
    same(x.grad, wanted)
