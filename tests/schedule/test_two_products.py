"""Of two matrix products that are added up the one that is ready last takes the sum, on processors."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import Tensor, knobs
from morok.runtime.plan import ExecutionPlan

N = 64
RNG = np.random.default_rng(7)


def numbers(*sizes: int) -> np.ndarray:
    return (RNG.standard_normal(sizes) / 8).astype(np.float32)


def block(x: Any, p: dict[str, Any], has_own_shortcut: bool) -> Any:
    """Two layers with a shortcut around them, as residual nets have them; of tensors or of arrays."""
    y = x @ p["up"]
    y = (y * (y > 0)) @ p["down"] * p["scale"] + p["shift"]
    short = x @ p["short"] * p["other"] + p["shift"] if has_own_shortcut else x
    z = y + short
    return z * (z > 0)


def parameters() -> dict[str, np.ndarray]:
    matrices = {name: numbers(N, N) for name in ("up", "down", "short")}
    return matrices | {name: numbers(N) for name in ("scale", "shift", "other")}


def plan_of(value: Tensor) -> ExecutionPlan:
    return value.prepare()


def test_blocks_share_their_kernels_with_one_that_has_a_shortcut_of_its_own() -> None:
    """up, short, down of the first block; the second one has the kernels of up and down again."""
    x, first, second = numbers(N, N), parameters(), parameters()
    with knobs.override(DEVICE="CPU"):
        given = [{name: Tensor(a) for name, a in p.items()} for p in (first, second)]
        result = block(block(Tensor(x), given[0], True), given[1], False)
        kernels = plan_of(result).kernels
        assert len(kernels) == 5
        assert len({k.ast for k in kernels}) == 3
        found = result.numpy()
    wide = [{name: a.astype(np.float64) for name, a in p.items()} for p in (first, second)]
    expected = block(block(x.astype(np.float64), wide[0], True), wide[1], False)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_what_is_read_twice_is_kept_once() -> None:
    """The shortcut's product has another reader: it is memory anyway, and nothing is kept beside it."""
    x, p = numbers(N, N), parameters()
    with knobs.override(DEVICE="CPU"):
        t = {name: Tensor(a) for name, a in p.items()}
        short = Tensor(x) @ t["short"]
        total = (Tensor(x) @ t["up"]) @ t["down"] + short * t["other"]
        both = Tensor.stack(total, short.exp())
        assert len(plan_of(both).kernels) <= 5
        found = both.numpy()
    a = x.astype(np.float64)
    short = a @ p["short"]
    expected = np.stack([a @ p["up"] @ p["down"] + short * p["other"], np.exp(short)])
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_products_that_are_ready_at_once_are_two_kernels() -> None:
    x, p = numbers(N, N), parameters()
    with knobs.override(DEVICE="CPU"):
        t = {name: Tensor(a) for name, a in p.items()}
        total = Tensor(x) @ t["up"] + Tensor(x) @ t["down"] + t["shift"]
        assert len(plan_of(total).kernels) == 2
        found = total.numpy()
    np.testing.assert_allclose(found, x @ p["up"] + x @ p["down"] + p["shift"], rtol=2e-4, atol=2e-5)


def test_sums_of_three_products_are_three_kernels() -> None:
    x, p = numbers(N, N), parameters()
    with knobs.override(DEVICE="CPU"):
        t = {name: Tensor(a) for name, a in p.items()}
        one = Tensor(x) @ t["up"]
        total = (one.tanh() @ t["down"]).tanh() @ t["short"] + one.tanh() @ t["down"] + Tensor(x) @ t["short"]
        plan = plan_of(total)
        found = total.numpy()
        assert len(plan.kernels) <= 5
    a = np.tanh(x @ p["up"])
    expected = np.tanh(a @ p["down"]) @ p["short"] + a @ p["down"] + x @ p["short"]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
