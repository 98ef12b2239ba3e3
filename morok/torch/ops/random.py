"""Random numbers: Threefry under a key that torch's generator gives for every run."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.tensor import Tensor
from morok.torch.table import Call, T, op


@op("rand.default", "rand_like.default")
def rand(*_: Any, call: Call, **__: Any) -> T:
    return Tensor.rand(*call.shape, dtype=call.dtype)


@op("randn.default", "randn_like.default")
def randn(*_: Any, call: Call, **__: Any) -> T:
    return Tensor.randn(*call.shape, dtype=call.dtype)


@op("native_dropout.default")
def native_dropout(x: T, p: float, train: bool | None, call: Call) -> Any:
    if train is False or p == 0:
        return x, Tensor.ones(*x.shape, dtype=dt.bool_)
    if p == 1:
        return x * 0, Tensor.zeros(*x.shape, dtype=dt.bool_)
    kept = Tensor.rand(*x.shape) >= p
    return kept.where(x * (1.0 / (1.0 - p)), 0.0), kept


@op("bernoulli.default", "bernoulli.p")
def bernoulli(x: T, p: Any = None, *, call: Call) -> T:
    chance = x if p is None else p
    kind = dt.float64 if call.dtype is dt.float64 else dt.float32
    return Tensor.rand(*call.shape, dtype=kind) < (
        chance.cast(kind) if isinstance(chance, Tensor) else chance
    )


@op("uniform.default")
def uniform(x: T, low: float = 0.0, high: float = 1.0, *, call: Call) -> T:
    return Tensor.rand(*call.shape, dtype=call.wide) * (high - low) + low


@op("normal_functional.default")
def normal(x: T, mean: float = 0.0, std: float = 1.0, *, call: Call) -> T:
    return Tensor.randn(*call.shape, dtype=call.wide) * std + mean


@op("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def randint(*args: Any, call: Call, **_: Any) -> T:
    name = str(call.node.target)
    numbers = args[1:] if "like" in name else args[:-1]
    low, high = (0, numbers[0]) if "low" not in name else numbers[:2]
    return Tensor.randint(low, high, call.shape)


@op("randperm.default")
def randperm(count: Any, *, call: Call, **_: Any) -> T:
    return Tensor.permutation(count)


@op("prims.normal.default")
def prims_normal(shape: Any, *, mean: Any = 0.0, std: Any = 1.0, call: Call, **_: Any) -> T:
    return Tensor.randn(*call.shape, dtype=call.wide) * std + mean


@op("rrelu_with_noise_functional.default")
def rrelu(x: T, noise: T, lower: float = 0.125, upper: float = 1 / 3, training: bool = False) -> Any:
    """Slopes of negative elements are drawn; which ones they were is remembered."""
    if not training:
        return (x > 0).where(x, x * ((lower + upper) / 2)), noise
    slope = Tensor.rand(*x.shape) * (upper - lower) + lower
    slope = (x > 0).where(1.0, slope)
    return x * slope.cast(x.dtype), slope.cast(noise.dtype)
