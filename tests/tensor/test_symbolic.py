"""Sizes that are known when the program runs."""

import numpy as np
import pytest

from morok import Tensor, Variable
from morok.errors import ShapeError, VariableError
from tests.tensor.common import same

X = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_slices_up_to_a_variable() -> None:
    n = Variable("n", 1, 10)
    for value in (1, 4, 10):
        part = Tensor(X)[: n.bind(value)]
        assert part.ndim == 2
        same_values(part, X[:value])
        same_values(part * 2 + 1, X[:value] * 2 + 1)
        same_values(part.sum(0), X[:value].sum(0))
        same_values(part.sum(1), X[:value].sum(1))
        same_values(part.T, X[:value].T)
        same_values(
            part.softmax(0),
            np.exp(X[:value] - X[:value].max(0)) / np.exp(X[:value] - X[:value].max(0)).sum(0),
        )
        same_values(part.mean(), X[:value].mean())
        same_values(part.reshape(-1), X[:value].reshape(-1))
        assert len(part) == value


def same_values(t: Tensor, wanted: np.ndarray) -> None:  # type: ignore[type-arg]
    got = t.numpy()
    assert got.shape == np.shape(wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_one_plan_for_all_values() -> None:
    n = Variable("n", 1, 10)
    y = Tensor(X)[: n.bind(3)].sum(0)
    plan = y.prepare()
    plan.run()
    same_values(y, X[:3].sum(0))
    plan.run(n=7)
    same_values(y, X[:7].sum(0))
    with pytest.raises(VariableError, match="lies in 1 … 10, so it cannot be 11"):
        plan.run(n=11)
    with pytest.raises(VariableError, match="has no variable m"):
        plan.run(m=1)
    assert "n = 3" in str(plan)


def test_kernels_do_not_depend_on_the_value() -> None:
    n = Variable("n", 1, 10)
    asts = {(Tensor(X)[: n.bind(v)] + 1).prepare().kernels[0].ast for v in (2, 5, 9)}
    assert len(asts) == 1


def test_arithmetic_with_variables() -> None:
    n = Variable("n", 2, 8)
    m = n.bind(4)
    same_values(Tensor(X)[m : m + 2], X[4:6])
    same_values(Tensor(X)[m], X[4])
    same_values(Tensor.ones(m, 3), np.ones((4, 3)))
    same_values(Tensor.ones(m * 2).sum(), np.array(8))
    same_values(Tensor.arange(m), np.arange(4))
    same_values(Tensor([1.0, 2.0]) * m, np.array([4.0, 8.0]))
    same_values(Tensor(X)[:m].pad([(0, 2), None]), np.pad(X[:4], [(0, 2), (0, 0)]))
    same_values(Tensor(X)[:m].cat(Tensor(X)[:m]), np.concatenate([X[:4], X[:4]]))
    same_values(Tensor(X)[:m] @ Tensor(X)[:m].T, X[:4] @ X[:4].T)
    same_values(Tensor(X)[:m].unsqueeze(1).expand(m, 2, 4), np.broadcast_to(X[:4, None], (4, 2, 4)))
    same_values(Tensor.ones(m, m).tril(), np.tril(np.ones((4, 4))))


def test_realised_symbolic_tensors_can_be_used() -> None:
    n = Variable("n", 1, 10)
    part = (Tensor(X)[: n.bind(6)] * 2).realize()
    same_values(part + 1, X[:6] * 2 + 1)
    same_values(part.sum(), (X[:6] * 2).sum())


def test_a_cache_that_grows() -> None:
    """Write one row at a variable place, read up to it: one kernel each for all steps."""
    start = Variable("start", 0, 9)
    cache = Tensor.zeros(10, 4).contiguous().realize()
    wanted = np.zeros((10, 4), np.float32)
    asts = set()
    for i in range(4):
        at = start.bind(i)
        cache[at : at + 1] = Tensor(X[i : i + 1])
        wanted[i] = X[i]
        total = cache[: at + 1].sum(0)
        asts.add(tuple(k.ast for k in total.prepare().kernels))
        same_values(total, wanted[: i + 1].sum(0))
    assert len(asts) == 1
    same_values(cache, wanted)


def test_errors() -> None:
    n = Variable("n", 1, 10)
    with pytest.raises(VariableError, match="variable n lies in 1 … 10, so it cannot be 11"):
        n.bind(11)
    with pytest.raises(VariableError, match="variable n has no value; bind it"):
        Tensor.ones(n).numpy()
    with pytest.raises(VariableError, match="n is bound to 2 and to 3"):
        (Tensor.ones(n.bind(2)).sum() + Tensor.ones(n.bind(3)).sum()).realize()
    with pytest.raises(ShapeError, match="do not broadcast"):
        Tensor.ones(n.bind(2)) + Tensor.ones(3)
    with pytest.raises(ShapeError, match="step of 1"):
        Tensor(X)[: n.bind(4) : 2]
    with pytest.raises(VariableError, match="whole bounds"):
        Variable("n", 3, 1)
    assert repr(n) == "Variable('n', 1, 10)"
    assert n.bounds == (1, 10)
    same(Tensor.ones(3), np.ones(3, np.float32))  # nothing is broken


def test_padding_of_nothing_is_still_a_variable() -> None:
    """A plan made while the variable is 0 serves other values: `before` is no constant."""
    n = Variable("n", 0, 6)
    y = Tensor(X[0]).pad([(n.bind(0), 6 - n.bind(0))])
    assert y.shape == (10,)
    plan = y.prepare()
    for value in (0, 2, 6):
        plan.run(n=value)
        same_values(y, np.pad(X[0], (value, 6 - value)))
