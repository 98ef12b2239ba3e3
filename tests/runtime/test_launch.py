"""A plan that runs again is one native call, on other data and with other values."""

import numpy as np
import pytest

from morok import Tensor, Variable, knobs
from morok.device.cpu.kernel import Steps
from morok.errors import OutOfRange
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


def test_an_equal_graph_is_one_native_call_at_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are there already, so nobody has to wait for one of them between two."""
    calls: list[int] = []
    call = Steps.__call__

    def counted(steps: Steps) -> None:
        calls.append(len(steps.held))
        call(steps)

    monkeypatch.setattr(Steps, "__call__", counted)

    def softmax(data: np.ndarray) -> None:
        x = Tensor(data, device="CPU").realize()
        total = (x + 1.0).sum(1).contiguous()
        calls.clear()
        got = (total.sum() * x[:, 0].contiguous()).numpy()
        np.testing.assert_allclose(got, (data + 1).sum() * data[:, 0], rtol=1e-5)

    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    softmax(data)
    for n in range(2):
        softmax(data * n)
        assert len(calls) == 1 and calls[0] > 1


def test_assignments_are_told_of_errors_before_they_overwrite() -> None:
    """So they are no single call at their first run."""
    x = Tensor(np.arange(6, dtype=np.float32), device="CPU").realize()
    for n in range(3):
        y = x[Tensor([n + 4], device="CPU")].contiguous()
        x[0:1] = y
        if n < 2:
            assert x.tolist()[0] == n + 4
        else:
            with pytest.raises(OutOfRange):
                x.realize()


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
