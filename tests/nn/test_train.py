"""A compiled step of training does what the plain one does."""

from typing import Any

import numpy as np
import pytest

import morok
from morok import MorokError, Tensor, nn
from morok.nn.schedules import linear


def _model(kind: Any, **options: Any) -> tuple[Any, nn.Optimizer]:
    morok.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm(8), Tensor.relu, nn.Dropout(0.25), nn.Linear(8, 2)
    )
    return model, kind(nn.parameters(model), **options)


def _batch(count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 4)).astype(np.float32)
    return Tensor(x), Tensor((x[:, 0] > 0).astype(np.int64))


@pytest.mark.parametrize("kind, options", [(nn.SGD, {"lr": 0.1, "momentum": 0.9}), (nn.AdamW, {"lr": 0.05})])
def test_the_same_as_step_by_step(kind: Any, options: Any, device: str) -> None:
    """Losses, parameters, running statistics and random numbers agree, also for a last, smaller batch."""
    model, optimizer = _model(kind, **options)
    other, plain = _model(kind, **options)
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    rate, rate_plain = (nn.Schedule(o, linear(1.0, 0.1, 6)) for o in (optimizer, plain))
    sizes = [16, 16, 16, 10, 16, 10]
    morok.manual_seed(1)
    found = []
    for i, size in enumerate(sizes):
        found.append(step(*_batch(size, i)).item())
        rate.step()
    morok.manual_seed(1)
    wanted = []
    for i, size in enumerate(sizes):
        x, y = _batch(size, i)
        plain.zero_grad()
        with nn.training():
            loss = other(x).cross_entropy(y)
        loss.backward()
        plain.step()
        wanted.append(loss.item())
        rate_plain.step()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for (name, a), b in zip(nn.named_tensors(model).items(), nn.named_tensors(other).values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert step._recorded.traces == 2 and optimizer.steps.item() == 6.0


def test_the_model_can_be_used_in_between() -> None:
    model, optimizer = _model(nn.SGD, lr=0.1)
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    x, y = _batch(8, 0)
    for _ in range(3):
        before = model(x).numpy().copy()
        kept = model[0].weight * 1.0
        values = model[0].weight.numpy().copy()
        step(x, y)
        assert not np.allclose(model(x).numpy(), before)
        np.testing.assert_array_equal(kept.numpy(), values)
    model(x).sum().backward()
    assert model[0].weight.is_leaf and model[0].weight.grad is not None
    optimizer.step()  # the plain way, in between
    step(x, y)
    with pytest.raises(MorokError, match="a batch is made of tensors, not of a int"):
        step(3)


def test_one_step_is_one_call(device: str) -> None:
    model, optimizer = _model(nn.Adam, lr=0.1)
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    x, y = _batch(8, 0)
    losses = [step(x, y).item() for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0] and step._recorded.traces == 1


def test_a_failed_recording_leaves_the_model_alone() -> None:
    model, optimizer = _model(nn.SGD, lr=0.1)
    nodes = [p._uop for p in nn.parameters(model)]
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x))
    with pytest.raises(MorokError, match="is not one number"):
        step(*_batch(8, 0))
    assert [p._uop for p in nn.parameters(model)] == nodes


def test_kernels_of_a_step_have_the_lines_of_the_model() -> None:
    """The line of the call is looked for once, for what the step gives out; what it records has its own."""
    w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return (x @ w).square().sum()

    step = nn.TrainStep([w], nn.SGD([w], lr=0.1), loss)
    for _ in range(2):
        step(Tensor.ones(3, 2))
    line = loss.__code__.co_firstlineno + 1
    assert f"test_train.py:{line}" in {kernel.place for kernel in step.plans[0].kernels}
