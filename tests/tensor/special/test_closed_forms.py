"""Functions at arguments where a formula has them, in double precision."""

import math

import numpy as np

from morok import Tensor

POINTS = np.geomspace(0.05, 30.0, 60)


def test_incomplete_gamma_functions() -> None:
    """On both sides of the middle: a steep tail and a straight one."""
    halves = [math.erf(math.sqrt(x)) for x in POINTS]
    wanted = {
        0.5: np.array(halves),
        1.0: -np.expm1(-POINTS),
        1.5: np.array(halves) - 2 * np.sqrt(POINTS / np.pi) * np.exp(-POINTS),
        3.0: 1 - np.exp(-POINTS) * (1 + POINTS + POINTS**2 / 2),
    }
    for a, values in wanted.items():
        found = Tensor(np.full(POINTS.shape, a)).gammainc(Tensor(POINTS)).numpy()
        np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-12)


def test_mantissas_have_the_slope_of_their_exponent() -> None:
    x = Tensor(np.array([0.7, 1.3, -6.0]))
    (slope,) = x.frexp()[0].sum().gradient(x)
    np.testing.assert_array_equal(slope.numpy(), [1.0, 0.5, 0.125])
