"""`morok.random`: generators whose state can be saved, and distributions, with NumPy's arguments."""

from __future__ import annotations

from typing import Any

from morok.tensor import distributions
from morok.tensor.random import Generator
from morok.tensor.tensor import Tensor

default_rng = Generator
manual_seed, get_state, set_state = Tensor.manual_seed, Tensor.get_rng_state, Tensor.set_rng_state
exponential, gumbel = Tensor.exponential, Tensor.gumbel
truncated_normal, permutation = Tensor.truncated_normal, Tensor.permutation
standard_gamma, dirichlet, categorical = Tensor.standard_gamma, Tensor.dirichlet, Tensor.categorical


def uniform(
    low: Any = 0.0, high: Any = 1.0, size: Any = (), dtype: Any = None, generator: Generator | None = None
) -> Tensor:
    """Uniform between `low` and `high`.

    >>> uniform(-1.0, 1.0, (2, 2)).shape
    (2, 2)
    """
    found: Tensor = Tensor.rand(*_sizes(size), dtype=dtype, generator=generator) * (high - low) + low
    return found


def normal(
    loc: Any = 0.0, scale: Any = 1.0, size: Any = (), dtype: Any = None, generator: Generator | None = None
) -> Tensor:
    """Normal with a mean and a standard deviation.

    >>> normal(3.0, 0.0, 2).tolist()
    [3.0, 3.0]
    """
    found: Tensor = Tensor.randn(*_sizes(size), dtype=dtype, generator=generator) * scale + loc
    return found


def integers(
    low: int,
    high: int | None = None,
    size: Any = (),
    dtype: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Whole numbers from `low` up to but without `high`; with one bound, from 0.

    >>> integers(1, 2, 3).tolist()
    [1, 1, 1]
    """
    return Tensor.randint(low, high, _sizes(size), dtype=dtype, generator=generator)


def gamma(
    shape: Any, scale: Any = 1.0, size: Any = None, dtype: Any = None, generator: Generator | None = None
) -> Tensor:
    """Gamma's distribution, mean shape · scale.

    >>> gamma(2.0, size=(4,)).shape
    (4,)
    """
    return distributions.gamma(Tensor, shape, scale, size, dtype, generator)


def beta(a: Any, b: Any, size: Any = None, dtype: Any = None, generator: Generator | None = None) -> Tensor:
    """Beta's distribution between 0 and 1, mean a / (a + b).

    >>> beta(2.0, 3.0, 5).shape
    (5,)
    """
    return distributions.beta(Tensor, a, b, size, dtype, generator)


def poisson(
    lam: Any = 1.0, size: Any = None, dtype: Any = None, generator: Generator | None = None
) -> Tensor:
    """How many events happen where `lam` are expected; integers unless a type is asked for.

    >>> poisson(0.0, 3).tolist()
    [0, 0, 0]
    """
    return distributions.poisson_of(Tensor, lam, size, None, generator).cast(dtype or "int64")


def binomial(
    n: Any, p: Any, size: Any = None, dtype: Any = None, generator: Generator | None = None
) -> Tensor:
    """How many of n trials succeed, each with probability p; integers unless a type is asked for.

    >>> binomial(5, 1.0, 2).tolist()
    [5, 5]
    """
    count = n.cast("float32") if isinstance(n, Tensor) else Tensor(n, dtype="float32")
    return count.binomial(p, size, generator=generator).cast(dtype or "int64")


def _sizes(size: Any) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, tuple | list) else (size,)
