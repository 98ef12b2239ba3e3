"""Optimisers that scale steps by what gradients have been, against their formulas in NumPy, in float64."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn

Array = Any
A, B = np.array([[1.0, -2.0, 0.5], [3.0, 0.1, -1.0]]), np.array([0.5, -0.25, 2.0])


def run(kind: Any, count: int = 7, **options: Any) -> Array:
    """Some steps on the loss Σ w²/2 + b·w."""
    w = Tensor(A.copy(), requires_grad=True)
    opt = kind([w], **options)
    for _ in range(count):
        opt.zero_grad()
        (w * w * 0.5 + w * Tensor(B)).sum().backward()
        opt.step()
    return w.numpy()


def follow(update: Any, count: int = 7) -> Array:
    w = A.copy()
    for n in range(1, count + 1):
        w = update(w, w + B, n)
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(momentum: float, centered: bool) -> None:
    square = mean = velocity = 0.0

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal square, mean, velocity
        g = g + 0.1 * w
        square = 0.9 * square + 0.1 * g * g
        mean = 0.9 * mean + 0.1 * g
        step = g / (np.sqrt(square - mean * mean if centered else square) + 1e-3)
        velocity = momentum * velocity + step
        return w - 0.05 * velocity

    options = {"lr": 0.05, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1}
    found = run(nn.RMSprop, momentum=momentum, centered=centered, **options)
    np.testing.assert_allclose(found, follow(update), rtol=1e-5, atol=1e-6)


def test_adagrad() -> None:
    square = 0.3

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal square
        g = g + 0.1 * w
        square = square + g * g
        return w - 0.2 / (1 + (n - 1) * 0.5) * g / (np.sqrt(square) + 1e-10)

    found = run(nn.Adagrad, lr=0.2, lr_decay=0.5, weight_decay=0.1, initial_accumulator_value=0.3)
    np.testing.assert_allclose(found, follow(update), rtol=1e-5, atol=1e-6)


def test_adadelta() -> None:
    square = moved = 0.0

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal square, moved
        square = 0.8 * square + 0.2 * g * g
        step = np.sqrt(moved + 1e-3) / np.sqrt(square + 1e-3) * g
        moved = 0.8 * moved + 0.2 * step * step
        return w - 0.5 * step

    found = run(nn.Adadelta, lr=0.5, rho=0.8, eps=1e-3)
    np.testing.assert_allclose(found, follow(update), rtol=1e-5, atol=1e-6)


def test_adamax() -> None:
    mean, largest = 0.0, np.zeros_like(A)

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal mean, largest
        mean = 0.8 * mean + 0.2 * g
        largest = np.maximum(0.9 * largest, np.abs(g) + 1e-8)
        return w - 0.1 / (1 - 0.8**n) * mean / largest

    found = run(nn.Adamax, lr=0.1, betas=(0.8, 0.9))
    np.testing.assert_allclose(found, follow(update), rtol=1e-5, atol=1e-6)


def test_adam_with_the_largest_mean_of_squares() -> None:
    mean = square = 0.0
    largest = np.zeros_like(A)

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal mean, square, largest
        g = g * (2.0 if n == 1 else 1.0)
        mean, square = 0.8 * mean + 0.2 * g, 0.7 * square + 0.3 * g * g
        largest = np.maximum(largest, square)
        return w - 0.1 * mean / (1 - 0.8**n) / (np.sqrt(largest / (1 - 0.7**n)) + 1e-8)

    w = Tensor(A.copy(), requires_grad=True)
    opt = nn.Adam([w], lr=0.1, betas=(0.8, 0.7), amsgrad=True)
    for n in range(7):  # the first gradient is the largest, so later means are smaller
        opt.zero_grad()
        ((w * w * 0.5 + w * Tensor(B)) * (2.0 if n == 0 else 1.0)).sum().backward()
        opt.step()
    np.testing.assert_allclose(w.numpy(), follow(update), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decoupled", [False, True])
def test_nadam(decoupled: bool) -> None:
    mean, square, product = 0.0, 0.0, 1.0

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal mean, square, product
        if decoupled:
            w = w * (1 - 0.1 * 0.2)
        else:
            g = g + 0.2 * w
        now, then = (0.8 * (1 - 0.5 * 0.96 ** (t * 0.01)) for t in (n, n + 1))
        product *= now
        mean, square = 0.8 * mean + 0.2 * g, 0.9 * square + 0.1 * g * g
        root = np.sqrt(square / (1 - 0.9**n)) + 1e-8
        w = w - 0.1 * (1 - now) / (1 - product) * g / root
        return w - 0.1 * then / (1 - product * then) * mean / root

    found = run(
        nn.NAdam,
        lr=0.1,
        betas=(0.8, 0.9),
        weight_decay=0.2,
        momentum_decay=0.01,
        decoupled_weight_decay=decoupled,
    )
    np.testing.assert_allclose(found, follow(update), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decoupled", [False, True])
def test_radam(decoupled: bool) -> None:
    mean = square = 0.0
    scaled = []

    def update(w: Array, g: Array, n: int) -> Array:
        nonlocal mean, square
        if decoupled:
            w = w * (1 - 0.1 * 0.2)
        else:
            g = g + 0.2 * w
        mean, square = 0.8 * mean + 0.2 * g, 0.9 * square + 0.1 * g * g
        longest = 2 / (1 - 0.9) - 1
        length = longest - 2 * n * 0.9**n / (1 - 0.9**n)
        step = mean / (1 - 0.8**n)
        scaled.append(length > 5)
        if length > 5:
            worth = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            step = step * np.sqrt(worth) * np.sqrt(1 - 0.9**n) / (np.sqrt(square) + 1e-8)
        return w - 0.1 * step

    options = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.2, "decoupled_weight_decay": decoupled}
    found, wanted = run(nn.RAdam, count=9, **options), follow(update, 9)
    assert {True, False} == set(scaled)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
