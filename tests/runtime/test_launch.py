"""A plan that runs again is one native call, on other data and with other values."""

import numpy as np

from morok import Tensor, Variable, knobs
from morok.ir.memory import base_of
from morok.runtime.plan import ExecutionPlan, buffer_for


def result(tensor: Tensor) -> np.ndarray:
    return buffer_for(base_of(tensor.uop)).copy_out()


def test_running_a_plan_again() -> None:
    data = np.arange(6, dtype=np.float32)
    x = Tensor(data).realize()
    y = ((x + 1.0).sum() * x).softmax(-1)
    plan = y.prepare()
    for _ in range(4):
        plan.run()
        e = np.exp((data + 1).sum() * data - ((data + 1).sum() * data).max())
        np.testing.assert_allclose(result(y), e / e.sum(), rtol=1e-5)
    assert plan._launch


def test_other_inputs() -> None:
    x = Tensor(np.zeros(4, np.float32)).realize()
    y = x * 2.0 + 1.0
    plan = y.prepare()
    plan.run()
    for k in range(3):
        other = Tensor(np.full(4, float(k), np.float32)).realize()
        plan.run({base_of(x.uop): buffer_for(base_of(other.uop))})
        assert result(y).tolist() == [2.0 * k + 1.0] * 4
    plan.run()
    assert result(y).tolist() == [1.0] * 4


def test_other_values() -> None:
    n = Variable("n", 1, 8)
    x = Tensor(np.arange(8, dtype=np.float32)).realize()
    y = x[: n.bind(3)].sum()
    plan = y.prepare()
    plan.run()
    for k in (1, 8, 5, 3):
        plan.run(n=k)
        assert result(y)[0] == np.arange(k).sum()


def test_the_interpreter_is_not_native() -> None:
    y = Tensor(np.ones(3, np.float32), device="PYTHON") + 1.0
    plan: ExecutionPlan = y.prepare()
    for _ in range(3):
        plan.run()
    assert plan._launch is False


def test_a_knob_that_changes_the_code_is_not_answered_from_memory() -> None:
    def programs() -> tuple[object, ...]:
        plan = (Tensor.arange(64).reshape(8, 8) * 3).sum(0).prepare()
        plan.compile()
        return tuple(plan._programs or ())

    usual = programs()
    assert programs() == usual
    with knobs.override(NOOPT=True):
        plain = programs()
    assert plain != usual and programs() == usual
