"""Distributions beside those of SciPy: the largest distance of their functions, counts; on two devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, knobs
from morok import random as rnd

stats = pytest.importorskip("scipy.stats")
pytestmark = pytest.mark.slow

COUNT = 20_000  # more than are drawn by way of memory
LEAST = 1e-4  # probability below which a law is refused; seeds are fixed

Draw = Callable[[int], Tensor]

CONTINUOUS: dict[str, tuple[Draw, Any]] = {
    "uniform": (lambda n: Tensor.rand(n), stats.uniform()),
    "normal": (lambda n: Tensor.randn(n), stats.norm()),
    "exponential": (lambda n: rnd.exponential(2.0, n), stats.expon(scale=2.0)),
    "gumbel": (lambda n: rnd.gumbel(1.0, 2.0, n), stats.gumbel_r(1.0, 2.0)),
    "truncated normal": (lambda n: rnd.truncated_normal(-1.0, 2.0, size=n), stats.truncnorm(-1.0, 2.0)),
    "gamma 0.4": (lambda n: rnd.gamma(0.4, size=n), stats.gamma(0.4)),
    "gamma 1": (lambda n: rnd.gamma(1.0, 3.0, size=n), stats.gamma(1.0, scale=3.0)),
    "gamma 7.5": (lambda n: rnd.gamma(7.5, size=n), stats.gamma(7.5)),
    "beta 0.5 0.5": (lambda n: rnd.beta(0.5, 0.5, n), stats.beta(0.5, 0.5)),
    "beta 2 5": (lambda n: rnd.beta(2.0, 5.0, n), stats.beta(2.0, 5.0)),
    "dirichlet": (lambda n: Tensor([1.0, 2.0, 3.0]).dirichlet(n)[:, 1], stats.beta(2.0, 4.0)),
}

DISCRETE: dict[str, tuple[Draw, Any]] = {
    "poisson 0.7": (lambda n: rnd.poisson(0.7, n), stats.poisson(0.7)),
    "poisson 9": (lambda n: rnd.poisson(9.0, n), stats.poisson(9.0)),
    "poisson 40": (lambda n: rnd.poisson(40.0, n), stats.poisson(40.0)),
    "binomial 20 0.3": (lambda n: rnd.binomial(20, 0.3, n), stats.binom(20, 0.3)),
    "binomial 200 0.6": (lambda n: rnd.binomial(200, 0.6, n), stats.binom(200, 0.6)),
    "categorical": (
        lambda n: Tensor([0.1, 0.2, 0.3, 0.4]).log().categorical(n),
        stats.rv_discrete(values=(np.arange(4), [0.1, 0.2, 0.3, 0.4]))(),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("seed", [1, 2])
def test_distances(name: str, seed: int) -> None:
    draw, law = CONTINUOUS[name]
    with morok.Generator(seed):
        found = draw(COUNT).numpy().astype(np.float64)
    assert stats.kstest(found, law.cdf).pvalue > LEAST
    spread = law.std()
    assert abs(found.mean() - law.mean()) < 5 * spread / COUNT**0.5
    assert abs(found.std() / spread - 1) < 0.1


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize("seed", [1, 2])
def test_counts(name: str, seed: int) -> None:
    draw, law = DISCRETE[name]
    with morok.Generator(seed):
        found = draw(COUNT).numpy().astype(np.int64)
    places = np.arange(found.max() + 2)
    wanted = law.pmf(places) * COUNT
    usual = wanted >= 5  # what is rarer counts together
    seen = np.bincount(found, minlength=len(places)).astype(np.float64)
    rest = max(COUNT - wanted[usual].sum(), 1e-9)
    pairs = [*zip(seen[usual], wanted[usual], strict=True), (COUNT - seen[usual].sum(), rest)]
    distance = sum((x - y) ** 2 / max(y, 1.0) for x, y in pairs)
    assert stats.chi2(len(pairs) - 1).sf(distance) > LEAST


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_the_same_numbers_on_the_emulator(name: str) -> None:
    draw = (CONTINUOUS | DISCRETE)[name][0]
    results = []
    for device in ("CPU", "EMULATOR"):
        with knobs.override(DEVICE=device), morok.Generator(5):
            results.append(draw(40).numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=5e-6, atol=1e-30)
