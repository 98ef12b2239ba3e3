"""Optimisers against their formulas in NumPy, schedules, clipping, losses, and a small training run."""

import math
from typing import Any

import numpy as np
import pytest

import morok
from morok import MorokError, Tensor, nn
from morok.nn import losses, schedules
from morok.nn.optim import orthogonal

Array = Any
A, B = np.array([[1.0, -2.0, 0.5], [3.0, 0.1, -1.0]]), np.array([0.5, -0.25, 2.0])


def run(kind: Any, count: int = 3, **options: Any) -> tuple[Array, list[Array]]:
    """A few steps on the loss Σ a·w² + b·w, and the gradients on the way."""
    w = Tensor(A.copy(), requires_grad=True)
    opt = kind([w], **options)
    gradients = []
    for _ in range(count):
        opt.zero_grad()
        (w * w * 0.5 + w * Tensor(B)).sum().backward()
        gradients.append(w.grad.numpy().copy())
        opt.step()
    assert w.is_leaf and w.is_realized
    return w.numpy().copy(), gradients


def follow(update: Any, count: int = 3) -> Array:
    w = A.copy()
    for n in range(1, count + 1):
        w = update(w, w + B, n)
    return w


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov: bool, device: str) -> None:
    state = {"v": 0.0}

    def update(w: Array, g: Array, n: int) -> Array:
        g = g + 0.1 * w
        state["v"] = 0.9 * state["v"] + g
        return w - 0.05 * (g + 0.9 * state["v"] if nesterov else state["v"])

    found, _ = run(nn.SGD, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=nesterov)
    np.testing.assert_allclose(found, follow(update), rtol=1e-6)


def test_plain_sgd_and_dampening() -> None:
    np.testing.assert_allclose(run(nn.SGD, lr=0.1)[0], follow(lambda w, g, n: w - 0.1 * g), rtol=1e-6)
    state = {"v": 0.0}

    def update(w: Array, g: Array, n: int) -> Array:
        state["v"] = g if n == 1 else 0.9 * state["v"] + 0.5 * g
        return w - 0.1 * state["v"]

    np.testing.assert_allclose(run(nn.SGD, lr=0.1, momentum=0.9, dampening=0.5)[0], follow(update), rtol=1e-6)


def adam(
    lr: float, b1: float, b2: float, eps: float, decay: float, decoupled: bool, lamb: bool = False
) -> Any:
    m = v = 0.0

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal m, v
        if not decoupled:
            g = g + decay * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        step = m / (1 - b1**n) / (np.sqrt(v / (1 - b2**n)) + eps)
        if decoupled:
            step = step + decay * w
        ratio = np.linalg.norm(w) / np.linalg.norm(step) if lamb else 1.0
        return w - lr * ratio * step

    return update


def test_adam_family(device: str) -> None:
    found, _ = run(nn.Adam, lr=0.1, betas=(0.8, 0.95), weight_decay=0.1)
    np.testing.assert_allclose(found, follow(adam(0.1, 0.8, 0.95, 1e-8, 0.1, False)), rtol=1e-5)
    found, _ = run(nn.AdamW, lr=0.1, betas=(0.8, 0.95), weight_decay=0.1)
    np.testing.assert_allclose(found, follow(adam(0.1, 0.8, 0.95, 1e-8, 0.1, True)), rtol=1e-5)
    found, _ = run(nn.LAMB, lr=0.1, betas=(0.8, 0.95), weight_decay=0.1)
    np.testing.assert_allclose(found, follow(adam(0.1, 0.8, 0.95, 1e-6, 0.1, True, lamb=True)), rtol=1e-5)


def test_muon() -> None:
    rng = np.random.default_rng(0)
    for shape in ((6, 4), (4, 6)):
        x = rng.standard_normal(shape)
        singular = np.linalg.svd(orthogonal(Tensor(x)).numpy(), compute_uv=False)
        assert (singular > 0.6).all() and (singular < 1.3).all()
    found, gradients = run(nn.Muon, count=1, lr=0.1, nesterov=False)
    u, _, v = np.linalg.svd(gradients[0], full_matrices=False)
    step = (A - found) / 0.1
    assert np.sum(step * (u @ v)) / np.linalg.norm(step) / np.linalg.norm(u @ v) > 0.95
    bias = Tensor([1.0, -1.0], requires_grad=True)
    opt = nn.Muon([bias], adam_lr=0.01)
    (bias * bias).sum().backward()
    opt.step()
    np.testing.assert_allclose(bias.numpy(), [0.99, -0.99], rtol=1e-5)


def test_half_precision_parameters_keep_single_precision_states() -> None:
    w = Tensor(np.ones(3, dtype=np.float16), requires_grad=True)
    opt = nn.Adam([w], lr=0.1)
    (w * w).sum().backward()
    opt.step()
    assert w.dtype.name == "float16" and opt.mean[0].dtype.name == "float32"
    np.testing.assert_allclose(w.numpy(), 0.9, rtol=1e-3)


def test_a_new_learning_rate_runs_the_same_kernels() -> None:
    w = Tensor([1.0], requires_grad=True)
    opt = nn.SGD([w], lr=0.1)
    kernels = []
    for rate in (0.1, 0.2):
        opt.lr = rate
        opt.zero_grad()
        (w * 2).sum().backward()
        changed = opt.update()
        plan = changed[0].prepare(*changed[1:])
        kernels.append([k.ast for k in plan.kernels])
        plan.run()
    assert kernels[0] == kernels[1] and math.isclose(w.item(), 1 - 0.2 - 0.4, rel_tol=1e-6)


def test_misuse_is_explained() -> None:
    with pytest.raises(MorokError, match="nothing to optimise"):
        nn.SGD([Tensor([1.0])])
    w = Tensor([1.0], requires_grad=True)
    with pytest.raises(MorokError, match="not what is made of them"):
        nn.SGD([w * 2])
    with pytest.raises(MorokError, match=r"no parameter has a gradient; call backward\(\)"):
        nn.SGD([w]).step()
    with pytest.raises(MorokError, match="no gradients to clip"):
        nn.clip_grad_norm([w], 1.0)


def test_clipping() -> None:
    a, b = Tensor([3.0], requires_grad=True), Tensor([4.0], requires_grad=True)
    (a * 3.0 + b * 4.0).sum().backward()
    assert nn.clip_grad_norm([a, b], 10.0).item() == 5.0 and a.grad.tolist() == [3.0]
    nn.clip_grad_norm([a, b], 1.0)
    np.testing.assert_allclose([a.grad.item(), b.grad.item()], [0.6, 0.8], rtol=1e-5)
    nn.clip_grad_value([a, b], 0.7)
    np.testing.assert_allclose([a.grad.item(), b.grad.item()], [0.6, 0.7], rtol=1e-5)


def test_schedules() -> None:
    opt = nn.SGD([Tensor([1.0], requires_grad=True)], lr=2.0)
    plan = nn.Schedule(opt, schedules.cosine(10, warmup=4, floor=0.1))
    rates = [opt.lr, *(plan.step() for _ in range(12))]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0] and rates[4] == 2.0 and math.isclose(rates[-1], 0.2)
    assert math.isclose(opt.rate.item(), 0.2, rel_tol=1e-6)
    cycle = schedules.one_cycle(100)
    assert cycle(0) < 0.05 and math.isclose(cycle(30), 1.0) and cycle(100) < 1e-3
    assert schedules.exponential(0.5)(3) == 0.125


def test_losses() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    p, q = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(-y))
    t = Tensor
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    classes = np.array([0, 2, 1, 1])
    picked = -logs[np.arange(4), classes]
    ent = -(q * np.log(p) + (1 - q) * np.log(1 - p))
    d = np.abs(x - y)
    table = [
        (losses.cross_entropy(t(x), t(classes)), picked.mean()),
        (losses.nll_loss(t(logs), t(classes), "sum"), picked.sum()),
        (losses.binary_cross_entropy(t(p), t(q)), ent.mean()),
        (losses.binary_cross_entropy_with_logits(t(x), t(q), "none"), ent),
        (losses.mse_loss(t(x), t(y)), ((x - y) ** 2).mean()),
        (losses.l1_loss(t(x), t(y)), d.mean()),
        (losses.huber_loss(t(x), t(y), 0.7, "none"), np.where(d < 0.7, d * d / 2, 0.7 * (d - 0.35))),
        (losses.smooth_l1_loss(t(x), t(y), 2.0), np.where(d < 2, d * d / 4, d - 1).mean()),
        (
            losses.kl_div(t(logs), t(np.exp(logs[::-1]).copy()), "batchmean"),
            (np.exp(logs[::-1]) * (logs[::-1] - logs)).sum() / 4,
        ),
        (losses.hinge_loss(t(x), t(np.sign(y))), np.maximum(0, 1 - x * np.sign(y)).mean()),
        (
            losses.cosine_similarity(t(x), t(y)),
            (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1),
        ),
    ]
    for found, wanted in table:
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-9)
    assert losses.binary_cross_entropy(t([0.0]), t([1.0])).item() == 100.0
    with pytest.raises(ValueError, match="reduction is one of 'mean', 'sum', 'none'"):
        losses.l1_loss(t(x), t(y), "average")


@pytest.mark.parametrize("kind, options", [(nn.SGD, {"lr": 0.8, "momentum": 0.9}), (nn.AdamW, {"lr": 0.1})])
def test_a_small_model_learns(kind: Any, options: Any, device: str) -> None:
    """Exclusive or, with a batch norm in between: the loss falls below a tenth."""
    morok.manual_seed(7)
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (64, 2)).astype(np.float32)
    x, y = Tensor(points), Tensor((points[:, 0] * points[:, 1] > 0).astype(np.int64))
    # no bias in front of the norm, which takes it away again: its gradient is noise that AdamW would follow
    model = nn.Sequential(nn.Linear(2, 16, bias=False), nn.BatchNorm(16), Tensor.tanh, nn.Linear(16, 2))
    opt = kind(nn.parameters(model), **options)
    history = []
    for _ in range(25):
        opt.zero_grad()
        with nn.training():
            loss = model(x).cross_entropy(y)
        loss.backward()
        opt.step()
        history.append(loss.item())
    assert history[-1] < 0.1 * history[0] + 0.05, history
    assert model[1].running_var.is_realized
    accuracy = model(x).argmax(-1).eq(y).cast("float32").mean().item()
    assert accuracy > 0.9
