"""Numbers that differ from turn to turn are read from memory, others stay constants. The judge is NumPy."""

import math
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit
from morok.errors import OutOfRange
from morok.runtime.requests import requests
from morok.schedule import numbers

rng = np.random.default_rng(2)
X = rng.standard_normal((5, 37)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    numbers._seen.clear()


def turns(f: Any, g: Any, count: int = 9, dtype: str = "float32", tolerance: float = 1e-5) -> int:
    """Runs a loop beside NumPy; says how many kernels were made after the third turn."""
    data = X.astype(dtype)
    x = Tensor(data, device="CPU").realize()
    made = 0
    for i in range(count):
        if i == 3:
            made = requests.compiled + requests.from_disk
        found = f(x, i).numpy()
        np.testing.assert_allclose(found, g(data, i), rtol=tolerance, atol=tolerance)
    return requests.compiled + requests.from_disk - made


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x * (0.3 + i),
        lambda x, i: x / (0.7 + i) - 1.0 / (i + 2),
        lambda x, i: (0.5 + i) - x * 2.0,
        lambda x, i: (x * (0.1 * i + 0.05) + 3.0).sum(1),
        lambda x, i: (x[1:] * (1.5 * i) + x[:-1] * 0.25).mean(0),
    ],
    ids=["mul", "div", "sub", "sum", "parts"],
)
def test_a_loop_compiles_no_more(f: Any) -> None:
    assert turns(f, f) == 0


def test_comparisons_and_choices() -> None:
    assert (
        turns(lambda x, i: (x > 0.1 * i).where(x, -0.5 * i), lambda x, i: np.where(x > 0.1 * i, x, -0.5 * i))
        == 0
    )
    clipped = turns(
        lambda x, i: x.clamp(-0.1 * i, 0.2 * i + 0.1), lambda x, i: np.clip(x, -0.1 * i, 0.2 * i + 0.1)
    )
    assert clipped == 0


@pytest.mark.parametrize("dtype, tolerance", [("float16", 2e-3), ("float64", 1e-12)])
def test_types(dtype: str, tolerance: float) -> None:
    kind: Any = np.dtype(dtype).type
    assert turns(lambda x, i: x * (0.3 + i), lambda x, i: x * kind(0.3 + i), 9, dtype, tolerance) == 0


def test_what_is_no_operand_stays() -> None:
    turns(lambda x, i: x.abs() ** (0.5 + i), lambda x, i: np.abs(x) ** (0.5 + i), 5, tolerance=1e-4)
    turns(lambda x, i: x * 0.0 + i, lambda x, i: x * 0 + i)


def test_numbers_that_are_none() -> None:
    values = [1.0, math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-40, 3.4e38]
    with np.errstate(all="ignore"):
        turns(lambda x, i: x * values[i], lambda x, i: x * np.float32(values[i]), 8)


def test_updates_in_place() -> None:
    w, wanted = Tensor(X.copy(), device="CPU").realize(), X.copy()
    for i in range(8):
        w -= w * (0.1 / (i + 1))
        w.realize()
        wanted -= wanted * np.float32(0.1 / (i + 1))
        w[1] = w[2] * (i + 0.5)
        wanted[1] = wanted[2] * np.float32(i + 0.5)
    np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-5)


def test_gradients_and_several_results() -> None:
    for i in range(6):
        x = Tensor(X, device="CPU", requires_grad=True)
        y, z = (x * (i + 0.5)).exp().sum(), x * (2.0 * i)
        (slope,) = y.gradient(x)
        Tensor.realize(slope, z)
        np.testing.assert_allclose(slope.numpy(), (i + 0.5) * np.exp(X * (i + 0.5)), rtol=2e-5)
        np.testing.assert_allclose(z.numpy(), X * (2.0 * i), rtol=1e-6)


def test_inside_of_jit_and_with_other_numbers_afterwards() -> None:
    x = Tensor(X, device="CPU").realize()
    f = jit(lambda x, a: (x * a).tanh() + a)
    for i in range(7):
        for _ in range(3):
            np.testing.assert_allclose(
                f(x, 0.2 * i).numpy(), np.tanh(X * 0.2 * i) + 0.2 * i, rtol=1e-5, atol=1e-6
            )
    for i in (2, 0, 5):
        np.testing.assert_allclose(
            f(x, 0.2 * i).numpy(), np.tanh(X * 0.2 * i) + 0.2 * i, rtol=1e-5, atol=1e-6
        )


def test_lazy_results_keep_their_numbers() -> None:
    x = Tensor(X, device="CPU").realize()
    found = [x * (i + 0.25) for i in range(6)]
    later = [y + 1.0 for y in found]
    for y in found:
        y.realize()
    for i, y in enumerate(later):
        np.testing.assert_allclose(y.numpy(), X * (i + 0.25) + 1, rtol=1e-6)
        np.testing.assert_allclose(found[i].numpy(), X * (i + 0.25), rtol=1e-6)


@pytest.mark.parametrize("device", ["PYTHON", "EMULATOR"])
def test_elsewhere(device: str) -> None:
    x = Tensor(X, device=device).realize()
    for i in range(6):
        np.testing.assert_allclose(
            (x * (i + 0.5) - 1.0 / (i + 1)).numpy(), X * (i + 0.5) - 1 / (i + 1), rtol=1e-5, atol=1e-6
        )


def test_an_optimiser_by_hand() -> None:
    w = Tensor(X.copy(), device="CPU", requires_grad=True)
    m, v, wanted = Tensor.zeros(5, 37, device="CPU"), Tensor.zeros(5, 37, device="CPU"), X.astype(np.float64)
    a, b = np.zeros((5, 37)), np.zeros((5, 37))
    for n in range(1, 9):
        w.zero_grad()
        (w * w).sum().backward()
        g = w.grad.detach()
        m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
        step = m / (1 - 0.9**n) / ((v / (1 - 0.99**n)).sqrt() + 1e-8) * (0.1 / n)
        w.assign(w.detach() - step)
        Tensor.realize(w, m, v)
        slope = 2 * wanted
        a, b = a * 0.9 + slope * 0.1, b * 0.99 + slope * slope * 0.01
        wanted = wanted - a / (1 - 0.9**n) / (np.sqrt(b / (1 - 0.99**n)) + 1e-8) * (0.1 / n)
    np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_whole_numbers_vary_too() -> None:
    data = np.arange(30)
    x, made = Tensor(data, device="CPU").realize(), 0
    for n in range(4, 13):  # another one than 3, which would be the same constant
        if n == 7:
            made = requests.compiled + requests.from_disk
        found = (x == n).where(x + n, n - x) * 3
        np.testing.assert_array_equal(found.numpy(), np.where(data == n, data + n, n - data) * 3)
    assert requests.compiled + requests.from_disk == made
    big, count = Tensor(np.array([1 << 60, -(1 << 60)]), device="CPU").realize(), 1 << 59
    small = Tensor(np.array([250, 3], np.uint8), device="CPU").realize()
    for n in range(6):
        wanted = np.array([(1 << 60) + count + n, count + n - (1 << 60)])
        np.testing.assert_array_equal((big + (count + n)).numpy(), wanted)
        np.testing.assert_array_equal((small + n).numpy(), np.array([250, 3], np.uint8) + np.uint8(n))


def test_positions_that_vary_are_still_checked() -> None:
    rows, wanted = Tensor(np.arange(12.0).reshape(4, 3), device="CPU").realize(), np.arange(12).reshape(4, 3)
    places = Tensor(np.array([0, 2]), device="CPU").realize()
    for n in (0, 1, -1, 2, 3, -2, 1):
        if n < 2:
            np.testing.assert_array_equal(rows[places + n].numpy(), wanted[np.array([0, 2]) + n])
        else:
            with pytest.raises(OutOfRange):
                rows[places + n].numpy()
